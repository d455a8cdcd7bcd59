"""One moment on the two clocks that the dispatcher needs.

The server's clock decides two things and nothing else: whether a message is due, and whether the
wait of a delivery is over. Both stand as times in the table's rows. It can be set forward or back
at any moment.

Everything that measures a duration (pauses, backoffs, rates, intervals, the wait of a bounded
stream) uses the proxy's monotonic clock, which never steps.
"""

from __future__ import annotations

from typing import NamedTuple


class Instant(NamedTuple):
    """A moment, in nanoseconds on both clocks."""

    mono_ns: int
    """The proxy's monotonic clock; its origin means nothing."""
    server_ns: int
    """The server's clock, since 1970, as far as the proxy knows it."""

    def until(self, server_ns: int) -> int:
        """The monotonic time at which the server's clock will show `server_ns`, if nobody sets it
        meanwhile."""
        return self.mono_ns + server_ns - self.server_ns
