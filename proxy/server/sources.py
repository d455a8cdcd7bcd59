"""What the admin port shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import Metric

from engine.model import TableId
from proxy.server.inspection import Inspected, Question
from proxy.server.listener import Proxy
from proxy.server.queue_metrics import QUEUES_OF_A_STEP
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
class Problem:
    """What is wrong with a queue, or with the proxy and its server, and what to do."""

    queue: TableId | None
    """None: it concerns all queues."""
    text: str
    is_broken: bool = False
    """Whether it cannot be used at all."""


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
    """Of all queues, broken ones first."""
    held: Callable[[], Awaitable[Sequence[HeldDelivery]]]
    """The first messages that clients of this proxy hold of each queue."""


async def known_problems(proxy: Proxy) -> Sequence[Problem]:
    """What `Problem` of SHOW QUEUES contains, as far as the engine knows it without another statement. Reads
    QUEUES_OF_A_STEP queues in a turn of the event loop."""
    engine, now_ns = proxy.engine, time.monotonic_ns()
    found = [Problem(None, text) for text in _of_all(proxy)]
    found += [Problem(table.id, "; ".join(table.problems), is_broken=True) for table in engine.broken()]
    for number, (queue, dispatcher) in enumerate(engine.runners()):
        if number and number % QUEUES_OF_A_STEP == 0:
            await asyncio.sleep(0)
        texts = [*queue.warnings, *dispatcher.parts.measures.problems.texts(now_ns, of_rows=True)]
        texts += queue.advice if queue.scan_index is None else ()
        found += [Problem(queue.id, "; ".join(texts))] if texts else []
    return found


def _of_all(proxy: Proxy) -> Iterable[str]:
    """What of the proxy and its server concerns all queues, and is known without asking."""
    if (stalled_s := max(proxy.engine.stalled_s().values(), default=0.0)) > 0:
        yield f"the server has not answered a statement for {stalled_s:.0f} s: a lock, a full disk? See the log"
    if (text := proxy.tls.expiry_problem) is not None:
        yield text


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
