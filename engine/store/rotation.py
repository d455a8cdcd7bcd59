"""The rotation of a group scan: which entries each of its steps reads, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.model import Entry, Group, GroupScan

STEP_MIN = 64
"""Entries of a step of the rotation where groups are large. Where they are small, steps are longer."""

STEPS_MAX = 16
"""Steps of the rotation in one group scan."""


@dataclass(slots=True)
class Rotation:
    """The steps of one rotation: where the next one begins, and what they have found."""

    request: GroupScan
    now_ns: int
    after: Group | None = None
    """The group behind which the next step reads; None: from the first one, or behind the last one."""
    limit: int = STEP_MIN
    """The LIMIT of the next step."""
    entries: list[Entry] = field(default_factory=list)
    deep: list[Group] = field(default_factory=list)
    _steps: int = 0
    _read: int = 0
    _ended: bool = False

    def __post_init__(self) -> None:
        self.after = self.request.after
        self.limit = self._least

    @property
    def goes_on(self) -> bool:
        """Whether to read another step."""
        within = self._steps < STEPS_MAX and self._read < self.request.entries_max
        return not self._ended and within and len(self.entries) < self.request.room

    @property
    def _least(self) -> int:
        return min(self.request.step_max, max(STEP_MIN, 2 * self.request.quota))

    def add(self, step: Sequence[Entry]) -> None:
        """Add the entries of a step: up to the quota of each group. The last group may be cut off."""
        self._steps += 1
        self._read += len(step)
        quota = self.request.quota
        counts: dict[Group | None, int] = {}
        for entry in step:
            if entry.due_ns <= self.now_ns:
                count = counts[entry.group] = counts.get(entry.group, 0) + 1
                if count <= quota:
                    self.entries.append(entry)
        cut = len(step) >= self.limit
        last = step[-1] if step else None
        self.deep += [group for group, count in counts.items() if group is not None and count >= quota]
        if cut and last is not None:
            self.after = last.group
            count = counts.get(last.group, 0)
            if last.group is not None and last.due_ns <= self.now_ns and count < quota:
                self.deep.append(last.group)
            few = count > len(step) // 2
            self.limit = max(self._least, self.limit // 2) if few else min(self.request.step_max, 2 * self.limit)
        else:
            self.after, self._ended = None, True
