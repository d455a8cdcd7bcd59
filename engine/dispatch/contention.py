"""Whether several proxies take the messages of the same condition.

Several proxies with streams of one condition would claim the same messages, all but one of them in
vain. Shares prevent that, but a message of another share then waits for a grace. If that proxy has
no stream with this condition, the grace is lost time. So a filter group with a condition uses
shares only while there is contention. Contention begins when claims miss messages that others have
taken. It ends when others leave the messages of their shares to this proxy.
"""

from __future__ import annotations

from engine.dispatch.limits import Limits

MISS_WEIGHT = 4
"""A miss counts as much as so many messages that were taken: contention is to miss more than a fifth."""


class Contention:
    """The contention of one filter group with the same ones at other proxies."""

    def __init__(self, limits: Limits) -> None:
        self._bound = limits.contention_bound
        self.found = False
        """Whether there is contention."""
        self._evidence = 0
        """Recent evidence for the opposite, less that against it."""

    def claim_answered(self, taken: int, missed: int) -> None:
        """A claim took so many messages, and missed so many for the first time."""
        if not self.found:
            self._judge(MISS_WEIGHT * missed - taken)

    def others_scanned(self, taken_elsewhere: int, left_here: int) -> None:
        """A scan of the other shares shows that their proxies took so many of the messages that were left to
        them, and that so many others are left to this one."""
        if self.found:
            self._judge(left_here - taken_elsewhere)

    def _judge(self, against: int) -> None:
        self._evidence = max(0, self._evidence + against)
        if self._evidence > self._bound:
            self.found, self._evidence = not self.found, 0
