"""Limits over all proxies: how many claims a queue costs whose places are held elsewhere."""

from __future__ import annotations

from dataclasses import replace

from engine.dispatch.effects import Cause, Claim
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, SLOTS, Entry
from tests.support.memory_store import Row
from tests.support.play import POLICY, TABLE, Stage

LIMIT = 3
COUNTED = replace(POLICY, lease="lease", max_in_flight=LIMIT, poller_interval_ns=10_000 * NS_PER_S)
SLOT = 7
"""Of the other proxy."""
ELSEWHERE_NS = 25 * NS_PER_S
"""How long the messages that another proxy has in flight stay there."""


def full_elsewhere(*, places: int = 0, messages: int = 5) -> Stage:
    """A queue with due messages of which another proxy has taken all places, or all but `places`."""
    stage = Stage(policy=COUNTED, limits=Limits())
    stage.store.slots_held.add(SLOT)
    end_ns = (stage.now_ns + ELSEWHERE_NS) // SLOTS * SLOTS + SLOT
    for key in range(101, 101 + LIMIT - places):
        stage.store.put(TABLE, Row(key, epoch=1, time_next_ns=end_ns, lease_ns=end_ns, payload=str(key).encode()))
    for key in range(1, 1 + messages):
        stage.enqueue(key, wake=False)
    return stage


def claims(stage: Stage) -> int:
    """How many claims wait to be carried out."""
    return sum(isinstance(asked.effect, Claim) for asked in stage.asked)


def run_for(stage: Stage, duration_ns: int) -> int:
    """Let time pass, from one wake-up to the next; returns how many claims were carried out."""
    carried_out, until_ns = 0, stage.mono_ns + duration_ns
    while True:
        while stage.asked:
            carried_out += isinstance(stage.asked[0].effect, Claim)
            stage.do(stage.asked[0])
            stage.answer(stage.asked[0])
        wake_ns = stage.dispatcher.wake_at_ns
        if wake_ns is None or wake_ns > until_ns:
            stage.pass_time(until_ns - stage.mono_ns)
            return carried_out
        stage.pass_time(max(0, wake_ns - stage.mono_ns))


def received(stage: Stage) -> list[object]:
    return [key for keys in stage.delivered.values() for key in keys]


def free(stage: Stage, key: int) -> None:
    """A consumer of the other proxy acknowledges a message."""
    stage.store.acknowledge(TABLE, key)


def test_a_claim_takes_what_there_are_places_for() -> None:
    stage = full_elsewhere(places=2)
    stage.subscribe(1, holder=1)
    stage.settle()
    assert received(stage) == [1, 2]


def test_while_all_places_are_held_elsewhere_claims_have_growing_pauses_up_to_a_second() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    assert run_for(stage, NS_PER_S) <= 6
    assert run_for(stage, 10 * NS_PER_S) <= 10
    assert received(stage) == []


def test_without_a_stream_nothing_is_claimed_and_nobody_wakes() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    stage.settle()
    stage.cancel(1)
    assert run_for(stage, 10 * NS_PER_S) == 0


def test_the_wait_of_a_message_elsewhere_frees_its_place_to_the_microsecond() -> None:
    stage = full_elsewhere()
    ends_ns = stage.now_ns + ELSEWHERE_NS + SLOT
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: len(received(stage)) == LIMIT, within_ns=30 * NS_PER_S)
    assert ends_ns <= stage.now_ns <= ends_ns + 1_000


def test_an_acknowledgement_elsewhere_is_found_within_a_second_without_a_report() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    run_for(stage, 5 * NS_PER_S)
    free(stage, 101)
    stage.run_until(lambda: received(stage) == [1], within_ns=NS_PER_S)


def test_an_acknowledgement_in_the_binary_log_takes_one_claim_at_once() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    run_for(stage, 5 * NS_PER_S)
    free(stage, 101)
    stage.handle(stage.dispatcher.changes_logged, [], [101])
    assert claims(stage) == 1
    stage.settle()
    assert received(stage) == [1]


def test_a_message_that_was_given_back_elsewhere_frees_its_place() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    run_for(stage, 5 * NS_PER_S)
    before = stage.rows[101].entry
    stage.store.put(TABLE, replace(stage.rows[101], time_next_ns=before.due_ns + NS_PER_S))
    seen = {101: (before.epoch, before.due_ns)}
    stage.handle(stage.dispatcher.changes_logged, [stage.rows[101].entry], [], seen)
    stage.settle()
    assert received(stage) == [1]


def test_claims_and_inserts_of_others_in_the_binary_log_cause_no_claim() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    run_for(stage, 5 * NS_PER_S)
    claimed = Entry(200, 1, 0, stage.now_ns + ELSEWHERE_NS)
    stage.handle(stage.dispatcher.changes_logged, [claimed], [], {200: (0, 0)})
    inserted = Entry(201, 0, 0, stage.now_ns + NS_PER_S)
    stage.handle(stage.dispatcher.changes_logged, [inserted])
    assert claims(stage) == 0


def test_each_own_acknowledgement_at_the_limit_takes_one_claim_and_none_in_vain() -> None:
    stage = full_elsewhere(places=1, messages=20)
    stage.subscribe(1, holder=1)
    stage.settle()
    for key in range(1, 15):
        stage.acknowledge(key, seen=True)
        assert claims(stage) == 1
        stage.settle()
        assert received(stage)[-1] == key + 1
        assert claims(stage) == 0


def test_what_a_claim_leaves_out_is_claimed_next_without_a_scan() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    stage.settle()
    for key in (101, 102, 103):
        free(stage, key)
    stage.handle(stage.dispatcher.changes_logged, [], [101, 102, 103])
    assert [type(asked.effect) for asked in stage.asked] == [Claim]
    stage.settle()
    assert received(stage) == [1, 2, 3]


def test_a_bounded_stream_ends_while_all_places_are_held_after_one_claim() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1, first_wait_ns=0)
    assert run_for(stage, 0) == 1
    assert stage.ended == {1: Cause.COMPLETE}
    free(stage, 101)
    stage.subscribe(2, holder=2, first_wait_ns=0)
    stage.settle()
    assert stage.delivered[2] == [1]


def test_a_place_that_comes_free_during_a_claim_is_not_missed() -> None:
    stage = full_elsewhere()
    stage.subscribe(1, holder=1)
    while not claims(stage):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.do(stage.asked[0])  # It has counted.
    free(stage, 101)
    stage.handle(stage.dispatcher.changes_logged, [], [101])
    stage.answer(stage.asked[0])
    assert claims(stage) == 1
    stage.settle()
    assert received(stage) == [1]


def test_one_claim_is_under_way_at_a_time() -> None:
    stage = full_elsewhere(places=3, messages=40)
    stage.subscribe(1, holder=1)
    while not claims(stage):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.handle(stage.dispatcher.tick)
    assert claims(stage) == 1


def test_an_answer_without_limits_changes_nothing() -> None:
    stage = Stage(policy=POLICY)
    stage.enqueue(1)
    stage.subscribe(1, holder=1)
    stage.settle()
    assert received(stage) == [1]
    assert stage.dispatcher.parts.capacity.is_open
