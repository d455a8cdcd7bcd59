"""The rate over all proxies, as arithmetic."""

from __future__ import annotations

import random

import pytest

from engine.model import NS_PER_S
from engine.store.limits.pace import Pace

NOW = 1_000_000 * NS_PER_S


@pytest.mark.parametrize("rate", [0.5, 3, 20, 1_000, 50_000])
@pytest.mark.parametrize(("claim_s", "burst"), [(0.0, 0), (0.02, 0), (0.2, 0), (0.02, 40)])
def test_in_any_second_there_are_no_more_messages_than_the_rate_and_one_burst(
    rate: float, claim_s: float, burst: int
) -> None:
    """Whoever claims, when, and however many."""
    draw = random.Random(7)
    pace = Pace(rate, 0.01 + claim_s, burst)
    full_ns, now_ns, claims = None, NOW, list[tuple[int, int]]()
    for _ in range(600):
        now_ns += int(draw.choice([0, 0.0001, 0.003, 0.05, 1.5]) * NS_PER_S)
        count = draw.randint(0, pace.allowed(full_ns, now_ns))
        full_ns = pace.after(full_ns, now_ns, count)
        claims.append((now_ns, count))
    for at_ns, _ in claims:
        within = sum(count for other_ns, count in claims if at_ns <= other_ns < at_ns + NS_PER_S)
        assert within <= rate + max(1.0, rate * (0.01 + claim_s), burst) + 1e-3


@pytest.mark.parametrize("rate", [0.5, 3, 20, 1_000, 50_000])
@pytest.mark.parametrize("burst", [0, 40])
def test_claims_that_start_when_they_may_reach_the_rate(rate: float, burst: int) -> None:
    pace = Pace(rate, burst=burst)
    full_ns, now_ns, total = None, NOW, 0
    for _ in range(500):
        count = pace.allowed(full_ns, now_ns)
        assert count
        total += count
        full_ns = pace.after(full_ns, now_ns, count)
        now_ns = max(now_ns, pace.ready_ns(full_ns)) + 1_000
    assert total >= 0.99 * rate * (now_ns - NOW) / NS_PER_S


@pytest.mark.parametrize("later_s", [0.5, 3, 3.1, 3_600])
def test_after_the_clock_was_set_back_messages_wait_for_a_second_and_one_message(later_s: float) -> None:
    """A claim that takes nothing writes nothing, so the time that is kept stays."""
    pace, kept_ns = Pace(0.5), NOW + int(later_s * NS_PER_S)
    assert pace.ready_ns(pace.after(kept_ns, NOW, 0)) <= NOW + 4 * NS_PER_S
    assert pace.allowed(kept_ns, NOW + 4 * NS_PER_S) == 1
