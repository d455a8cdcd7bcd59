"""Filter groups: the streams of one table that want the same messages.

Streams without a condition are one group, those of each condition another, and each group has a
read-ahead buffer of its own. A message may stand in the buffers of several groups; it is claimed
for one. A claim checks the condition in the database again, so a message goes to exactly one
stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.dispatch.scan_position import ScanPosition
from engine.dispatch.scan_state import ScanState
from engine.dispatch.subscribers import Subscribers
from engine.model import ANYTHING, Selection


@dataclass(slots=True, eq=False)
class FilterGroup:
    """The streams of one selection. `subscribers` and `reserved` are the dispatcher's to change,
    `scans` is the scan scheduler's."""

    selection: Selection
    subscribers: Subscribers
    scans: ScanState
    reserved: int = 0
    """Credit that claims under way will use."""

    @property
    def credit(self) -> int:
        """How many more messages could be claimed for this group."""
        return max(0, self.subscribers.credit - self.reserved)

    @property
    def awaits_scan(self) -> bool:
        """Whether a bounded stream waits for a scan that began after it did."""
        return self.subscribers.awaits_scan(self.scans.completed, self.scans.started)


class TooManyFilterGroups(Exception):
    """There is no room for another condition."""


class FilterGroups:
    """All filter groups of a table: the one for everything, and up to `most` others, the idle ones
    forgotten first."""

    def __init__(self, most: int, scan_min: int, batch_size: int) -> None:
        self._most = most
        self._scan_min = scan_min
        self._batch_size = batch_size
        self._by_selection: dict[Selection, FilterGroup] = {}
        self.main = self.group(ANYTHING)
        """The group of the streams without a condition."""

    def __iter__(self) -> Iterator[FilterGroup]:
        return iter(self._by_selection.values())

    def __len__(self) -> int:
        return len(self._by_selection)

    def group(self, selection: Selection) -> FilterGroup:
        """The group of a selection, made if there is none. Raises TooManyFilterGroups."""
        group = self._by_selection.pop(selection, None)
        if group is None:
            if len(self._by_selection) > self._most:
                self._forget_one()
            position = None if selection.condition is None else ScanPosition()
            state = ScanState(self._scan_min, position)
            group = FilterGroup(selection, Subscribers(self._batch_size), state)
        self._by_selection[selection] = group
        return group

    def get(self, selection: Selection) -> FilterGroup | None:
        """The group of a selection, if it is known."""
        return self._by_selection.get(selection)

    def resize(self, batch_size: int) -> None:
        """The table's batch size is this from now on."""
        self._batch_size = batch_size
        for group in self:
            group.subscribers.resize(batch_size)

    def _forget_one(self) -> None:
        for selection, group in self._by_selection.items():
            if group is not self.main and not (len(group.subscribers) or group.reserved or group.scans.running):
                del self._by_selection[selection]
                return
        raise TooManyFilterGroups
