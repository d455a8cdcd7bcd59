"""The calls of the store that are under way, and which of them last: whatever they wait for, each keeps a thread
and a connection from the others.

A call that lasts is replaced: there is a thread and a connection more until it ends, up to a bound. So a dozen
queues whose statements take seconds do not delay the others before `SlowTables` knows them.

A call that lasts for some seconds more is stalled. The disk of the server is full, for example, or a backup has
locked all tables. People are told: nothing else shows it. Some waits the server ends itself, after a second (1205).
A claim waits for no row, so one that has waited in vain shows that the table takes no writes: the next one goes on
with its wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.model import TableId
from engine.store.port import Store

CLAIM = Store.claim_and_fetch.__name__

IN_VAIN_KEPT_S = 15.0
"""A dispatcher claims again five seconds after a failure at the latest, and may wait for its turn then."""


@dataclass(slots=True, eq=False)
class UnderWay:
    """A call."""

    table: TableId | None
    """The table that it is about; None: it is about none, or several."""
    method: str
    begun_s: float | None = None
    """When its thread has begun it (monotonic), or the server has been sent it; None: not yet."""
    lasts: bool = False
    is_stalled: bool = False

    def begin(self) -> None:
        """It begins now. May be called on any thread."""
        self.begun_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class _InVain:
    """Claims of a table, one after the other, which have all waited in vain."""

    since_s: float
    """When the first one began (monotonic)."""
    until_s: float
    """Until when the next one counts as their continuation."""


class LastingCalls:
    """The calls under way. Its methods are called on the event loop's thread."""

    def __init__(
        self,
        lasts_s: float,
        replaced_max: int,
        on_lasting: Callable[[UnderWay], None],
        replace: Callable[[int], None],
        *,
        stalled_s: float,
        on_stalled: Callable[[UnderWay], None],
    ) -> None:
        """A call lasts if it has not ended after `lasts_s`, and is stalled after `stalled_s`. `replace` is called
        with how many calls are to be replaced by threads and connections, `replaced_max` at most, whenever that
        changes."""
        self._lasts_s, self._stalled_s, self._replaced_max = lasts_s, stalled_s, replaced_max
        self._on_lasting, self._on_stalled, self._replace = on_lasting, on_stalled, replace
        self._calls: dict[UnderWay, None] = {}
        self._lasting = 0
        self._in_vain: dict[TableId, _InVain] = {}
        """The tables of which each claim has waited in vain lately."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, table: TableId | None, method: str = "") -> UnderWay:
        """A call that begins now or later. `ended` has to follow."""
        call = UnderWay(table, method)
        self._calls[call] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._lasts_s, self._check)
        return call

    def ended(self, call: UnderWay) -> None:
        """It has ended, or its result is not waited for any more."""
        del self._calls[call]
        if call.lasts:
            self._note(-1)

    def waited(self, call: UnderWay) -> None:
        """The server has let it wait, and has ended it."""
        if call.table is None or call.method != CLAIM or call.begun_s is None:
            return
        now_s = time.monotonic()
        self._in_vain = {table: one for table, one in self._in_vain.items() if now_s < one.until_s}
        since_s = self._in_vain[call.table].since_s if call.table in self._in_vain else call.begun_s
        self._in_vain[call.table] = _InVain(since_s, now_s + IN_VAIN_KEPT_S)
        if now_s >= since_s + self._stalled_s:
            self._on_stalled(call)

    def answered(self, call: UnderWay) -> None:
        """The server has carried it out."""
        if call.table is not None and call.method == CLAIM:
            self._in_vain.pop(call.table, None)

    def stalled_s(self) -> Mapping[TableId | None, float]:
        """For how long the longest stalled call on each table has waited (None: on no table, or several)."""
        waits: dict[TableId | None, float] = {}
        now_s = time.monotonic()
        for call in self._calls:
            if call.is_stalled and call.begun_s is not None:
                waits[call.table] = max(waits.get(call.table, 0.0), now_s - call.begun_s)
        for table, one in self._in_vain.items():
            if now_s < one.until_s and now_s >= one.since_s + self._stalled_s:
                waits[table] = max(waits.get(table, 0.0), now_s - one.since_s)
        return waits

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        now_s = time.monotonic()
        for call in list(self._calls):
            since_s = 0.0 if call.begun_s is None else now_s - call.begun_s
            if not call.lasts and since_s >= self._lasts_s:
                call.lasts = True
                self._note(1)
                self._on_lasting(call)
            if not call.is_stalled and since_s >= self._stalled_s:
                call.is_stalled = True
                self._on_stalled(call)
        watched = any(not call.is_stalled for call in self._calls)
        self._timer = asyncio.get_running_loop().call_later(self._lasts_s / 2, self._check) if watched else None

    def _note(self, change: int) -> None:
        self._lasting += change
        self._replace(min(self._lasting, self._replaced_max))
