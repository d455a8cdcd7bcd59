"""How many more messages of one table may be claimed.

Three bounds meet here: the messages in flight (`vt_cache_size`, `max_in_flight`), the rate
(`max_rate`) and the size and number of claims. The credit of the streams is not part of it: callers
pass the demand that remains after credit.

With `max_in_flight`, the database counts the messages in flight of all proxies in each claim, and
`places` is how many more it has allowed since. It is a hint: the next claim counts again. While
there is none, no claim starts before a report that a place may be free: an own delivery is over
(`places_freed`), a message of another proxy may be over (`reopen`), the first wait of all messages in
flight ends, or a pause is over. With `max_rate`, each claim returns when the rate allows the next messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.burst import burst_of, least_at_once, most_at_once
from engine.dispatch.claims import ClaimsUnderWay
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, LimitsLeft
from engine.queue_table import Policy

CAPACITY_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "limit": "as many are in flight as max_in_flight or vt_cache_size allows",
        "rate": "max_rate allows the next one later",
    }
)
"""Why messages are held back, by name, with a text for people."""


class Capacity:
    """The bounds of one table. Reads `leases` and `claims`, changes neither."""

    def __init__(self, policy: Policy, limits: Limits, leases: Leases, claims: ClaimsUnderWay) -> None:
        self._policy = policy
        self._limits = limits
        self._leases = leases
        self._claims = claims
        self._places: int | None = None
        """How many more messages the database allows; None: unknown, a claim may find out."""
        self.paced_until_ns = 0
        """When the rate over all proxies allows the next messages (monotonic)."""
        self._claim_s = 0.0
        self._free_ns: int | None = None
        """When the first wait of a message in flight ends (server's clock)."""
        self._pause = ExponentialBackoff(limits.limited_pause_min_ns, limits.limited_pause_max_ns)
        self._freed = 0
        self._reopened = False
        """What was reported since the claim under way was started, which may have counted before it."""

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
        not full, here and in the database."""
        return not self._policy.paused and self.free > 0 and not self._is_full

    @property
    def _is_full(self) -> bool:
        return self._places is not None and self._places <= 0

    def reasons_at(self, now_ns: int) -> Iterator[str]:
        """Which of `CAPACITY_REASONS` hold at this monotonic time."""
        if not self._policy.paused and not self.is_open:
            yield "limit"
        if self.paced_until_ns > now_ns:
            yield "rate"

    def claim_size(self, demand: int, now: Instant) -> int:
        """How many messages a claim that starts now may take; 0: no claim may start. `demand`: how
        many messages are ready and can be given to somebody."""
        most = min(self.lock_size(demand), self._limits.claim_max, self._allowance(now))
        if len(self._claims) >= (1 if self._policy.locked_claims else self._limits.claims_max):
            return 0  # Claims with the same limit wait for each other in the database.
        if self._places is not None:
            most = min(most, max(0, self._places))
        if len(self._claims) and most < self._policy.batch_size:
            return 0  # While a claim is under way, credit returns a little at a time: collect a batch of it.
        return most

    def lock_size(self, demand: int) -> int:
        """How many messages may be offered to clients that lock them. `demand`: as above."""
        return 0 if self._policy.paused else max(0, min(demand, self.free, self._limits.locks_turn_max))

    def _allowance(self, now: Instant) -> int:
        """How many messages the rate allows now, as far as this proxy knows."""
        rate = self._policy.max_rate
        if rate is None:
            return self._limits.claim_max
        most = most_at_once(rate, burst_of(self._claim_s), self._policy.max_burst)
        since_s = (now.mono_ns - self.paced_until_ns) / NS_PER_S
        return 0 if since_s < 0 else int(min(most, least_at_once(rate) + since_s * rate))

    def claim_took(self, duration_ns: int) -> None:
        """A claim was answered so long after its start."""
        self._claim_s = duration_ns / NS_PER_S

    def claim_started(self) -> None:
        """A claim starts. Reports from now on may be of places that it has counted as taken."""
        self._freed, self._reopened = 0, False

    def claim_counted(self, now: Instant, left: LimitsLeft | None, claimed: int) -> None:
        """A claim of so many messages was answered, with what the limits leave behind it."""
        if left is None:
            return
        if left.paced_until_ns is not None:
            self.paced_until_ns = now.until(left.paced_until_ns)
        self._places = None if self._reopened or left.places is None else left.places + self._freed
        self._free_ns = left.free_ns
        if claimed or left.places != 0:
            self._pause.reset()
        if left.places == 0:
            self._pause.lengthen(now.mono_ns)

    def places_freed(self, count: int) -> None:
        """So many deliveries of this proxy are over."""
        self._freed += count
        if self._places is not None:
            self._places += count

    def reopen(self) -> None:
        """A message that another proxy has delivered may be over, or a stream has begun that does not
        wait."""
        self._reopened = True
        self._places = None
        self._pause.reset()

    def reopen_when_due(self, now: Instant) -> None:
        """Reopen if the time alone may have freed a place."""
        if self._is_full and (reopen_ns := self.reopen_ns(now)) is not None and reopen_ns <= now.mono_ns:
            self._places = None

    def reopen_ns(self, now: Instant) -> int | None:
        """When the time alone may free a place (monotonic); None: there is one."""
        if not self._is_full:
            return None
        return self._pause.until_ns if self._free_ns is None else min(self._pause.until_ns, now.until(self._free_ns))

    def set_policy(self, policy: Policy) -> None:
        """The table's comment has changed."""
        self._policy = policy
        self.paced_until_ns = 0
        self.reopen()
