"""The message groups of a queue with unacknowledged messages, how many they have, and what they wait for.

For SHOW GROUPS, the groups are read on the client's own session; for the page of a queue, with the
engine's account. They are read from the group index, READ_STEP entries at a time, each step behind
the last group of the one before. So the entries of a large group are not read. Their
messages are counted as SHOW QUEUES counts those of a queue, up to a bound, and estimated beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from string import Template
from typing import TYPE_CHECKING

from engine.model import Group, Key
from engine.queue_table import GroupColumn, IdKind, Policy, QueueTable
from engine.quoting import qualified, quoted
from engine.service import Engine
from engine.store.limits.group_rate import group_hash, read_rates
from engine.store.limits.pace import Pace
from engine.store.queries import FORMS, TableStatements
from proxy.session.internal_queries import Context
from proxy.session.queries import sql
from proxy.statements.depth import ClientCounting, Counting, Depth, measure_each, priorities
from proxy.statements.results import COUNT, NAME, SECONDS, TEXT, WORDS, ResultColumn, ResultSet
from proxy.statements.tables import marked_comment, refused_as_client, table_id
from proxy.wire.packets import ServerError
from sqlrewrite.queue_statements import ShowGroups

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

LIMIT_DEFAULT = 100
"""Groups that are shown without LIMIT."""

READ_STEP = 256
"""Index entries that are read at a time."""

STEPS_MAX = 1_000
"""How often, for each priority: only a LIKE that few groups match comes so far."""

GROUP_COLUMNS = (
    ResultColumn("Group", TEXT),
    ResultColumn("Ready", COUNT),
    ResultColumn("Scheduled", COUNT),
    ResultColumn("In_flight", COUNT),
    ResultColumn("Oldest_ready_s", SECONDS),
    ResultColumn("Waits_for", NAME),
    ResultColumn("Estimated", WORDS),
)


@dataclass(slots=True)
class _Found:
    """A group: how it is shown, and the conditions for its messages, one for each priority."""

    shown: str | None
    digest: str
    """Its name in the table of the rates of groups; empty in a queue without GROUP_RATE."""
    conditions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group."""

    name: str | None
    """Its values, divided by |; None if all of them are NULL."""
    depth: Depth
    waits_for: tuple[str, ...]
    """What holds its messages back: `order`, `limit`, `rate`."""


