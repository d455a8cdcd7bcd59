"""GROUP_LIMIT: a full group hides nobody behind it, and costs no claim before it has a place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.dispatch.effects import Cause, Claim, Lookup
from engine.dispatch.full_groups import FullGroups
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, SLOTS, Entry, Group
from engine.queue_table import Policy
from tests.support.memory_store import Row
from tests.support.play import POLICY, TABLE, Stage, received, run_for

MOST = 2
LIMITED = replace(
    POLICY, lease="lease", group_by=("tenant",), groups_indexed=True, group_limit=MOST,
    batch_size=10, cache_size=400,
)  # fmt: skip
STRICT = replace(LIMITED, group_limit=None, group_strict=True)
COUNTED = replace(LIMITED, group_by=(), groups_indexed=False, group_limit=None, max_in_flight=MOST)
SLOT = 7
"""Of the other proxy."""
ELSEWHERE_NS = 25 * NS_PER_S


def tenant(key: int) -> Group:
    return (key // 1_000,)


def stage_of(policy: object = LIMITED) -> Stage:
    stage = Stage(policy=policy, limits=Limits(), group_of=tenant)  # type: ignore[arg-type]
    stage.queue = replace(stage.queue, lease_index="by_lease")
    return stage


def elsewhere(stage: Stage, *keys: int) -> None:
    """Another proxy has these messages in flight."""
    stage.store.slots_held.add(SLOT)
    end_ns = (stage.now_ns + ELSEWHERE_NS) // SLOTS * SLOTS + SLOT
    for key in keys:
        row = Row(key, epoch=1, time_next_ns=end_ns, lease_ns=end_ns, payload=str(key).encode(), group=tenant(key))
        stage.store.put(TABLE, row)


def test_a_full_group_gets_nothing_and_the_others_their_places() -> None:
    stage = stage_of()
    for key in (*range(1_000, 1_010), *range(2_000, 2_003), 3_000):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    claims = run_for(stage, 5 * NS_PER_S)
    assert sorted(received(stage)) == [1_000, 1_001, 2_000, 2_001, 3_000]
    assert sum(map(len, claims)) == 5, "a full group was tried in vain"


def test_each_acknowledgement_takes_one_claim_and_none_in_vain() -> None:
    stage = stage_of()
    for key in range(1_000, 1_020):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    for at in range(10):
        stage.acknowledge(1_000 + at, seen=True)
        assert run_for(stage, NS_PER_S) == [[1_002 + at]]


def test_a_group_that_is_full_elsewhere_costs_one_claim() -> None:
    stage = stage_of()
    elsewhere(stage, 1_000, 1_001)
    for key in (*range(1_002, 1_010), 2_000):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    assert run_for(stage, 20 * NS_PER_S) == [[1_002, 2_000, 1_003]]
    assert received(stage) == [2_000]


def test_the_end_of_a_delivery_elsewhere_opens_its_group_at_once_and_no_other() -> None:
    stage = stage_of()
    elsewhere(stage, 1_000, 1_001, 2_000, 2_001)
    for key in (*range(1_002, 1_010), *range(2_002, 2_010)):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    stage.store.acknowledge(TABLE, 1_001)
    stage.handle(stage.dispatcher.changes_logged, [], [1_001])
    assert run_for(stage, NS_PER_S) == [[1_002]]
    row = stage.rows[2_000]
    stage.store.put(TABLE, replace(row, time_next_ns=stage.now_ns + 90 * NS_PER_S))
    before = {2_000: (row.epoch, row.entry.due_ns)}
    stage.handle(stage.dispatcher.changes_logged, [stage.rows[2_000].entry], [], before)
    assert run_for(stage, NS_PER_S) == [[2_002]]
    assert received(stage) == [1_002, 2_002]


@pytest.mark.parametrize("shown_by", ["scan", "group scan"])
def test_a_scan_that_shows_a_delivery_elsewhere_to_be_over_opens_its_group(shown_by: str) -> None:
    """Without the binary log, nothing else reports what another proxy has released."""
    stage = stage_of()
    elsewhere(stage, 1_000, 1_001)
    stage.enqueue(1_002, wake=False)
    for key in range(5_000, 9_000) if shown_by == "group scan" else ():
        stage.store.put(TABLE, Row(key, time_next_ns=1, payload=str(key).encode(), group=(0,)))
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    stage.store.put(TABLE, replace(stage.rows[1_001], time_next_ns=stage.now_ns))
    stage.handle(stage.dispatcher.woken)
    run_for(stage, 2 * NS_PER_S)
    assert {1_001, 1_002} & set(received(stage))


def test_a_scan_that_shows_a_delivery_elsewhere_as_it_was_opens_nothing() -> None:
    stage = stage_of()
    elsewhere(stage, 1_000, 1_001)
    stage.enqueue(1_002, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    for _ in range(5):
        stage.handle(stage.dispatcher.woken)
        assert run_for(stage, NS_PER_S) == []


def test_claims_and_inserts_elsewhere_cause_no_claim() -> None:
    stage = stage_of()
    elsewhere(stage, 1_000, 1_001)
    stage.enqueue(1_002, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    claimed = Entry(3_000, 1, 0, stage.now_ns + ELSEWHERE_NS)
    stage.handle(stage.dispatcher.changes_logged, [claimed], [], {3_000: (0, 0)})
    stage.enqueue(1_003)
    assert run_for(stage, NS_PER_S) == []


def test_the_end_of_a_wait_elsewhere_opens_the_group_without_a_report() -> None:
    stage = stage_of()
    ends_ns = (stage.now_ns + ELSEWHERE_NS) // SLOTS * SLOTS + SLOT
    elsewhere(stage, 1_000, 1_001)
    stage.enqueue(1_002, wake=False)
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: 1_002 in received(stage), within_ns=30 * NS_PER_S)
    assert ends_ns <= stage.now_ns <= ends_ns + 1_000


def test_what_ends_while_it_is_being_counted_is_not_missed() -> None:
    stage = stage_of()
    elsewhere(stage, 1_000, 1_001)
    stage.enqueue(1_002, wake=False)
    stage.subscribe(1, holder=1)
    while not any(isinstance(asked.effect, Claim) for asked in stage.asked):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.do(stage.asked[0])  # It has counted.
    stage.store.acknowledge(TABLE, 1_001)
    stage.handle(stage.dispatcher.changes_logged, [], [1_001])
    stage.answer(stage.asked[0])
    assert run_for(stage, NS_PER_S) == [[1_002]]


def test_a_full_group_that_floods_the_front_hides_nobody() -> None:
    stage = stage_of()
    for key in range(5_000):
        stage.store.put(TABLE, Row(key, time_next_ns=1, payload=str(key).encode(), group=(0,)))
    for key in (9_000, 9_001):
        stage.enqueue(key, due_ns=2, wake=False)
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: len(received(stage)) == 4, within_ns=10 * NS_PER_S)
    assert sorted(received(stage)) == [0, 1, 9_000, 9_001]
    stage.enqueue(8_000, due_ns=stage.now_ns)
    stage.run_until(lambda: 8_000 in received(stage), within_ns=NS_PER_S)


def test_without_a_group_index_a_full_group_hides_nobody_among_what_can_be_read_ahead() -> None:
    stage = stage_of(replace(LIMITED, groups_indexed=False))
    for key in range(300):
        stage.store.put(TABLE, Row(key, time_next_ns=1, payload=str(key).encode(), group=(0,)))
    stage.enqueue(9_000, due_ns=2, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    assert received(stage) == [0, 1, 9_000]
    scans = stage.dispatcher.parts.groups.main.scans
    before = scans.started
    for key in range(1_000, 1_200):
        stage.store.put(TABLE, Row(key, time_next_ns=1, payload=str(key).encode(), group=(0,)))
    stage.handle(stage.dispatcher.woken)
    run_for(stage, 5 * NS_PER_S)
    assert scans.started - before <= 3, "more than the buffer holds is due, and it is read again and again"


def test_a_full_group_of_the_first_priority_does_not_hide_the_next_one() -> None:
    stage = stage_of()
    for key in range(1_000, 1_005):
        stage.enqueue(key, priority=0, wake=False)
    stage.enqueue(2_000, priority=1, wake=False)
    stage.enqueue(1_900, priority=1, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    assert received(stage) == [1_000, 1_001, 2_000]
    stage.acknowledge(1_000, seen=True)
    run_for(stage, NS_PER_S)
    assert received(stage)[3:] == [1_002]


def test_while_a_flooding_group_is_full_the_table_is_not_read_all_the_time() -> None:
    stage = stage_of()
    for key in range(5_000):
        stage.store.put(TABLE, Row(key, time_next_ns=1, payload=str(key).encode(), group=(0,)))
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    before = stage.dispatcher.parts.groups.main.scans.started
    run_for(stage, 2 * NS_PER_S)
    assert stage.dispatcher.parts.groups.main.scans.started - before <= 2


@pytest.mark.parametrize("messages", [5, 5_000])
def test_a_bounded_stream_ends_when_only_full_groups_are_due(messages: int) -> None:
    stage = stage_of()
    for key in range(messages):
        stage.store.put(TABLE, Row(key, time_next_ns=1, payload=str(key).encode(), group=(0,)))
    stage.subscribe(1, holder=1, first_wait_ns=0)
    run_for(stage, NS_PER_S)
    assert received(stage) == [0, 1]
    assert stage.ended == {1: Cause.COMPLETE}
    stage.subscribe(2, holder=2, first_wait_ns=0)
    run_for(stage, NS_PER_S)
    assert stage.ended[2] is Cause.COMPLETE


@pytest.mark.parametrize("policy", [LIMITED, STRICT, COUNTED], ids=["limit of groups", "strict order", "limit"])
def test_a_bounded_stream_waits_for_the_lookup_that_may_free_a_place(policy: Policy) -> None:
    """The acknowledgement was committed before the stream came, but only a lookup shows that."""
    stage = stage_of(policy)
    for key in range(2 * MOST):
        stage.enqueue(key)
    stage.subscribe(1, holder=1)
    stage.settle()
    held = list(stage.delivered[1])
    stage.cancel(1)
    for message in held:
        stage.acknowledge(message, seen=False)
    stage.handle(stage.dispatcher.suspected, held)
    stage.subscribe(2, holder=2, limit=1, first_wait_ns=0)
    while stage.asked:
        asked = min(stage.asked, key=lambda asked: isinstance(asked.effect, Lookup))  # The lookup is slow.
        stage.do(asked)
        stage.answer(asked)
    assert stage.delivered[2] == [len(held)]


def test_a_limit_that_is_raised_or_removed_opens_groups() -> None:
    stage = stage_of()
    for key in range(1_000, 1_010):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    for most, messages in ((4, 4), (None, 10)):
        policy = replace(LIMITED, group_limit=most)
        stage.queue = replace(stage.queue, policy=policy)
        stage.handle(stage.dispatcher.policy_changed, policy)
        run_for(stage, NS_PER_S)
        assert len(received(stage)) == messages


def test_what_is_remembered_of_other_proxies_is_bounded_by_what_they_hold() -> None:
    stage = stage_of()
    for _ in range(40):
        elsewhere(stage, 1_000, 1_001)
        stage.enqueue(1_002, wake=False)
        stage.subscribe(1, holder=1)
        run_for(stage, NS_PER_S // 10)
        stage.handle(stage.dispatcher.changes_logged, [], [1_001])
        run_for(stage, NS_PER_S // 10)
    (hint,) = stage.dispatcher.parts.places.hints
    assert isinstance(hint, FullGroups)
    assert len(hint._groups) == len(hint._forgotten_ns) <= 2
    assert len(hint._ends) <= 2 * 2 + 64
