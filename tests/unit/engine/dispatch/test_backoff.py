"""The wait of a delivery: doubling, limits, jitter, and extreme epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.dispatch.redelivery import WAIT_MAX_NS, wait_ns
from engine.model import NS_PER_S
from engine.queue_table import Policy

S = NS_PER_S
POLICY = Policy(
    ack_wait_ns=30 * S,
    purge_after_ns=0,
    batch_size=1,
    cache_size=1,
    poller_interval_ns=S,
    min_backoff_ns=30 * S,
)
FAR_FUTURE_NS = 4_102_444_800 * S  # the year 2100
BIGINT_MAX = 2**63 - 1


@pytest.mark.parametrize(("epoch", "seconds"), [(0, 30), (1, 60), (2, 120), (10, 30 * 1024)])
def test_the_wait_doubles_with_every_delivery(epoch: int, seconds: int) -> None:
    assert wait_ns(POLICY, epoch, 0.0) == seconds * S


def test_the_first_delivery_has_no_jitter() -> None:
    assert wait_ns(POLICY, 0, 0.999) == 30 * S


def test_jitter_adds_up_to_a_third_from_the_second_delivery_on() -> None:
    assert wait_ns(POLICY, 1, 0.5) == 60 * S + int(60 * S * 0.165)
    assert 1.32 * 60 * S < wait_ns(POLICY, 1, 0.9999) < 1.33 * 60 * S


def test_a_minimum_holds_for_the_first_delivery_too() -> None:
    assert wait_ns(replace(POLICY, min_backoff_ns=45 * S), 0, 0.0) == 45 * S
    assert wait_ns(replace(POLICY, min_backoff_ns=45 * S), 1, 0.0) == 60 * S


def test_a_maximum_below_the_first_wait_shortens_it() -> None:
    policy = replace(POLICY, min_backoff_ns=5 * S, max_backoff_ns=10 * S)
    assert wait_ns(policy, 0, 0.0) == 10 * S


def test_messages_at_the_maximum_still_spread() -> None:
    policy = replace(POLICY, max_backoff_ns=100 * S)
    assert wait_ns(policy, 9, 0.0) == 100 * S
    assert wait_ns(policy, 9, 0.9) > 125 * S


@given(
    ack_wait_ns=st.integers(1, WAIT_MAX_NS),
    epoch=st.integers(-(2**63), BIGINT_MAX),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_any_epoch_gives_a_wait_that_fits_a_bigint_with_the_time_of_day(
    ack_wait_ns: int, epoch: int, jitter: float
) -> None:
    policy = replace(POLICY, ack_wait_ns=ack_wait_ns, min_backoff_ns=ack_wait_ns)
    wait = wait_ns(policy, epoch, jitter)
    assert ack_wait_ns <= wait <= WAIT_MAX_NS
    assert FAR_FUTURE_NS + wait <= BIGINT_MAX
