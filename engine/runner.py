"""One table at work: its dispatcher, and the carrying out of what it wants.

A happening is handed to the dispatcher; its effects are carried out, those that need the store as tasks; their answers
are the next happenings. A timer is set for when the dispatcher wants to be woken.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, assert_never

from engine.dispatcher import Dispatcher, Effects
from engine.effects import Bury, Cause, Claim, Deliver, Effect, End, Fetch, Lookup, Purge, Release, Scan
from engine.model import Key, QueueTable, TableId, Wanted
from engine.pacing import Limits
from engine.shell import Shell
from engine.store import StoreError

log = logging.getLogger(__name__)

NO_TABLE = frozenset({1049, 1146})
"""What the server says of a table, or of its database, that was dropped."""

Asked = Scan | Claim | Fetch | Lookup | Release | Purge | Bury
"""The effects that the store carries out."""


class Sink(Protocol):
    """Where a subscriber's messages go. Both methods return at once."""

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        """Row payloads in the subscriber's format, claimed and committed."""

    def end(self, cause: Cause, text: str) -> None:
        """Nothing comes after this."""


def gone(table: TableId) -> str:
    """Why the streams of a table end that was dropped, or is a queue no longer: the same whoever notices first."""
    return f"Table '{table}' is no message table any more"


class TableRunner:
    """One table's dispatcher, and the carrying out of its effects."""

    def __init__(
        self,
        shell: Shell,
        queue: QueueTable,
        limits: Limits,
        on_doubt: Callable[[], None],
        on_buried: Callable[[TableId], None],
    ) -> None:
        """`on_doubt` is called when the server says that the table is not what we take it for, `on_buried` when dead
        messages have come into that table."""
        self.queue = queue
        self.sinks: dict[int, Sink] = {}
        self.settled_down = asyncio.Event()
        self._shell = shell
        self._on_doubt = on_doubt
        self._on_buried = on_buried
        self._timer: asyncio.TimerHandle | None = None
        self._effects: deque[Effect] = deque()
        self._performing = False
        self._retired = False
        self.dispatcher = Dispatcher(queue.policy, limits, random.random, shell.clock.now_ns())
        self.happen(self.dispatcher.tick)

    def happen(self, happening: Callable[..., Effects], *args: Any) -> None:
        """Tell the dispatcher, and carry out what follows. A sink may make something happen in turn: that
        waits its turn."""
        self._effects.extend(happening(self._shell.clock.now_ns(), *args))
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._performing = False
        self._rearm()

    def reconfigure(self, queue: QueueTable) -> None:
        """The table was looked at again."""
        before, self.queue = self.queue, queue
        if before.policy != queue.policy:
            log.info("queue %s: its policy changed", queue.id)
            self.happen(self.dispatcher.reconfigure, queue.policy)

    def retire(self, text: str) -> None:
        """The table is no queue any more: end its streams."""
        self._retired = True
        self.happen(self.dispatcher.unusable, text)

    def disarm(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rearm(self) -> None:
        self.disarm()
        if self.dispatcher.settled_down:
            self.settled_down.set()
        else:
            self.settled_down.clear()
        wake_at_ns = None if self._retired else self.dispatcher.wake_at_ns
        if wake_at_ns is not None:
            delay_s = max(0.0, (wake_at_ns - self._shell.clock.now_ns()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.happen, self.dispatcher.tick)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Deliver(subscriber, rows):
                self._shell.counters.delivered += len(rows)
                if sink := self.sinks.get(subscriber):
                    sink.deliver(rows)
            case End(subscriber, cause, text):
                if sink := self.sinks.pop(subscriber, None):
                    sink.end(cause, text)
            case _:
                self._shell.spawn(self._ask(effect), f"{type(effect).__name__} {self.queue.id}")

    async def _ask(self, effect: Asked) -> None:
        """Have the store carry out an effect, and tell the dispatcher how it went."""
        try:
            answer = await self._carry_out(effect)
        except StoreError as error:
            log.warning("%s of %s failed: %s", type(effect).__name__.lower(), self.queue.id, error)
            if error.lasting:
                self._on_doubt()
            text = gone(self.queue.id) if error.code in NO_TABLE else str(error)
            self._failed(effect, text, lasting=error.lasting)
        except Exception as error:  # A fault of ours: it must not leave the dispatcher waiting for ever.
            log.exception("%s of %s failed", type(effect).__name__.lower(), self.queue.id)
            self._failed(effect, str(error), lasting=False)
        else:
            answer()

    async def _carry_out(self, effect: Asked) -> Callable[[], None]:
        """Ask the store; returns what is to happen then."""
        call, store, counters = self._shell.call, self._shell.store, self._shell.counters
        dispatcher = self.dispatcher
        match effect:
            case Scan(scan_id, selection, limit, part):
                result = await call(store.scan, self.queue, limit, selection, part)
                counters.scans += 1
                counters.scanned += len(result.entries)
                return partial(self.happen, dispatcher.scanned, scan_id, result)
            case Claim(claim_id, wanted):
                claims = await call(store.claim, self.queue, wanted)
                counters.claims += 1
                counters.claimed += len(claims)
                counters.redelivered += sum(each.epoch > 1 for each in claims)
                return partial(self.happen, dispatcher.claimed, claim_id, claims)
            case Fetch(fetch_id, row_format, keys):
                budget = self._shell.settings.fetch_budget_bytes
                rows = await call(store.fetch, self.queue, row_format, keys, budget)
                return partial(self.happen, dispatcher.fetched, fetch_id, rows)
            case Lookup(keys):
                return partial(self.happen, dispatcher.looked_up, await call(store.lookup, self.queue, keys))
            case Release(returns):
                counters.released += await call(store.release, self.queue, returns)
                return partial(self.happen, dispatcher.released)
            case Purge(age_ns, limit):
                count = await call(store.purge, self.queue, age_ns, limit)
                counters.purged += count
                return partial(self.happen, dispatcher.purged, count)
            case Bury(dead):
                return partial(self.happen, dispatcher.buried, await self._bury(dead))
            case _:
                assert_never(effect)

    async def _bury(self, dead: Sequence[Wanted]) -> Sequence[Key]:
        """Move dead messages to their table; those that are moved."""
        place, counters = self.queue.dead_letter, self._shell.counters
        if place is None:  # The directive has just been taken away: they live again.
            return ()
        buried = await self._shell.call(self._shell.store.bury, self.queue, dead, place)
        counters.buried += len(buried.moved)
        if buried.moved:
            self._on_buried(place)
        if buried.problem is not None:
            counters.unburied += 1
            log.error("dead messages of %s cannot be moved to %s: %s", self.queue.id, place, buried.problem)
        return buried.moved

    def _failed(self, effect: Asked, text: str, *, lasting: bool) -> None:
        dispatcher = self.dispatcher
        match effect:
            case Scan(scan_id, _, _, _):
                self.happen(partial(dispatcher.scan_failed, lasting=lasting), scan_id, text)
            case Claim(claim_id, _):
                self.happen(dispatcher.claim_failed, claim_id)
            case Fetch(fetch_id, _, _):
                self.happen(partial(dispatcher.fetch_failed, lasting=lasting), fetch_id, text)
            case Lookup():
                self.happen(dispatcher.lookup_failed)
            case Release():
                self.happen(dispatcher.release_failed)
            case Purge():
                self.happen(dispatcher.purge_failed)
            case Bury():
                self.happen(dispatcher.bury_failed)
            case _:
                assert_never(effect)
