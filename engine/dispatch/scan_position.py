"""The scan position of a condition: the place in the index where its next scan begins.

Rows that a condition does not select stay at the front of the index. A scan without a condition
begins at the front, because every row there is about to be claimed. A scan for a condition would
read the unselected rows again each time, so it begins where the last one ended.

A new row must not be missed behind that place. By default a new row has time 0 and a greater id
than all before, or a time of about now. The scan position therefore has a place for each
(`Position`). Both places lag by `SETTLING_NS`, because a row gets its id and time before it is
committed and visible. In all other cases (an UPDATE, a longer transaction, a row given back to
its old place, a server's clock that was set back) the scheduler calls `lower` or
`reset_to_front`. At the poller's interval every scan is a full one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.dispatch.instant import Instant
from engine.model import NS_PER_S, Entry, Position

SETTLING_NS = 2 * NS_PER_S
"""How long the transaction of an INSERT may take for its rows to be found without a report. Few
take longer."""

PRIORITIES_MAX = 1_024
"""The places of so many priorities are remembered. A table with more is scanned from the front."""


@dataclass(frozen=True, slots=True)
class _Sample:
    greatest_id: int
    at_ns: int


class ScanPosition:
    """The place of each priority behind which the next scan begins. A priority without a place is
    read from its front."""

    def __init__(self) -> None:
        self._after: dict[int, Position] = {}
        self._begun = Instant(0, 0)
        """When the scan under way started: its result may be as old."""
        self._lowered: dict[int, Position] = {}
        """The places lowered since the scan under way started: it may have missed rows there."""
        self._reset_meanwhile = False
        self._newer: _Sample | None = None
        self._older: _Sample | None = None

    @property
    def at_front(self) -> bool:
        """Whether the next scan is a full one."""
        return not self._after

    def scan_from(self, now: Instant) -> Mapping[int, Position]:
        """A scan starts. Returns the places behind which it reads."""
        self._begun = now
        self._lowered.clear()
        self._reset_meanwhile = False
        return dict(self._after)

    def advance(self, reached: Mapping[int, Position], greatest_id: int | None, now: Instant) -> None:
        """The scan under way has read up to `reached`. `greatest_id` is the greatest id that it
        met, None if ids do not grow."""
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
        """A row may be at this place: no later scan begins behind it."""
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
        """Rows may be anywhere: the next scan is a full one."""
        self._after.clear()
        self._reset_meanwhile = True

    def _sample(self, greatest_id: int | None, now_ns: int) -> None:
        if greatest_id is None:
            self._newer = self._older = None
        elif self._newer is None or self._begun.mono_ns >= self._newer.at_ns + SETTLING_NS:
            self._older, self._newer = self._newer, _Sample(greatest_id, now_ns)

    def _settled_id(self, reached: int | None) -> int | None:
        """The greatest id up to which every row has had time to be committed."""
        if reached is None or self._older is None:
            return None
        return min(reached, self._older.greatest_id)


_FAR_NS = 2**63 - 1
_FAR_ID = 2**64


def _lower(one: Position, other: Position) -> Position:
    ids = None if one.zero_id is None or other.zero_id is None else min(one.zero_id, other.zero_id)
    return Position(ids, min(one.time_ns, other.time_ns))
