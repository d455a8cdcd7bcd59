"""The histogram of the event loop's lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from prometheus_client import CollectorRegistry

from proxy.server.loop_lag import INTERVAL_S, LoopLag

NAME = "ackstream_event_loop_lag_seconds"


class Timer:
    """One timer of the loop below."""

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.run = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop that runs its timers when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, lambda: callback(*args)))
        return self.timers[-1]

    def run_next(self, late_s: float) -> None:
        """Run the next timer, so much later than it is due."""
        timer = self.timers.pop(0)
        self.now_s = timer.due_s + late_s
        if not timer.cancelled:
            timer.run()

    def as_event_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)


def value(registry: CollectorRegistry, suffix: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"{NAME}_{suffix}", labels)


def test_each_timer_that_the_loop_runs_late_is_counted_with_its_delay() -> None:
    registry, loop = CollectorRegistry(), Loop()
    LoopLag(registry).start(loop.as_event_loop())
    for late_s in (0.0, 0.0002, 0.03):
        loop.run_next(late_s)
    assert value(registry, "count") == 3
    assert value(registry, "bucket", le="0.001") == 2
    assert value(registry, "bucket", le="0.025") == 2
    assert value(registry, "bucket", le="0.05") == 3


def test_a_late_timer_does_not_make_the_next_one_late() -> None:
    registry, loop = CollectorRegistry(), Loop()
    LoopLag(registry).start(loop.as_event_loop())
    loop.run_next(1.0)
    assert [timer.due_s for timer in loop.timers] == [loop.now_s + INTERVAL_S]


def test_after_stop_nothing_is_measured() -> None:
    registry, loop = CollectorRegistry(), Loop()
    lag = LoopLag(registry)
    lag.start(loop.as_event_loop())
    lag.stop()
    loop.run_next(0.0)
    assert value(registry, "count") == 0
    assert loop.timers == []
