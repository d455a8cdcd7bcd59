"""Message groups in any order of events: nothing is lost, groups take turns, counts are right, memory is bounded.

The play of tests/property/test_dispatcher.py, with messages of several groups, and with a queue that begins and ceases
to have groups. At its end one group floods the front, others have a backlog behind it, and a message arrives late. The
same machine objects to broken dispatchers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from engine.dispatch.effects import ScanGroups
from engine.dispatch.group_scans import GroupScans
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.turns import Turns
from engine.model import NS_PER_S, Arrivals, Group, GroupScanResult, Key, ScanResult
from engine.queue_table import OnDisconnect, Policy
from tests.property.test_dispatcher import Play
from tests.support.hunting import assert_objects
from tests.support.play import DEAD_LETTERS, POLICY, Stage, queue_table
from tests.support.sampling import examples

MS = NS_PER_S // 1_000
LIMITS = Limits(
    scan_min=4,
    claim_max=5,
    fetch_max=4,
    lookup_max=4,
    group_quota_min=2,
    refills_max=2,
    probes_max=1,
    deep_max=5,
    arrivals_max=64,
    rotation_step_max=4,
    rotation_entries_max=8,
    rotation_pause_ns=10_000 * NS_PER_S,
)
"""Small bounds. A second pass of the rotation is so rare that whatever only it would find counts as starved."""

NOISY, LATE = 1_000, 9_000
"""Ids of the messages of the group that floods the front, and of one that is committed late."""
QUIET = range(2_000, 8_000, 1_000)
"""The first id of each group behind it."""


def group_of(key: int) -> Group:
    if key >= NOISY:
        return (key // 1_000,)
    return (None,) if key % 7 == 0 else (0,) if key < 20 else (key % 4,)


class GroupedPlay(Play):
    """Clients, clock and database against a dispatcher of a queue with groups."""

    @initialize(
        keep=st.booleans(),
        in_flight=st.sampled_from([None, 5]),
        attempts=st.sampled_from([0, 0, 2]),
        id_grows=st.booleans(),
        indexed=st.sampled_from([True, True, True, False]),
    )
    def open(self, keep: bool, in_flight: int | None, attempts: int, id_grows: bool, indexed: bool) -> None:
        policy = replace(
            POLICY,
            on_disconnect=OnDisconnect.KEEP if keep else OnDisconnect.RELEASE,
            max_in_flight=in_flight,
            max_attempts=0 if self.plain else attempts,
            dead_letter=(None, DEAD_LETTERS.name) if attempts else None,
            group_by=("tenant",),
            groups_indexed=indexed,
        )
        self.grouped = policy
        self.group_scans: dict[int, int] = {}
        self.stage = Stage(
            policy=policy, limits=LIMITS, dispatcher_type=self.dispatcher_type, id_grows=id_grows, group_of=group_of
        )

    @rule(grouped=st.booleans())
    def the_queue_is_altered(self, grouped: bool) -> None:
        self._alter(self.grouped if grouped else replace(self.grouped, group_by=(), groups_indexed=False))

    def _alter(self, policy: Policy) -> None:
        self.stage.queue = replace(
            queue_table(policy, id_grows=self.stage.id_grows), lease_column=self.stage.queue.lease_column
        )
        self.stage.handle(self.stage.dispatcher.policy_changed, policy)

    @invariant()
    def counts_are_right_and_memory_is_bounded(self) -> None:
        if not hasattr(self, "stage"):
            return
        parts = self.stage.dispatcher.parts
        held = Counter(lease.group for lease in parts.leases if lease.group is not None)
        for attempt in parts.claims._by_id.values():
            held.update(entry.group for _, entry in attempt.picked.values() if entry.group is not None)
        assert {group: parts.in_flight.count(group) for group in held} == held
        assert len(parts.in_flight) == len(held), "a group has messages in flight that nobody holds"
        for group in parts.groups:
            order = group.scans.buffer.order
            assert order is None or order.size <= 3 * group.scans.buffer.ready + 200
            assert group.scans.by_group.deep <= LIMITS.deep_max
        under_way = Counter(id(running.group) for running in parts.scans._group_scans.running)
        assert max(under_way.values(), default=0) <= 1, "two group scans at a time"

    @invariant()
    def group_scans_have_pauses(self) -> None:
        if not hasattr(self, "stage"):
            return
        for asked in self.stage.asked:
            if isinstance(asked.effect, ScanGroups):
                self.group_scans.setdefault(asked.effect.scan_id, self.stage.mono_ns)
        times = sorted(self.group_scans.values())[-9:]
        groups = len(self.stage.dispatcher.parts.groups)
        assert len(times) < 9 or times[-1] > times[0] or groups > 4, "group scans without a pause"

    def _everything_comes(self) -> None:
        super()._everything_comes()
        stage = self.stage
        if not self.grouped.groups_indexed:
            return
        for subscriber in list(stage.dispatcher.subscribers):
            stage.cancel(subscriber)
        stage.set_share(None)
        self._alter(self.grouped)
        stage.settle()
        stage.pass_time(NS_PER_S)
        self._the_groups_take_turns()

    def _the_groups_take_turns(self) -> None:
        """One group floods the front. Groups behind it have a backlog; nobody reports it. A message of another one is
        committed a second after it was inserted."""
        stage, first_ns = self.stage, self.stage.now_ns - 5_000 * NS_PER_S
        for at in range(120):
            stage.enqueue(NOISY + at, due_ns=first_ns + at, wake=False)
        for first in QUIET:
            for at in range(first, first + 20):
                stage.enqueue(at, due_ns=first_ns + at, wake=False)
        consumer = self.subscribers = self.subscribers + 1
        stage.subscribe(consumer, holder=7, prefetch=1)
        groups: list[Group] = []
        for turn in range(90):
            if turn == 70:
                stage.enqueue(LATE, due_ns=stage.now_ns - NS_PER_S, wake=False)
            stage.enqueue(NOISY + 200 + turn, due_ns=stage.now_ns)  # Every commit causes a scan of the front.
            stage.run_until(lambda: len(stage.delivered.get(consumer, ())) > len(groups), within_ns=20 * NS_PER_S)
            key = stage.delivered[consumer][len(groups)]
            groups.append(group_of(int(key)))
            stage.acknowledge(key, seen=True)
            stage.pass_time(50 * MS)
        turns = Counter(groups[12:84])
        assert set(turns) >= {group_of(first) for first in QUIET}, f"a group starves: {turns}"
        assert jain([turns[group_of(first)] for first in (NOISY, *QUIET)]) > 0.9, f"turns are not even: {turns}"
        assert group_of(LATE) in groups, "a message that was committed late starves"


def jain(shares: list[int]) -> float:
    """Jain's index: 1 if all shares are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


