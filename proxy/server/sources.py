"""What the admin port shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import Metric

from proxy.server.inspection import Inspected, Question
from proxy.server.listener import Proxy
from proxy.statements.show import RunningStream, running_stream


class Metrics(Protocol):
    """The source of all metrics."""

    async def __call__(self, *, counted: bool) -> list[Metric]:
        """The present values. `counted`: whether they are to contain what is counted in the
        database."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What the admin port calls."""

    collected: Metrics
    unreachable: Callable[[], Awaitable[str | None]]
    """Why the server is out of reach."""
    unready: Callable[[], Awaitable[str | None]]
    """Why clients cannot be served."""
    inspect: Callable[[Question], Awaitable[Inspected]]
    streams: Callable[[], Sequence[RunningStream]]


def own_streams(proxy: Proxy) -> Sequence[RunningStream]:
    """The streams of this proxy."""
    return list(map(running_stream, proxy.streams()))
