"""Counts the messages of a queue by state, without reading all of them.

Counting ten million index entries takes seconds. So each state is counted exactly up to a bound, by
a range of the index that holds nothing else. Beyond the bound, the optimizer's estimate of the
range replaces the count, and is marked as estimated. The ranges are those of single priorities,
because the index has the priority before the time. The priorities that have messages are found by
skipping from one to the next, as the engine does.

A message is *ready* when it is due. A message that is not due is *in flight* if it was delivered
before and its time is within the greatest wait after a delivery (it may also have been given back
with a delay); else it is *scheduled*. With a lease column, it is in flight exactly if its lease ends
at that time. The index does not hold this. So the rows of the next messages are read, and where there
are more of them, the same share is assumed for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from engine.dispatch.redelivery import JITTER_MAX
from engine.model import NS_PER_S
from engine.queue_table import Policy, QueueTable
from engine.quoting import qualified, quoted
from engine.service import Engine
from engine.store.queries import scan_hint
from proxy.session.internal_queries import checked_query, rows, server_time_ns, text_rows
from proxy.session.queries import sql
from proxy.wire.columns import parse_column
from proxy.wire.fields import Reader
from proxy.wire.handshake import MARIADB_EXTENDED_METADATA
from sqlrewrite.definitions import NOW_NS

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

COUNT_MAX = 5_000
"""Index entries counted for one state of one queue, shared by its priorities: some milliseconds."""

GROUPS_COUNT_MAX = 20_000
"""Index entries counted for all message groups of a SHOW GROUPS together."""

GROUPS_AT_ONCE = 10
"""Message groups that are counted in one query."""

LOOKUPS_MAX = 1_000
"""Rows read to distinguish in flight from scheduled, because the index does not hold it."""

PRIORITIES_MAX = 16
"""Priorities that are counted. The rest of a queue with more is estimated."""

WAIT_DOUBLINGS = 10
"""Without max_backoff, a delivery later than this many doublings of the first wait counts as
scheduled."""

NANOSECONDS_MIN = 10**17
"""An earlier time_next (of 1973) is in another unit: seconds, milliseconds or microseconds since
1970. 0 is a usual default, and means due at once."""

RATE_WINDOW_S = 60
"""Acknowledgements are counted over the last minute."""

EXPLAIN_ROWS: Mapping[int, int] = MappingProxyType({12: 9, 10: 8})
"""The place of `rows` in an answer to EXPLAIN, by its number of columns (MySQL, MariaDB)."""

Numbered = partial[str]
"""A SELECT of one row of counts; called with its `place` in the UNION, which its row begins
with."""


class Counting(Protocol):
    """A connection on which queues are counted."""

    async def rows(self, text: str) -> Sequence[Sequence[str | None]]:
        """The rows of a SELECT."""

    async def expected(self, text: str) -> list[int]:
        """How many rows the optimizer expects, by an EXPLAIN."""

    async def now_ns(self) -> int:
        """The server's clock."""


class ClientCounting:
    """Counts on a client's own session. Its methods raise Refused."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def rows(self, text: str) -> Sequence[Sequence[str | None]]:
        """The rows of a SELECT."""
        return await rows(self._session, text)

    async def expected(self, text: str) -> list[int]:
        """How many rows the optimizer expects. The columns are found by their names."""
        answer = await checked_query(self._session, text)
        extended = bool(self._session.capabilities & MARIADB_EXTENDED_METADATA)
        count = Reader(answer.packets[0].payload).lenenc()
        names = [parse_column(packet.payload, extended=extended).name for packet in answer.packets[1 : 1 + count]]
        return [int(row[names.index(b"rows")] or 0) for row in text_rows(self._session, answer)]

    async def now_ns(self) -> int:
        """The server's clock."""
        return await server_time_ns(self._session)


class EngineCounting:
    """Counts on the engine's connections, for the admin port. Its methods raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def rows(self, text: str) -> Sequence[Sequence[str | None]]:
        """The rows of a SELECT."""
        return (await self._engine.read(text))[0]

    async def expected(self, text: str) -> list[int]:
        """How many rows the optimizer expects."""
        return [int(float(row[EXPLAIN_ROWS[len(row)]] or 0)) for row in (await self._engine.read(text))[0]]

    async def now_ns(self) -> int:
        """The server's clock."""
        ((now,),) = await self.rows(sql("server_time", now_ns=NOW_NS))
        return int(now or 0)


@dataclass(slots=True)
class Depth:
    """The counts of a queue; `estimated` names those that are not exact."""

    ready: int = 0
    scheduled: int = 0
    in_flight: int = 0
    acknowledged: int = 0
    oldest_ready_s: float | None = None
    acked_per_s: float | None = None
    newest_id: int | None = None
    now_ns: int = 0
    estimated: set[str] = field(default_factory=set)
    other_unit: bool = False
    """Whether a message has a time_next that cannot be nanoseconds since 1970."""


