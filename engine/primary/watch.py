"""Observes all servers about twice a second, and reports which one is the primary.

Each server has a thread and a connection, so one that hangs delays nobody. An observation can be
requested at once, when a statement fails in a way that another primary explains.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from engine.primary.election import Decision, Election, Seen, State
from engine.primary.observation import Observer
from engine.store.opening import BackendAddress

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """The times of the watch, in seconds, each with its reason."""

    interval_s: float = 0.5
    """Between two observations: a change is noticed within a second. The real pause is up to a
    fifth shorter, so several proxies do not keep step."""
    requested_s: float = 0.05
    """Between two requested observations: many requests may come at once."""
    answer_s: float = 1.0
    """How long an observation waits for slow servers. The last state of a slow one counts."""
    silent_s: float = 3.0
    """A server that has not answered for so long is away."""


@dataclass(slots=True)
class _Watched:
    observer: Observer
    seen: Seen
    running: asyncio.Future[Seen] | None = None
    since_s: float = 0.0
    """When the observation that runs was begun."""


class PrimaryWatch:
    """Watches a set of servers, each with a name. `changed` is called on the event loop with each
    decision that differs from the one before in more than its words."""

    def __init__(
        self,
        servers: Mapping[str, BackendAddress],
        changed: Callable[[Decision], None],
        limits: WatchLimits | None = None,
        observer: Callable[[BackendAddress], Observer] = Observer,
    ) -> None:
        self._changed = changed
        self.limits = limits or WatchLimits()
        self._new_observer = observer
        self._election = Election()
        self._threads = ThreadPoolExecutor(max_workers=256, thread_name_prefix="primary")
        self._watched: dict[str, _Watched] = {}
        self._requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.set_servers(servers)

    @property
    def decision(self) -> Decision:
        """The last decision."""
        return self._election.decision

    @property
    def states(self) -> Mapping[str, Seen]:
        """The last observation of each server."""
        return {name: watched.seen for name, watched in self._watched.items()}

    def set_servers(self, servers: Mapping[str, BackendAddress]) -> None:
        """Watch these servers from now on, in this order."""
        before, self._watched = self._watched, {}
        for name, address in servers.items():
            present = before.pop(name, None)
            if present is None or present.observer.address != address:
                if present is not None:
                    before[name] = present
                present = _Watched(self._new_observer(address), Seen(State.AWAY, text="not tried yet"))
            self._watched[name] = present
        for gone in before.values():
            gone.observer.close()

    def address(self, name: str) -> BackendAddress:
        """The address of a server."""
        return self._watched[name].observer.address

    def start(self) -> None:
        """Watch in the background until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="primary")

    def request(self) -> None:
        """Observe soon. On the event loop's thread."""
        self._requested.set()

    async def close(self) -> None:
        """Stop, and close all connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for watched in self._watched.values():
            watched.observer.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def observe(self) -> Decision:
        """Observe all servers once, and decide."""
        now = asyncio.get_running_loop().time
        for watched in self._watched.values():
            if watched.running is None:
                watched.since_s = now()
                watched.running = asyncio.get_running_loop().run_in_executor(self._threads, watched.observer.observe)
        running = [watched.running for watched in self._watched.values() if watched.running is not None]
        await asyncio.wait(running, timeout=self.limits.answer_s)
        for watched in self._watched.values():
            if watched.running is not None and watched.running.done():
                watched.seen, watched.running = watched.running.result(), None
            elif now() - watched.since_s > self.limits.silent_s:
                watched.seen = Seen(State.AWAY, text=f"no answer for {self.limits.silent_s:g} s")
        before = self._election.decision
        decision = self._election.observe(self.states, now())
        if (decision.primary, _kind(decision)) != (before.primary, _kind(before)):
            self._log(decision)
            self._changed(decision)
        return decision

    def _log(self, decision: Decision) -> None:
        if decision.primary is None:
            log.warning("there is no primary: %s", decision.problem, extra={"event": "primary.lost"})
        elif decision.problem:
            log.warning(
                "%s is the primary; %s", decision.primary, decision.problem, extra={"event": "primary.doubtful"}
            )
        else:
            log.info("%s is the primary", decision.primary, extra={"event": "primary.found"})

    async def _watch(self) -> None:
        limits = self.limits
        while True:
            try:
                await self.observe()
            except Exception:  # A fault in ackstream must not end the watch.
                log.exception("the servers could not be observed", extra={"event": "primary.fault"})
            await asyncio.sleep(limits.requested_s)
            pause_s = limits.interval_s * random.uniform(0.8, 1.0) - limits.requested_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), pause_s)
            self._requested.clear()


def _kind(decision: Decision) -> str:
    """What a problem is about, without the words of servers' errors."""
    return decision.problem.partition("(")[0]
