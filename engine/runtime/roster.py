"""Which share of each queue is this proxy's: the roster of the server's proxies, checked again and
again.

If the roster cannot be read (no server, or one without user-level locks), this proxy takes the
messages of all shares, as if it were alone.

The checks keep the lock of this proxy's slot: the server ends its session if none comes for some time,
and another check has to follow soon after the session has ended. So they do not wait for other store
calls, which may all wait for locks.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from contextlib import suppress

from engine.model import TableId
from engine.runtime.executor import StoreExecutor
from engine.store.port import Roster, StoreError

log = logging.getLogger(__name__)

NO_LOCKS = frozenset({1105, 1193, 1235, 1305, 1370, 1295, 4144})
"""The servers' errors where user-level locks are missing or not supported (Galera in strict mode)."""


class RosterWatch:
    """Checks the roster as long as the engine runs."""

    def __init__(
        self,
        executor: StoreExecutor,
        queues: Callable[[], Collection[TableId]],
        on_roster: Callable[[Roster], None],
    ) -> None:
        """`queues` returns the queues on which this proxy has streams. `on_roster` is called after
        each check."""
        self._executor = executor
        self._queues = queues
        self._on_roster = on_roster
        self.found = Roster(None)
        """The result of the last check."""
        self._changed = asyncio.Event()
        """A queue was streamed for the first time."""
        self._announced: frozenset[TableId] = frozenset()
        self._servers = 0
        """How often the server has changed."""

    def start(self) -> None:
        """Check it in the background, at once and at intervals."""
        self._executor.spawn(self._watch(), "roster")

    def server_changed(self) -> None:
        """Another server is used: this proxy has no place in its roster yet."""
        self._servers += 1
        self.found = Roster(None)
        self._announced = frozenset()
        self._changed.set()

    def queue_streamed(self) -> None:
        """A queue got its first stream: check soon if other proxies are there."""
        if self.found.others:
            self._changed.set()

    async def check(self) -> float:
        """Check it once. Returns the pause until the next check, in seconds."""
        settings = self._executor.settings
        before, announced = (self.found, self._announced), self._queues()
        server = self._servers
        try:
            found = await self._executor.call_apart(self._executor.store.roster, announced)
            if server != self._servers:  # It is the roster of another server.
                return 0.0
            self.found = found
        except StoreError as error:
            self._executor.report("the roster of proxies", error)
            self.found = Roster(None)
            self._on_roster(self.found)
            return settings.roster_without_locks_s if error.code in NO_LOCKS else settings.roster_interval_s
        self._announced = frozenset(announced)
        self._log(before[0])
        self._on_roster(self.found)
        unchanged = not self.found.others or before == (self.found, self._announced)
        if not unchanged:
            return settings.roster_again_s
        return settings.roster_with_others_s if self.found.others else settings.roster_interval_s

    def _log(self, before: Roster) -> None:
        if self.found.slot is None:
            if before.others != self.found.others:
                log.warning(
                    "there are more proxies than slots for them: this one takes messages of all shares",
                    extra={"event": "roster.full"},
                )
        elif self.found.others != before.others:
            log.info(
                "proxy in slot %d, one of %d on this server",
                self.found.slot,
                len(self.found.others) + 1,
                extra={"event": "roster.changed"},
            )

    async def _watch(self) -> None:
        while True:
            pause_s = await self.check()
            pause_s *= 1 - random.random() / 5  # So that several proxies do not keep step.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause_s)
            self._changed.clear()
