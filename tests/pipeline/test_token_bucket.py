"""The rate limit of a streaming query."""

from __future__ import annotations

import random

from pipeline.source.consume import TokenBucket


def test_without_a_rate_everything_is_allowed() -> None:
    tokens = TokenBucket(None)
    tokens.spend(1_000_000)
    assert tokens.allowance(50) == 50


def test_a_rate_holds_whatever_the_rhythm_of_the_batches() -> None:
    chance = random.Random(1)
    now_s = 100.0
    tokens = TokenBucket(40.0, lambda: now_s)
    taken = 0
    for _ in range(2_000):
        taken_now = tokens.allowance(1_000)
        tokens.spend(taken_now)
        taken += taken_now
        assert taken <= 40 + 40 * (now_s - 100)
        now_s += chance.choice([0.01, 0.3, 3.0])
    assert taken >= 0.95 * 40 * (now_s - 100 - 3)


def test_silence_saves_up_one_second_and_no_more() -> None:
    now_s = 0.0
    tokens = TokenBucket(10.0, lambda: now_s)
    for _ in range(100):
        now_s += 0.5
        tokens.allowance(1_000)
    assert tokens.allowance(1_000) == 10


def test_a_batch_that_took_long_may_be_followed_by_a_large_one() -> None:
    now_s = 0.0
    tokens = TokenBucket(10.0, lambda: now_s)
    tokens.spend(tokens.allowance(1_000))
    now_s += 30
    assert tokens.allowance(1_000) == 300
