"""The queues whose messages a session may acknowledge, as the server has shown a moment ago.

The engine carries out the session's ACKs by this proof. It is made on the session's own connection, by the
UPDATE of the ACK itself without rows (`proxy.statements.acknowledgement`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from engine.model import TableId

TABLES_MAX: Final = 64
"""Queues that are remembered for each session. A worker acknowledges messages of a few."""


class ProvenRights:
    """What one session has proven."""

    def __init__(self, max_age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_age_s`: for how long a proof holds."""
        self._max_age_s = max_age_s
        self._clock = clock
        self._until_s: dict[tuple[TableId, bool], float] = {}

    def __bool__(self) -> bool:
        return bool(self._until_s)

    def begin(self) -> float:
        """The time at which a proof begins, for `remember`."""
        return self._clock()

    def remember(self, table: TableId, *, fenced: bool, begun_s: float) -> None:
        """The session may acknowledge messages of this queue, with `fenced` by an ACK that names the epoch."""
        if len(self._until_s) >= TABLES_MAX:
            self._until_s.clear()
        self._until_s[table, fenced] = begun_s + self._max_age_s

    def holds(self, table: TableId, *, fenced: bool) -> bool:
        """Whether the session has proven it lately."""
        return self._clock() < self._until_s.get((table, fenced), 0.0)

    def forget(self) -> None:
        """The session may have other rights, or other settings that matter."""
        self._until_s.clear()
