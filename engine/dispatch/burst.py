"""How many messages a rate allows at once.

The messages of a second are spread over the second: those of `BURST_S` may be claimed at once. But a claim takes as
long as its commit, and only one claim of a queue with a rate is under way. If commits take longer than `BURST_S`,
the rate would not be reached. So those of the duration of the last claim may be, too, up to `CLAIM_MAX_S`.

At most `rate` · (1 + `BURST_S` + the duration of a claim) messages are delivered in any second. With a greater burst
(`max_burst`), those of the burst and `rate` · t are delivered in any t seconds.
"""

from __future__ import annotations

BURST_S = 0.01
"""The messages of this time may be delivered at once."""
CLAIM_MAX_S = 1.0
"""The longest claim for which a burst is greater. After a server has stood still, the
messages of one second at most are delivered at once. If each commit takes longer, the rate is
not reached."""


def burst_of(claim_s: float) -> float:
    """The seconds of a rate that may be claimed at once, if the last claim took so long."""
    return BURST_S + min(claim_s, CLAIM_MAX_S)


def most_at_once(rate: float, seconds: float, burst: int = 0) -> float:
    """How many messages these seconds allow at once: one at least, and no fewer than `burst`."""
    return max(1.0, rate * seconds, burst)


def least_at_once(rate: float) -> float:
    """How many messages are claimed at least, so that at high rates not every message causes a claim: half a
    burst, and one at least."""
    return most_at_once(rate, BURST_S / 2)
