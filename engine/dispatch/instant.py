"""One moment on the two clocks that the dispatcher needs.

The server's clock decides two things and nothing else: whether a message is due, and whether the
wait of a delivery is over. The rows of the table contain these times. The server's clock can be set
forward or back at any moment.

Every duration (pause, backoff, rate, interval, the first wait of a bounded stream) is measured
on the proxy's monotonic clock, which is never set.
"""

from __future__ import annotations

from typing import NamedTuple


class Instant(NamedTuple):
    """A moment, in nanoseconds on both clocks."""

    mono_ns: int
    """The proxy's monotonic clock; its origin means nothing."""
    server_ns: int
    """The server's clock, since 1970, as the proxy estimates it."""

    def until(self, server_ns: int) -> int:
        """The monotonic time at which the server's clock will show `server_ns`, if nobody sets it
        meanwhile."""
        return self.mono_ns + server_ns - self.server_ns
