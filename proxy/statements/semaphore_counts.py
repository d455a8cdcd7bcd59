"""The semaphores of a database: who holds them and what waits for them, counted in the queues.

What is in flight is counted by the index of the lease column, what waits among the first messages of each queue. The
connection is a client's, with its rights, or one of the engine, for the page of a queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.dispatch.semaphore_places import names_in
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted
from engine.store.queries import scan_hint
from proxy.session.internal_queries import from_hex
from proxy.session.queries import sql
from proxy.statements.depth import Counting
from sqlrewrite.definitions import NOW_NS
from sqlrewrite.names import TableName

READ_MAX = 10_000
"""Unacknowledged messages of a queue that are read for the semaphores that they wait for."""

KNOWN_MAX = 10_000
"""Semaphores of a database that are read to be shown."""


@dataclass(frozen=True, slots=True)
class ShownSemaphore:
    """A semaphore, as far as one queue needs it."""

    name: str
    capacity: int | None
    """None: it does not exist."""
    held: int
    waiting: int


async def read_semaphores(counting: Counting, queue: QueueTable, limit: int) -> Sequence[ShownSemaphore]:
    """Those that messages of a queue need, the most awaited first. Raises what `counting` raises."""
    held, waiting = await held_by(counting, queue), await waiting_in(counting, queue)
    names = sorted(held.keys() | waiting.keys(), key=lambda name: (-waiting[name], name))
    semaphores = queue.semaphores
    there = await capacities(counting, TableName(semaphores.name, semaphores.db)) if names else {}
    return [ShownSemaphore(name, there.get(name), held[name], waiting[name]) for name in names[:limit]]


async def capacities(counting: Counting, place: TableName) -> Mapping[str, int]:
    """The semaphores of a table, by name. Raises what `counting` raises."""
    found = await counting.rows(sql("semaphores", semaphores=place.quoted(), limit=KNOWN_MAX))
    return {from_hex(name): int(capacity or 0) for name, capacity in found}


async def held_by(counting: Counting, queue: QueueTable) -> Counter[str]:
    """How many messages of a queue hold each semaphore. Raises what `counting` raises."""
    if queue.lease_index is None:
        return Counter()
    lease = quoted(queue.lease_column or "")
    text = sql("semaphores_held", lease=lease, lease_index=quoted(queue.lease_index), limit=READ_MAX, **_words(queue))
    return _by_name(await counting.rows(text))


async def waiting_in(counting: Counting, queue: QueueTable) -> Counter[str]:
    """How many of the first messages of a queue wait for each. Raises what `counting` raises."""
    index = f"{qualified(queue.id)} {scan_hint(queue)}"
    return _by_name(await counting.rows(sql("semaphores_waiting", index=index, limit=READ_MAX, **_words(queue))))


def _words(queue: QueueTable) -> dict[str, str]:
    column = quoted(queue.group_columns[-1].name)
    return {"table": qualified(queue.id), "needs": f"HEX(CONVERT({column} USING utf8mb4))", "now_ns": NOW_NS}


def _by_name(found: Sequence[Sequence[str | None]]) -> Counter[str]:
    """Counts by the names in texts, of counts by text."""
    counts = Counter[str]()
    for needs, count in found:
        for name in names_in(from_hex(needs)):
            counts[name] += int(count or 0)
    return counts
