"""The server's clock, as far as it can be known from its answers.

Each answer of the store carries the server's time at some moment between the call and the answer.
So the offset of the server's clock to our monotonic one lies between two bounds: the server's time
less the time of the answer, and the server's time less the time of the call. The estimate is the
largest lower bound of the last answers. It errs to the safe side: it is late by the fastest
answer's travel, and never early.

An answer whose upper bound lies below the estimate proves that the server's clock was set back (or
runs slowly): what was known before is dropped, and so are answers to earlier calls that come later,
on other connections. An answer whose lower bound lies above the estimate is a faster answer, or a
clock that was set forward: it is the estimate at once. A slow answer has bounds far apart and
proves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.dispatch.instant import Instant

SAMPLES = 16
"""Lower bounds remembered: a few seconds of answers on an idle table."""
STEP_NS = 1_000_000_000
"""A change of the estimate that says that the clock was set. Faster answers change it by
milliseconds."""


class ServerClock:
    """Estimates the server's time. All arguments and results are in nanoseconds."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._least_offsets: deque[int] = deque(maxlen=SAMPLES)
        self._offset = 0
        self._since_ns = -(1 << 63)
        """Answers to earlier calls may be of the time before the clock was set back."""

    def now(self) -> Instant:
        """This moment; the server's time in it is not later than it really is."""
        mono_ns = self._monotonic_ns()
        return Instant(mono_ns, mono_ns + self._offset)

    def observe(self, called_ns: int, answered_ns: int, server_ns: int) -> bool:
        """Take in that the server's clock showed `server_ns` between these two times of ours.
        Returns whether the clock turns out to have been set: what waits for a time of the server
        has to be looked at again."""
        if called_ns < self._since_ns:
            return False
        if server_ns - called_ns < self._offset:
            self._least_offsets.clear()
            self._since_ns = called_ns
        self._least_offsets.append(server_ns - answered_ns)
        step_ns = max(self._least_offsets) - self._offset
        self._offset += step_ns
        return abs(step_ns) > STEP_NS
