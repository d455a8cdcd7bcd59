"""Group scans: due messages of one priority by message group (engine.dispatch.group_scans).

Arrivals, the named groups and the first step of the rotation share one packet. Each further step of
the rotation is one ranged read of the group index with a LIMIT, behind the last group of the one
before: small groups come whole, and of a large one only the first messages are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.model import Entry, GroupScan, GroupScanResult, Portion
from engine.queue_table import QueueTable
from engine.store.connection import StoreConnection
from engine.store.information_schema import now_ns
from engine.store.port import Timed
from engine.store.queries import LOWEST_PRIORITY, TableStatements, statement
from engine.store.rotation import Rotation
from engine.store.scan import entries_of


def scan_by_group(
    connection: StoreConnection, table: QueueTable, request: GroupScan, portion: Portion | None
) -> Timed[GroupScanResult]:
    """Carry out a group scan of a table with a group index, and without rows of this priority NULL."""
    sql = TableStatements(table)
    words = {"priority": request.priority, "portion": sql.of_share(None if portion is None else portion.share)}
    if table.group_index is None or request.priority == LOWEST_PRIORITY:
        (now,) = connection.run([statement("now")])
        return Timed(GroupScanResult(()), now_ns(now))
    arrivals = _arrivals(sql, table, request, words)
    named = [sql("group_first", limit=limit, in_group=sql.in_group(group), **words) for group, limit in request.named]
    now, *found = connection.run([statement("now"), *arrivals, *named])
    now_at = now_ns(now)
    new = [entry for entry in entries_of(sql, *found[: len(arrivals)]) if entry.due_ns <= now_at]
    firsts = [_due(entries_of(sql, result), now_at) for result in found[len(arrivals) :]]
    pairs = zip(request.named, firsts, strict=True)
    deep = [group for (group, limit), entries in pairs if len(entries) >= limit]
    rotation = Rotation(request, now_at)
    while rotation.goes_on:
        behind = "TRUE" if rotation.after is None else sql.behind_group(rotation.after)
        (found_next,) = connection.run([sql("group_rotation", limit=rotation.limit, behind=behind, **words)])
        rotation.add(entries_of(sql, found_next))
    bound = request.arrivals
    result = GroupScanResult(
        tuple(entry for entries in (*firsts, rotation.entries) for entry in entries),
        tuple(new),
        (*deep, *rotation.deep),
        rotation.after,
        bound is not None and any(len(result.rows) >= bound.limit for result in found[: len(arrivals)]),
        _greatest_id(new, request),
    )
    return Timed(result, now_at)


def _arrivals(sql: TableStatements, table: QueueTable, request: GroupScan, words: dict[str, object]) -> list[str]:
    arrivals = request.arrivals
    if arrivals is None or table.scan_index is None:
        return []
    bounds = {"after_ns": max(0, arrivals.after_ns), "until_ns": arrivals.until_ns, "limit": arrivals.limit}
    texts = [sql("group_arrivals", **bounds, **words)]
    if table.id_grows and table.scan_ties_by_id:
        texts.append(sql("group_arrivals_zero", after_id=arrivals.after_id, limit=arrivals.limit, **words))
    return texts


def _greatest_id(arrivals: Sequence[Entry], request: GroupScan) -> int:
    ids = [entry.key for entry in arrivals if entry.due_ns == 0 and isinstance(entry.key, int)]
    return max(ids, default=request.arrivals.after_id if request.arrivals else 0)


def _due(entries: Sequence[Entry], now: int) -> list[Entry]:
    return [entry for entry in entries if entry.due_ns <= now]
