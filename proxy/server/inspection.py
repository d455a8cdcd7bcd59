"""What the pages of a queue and of a message show beyond the metrics: read in the database by the
engine's account, and from the process's log.

Each read is bounded: the first messages by the scan index, one message by its id. All requests of
SHARED_S share one reading of a queue. Payloads are read only if `admin_show_payload` is on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.model import NS_PER_S, TableId
from engine.queue_table import BrokenTable, IdKind, QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.service import Engine
from engine.store.port import StoreError
from engine.store.roster import Introduction
from proxy.server.markup import duration
from proxy.session.queries import sql
from proxy.statements.deliveries import Deliveries, InFlight
from proxy.statements.depth import EngineCounting
from proxy.statements.proxies import connections_of, read_published, slot_holders

MESSAGES_MAX = 50
"""Messages that a queue's page lists."""
GROUPS_MAX = 20
READ_MAX = 2_000
"""Rows that are read to find the greatest groups and the most frequent reasons: some milliseconds."""
TEXT_MAX = 200
"""Characters of a reason."""
VALUE_MAX = 2_000
"""Characters of each column of a payload."""
SHARED_S = 4.0
QUEUES_KEPT = 50
HELD_READ_MAX = 1_000
"""Messages in flight of which the longest held ones are listed."""
EVENTS_MAX = 20
EVENT_QUEUES_MAX = 1_000

