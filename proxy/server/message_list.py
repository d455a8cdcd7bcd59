"""The messages of a queue in one state, a page at a time, read by the engine's account.

A page is read by an index in the order of priority and time, behind the last message of the page before.
An index that descends is read from its latest time. So a page costs the same wherever it begins and however
long the backlog is. What the index does not hold (the lease, the reason) is looked for among the next
READ_MAX messages. If these are not enough, the page is short, and the next one goes on behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.model import TableId
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted
from proxy.server.message_rows import ShownMessage, columns_of, equals, literal_of, message_of
from proxy.session.queries import sql
from proxy.statements.depth import Counting, next_priority

PAGE = 50
"""Messages of a page."""
READ_MAX = 1_000
"""Messages among which those of a page are looked for: some milliseconds."""
PRIORITIES_MAX = 16
"""Priorities that are read for a page."""

STATES: Final = ("ready", "scheduled", "in flight", "dead")
"""`dead`: all unacknowledged ones of a dead-letter table."""
DUE: Final = frozenset({"ready", "dead"})
"""States whose messages may have any earlier time."""

UNORDERED = "There may be more: without the id behind the time in the index, only the first ones can be listed."

EARLIEST, LATEST = -(2**63), 2**63 - 1
"""Of a BIGINT."""


@dataclass(frozen=True, slots=True)
class PageStart:
    """Behind the message with this priority, time and id; without an id, before the first one of the priority."""

    priority: int
    time_next_ns: int | None = None
    key: str = ""

    def __str__(self) -> str:
        time = "" if self.time_next_ns is None else self.time_next_ns
        return f"{self.priority}.{time}.{self.key}"

    @classmethod
    def of(cls, text: str) -> PageStart | None:
        """The position of a text; None if it is none."""
        try:
            priority, time, key = text.split(".")
            bytes.fromhex(key)
            found = cls(int(priority), int(time) if time else None, key)
        except ValueError:
            return None
        return (
            found if all(EARLIEST <= value <= LATEST for value in (found.priority, found.time_next_ns or 0)) else None
        )


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """Which messages are listed."""

    state: str
    after: PageStart | None = None
    reason: str = ""
    """What is part of their reason."""
    group: tuple[str, ...] = ()
    """The values of their group; empty: any. An empty value is NULL."""
    column: str = ""
    """A column with an index; empty: none."""
    value: str = ""
    """Its value."""


@dataclass(frozen=True, slots=True)
class MessageList:
    """A page of messages."""

    table: TableId
    now_ns: int
    wanted: MessageQuery
    messages: tuple[ShownMessage, ...]
    read: int
    """So many were read to find them."""
    next: PageStart | None
    """Where the next page begins; None: there is none."""
    has_reason: bool
    group_columns: tuple[str, ...]
    """By which messages can be searched."""
    columns: tuple[str, ...]
    """Columns of the application by which messages can be searched."""
    dead_letter: TableId | None
    sources: tuple[TableId, ...]
    """The queues whose dead messages come here."""
    problem: str = ""


async def list_messages(counting: Counting, queue: QueueTable, wanted: MessageQuery) -> MessageList:
    """The page of messages that is wanted. Raises what `counting` raises."""
    if queue.scan_index is None:
        return _listed(
            queue, 0, wanted, problem=f"Without an index, they cannot be listed: {'; '.join(queue.warnings)}"
        )
    in_group = None if not wanted.group else _in_group(queue, wanted.group)
    if wanted.group and in_group is None:
        return _listed(queue, 0, wanted, problem="No message can have this group.")
    if not wanted.column:
        return await _Reading(counting, queue, wanted, in_group).page()
    column = next((column for column in queue.indexed if column.name == wanted.column), None)
    condition = None if column is None else equals(column, wanted.value)
    if column is None or condition is None:
        return _listed(queue, 0, wanted, problem="No index of this column alone, or no message can have this value.")
    return await _found_by(counting, queue, wanted, column.index, condition)


async def _found_by(
    counting: Counting, queue: QueueTable, wanted: MessageQuery, index: str, condition: str
) -> MessageList:
    """A page of the messages of a condition on the first column of an index, in the order of ids. The index has
    acknowledged ones as well."""
    now_ns = await counting.now_ns()
    if wanted.after is not None and wanted.after.key:
        literal = literal_of(queue.id_kind, bytes.fromhex(wanted.after.key))
        condition += "" if literal is None else f" AND id > {literal}"
    hinted = f"{qualified(queue.id)} FORCE INDEX ({quoted(index)})"
    words = {"columns": columns_of(queue), "index": hinted, "range": condition, "order": "id", "limit": READ_MAX}
    read = [message_of(queue, row) for row in await counting.rows(sql("listed_messages", **words))]
    found = [message for message in read if _is_wanted(queue, wanted, message, now_ns)]
    behind = None
    if len(found) > PAGE or len(read) >= READ_MAX:
        behind = _behind(found[PAGE - 1] if len(found) > PAGE else read[-1])
    return _listed(queue, now_ns, wanted, found[:PAGE], len(read), behind)


def sources_of(queue: QueueTable) -> tuple[TableId, ...]:
    """The queues whose dead messages come here."""
    return tuple(TableId(db or queue.id.db, name) for db, name in queue.policy.dead_letter_of)


def _is_wanted(queue: QueueTable, wanted: MessageQuery, message: ShownMessage, now_ns: int) -> bool:
    in_state = wanted.state == "dead" or message.state(queue, now_ns) == wanted.state
    has_reason = wanted.reason.casefold() in (message.reason or "").casefold()
    return message.time_acked_ns is None and in_state and has_reason


def _listed(
    queue: QueueTable,
    now_ns: int,
    wanted: MessageQuery,
    messages: Sequence[ShownMessage] = (),
    read: int = 0,
    behind: PageStart | None = None,
    problem: str = "",
) -> MessageList:
    columns = () if queue.group_index is None else tuple(column.name for column in queue.group_columns)
    indexed = tuple(column.name for column in queue.indexed)
    place = queue.reason is not None, columns, indexed, queue.dead_letter, sources_of(queue)
    return MessageList(queue.id, now_ns, wanted, tuple(messages), read, behind, *place, problem)


def _in_group(queue: QueueTable, group: Sequence[str]) -> str | None:
    """The condition for the messages of a group; None: there can be none."""
    if queue.group_index is None or len(group) != len(queue.group_columns):
        return None
    equal: list[str] = []
    for column, value in zip(queue.group_columns, group, strict=True):
        literal = literal_of(column.kind, value.encode())
        if value and literal is None:
            return None
        equal.append(f"{quoted(column.name)} = {literal}" if value else f"{quoted(column.name)} IS NULL")
    return " AND ".join(equal)


class _Reading:
    """Reads one page."""

    def __init__(self, counting: Counting, queue: QueueTable, wanted: MessageQuery, in_group: str | None) -> None:
        self._counting, self._queue, self._wanted = counting, queue, wanted
        self._now_ns = 0
        index = queue.scan_index if in_group is None else queue.group_index
        self._index = f"{qualified(queue.id)} FORCE INDEX ({quoted(index or '')})"
        self._own = "time_acked IS NULL" if in_group is None else f"time_acked IS NULL AND {in_group}"
        self._descends = in_group is None and queue.scan_descending
        self._is_ordered = in_group is not None or queue.scan_ties_by_id
        self._words = {"columns": columns_of(queue), "index": self._index}
        filtered = bool(wanted.reason) or wanted.state not in DUE
        self._limit = READ_MAX if filtered else PAGE + 1

    async def page(self) -> MessageList:
        self._now_ns = await self._counting.now_ns()
        read, unread = await self._rows()
        found = [message for message in read if _is_wanted(self._queue, self._wanted, message, self._now_ns)]
        behind = unread
        if len(found) > PAGE:
            behind = _behind(found[PAGE - 1])
        elif len(read) >= self._limit:
            behind = _behind(read[-1])
        if behind is not None and not self._is_ordered:
            return _listed(self._queue, self._now_ns, self._wanted, found[:PAGE], len(read), problem=UNORDERED)
        return _listed(self._queue, self._now_ns, self._wanted, found[:PAGE], len(read), behind)

    async def _rows(self) -> tuple[list[ShownMessage], PageStart | None]:
        """The next messages, up to the limit, and the first priority that was not read."""
        place, found = self._wanted.after, list[ShownMessage]()
        if place is None:
            place = await self._next("")
        for _ in range(PRIORITIES_MAX):
            if place is None or len(found) >= self._limit:
                break
            found += await self._of_priority(place, self._limit - len(found))
            place = await self._next(f" AND priority > {place.priority}")
        return found, place

    async def _next(self, behind: str) -> PageStart | None:
        priority = await next_priority(self._counting, self._index, self._own + behind)
        return None if priority is None else PageStart(int(priority))

    async def _of_priority(self, place: PageStart, limit: int) -> list[ShownMessage]:
        """The messages of a priority behind a place, in the order of the index."""
        found: list[ShownMessage] = []
        for range_, order in self._ranges(place):
            if len(found) < limit:
                condition = f"{self._own} AND priority = {place.priority} AND {range_}"
                left = limit - len(found)
                text = sql("listed_messages", range=condition, order=order, limit=left, **self._words)
                found += [message_of(self._queue, row) for row in await self._counting.rows(text)]
        return found

    def _ranges(self, place: PageStart) -> list[tuple[str, str]]:
        """The ranges of times behind a place, each with its order, so that none has to be sorted. MySQL sorts a range
        that it reads against a descending index, so such an index is read from its latest time."""
        is_due, time_ns = self._wanted.state in DUE, place.time_next_ns
        after_ns, until_ns = (
            EARLIEST if is_due else self._now_ns,
            self._now_ns if self._wanted.state == "ready" else LATEST,
        )
        order, by_id = ("time_next DESC" if self._descends else "time_next"), "NULL"
        if self._is_ordered:
            order, by_id = f"{order}, id", "id"
        untimed = [("time_next IS NULL", by_id)] if is_due else []
        same = [] if self._descends else untimed
        if place.key:
            literal = literal_of(self._queue.id_kind, bytes.fromhex(place.key))
            time = "time_next IS NULL" if time_ns is None else f"time_next = {time_ns}"
            same = [(time if literal is None else f"{time} AND id > {literal}", by_id)]
            if self._descends and time_ns is None:
                return same
        if time_ns is not None and self._descends:
            until_ns = time_ns - 1
        elif time_ns is not None:
            after_ns = time_ns
        later = (f"time_next > {after_ns} AND time_next <= {until_ns}", order)
        return [*same, later, *(untimed if self._descends else ())]


def _behind(message: ShownMessage) -> PageStart:
    return PageStart(message.priority, message.time_next_ns, message.key)