TestGroupedPlay = GroupedPlay.TestCase
TestGroupedPlay.settings = settings(max_examples=examples(25), stateful_step_count=50, deadline=None)


class TheCountOfAGroupLeaks(GroupsInFlight):
    """A lease that ends is not counted off if its group has others."""

    def end(self, group: Group | None) -> None:
        if self.count(group) == 1:
            super().end(group)


class AReplacedBufferLosesOtherGroups(ReadAhead):
    """A scan of the front replaces all entries, also those behind its reach."""

    def replace_with(
        self,
        result: ScanResult,
        now: Instant,
        unwanted: Collection[Key],
        stays: object = None,
    ) -> None:
        super().replace_with(result, now, unwanted)


class TheRotationStays(GroupScans):
    """The rotation does not hop behind a group of which it has enough."""

    def answered(self, result: GroupScanResult, now: Instant) -> None:
        super().answered(replace(result, after=self._after), now)


class ArrivalsHaveNoMargin(GroupScans):
    """Arrivals are read from where the last read has ended."""

    def _arrivals(self, now: Instant) -> Arrivals | None:
        arrivals = super()._arrivals(now)
        if arrivals is None or not self._seen:
            return arrivals
        _, after_ns, after_id = self._seen[-1]
        return replace(arrivals, after_ns=after_ns, after_id=after_id)


class DeepGroupsAreNotReadAgain(GroupScans):
    """That a group has more messages than were read is forgotten."""

    def _add_deep(self, group: Group) -> None:
        pass


class TheLastTurnIsTheNext(Turns):
    """Among groups with equally many messages in flight, the one that had a turn last is next."""

    def rank(self, group: Group | None) -> tuple[int, int]:
        load, last = super().rank(group)
        return load, -last


BREAKS = [
    ("engine.dispatch.parts.GroupsInFlight", TheCountOfAGroupLeaks),
    ("engine.dispatch.filter_groups.ReadAhead", AReplacedBufferLosesOtherGroups),
    ("engine.dispatch.filter_groups.GroupScans", TheRotationStays),
    ("engine.dispatch.filter_groups.GroupScans", ArrivalsHaveNoMargin),
    ("engine.dispatch.filter_groups.GroupScans", DeepGroupsAreNotReadAgain),
    ("engine.dispatch.parts.Turns", TheLastTurnIsTheNext),
]


@pytest.mark.parametrize(("name", "broken"), BREAKS, ids=lambda kind: getattr(kind, "__name__", ""))
def test_the_machine_objects_to_a_part_that_is_broken_on_purpose(
    name: str, broken: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name, broken)

    class PlayBroken(GroupedPlay):
        shares = False
        plain = True

    assert_objects(PlayBroken, plays=500, steps=30)
