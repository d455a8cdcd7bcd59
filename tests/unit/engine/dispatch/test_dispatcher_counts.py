"""How many calls of the store a message takes, for each way in which the dispatcher gets to know of it.

A call is a thread handover, and two round trips to the server or more. A change that adds one fails here with the
calls before and after.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.dispatch.effects import Cause, Claim, Fetch, Scan
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Entry
from tests.support.memory_store import Row
from tests.support.play import EVEN, FORMAT, POLICY, TABLE, Stage

DUE = Entry(7, 0, 0, 0)


def idle(streams: int = 1) -> Stage:
    """Endless streams that wait for messages, on a stage where every claim brings its rows."""
    stage = Stage(id_grows=True, unread_every=10**9)
    for subscriber in range(1, streams + 1):
        stage.subscribe(subscriber, holder=subscriber)
    stage.settle()
    return stage


def calls(stage: Stage) -> list[str]:
    """Let all that is under way finish; the effects that called the store, in their order."""
    kinds = []
    while stage.asked:
        asked = stage.asked[0]
        kinds.append(type(asked.effect).__name__)
        stage.do(asked)
        stage.answer(asked)
    return kinds


def put(stage: Stage, *keys: int, priority: int = 0, due_ns: int = 0) -> list[int]:
    for key in keys:
        stage.store.put(TABLE, Row(key, priority=priority, time_next_ns=due_ns, payload=str(key).encode()))
    return list(keys)


def locking(limit: int = 10) -> Stage:
    """A stream FOR UPDATE that waits for messages."""
    stage = Stage(id_grows=True)
    stage.subscribe(1, holder=1, limit=limit, first_wait_ns=60 * NS_PER_S, locks=True)
    stage.settle()
    return stage


@pytest.mark.parametrize("count", [1, 3])
def test_an_insert_through_the_proxy_takes_a_claim(count: int) -> None:
    stage = idle()
    stage.handle(stage.dispatcher.inserted, put(stage, *range(7, 7 + count)))
    assert calls(stage) == ["Claim"]
    assert len(stage.delivered[1]) == count


def test_claims_without_a_scan_are_confirmed_by_one_scan_a_second_for_all_of_them() -> None:
    stage = idle()
    for key in range(1, 10):
        stage.handle(stage.dispatcher.inserted, put(stage, key))
        assert calls(stage) == ["Claim"]
        stage.acknowledge(key, seen=True)
        stage.pass_time(NS_PER_S // 20)
    assert calls(stage) == []
    stage.pass_time(NS_PER_S)
    assert calls(stage) == ["Scan"]
    stage.pass_time(20 * NS_PER_S)
    assert calls(stage) == []


@pytest.mark.parametrize("count", [1, 3])
def test_an_insert_takes_a_lock_if_the_stream_that_waits_locks_its_messages(count: int) -> None:
    stage = locking(limit=count)
    stage.handle(stage.dispatcher.inserted, put(stage, *range(7, 7 + count)))
    assert calls(stage) == ["Lock"]
    assert len(stage.delivered[1]) == count
    assert stage.ended == {1: Cause.COMPLETE}


@pytest.mark.parametrize("shown", [8, 6])
def test_a_wrong_id_costs_a_lock_that_misses_it(shown: int) -> None:
    stage = locking(limit=1)
    put(stage, 7)
    stage.handle(stage.dispatcher.inserted, [shown])
    assert calls(stage) == ["Lock", "Scan", "Lock"]
    assert stage.delivered == {1: [7]}


def test_a_message_that_was_inserted_for_later_costs_a_lock_and_a_scan_and_comes_at_its_time() -> None:
    stage = locking(limit=1)
    stage.handle(stage.dispatcher.inserted, put(stage, 7, due_ns=stage.now_ns + 5 * NS_PER_S))
    assert calls(stage) == ["Lock", "Scan"]
    stage.pass_time(5 * NS_PER_S)
    assert calls(stage)[0] == "Lock"
    assert stage.delivered == {1: [7]}


@pytest.mark.parametrize("shown", [8, 6])
def test_a_wrong_id_costs_a_claim_that_misses_it(shown: int) -> None:
    stage = idle()
    put(stage, 7)
    stage.handle(stage.dispatcher.inserted, [shown])
    assert calls(stage) == ["Claim", "Scan", "Claim"]
    assert stage.delivered == {1: [7]}


def test_a_message_that_was_inserted_for_later_costs_a_claim_and_a_scan_and_comes_at_its_time() -> None:
    stage = idle()
    stage.handle(stage.dispatcher.inserted, put(stage, 7, due_ns=stage.now_ns + 5 * NS_PER_S))
    assert calls(stage) == ["Claim", "Scan"]
    stage.pass_time(5 * NS_PER_S)
    assert calls(stage)[0] == "Claim"
    assert stage.delivered == {1: [7]}


def test_a_commit_of_unknown_rows_takes_a_scan_and_a_claim() -> None:
    stage = idle()
    put(stage, 7)
    stage.handle(stage.dispatcher.woken)
    assert calls(stage) == ["Scan", "Claim"]


def test_a_message_in_the_binary_log_takes_a_claim() -> None:
    stage = idle()
    put(stage, 7)
    stage.handle(stage.dispatcher.changes_logged, [DUE])
    assert calls(stage) == ["Claim"]
    assert stage.delivered == {1: [7]}


def test_a_message_that_the_log_shows_too_early_is_scanned_for() -> None:
    stage = idle()
    stage.handle(stage.dispatcher.changes_logged, [DUE])
    assert calls(stage) == ["Claim"]
    put(stage, 7)
    stage.run_until(lambda: stage.delivered == {1: [7]}, within_ns=NS_PER_S // 10)


def test_wake_ups_during_a_scan_share_the_next_one() -> None:
    stage = idle()
    stage.handle(stage.dispatcher.woken)
    for key in put(stage, 1, 2, 3):
        stage.handle(stage.dispatcher.inserted, [key])
    assert sorted(calls(stage)) == ["Claim", "Scan", "Scan"]


def test_streams_with_other_columns_take_a_fetch_more() -> None:
    stage = idle()
    stage.streams[2] = replace(stage.streams[1], id=2, holder=2, row_format=replace(FORMAT, binary=True))
    stage.handle(stage.dispatcher.subscribe, stage.streams[2])
    stage.handle(stage.dispatcher.inserted, put(stage, 7))
    assert calls(stage) == ["Claim", "Fetch"]


# What comes first stays first.


def test_an_insert_does_not_overtake_messages_that_are_due() -> None:
    """A stream takes one message at a time; another one waits when a less urgent one is inserted."""
    stage = Stage(id_grows=True, unread_every=10**9)
    stage.subscribe(1, holder=1, prefetch=1)
    put(stage, 1, 2)
    stage.settle()
    put(stage, 3, priority=1)
    stage.handle(stage.dispatcher.inserted, [3])
    for key in (1, 2, 3):
        assert stage.delivered[1][-1] == key
        stage.acknowledge(key, seen=True)
        stage.settle()


def test_an_insert_does_not_overtake_a_commit_that_was_not_scanned_for() -> None:
    stage = idle()
    put(stage, 1)
    stage.handle(stage.dispatcher.woken)
    put(stage, 2, priority=1)
    stage.handle(stage.dispatcher.inserted, [2])
    assert [type(asked.effect) for asked in stage.asked] == [Scan]


def test_an_insert_is_scanned_for_while_a_stream_with_a_condition_could_take_it() -> None:
    stage = idle()
    stage.subscribe(2, holder=2, selection=EVEN)
    stage.settle()
    put(stage, 8)
    stage.handle(stage.dispatcher.inserted, [8])
    assert {type(asked.effect) for asked in stage.asked} == {Scan}


def test_more_than_the_streams_can_take_is_not_claimed_at_once() -> None:
    stage = idle()
    stage.handle(stage.dispatcher.inserted, put(stage, *range(1, POLICY.batch_size + 2)))
    assert [type(asked.effect) for asked in stage.asked] == [Scan]


def test_a_queue_with_a_rate_claims_no_more_than_the_rate_allows() -> None:
    stage = Stage(policy=replace(POLICY, max_rate=1.0), id_grows=True, limits=Limits())
    stage.subscribe(1, holder=1)
    stage.settle()
    for key in put(stage, 1, 2, 3, 4, 5):
        stage.handle(stage.dispatcher.inserted, [key])
        stage.settle()
    assert len(stage.delivered[1]) == 1


def test_a_row_that_came_with_its_claim_waits_for_one_that_did_not() -> None:
    """The first claim's rows could not be read; the second one's are fetched behind them."""
    stage = idle()
    stage.unread_every = 1
    stage.handle(stage.dispatcher.inserted, put(stage, 1))
    (claim,) = stage.asked
    stage.do(claim)
    stage.answer(claim)
    assert [type(asked.effect) for asked in stage.asked] == [Fetch]
    stage.unread_every = 10**9
    stage.handle(stage.dispatcher.inserted, put(stage, 2))
    (second,) = (asked for asked in stage.asked if isinstance(asked.effect, Claim))
    stage.do(second)
    stage.answer(second)
    assert 1 not in stage.delivered
    stage.settle()
    assert stage.delivered == {1: [1, 2]}
