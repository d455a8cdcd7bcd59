"""Runs: consecutive messages of a group in strict order, at one stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.dispatch.effects import Claim, Release
from engine.model import NS_PER_S, Group, Key
from engine.store.limits.group_order import checks, in_order
from tests.support.memory_store import Row
from tests.support.play import POLICY, TABLE, Stage

RUN = 4
WAIT_NS = 30 * NS_PER_S
STRICT = replace(
    POLICY, ack_wait_ns=WAIT_NS, batch_size=10, cache_size=40, lease="lease", group_by=("tenant",), group_strict=True,
    group_limit=RUN,
)  # fmt: skip


@pytest.fixture
def stage() -> Stage:
    """Nobody reads yet."""
    stage = Stage(policy=STRICT)
    stage.queue = replace(stage.queue, lease_index="by_lease")
    stage.limits = replace(stage.limits, claim_max=20)
    stage.settle()
    return stage


def put(stage: Stage, *keys: int, group: Group = ("a",), epoch: int = 0) -> None:
    for key in keys:
        stage.store.put(TABLE, Row(key, epoch=epoch, payload=str(key).encode(), group=group))
    stage.handle(stage.dispatcher.woken)


def claims(stage: Stage) -> list[list[Key]]:
    """Let all that is under way finish; the messages of the claims."""
    wanted = []
    while stage.asked:
        asked = stage.asked[0]
        if isinstance(asked.effect, Claim):
            wanted.append([want.key for want in asked.effect.wanted])
        stage.do(asked)
        stage.answer(asked)
    return wanted


def in_flight(stage: Stage) -> list[Key]:
    return sorted((row.key for row in stage.rows.values() if row.is_in_flight(stage.now_ns)), key=str)


def test_a_claim_takes_a_run_of_each_group_and_the_next_one_when_it_is_over(stage: Stage) -> None:
    put(stage, 1, 2, 3, 4, 5, 6)
    put(stage, 11, 12, group=("b",))
    stage.subscribe(1, holder=1)
    assert [key for keys in claims(stage) for key in keys] == [1, 2, 3, 4, 11, 12]
    for key in (2, 1, 4):
        stage.acknowledge(key, seen=True)
    assert claims(stage) == []
    stage.acknowledge(3, seen=True)
    assert claims(stage) == [[5, 6]]


def test_runs_are_cut_to_the_room_of_one_stream(stage: Stage) -> None:
    put(stage, 1, 2, 3, 4, 5)
    put(stage, 11, 12, 13, 14, group=("b",))
    stage.subscribe(1, holder=1, limit=3, first_wait_ns=0)
    stage.subscribe(2, holder=2, prefetch=2)
    claims(stage)
    assert stage.delivered == {1: [1, 2, 3], 2: [11, 12]}
    assert in_flight(stage) == [1, 11, 12, 2, 3]


def test_a_message_that_was_delivered_before_is_alone(stage: Stage) -> None:
    put(stage, 1)
    put(stage, 2, 3, epoch=1)
    put(stage, 4, 5)
    stage.subscribe(1, holder=1)
    taken: list[list[Key]] = []
    for _ in range(4):
        taken += claims(stage)
        for key in list(stage.holdings):
            stage.acknowledge(key, seen=True)
    assert taken == [[1], [2], [3], [4, 5]]


@pytest.mark.parametrize("delay_ns", [0, 60 * NS_PER_S])
def test_the_later_messages_of_a_run_come_back_with_one_that_is_given_back(stage: Stage, delay_ns: int) -> None:
    put(stage, 1, 2, 3, 4, 5)
    stage.subscribe(1, holder=1)
    claims(stage)
    stage.acknowledge(3, seen=True)
    stage.holdings.clear()  # The play's own record of who has what does not follow runs.
    stage.give_back(2, delay_ns)
    claims(stage)
    assert in_flight(stage) == [1]
    assert stage.dispatcher.in_flight == 1
    stage.acknowledge(1, seen=True)
    claims(stage)
    assert in_flight(stage) == ([] if delay_ns else [2])


def test_the_end_of_a_stream_gives_back_what_it_was_not_sent(stage: Stage) -> None:
    put(stage, 1, 2, 3, 4)
    stage.fetch_budget, stage.unread_every = 2, 1
    stage.subscribe(1, holder=1)
    while 1 not in stage.delivered:
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.cancel(1)
    claims(stage)
    assert in_flight(stage) == stage.delivered[1] == [1, 2]


def test_a_row_is_not_sent_before_an_earlier_one_of_its_run_that_may_have_changed(stage: Stage) -> None:
    put(stage, 1, 2, 3)
    stage.unread_every = 1
    stage.subscribe(1, holder=1)
    while not isinstance(stage.asked[-1].effect, Claim):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.do(stage.asked[-1])
    stage.answer(stage.asked[-1])
    stage.handle(stage.dispatcher.suspected, [1])
    (fetch, lookup) = stage.asked
    for asked in (fetch, lookup):
        stage.do(asked)
    stage.answer(fetch)
    assert stage.asked == [lookup]
    assert stage.delivered == {}
    stage.answer(lookup)
    stage.run_until(lambda: stage.delivered == {1: [1, 2, 3]}, NS_PER_S)


def test_waits_that_end_together_give_nothing_back(stage: Stage) -> None:
    put(stage, 1, 2, 3)
    stage.subscribe(1, holder=1)
    claims(stage)
    stage.cancel(1)
    stage.pass_time(WAIT_NS)
    returned = [asked.effect.returns for asked in stage.asked if isinstance(asked.effect, Release)]
    assert returned == []
    assert stage.dispatcher.in_flight == 0


@pytest.mark.parametrize(
    ("length", "places"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 3]), (7, [0, 1, 3, 6]), (8, [0, 1, 3, 7])]
)
def test_few_places_of_a_run_of_numbers_are_compared(length: int, places: Sequence[int]) -> None:
    run = list(range(100, 100 + length))
    assert checks([run]) == {place: [run[place]] for place in places}


def test_all_places_of_other_ids_are_compared() -> None:
    assert checks([["a", "b", "c", "d"]]) == {0: ["a"], 1: ["b"], 2: ["c"], 3: ["d"]}
    assert in_order(["a", "b", "c"], [0, 2]) == 1
    assert in_order([1, 2, 3], [2]) == 3
