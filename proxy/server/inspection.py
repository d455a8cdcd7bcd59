"""What the pages of a queue and of a message show beyond the metrics: read in the database by the
engine's account, and from the process's log.

Each read is bounded: messages by an index, one message by its id. All requests of SHARED_S share one
reading, and few are under way at once. Payloads are read only if `admin_show_payload` is on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.catalog.directive import Directive
from engine.catalog.directives import DIRECTIVES
from engine.model import NS_PER_S, TableId
from engine.queue_table import BrokenTable, QueueTable
from engine.quoting import qualified, quoted
from engine.service import Engine
from engine.store.port import StoreError
from engine.store.roster import Introduction
from proxy.server.markup import duration
from proxy.server.message_list import MessageList, MessageQuery, list_messages, sources_of
from proxy.server.message_rows import (
    TEXT_MAX,
    VALUE_MAX,
    ShownMessage,
    as_text,
    columns_of,
    decoded,
    id_literal,
    message_of,
)
from proxy.session.queries import sql
from proxy.statements.batches import Batches, ShownBatch
from proxy.statements.deliveries import Deliveries, InFlight
from proxy.statements.depth import EngineCounting
from proxy.statements.message_groups import MessageGroups, ShownGroup
from proxy.statements.proxies import connections_of, read_published, slot_holders
from proxy.statements.semaphore_counts import ShownSemaphore, read_semaphores

GROUPS_MAX = 20
READ_MAX = 2_000
"""Rows that are read to find the greatest groups and the most frequent reasons: some milliseconds."""
SHARED_S = 4.0
"""For so long, the pages show the same reading."""
BUSY = "Too many pages are being read at once: try again in a moment."
READINGS_MAX = 50
"""Readings that are kept or under way."""
READ_AT_ONCE = 2
"""Readings under way, of the connections that the engine has for all queues: settings allow no fewer."""
HELD_READ_MAX = 1_000
"""Messages in flight of which the longest held ones are listed."""
EVENTS_MAX = 20
EVENT_QUEUES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Question:
    """What a page is to show: a queue, or of it the messages with these ids, or a list of its messages; or the
    `proxies` of the server."""

    table: TableId
    ids: tuple[str, ...] = ()
    listed: MessageQuery | None = None
    proxies: bool = False


PROXIES = Question(TableId("", ""), proxies=True)


@dataclass(frozen=True, slots=True)
class ShownProxy:
    """A proxy of the server, as SHOW PROXIES shows it; None: it is not published."""

    slot: int | None
    name: str | None
    version: str | None
    since_ns: int | None
    connection: int | None
    streams: int | None = None
    in_flight: int | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is this proxy."""
        return self.streams is not None


@dataclass(frozen=True, slots=True)
class Count:
    """So many of the messages that were read have these values."""

    messages: int
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What messages of a queue wait for in company."""

    groups: tuple[ShownGroup, ...] = ()
    """Of a queue with a group index, in the order of priority."""
    semaphores: tuple[ShownSemaphore, ...] = ()
    batches: tuple[ShownBatch, ...] = ()
    problem: str = ""
    """Why they could not be read."""


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """A queue."""

    table: TableId
    now_ns: int
    is_paused: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    group_columns: tuple[str, ...] = ()
    groups: tuple[Count, ...] = ()
    """Of the first messages, the greatest first."""
    waiting: Waiting = Waiting()
    reasons: tuple[Count, ...] = ()
    dead_letter: TableId | None = None
    sources: tuple[TableId, ...] = ()
    """The queues whose dead messages come here."""
    problems: tuple[str, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    """Of the first HELD_READ_MAX by their deadlines, at any proxy."""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """Messages by their ids, one at least."""

    table: TableId
    now_ns: int
    messages: tuple[ShownMessage, ...]
    state: str
    """Of the first one."""
    sources: tuple[TableId, ...]
    """Of dead letters: the queues that they may have come from."""
    payload: tuple[tuple[str, str | None], ...] | None
    """The columns of the application in the first one; None: they are not shown."""


Details = QueueDetails | MessageDetails | MessageList


@dataclass(frozen=True, slots=True)
class Inspected:
    """The answer to a question. `details` is None if there is no such queue or message; `problem`
    is then the reason, if there is one."""

    details: Details | None
    problem: str = ""
    events: tuple[str, ...] = ()
    """Warnings and errors of the log that concern the queue, the last one first."""
    proxies: tuple[ShownProxy, ...] = ()
    now_ns: int = 0
    """The server's clock, for `proxies`."""


