"""SHOW CREATE TABLE, run by one session for several.

With many workers, STREAMs of one text are proven at the same time. One of their sessions reads the
table's definition. The result holds for every STREAM that came before the query was sent. A STREAM
that comes while a query is under way waits for the next one. A STREAM that is alone waits for
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

PATIENCE_S: Final = 0.2
"""The query takes less than a millisecond. If one takes longer, the sessions that wait for it read
the definition themselves: a broken connection of one would delay them all."""


@dataclass(slots=True)
class _Subject:
    """The checks of one definition."""

    under_way: int = 0
    waiting: list[asyncio.Future[bool]] = field(default_factory=list)
    """The sessions that wait for a check that has not begun."""


@dataclass(frozen=True, slots=True)
class DefinitionCheck:
    """A check under way, and the sessions that wait for it."""

    subject: Hashable
    waiting: list[asyncio.Future[bool]]


class DefinitionChecks:
    """The checks under way. A subject is what they compare: a server, a table, and the definition that
    is expected."""

    def __init__(self) -> None:
        self._subjects: dict[Hashable, _Subject] = {}

    def begin(self, subject: Hashable) -> DefinitionCheck:
        """The caller sends the query in this turn of the event loop, and calls `end` whatever happens."""
        found = self._subjects.setdefault(subject, _Subject())
        found.under_way += 1
        waiting, found.waiting = found.waiting, []
        return DefinitionCheck(subject, waiting)

    def end(self, check: DefinitionCheck, *, shown: bool) -> None:
        """The query is answered, or will not be. `shown`: the answer is the expected definition. If other
        sessions wait for a later check and none is under way, the first of them begins it."""
        found = self._subjects[check.subject]
        found.under_way -= 1
        for result in check.waiting:
            _give(result, shown=shown)
        if found.under_way:
            return
        while found.waiting and found.waiting[0].done():
            del found.waiting[0]  # Its session has given up.
        if found.waiting:
            _give(found.waiting.pop(0), shown=False)
        if not found.waiting:
            del self._subjects[check.subject]

    def join(self, subject: Hashable) -> asyncio.Future[bool] | None:
        """The result of the next check, which begins after this call; None if none is under way, so the
        caller begins it. The result is whether the check has shown the expected definition. If not, the
        caller checks it in its own session."""
        found = self._subjects.get(subject)
        if found is None or not found.under_way:
            return None
        loop = asyncio.get_running_loop()
        result: asyncio.Future[bool] = loop.create_future()
        found.waiting.append(result)
        patience = loop.call_later(PATIENCE_S, self._out_of_patience, subject, result)
        result.add_done_callback(lambda _: patience.cancel())
        return result

    def _out_of_patience(self, subject: Hashable, result: asyncio.Future[bool]) -> None:
        _give(result, shown=False)
        found = self._subjects.get(subject)
        if found is not None and not found.under_way and all(waiting.done() for waiting in found.waiting):
            del self._subjects[subject]


def _give(result: asyncio.Future[bool], *, shown: bool) -> None:
    if not result.done():  # Its session may have given up.
        result.set_result(shown)
