"""How many more messages of one table may be claimed.

Three bounds meet here: the messages in flight (`vt_cache_size`, `max_in_flight`), the rate
(`max_rate`) and the size and number of claims. The credit of the streams is not part of it: callers
pass the demand that remains after credit.
"""

from __future__ import annotations

from engine.dispatch.claims import ClaimsUnderWay
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.limits import Limits
from engine.dispatch.token_bucket import TokenBucket
from engine.model import Policy


class Capacity:
    """The bounds of one table. Reads `leases` and `claims`, changes neither."""

    def __init__(self, policy: Policy, limits: Limits, leases: Leases, claims: ClaimsUnderWay, now: Instant) -> None:
        self._policy = policy
        self._limits = limits
        self._leases = leases
        self._claims = claims
        self._bucket = TokenBucket(policy.max_rate, now.mono_ns)

    @property
    def free(self) -> int:
        """How many more messages the table may have in flight. Negative after a bound was
        lowered."""
        most = self._policy.cache_size
        if self._policy.max_in_flight is not None:
            most = min(most, self._policy.max_in_flight)
        return most - len(self._leases) - self._claims.messages

    @property
    def is_open(self) -> bool:
        """Whether a message may be handed out, apart from the rate: the queue is not paused, and
        not full."""
        return not self._policy.paused and self.free > 0

    @property
    def next_token_ns(self) -> int | None:
        """When the rate allows the next message (monotonic); None: at any time."""
        return self._bucket.ready_ns()

    def claim_size(self, demand: int, now: Instant) -> int:
        """How many messages a claim that starts now may take; 0: no claim may start. `demand`: how
        many messages are ready and can be given to somebody."""
        most = min(self.lock_size(demand, now), self._limits.claim_max)
        if len(self._claims) >= self._limits.claims_max:
            return 0
        if len(self._claims) and most < self._policy.batch_size:
            return 0  # While a claim is under way, credit returns a little at a time: collect a batch of it.
        return most

    def lock_size(self, demand: int, now: Instant) -> int:
        """How many messages may be offered to clients that lock them. `demand`: as above."""
        if not demand or self._policy.paused:
            return 0
        allowance = self._bucket.allowance(now.mono_ns)
        most = min(demand, self.free)
        return max(0, most if allowance is None else min(most, allowance))

    def use(self, messages: int) -> None:
        """A claim or a lock for so many messages starts: they count against the rate."""
        self._bucket.spend(messages)

    def return_unused(self, messages: int) -> None:
        """So many messages were not delivered after all: the rate allows others in their place."""
        self._bucket.spend(-messages)

    def claim_took(self, duration_ns: int) -> None:
        """A claim was answered so long after its start."""
        self._bucket.set_claim_duration(duration_ns)

    def set_policy(self, policy: Policy, now: Instant) -> None:
        """The table's comment has changed."""
        self._policy = policy
        self._bucket.set_rate(policy.max_rate, now.mono_ns)
