"""Turns the rows of a scan into its result: due rows up to a limit, the next ones, and where rows
may be missing.

The rows of one priority come in the order of time, so the due ones come first. If they were cut off
by the limit, either more rows are due than are needed, or rows may be missing from the time of the
last one on. A scan of a range (with a condition) reads each priority in two parts, the rows of time
0 by id and the others by time. Its result contains the positions it reached, before all rows that
it found and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.model import Entry, Position, ScanResult


def is_behind(entry: Entry, place: Position | None) -> bool:
    """Whether a scan that begins at this position reads the entry."""
    if place is None:
        return True
    if entry.due_ns > 0:
        return entry.due_ns > place.time_ns
    return place.zero_id is None or not isinstance(entry.key, int) or entry.key > place.zero_id


@dataclass(slots=True)
class ScanAssembly:
    """Collects the rows of a scan, most urgent priority first, each read with `row_limit`.

    `until_ns` and `greatest_id` are for a range: the time up to which it is read, and the table's
    greatest id before it was read (None: ids do not ascend with time).
    """

    limit: int
    now_ns: int
    until_ns: int | None = None
    greatest_id: int | None = None
    _due: list[Entry] = field(default_factory=list)
    _later: list[Entry] = field(default_factory=list)
    _horizons_ns: list[int] = field(default_factory=list)
    _reached: dict[int, Position] = field(default_factory=dict)

    @property
    def row_limit(self) -> int:
        """The limit of each statement: one more row shows that there are more."""
        return self.limit + 1

    @property
    def full(self) -> bool:
        """Whether less urgent rows are not needed any more."""
        return len(self._due) > self.limit

    def add(self, reading: Sequence[Entry]) -> None:
        """Add the rows of one priority, in the order of time."""
        self._due += [entry for entry in reading if entry.due_ns <= self.now_ns]
        self._later += [entry for entry in reading if entry.due_ns > self.now_ns]
        if len(reading) >= self.row_limit and reading[-1].due_ns > self.now_ns:
            self._horizons_ns.append(reading[-1].due_ns)

    def add_part(self, priority: int, odd: Sequence[Entry], zero: Sequence[Entry], timed: Sequence[Entry]) -> None:
        """Add the rows that a range's scan read of one priority.

        `odd`: all rows without a time or before 1970. `zero`: rows of time 0, by id. `timed`: rows
        of later times, by time.
        """
        assert self.until_ns is not None
        zero_id, time_ns = self.greatest_id, self.until_ns
        if zero_id is not None and len(zero) >= self.row_limit:
            zero_id = min(zero_id, *(entry.key for entry in zero[-1:] if isinstance(entry.key, int)))
        if len(timed) >= self.row_limit:
            time_ns = timed[-1].due_ns - 1
        self._reached[priority] = Position(zero_id, time_ns)
        self.add([*odd, *zero, *timed])

    def result(self) -> ScanResult:
        """The scan's result."""
        later = sorted(self._later, key=_due_ns)
        left_out = later[self.limit :]
        horizons_ns = [*self._horizons_ns, *map(_due_ns, left_out[:1])]
        if self.until_ns is not None:
            horizons_ns.append(self.until_ns + 1)
        for entry in (*self._due[self.limit :], *left_out):
            self._stop_before(entry)
        entries = (*self._due[: self.limit], *later[: self.limit])
        return ScanResult(entries, self.full, min(horizons_ns, default=None), self._reached, self.greatest_id)

    def _stop_before(self, entry: Entry) -> None:
        place = self._reached.get(entry.priority)
        if place is None:
            return
        if entry.due_ns > 0:
            place = Position(place.zero_id, min(place.time_ns, entry.due_ns - 1))
        elif place.zero_id is not None and isinstance(entry.key, int):
            place = Position(min(place.zero_id, entry.key - 1), place.time_ns)
        self._reached[entry.priority] = place


def _due_ns(entry: Entry) -> int:
    return entry.due_ns


def with_others(own: ScanResult, others: ScanResult) -> ScanResult:
    """The result of a scan of a share, and of all others."""
    horizons = [horizon_ns for horizon_ns in (own.horizon_ns, others.horizon_ns) if horizon_ns is not None]
    return replace(own, horizon_ns=min(horizons, default=None), others=others.entries, others_more=others.more)
