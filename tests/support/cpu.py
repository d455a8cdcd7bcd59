"""A limit for tests that compute: CPU time, which a busy machine does not change."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class CpuTimeUsedUpError(BaseException):
    """No Exception, and not pytest's: Hypothesis would take those for an example that fails, and run it again and
    again to find a smaller one, without a limit. One such test let CI run until it was ended."""


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise CpuTimeUsedUpError once this process has used `seconds` of CPU time in the block. Main thread only."""

    def over(*_: Any) -> None:
        raise CpuTimeUsedUpError(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
