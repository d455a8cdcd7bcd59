"""What the admin port shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import Metric

from proxy.server.inspection import Inspected, Question
from proxy.server.listener import Proxy
from proxy.server.problems import QUEUES_OF_A_STEP, Problem
from proxy.statements.deliveries import Deliveries, HeldDelivery
from proxy.statements.show import RunningStream, running_stream

HELD_OF_EACH = 3
"""Messages of a queue among which the longest held ones of all queues are found."""


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
    changed: Callable[[], None]
    """Somebody has changed something on a page: the next one is to show it."""
    streams: Callable[[], Sequence[RunningStream]]
    problems: Callable[[], Awaitable[Sequence[Problem]]]
    """What concerns all queues, then broken queues, then the others."""
    held: Callable[[], Awaitable[Sequence[HeldDelivery]]]
    """The first messages that clients of this proxy hold of each queue."""


async def first_held(deliveries: Deliveries) -> Sequence[HeldDelivery]:
    """The messages of each queue that clients of this proxy hold since the longest time, a few of each."""
    held: list[HeldDelivery] = []
    for delivery in deliveries.own(of_each=HELD_OF_EACH):
        if held and len(held) % QUEUES_OF_A_STEP == 0:
            await asyncio.sleep(0)
        held.append(delivery)
    return held


def own_streams(proxy: Proxy) -> Sequence[RunningStream]:
    """The streams of this proxy."""
    return list(map(running_stream, proxy.streams()))
