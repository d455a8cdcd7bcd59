"""The order of delivery without groups: lower priority, then earlier due, then id.

A scan shows its entries in this order, so they are only taken from the front. Those that come one by
one afterwards are a heap. An entry that leaves the buffer in another way stays here, outdated: the
buffer has none of its key any more, or another one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from operator import attrgetter

from engine.model import Entry, Key

Place = tuple[int, int, Key]
"""A place in the order of delivery: priority, time and id."""


def place_of(entry: Entry) -> Place:
    """The place of an entry."""
    return entry.priority, entry.due_ns, entry.key


class TimeOrder:
    """Entries in the order of their places. `ready` are those in the buffer: what was pushed since the last
    `rebuild`, and that had, without those that have left it."""

    def __init__(self) -> None:
        self._shown: deque[Entry] = deque()
        self._added: list[tuple[int, int, Key, int]] = []
        """A heap of places, each with the epoch of its entry."""

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Replace everything by these entries."""
        self._shown = deque(sorted(entries, key=attrgetter("priority", "due_ns", "key")))
        self._added = []

    @property
    def size(self) -> int:
        """How many entries there are, those that have left the buffer included."""
        return len(self._shown) + len(self._added)

    def push(self, entry: Entry) -> None:
        """Add an entry."""
        heapq.heappush(self._added, (*place_of(entry), entry.epoch))

    def head(self, ready: Mapping[Key, Entry]) -> Entry | None:
        """The first entry; None: there is none."""
        shown = self._first_shown(ready)
        while self._added:
            first = self._added[0]
            entry = ready.get(first[2])
            if entry is None or (*place_of(entry), entry.epoch) != first:
                heapq.heappop(self._added)
            elif shown is None or first[:3] <= place_of(shown):
                return entry
            else:
                break
        return shown

    def take(self, ready: dict[Key, Entry], count: int) -> list[Entry]:
        """The first `count` entries (fewer if there are fewer), removed from here and from the buffer."""
        taken: list[Entry] = []
        while len(taken) < count:
            if not self._added:
                self._take_shown(taken, ready, count)
                break
            entry = self.head(ready)
            if entry is None:
                break
            del ready[entry.key]
            taken.append(entry)
        return taken

    def _first_shown(self, ready: Mapping[Key, Entry]) -> Entry | None:
        shown = self._shown
        while shown and ready.get(shown[0].key) is not shown[0]:
            shown.popleft()
        return shown[0] if shown else None

    def _take_shown(self, taken: list[Entry], ready: dict[Key, Entry], count: int) -> None:
        shown = self._shown
        while shown and len(taken) < count:
            entry = shown.popleft()
            if ready.get(entry.key) is entry:
                del ready[entry.key]
                taken.append(entry)
