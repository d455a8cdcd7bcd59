"""How deep a queue is, without counting all of it.

Ten million entries of an index cannot be counted in a blink. So each state is counted up to a bound, exactly, by a
range of the index that holds nothing else; beyond the bound the server's own estimate of the range stands in for the
count, and is marked as one. States are told apart by priority, because the index is: the priorities that have work
are found by skipping from one to the next, as the engine does.

A message is *ready* when it is due. One that is not due is *in flight* when it was delivered before and its time
lies within the greatest wait after a delivery (it may also have been given back with a delay); else it is
*scheduled*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.backoff import JITTER_MAX
from engine.model import NS_PER_S, Policy, QueueTable
from engine.queries import qualified, quoted
from proxy.questions import ask, rows, text_rows
from proxy.wire.columns import parse_column
from proxy.wire.fields import Reader
from proxy.wire.handshake import MARIADB_EXTENDED_METADATA
from sqlrewrite.definitions import NOW_NS

if TYPE_CHECKING:
    from proxy.session import Session

COUNT_MAX = 5_000
"""Index entries counted for one state of one queue, shared by its priorities: some milliseconds."""

LOOKUPS_MAX = 1_000
"""Rows looked up to tell those in flight from those scheduled, since the index does not hold `epoch`."""

PRIORITIES_MAX = 16
"""Priorities counted one by one; a queue with more is estimated beyond them."""

WAIT_DOUBLINGS = 10
"""Without max_backoff, a delivery later than this many doublings of the first wait counts as scheduled."""

RATE_WINDOW_S = 60
"""Acknowledgements are counted over the last minute."""


@dataclass(slots=True)
class Depth:
    """What was counted; `estimated` names what is not exact."""

    ready: int = 0
    scheduled: int = 0
    in_flight: int = 0
    acknowledged: int = 0
    oldest_ready_s: float | None = None
    acked_per_s: float | None = None
    newest_id: int | None = None
    now_ns: int = 0
    estimated: set[str] = field(default_factory=set)


async def measure(session: Session, queue: QueueTable) -> Depth:
    """Count a queue that has an index to count by, on the client's session. Raises what the server objects to."""
    assert queue.scan_index is not None
    table = f"{qualified(queue.id)} FORCE INDEX ({quoted(queue.scan_index)})"
    ((now,),) = await rows(session, f"SELECT {NOW_NS} LIMIT 1".encode())
    depth = Depth(now_ns=int(now or 0))
    priorities, all_found = await _priorities(session, table)
    if not all_found:
        depth.estimated |= {"ready", "scheduled", "in_flight"}
    bound = max(1, COUNT_MAX // max(1, len(priorities)))
    for priority in priorities:
        await _measure_priority(session, table, queue.policy, depth, priority, bound)
    await _measure_acknowledged(session, table, queue, depth)
    return depth


async def count_unacknowledged(session: Session, queue: QueueTable) -> tuple[int, bool]:
    """The messages of a queue that are not acknowledged, and whether that is exact: how many are dead, for one."""
    if queue.scan_index is None:
        return await _estimate(session, qualified(queue.id), "time_acked IS NULL"), False
    table = f"{qualified(queue.id)} FORCE INDEX ({quoted(queue.scan_index)})"
    return await _count(session, table, "time_acked IS NULL", COUNT_MAX)


async def _priorities(session: Session, table: str) -> tuple[list[str], bool]:
    """The priorities that have unacknowledged messages, most urgent first, and whether these are all."""
    found: list[str] = []
    behind = ""
    while len(found) <= PRIORITIES_MAX:
        question = f"SELECT MIN(priority) FROM {table} WHERE time_acked IS NULL{behind} LIMIT 1"
        ((priority,),) = await rows(session, question.encode(session.codec))
        if priority is None:
            return found, True
        found.append(priority)
        behind = f" AND priority > {priority}"
    return found[:-1], False


async def _measure_priority(
    session: Session, table: str, policy: Policy, depth: Depth, priority: str, bound: int
) -> None:
    own = f"time_acked IS NULL AND priority = {priority}"
    due = f"{own} AND (time_next IS NULL OR time_next <= {depth.now_ns})"
    later = f"{own} AND time_next > {depth.now_ns}"
    ready, ready_exact = await _count(session, table, due, bound)
    waiting, waiting_exact = await _count(session, table, later, bound)
    in_flight, flight_exact = await _in_flight(session, table, later, depth.now_ns + _greatest_wait_ns(policy), bound)
    depth.ready += ready
    depth.in_flight += in_flight
    depth.scheduled += max(0, waiting - in_flight)
    depth.estimated |= set() if ready_exact else {"ready"}
    depth.estimated |= set() if flight_exact else {"in_flight", "scheduled"}
    depth.estimated |= set() if waiting_exact else {"scheduled"}
    if ready:
        ((oldest,),) = await rows(
            session, f"SELECT MIN(time_next) FROM {table} WHERE {own} LIMIT 1".encode(session.codec)
        )
        if oldest is not None and int(oldest) > 0:  # 0 is a default of old that says nothing about age.
            age_s = (depth.now_ns - int(oldest)) / NS_PER_S
            depth.oldest_ready_s = max(age_s, depth.oldest_ready_s or 0.0)


async def _in_flight(session: Session, table: str, later: str, until_ns: int, bound: int) -> tuple[int, bool]:
    """How many of the messages to come were delivered before and wait to be so again."""
    looked_at = max(1, bound * LOOKUPS_MAX // COUNT_MAX)
    near = f"{later} AND time_next <= {until_ns}"
    question = (
        f"SELECT COUNT(*), COALESCE(SUM(epoch > 0), 0) FROM (SELECT epoch FROM {table} WHERE {near}"
        f" LIMIT {looked_at + 1}) AS q LIMIT 1"
    )
    ((seen, delivered),) = await rows(session, question.encode(session.codec))
    seen_count, delivered_count = int(seen or 0), int(delivered or 0)
    if seen_count <= looked_at:
        return delivered_count, True
    return await _estimate(session, table, near) * delivered_count // seen_count, False


async def _measure_acknowledged(session: Session, table: str, queue: QueueTable, depth: Depth) -> None:
    depth.acknowledged, exact = await _count(session, table, "time_acked IS NOT NULL", COUNT_MAX)
    since_ns = depth.now_ns - RATE_WINDOW_S * NS_PER_S
    recent, recent_exact = await _count(session, table, f"time_acked > {since_ns}", COUNT_MAX)
    depth.estimated |= set() if exact else {"acknowledged"}
    depth.estimated |= set() if recent_exact else {"acked_per_s"}
    kept_s = min(RATE_WINDOW_S, queue.policy.purge_after_ns / NS_PER_S)
    depth.acked_per_s = recent / kept_s if kept_s else None
    if queue.id_grows:
        question = f"SELECT MAX(id) FROM {qualified(queue.id)} LIMIT 1"
        ((newest,),) = await rows(session, question.encode(session.codec))
        depth.newest_id = int(newest or 0)


async def _count(session: Session, table: str, where: str, bound: int) -> tuple[int, bool]:
    """The entries of a range, and whether they were counted to the end."""
    beyond = await rows(session, f"SELECT 1 FROM {table} WHERE {where} LIMIT {bound}, 1".encode(session.codec))
    if beyond:
        return max(bound, await _estimate(session, table, where)), False
    ((counted,),) = await rows(session, f"SELECT COUNT(*) FROM {table} WHERE {where} LIMIT 1".encode(session.codec))
    return int(counted or 0), True


async def _estimate(session: Session, table: str, where: str) -> int:
    """The optimizer's estimate of a range, for which it looks at both of its ends."""
    question = f"EXPLAIN FORMAT=TRADITIONAL SELECT COUNT(*) FROM {table} WHERE {where}"
    answer = await ask(session, question.encode(session.codec))
    extended = bool(session.capabilities & MARIADB_EXTENDED_METADATA)
    count = Reader(answer.packets[0].payload).lenenc()
    names = [parse_column(each.payload, extended=extended).name for each in answer.packets[1 : 1 + count]]
    (row, *_) = text_rows(session, answer)
    return int(row[names.index(b"rows")] or 0)


def _greatest_wait_ns(policy: Policy) -> int:
    most = policy.max_backoff_ns or max(policy.min_backoff_ns, policy.ack_wait_ns << WAIT_DOUBLINGS)
    return most + int(most * JITTER_MAX)
