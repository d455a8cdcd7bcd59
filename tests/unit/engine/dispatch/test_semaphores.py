"""SEMAPHORES: a full one hides nobody behind it, and costs no claim before it may have a place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.dispatch.effects import Cause
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, SLOTS, TableId
from tests.support.memory_store import Row
from tests.support.play import POLICY, TABLE, Stage, received, run_for

S = NS_PER_S
NEEDS = {1: "a", 2: "b", 3: "a,b", 4: None, 5: "missing"}
SHARED = replace(
    POLICY, lease="lease", semaphores="needs", groups_indexed=True, batch_size=10,
    cache_size=400,
)  # fmt: skip
OTHER = TableId(TABLE.db, "others")


def stage_of(**capacities: int) -> Stage:
    stage = Stage(policy=SHARED, limits=Limits(), group_of=lambda key: (NEEDS[key // 1_000],))
    stage.queue = replace(stage.queue, lease_index="by_lease")
    stage.store.tables[TABLE] = stage.queue
    stage.store.semaphores = {(TABLE.db, name): capacity for name, capacity in capacities.items()}
    return stage


def test_messages_that_wait_are_claimed_once_in_vain_and_hide_nobody() -> None:
    stage = stage_of(a=2, b=1)
    for key in (*range(1_000, 1_010), 2_000, 2_001, 3_000, 4_000, 4_001, 5_000):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    claims = run_for(stage, 5 * S)
    assert sorted(received(stage)) == [1_000, 1_001, 2_000, 4_000, 4_001]
    assert len(claims) == 1


def test_each_acknowledgement_takes_one_claim_and_none_in_vain() -> None:
    stage = stage_of(a=2)
    for key in (*range(1_000, 1_020), 5_000, 5_001):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, S)
    for at in range(10):
        stage.acknowledge(1_000 + at, seen=True)
        assert run_for(stage, S) == [[1_002 + at]]


def test_an_acknowledgement_of_what_needs_nothing_causes_no_claim() -> None:
    stage = stage_of(a=1)
    for key in (1_000, 1_001, 4_000):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, S)
    stage.acknowledge(4_000, seen=True)
    assert run_for(stage, S) == []


def test_a_holder_in_another_queue_is_waited_for_and_heard_of() -> None:
    stage = stage_of(a=1)
    stage.store.add_table(replace(stage.queue, id=OTHER))
    end_ns = (stage.now_ns + 25 * S) // SLOTS * SLOTS + 7
    stage.store.put(OTHER, Row(1, epoch=1, time_next_ns=end_ns, lease_ns=end_ns, group=("a",)))
    for key in range(1_000, 1_005):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    claims = run_for(stage, 20 * S)
    assert len(claims) == 1
    stage.store.acknowledge(OTHER, 1)
    stage.handle(stage.dispatcher.semaphores_freed, OTHER, [1])
    run_for(stage, S)
    assert received(stage) == [1_000]


def test_the_end_of_a_wait_elsewhere_is_noticed_by_the_time() -> None:
    stage = stage_of(a=1)
    stage.store.add_table(replace(stage.queue, id=OTHER))
    end_ns = (stage.now_ns + 5 * S) // SLOTS * SLOTS + 7
    stage.store.put(OTHER, Row(1, epoch=1, time_next_ns=end_ns, lease_ns=end_ns, group=("a",)))
    stage.enqueue(1_000, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, 4 * S)
    assert received(stage) == []
    run_for(stage, 2 * S)
    assert received(stage) == [1_000]


def test_the_more_urgent_one_of_those_that_wait_is_next() -> None:
    stage = stage_of(a=1, b=1)
    for key, priority in ((3_000, 0), (1_000, 7), (3_001, 6), (2_000, 8)):
        stage.enqueue(key, priority, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, S)
    assert received(stage) == [3_000]
    stage.acknowledge(3_000, seen=True)
    run_for(stage, S)
    assert received(stage) == [3_000, 3_001]


def test_a_semaphore_that_is_created_delivers_what_waits() -> None:
    stage = stage_of()
    stage.enqueue(5_000, wake=False)
    stage.subscribe(1, holder=1)
    assert len(run_for(stage, 20 * S)) == 1
    stage.store.semaphores[TABLE.db, "missing"] = 1
    stage.handle(stage.dispatcher.semaphores_freed, None, None)
    run_for(stage, S)
    assert received(stage) == [5_000]


def test_a_stream_that_does_not_wait_ends_while_all_wait_for_semaphores() -> None:
    stage = stage_of(a=1)
    for key in (1_000, 1_001):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, S)
    stage.subscribe(2, holder=2, first_wait_ns=0)
    run_for(stage, S)
    assert 2 in stage.ended


@pytest.mark.parametrize("limit", [{"semaphores": "needs"}, {"max_in_flight": 1}, {"max_rate": 1.0}], ids=str)
def test_a_queue_that_gets_a_limit_ends_its_streams_for_update(limit: dict[str, Any]) -> None:
    """The limit counts no message that a transaction has locked."""
    plain = replace(SHARED, semaphores=None)
    stage = Stage(policy=plain, limits=Limits())
    stage.subscribe(1, holder=1, locks=True)
    stage.subscribe(2, holder=2)
    stage.handle(stage.dispatcher.policy_changed, replace(plain, **limit))
    run_for(stage, S)
    assert stage.ended == {1: Cause.UNUSABLE}
