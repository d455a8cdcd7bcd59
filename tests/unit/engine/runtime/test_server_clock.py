"""The server's clock, estimated from its results."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.server_clock import ServerClock

HOUR_NS = 3600 * 10**9
MS = 10**6


class Ours:
    """Our monotonic clock, set by hand."""

    ns = 0


def clock_after(*samples: tuple[int, int, int]) -> ServerClock:
    """After answers, each with the times of the call and of the answer, and the server's time in it."""
    clock = ServerClock(lambda: Ours.ns)
    for called_ns, answered_ns, server_ns in samples:
        clock.observe(called_ns, answered_ns, server_ns)
    return clock


def offset_ns(clock: ServerClock) -> int:
    return clock.now().server_ns - clock.now().mono_ns


def test_the_fastest_result_counts() -> None:
    clock = clock_after(
        (0, 10 * MS, HOUR_NS), (10 * MS, 20 * MS, HOUR_NS + 18 * MS), (20 * MS, 30 * MS, HOUR_NS + 22 * MS)
    )
    assert offset_ns(clock) == HOUR_NS - 2 * MS


TRAVELS = st.tuples(st.integers(0, 10**10), st.integers(0, 10**10))


@given(st.lists(TRAVELS, min_size=1, max_size=40))
def test_the_estimate_is_never_early_and_late_by_no_more_than_the_fastest_result(
    travels: list[tuple[int, int]],
) -> None:
    """Each answer takes some time to the server and some time back."""
    clock = ServerClock(lambda: Ours.ns)
    mono_ns = 0
    for there_ns, back_ns in travels:
        called_ns, mono_ns = mono_ns, mono_ns + there_ns + back_ns
        clock.observe(called_ns, mono_ns, HOUR_NS + called_ns + there_ns)
    best_ns = min(back_ns for _, back_ns in travels[-16:])
    assert HOUR_NS - best_ns <= offset_ns(clock) <= HOUR_NS


def test_a_slow_result_does_not_change_the_estimate() -> None:
    assert offset_ns(clock_after((0, 0, HOUR_NS), (0, 9_000 * MS, HOUR_NS))) == HOUR_NS


def test_a_clock_that_was_set_forward_is_followed_with_the_next_result() -> None:
    clock = clock_after((0, 0, HOUR_NS))
    assert clock.observe(0, 0, 2 * HOUR_NS)
    assert offset_ns(clock) == 2 * HOUR_NS


def test_a_clock_that_was_set_back_is_followed_with_the_next_result() -> None:
    clock = clock_after((0, 0, 2 * HOUR_NS))
    assert clock.observe(0, 9 * MS, HOUR_NS)
    assert offset_ns(clock) == HOUR_NS - 9 * MS


def test_a_late_result_from_before_the_clock_was_set_back_is_ignored() -> None:
    clock = clock_after((0, 0, 2 * HOUR_NS), (10 * MS, 11 * MS, HOUR_NS))
    assert not clock.observe(9 * MS, 12 * MS, 2 * HOUR_NS + 10 * MS)
    assert offset_ns(clock) == HOUR_NS - 11 * MS


def test_a_clock_that_runs_slowly_is_followed_and_was_not_set() -> None:
    clock = clock_after((0, 0, HOUR_NS))
    assert not clock.observe(10_000 * MS, 10_001 * MS, HOUR_NS + 9_990 * MS)
    assert offset_ns(clock) == HOUR_NS - 11 * MS


def test_an_ordinary_result_reports_no_clock_that_was_set() -> None:
    clock = clock_after((0, 5 * MS, HOUR_NS))
    assert not clock.observe(10 * MS, 11 * MS, HOUR_NS + 10 * MS)
