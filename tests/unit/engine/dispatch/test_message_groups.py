"""Message groups: whose message is handed out next, and how groups behind the front are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from engine.dispatch.effects import Claim, Scan, ScanGroups
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Group, Key
from engine.queue_table import Policy
from tests.support.play import POLICY, TABLE, Stage, queue_table

S = NS_PER_S
MS = S // 1_000
NOISY: Group = (0,)
FAIR = replace(POLICY, group_by=("tenant",), groups_indexed=True, batch_size=10, cache_size=400)
LIMITS = Limits(scan_min=40, window_max=40)
"""A window much smaller than the backlogs of these tests."""


class Consumer:
    """One stream whose client holds so many messages at a time, and acknowledges the oldest."""

    def __init__(self, stage: Stage, prefetch: int = 1) -> None:
        self.stage = stage
        stage.subscribe(1, holder=1, prefetch=prefetch)
        self._acknowledged = 0

    @property
    def received(self) -> list[Key]:
        """What it was given, in this order."""
        return self.stage.delivered.get(1, [])

    def work(self, messages: int) -> list[Group]:
        """Handle the next messages, one after the other, in a millisecond each. Returns their groups."""
        first = self._acknowledged
        while self._acknowledged < first + messages:
            self.stage.run_until(lambda: len(self.received) > self._acknowledged)
            self.stage.acknowledge(self.received[self._acknowledged], seen=True)
            self._acknowledged += 1
            self.stage.pass_time(MS)
        return [self.stage.group_of(int(key)) for key in self.received[first : self._acknowledged]]


def stage_of(group_of: Callable[[int], Group], policy: Policy = FAIR, **options: object) -> Stage:
    return Stage(policy=policy, limits=LIMITS, group_of=group_of, id_grows=True, **options)  # type: ignore[arg-type]


def filled(stage: Stage, keys: Sequence[int]) -> Stage:
    for key in keys:
        stage.enqueue(key, wake=False)
    stage.handle(stage.dispatcher.woken)
    return stage


def jain(shares: Collection[int]) -> float:
    """Jain's index: 1 if all shares are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_groups_take_turns() -> None:
    """All is read ahead."""
    consumer = Consumer(filled(stage_of(lambda key: (key // 10,)), range(10, 40)))
    assert consumer.work(9) == [(1,), (2,), (3,)] * 3
    assert consumer.received == [10, 20, 30, 11, 21, 31, 12, 22, 32]


def test_the_group_with_the_fewest_messages_in_flight_is_next() -> None:
    stage = filled(stage_of(lambda key: (key // 10,)), range(10, 30))
    stage.subscribe(1, holder=1, prefetch=4)
    stage.settle()
    stage.enqueue(30)
    stage.pass_time(S)
    stage.settle()
    for key in (20, 21):  # Both belong to one group. The others are still at work.
        stage.acknowledge(key, seen=True)
    stage.settle()
    assert stage.delivered[1] == [10, 20, 11, 21, 30, 22]


def test_a_more_urgent_priority_goes_before_all_turns() -> None:
    stage = stage_of(lambda key: (key % 2,))
    for key in range(1, 9):
        stage.enqueue(key, priority=0 if key > 4 else 1, wake=False)
    assert Consumer(filled(stage, ())).work(8) == [(1,), (0,)] * 4


def test_groups_far_behind_the_front_get_their_turns() -> None:
    """Of ten groups with a backlog, one is in the front ten windows long."""
    stage = filled(stage_of(lambda key: (key // 400,)), range(4_000))
    consumer = Consumer(stage)
    consumer.work(40)
    turns = Counter(consumer.work(500))
    assert len(turns) == 10
    assert jain(turns.values()) > 0.99


def test_a_message_of_a_quiet_group_does_not_wait_for_the_backlog() -> None:
    stage = filled(stage_of(lambda key: NOISY if key < 1_000 else (key,)), range(1_000))
    consumer = Consumer(stage)
    consumer.work(100)
    for key in range(1_000, 1_100):
        stage.enqueue(key)
        assert (key,) in consumer.work(3)


def test_a_message_that_no_report_shows_is_found_as_well() -> None:
    stage = filled(stage_of(lambda key: NOISY if key < 1_000 else (key,)), range(1_000))
    consumer = Consumer(stage)
    consumer.work(10)
    stage.enqueue(1_000, wake=False)
    stage.pass_time(S)
    assert (1_000,) in consumer.work(3)


def test_a_scheduled_message_of_a_quiet_group_comes_at_its_time() -> None:
    stage = stage_of(lambda key: NOISY if key < 1_000 else (key,))
    stage.enqueue(1_000, due_ns=stage.now_ns + 10 * S, wake=False)
    consumer = Consumer(filled(stage, range(1_000)))
    assert (1_000,) not in consumer.work(100)
    stage.pass_time(10 * S)
    assert (1_000,) in consumer.work(3)


def test_without_an_index_it_is_fair_among_what_is_read_ahead() -> None:
    policy = replace(FAIR, groups_indexed=False)
    stage = filled(stage_of(lambda key: (key % 2,) if key < 100 else (7,), policy), range(200))
    consumer = Consumer(stage)
    assert Counter(consumer.work(50)) == {(0,): 25, (1,): 25}
    assert not any(isinstance(asked.effect, ScanGroups) for asked in stage.asked)


def test_what_is_acknowledged_while_a_group_scan_is_under_way_is_not_claimed() -> None:
    stage = filled(stage_of(lambda key: (key // 400,)), range(1_200))
    stage.subscribe(1, holder=1)
    while not (scans := [asked for asked in stage.asked if isinstance(asked.effect, ScanGroups)]):
        asked = stage.asked[0]
        stage.do(asked)
        stage.answer(asked)
    stage.do(scans[0])
    over = (400, 800)  # The first messages of the groups behind the front.
    for key in over:
        stage.acknowledge(key, seen=True)
    stage.answer(scans[0])
    groups: set[Group] = set()
    while {(1,), (2,)} - groups:
        asked = stage.asked[0]
        if isinstance(asked.effect, Claim):
            wanted = {want.key for want in asked.effect.wanted}
            assert not wanted & set(over)
            groups |= {stage.group_of(int(key)) for key in wanted}
        if asked.answer is None:
            stage.do(asked)
        stage.answer(asked)


@pytest.mark.parametrize("groups", [1, 10, 1_000])
def test_how_often_is_scanned_does_not_depend_on_the_number_of_groups(groups: int) -> None:
    """A message costs less than the reading of ten keys, by scans of many."""
    stage = stage_of(lambda key: (key % groups,))
    scans: list[Scan | ScanGroups] = []
    take = stage._take

    def counted(effects: list[object]) -> None:
        scans.extend(effect for effect in effects if isinstance(effect, Scan | ScanGroups))
        take(effects)  # type: ignore[arg-type]

    stage._take = counted  # type: ignore[method-assign, assignment]
    filled(stage, range(1_500))
    Consumer(stage, prefetch=20).work(1_000)
    assert len(scans) < 250


def test_nothing_is_scanned_by_group_unless_the_backlog_is_longer_than_the_window() -> None:
    stage = stage_of(lambda key: (key % 5,))
    filled(stage, range(30))
    asked: list[object] = []
    take = stage._take
    stage._take = lambda effects: (asked.extend(effects), take(effects))[1]  # type: ignore[method-assign, func-returns-value]
    Consumer(stage).work(30)
    assert not any(isinstance(effect, ScanGroups) for effect in asked)


def test_a_queue_becomes_fair_and_stops_being_fair_while_it_is_used() -> None:
    stage = stage_of(lambda key: (key // 200,), replace(FAIR, group_by=(), groups_indexed=False))
    filled(stage, range(600))
    consumer = Consumer(stage)
    assert set(consumer.work(20)) == {(0,)}
    for policy, groups in ((FAIR, {(0,), (1,), (2,)}), (replace(FAIR, group_by=(), groups_indexed=False), {(0,)})):
        stage.queue = queue_table(policy, id_grows=True)
        stage.handle(stage.dispatcher.policy_changed, policy)
        stage.pass_time(S)
        consumer.work(60)
        assert set(consumer.work(30)) == groups
    assert stage.store.rows[TABLE]


def test_a_full_buffer_of_a_few_groups_does_not_hide_the_others() -> None:
    """The consumers are slow, so what was read first is not taken for long."""
    policy = replace(FAIR, cache_size=4_000)
    limits = Limits(scan_min=200, window_max=200, group_quota_max=190)
    stage = Stage(policy=policy, limits=limits, group_of=lambda key: (key // 600,), id_grows=True)
    consumer = Consumer(filled(stage, range(6_000)))
    consumer.work(60)
    assert set(consumer.work(20)) == {(group,) for group in range(10)}
    assert len(stage.dispatcher.parts.groups.main.scans.buffer) <= 3 * 200