Row = Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Question:
    """What a page is to show: a queue, and if `message` is given, the message with this id; or the
    `proxies` of the server."""

    table: TableId
    message: str | None = None
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
class ShownMessage:
    """A message without its payload."""

    id: str
    epoch: int
    priority: int
    time_next_ns: int | None
    reason: str | None = None
    reason_at: str | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """So many of the messages that were read have these values."""

    messages: int
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """A queue."""

    table: TableId
    now_ns: int
    settings: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    group_columns: tuple[str, ...] = ()
    groups: tuple[Count, ...] = ()
    messages: tuple[ShownMessage, ...] = ()
    reasons: tuple[Count, ...] = ()
    dead_letter: TableId | None = None
    sources: tuple[TableId, ...] = ()
    """The queues whose dead messages come here."""
    problems: tuple[str, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    """Of the first HELD_READ_MAX by their deadlines, at any proxy."""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """A message by its id, with `id_literal` for SQL."""

    table: TableId
    now_ns: int
    id_literal: str
    message: ShownMessage
    time_acked_ns: int | None
    lease_ns: int | None
    payload: tuple[tuple[str, str | None], ...] | None
    """The columns of the application; None: they are not shown."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The answer to a question. `details` is None if there is no such queue or message; `problem`
    is then the reason, if there is one."""

    details: QueueDetails | MessageDetails | None
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
        self._roster: tuple[float, asyncio.Task[Inspected]] | None = None
        self._readings: dict[TableId, tuple[float, asyncio.Task[QueueDetails]]] = {}
        logging.getLogger().addHandler(self._events)

    def close(self) -> None:
        """Keep no more events."""
        logging.getLogger().removeHandler(self._events)

    async def inspect(self, question: Question) -> Inspected:
        """The answer to a question."""
        events = self._events.of(question.table)
        if question.proxies:
            return await self._proxies()
        queue = next((queue for queue, _ in self._engine.runners() if queue.id == question.table), None)
        if queue is None:
            return Inspected(None, await self._why_none(question.table), events)
        try:
            details = await (
                self._shared(queue) if question.message is None else self._message(queue, question.message)
            )
        except StoreError as error:
            return Inspected(None, str(error), events)
        return Inspected(details, "", events)

    async def _proxies(self) -> Inspected:
        """The proxies of the server, read at most once in SHARED_S."""
        clock = asyncio.get_running_loop().time
        if self._roster is None or clock() >= self._roster[0]:
            task = asyncio.get_running_loop().create_task(self._read_roster(), name="page of the proxies")
            self._roster = (clock() + SHARED_S, task)
        return await asyncio.shield(self._roster[1])

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

    async def _shared(self, queue: QueueTable) -> QueueDetails:
        """Its details, read at most once in SHARED_S, however many pages are open."""
        clock = asyncio.get_running_loop().time
        until_s, task = self._readings.get(queue.id, (0.0, None))
        if task is None or clock() >= until_s:
            if len(self._readings) >= QUEUES_KEPT:
                self._readings.clear()
            task = asyncio.get_running_loop().create_task(self._queue(queue), name="page of a queue")
            self._readings[queue.id] = (clock() + SHARED_S, task)
        return await asyncio.shield(task)

    async def _queue(self, queue: QueueTable) -> QueueDetails:
        measures = next(found.parts.measures for other, found in self._engine.runners() if other.id == queue.id)
        details = QueueDetails(
            queue.id,
            0,
            settings=settings_of_queue(queue),
            columns=queue.default_columns,
            group_columns=tuple(column.name for column in queue.group_columns[: queue.policy.turn_values]),
            dead_letter=queue.dead_letter,
            sources=tuple(TableId(db or queue.id.db, name) for db, name in queue.policy.dead_letter_of),
            problems=(*queue.warnings, *queue.advice, *measures.problems.texts(time.monotonic_ns())),
        )
        if queue.scan_index is None:
            return details
        index = f"{qualified(queue.id)} FORCE INDEX ({quoted(queue.scan_index)})"
        values = {"id": _shown_id(queue), "index": index, "descending": " DESC" if queue.scan_descending else ""}
        text = sql("shown_messages", **values, **_reason(queue), limit=MESSAGES_MAX)
        rows, now_ns = await self._engine.read(text)
        messages = tuple(_message_of(queue, row[0], (row[1], row[2], row[3], row[4], row[5])) for row in rows)
        reason = () if queue.reason is None else (queue.reason.text,)
        in_flight = await self._deliveries.of_queue(queue, EngineCounting(self._engine), HELD_READ_MAX)
        return replace(
            details,
            now_ns=now_ns,
            messages=messages,
            in_flight=tuple(in_flight),
            groups=await self._counts(index, details.group_columns),
            reasons=await self._counts(index, reason, known=True),
        )

    async def _counts(self, index: str, columns: tuple[str, ...], *, known: bool = False) -> tuple[Count, ...]:
        """How the first messages are divided by these columns. `known`: NULL does not count."""
        if not columns:
            return ()
        text = sql(
            "shown_groups",
            values=", ".join(_text(quoted(column), TEXT_MAX) for column in columns),
            columns=", ".join(map(quoted, columns)),
            index=index,
            read=READ_MAX,
            condition=" AND ".join(f"{quoted(column)} IS NOT NULL" for column in columns) if known else "TRUE",
            limit=GROUPS_MAX,
        )
        return tuple(
            Count(int(count or 0), tuple(map(_decoded, values)))
            for count, *values in (await self._engine.read(text))[0]
        )

    async def _message(self, queue: QueueTable, number: str) -> MessageDetails | None:
        if (literal := id_literal(queue, number)) is None:
            return None
        own = {"priority", "epoch", "time_next", "time_acked"}
        columns = [name for name in queue.default_columns if name not in own] if self._show_payload else []
        text = sql(
            "shown_message",
            lease=quoted(queue.lease_column) if queue.lease_column else "NULL",
            **_reason(queue),
            payload="".join(f", {_text(quoted(name), VALUE_MAX)}" for name in columns),
            table=qualified(queue.id),
            id_index=quoted(queue.id_index),
            id=literal,
        )
        rows, now_ns = await self._engine.read(text)
        if not rows:
            return None
        epoch, priority, time_next, time_acked, lease, reason, reason_at, *payload = rows[0]
        message = ShownMessage(
            number, int(epoch or 0), int(priority or 0), _int(time_next), _decoded(reason), _decoded(reason_at)
        )
        shown = tuple(zip(columns, map(_decoded, payload), strict=True)) if self._show_payload else None
        return MessageDetails(queue.id, now_ns, literal, message, _int(time_acked), _int(lease), shown)


def settings_of_queue(queue: QueueTable) -> tuple[tuple[str, str], ...]:
    """All options of a queue, for people."""
    policy = queue.policy

    def time(value_ns: int | None) -> str:
        return "none" if value_ns is None else duration(value_ns / NS_PER_S)

    def or_none(value: object) -> str:
        return "none" if value in (None, 0, ()) else str(value)

    def names(values: Sequence[str] | None) -> str:
        return ", ".join(values or ()) or "none"

    return (
        ("ACK_WAIT", time(policy.ack_wait_ns)),
        ("MIN_BACKOFF", time(policy.min_backoff_ns)),
        ("MAX_BACKOFF", time(policy.max_backoff_ns)),
        ("MAX_ATTEMPTS", or_none(policy.max_attempts)),
        ("DEAD_LETTER", or_none(queue.dead_letter)),
        ("DEAD_LETTER_OF", names([str(TableId(db or queue.id.db, name)) for db, name in policy.dead_letter_of])),
        ("MAX_IN_FLIGHT", or_none(policy.max_in_flight)),
        ("MAX_RATE", or_none(policy.max_rate)),
        ("GROUP_BY", names(policy.group_by)),
        ("GROUP_ORDER", "strict" if policy.group_strict else "none"),
        ("GROUP_LIMIT", or_none(policy.group_limit)),
        ("GROUP_RATE", or_none(policy.group_rate)),
        ("SEMAPHORES", or_none(policy.semaphores)),
        ("BATCH_BY", or_none(policy.batch_by)),
        ("AFTER_BATCH", or_none(policy.after_batch)),
        ("BATCH_ON_DEAD", "hold" if policy.dead_parts_hold else "fire"),
        ("REASON", or_none(policy.reason)),
        ("DELAY_BY", or_none(policy.delay_by)),
        ("LEASE", or_none(policy.lease)),
        ("ON_DISCONNECT", policy.on_disconnect.value),
        ("PAUSED", "yes" if policy.paused else "no"),
        ("PURGE_AFTER", time(policy.purge_after_ns)),
        ("POLLER_INTERVAL", time(policy.poller_interval_ns)),
        ("BATCH_SIZE", str(policy.batch_size)),
        ("CACHE_SIZE", str(policy.cache_size)),
        ("MESSAGE_COLS", names(policy.message_columns)),
    )


def id_literal(queue: QueueTable, number: str) -> str | None:
    """The id as a literal; None: no message can have it. A binary id is in hexadecimal."""
    match queue.id_kind:
        case IdKind.INTEGER:
            digits = number.strip().removeprefix("-")
            return number.strip() if digits.isascii() and digits.isdecimal() and len(digits) <= 20 else None
        case IdKind.BINARY:
            try:
                return f"x'{bytes.fromhex(number).hex()}'"
            except ValueError:
                return None
        case IdKind.TIMESTAMP | IdKind.FLOAT:
            return None  # Their text does not denote them exactly.
        case _:
            return text_literal(number)


def _shown_id(queue: QueueTable) -> str:
    """The expression for an id, read by `_message_of`."""
    if queue.id_kind is IdKind.BINARY:
        return "HEX(id)"
    return _text("id + 0" if queue.id_kind is IdKind.INTEGER else "id", VALUE_MAX)


def _message_of(queue: QueueTable, number: str | None, values: Row) -> ShownMessage:
    epoch, priority, time_next, reason, reason_at = values
    shown = (number or "").lower() if queue.id_kind is IdKind.BINARY else _decoded(number) or ""
    return ShownMessage(
        shown, int(epoch or 0), int(priority or 0), _int(time_next), _decoded(reason), _decoded(reason_at)
    )


def _reason(queue: QueueTable) -> dict[str, str]:
    reason = queue.reason
    at = None if reason is None else reason.at
    return {
        "reason": "NULL" if reason is None else _text(quoted(reason.text), TEXT_MAX),
        "reason_at": "NULL" if at is None else _text(quoted(at), TEXT_MAX),
    }


def _text(value: str, chars: int) -> str:
    """The expression for the beginning of a value, in ASCII. Binary values are taken as UTF-8."""
    text = f"CONCAT({value}, '')"
    start = f"LEFT({text}, {chars})"
    # Of the two texts the server might find no common collation (1267).
    return f"IF(CHARSET({text}) = 'binary', HEX({start}), HEX(CONVERT({start} USING utf8mb4)))"


def _decoded(value: str | None) -> str | None:
    return None if value is None else bytes.fromhex(value).decode("utf-8", "replace")


def _int(value: str | None) -> int | None:
    return None if value is None else int(value)
