"""How late the event loop runs what is due: each client's statements wait as long.

A timer is due every `INTERVAL_S`. Its delay is what any packet that arrived at that moment waited
before the proxy read it, because everything else on the event loop came first.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Histogram

INTERVAL_S = 0.25
"""Four measurements a second cost 0.01 % of a core. A minute has 240 of them, enough for a
percentile."""

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """Measures the running event loop from `start` to `stop`, into a histogram of the registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "How late the event loop ran a timer, measured four times a second"
        self._histogram = Histogram("ackstream_event_loop_lag_seconds", text, registry=registry, buckets=BUCKETS_S)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure this loop."""
        self._timer = loop.call_later(INTERVAL_S, self._measure, loop, loop.time() + INTERVAL_S)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _measure(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._histogram.observe(max(0.0, loop.time() - due_s))
        self.start(loop)
