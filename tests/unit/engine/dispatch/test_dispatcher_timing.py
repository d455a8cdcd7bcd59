"""The times at which the dispatcher wants its next tick."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.dispatch.effects import Poll, Scan
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Share
from tests.support.memory_store import Row
from tests.support.play import POLICY, TABLE, Asked, Stage, run_for


def test_a_time_that_passed_since_the_last_decision_still_wakes() -> None:
    """A timer may fire a little early. When it is set again, its time may have passed."""
    stage = Stage()
    stage.subscribe(1, holder=1, first_wait_ns=NS_PER_S)
    stage.settle()
    due_ns = stage.mono_ns + NS_PER_S
    stage.pass_time(NS_PER_S - 1)
    stage.mono_ns += 2
    assert stage.dispatcher.wake_at_ns == due_ns


def test_a_bounded_stream_that_gets_nothing_ends_when_its_wait_is_over() -> None:
    stage = Stage()
    stage.subscribe(1, holder=1, first_wait_ns=NS_PER_S)
    stage.run_until(lambda: 1 in stage.ended)
    assert stage.now == stage.dispatcher.parts.now


def test_a_scheduled_message_is_delivered_exactly_when_it_is_due() -> None:
    stage = Stage()
    due_ns = stage.now_ns + 5 * NS_PER_S + 1
    stage.enqueue(7, due_ns=due_ns)
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: 1 in stage.delivered)
    assert stage.now_ns == due_ns


def test_an_unacknowledged_message_is_delivered_again_when_its_wait_ends() -> None:
    stage = Stage()
    stage.enqueue(7)
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: stage.delivered.get(1) == [7])
    delivered_ns = stage.now_ns
    stage.run_until(lambda: stage.delivered.get(1) == [7, 7])
    assert stage.now_ns - delivered_ns == stage.policy.ack_wait_ns


def next_poll(stage: Stage) -> Asked:
    """Let time pass until a poll is under way. Nothing is scanned before."""
    while True:
        for asked in list(stage.asked):
            if isinstance(asked.effect, Poll):
                return asked
            assert not isinstance(asked.effect, Scan)
            stage.do(asked)
            stage.answer(asked)
        assert stage.dispatcher.wake_at_ns is not None
        stage.pass_time(max(0, stage.dispatcher.wake_at_ns - stage.mono_ns))


@pytest.mark.parametrize("share", [None, Share(0, 2)], ids=str)
def test_an_empty_table_is_polled_as_often_as_its_interval_says_and_not_scanned(share: Share | None) -> None:
    """At the same times as other such tables of the interval, whenever each was scanned first."""
    stage, interval_ns = Stage(), POLICY.poller_interval_ns
    stage.mono_ns += 7 * NS_PER_S
    stage.set_share(share)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    times = [stage.mono_ns - NS_PER_S]
    for _ in range(4):
        poll = next_poll(stage)
        times.append(stage.mono_ns)
        stage.do(poll)
        stage.answer(poll)
    assert all(later - earlier <= interval_ns for earlier, later in pairwise(times))
    assert [later - earlier for earlier, later in pairwise(times[1:])] == [interval_ns] * 3
    assert times[1] % (interval_ns // 2) == 0


@pytest.mark.parametrize("share", [None, Share(0, 2), Share(1, 2)], ids=str)
@pytest.mark.parametrize("fails", [False, True])
def test_a_message_of_which_nothing_was_reported_comes_after_a_poll_or_a_poll_that_failed(
    *, fails: bool, share: Share | None
) -> None:
    """With shares, of any share: the other proxy stands still."""
    stage = Stage()
    stage.set_share(share)
    stage.subscribe(1, holder=1)
    run_for(stage, NS_PER_S)
    stage.store.put(TABLE, Row(7, payload=b"7"))
    poll = next_poll(stage)
    if fails:
        stage.fail(poll)
    run_for(stage, NS_PER_S)
    assert stage.delivered == {1: [7]}


def test_an_idle_table_with_messages_is_not_scanned_before_the_poller_interval() -> None:
    stage = Stage()
    stage.store.put(TABLE, Row(7, time_next_ns=stage.now_ns + 10**6 * NS_PER_S))
    stage.subscribe(1, holder=1)
    stage.settle()
    assert stage.dispatcher.wake_at_ns is not None
    scans = stage.dispatcher.parts.groups.main.scans
    before, began_ns = scans.started, stage.mono_ns
    stage.run_until(lambda: scans.started > before, within_ns=2 * stage.policy.poller_interval_ns)
    assert scans.begun_ns - began_ns >= stage.policy.poller_interval_ns


def test_scheduled_messages_that_no_stream_takes_when_they_come_due_stay_within_the_bound() -> None:
    """The binary log shows more scheduled messages each second, and the earlier ones are ready by then."""
    stage = Stage(limits=Limits(scan_min=4, claim_max=5, fetch_max=4, lookup_max=4, window_max=10))
    stage.enqueue(1000)
    stage.subscribe(1, holder=1, prefetch=1)
    stage.run_until(lambda: 1 in stage.delivered)
    for first in range(0, 100, 10):
        for key in range(first, first + 10):
            stage.enqueue(key, due_ns=stage.now_ns + NS_PER_S, wake=False)
            stage.handle(stage.dispatcher.changes_logged, [stage.rows[key].entry])
        run_for(stage, 2 * NS_PER_S)
        assert len(stage.dispatcher.parts.groups.main.scans.buffer) <= 2 * stage.limits.window_max
    stage.subscribe(2, holder=1)
    for key in range(100):
        stage.run_until(lambda key=key: key in stage.delivered.get(2, ()))  # type: ignore[misc]
        stage.acknowledge(key, seen=True)
