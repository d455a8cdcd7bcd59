"""Messages that come again and again: their workers fail at once, or end with them.

A message that is tried ten times within hours is nothing unusual. One that has been delivered so often and comes
within a minute of the delivery before keeps its workers from others, and without MAX_ATTEMPTS it does so for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.dispatch.leases import Lease
from engine.model import NS_PER_S, Key

MANY = 10
"""Deliveries of one message. A worker whose pauses double has been at it for a quarter of an hour by then."""

SOON_NS = 60 * NS_PER_S
"""Between two deliveries."""

KNOWN_MAX = 100
"""Messages whose last delivery is remembered. Of more, those that come least often are forgotten."""


class Repeats:
    """Those of one queue."""

    def __init__(self) -> None:
        self._sent_ns: dict[Key, int] = {}
        """The last delivery of each, the latest one at the end."""

    def __len__(self) -> int:
        return len(self._sent_ns)

    def sent(self, lease: Lease, now_ns: int) -> str | None:
        """The row of this lease, of a message with MANY deliveries, was passed on. Returns the problem, if it is
        one."""
        before_ns = self._sent_ns.pop(lease.key, None)
        self._sent_ns[lease.key] = now_ns
        if len(self._sent_ns) > KNOWN_MAX:
            del self._sent_ns[next(iter(self._sent_ns))]
        if before_ns is None or now_ns > before_ns + SOON_NS:
            return None
        times = lease.epoch + lease.locked  # A locked message shows the deliveries before this one.
        return (
            f"message {lease.key!s} has been delivered {times} times and comes again within a minute: its workers"
            " fail or end. MAX_ATTEMPTS and DEAD_LETTER set such messages aside"
        )

    def over(self, keys: Iterable[Key]) -> bool:
        """These messages were acknowledged or deleted. Returns whether one of them may have been the problem."""
        known = [key for key in keys if key in self._sent_ns]
        for key in known:
            del self._sent_ns[key]
        return bool(known)
