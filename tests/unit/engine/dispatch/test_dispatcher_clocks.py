"""Two clocks: the server's decides what is due and may be set at any moment; the proxy's monotonic clock measures
every pause.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.dispatch.effects import Claim, Scan
from engine.model import ANYTHING, NS_PER_S, Selection
from tests.support.play import EVEN, POLICY, Stage

BACK_NS = -600 * NS_PER_S


def test_a_rate_is_kept_when_the_servers_clock_is_set_back() -> None:
    stage = Stage(policy=replace(POLICY, max_rate=50.0, cache_size=100, batch_size=100))
    stage.subscribe(1, holder=1)
    stage.settle()
    stage.set_clock(BACK_NS)
    for key in range(1, 65):
        stage.enqueue(key)
    stage.run_until(lambda: len(stage.delivered.get(1, [])) == 64, within_ns=2 * NS_PER_S)


@pytest.mark.parametrize("effect", [Scan, Claim])
def test_a_pause_after_a_failure_is_as_long_as_ever_when_the_servers_clock_is_set_back(effect: type) -> None:
    stage = Stage()
    stage.enqueue(7)
    stage.subscribe(1, holder=1)
    while not isinstance(stage.asked[0].effect, effect):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.fail(stage.asked[0])
    stage.set_clock(BACK_NS)
    stage.run_until(lambda: stage.delivered.get(1) == [7], within_ns=2 * stage.limits.failure_pause_min_ns)


@pytest.mark.parametrize("selection", [ANYTHING, EVEN])
def test_a_message_that_is_enqueued_after_the_clock_was_set_back_is_delivered(selection: Selection) -> None:
    stage = Stage()
    stage.subscribe(1, holder=1, selection=selection)
    for _ in range(3):
        stage.settle()
        stage.pass_time(3 * NS_PER_S)
        stage.handle(stage.dispatcher.woken)
    stage.set_clock(BACK_NS)
    stage.settle()
    stage.enqueue(8, due_ns=stage.now_ns)
    stage.run_until(lambda: stage.delivered.get(1) == [8], within_ns=NS_PER_S)


def test_a_message_comes_due_when_the_clock_is_set_forward() -> None:
    stage = Stage()
    stage.enqueue(7, due_ns=stage.now_ns + 600 * NS_PER_S)
    stage.subscribe(1, holder=1)
    stage.settle()
    stage.set_clock(600 * NS_PER_S)
    stage.settle()
    assert stage.delivered[1] == [7]


@pytest.mark.parametrize("step_ns", [BACK_NS, -BACK_NS])
def test_a_bounded_stream_waits_for_its_time_whatever_the_servers_clock_does(step_ns: int) -> None:
    stage = Stage()
    stage.subscribe(1, holder=1, first_wait_ns=5 * NS_PER_S)
    stage.settle()
    began_ns = stage.mono_ns
    stage.set_clock(step_ns)
    stage.run_until(lambda: 1 in stage.ended)
    assert stage.mono_ns - began_ns == 5 * NS_PER_S


def test_a_released_message_is_delivered_again_after_the_clock_was_set_back() -> None:
    stage = Stage()
    stage.enqueue(7)
    stage.subscribe(1, holder=1)
    stage.settle()
    stage.set_clock(BACK_NS)
    stage.subscribe(2, holder=2)
    stage.disconnect(1)
    stage.run_until(lambda: stage.delivered.get(2) == [7], within_ns=NS_PER_S)
