"""Keys of messages, each with the time at which something is to be done about it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from engine.model import Key

OUTDATED_MIN = 64
"""With fewer outdated entries, the heap is not made anew."""


class TimedKeys:
    """Keys in the order of their times. A change costs the logarithm of their number."""

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}
        self._heap: list[tuple[int, Key]] = []
        """All keys with their times, and outdated entries."""

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, key: Key) -> int:
        """The time of a key."""
        return self._times[key]

    def set(self, key: Key, at_ns: int) -> None:
        """Give a key this time, instead of the one that it may have."""
        self._times[key] = at_ns
        heapq.heappush(self._heap, (at_ns, key))
        if len(self._heap) > 2 * len(self._times) + OUTDATED_MIN:
            self._heap = [(time_ns, key) for key, time_ns in self._times.items()]
            heapq.heapify(self._heap)

    def discard(self, keys: Iterable[Key]) -> None:
        """Remove these keys, as far as they are there."""
        for key in keys:
            self._times.pop(key, None)

    def clear(self) -> None:
        """Remove all keys."""
        self._times.clear()
        self._heap.clear()

    def pop(self) -> Key:
        """Remove and return the key with the first time. There must be one."""
        if self.next_ns is None:
            raise KeyError("there is no key")
        key = heapq.heappop(self._heap)[1]
        del self._times[key]
        return key

    @property
    def next_ns(self) -> int | None:
        """The first time; None: there is no key."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
