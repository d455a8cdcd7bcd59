"""The group scans of one table: which filter groups are scanned by message group, and what their results add to
the read-ahead buffers. `GroupScans` decides for each filter group what the next one reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from engine.dispatch.effects import ScanGroups
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.scans_under_way import ScansUnderWay, ScanUnderWay
from engine.model import ANYTHING, Entry, GroupScanResult, Key, Portion
from engine.queue_table import Policy

BUFFERED = 3
"""A buffer that group scans fill holds so many times the window at most: what the scans in the order of time have
read stays in it."""


class GroupScanning:
    """The group scans of one table."""

    def __init__(self, policy: Policy, limits: Limits, numbers: Iterator[int], window: Callable[[], int]) -> None:
        """`window`: how many messages scans in the order of time read ahead for a filter group at most."""
        self._policy = policy
        self.running = ScansUnderWay(limits.over_max)
        self._numbers = numbers
        self._window = window

    def serves(self, group: FilterGroup) -> bool:
        """Whether group scans can find messages for a filter group."""
        return self._policy.groups_indexed and group.selection == ANYTHING and group.scans.buffer.order is not None

    def overtakes(self, group: FilterGroup, entry: Entry) -> bool:
        """Whether the buffer of a queue with message groups may get a due message, though messages are due
        before it that were not read. Its group has none of them, as far as is known."""
        scans = group.scans
        order = scans.buffer.order
        if order is None or not self.serves(group) or len(scans.buffer) >= BUFFERED * self._window():
            return False
        return scans.by_group.priority == entry.priority and scans.by_group.is_wanted(entry, order)

    def start(self, group: FilterGroup, now: Instant, unavailable: int) -> ScanGroups | None:
        """The group scan that is due for a filter group. `unavailable` as in `ScanScheduler.start_scans`."""
        scans = group.scans
        if not self.serves(group):
            return None
        request = scans.by_group.start(now, scans.buffer, self._window(), unavailable)
        if request is None:
            return None
        scan_id = next(self._numbers)
        self.running.start(scan_id, ScanUnderWay(group, None, 0))
        share = scans.others.share
        return ScanGroups(scan_id, request, None if share is None else Portion(share))

    def answered(
        self,
        now: Instant,
        scan_id: int,
        result: GroupScanResult,
        unwanted_among: Callable[[Sequence[Entry], int], set[Key]],
    ) -> None:
        """A group scan came back. `unwanted_among`: which of these messages are taken, or older than their leases."""
        scan = self.running.finish(scan_id)
        scans = scan.group.scans
        buffer, by_group, room = scans.buffer, scans.by_group, BUFFERED * self._window() - len(scans.buffer)
        by_group.answered(result, now)
        if buffer.order is None:
            return
        arrivals = [entry for entry in result.arrivals if by_group.is_wanted(entry, buffer.order)]
        shown = [entry for entry in (*result.entries, *arrivals) if not buffer.knows(entry)]
        unwanted = unwanted_among(shown, scan_id) | scan.over
        found = [entry for entry in shown if entry.key not in unwanted and entry.key not in scans.others]
        buffer.put_all(found[: max(0, room)], now)

    def failed(self, now: Instant, scan_id: int) -> None:
        """A group scan failed."""
        self.running.finish(scan_id).group.scans.by_group.failed(now)

    def set_policy(self, policy: Policy) -> None:
        """The table's comment changed."""
        self._policy = policy
