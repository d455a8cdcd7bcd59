"""An estimate of the server's clock from the store's results.

Each result contains the server's time at some moment between the call and the result. So the offset
of the server's clock to the monotonic clock lies between two bounds: the server's time minus the
time of the result, and the server's time minus the time of the call. The estimate is the largest
lower bound of the last results. It is late by the travel time of the fastest result, and never
early.

A result whose upper bound lies below the estimate proves that the server's clock was set back (or
runs slowly). Earlier bounds are then dropped, and so are later results of calls made before, on
other connections. A result whose lower bound lies above the estimate was faster, or the clock was
set forward: the bound becomes the estimate at once. A slow result has bounds far apart and proves
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.dispatch.instant import Instant

SAMPLES = 16
"""Lower bounds remembered: a few seconds of results on an idle table."""
STEP_NS = 1_000_000_000
"""A change of the estimate by this much means that the clock was set. Faster results change it by
milliseconds."""


class ServerClock:
    """Estimates the server's time. All arguments and results are in nanoseconds."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._least_offsets: deque[int] = deque(maxlen=SAMPLES)
        self._offset = 0
        self._since_ns = -(1 << 63)
        """Calls made earlier may return times from before the clock was set back."""

    def now(self) -> Instant:
        """The present moment. Its server time is never later than the real one."""
        mono_ns = self._monotonic_ns()
        return Instant(mono_ns, mono_ns + self._offset)

    def observe(self, called_ns: int, answered_ns: int, server_ns: int) -> bool:
        """The server's clock showed `server_ns` between the monotonic times `called_ns` and
        `answered_ns`.

        Returns whether the server's clock was set. Whatever waits for a server time must then be
        scheduled again.
        """
        if called_ns < self._since_ns:
            return False
        if server_ns - called_ns < self._offset:
            self._least_offsets.clear()
            self._since_ns = called_ns
        self._least_offsets.append(server_ns - answered_ns)
        step_ns = max(self._least_offsets) - self._offset
        self._offset += step_ns
        return abs(step_ns) > STEP_NS
