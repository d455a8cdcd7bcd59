"""A limit for tests that compute: CPU time, which a busy machine does not change."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Fail once this process has used `seconds` of CPU time in the block. Main thread only."""

    def over(*_: Any) -> None:
        pytest.fail(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
