"""The tables that other sessions have locked: calls on them get few of the threads.

LOCK TABLES, an ALTER TABLE that copies, and mysqldump without --single-transaction let each
statement on a table wait until it fails with 1205, a second later. A few such queues would have all
threads waiting, and other queues none. So, after a call has failed like this, the next calls on
that table take turns with those on other locked tables.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from engine.model import TableId


class LockedTables:
    """Which tables were locked a moment ago, and whose turn it is to call."""

    def __init__(self, calls_max: int, kept_s: float, clock: Callable[[], float]) -> None:
        """`calls_max`: concurrent calls on all locked tables. `kept_s`: for how long after the last failure
        a table counts as locked. `clock`: monotonic, in seconds."""
        self._kept_s, self._clock = kept_s, clock
        self._turns = asyncio.Semaphore(calls_max)
        self._until_s: dict[TableId, float] = {}
        self._calls: Counter[TableId] = Counter()
        """Calls that wait for their turn, or have it. With many locked tables, they may wait for longer than
        `kept_s`."""

    def waited(self, table: TableId) -> None:
        """A call on the table has failed because it waited for a lock."""
        now_s = self._clock()
        self._until_s = {other: until_s for other, until_s in self._until_s.items() if now_s < until_s}
        self._until_s[table] = now_s + self._kept_s

    def contains(self, table: TableId) -> bool:
        """Whether calls on the table need a turn."""
        if not self._until_s:
            return False
        return self._clock() < self._until_s.get(table, 0.0) or self._calls[table] > 0

    @asynccontextmanager
    async def turn(self, table: TableId) -> AsyncIterator[None]:
        """Wait for a turn, in the order of the callers, and have it for the time of the block."""
        self._calls[table] += 1
        try:
            async with self._turns:
                yield
        finally:
            self._calls[table] -= 1
            if not self._calls[table]:
                del self._calls[table]
