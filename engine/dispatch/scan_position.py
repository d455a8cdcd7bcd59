"""How far the scans for a condition have come, so that what nobody wants is passed over once and
not each time.

Rows that a condition does not select stay where they are in the index, before all that comes later.
A scan without a condition begins at the front, because whatever stands there is wanted and about to
be claimed. A scan for a condition that did so would read the unwanted rows again each time. So it
begins where the last one ended.

A new row must not hide before that place. New rows have a time of 0, by default, and an id greater
than all before, or a time of about now. So the scan position has a place for each (`Position`), and
both are held back by `SETTLING_NS`, because a row is visible when it is committed and has its id
and time from before. What may be otherwise (an UPDATE, a longer transaction, a row given back to
its old place, a server's clock that was set back) calls `lower` or `reset_to_front`; and at the poller's
interval each scan is a full one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.dispatch.instant import Instant
from engine.model import NS_PER_S, Entry, Position

SETTLING_NS = 2 * NS_PER_S
"""How long an INSERT may take until it is committed without being looked for: few take longer."""

PRIORITIES_MAX = 1_024
"""Priorities whose places are remembered; a table with more is looked at from the front."""


@dataclass(frozen=True, slots=True)
class _Sample:
    greatest_id: int
    at_ns: int


class ScanPosition:
    """The places, by priority, behind which the next scan begins. None of a priority: at its
    front."""

    def __init__(self) -> None:
        self._after: dict[int, Position] = {}
        self._begun = Instant(0, 0)
        """When the scan under way began: what it shows may be as old."""
        self._lowered: dict[int, Position] = {}
        """What was lowered since the scan under way began: it may not have seen that."""
        self._reset_meanwhile = False
        self._newer: _Sample | None = None
        self._older: _Sample | None = None

    @property
    def at_front(self) -> bool:
        """Whether the next scan is a full one."""
        return not self._after

    def scan_from(self, now: Instant) -> Mapping[int, Position]:
        """A scan begins; returns where."""
        self._begun = now
        self._lowered.clear()
        self._reset_meanwhile = False
        return dict(self._after)

    def advance(self, reached: Mapping[int, Position], greatest_id: int | None, now: Instant) -> None:
        """The scan is over and has come so far."""
        self._sample(greatest_id, now.mono_ns)
        if self._reset_meanwhile:
            return
        settled_ns = self._begun.server_ns - SETTLING_NS
        for priority, position in reached.items():
            settled = Position(self._settled_id(position.zero_id), min(position.time_ns, settled_ns))
            if (lowered := self._lowered.get(priority)) is not None:
                settled = _lower(settled, lowered)
            self._after[priority] = settled
        if len(self._after) > PRIORITIES_MAX:
            self._after.clear()

    def lower(self, entry: Entry) -> None:
        """There may be something at this place."""
        if entry.due_ns == 0 and isinstance(entry.key, int):
            place = Position(entry.key - 1, _FAR_NS)
        elif entry.due_ns <= 0:
            place = Position(None, _FAR_NS)
        else:
            place = Position(_FAR_ID, entry.due_ns - 1)
        for places in (self._after, self._lowered):
            if (before := places.get(entry.priority)) is not None:
                places[entry.priority] = _lower(before, place)
        self._lowered.setdefault(entry.priority, place)

    def reset_to_front(self) -> None:
        """There may be something anywhere."""
        self._after.clear()
        self._reset_meanwhile = True

    def _sample(self, greatest_id: int | None, now_ns: int) -> None:
        if greatest_id is None:
            self._newer = self._older = None
        elif self._newer is None or self._begun.mono_ns >= self._newer.at_ns + SETTLING_NS:
            self._older, self._newer = self._newer, _Sample(greatest_id, now_ns)

    def _settled_id(self, reached: int | None) -> int | None:
        """The id up to which all rows are old enough to be seen, if they are ever to be."""
        if reached is None or self._older is None:
            return None
        return min(reached, self._older.greatest_id)


_FAR_NS = 2**63 - 1
_FAR_ID = 2**64


def _lower(one: Position, other: Position) -> Position:
    ids = None if one.zero_id is None or other.zero_id is None else min(one.zero_id, other.zero_id)
    return Position(ids, min(one.time_ns, other.time_ns))
