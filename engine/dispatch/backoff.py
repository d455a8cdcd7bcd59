"""A pause that doubles with each failure in a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ExponentialBackoff:
    """How long something is left alone after it failed, on the monotonic clock."""

    least_ns: int
    most_ns: int
    until_ns: int = 0
    """The monotonic time before which nothing is tried; 0: no pause."""
    last_ns: int = 0

    def lengthen(self, now_ns: int) -> None:
        """It failed (again) at this monotonic time: the pause begins anew, twice as long as the
        last one."""
        self.last_ns = min(max(2 * self.last_ns, self.least_ns), self.most_ns)
        self.until_ns = now_ns + self.last_ns

    def reset(self) -> None:
        """It went well: no pause, and the next one is the shortest."""
        self.until_ns = self.last_ns = 0
