"""SHOW QUEUES and SHOW STREAMS: the queues and streams that the client may see, and their state.

The server decides what the client may see: the tables in information_schema and the connections in
the process list, both read on the client's own session. An unknown value is NULL, and the row names
the estimated ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.model import NS_PER_S, TableId
from engine.queue_table import BrokenTable, QueueTable
from engine.quoting import text_literal
from engine.service import Engine
from engine.store.dead_letter_plan import Chain, closed_to
from engine.store.port import StoreError
from proxy.session.internal_queries import Refused, from_hex, rows
from proxy.session.queries import sql
from proxy.statements.depth import ClientCounting, Depth, count_unacknowledged, measure
from proxy.statements.results import COUNT, NAME, RATE, SECONDS, TEXT, WORDS, ResultColumn, ResultSet
from proxy.statements.semaphores import missing_semaphores
from proxy.wire.packets import ServerError, parse_err
from sqlrewrite.queue_statements import ShowQueues

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

QUEUES_MAX = 1_000
"""Queues that one SHOW QUEUES shows; each costs some milliseconds."""

CONNECTIONS_MAX = 20_000
"""Connections of the server that SHOW STREAMS reads."""

WINDOW_NS = 60 * NS_PER_S
"""The enqueue rate is measured from the sample that is at least this old, or else from the oldest
one."""

FORGET_NS = 600 * NS_PER_S
"""A sample older than this is not used."""

UNCHANGED = "latin-1"
"""A codec by which a LIKE pattern keeps the client's bytes."""

APART_NS = 5 * NS_PER_S
"""The least distance of the samples that are kept, so that a few cover the window."""

QUEUE_COLUMNS = (
    ResultColumn("Database", NAME),
    ResultColumn("Name", NAME),
    ResultColumn("State", NAME),
    ResultColumn("Ready", COUNT),
    ResultColumn("Scheduled", COUNT),
    ResultColumn("In_flight", COUNT),
    ResultColumn("Dead", COUNT),
    ResultColumn("Acknowledged", COUNT),
    ResultColumn("Oldest_ready_s", SECONDS),
    ResultColumn("Enqueued_per_s", RATE),
    ResultColumn("Acked_per_s", RATE),
    ResultColumn("Subscribers", COUNT),
    ResultColumn("Estimated", WORDS),
    ResultColumn("Problem", TEXT),
)

QUEUE = ResultColumn("Queue", WORDS)
SUMMARY_COLUMNS = (
    QUEUE,
    *(column for column in QUEUE_COLUMNS if column.name in {"State", "Ready", "Scheduled", "In_flight", "Dead"}),
    ResultColumn("Problem", NAME),
)
"""Without FULL: what fits a terminal of 80 columns, unless the names are long."""

OTHER_UNIT = (
    "a message has a time_next that is no time in nanoseconds since 1970, so it is due at once:"
    " multiply seconds by 1000000000"
)

SEE_FULL = "see FULL"
"""Stands for a problem, whose text is long."""

