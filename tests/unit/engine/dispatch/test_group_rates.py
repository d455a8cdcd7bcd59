"""GROUP_RATE: a group that has used up its rate hides nobody, and costs no claim before it may go on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from engine.dispatch import group_rates
from engine.dispatch.effects import Cause, Claim
from engine.dispatch.group_rates import GroupRates
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Group
from engine.queue_table import Policy
from tests.support.play import POLICY, Stage, received, run_for

S = NS_PER_S
RATE = 2
PACED = replace(
    POLICY, group_by=("tenant",), groups_indexed=True, group_rate=RATE, batch_size=100, cache_size=400,
)  # fmt: skip


def tenant(key: int) -> Group:
    return (key // 1_000,)


def stage_of(policy: Policy = PACED) -> Stage:
    return Stage(policy=policy, limits=Limits(), group_of=tenant)


def test_each_group_gets_its_rate_and_no_claim_is_in_vain() -> None:
    stage = stage_of()
    for key in (*range(1_000, 1_100), *range(2_000, 2_100), 3_000):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    claims = run_for(stage, 4 * S)
    counts = Counter(tenant(int(str(key))) for key in received(stage))
    assert counts == {(1,): 4 * RATE + 1, (2,): 4 * RATE + 1, (3,): 1}
    assert sum(map(len, claims)) == counts.total()


def test_the_messages_of_a_group_go_out_in_their_order() -> None:
    stage = stage_of()
    for key in range(1_000, 1_020):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, 3 * S)
    assert received(stage) == list(range(1_000, 1_000 + 3 * RATE + 1))


def test_a_limit_and_a_rate_both_hold() -> None:
    policy = replace(PACED, group_limit=3, lease="lease")
    stage = stage_of(policy)
    stage.queue = replace(stage.queue, lease_index="by_lease")
    for key in range(1_000, 1_050):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, S // 4)
    assert len(received(stage)) == 1
    run_for(stage, 5 * S)
    assert len(received(stage)) == 3
    for at in range(3):
        stage.acknowledge(1_000 + at, seen=True)
    run_for(stage, S // 4)
    assert len(received(stage)) == 4, "the places are free, and the rate allows one"


def test_strict_order_and_a_rate_both_hold_and_no_claim_is_in_vain() -> None:
    stage = stage_of(replace(PACED, group_strict=True, lease="lease"))
    stage.queue = replace(stage.queue, lease_index="by_lease")
    for key in range(1_000, 1_010):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    claims = run_for(stage, S // 10)
    for at in range(5):
        stage.acknowledge(1_000 + at, seen=True)
        claims += run_for(stage, S // RATE)
    assert received(stage) == list(range(1_000, 1_006))
    assert claims == [[key] for key in received(stage)]


def test_what_another_proxy_has_delivered_counts() -> None:
    stage = stage_of()
    stage.store.group_rates[stage.queue.id, (1,)] = stage.now_ns + S // RATE
    stage.enqueue(1_000, wake=False)
    stage.subscribe(1, holder=1)
    assert len(run_for(stage, S // RATE - 1)) == 1
    assert received(stage) == []
    assert len(run_for(stage, 2)) == 1
    assert received(stage) == [1_000]


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
def test_a_step_of_the_servers_clock_delays_no_group(step_s: int) -> None:
    stage = stage_of()
    for key in range(1_000, 1_010):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, S // 10)
    stage.store.now_ns += step_s * S
    stage.handle(stage.dispatcher.tick)
    run_for(stage, 3 * S)
    assert len(received(stage)) >= 3


def test_another_rate_counts_at_once() -> None:
    stage = stage_of(replace(PACED, group_rate=0.001))
    for key in range(1_000, 1_100):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, 5 * S)
    assert len(received(stage)) == 1
    faster = replace(PACED, group_rate=20)
    stage.queue = replace(stage.queue, policy=faster)
    stage.handle(stage.dispatcher.policy_changed, faster)
    run_for(stage, 5 * S)
    assert len(received(stage)) > 50


def test_a_bounded_stream_does_not_wait_for_the_rate() -> None:
    stage = stage_of()
    for key in range(1_000, 1_010):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1, limit=5, first_wait_ns=0)
    run_for(stage, S // 10)
    assert received(stage) == [1_000]
    assert stage.ended == {1: Cause.COMPLETE}


def test_the_answer_of_a_claim_that_is_lost_exceeds_no_rate() -> None:
    stage = stage_of()
    stage.enqueue(1_000, wake=False)
    stage.enqueue(1_001, wake=False)
    stage.subscribe(1, holder=1)
    while not isinstance(stage.asked[0].effect, Claim):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.do(stage.asked[0])
    stage.fail(stage.asked[0])
    run_for(stage, S // RATE - 1)
    assert received(stage) == []


def rates_of(waiting: int) -> tuple[GroupRates, list[Group]]:
    freed: list[Group] = []
    rates = GroupRates(PACED, freed.append, Leases(GroupsInFlight()))
    for number in range(waiting):
        rates.used_up((number, None), 100 + number, Instant(0, 0))
    return rates, freed


def test_groups_come_back_in_the_order_of_their_times() -> None:
    rates, freed = rates_of(3)
    assert rates.next_ns(Instant(0, 0)) == 100
    rates.forget_ended(Instant(101, 0))
    assert freed == [(0, None), (1, None)]
    assert (len(rates), rates.next_ns(Instant(0, 0))) == (1, 102)


def test_groups_of_any_values_may_wait_for_the_same_time() -> None:
    rates, freed = rates_of(0)
    groups: list[Group] = [(None,), ("a",), (7,)]
    for group in groups:
        rates.used_up(group, 5, Instant(0, 0))
    rates.forget_ended(Instant(5, 5))
    assert freed == groups


def test_of_very_many_groups_the_others_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_rates, "KNOWN_MAX", 2)
    rates, _ = rates_of(3)
    assert [rates.may_follow((number, None), 0) for number in range(3)] == [False, False, True]
