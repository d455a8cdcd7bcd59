"""The server's clock, as far as it can be known from its answers.

Each answer of the store carries the server's time; the sample's offset to our own monotonic clock is too small by
however long the answer took. So the largest of the last offsets is the best one, and it errs to the safe side: late
by the fastest answer's travel, never early. A sample that lies far below the others means that the server's clock was
set back: then only that one counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SAMPLES = 16
"""Offsets remembered: a few seconds of answers on an idle table."""
STEP_NS = 1_000_000_000
"""An answer slower than this is taken for a clock that was set back; the next answers correct the mistake upwards."""


class ServerClock:
    """Estimates the server's time from (our monotonic time, the server's time) pairs."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._offsets: deque[int] = deque(maxlen=SAMPLES)
        self._offset = 0

    @property
    def monotonic_ns(self) -> int:
        """Our own clock, which only measures durations."""
        return self._monotonic_ns()

    def now_ns(self) -> int:
        """The server's time now, not later than it really is."""
        return self._monotonic_ns() + self._offset

    def observe(self, received_ns: int, server_ns: int) -> None:
        """Take in that the server's clock said `server_ns` in an answer received at `received_ns` of ours."""
        offset = server_ns - received_ns
        if self._offsets and offset < max(self._offsets) - STEP_NS:
            self._offsets.clear()
        self._offsets.append(offset)
        self._offset = max(self._offsets)
