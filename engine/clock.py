"""The server's clock, as far as it can be known from its answers.

Each answer of the store carries the server's time; a sample's offset to our own monotonic clock is too small by however
long the answer took. So the largest of the last offsets is the best one, and it errs to the safe side: late by the
fastest answer's travel, never early. One sample far below the others is a slow answer; several in a row, and nothing
else, mean that the server's clock was set back, and then only they count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

SAMPLES = 16
"""Offsets remembered: a few seconds of answers on an idle table."""
SLOW_ANSWERS_MAX = 3
"""So many slow answers in a row are taken for a clock that was set back; if they were not, the next one mends it."""
STEP_NS = 1_000_000_000
"""Offsets that lie further below the best one than any ordinary answer takes."""


class ServerClock:
    """Estimates the server's time from (our monotonic time, the server's time) pairs."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._offsets: deque[int] = deque(maxlen=SAMPLES)
        self._offset = 0

    def now_ns(self) -> int:
        """The server's time now, not later than it really is."""
        return self._monotonic_ns() + self._offset

    def observe(self, received_ns: int, server_ns: int) -> None:
        """Take in that the server's clock said `server_ns` in an answer received at `received_ns` of ours."""
        self._offsets.append(server_ns - received_ns)
        best = max(self._offsets)
        last = list(islice(reversed(self._offsets), SLOW_ANSWERS_MAX))
        if len(last) == SLOW_ANSWERS_MAX and all(each < best - STEP_NS for each in last):
            self._offsets = deque(reversed(last), maxlen=SAMPLES)
            best = max(last)
        self._offset = best
