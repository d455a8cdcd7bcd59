"""Waiting for a condition instead of for time to pass.

The only place in the tests that sleeps: a condition that nothing signals is looked at again every
few milliseconds until it holds, and a deadline turns "never" into a failure that says what was
awaited.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.005

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, timeout_s: float = 10.0, what: str = "") -> T:
    """The first true value of `condition`; AssertionError when there is none within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(POLL_S)
    return value
