"""Waiting for a condition instead of for time to pass.

The only place in the tests that sleeps. A condition that nothing signals is read every few milliseconds
until it holds; after a deadline the test fails with what was awaited.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.005
SAME_READS = 50
"""So many reads of the same value mean that it has settled."""

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, timeout_s: float = 20.0, what: str = "") -> T:
    """The first true value of `condition`; AssertionError when there is none within `timeout_s`. The default is
    long enough for a busy machine, and shorter than the poller's interval."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(POLL_S)
    return value


def settled(value: Callable[[], T], *, timeout_s: float = 30.0, what: str = "") -> T:
    """The value that many reads in a row have returned; AssertionError when it still changes at `timeout_s`."""
    latest, same = value(), 0

    def steady() -> bool:
        nonlocal latest, same
        before, latest = latest, value()
        same = same + 1 if latest == before else 0
        return same == SAME_READS

    eventually(steady, timeout_s=timeout_s, what=what or f"{value} does not settle")
    return latest
