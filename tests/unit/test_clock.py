"""The server's clock, estimated from its answers."""

from __future__ import annotations

from engine.clock import ServerClock

HOUR_NS = 3600 * 10**9
MS = 10**6


class Ours:
    """Our monotonic clock, set by hand."""

    ns = 0


def clock_after(*samples: tuple[int, int]) -> ServerClock:
    clock = ServerClock(lambda: Ours.ns)
    for received_ns, server_ns in samples:
        clock.observe(received_ns, server_ns)
    return clock


def test_the_fastest_answer_counts() -> None:
    clock = clock_after((10 * MS, HOUR_NS), (20 * MS, HOUR_NS + 18 * MS), (30 * MS, HOUR_NS + 15 * MS))
    assert clock.now_ns() == Ours.ns + HOUR_NS - 2 * MS


def test_the_estimate_is_never_later_than_the_server() -> None:
    truth_ns, travel_ns = 7 * HOUR_NS, [5 * MS, 1 * MS, 900 * MS, 3 * MS]
    clock = clock_after(*((i * MS + travel, truth_ns + i * MS) for i, travel in enumerate(travel_ns)))
    assert clock.now_ns() <= truth_ns + Ours.ns


def test_one_slow_answer_does_not_move_it() -> None:
    clock = clock_after((0, HOUR_NS), (9_000 * MS, HOUR_NS))
    assert clock.now_ns() == HOUR_NS


def test_a_clock_that_was_set_forward_is_followed_at_once() -> None:
    clock = clock_after((0, HOUR_NS), (0, 2 * HOUR_NS))
    assert clock.now_ns() == 2 * HOUR_NS


def test_a_clock_that_was_set_back_is_followed_after_three_answers() -> None:
    clock = clock_after((0, 2 * HOUR_NS), (0, HOUR_NS), (0, HOUR_NS))
    assert clock.now_ns() == 2 * HOUR_NS
    clock.observe(0, HOUR_NS)
    assert clock.now_ns() == HOUR_NS
