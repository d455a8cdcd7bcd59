"""Streams with a condition: scans that go on where the last one ended, and several proxies with the same condition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.dispatch.effects import Cause, Claim, Scan
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Key, Share
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import EVEN, POLICY, TABLE, Stage

GRACE_NS = Limits().share_grace_ns
MS = 1_000_000


def new_stage(store: MemoryStore | None = None, limits: Limits | None = None) -> Stage:
    policy = replace(POLICY, cache_size=10_000, batch_size=100)
    store = store or MemoryStore(now_ns=Stage().now_ns)
    return Stage(policy=policy, store=store, limits=limits or Limits(), fetch_budget=10**6, id_grows=True)


def put(stage: Stage, keys: range, *, delay_s: int = 0) -> None:
    for key in keys:
        stage.enqueue(key, 0, stage.now_ns + delay_s * NS_PER_S if delay_s else 0, wake=False)


def acknowledge_all(stage: Stage) -> list[Key]:
    """What was delivered since the last time."""
    keys = [key for got in stage.delivered.values() for key in got]
    for key in keys:
        stage.acknowledge(key, seen=True)
    stage.delivered.clear()
    return keys


def group_of(stage: Stage) -> FilterGroup:
    return next(group for group in stage.dispatcher.parts.groups if group.selection == EVEN)


def test_messages_that_come_due_later_take_the_room_of_none_that_are_due() -> None:
    """A backlog makes the scans large, and they read many later messages. Then the scans are small again."""
    stage = new_stage()
    put(stage, range(2, 6_000, 2))
    put(stage, range(6_000, 8_000, 2), delay_s=8)
    stage.subscribe(1, holder=1, selection=EVEN)
    for _ in range(100):
        stage.settle()
        acknowledge_all(stage)
        stage.handle(stage.dispatcher.woken)
        stage.pass_time(50 * MS)
    assert group_of(stage).scans.limit == Limits().scan_min
    stage.enqueue(8_000)
    stage.settle()
    assert acknowledge_all(stage) == [8_000]


@pytest.mark.parametrize("count", [2, 3])
def test_proxies_with_the_same_condition_find_out_that_they_have_to_share(count: int) -> None:
    """No binary log shows what the others have done. Half of the messages are for nobody here."""
    store = MemoryStore(now_ns=Stage().now_ns)
    stages = [new_stage(store) for _ in range(count)]
    messages = 2_000
    for key in range(1, 2 * messages + 1):
        store.put(TABLE, Row(key, payload=str(key).encode()))
    for number, stage in enumerate(stages):
        stage.set_share(Share(number, count))
        stage.subscribe(1, holder=number, selection=EVEN)
    wanted, acknowledged = 0, [0] * count
    while sum(acknowledged) < messages:
        for number, stage in enumerate(stages):
            for asked in list(stage.asked):
                wanted += len(asked.effect.wanted) if isinstance(asked.effect, Claim) else 0
                stage.do(asked)
                stage.answer(asked)
            acknowledged[number] += len(acknowledge_all(stage))
            stage.mono_ns += MS
            stage.handle(stage.dispatcher.tick)
    assert wanted <= 1.25 * messages, "all would try each"
    assert min(acknowledged) > messages // (count + 2)


@pytest.fixture
def contended() -> Stage:
    """One of two proxies that have found out that they take the same messages."""
    stage = new_stage()
    stage.subscribe(1, holder=1, selection=EVEN)
    stage.set_share(Share(0, 2))
    stage.settle()
    keys = range(1_000, 1_100, 2)
    put(stage, keys)
    stage.handle(stage.dispatcher.woken)
    stage.do(stage.asked[0])
    stage.answer(stage.asked[0])
    for key in keys:  # Between the scan and the claim.
        stage.store.put(TABLE, Row(key, epoch=1, time_next_ns=stage.now_ns + 100 * NS_PER_S))
    stage.settle()
    assert not stage.delivered
    assert group_of(stage).scans.contention.found
    stage.pass_time(5 * NS_PER_S)
    stage.settle()
    return stage


def others_of(stage: Stage, first: int, count: int) -> list[int]:
    """The next even keys of the other share."""
    assert stage.share is not None
    share = stage.share
    return [key for key in range(first, first + 10 * count, 2) if share.turn(key)][:count]


def test_a_message_of_another_share_waits_for_a_grace(contended: Stage) -> None:
    (key,) = others_of(contended, 2_000, 1)
    contended.enqueue(key)
    began_ns = contended.mono_ns
    contended.run_until(lambda: contended.delivered == {1: [key]})
    assert GRACE_NS <= contended.mono_ns - began_ns <= 3 * GRACE_NS


def test_a_poll_gets_the_messages_of_any_share_at_once(contended: Stage) -> None:
    contended.handle(contended.dispatcher.client_paused, 1)
    keys = others_of(contended, 2_000, 3)
    for key in (*keys, 2_100):
        contended.enqueue(key)
    contended.subscribe(2, holder=2, selection=EVEN, first_wait_ns=0)
    contended.settle()
    assert sorted(map(int, contended.delivered[2])) == [*keys, 2_100]
    assert contended.ended == {2: Cause.COMPLETE}


def test_what_was_left_to_others_is_scanned_for_at_once_when_they_are_gone(contended: Stage) -> None:
    """The scans of the own share have passed it."""
    position = group_of(contended).scans.position
    assert position is not None
    assert not position.at_front
    contended.set_share(None)
    (scan,) = [asked.effect for asked in contended.asked if isinstance(asked.effect, Scan)]
    assert scan.selection == EVEN
    assert scan.part is not None
    assert not scan.part.after


def test_the_condition_of_one_proxy_alone_waits_for_no_grace_after_a_while(contended: Stage) -> None:
    """The other proxy has streams on the queue, with other conditions."""
    last = 2_000
    for _ in range(20):
        keys = others_of(contended, last, 5)
        last = keys[-1] + 2
        for key in keys:
            contended.enqueue(key)
        contended.run_until(lambda: not (set(keys) - set(contended.delivered.get(1, []))))  # noqa: B023
        acknowledge_all(contended)
    assert not group_of(contended).scans.contention.found
    (key,) = others_of(contended, last, 1)
    contended.enqueue(key)
    contended.settle()
    assert acknowledge_all(contended) == [key]


def test_scans_go_on_where_the_last_ones_ended_and_what_others_have_left(contended: Stage) -> None:
    """Messages that the condition does not select stay at the front, and no scan reads them again."""
    put(contended, range(2_001, 3_001, 2))
    for round_ in range(4):
        keys = others_of(contended, 4_000 + 1_000 * round_, 2)
        for key in (*keys, 4_500 + 1_000 * round_):
            contended.enqueue(key)
        contended.run_until(lambda: not (set(keys) - set(contended.delivered.get(1, []))))  # noqa: B023
        acknowledge_all(contended)
        contended.pass_time(3 * NS_PER_S)
        contended.settle()
    contended.enqueue(*others_of(contended, 9_000, 1))
    (scan,) = [asked.effect for asked in contended.asked if isinstance(asked.effect, Scan)]
    assert scan.part is not None
    place = scan.part.after[0]
    assert place.zero_id is not None
    assert place.zero_id > 3_001
