"""The calls of the store that are under way, and which of them last: whatever they wait for, each keeps a thread
and a connection from the others.

A call that lasts is replaced: there is a thread and a connection more until it ends, up to a bound. So a dozen
queues whose statements take seconds do not delay the others before `SlowTables` knows them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.model import TableId


@dataclass(slots=True, eq=False)
class UnderWay:
    """A call."""

    table: TableId | None
    """The table that it is about; None: it is about none, or several."""
    method: str
    begun_s: float | None = None
    """When its thread has begun it (monotonic), or the server has been sent it; None: not yet."""
    lasts: bool = False

    def begin(self) -> None:
        """It begins now. May be called on any thread."""
        self.begun_s = time.monotonic()


class LastingCalls:
    """The calls under way. Its methods are called on the event loop's thread."""

    def __init__(
        self, lasts_s: float, replaced_max: int, on_lasting: Callable[[UnderWay], None], replace: Callable[[int], None]
    ) -> None:
        """A call lasts if it has not ended after `lasts_s`. `replace` is called with how many calls are to be
        replaced by threads and connections, `replaced_max` at most, whenever that changes."""
        self._lasts_s, self._replaced_max = lasts_s, replaced_max
        self._on_lasting, self._replace = on_lasting, replace
        self._calls: dict[UnderWay, None] = {}
        self._lasting = 0
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

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        before_s = time.monotonic() - self._lasts_s
        for call in list(self._calls):
            if not call.lasts and call.begun_s is not None and call.begun_s <= before_s:
                call.lasts = True
                self._note(1)
                self._on_lasting(call)
        watched = any(not call.lasts for call in self._calls)
        self._timer = asyncio.get_running_loop().call_later(self._lasts_s / 2, self._check) if watched else None

    def _note(self, change: int) -> None:
        self._lasting += change
        self._replace(min(self._lasting, self._replaced_max))
