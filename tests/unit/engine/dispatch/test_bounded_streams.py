"""Bounded streams end, whatever is under way for them."""

from __future__ import annotations

import pytest

from engine.dispatch.effects import Cause, Claim, Fetch, Scan
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S
from tests.support.play import Stage

LIMITS = Limits()
STALL_NS, GRACE_NS = LIMITS.bounded_stall_ns, LIMITS.bounded_grace_ns


def stalled(kind: type[Scan | Claim | Fetch], wait_ns: int, messages: int = 1) -> Stage:
    """A bounded stream for which an effect of this kind is under way, and no answer comes."""
    stage = Stage(unread_every=1)
    for key in range(1, messages + 1):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1, first_wait_ns=wait_ns)
    while not any(isinstance(asked.effect, kind) for asked in stage.asked):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    return stage


@pytest.mark.parametrize("kind", [Scan, Claim, Fetch])
@pytest.mark.parametrize(
    ("wait_ns", "ends_ns"),
    [(0, STALL_NS), (NS_PER_S, STALL_NS), (20 * NS_PER_S, 20 * NS_PER_S + GRACE_NS)],
    ids=["NOWAIT", "WAIT 1", "WAIT 20"],
)
def test_it_ends_empty_though_no_answer_comes(kind: type[Scan | Claim | Fetch], wait_ns: int, ends_ns: int) -> None:
    stage = stalled(kind, wait_ns)
    stage.pass_time(ends_ns - 1)
    assert 1 not in stage.ended
    wake_ns = stage.dispatcher.wake_at_ns
    assert wake_ns is not None
    assert wake_ns <= stage.mono_ns + 1
    stage.pass_time(1)
    assert stage.ended[1] is Cause.COMPLETE
    assert not stage.delivered


def test_what_was_claimed_for_it_is_given_back_and_comes_to_the_next_stream() -> None:
    stage = stalled(Claim, 0)
    stage.pass_time(STALL_NS)
    stage.subscribe(2, holder=2)
    stage.run_until(lambda: stage.delivered.get(2) == [1], within_ns=NS_PER_S)
    assert stage.rows[1].epoch == 1


def test_after_its_last_message_it_waits_no_longer_than_at_its_begin() -> None:
    stage = stalled(Fetch, 0, messages=6)
    while not stage.delivered:
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.pass_time(STALL_NS)
    assert 1 not in stage.ended, "it has got a message since its begin"
    stage.pass_time(STALL_NS)
    assert stage.ended[1] is Cause.COMPLETE


def test_a_client_that_does_not_read_has_its_stream_until_it_reads() -> None:
    stage = stalled(Fetch, 0)
    stage.handle(stage.dispatcher.client_paused, 1)
    stage.pass_time(3 * STALL_NS)
    assert 1 not in stage.ended


@pytest.mark.parametrize("wait_s", [0, 2], ids=["NOWAIT", "WAIT 2"])
def test_behind_what_it_has_locked_it_waits_for_a_second_because_others_wait_for_the_locks(wait_s: int) -> None:
    stage = Stage(limits=Limits(scan_min=2, window_max=2))
    for key in range(1, 7):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1, first_wait_ns=wait_s * NS_PER_S, locks=True)
    while answered := [asked for asked in stage.asked if not stage.delivered or not isinstance(asked.effect, Scan)]:
        stage.do(answered[0])
        stage.answer(answered[0])
    assert 1 not in stage.ended, "a scan that may find more is under way"
    for _ in range(wait_s + 2):
        stage.pass_time(GRACE_NS)
    assert stage.ended[1] is Cause.COMPLETE


def test_before_it_has_locked_anything_it_waits_as_long_as_others() -> None:
    stage = Stage()
    stage.enqueue(1, wake=False)
    stage.subscribe(1, holder=1, first_wait_ns=0, locks=True)
    for _ in range(STALL_NS // GRACE_NS):
        assert 1 not in stage.ended
        stage.pass_time(GRACE_NS)
    assert stage.ended[1] is Cause.COMPLETE
    assert not stage.delivered
