"""What one queue's deliveries through this proxy amount to: counts, histograms of durations, and what is wrong.

They are kept for people alone, and no decision depends on them. A new dispatcher of the same
table goes on with them, so that no count goes back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease
from engine.dispatch.problems import Kind, Problems
from engine.dispatch.repeats import MANY, Repeats
from engine.model import NS_PER_S

BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""The upper bounds of the buckets: from a fetch without a wait to a backlog of an hour."""

_BUCKETS_NS = tuple(round(bound_s * NS_PER_S) for bound_s in BUCKETS_S)


@dataclass(slots=True)
class Durations:
    """A histogram of durations."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """By bucket; the last one has no upper bound."""
    sum_ns: int = 0

    def add(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration. A negative one, after the server's clock was set, counts as 0."""
        duration_ns = max(0, duration_ns)
        self.counts[bisect_left(_BUCKETS_NS, duration_ns)] += times
        self.sum_ns += duration_ns * times

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def add_all(self, other: Durations) -> None:
        """Count all durations of another histogram."""
        self.counts = [own + others for own, others in zip(self.counts, other.counts, strict=True)]
        self.sum_ns += other.sum_ns


@dataclass(slots=True)
class Measures:
    """The counts of one queue since the start of the proxy, through this proxy alone."""

    delivered: int = 0
    redelivered: int = 0
    """Messages claimed for the second time or later."""
    acknowledged: int = 0
    """Deliveries that ended because the message was acknowledged or deleted."""
    given_back: int = 0
    """Deliveries that ended because the message was given back, by its consumer or because the
    consumer was gone."""
    expired: int = 0
    """Deliveries that ended because their wait was over."""
    dead_lettered: int = 0
    purged: int = 0
    pickup: Durations = field(default_factory=Durations)
    """From the time at which a message was due to its delivery."""
    work: Durations = field(default_factory=Durations)
    """From a delivery to its acknowledgement."""
    problems: Problems = field(default_factory=Problems)
    repeats: Repeats = field(default_factory=Repeats)
    on_sent: Callable[[Sequence[Lease], Instant], None] | None = None
    """Called with the leases whose rows were passed on; None: nobody wants to know."""

    def sent(self, leases: Sequence[Lease], now: Instant) -> None:
        """The rows of these leases were passed on."""
        mono_ns, server_ns = now
        pickup = self.pickup
        for lease in leases:
            lease.sent_ns = mono_ns
            if lease.epoch >= MANY and (text := self.repeats.sent(lease, mono_ns)) is not None:
                self.problems.note(Kind.REPEATED, text, mono_ns)
        for due_ns, times in Counter([lease.due_ns for lease in leases]).items():
            if due_ns > 0:  # 0 was a default, and is no time.
                pickup.add(server_ns - due_ns, times)
        if self.on_sent is not None:
            self.on_sent(leases, now)

    def waits_over(self, leases: Sequence[Lease], now: Instant) -> None:
        """The waits of these leases are over."""
        sent = [lease for lease in leases if lease.is_sent]
        self.expired += len(sent)
        if sent:
            text = (
                f"message {sent[0].key!s} was not acknowledged within its wait, in delivery {sent[0].epoch}: its worker"
                " hangs, or the work takes longer, which EXTEND or a longer ACK_WAIT allows"
            )
            self.problems.note(Kind.EXPIRED, text, now.mono_ns)

    def settled(self, leases: Sequence[Lease], now: Instant) -> None:
        """The messages of these leases were acknowledged or deleted."""
        for sent_ns, times in Counter([lease.sent_ns for lease in leases if lease.is_sent]).items():
            self.acknowledged += times
            self.work.add(now.mono_ns - sent_ns, times)
        if self.repeats and self.repeats.over(lease.key for lease in leases):
            self.problems.note(Kind.REPEATED, None, now.mono_ns)
