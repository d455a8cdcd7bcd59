"""`max_in_flight`: how many messages of a queue may be in flight, over all proxies."""

from __future__ import annotations

from collections.abc import Sequence

from engine.model import Claimed, Key
from engine.packets import Result, text_values
from engine.store.limits.limit import Choice, Left, Limit, lease_words


class InFlightCount(Choice):
    """The places that are left."""

    def __init__(self, most: int, held: int, free_ns: int | None) -> None:
        """`held`: how many are in flight. `free_ns`: when the first of their leases ends; None: there is none."""
        self._free = max(0, most - held)
        self._free_ns = free_ns

    def has_place(self, key: Key) -> bool:
        return self._free > 0

    def note_taken(self, claim: Claimed) -> None:
        self._free -= 1
        self._free_ns = claim.deadline_ns if self._free_ns is None else min(self._free_ns, claim.deadline_ns)

    def leave(self, left: Left) -> None:
        left.places, left.free_ns = self._free, self._free_ns


class InFlightLimit(Limit):
    """Counts the messages in flight."""

    @property
    def counts(self) -> Sequence[str]:
        return [self._sql("limit_count", most=self._table.policy.max_in_flight, **lease_words(self._table))]

    def read(self, locked: Sequence[Result], counted: Sequence[Result], now_ns: int) -> None:
        most = self._table.policy.max_in_flight or 0
        count, free_ns = text_values(counted[0].rows[0])
        self.choice = InFlightCount(most, int(count or 0), None if free_ns is None else int(free_ns))
