"""Counts the messages of all queues in the database, for the metrics and the page of the admin port.

Each queue is counted as SHOW QUEUES does it, at a cost that does not grow with the backlog. All
requests share the results. Counting goes on for KEPT_S after the last request, so a proxy whose
admin port nobody reads runs no statement for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.model import NS_PER_S, TableId
from engine.queue_table import QueueTable
from engine.service import Engine
from engine.store.port import StoreError
from proxy.server.holding import CONSUMER_S
from proxy.statements.depth import Counting, Depth, measure

INTERVAL_S = 10.0
"""Between the begins of two rounds. Prometheus scrapes every 15 s or every minute."""

KEPT_S = 300.0
"""After the last request. Prometheus scrapes more often."""

SHARE = 0.1
"""The share of the time that counting may take: with a thousand queues, a round takes longer."""

RETRY_S = 1.0
"""The pause after a queue that cannot be counted, if the server is out of reach."""


@dataclass(frozen=True, slots=True)
class CountedQueue:
    """What the last count of a queue showed."""

    depth: Depth
    enqueued: int | None
    """Messages enqueued since the first count, by the growth of the newest id; None: ids do not
    grow."""
    counted_s: float
    """When it was counted, on the event loop's clock."""
    consumed_s: float | None = None
    """When a count last showed that it is consumed, at any proxy: a message in flight, or more acknowledged ones than
    before."""

    def is_read(self, now_s: float) -> bool:
        """Whether a recent count showed that it is consumed."""
        return self.consumed_s is not None and now_s < self.consumed_s + CONSUMER_S

    def oldest_ready_s(self, now_s: float) -> float:
        """The age of the oldest message that was due; 0 without one."""
        oldest_s = self.depth.oldest_ready_s
        return 0.0 if oldest_s is None else oldest_s + now_s - self.counted_s


Counts = Callable[[], Mapping[TableId, CountedQueue]]
"""The last counts in the database."""


class Depths:
    """The last counts of all queues."""

    def __init__(self, engine: Engine, counting: Counting) -> None:
        self._engine, self._counting = engine, counting
        self._counts: dict[TableId, CountedQueue] = {}
        self._task: asyncio.Task[None] | None = None
        self._wanted_until_s = 0.0

    @property
    def counts(self) -> Mapping[TableId, CountedQueue]:
        """The last count of each queue that was counted."""
        return MappingProxyType(self._counts)

    def request(self) -> None:
        """Somebody reads the counts: keep them up to date for KEPT_S."""
        loop = asyncio.get_running_loop()
        self._wanted_until_s = loop.time() + KEPT_S
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="depths")

    async def close(self) -> None:
        """Count no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while clock() < self._wanted_until_s:
            began_s = clock()
            await self._round()
            await asyncio.sleep(max(0.0, began_s + INTERVAL_S - clock()))

    async def _round(self) -> None:
        clock = asyncio.get_running_loop().time
        queues = [queue for queue, _ in self._engine.runners()]
        for queue in queues:
            began_s = clock()
            if queue.scan_index is not None:
                await self._count(queue)
            await asyncio.sleep((clock() - began_s) * (1 / SHARE - 1))
        known = {queue.id for queue in queues}
        self._counts = {table: counted for table, counted in self._counts.items() if table in known}

    async def _count(self, queue: QueueTable) -> None:
        try:
            depth = await measure(self._counting, queue)
        except StoreError as error:
            self._counts.pop(queue.id, None)
            if error.unreachable:
                await asyncio.sleep(RETRY_S)
            return
        before, now_s = self._counts.get(queue.id), asyncio.get_running_loop().time()
        consumed_s = now_s if _is_consumed(before, depth) else None if before is None else before.consumed_s
        self._counts[queue.id] = CountedQueue(depth, _enqueued(before, depth), now_s, consumed_s)


def _is_consumed(before: CountedQueue | None, depth: Depth) -> bool:
    """Whether messages are in flight, or were acknowledged since the count before."""
    grown = before is not None and depth.acknowledged > before.depth.acknowledged
    return depth.in_flight > 0 or (grown and "acknowledged" not in depth.estimated)


def _enqueued(before: CountedQueue | None, depth: Depth) -> int | None:
    if depth.newest_id is None:
        return None
    if before is None or before.enqueued is None or before.depth.newest_id is None:
        return 0
    return before.enqueued + max(0, depth.newest_id - before.depth.newest_id)


def enqueued_per_s(before: CountedQueue, after: CountedQueue) -> float | None:
    """The enqueue rate between two counts of a queue; None: unknown."""
    if before.enqueued is None or after.enqueued is None or after.depth.now_ns <= before.depth.now_ns:
        return None
    return (after.enqueued - before.enqueued) * NS_PER_S / (after.depth.now_ns - before.depth.now_ns)
