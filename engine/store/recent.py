"""A memory of bounded size: what was used last is kept, and what was not used for longest goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by their keys, at most `size_max` of them; for any number of threads."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[K, V] = OrderedDict()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K, default: V) -> V:
        """The value that was put there, or the default if it is not known (any more)."""
        with self._guard:
            if key not in self._values:
                return default
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> None:
        """Remember a value, in place of the one that was used longest ago if there are too many."""
        with self._guard:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size_max:
                self._values.popitem(last=False)

    def forget(self, key: K) -> None:
        """Remember it no more, if it was known."""
        with self._guard:
            self._values.pop(key, None)
