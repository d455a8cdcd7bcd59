"""Failed calls of the store in the log: one line an error number and interval, with a count of the rest."""

from __future__ import annotations

import logging

import pytest

from engine.runtime.executor import LOG_INTERVAL_S, FailureLog
from engine.store.port import StoreError

LOCKED = StoreError("Lock wait timeout exceeded", code=1205)
DENIED = StoreError("UPDATE command denied", code=1142)


@pytest.fixture(autouse=True)
def levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_many_failures_of_one_kind_are_one_line_and_a_count_in_the_next(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog()
    for _ in range(20):
        failures.failed("scan of shop.orders", LOCKED, 0.0)
    failures.failed("scan of shop.orders", LOCKED, LOG_INTERVAL_S)
    assert caplog.messages == [
        "scan of shop.orders failed: Lock wait timeout exceeded",
        "scan of shop.orders failed: Lock wait timeout exceeded (19 more since the last such line)",
    ]


def test_failures_of_different_kinds_have_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog()
    failures.failed("scan of shop.orders", LOCKED, 0.0)
    failures.failed("claim of shop.orders", DENIED, 0.0)
    assert len(caplog.messages) == 2
