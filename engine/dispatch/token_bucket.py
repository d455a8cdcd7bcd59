"""The rate limit of a table: a token bucket on the monotonic clock.

A claim takes one token per message. The bucket is small, so that the messages of a second are
spread over the second: it holds the tokens of `BURST_S`. But a claim takes as long as its commit,
and only a few claims are under way at once. If commits take longer than `BURST_S`, such a bucket
would overflow meanwhile, and the rate would not be reached. The bucket therefore also holds the
tokens of the duration of the last claim, up to `CLAIM_MAX_S`.

At most `rate` · (1 + `BURST_S` + the duration of a claim) messages are delivered in any second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.model import NS_PER_S

BURST_S = 0.01
"""The messages of this time may be delivered at once."""
CLAIM_MAX_S = 1.0
"""The longest claim for which the bucket makes room. After a server has stood still, the
messages of one second at most are delivered at once. If each commit takes longer, the rate is
not reached."""


@dataclass(slots=True)
class TokenBucket:
    """At most `rate` messages a second (None: any number). Times are monotonic, in ns."""

    rate: float | None
    now_ns: int
    _claim_s: float = 0.0
    _tokens: float = 1.0

    def allowance(self, now_ns: int) -> int | None:
        """How many messages may be claimed now; None: any number. 0 until half a burst has come
        together, so that at high rates not every token causes a claim."""
        if self.rate is None:
            return None
        self._refill(now_ns)
        return int(self._tokens) if self._tokens >= self._burst_min else 0

    def spend(self, count: int) -> None:
        """Take so many tokens. A negative count returns tokens of messages that were not
        delivered."""
        if self.rate is not None:
            self._tokens = min(self._tokens - count, self._capacity)

    def set_claim_duration(self, duration_ns: int) -> None:
        """The last claim was answered so long after its start."""
        self._claim_s = min(duration_ns / NS_PER_S, CLAIM_MAX_S)

    def ready_ns(self) -> int | None:
        """When `allowance` is above 0 (monotonic); None: at any time."""
        if self.rate is None:
            return None
        return self.now_ns + max(0, math.ceil((self._burst_min - self._tokens) / self.rate * NS_PER_S))

    def set_rate(self, rate: float | None, now_ns: int) -> None:
        """Set the rate."""
        self._refill(now_ns)
        self.rate = rate
        self._tokens = min(self._tokens, self._capacity)

    @property
    def _capacity(self) -> float:
        return max(1.0, (self.rate or 0.0) * (BURST_S + self._claim_s))

    @property
    def _burst_min(self) -> float:
        return max(1.0, (self.rate or 0.0) * BURST_S / 2)

    def _refill(self, now_ns: int) -> None:
        if self.rate is not None and now_ns > self.now_ns:
            self._tokens = min(self._tokens + (now_ns - self.now_ns) * self.rate / NS_PER_S, self._capacity)
        self.now_ns = max(now_ns, self.now_ns)