class MessageGroups:
    """Reads groups, and carries out SHOW GROUPS."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def show(self, session: ClientSession, context: Context, statement: ShowGroups) -> ResultSet:
        """The groups of a queue, in the order of priority and then of their values. Raises Refused,
        ServerError."""
        table = statement.table
        await marked_comment(session, table)
        queue = await refused_as_client(session, table, self._engine.queue(table_id(table)))
        if not queue.group_columns:
            raise ServerError(1105, "HY000", f"{queue.id} has no message groups: ALTER QUEUE … GROUP_BY makes them")
        if queue.group_index is None:
            problem = f"SHOW GROUPS requires the index that ALTER QUEUE {queue.id} GROUP_BY = (…) makes"
            raise ServerError(1105, "HY000", problem)
        like = None if statement.like is None else statement.like.decode(context.codec)
        found = await self.read(ClientCounting(session), queue, statement.limit or LIMIT_DEFAULT, like)
        return ResultSet(GROUP_COLUMNS, list(map(_row, found)))

    async def read(
        self, counting: Counting, queue: QueueTable, limit: int, like: str | None = None
    ) -> Sequence[ShownGroup]:
        """The groups of a queue with a group index, in the order of priority and then of their values. Raises what
        `counting` raises, and StoreError."""
        found = await _Reading(counting, queue, like).groups(limit)
        depths = await measure_each(counting, queue, [group.conditions for group in found])
        paced = await self._paced(queue, [group.digest for group in found])
        return [
            ShownGroup(group.shown, depth, _waits_for(depth, queue.policy, paced=group.digest in paced))
            for group, depth in zip(found, depths, strict=True)
        ]

    async def _paced(self, queue: QueueTable, digests: Sequence[str]) -> set[str]:
        """Those of these groups that have used up their rate. It is read with the account of the engine:
        clients need no privilege on the table of rates."""
        if queue.policy.group_rate is None or queue.policy.paused or not digests:
            return set()
        pace = Pace(queue.policy.group_rate)
        kept, now_ns = await self._engine.read(read_rates(queue, digests))
        return {str(digest) for digest, full_ns in kept if not pace.allowed(int(full_ns or 0), now_ns)}


class _Reading:
    """Reads the groups of one queue. Its methods raise what `counting` raises."""

    def __init__(self, counting: Counting, queue: QueueTable, like: str | None) -> None:
        self._counting = counting
        self._columns = queue.group_columns[: queue.policy.turn_values]
        self._statements = TableStatements(replace(queue, group_columns=self._columns))
        self._index = f"{qualified(queue.id)} FORCE INDEX ({quoted(queue.group_index or '')})"
        names = ", ".join(quoted(column.name) for column in self._columns)
        values = [_expression(column, column.kind) for column in self._columns]
        values += [_expression(column, _shown_as(column)) for column in self._columns]
        if queue.policy.group_rate is not None:
            values.append(f"HEX({group_hash(self._columns)})")
        liked = "1" if like is None else f"CONCAT_WS('|', {names}) LIKE {like}"
        self._words = {"index": self._index, "columns": ", ".join(values), "liked": liked, "group_order": names}

    async def groups(self, limit: int) -> list[_Found]:
        """Up to `limit` groups."""
        found: dict[Group, _Found] = {}
        levels, _ = await priorities(self._counting, self._index)
        for priority in levels:
            await self._read_priority(priority, found, limit)
        return list(found.values())

    async def _read_priority(self, priority: str, found: dict[Group, _Found], limit: int) -> None:
        """Add the groups with messages of one priority, unless there are `limit` of them."""
        behind, steps, added, count = "TRUE", 0, set[Group](), len(self._columns)
        while steps < STEPS_MAX:
            words = {"priority": priority, "behind": behind, "limit": READ_STEP, **self._words}
            entries = await self._counting.rows(sql("groups_behind", **words))
            for *values, liked in entries:
                group = self._statements.group(_bytes(values[:count]))
                if group in added or liked != "1":
                    continue
                if group not in found and len(found) >= limit:
                    return
                added.add(group)
                first = _Found(self._text(_bytes(values[count : 2 * count])), "".join(map(str, values[2 * count :])))
                shown = found.setdefault(group, first)
                in_group = self._statements.in_group(group)
                shown.conditions.append(f"time_acked IS NULL AND priority = {priority} AND {in_group}")
            if len(entries) < READ_STEP:
                return
            last = self._statements.group(_bytes(entries[-1][:count]))
            behind, steps = self._statements.behind_group(last), steps + 1

    def _text(self, values: Sequence[bytes | None]) -> str | None:
        """How a group is shown: its values, divided by |; None if all of them are NULL."""
        if all(value is None for value in values):
            return None
        pairs = zip(self._columns, values, strict=True)
        parsed = [None if value is None else FORMS[_shown_as(column)].parse(value) for column, value in pairs]
        return "|".join("NULL" if value is None else _word(value) for value in parsed)


def _shown_as(column: GroupColumn) -> IdKind:
    """A TIMESTAMP is shown in the session's time zone."""
    return IdKind.OTHER if column.kind is IdKind.TIMESTAMP else column.kind


def _expression(column: GroupColumn, kind: IdKind) -> str:
    return f"HEX({Template(FORMS[kind].expression).substitute(column=quoted(column.name))})"


def _bytes(values: Sequence[str | None]) -> list[bytes | None]:
    return [None if value is None else bytes.fromhex(value) for value in values]


def _word(value: Key) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _waits_for(depth: Depth, policy: Policy, *, paced: bool) -> tuple[str, ...]:
    most, waits = policy.group_most, list[str]()
    if depth.ready > 0 and most is not None and depth.in_flight >= most:
        waits.append("order" if policy.group_strict else "limit")
    if depth.ready > 0 and paced:
        waits.append("rate")
    return tuple(waits)


def _row(group: ShownGroup) -> list[object]:
    depth = group.depth
    counts = [depth.ready, depth.scheduled, depth.in_flight, depth.oldest_ready_s]
    return [group.name, *counts, ", ".join(group.waits_for) or None, ", ".join(sorted(depth.estimated))]
