"""When follow-ups are compared with their batches, and when not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.dispatch.effects import CheckBatches
from engine.dispatch.follow_ups import FollowUps
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, BatchCheck, BatchesChecked, Key, TableId
from engine.queue_table import Policy
from tests.support.play import POLICY

WAITING = replace(POLICY, after_batch="after_batch")
PARTS = TableId("test", "parts")
LIMITS = Limits()
MS = 1_000_000


def at(ms: int) -> Instant:
    return Instant(ms * MS, 10**18 + ms * MS)


def started(follow_ups: FollowUps, ms: int, *, demand: bool = True) -> BatchCheck | None:
    """The check that starts at this time, if one does."""
    effects = follow_ups.start_check(at(ms), demand=demand)
    assert len(effects) <= 1
    return effects[0].check if effects and isinstance(effects[0], CheckBatches) else None


@pytest.fixture
def idle() -> FollowUps:
    """A complete pass has shown that nothing waits."""
    follow_ups = FollowUps(WAITING, LIMITS)
    assert started(follow_ups, 0) == BatchCheck(rotate=True, limit=LIMITS.batch_step_max)
    follow_ups.check_answered(at(1), BatchesChecked())
    return follow_ups


@pytest.mark.parametrize("policy", [POLICY, replace(WAITING, paused=True)])
def test_a_queue_without_follow_ups_and_a_paused_one_check_nothing(policy: Policy) -> None:
    follow_ups = FollowUps(policy, LIMITS)
    follow_ups.parts_over(PARTS, None)
    follow_ups.table_changed()
    assert started(follow_ups, 10**9) is None
    assert follow_ups.wake_times(demand=True) == []


def test_while_nothing_waits_acknowledgements_cost_nothing(idle: FollowUps) -> None:
    idle.parts_over(PARTS, [1, 2])
    assert not idle.may_wait
    assert started(idle, 1_000) is None
    assert idle.wake_times(demand=False) == []


def test_there_is_a_pass_at_each_poll_while_there_are_streams(idle: FollowUps) -> None:
    poll_ns = WAITING.poller_interval_ns
    assert idle.wake_times(demand=True) == [poll_ns]
    assert started(idle, poll_ns // MS, demand=False) is None
    assert started(idle, poll_ns // MS) is not None


def test_acknowledged_parts_are_checked_at_once_where_a_follow_up_waits(idle: FollowUps) -> None:
    idle.follow_up_logged()
    idle.parts_over(PARTS, [1, 2])
    idle.parts_over(PARTS, [2, 3])
    assert started(idle, 10) == BatchCheck(parts=((PARTS, (1, 2, 3)),), limit=LIMITS.batch_step_max)
    idle.parts_over(PARTS, [4])
    assert started(idle, 11) is None, "one check at a time"
    idle.check_answered(at(12), BatchesChecked())
    assert started(idle, 12) == BatchCheck(parts=((PARTS, (4,)),), limit=LIMITS.batch_step_max)


def test_parts_whose_commit_is_not_visible_are_checked_after_growing_pauses(idle: FollowUps) -> None:
    idle.follow_up_logged()
    idle.parts_over(PARTS, [1])
    now, pauses = 10, []
    for _ in range(5):
        assert started(idle, now) is not None
        idle.check_answered(at(now), BatchesChecked(unseen=((PARTS, (1,)),)))
        times = [at_ns for at_ns in idle.wake_times(demand=False) if at_ns is not None]
        pauses.append(min(times) // MS - now)
        now = min(times) // MS
    assert pauses == [10, 20, 40, 80, 160]
    assert started(idle, now) is not None
    idle.check_answered(at(now), BatchesChecked())
    assert idle.wake_times(demand=False) == []


def test_too_many_parts_are_a_pass(idle: FollowUps) -> None:
    idle.follow_up_logged()
    idle.parts_over(PARTS, range(LIMITS.batch_parts_max + 1))
    check = started(idle, 100)
    assert check is not None
    assert (check.parts, check.rotate) == ((), True)


def test_a_pass_pauses_between_its_steps(idle: FollowUps) -> None:
    idle.follow_up_logged()
    idle.parts_over(PARTS, None)
    assert started(idle, 100) is not None
    place = (42, 7)
    idle.check_answered(at(130), BatchesChecked(waiting=5, after=place))
    assert started(idle, 130 + 30 * LIMITS.batch_share - 1) is None
    check = started(idle, 130 + 30 * LIMITS.batch_share)
    assert check is not None
    assert check.after == place
    idle.check_answered(at(400), BatchesChecked())
    assert idle.may_wait, "the first step has seen some that wait"


def test_what_is_upcoming_is_checked_with_what_was_set_aside(idle: FollowUps) -> None:
    asked: list[int] = []

    def upcoming(count: int) -> list[Key]:
        asked.append(count)
        return [10, 11]

    idle.set_aside([1, 2], upcoming)
    assert asked == [2 * LIMITS.batch_ahead]
    assert started(idle, 10) == BatchCheck(keys=(1, 2, 10, 11), limit=LIMITS.batch_step_max)
    assert idle.may_wait


def test_after_a_failure_all_is_checked_again(idle: FollowUps) -> None:
    idle.follow_up_logged()
    idle.parts_over(PARTS, [1])
    assert started(idle, 10) is not None
    idle.check_failed(at(20))
    assert started(idle, 21) is None
    check = started(idle, 20 + LIMITS.batch_pause_max_ns // MS)
    assert check is not None
    assert check.rotate


def test_a_queue_that_is_resumed_checks_all() -> None:
    follow_ups = FollowUps(replace(WAITING, paused=True), LIMITS)
    follow_ups.set_policy(WAITING)
    assert started(follow_ups, 0, demand=False) is not None


def test_the_pauses_are_bounded() -> None:
    assert LIMITS.batch_pause_max_ns <= NS_PER_S
