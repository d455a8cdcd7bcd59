"""The parts of one table's dispatcher, and what follows from several of them.

Each part owns its state and knows few others. What needs several parts is a module of its own, and
gets all of them: `deliveries` (leases from their claim to their end), `locked_leases` (messages that
clients lock), `picking` (which messages are handed out next), `wake_times` (when to decide again).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from engine.dispatch.abandoned import Abandoned
from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.capacity import Capacity
from engine.dispatch.claims import ClaimsUnderWay
from engine.dispatch.fetches import FetchesUnderWay
from engine.dispatch.filter_groups import FilterGroup, FilterGroups
from engine.dispatch.follow_ups import FollowUps
from engine.dispatch.group_places import GroupPlaces
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.limits import Limits
from engine.dispatch.locks import LocksUnderWay
from engine.dispatch.maintenance import DeadLetters, Purges, Releases
from engine.dispatch.measures import Measures
from engine.dispatch.problems import Kind
from engine.dispatch.refusals import Refusals
from engine.dispatch.runs import Runs
from engine.dispatch.scans import ScanScheduler
from engine.dispatch.turns import Turns
from engine.dispatch.verification import LeaseVerification
from engine.model import Entry, Key
from engine.queue_table import Policy


@dataclass(slots=True, eq=False)
class Parts:
    """All state of one table's dispatcher."""

    policy: Policy
    limits: Limits
    jitter: Callable[[], float]
    now: Instant
    """The time of the last decisions. Whatever came due after it is still to be decided."""
    numbers: Iterator[int]
    """Of statements and leases: the later one has the greater number."""
    groups: FilterGroups
    in_flight: GroupsInFlight
    places: GroupPlaces
    leases: Leases
    runs: Runs
    claims: ClaimsUnderWay
    capacity: Capacity
    scans: ScanScheduler
    fetches: FetchesUnderWay
    locks: LocksUnderWay
    verification: LeaseVerification
    releases: Releases
    dead_letters: DeadLetters
    purges: Purges
    abandoned: Abandoned
    follow_ups: FollowUps
    failure_pause: ExponentialBackoff
    refusals: Refusals
    measures: Measures
    more: bool = False
    """Whether the last decision has offered as many messages to streams that lock, or ended as many leases, as
    one may, and others are left for the next one."""
    draining: bool = False
    """Whether nothing new is started any more."""

    @classmethod
    def of_table(
        cls, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant, measures: Measures | None
    ) -> Parts:
        """The parts of a table of which nothing is known yet. `jitter` returns a number from [0, 1).
        `measures`: what an earlier dispatcher has counted."""
        numbers = count(1)
        in_flight = GroupsInFlight()
        leases, claims = Leases(in_flight), ClaimsUnderWay(policy, jitter, numbers, in_flight)
        places = GroupPlaces(policy, in_flight, leases)
        in_flight.set_turn_values(policy.turn_values)
        turns = Turns(in_flight, places, policy.turn_values) if policy.grouping else None
        groups = FilterGroups(limits, policy.batch_size, now, turns)
        measures = measures or Measures()
        refusals = Refusals(limits, partial(measures.problems.note, Kind.CLAIM))
        return cls(
            policy=policy,
            limits=limits,
            jitter=jitter,
            now=now,
            numbers=numbers,
            groups=groups,
            in_flight=in_flight,
            places=places,
            leases=leases,
            runs=Runs(),
            claims=claims,
            capacity=Capacity(policy, limits, leases, claims),
            scans=ScanScheduler(groups, policy, limits, numbers),
            fetches=FetchesUnderWay(groups, limits.fetch_max, numbers, refusals.fetch_size),
            locks=LocksUnderWay(groups, numbers),
            verification=LeaseVerification(leases, limits),
            releases=Releases(limits),
            dead_letters=DeadLetters(policy, limits),
            purges=Purges(policy, limits, now),
            abandoned=Abandoned(policy, limits, now),
            follow_ups=FollowUps(policy, limits),
            failure_pause=ExponentialBackoff(limits.failure_pause_min_ns, limits.failure_pause_max_ns),
            refusals=refusals,
            measures=measures,
        )

    def set_policy(self, policy: Policy, now: Instant) -> None:
        """The table's comment has changed."""
        if policy.batch_size != self.policy.batch_size:
            self.groups.resize(policy.batch_size)
        before = self.policy
        self.places.set_policy(policy)
        if (policy.grouping, policy.group_most, policy.group_strict, policy.semaphores) != (
            *(before.grouping, before.group_most, before.group_strict, before.semaphores),
        ):
            self.in_flight.set_turn_values(policy.turn_values)
            turns = Turns(self.in_flight, self.places, policy.turn_values) if policy.grouping else None
            self.groups.set_turns(turns)
        self.policy = policy
        self.claims.set_policy(policy)
        self.capacity.set_policy(policy)
        self.scans.set_policy(policy)
        self.dead_letters.set_policy(policy)
        self.purges.set_policy(policy, now)
        self.abandoned.set_policy(policy, now)
        self.follow_ups.set_policy(policy)

    @property
    def settled_down(self) -> bool:
        """Whether no statement is under way, and nothing waits for its release."""
        delivery = len(self.claims) or len(self.fetches) or self.scans.under_way or self.verification.under_way
        maintenance = len(self.releases) or self.dead_letters.under_way or self.purges.under_way
        maintenance = maintenance or self.abandoned.under_way or self.follow_ups.under_way
        return not (delivery or maintenance)

    def is_failing(self, now: Instant) -> bool:
        """Whether the database failed a moment ago, so that nothing is started for now."""
        return now.mono_ns < self.failure_pause.until_ns

    def is_taken(self, key: Key) -> bool:
        """Whether a message is being claimed, or is about to be moved as dead, or its failed
        delivery is still to be counted."""
        return key in self.dead_letters or key in self.claims or self.releases.counts_failure(key)

    def taken_among(self, keys: Collection[Key]) -> set[Key]:
        """Those of these messages of which `is_taken` is true."""
        return self.claims.among(keys) | self.dead_letters.among(keys) | self.releases.failures_among(keys)

    def unwanted_among(self, entries: Sequence[Entry], scan_id: int) -> set[Key]:
        """Those of these messages that are taken, or whose rows, as this scan shows them, are older than their
        leases."""
        return self.taken_among([entry.key for entry in entries]) | self.leases.outdated_among(entries, scan_id)

    def groups_with_demand(self) -> list[FilterGroup]:
        """The groups in which a stream could be given a message now."""
        return self.groups.with_credit() if self.capacity.is_open else []

    def acknowledgements_needed(self) -> bool:
        """Whether messages are in flight, and a stream gets no more before some are
        acknowledged."""
        return len(self.leases) > 0 and self.groups.need_acknowledgements(full=self.capacity.free <= 0)