class RecentEvents(logging.Handler):
    """Keeps the last warnings and errors of each queue."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._events: dict[str, deque[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, if it concerns a queue."""
        queue = getattr(record, "queue", None)
        if queue is None or (queue not in self._events and len(self._events) >= EVENT_QUEUES_MAX):
            return
        at = logging.Formatter().formatTime(record, "%Y-%m-%d %H:%M:%S %z")
        kept = self._events.setdefault(queue, deque(maxlen=EVENTS_MAX))
        kept.appendleft(f"{at} {getattr(record, 'event', '')}: {record.getMessage()}"[:500])

    def of(self, table: TableId) -> tuple[str, ...]:
        """Those of a queue, the last one first."""
        return tuple(self._events.get(str(table), ()))


class Inspector:
    """Answers questions about queues and messages."""

    def __init__(
        self, engine: Engine, introduction: Introduction, deliveries: Deliveries, *, show_payload: bool
    ) -> None:
        """`introduction`: what this proxy publishes of itself."""
        self._deliveries = deliveries
        self._engine, self._introduction, self._show_payload = engine, introduction, show_payload
        self._since_s = time.monotonic()
        self._events = RecentEvents()
        self._readings: dict[Question, tuple[float, asyncio.Task[Inspected]]] = {}
        """Until when each may be shown, in seconds of the loop's clock."""
        self._message_groups, self._batches = MessageGroups(engine), Batches(engine)
        self._free = asyncio.Semaphore(READ_AT_ONCE)
        logging.getLogger().addHandler(self._events)

    def close(self) -> None:
        """Keep no more events."""
        logging.getLogger().removeHandler(self._events)

    async def inspect(self, question: Question) -> Inspected:
        """The answer to a question. All pages of SHARED_S share one reading, except of messages by their ids."""
        now_s = asyncio.get_running_loop().time()
        until_s, task = self._readings.get(question, (0.0, None))
        if task is None or (task.done() and now_s >= until_s):
            if len(self._readings) >= READINGS_MAX:
                self._readings = {asked: kept for asked, kept in self._readings.items() if not kept[1].done()}
            if len(self._readings) >= READINGS_MAX:
                return Inspected(None, BUSY)
            task = asyncio.get_running_loop().create_task(self._answer(question), name="page")
            self._readings[question] = now_s + (0.0 if question.ids else SHARED_S), task
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Show no reading that was made before now."""
        self._readings = {asked: (0.0, task) for asked, (_, task) in self._readings.items() if not task.done()}

    async def _answer(self, question: Question) -> Inspected:
        async with self._free:
            if question.proxies:
                return await self._read_roster()
            events = self._events.of(question.table)
            queue = next((queue for queue, _ in self._engine.runners() if queue.id == question.table), None)
            if queue is None:
                return Inspected(None, await self._why_none(question.table), events)
            try:
                return Inspected(await self._details(queue, question), "", events)
            except StoreError as error:
                return Inspected(None, str(error), events)

    async def _details(self, queue: QueueTable, question: Question) -> Details | None:
        if question.ids:
            return await self._messages(queue, question.ids)
        if question.listed is not None:
            searched = queue if self._show_payload else replace(queue, indexed=())
            return await list_messages(EngineCounting(self._engine), searched, question.listed)
        return await self._queue(queue)

    async def _read_roster(self) -> Inspected:
        own = self._engine.roster.slot
        connections: Mapping[int, int] = {}
        problem, now_ns = "", 0
        try:
            rows, now_ns = await self._engine.read(slot_holders())
            connections = connections_of(*rows)
        except StoreError as error:
            problem = str(error)
        published = await read_published(self._engine, list(connections.values()))
        shown = [] if own in connections else [self._own(now_ns, None)]
        for slot, connection in connections.items():
            if slot == own:
                shown.append(self._own(now_ns, connection))
            else:
                found = published.get(connection) or Introduction()
                place = (found.name or None, found.version or None, found.since_ns)
                shown.append(ShownProxy(slot, *place, connection))
        return Inspected(None, problem, proxies=tuple(shown), now_ns=now_ns)

    def _own(self, now_ns: int, connection: int | None) -> ShownProxy:
        dispatchers = [dispatcher for _, dispatcher in self._engine.runners()]
        return ShownProxy(
            self._engine.roster.slot,
            self._introduction.name,
            self._introduction.version,
            now_ns - round((time.monotonic() - self._since_s) * NS_PER_S) if now_ns else None,
            connection,
            sum(len(dispatcher.subscribers) for dispatcher in dispatchers),
            sum(len(dispatcher.parts.leases) for dispatcher in dispatchers),
        )

    async def _why_none(self, table: TableId) -> str:
        if not table.name:
            return ""
        try:
            found = await self._engine.inspect(table)
        except StoreError as error:
            return str(error)
        return "; ".join(found.problems) if isinstance(found, BrokenTable) else ""

    async def _queue(self, queue: QueueTable) -> QueueDetails:
        measures = next(found.parts.measures for other, found in self._engine.runners() if other.id == queue.id)
        details = QueueDetails(
            queue.id,
            0,
            is_paused=queue.policy.paused,
            settings=settings_of_queue(queue),
            columns=queue.default_columns,
            group_columns=tuple(column.name for column in queue.group_columns[: queue.policy.turn_values]),
            dead_letter=queue.dead_letter,
            sources=sources_of(queue),
            problems=(*queue.warnings, *queue.advice, *measures.problems.texts(time.monotonic_ns())),
        )
        if queue.scan_index is None:
            return details
        index = f"{qualified(queue.id)} FORCE INDEX ({quoted(queue.scan_index)})"
        reason = () if queue.reason is None else (queue.reason.text,)
        in_flight = await self._deliveries.of_queue(queue, EngineCounting(self._engine), HELD_READ_MAX)
        return replace(
            details,
            in_flight=tuple(in_flight),
            groups=await self._counts(index, details.group_columns),
            waiting=await self._waiting(queue),
            reasons=await self._counts(index, reason, known=True),
        )

    async def _waiting(self, queue: QueueTable) -> Waiting:
        """What messages wait for in company. That this cannot be read is no reason to show nothing of the queue."""
        counting = EngineCounting(self._engine)
        try:
            return Waiting(
                tuple(await self._message_groups.read(counting, queue, GROUPS_MAX) if queue.group_index else ()),
                tuple(await read_semaphores(counting, queue, GROUPS_MAX) if queue.policy.semaphores else ()),
                tuple(
                    await self._batches.read(counting, queue, GROUPS_MAX) if queue.batch or queue.after_batch else ()
                ),
            )
        except StoreError as error:
            return Waiting(problem=str(error))

    async def _counts(self, index: str, columns: tuple[str, ...], *, known: bool = False) -> tuple[Count, ...]:
        """How the first messages are divided by these columns. `known`: NULL does not count."""
        if not columns:
            return ()
        text = sql(
            "shown_groups",
            values=", ".join(as_text(quoted(column), TEXT_MAX) for column in columns),
            columns=", ".join(map(quoted, columns)),
            index=index,
            read=READ_MAX,
            condition=" AND ".join(f"{quoted(column)} IS NOT NULL" for column in columns) if known else "TRUE",
            limit=GROUPS_MAX,
        )
        return tuple(
            Count(int(count or 0), tuple(map(decoded, values))) for count, *values in (await self._engine.read(text))[0]
        )

    async def _messages(self, queue: QueueTable, ids: Sequence[str]) -> MessageDetails | None:
        literals = [literal for id_ in ids if (literal := id_literal(queue, id_)) is not None]
        if not literals:
            return None
        own = {"priority", "epoch", "time_next", "time_acked"}
        columns = [name for name in queue.default_columns if name not in own] if self._show_payload else []
        text = sql(
            "shown_messages",
            columns=columns_of(queue) + "".join(f", {as_text(quoted(name), VALUE_MAX)}" for name in columns),
            table=qualified(queue.id),
            id_index=quoted(queue.id_index),
            ids=", ".join(literals),
            limit=len(literals),
        )
        rows, now_ns = await self._engine.read(text)
        if not rows:
            return None
        own_columns = len(rows[0]) - len(columns)
        messages = tuple(message_of(queue, row[:own_columns]) for row in rows)
        payload = map(decoded, rows[0][own_columns:])
        shown = tuple(zip(columns, payload, strict=True)) if self._show_payload else None
        return MessageDetails(queue.id, now_ns, messages, messages[0].state(queue, now_ns), sources_of(queue), shown)


def settings_of_queue(queue: QueueTable) -> tuple[tuple[str, str], ...]:
    """All options of a queue, for people."""
    in_full = {"dead_letter": queue.dead_letter, "dead_letter_of": sources_of(queue)}
    return tuple(
        (one.option, _shown(one, in_full.get(one.key, one.value(queue.policy)))) for one in DIRECTIVES.values()
    )


def _shown(directive: Directive, value: Any) -> str:
    if isinstance(value, int) and directive.field.endswith("_ns"):
        return duration(value / NS_PER_S)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return directive.written(value) or "none"
