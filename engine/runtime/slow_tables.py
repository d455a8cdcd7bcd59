"""The tables that keep the engine waiting: calls on them get few of the threads.

A call on a table may take long for many reasons: LOCK TABLES or an ALTER TABLE lets each statement wait until it
fails with 1205, a second later; a trigger sleeps or works for seconds; the rows are large. A few such queues
would have all threads waiting, and other queues none. So, whichever the statement was, the next calls on that
table take turns: one at a time for each table, and few over all of them.

Something that ends soon, such as a lock on all tables or a server that stands still, makes calls on many tables
slow. If one of these tables stays slow, its calls do not delay the others for long: it has one turn at a time,
and a call that is quick shows that others like it need no turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine.model import TableId


@dataclass(slots=True)
class _Slow:
    """What is known of a table that was slow a moment ago, and its calls."""

    until_s: float = 0.0
    passing: set[str] = field(default_factory=set)
    """The methods that were quick since: LOCK TABLES … READ, for example, lets scans pass."""
    has_turn: bool = False
    """Whether a call has the turn, or waits for it. With many slow tables, that may take longer than the
    table is kept."""
    waiting: deque[tuple[str, asyncio.Future[bool]]] = field(default_factory=deque)
    """Calls that wait for their turn: their method, and whether they need one when they go on."""

    async def wait(self, method: str) -> bool:
        """Wait until it is this call's turn (True), or until its method passes (False)."""
        if not self.has_turn:
            self.has_turn = True
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiting.append((method, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.next()
            raise

    def next(self) -> None:
        """A turn has ended. The next call has the turn."""
        while self.waiting:
            _, waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self.has_turn = False

    def passes(self, method: str) -> None:
        """Calls of this method need no turn."""
        self.passing.add(method)
        for one, waiter in self.waiting:
            if one == method and not waiter.done():
                waiter.set_result(False)


class SlowTables:
    """Which tables were slow a moment ago, and whose turn it is to call."""

    def __init__(self, calls_max: int, kept_s: float, clock: Callable[[], float]) -> None:
        """`calls_max`: concurrent calls on all slow tables. `kept_s`: for how long after the last slow call
        a table counts as slow. `clock`: monotonic, in seconds."""
        self._kept_s, self._clock = kept_s, clock
        self._turns = asyncio.Semaphore(calls_max)
        self._slow: dict[TableId, _Slow] = {}

    def waited(self, table: TableId, method: str) -> None:
        """A call of this method on the table has kept its thread waiting."""
        now_s = self._clock()
        kept = {other: slow for other, slow in self._slow.items() if slow.has_turn or now_s < slow.until_s}
        slow = kept.setdefault(table, _Slow())
        slow.until_s = now_s + self._kept_s
        slow.passing.discard(method)
        self._slow = kept

    def passed(self, table: TableId, method: str) -> None:
        """A call of this method on the table was quick."""
        if (slow := self._slow.get(table)) is not None:
            slow.passes(method)

    def contains(self, table: TableId, method: str) -> bool:
        """Whether a call of this method on the table needs a turn."""
        slow = self._slow.get(table)
        if slow is None or method in slow.passing:
            return False
        return slow.has_turn or self._clock() < slow.until_s

    @asynccontextmanager
    async def turn(self, table: TableId, method: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the time of the block. Only while `contains` is true.

        Each table has its turns in the order of its callers, and tables in the order in which their
        next calls came. A call whose method passes meanwhile waits no longer.
        """
        slow = self._slow[table]
        if not await slow.wait(method):
            yield
            return
        try:
            async with self._turns:
                yield
        finally:
            slow.next()
