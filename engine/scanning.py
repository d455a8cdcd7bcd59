"""What a scan makes of the rows it read: the due ones up to a limit, the next ones after them, and what may be missing.

The rows of one priority come in the order of time, so the due ones stand first, and a reading that was cut off
has either more due rows than anybody wants, or a last row from whose time on rows may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.model import Entry, ScanResult


@dataclass(slots=True)
class Gathering:
    """Collects readings, most urgent priority first. Each was asked for `asked` rows."""

    limit: int
    now_ns: int
    _due: list[Entry] = field(default_factory=list)
    _later: list[Entry] = field(default_factory=list)
    _horizons_ns: list[int] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """How many rows to ask for: one more than the limit tells whether there are more."""
        return self.limit + 1

    @property
    def full(self) -> bool:
        """Whether less urgent rows are not wanted any more."""
        return len(self._due) > self.limit

    def add(self, reading: Sequence[Entry]) -> None:
        """Take the rows of one priority, in the order of time."""
        self._due += [each for each in reading if each.due_ns <= self.now_ns]
        self._later += [each for each in reading if each.due_ns > self.now_ns]
        if len(reading) >= self.asked and reading[-1].due_ns > self.now_ns:
            self._horizons_ns.append(reading[-1].due_ns)

    def result(self) -> ScanResult:
        """What the scan found."""
        later = sorted(self._later, key=_due_ns)
        horizons_ns = [*self._horizons_ns, *map(_due_ns, later[self.limit : self.asked])]
        entries = (*self._due[: self.limit], *later[: self.limit])
        return ScanResult(entries, self.full, min(horizons_ns, default=None))


def _due_ns(entry: Entry) -> int:
    return entry.due_ns
