"""Lanes: the streams of one table that want the same messages, and what has been read ahead for them.

Streams without a condition share one lane, those of each condition another, and each lane looks at the table for
itself. A message may stand in the windows of several; `pick` takes it out of all, for the one that has most
credit. What a claim takes is checked in the database again, so a message goes to exactly one stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.cursor import Cursor
from engine.model import ANYTHING, Entry, Key, Selection
from engine.pacing import Scanning
from engine.subscribers import Subscriber
from engine.window import Window


@dataclass(slots=True, eq=False)
class Lane:
    """Subscribers of one selection, their window, and where they stand taken together."""

    selection: Selection
    scanning: Scanning
    window: Window = field(default_factory=Window)
    cursor: Cursor | None = None
    """Where looks begin; None: at the front, where the first rows are wanted ones."""
    subscribers: dict[int, Subscriber] = field(default_factory=dict)
    reserved: int = 0
    """Credit that claims under way count on."""
    # What `survey` saw.
    credit: int = 0
    starved: bool = False
    """Whether somebody has as much as PREFETCH allows."""
    awake: bool = False
    """Whether anybody reads."""
    bounded_since: int = 0
    """The number of the scan that the youngest bounded stream waits for."""
    patient_until_ns: tuple[int, ...] = ()
    """When the patience ends of those that wait for their first message."""

    def survey(self, batch_size: int) -> None:
        """Look at all subscribers once."""
        credit, bounded_since, patient = 0, 0, []
        self.starved = self.awake = False
        for each in self.subscribers.values():
            credit += min(each.credit(batch_size), batch_size)
            if not each.paused:
                self.awake = True
                self.starved |= each.starved
            if each.patient_until_ns is not None:
                bounded_since = max(bounded_since, each.since_scan)
                if not each.given:
                    patient.append(each.patient_until_ns)
        self.credit, self.bounded_since, self.patient_until_ns = credit, bounded_since, tuple(patient)

    @property
    def unsure(self) -> bool:
        """Whether a bounded stream waits for a scan that began after it did."""
        return self.scanning.completed < self.bounded_since

    def look_again(self, at_ns: int) -> None:
        """There is something to look for at that time."""
        self.scanning.again_ns = min(at_ns, self.scanning.again_ns or at_ns)

    def look_when_due(self, entry: Entry, now_ns: int) -> None:
        """There is a message to look for, now or when it comes due."""
        if entry.due_ns <= now_ns:
            self.scanning.dirty = True
        else:
            self.look_again(entry.due_ns)

    def covers(self, entry: Entry) -> bool:
        """Whether the window holds all that is due as soon as this, and has room."""
        window = self.window
        whole = not window.more and (window.horizon_ns is None or entry.due_ns < window.horizon_ns)
        return whole and len(window) < self.scanning.limit and not self.scanning.running

    def adapt_scan_limit(self, least: int, most: int) -> None:
        """Read further ahead while a backlog is being worked off, and little when most rows are not due."""
        scanning, window = self.scanning, self.window
        if window.more:
            scanning.limit = min(2 * scanning.limit, most)
        elif window.ready < scanning.limit // 4:
            scanning.limit //= 2
        scanning.limit = max(scanning.limit, least)


class TooManyLanes(Exception):
    """There is no room for another condition."""


class Lanes:
    """All lanes of a table: the one for everything, and up to `most` others, the idle ones forgotten first."""

    def __init__(self, most: int, scan_min: int) -> None:
        self._most = most
        self._scan_min = scan_min
        self._by_selection: dict[Selection, Lane] = {}
        self.main = self.lane(ANYTHING)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._by_selection.values())

    def __len__(self) -> int:
        return len(self._by_selection)

    def lane(self, selection: Selection) -> Lane:
        """The lane of a selection, made if there is none. Raises TooManyLanes."""
        lane = self._by_selection.pop(selection, None)
        if lane is None:
            if len(self._by_selection) > self._most:
                self._forget_one()
            cursor = None if selection.condition is None else Cursor()
            lane = Lane(selection, Scanning(limit=self._scan_min), cursor=cursor)
        self._by_selection[selection] = lane
        return lane

    def get(self, selection: Selection) -> Lane | None:
        """The lane of a selection, if it is known."""
        return self._by_selection.get(selection)

    def _forget_one(self) -> None:
        for selection, lane in self._by_selection.items():
            if lane is not self.main and not (lane.subscribers or lane.reserved or lane.scanning.running):
                del self._by_selection[selection]
                return
        raise TooManyLanes


def pick(lanes: Sequence[tuple[Lane, int]], count: int) -> list[tuple[Lane, Entry]]:
    """Take the first `count` ready entries of the lanes, in the order of delivery, at most so many of each."""
    if len(lanes) == 1:
        ((lane, most),) = lanes
        return [(lane, entry) for entry in lane.window.take(min(count, most))]
    left = [most for _, most in lanes]
    heads: list[tuple[int, int, Key, int, int]] = []

    def put(at: int) -> None:
        entry = lanes[at][0].window.head()
        if entry is not None and left[at] > 0:
            heapq.heappush(heads, (entry.priority, entry.due_ns, entry.key, -left[at], at))

    for at in range(len(lanes)):
        put(at)
    picked: list[tuple[Lane, Entry]] = []
    while heads and len(picked) < count:
        _, due_ns, key, _, at = heapq.heappop(heads)
        lane = lanes[at][0]
        head = lane.window.head()
        if head is not None and (head.key, head.due_ns) == (key, due_ns):
            picked += [(lane, entry) for entry in lane.window.take(1)]
            left[at] -= 1
            for other, _ in lanes:
                other.window.drop(key)
        put(at)
    return picked
