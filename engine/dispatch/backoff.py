"""Exponential backoff: a pause that doubles with each failure in a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ExponentialBackoff:
    """How long not to try again after a failure, on the monotonic clock."""

    least_ns: int
    most_ns: int
    until_ns: int = 0
    """The monotonic time before which nothing is tried; 0: no pause."""
    last_ns: int = 0

    def lengthen(self, now_ns: int) -> None:
        """A failure at this monotonic time: a pause begins, twice as long as the last one."""
        self.last_ns = min(max(2 * self.last_ns, self.least_ns), self.most_ns)
        self.until_ns = now_ns + self.last_ns

    def reset(self) -> None:
        """A success: no pause, and the next one is the shortest."""
        self.until_ns = self.last_ns = 0
