"""Doubt about the messages that were read ahead: whether other proxies have taken many of them.

Other proxies take messages of this one's share after a grace. So the read-ahead buffer of a proxy
that stood still, or that is much slower than the others, may consist of messages that are gone. In
doubt, a claim tries few messages, and claims are made one at a time. If one takes most of what it
tried, the doubt is over. Misses beyond `in_vain_max` mean that the buffer has to be read again.

Messages that scans show although claims have missed them are locked by somebody. To miss them again
shows nothing, and each claim tries as many more: otherwise they would keep those behind them.
"""

from __future__ import annotations

from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits


class Doubt:
    """The doubt of one filter group whose messages are shared. Times are monotonic."""

    def __init__(self, limits: Limits) -> None:
        self._most_in_vain = limits.in_vain_max
        self._since_ns: int | None = None
        """Since when there is doubt; None: there is none."""
        self._active_ns = 0
        """When messages were read or claimed here last."""
        self._in_vain = 0
        """Twice the messages that claims have missed lately, less those that they have taken."""

    def begin(self, now: Instant) -> None:
        """A scan or a claim took longer than the others wait."""
        self._since_ns = now.mono_ns

    def end(self, now: Instant) -> None:
        """The buffer was read again."""
        self._since_ns, self._active_ns = None, now.mono_ns

    def claim_size_max(self, now: Instant, grace_ns: int, claims_under_way: int, locked: int) -> int | None:
        """How many messages may be claimed now; None: any number. `grace_ns`: how long the others
        leave messages to this proxy. `locked`: how many messages were missed before."""
        if now.mono_ns > self._active_ns + grace_ns:
            self.begin(now)
        self._active_ns = now.mono_ns
        if self._since_ns is None:
            return None
        return 0 if claims_under_way else self._most_in_vain + locked

    def judge_claim(self, now: Instant, started_ns: int, missed: int, taken: int) -> bool:
        """A claim that was started then missed so many messages that were not missed before, and took so
        many. Returns whether claims have missed too many since this was true last."""
        if self._since_ns is not None and started_ns >= self._since_ns and taken > missed:
            self._since_ns = None
        self._active_ns = now.mono_ns
        self._in_vain = max(0, self._in_vain + 2 * missed - taken)
        too_many = self._in_vain > self._most_in_vain
        if too_many:
            self._in_vain = 0
        return too_many
