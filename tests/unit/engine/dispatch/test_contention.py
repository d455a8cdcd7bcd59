"""Contention: misses show that other proxies take the same messages, and what they leave shows that they do not."""

from __future__ import annotations

import pytest

from engine.dispatch.contention import Contention
from engine.dispatch.limits import Limits


@pytest.fixture
def contention() -> Contention:
    return Contention(Limits(contention_bound=8))


def test_it_begins_when_claims_miss_more_than_a_fifth(contention: Contention) -> None:
    for _ in range(9):
        contention.claim_answered(taken=3, missed=1)
    assert contention.found


def test_a_miss_now_and_then_is_none(contention: Contention) -> None:
    for _ in range(1_000):
        contention.claim_answered(taken=5, missed=1)
    assert not contention.found


@pytest.fixture
def contended(contention: Contention) -> Contention:
    contention.claim_answered(taken=0, missed=3)
    assert contention.found
    return contention


def test_it_lasts_while_others_take_most_of_what_is_left_to_them(contended: Contention) -> None:
    for _ in range(1_000):
        contended.others_scanned(taken_elsewhere=3, left_here=2)
        contended.claim_answered(taken=100, missed=0)
    assert contended.found


def test_it_ends_when_they_leave_it_here(contended: Contention) -> None:
    for _ in range(9):
        contended.others_scanned(taken_elsewhere=0, left_here=1)
    assert not contended.found
