"""What is wrong with the proxy, its server and each queue, for the page and the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.binlog.supervisor import Following
from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.problems import Kind
from engine.model import TableId
from engine.queue_table import QueueTable
from proxy.server.depths import CountedQueue, Counts
from proxy.server.listener import Proxy
from proxy.statements.show import OTHER_UNIT

QUEUES_OF_A_STEP: Final = 32
"""Queues that are read in one turn of the event loop: about a millisecond."""

WARNING, UNIT = "queue.warning", "queue.other_unit"
KINDS: Final = (WARNING, UNIT, *(kind.value for kind in Kind))
"""What can be wrong with a queue that works."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a queue, or with the proxy and its server, and what to do."""

    queue: TableId | None
    """None: it concerns all queues."""
    text: str
    is_broken: bool = False
    """Whether it cannot be used at all."""


def problems_of(
    queue: QueueTable, dispatcher: Dispatcher, counted: CountedQueue | None, now_ns: int
) -> Mapping[str, str]:
    """What is wrong with a queue that works, by its kind. `now_ns`: the monotonic time."""
    found: dict[str, str] = {}
    if queue.warnings:
        found[WARNING] = "; ".join(queue.warnings)
    if counted is not None and counted.depth.other_unit:
        found[UNIT] = OTHER_UNIT
    for kind, text in dispatcher.parts.measures.problems.present(now_ns).items():
        found[kind.value] = text
    return found


async def known_problems(proxy: Proxy, following: Following, counts: Counts) -> Sequence[Problem]:
    """What `Problem` of SHOW QUEUES contains, as far as it is known without another statement; what concerns all
    queues stands first. Reads QUEUES_OF_A_STEP queues in a turn of the event loop."""
    engine, now_ns = proxy.engine, time.monotonic_ns()
    found = [Problem(None, text) for text in _of_all(proxy, following)]
    found += [Problem(table.id, "; ".join(table.problems), is_broken=True) for table in engine.broken()]
    counted = counts()
    for number, (queue, dispatcher) in enumerate(engine.runners()):
        if number and number % QUEUES_OF_A_STEP == 0:
            await asyncio.sleep(0)
        if texts := problems_of(queue, dispatcher, counted.get(queue.id), now_ns):
            found.append(Problem(queue.id, "; ".join(texts.values())))
    return found


def _of_all(proxy: Proxy, following: Following) -> Iterable[str]:
    """What concerns all queues."""
    yield from proxy.reach.states.reasons()
    if (stalled_s := max(proxy.engine.stalled_s().values(), default=0.0)) > 0:
        yield f"the server has not answered a statement for {stalled_s:.0f} s: a lock, a full disk? See the log"
    if (text := proxy.tls.expiry_problem) is not None:
        yield text
    if following.problem:
        yield following.problem