async def measure(counting: Counting, queue: QueueTable) -> Depth:
    """Count a queue that has a scan index. Raises what `counting` raises."""
    assert queue.scan_index is not None
    index = _indexed(queue)
    depth = Depth(now_ns=await counting.now_ns())
    levels, all_found = await priorities(counting, index)
    if not all_found:
        depth.estimated |= {"ready", "scheduled", "in_flight"}
    bound = max(1, COUNT_MAX // max(1, len(levels)))
    conditions = [f"time_acked IS NULL AND priority = {priority}" for priority in levels]
    parts = [_Part(condition, depth.now_ns, queue.policy, bound) for condition in conditions]
    acknowledged = _Range("time_acked IS NOT NULL", COUNT_MAX)
    recent = _Range(f"time_acked > {depth.now_ns - RATE_WINDOW_S * NS_PER_S}", COUNT_MAX)
    ranges = [acknowledged, recent, *(entries for part in parts for entries in part.ranges)]
    others = [partial(sql, "earliest", index=index, range=part.own) for part in parts]
    if queue.id_grows:
        others.append(partial(sql, "newest_id", table=qualified(queue.id), id_index=quoted(queue.id_index)))
    whole = [acknowledged, *(entries for part in parts for entries in part.whole)] if all_found else ()
    oldest = await _count(counting, queue, ranges, others, whole=whole)
    if queue.id_grows:
        depth.newest_id = int(oldest.pop() or 0)
    for part, due in zip(parts, oldest, strict=True):
        part.add_to(depth, due)
    depth.acknowledged = acknowledged.count
    depth.estimated |= set() if acknowledged.exact else {"acknowledged"}
    depth.estimated |= set() if recent.exact else {"acked_per_s"}
    kept_s = min(RATE_WINDOW_S, queue.policy.purge_after_ns / NS_PER_S)
    depth.acked_per_s = recent.count / kept_s if kept_s else None
    return depth


async def measure_each(counting: Counting, queue: QueueTable, groups: Sequence[Sequence[str]]) -> Sequence[Depth]:
    """Count the unacknowledged messages of message groups, by the group index. `groups`: of each group the
    conditions for its messages, one for each priority. Raises what `counting` raises."""
    now_ns = await counting.now_ns()
    bound = max(1, GROUPS_COUNT_MAX // max(1, sum(map(len, groups))))
    by_group = replace(queue, scan_index=queue.group_index)
    depths: list[Depth] = []
    for first in range(0, len(groups), GROUPS_AT_ONCE):
        of_each = [
            [_Part(condition, now_ns, queue.policy, bound) for condition in conditions]
            for conditions in groups[first : first + GROUPS_AT_ONCE]
        ]
        parts = [part for of_one in of_each for part in of_one]
        others = [partial(sql, "earliest", index=_indexed(by_group), range=part.own) for part in parts]
        ranges = [entries for part in parts for entries in part.ranges]
        oldest = iter(await _count(counting, by_group, ranges, others))
        for of_one in of_each:
            depths.append(Depth(now_ns=now_ns))
            for part in of_one:
                part.add_to(depths[-1], next(oldest))
    return depths


async def count_unacknowledged(counting: Counting, queue: QueueTable) -> tuple[int, bool]:
    """The number of unacknowledged messages of a queue (for a dead-letter table: the dead ones),
    and whether it is exact."""
    unacknowledged = _Range("time_acked IS NULL", COUNT_MAX)
    if queue.scan_index is None:
        unacknowledged.exact = False
        await _estimate(counting, _indexed(queue), [unacknowledged])
    else:
        acknowledged = _Range("time_acked IS NOT NULL", COUNT_MAX)
        both = (unacknowledged, acknowledged)
        await _count(counting, queue, both, whole=both)
    return unacknowledged.count, unacknowledged.exact


@dataclass(slots=True)
class _Range:
    """A range of the index. At most `bound` of its entries are counted, and of their rows those
    in flight."""

    where: str
    bound: int
    reads_rows: bool = False
    """Whether it is read which messages are in flight, which only the rows hold."""
    exists: bool = False
    """Whether it is only read if the range has an entry; it is not estimated."""
    count: int = 0
    """Exact, or the server's estimate."""
    in_flight: int = 0
    """Messages in flight, of those whose rows were read."""
    exact: bool = True

    def count_in(self, queue: QueueTable) -> Numbered:
        """The SELECT that counts the range: up to one entry more than the bound."""
        count = partial(sql, index=_indexed(queue), range=self.where, limit=self.bound + 1)
        if not self.reads_rows:
            return partial(count, "count_entries")
        lease = queue.lease_column
        in_flight = "r.epoch > 0" if lease is None else f"r.{quoted(lease)} = r.time_next"
        id_index = quoted(queue.id_index)
        return partial(count, "count_delivered", table=qualified(queue.id), id_index=id_index, in_flight=in_flight)


class _Part:
    """The unacknowledged messages of one priority, or of one message group at one priority."""

    def __init__(self, own: str, now_ns: int, policy: Policy, bound: int) -> None:
        """`own`: the condition for them."""
        self.own = own
        self._now_ns = now_ns
        until_ns = now_ns + greatest_wait_ns(policy)
        near = f"{self.own} AND time_next > {now_ns} AND time_next <= {until_ns}"
        self._due = _Range(f"{self.own} AND (time_next IS NULL OR time_next <= {now_ns})", bound)
        self._near = _Range(near, bound)
        self._far = _Range(f"{self.own} AND time_next > {until_ns}", bound)
        self._sample = _Range(near, max(1, bound * LOOKUPS_MAX // COUNT_MAX), reads_rows=True)
        self._other_unit = _Range(f"{self.own} AND time_next > 0 AND time_next < {NANOSECONDS_MIN}", 1, exists=True)
        self.whole = (self._due, self._near, self._far)
        self.ranges = (*self.whole, self._sample, self._other_unit)

    def add_to(self, depth: Depth, oldest: str | None) -> None:
        """Add its counts to `depth`; `oldest` is the earliest time_next."""
        in_flight = self._near.count * self._sample.in_flight // max(1, self._sample.count)
        depth.other_unit |= self._other_unit.count > 0
        depth.ready += self._due.count
        depth.in_flight += in_flight
        depth.scheduled += self._near.count - in_flight + self._far.count
        depth.estimated |= set() if self._due.exact else {"ready"}
        depth.estimated |= set() if self._sample.exact else {"in_flight", "scheduled"}
        depth.estimated |= set() if self._far.exact else {"scheduled"}
        if self._due.count and int(oldest or 0) > 0:  # 0 was a default and is no age.
            age_s = (self._now_ns - int(oldest or 0)) / NS_PER_S
            depth.oldest_ready_s = max(age_s, depth.oldest_ready_s or 0.0)


def _indexed(queue: QueueTable) -> str:
    return f"{qualified(queue.id)} {scan_hint(queue)}"


async def priorities(counting: Counting, index: str) -> tuple[list[str], bool]:
    """The priorities that have unacknowledged messages, most urgent first, and whether the list is
    complete."""
    found: list[str] = []
    condition = "time_acked IS NULL"
    while len(found) <= PRIORITIES_MAX:
        if (priority := await next_priority(counting, index, condition)) is None:
            return found, True
        found.append(priority)
        condition = f"time_acked IS NULL AND priority > {priority}"
    return found[:-1], False


async def next_priority(counting: Counting, index: str, condition: str) -> str | None:
    """The most urgent priority of the messages of a condition; None: there are none."""
    ((priority,),) = await counting.rows(sql("next_priority", index=index, condition=condition))
    return priority


async def _count(
    counting: Counting,
    queue: QueueTable,
    ranges: Sequence[_Range],
    others: Sequence[Numbered] = (),
    *,
    whole: Sequence[_Range] = (),
) -> list[str | None]:
    """Count all ranges in one query, and estimate in a second one those that hold more than their
    bound. Returns the values of `others`. `whole` are the ranges that make up the table."""
    selects = [*(entries.count_in(queue) for entries in ranges), *others]
    counts = " UNION ALL ".join(select(place=at) for at, select in enumerate(selects))
    text = sql("counts", counts=counts, limit=len(selects))
    found = {int(at or 0): answer for at, *answer in await counting.rows(text)}
    for at, entries in enumerate(ranges):
        entries.count, entries.in_flight = (int(float(value or 0)) for value in found[at])
        entries.exact = entries.count <= entries.bound
    await _estimate(
        counting,
        _indexed(queue),
        [entries for entries in ranges if not (entries.reads_rows or entries.exists)],
        whole=whole,
    )
    return [found[at][0] for at in range(len(ranges), len(selects))]


async def _estimate(counting: Counting, index: str, ranges: Sequence[_Range], *, whole: Sequence[_Range] = ()) -> None:
    """Replace counts that are not exact by the optimizer's estimates.

    The optimizer reads both ends of each range. InnoDB doubles what it finds, up to half of the
    table. So all estimates are scaled to its estimate of the whole table, where `whole` is given.
    """
    estimated = [entries for entries in ranges if not entries.exact]
    if not estimated:
        return
    selects = [sql("count_range", index=index, range=entries.where) for entries in estimated]
    selects.append(sql("count_table", index=index))
    found = await counting.expected(sql("estimates", counts=" UNION ALL ".join(selects)))
    for entries, rows_expected in zip(estimated, found, strict=False):
        entries.count = max(entries.count, rows_expected)
    scaled = sum(entries.count for entries in whole if not entries.exact)
    rest = found[len(estimated)] - sum(entries.count for entries in whole if entries.exact)
    if scaled and rest > 0:
        for entries in estimated:
            entries.count = max(entries.bound + 1, entries.count * rest // scaled)


def greatest_wait_ns(policy: Policy) -> int:
    """How long a delivery waits for its acknowledgement at most."""
    most = policy.max_backoff_ns or max(policy.min_backoff_ns, policy.ack_wait_ns << WAIT_DOUBLINGS)
    return most + int(most * JITTER_MAX)