STREAM_COLUMNS = (
    ResultColumn("Id", COUNT),
    ResultColumn("User", NAME),
    ResultColumn("Host", WORDS),
    ResultColumn("Program", WORDS),
    ResultColumn("Queue", WORDS),
    ResultColumn("Condition", TEXT),
    ResultColumn("Delivered", COUNT),
    ResultColumn("In_flight", COUNT),
    ResultColumn("Credit", COUNT),
    ResultColumn("Since", SECONDS, "NOW() - INTERVAL ROUND({}) SECOND"),
    ResultColumn("Idle_s", SECONDS),
)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The greatest id of a table at one time."""

    at_ns: int
    newest_id: int


@dataclass(frozen=True, slots=True)
class RunningStream:
    """A running stream."""

    connection_id: int
    table: TableId | None
    row: tuple[object, ...]
    """The columns of SHOW STREAMS behind `User`."""


class Show:
    """Carries out SHOW QUEUES and SHOW STREAMS."""

    def __init__(self, engine: Engine, sessions: Callable[[], Iterable[ClientSession]]) -> None:
        self._engine = engine
        self._sessions = sessions
        self._samples: dict[TableId, deque[_Sample]] = {}

    async def queues(self, session: ClientSession, statement: ShowQueues) -> ResultSet:
        """The message tables that the client may see, and their state."""
        tables = await visible_tables(session, statement.db, statement.like)
        if len(tables) > QUEUES_MAX:
            raise ServerError(1105, "HY000", f"There are more than {QUEUES_MAX} queues: narrow it down by FROM or LIKE")
        subscribers = {queue.id: len(dispatcher.subscribers) for queue, dispatcher in self._engine.runners()}
        now_ns = time.monotonic_ns()
        refused = {
            queue.id: dispatcher.parts.measures.problems.texts(now_ns, of_rows=True)
            for queue, dispatcher in self._engine.runners()
        }
        unread: dict[str, list[str]] = {}
        full = [await self._row(session, table, subscribers, unread, refused) for table in tables]
        if statement.with_problems:
            full = [row for row in full if row[-1] is not None]
        return ResultSet(QUEUE_COLUMNS, full) if statement.full else _summary(full)

    async def streams(self, session: ClientSession) -> ResultSet:
        """The running streams that the client may see."""
        visible = await rows(session, sql("visible_connections", limit=CONNECTIONS_MAX))
        users = {int(number or 0): from_hex(user) for number, user in visible}
        running = [running_stream(session) for session in self._sessions() if session.stream is not None]
        seen = sorted(
            (stream for stream in running if stream.connection_id in users), key=lambda stream: stream.connection_id
        )
        return ResultSet(
            STREAM_COLUMNS, [[stream.connection_id, users[stream.connection_id], *stream.row] for stream in seen]
        )

    async def _row(
        self,
        session: ClientSession,
        table: TableId,
        subscribers: Mapping[TableId, int],
        unread: dict[str, list[str]],
        refused: Mapping[TableId, Sequence[str]],
    ) -> list[object]:
        """`unread`: the results of `_unread_parts` for the databases of this statement. `refused`: what the
        server refuses of each queue."""
        try:
            found = await self._engine.inspect(table)
        except StoreError as error:
            return _bare_row(table, "unknown", str(error))
        match found:
            case QueueTable() as queue:
                if queue.after_batch is not None and table.db not in unread:
                    unread[table.db] = await self._unread_parts(session, table.db)
                waits = [*refused.get(queue.id, ()), *(unread[table.db] if queue.after_batch is not None else ())]
                return await self._queue_row(session, queue, subscribers.get(queue.id, 0), waits)
            case BrokenTable() as broken:
                return _bare_row(table, "broken", "; ".join(broken.problems))
            case _:
                return _bare_row(table, "unknown", "the account that was given to --backend may not see it")

    async def _queue_row(
        self, session: ClientSession, queue: QueueTable, subscribers: int, waits: Sequence[str]
    ) -> list[object]:
        state = "paused" if queue.policy.paused else "running"
        problems = [*queue.warnings, *waits, *await self._dead_letter_problems(queue)]
        if queue.scan_index is None:
            return _bare_row(queue.id, state, "; ".join(problems))
        try:
            depth = await measure(ClientCounting(session), queue)
            dead = await self._dead(session, queue, depth)
            problems += await missing_semaphores(session, queue)
        except Refused as refused:
            return _bare_row(queue.id, state, "; ".join([parse_err(refused.payload).message, *problems]))
        problems += [OTHER_UNIT] if depth.other_unit else []
        return [
            queue.id.db,
            queue.id.name,
            state,
            depth.ready,
            depth.scheduled,
            depth.in_flight,
            dead,
            depth.acknowledged,
            depth.oldest_ready_s,
            self._enqueued_per_s(queue, depth),
            depth.acked_per_s,
            subscribers,
            ", ".join(sorted(depth.estimated)),
            "; ".join(problems) or None,
        ]

    async def _unread_parts(self, session: ClientSession, db: str) -> list[str]:
        """Why all follow-ups of a database wait, if they do: a table that the client may see has parts that
        cannot be read."""
        problems: list[str] = []
        for table in await visible_tables(session, db, None):
            try:
                found = await self._engine.inspect(table)
            except StoreError:
                continue  # Its own row shows the error.
            if isinstance(found, BrokenTable) and found.unread_parts:
                problems.append(f"follow-ups wait, because the parts in {table} cannot be read: {found.problems[0]}")
        return problems

    async def _dead_letter_problems(self, queue: QueueTable) -> list[str]:
        """Why its dead messages are not moved, if they are not."""
        if queue.dead_letter is None:
            return []
        try:
            found = await self._engine.inspect(queue.dead_letter)
            if problem := closed_to(queue.id, queue.dead_letter, found):
                return [problem]
            assert isinstance(found, QueueTable)
            chain = Chain(queue.id, found)
            while chain.onward is not None:
                chain.add(await self._engine.inspect(chain.onward))
        except StoreError as error:
            return [str(error)]
        return [chain.problem] if chain.problem else []

    async def _dead(self, session: ClientSession, queue: QueueTable, depth: Depth) -> int | None:
        """The number of messages in its dead-letter table; None without one, or if the client may
        not read it."""
        if queue.dead_letter is None:
            return None
        table = await self._engine.inspect(queue.dead_letter)
        if not isinstance(table, QueueTable):
            return None
        try:
            count, exact = await count_unacknowledged(ClientCounting(session), table)
        except Refused:
            return None
        depth.estimated |= set() if exact else {"dead"}
        return count

    def _enqueued_per_s(self, queue: QueueTable, depth: Depth) -> float | None:
        """The enqueue rate of the last minute, or since the first sample. None before there was a
        sample, and for a dead-letter table, whose ids come from other queues."""
        table = queue.id
        if depth.newest_id is None or queue.policy.dead_letter_of:
            return None
        if len(self._samples) > QUEUES_MAX and table not in self._samples:
            self._samples.clear()
        samples = self._samples.setdefault(table, deque())
        oldest_ns, window_ns = depth.now_ns - FORGET_NS, depth.now_ns - WINDOW_NS
        while samples and (samples[0].at_ns < oldest_ns or (len(samples) > 1 and samples[1].at_ns <= window_ns)):
            samples.popleft()
        before = samples[0] if samples else None
        if before is None or samples[-1].at_ns <= depth.now_ns - APART_NS:
            samples.append(_Sample(depth.now_ns, depth.newest_id))
        if before is None or before.at_ns >= depth.now_ns:
            return None
        return max(0, depth.newest_id - before.newest_id) * NS_PER_S / (depth.now_ns - before.at_ns)


def _summary(full: Sequence[Sequence[object]]) -> ResultSet:
    """The columns that fit a terminal."""
    names = [column.name for column in QUEUE_COLUMNS]
    places = [names.index(column.name) for column in SUMMARY_COLUMNS[1:-1]]
    shown = [
        [f"{row[0]}.{row[1]}", *(row[place] for place in places), None if row[-1] is None else SEE_FULL] for row in full
    ]
    return ResultSet(SUMMARY_COLUMNS, shown)


def _bare_row(table: TableId, state: str, problem: str) -> list[object]:
    return [table.db, table.name, state, *[None] * (len(QUEUE_COLUMNS) - 4), problem]


async def visible_tables(session: ClientSession, db: str | None, like: bytes | None) -> list[TableId]:
    """The message tables that the client may see, of a database or with a name like a literal."""
    narrowed = "" if db is None else f" AND table_schema = {text_literal(db)}"
    if like is not None:
        narrowed += f" AND table_name LIKE CONVERT({like.decode(UNCHANGED)} USING utf8mb4)"
    text = sql("visible_queues", narrowed=narrowed, limit=QUEUES_MAX + 1)
    return [TableId(from_hex(schema), from_hex(name)) for schema, name in await rows(session, text.encode(UNCHANGED))]


def peer_of(session: ClientSession) -> tuple[str, str | None]:
    """The address of the client, and its name for itself."""
    peer = session.client.get_extra_info("peername")
    host = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "localhost"
    return host, session.info.response.program_name if session.info else None


def running_stream(session: ClientSession) -> RunningStream:
    """The present state of the session's stream."""
    stream = session.stream
    assert stream is not None
    standing = stream.standing
    now_s = time.monotonic()
    row = (
        *peer_of(session),
        str(standing.table) if standing else None,
        stream.condition,
        stream.rows,
        standing.in_flight if standing else None,
        standing.credit if standing else None,
        round(now_s - stream.since_s, 3),
        round(now_s - stream.last_row_s, 3),
    )
    return RunningStream(session.connection_id, standing.table if standing else None, row)
