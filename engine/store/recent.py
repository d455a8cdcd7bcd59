"""A mapping of bounded size that drops its least recently used entry (LRU)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `size_max` values by their keys. Safe for any number of threads."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[K, V] = OrderedDict()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K, default: V) -> V:
        """The value of the key, or the default if there is none any more."""
        with self._guard:
            if key not in self._values:
                return default
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> None:
        """Set a value. With too many, the least recently used one is dropped."""
        with self._guard:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size_max:
                self._values.popitem(last=False)

    def forget(self, key: K) -> None:
        """Drop the value of the key, if there is one."""
        with self._guard:
            self._values.pop(key, None)
