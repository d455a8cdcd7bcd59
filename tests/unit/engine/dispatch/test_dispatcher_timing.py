"""When the dispatcher asks to be woken."""

from __future__ import annotations

from engine.model import NS_PER_S
from tests.support.play import Stage


def test_what_came_due_since_the_last_decision_still_wakes() -> None:
    """A timer may fire a little early: by the time it is set again, its moment may have passed."""
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
    assert stage.now == stage.dispatcher._now


def test_a_scheduled_message_goes_out_at_its_very_time() -> None:
    stage = Stage()
    due_ns = stage.now_ns + 5 * NS_PER_S + 1
    stage.enqueue(7, due_ns=due_ns)
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: 1 in stage.delivered)
    assert stage.now_ns == due_ns


def test_an_unacknowledged_message_comes_again_when_its_wait_ends() -> None:
    stage = Stage()
    stage.enqueue(7)
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: stage.delivered.get(1) == [7])
    delivered_ns = stage.now_ns
    stage.run_until(lambda: stage.delivered.get(1) == [7, 7])
    assert stage.now_ns - delivered_ns == stage.policy.ack_wait_ns


def test_an_idle_table_with_an_idle_subscriber_is_left_alone_until_the_poller() -> None:
    stage = Stage()
    stage.subscribe(1, holder=1)
    stage.settle()
    assert stage.dispatcher.wake_at_ns is not None
    scans = stage.dispatcher._groups.main.scans
    before, began_ns = scans.started, stage.mono_ns
    stage.run_until(lambda: scans.started > before, within_ns=2 * stage.policy.poller_interval_ns)
    assert scans.begun_ns - began_ns >= stage.policy.poller_interval_ns
