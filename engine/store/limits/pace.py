"""A rate over all proxies, kept as one time in the database: a token bucket whose state is the time at
which it is full again.

Each claimed message moves that time by `1 / rate`. So a claim of many messages writes one number, and
nothing has to be written while time passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.dispatch.burst import BURST_S, CLAIM_MAX_S, least_at_once, most_at_once
from engine.model import NS_PER_S


@dataclass(frozen=True, slots=True)
class Pace:
    """At most `rate` messages a second, and at once those of `burst_s`, or a greater `burst`. `full_ns`: the time
    that is kept, by the server's clock; None: there is none yet."""

    rate: float
    burst_s: float = BURST_S
    burst: int = 0

    def allowed(self, full_ns: int | None, now_ns: int) -> int:
        """How many messages may be claimed now."""
        spent = (self._current(full_ns, now_ns) - now_ns) * self.rate / NS_PER_S
        return max(0, int(self._capacity - spent + 1e-6))

    def after(self, full_ns: int | None, now_ns: int, claimed: int) -> int:
        """The time to keep behind a claim of so many messages."""
        return self._current(full_ns, now_ns) + round(claimed * NS_PER_S / self.rate)

    def ready_ns(self, full_ns: int) -> int:
        """When half a burst may be claimed, and at least one message."""
        return full_ns - int((self._capacity - least_at_once(self.rate)) * NS_PER_S / self.rate)

    @property
    def _capacity(self) -> float:
        return most_at_once(self.rate, self.burst_s, self.burst)

    def _current(self, full_ns: int | None, now_ns: int) -> int:
        """The time that is kept. If it is later than any claim can have made it, the server's clock was
        set back, or the rate was raised, and it counts as none. A bound in its place would delay
        messages until the clock has caught up: a claim that takes nothing writes nothing."""
        latest_ns = now_ns + int((BURST_S + CLAIM_MAX_S + (self.burst or 1) / self.rate) * NS_PER_S)
        return now_ns if full_ns is None or full_ns > latest_ns else max(full_ns, now_ns)
