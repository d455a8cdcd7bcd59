"""STREAM: proves the client's rights, sends the column packets, and then rows until the stream
ends.

Rights are the client's own. Before the engine delivers anything, the client's session runs
statements that change and return no row: an UPDATE, and a SELECT of the columns. What is denied is
therefore denied by the server in its own words. The SELECT also returns the column packets, which
are passed on as the server wrote them. A prepared STREAM is prepared on the server as that SELECT.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from engine.model import ANYTHING, NS_PER_S, QueueTable, RowFormat, Selection
from engine.packets import frame
from engine.quoting import quoted
from engine.service import Engine
from proxy.session.commit_notices import PreparedStream, Preparing
from proxy.session.internal_queries import (
    UNBOUND,
    Context,
    checked_query,
    definition_seen,
    encodable,
    end_own_transaction,
    not_refused,
    read_context,
    spelled,
)
from proxy.session.prepared import python_values
from proxy.session.queries import sql
from proxy.session.stream import Stream, unforeseen
from proxy.settings import Settings
from proxy.statements.long_statements import LongStatementReader
from proxy.statements.rights import Rights
from proxy.statements.tables import known_table_id, refused_as_client
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.mimic_adapter import Commands
from proxy.wire.packets import ServerError
from sqlrewrite.names import Param, TableName
from sqlrewrite.stream import Star, StreamStatement, parse_stream, shortened

if TYPE_CHECKING:
    from proxy.session.answers import Answer
    from proxy.session.ports import ClientSession
    from proxy.session.prepared import TrackedStatement

log = logging.getLogger(__name__)

COM_PING = bytes([Commands.COM_PING])

CURSOR_FLAGS_AT = 5
PARAMETER_COUNT_AVAILABLE = 0x08


class Streaming:
    """Carries out STREAM."""

    def __init__(self, engine: Engine, settings: Settings, reader: LongStatementReader) -> None:
        self._engine = engine
        self._settings = settings
        self._reader = reader

    async def query(self, session: ClientSession, text: bytes) -> None:
        """A statement as text."""
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        statement = await self._reader.read(session, text, partial(_parse_stream, context))
        if statement.param_count:
            raise UNBOUND.again()
        proof_begun_s = time.monotonic()
        queue = await self._queue(session, context.full_name(statement.table))
        _refuse_endless(statement, in_transaction=was_in_transaction)
        columns = _columns(statement, queue)
        condition = statement.condition.sql() if statement.condition else "TRUE"
        header = await checked_query(session, _select(queue, columns, statement.partitions, condition))
        await self._deliver(
            session,
            queue,
            statement,
            context.row_format(columns, binary=False),
            header,
            proof_begun_s=proof_begun_s,
            was_in_transaction=was_in_transaction,
        )

    async def prepare(self, session: ClientSession, text: bytes) -> None:
        """PREPARE: the server prepares the SELECT of no row."""
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        statement = await self._reader.read(session, text, partial(_parse_stream, context))
        queue = await self._queue(session, context.full_name(statement.table))
        # The SELECT has as many parameters as the statement, so that the server counts and takes
        # them.
        condition = statement.condition
        others = statement.param_count - (condition.param_count if condition else 0)
        where = (condition.template() if condition else "TRUE") + " AND ? IS NULL" * others
        columns = _columns(statement, queue)
        select = _select(queue, columns, statement.partitions, where)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        session.check_interrupted()
        prepared = PreparedStream(queue.id, statement, columns)
        if (encoded := encodable(session, select)) is not None:
            session.forward(bytes([COM_STMT_PREPARE]) + encoded, Preparing(prepared))
        else:
            answer = await spelled(session, select, partial(_prepare_internally, session))
            session.show(answer, Preparing(prepared))

    async def execute(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedStream, payload: bytes
    ) -> None:
        """The execution of a prepared STREAM."""
        attributes = session.classifier.attributes
        execution = own.read_execution(payload, prepared.statement.param_count, attributes=attributes)
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        statement = prepared.statement.bind(python_values(execution, context.codec))
        proof_begun_s = time.monotonic()
        queue = await self._queue(session, TableName(prepared.table.name, prepared.table.db))
        _refuse_endless(statement, in_transaction=was_in_transaction)
        flags = payload[CURSOR_FLAGS_AT] & PARAMETER_COUNT_AVAILABLE  # No cursor: rows are sent as they come.
        plain = payload[:CURSOR_FLAGS_AT] + bytes([flags]) + payload[CURSOR_FLAGS_AT + 1 :]
        plain = own.rearranged(plain, range(prepared.statement.param_count), attributes=attributes)
        session.check_interrupted()
        header = not_refused(await session.internal_command(plain))
        await self._deliver(
            session,
            queue,
            statement,
            context.row_format(prepared.columns, binary=True),
            header,
            proof_begun_s=proof_begun_s,
            was_in_transaction=was_in_transaction,
        )

    async def _queue(self, session: ClientSession, table: TableName) -> QueueTable:
        """The table as the queue that it is now, if the client may stream from it and settle its
        messages."""
        table_id = known_table_id(table)
        seen = await definition_seen(session, table)
        found = self._engine.queue(table_id, text=seen, fresh=seen is None)
        queue = await refused_as_client(session, table, found)
        await checked_query(session, sql("right_to_stream", table=table.quoted(), condition="FALSE"))
        session.classifier.not_hidden(queue.id)
        return queue

    async def _deliver(
        self,
        session: ClientSession,
        queue: QueueTable,
        statement: StreamStatement,
        row_format: RowFormat,
        header: Answer,
        *,
        proof_begun_s: float,
        was_in_transaction: bool,
    ) -> None:
        """Send the column packets, then rows until the stream ends, then the last packet of the
        result."""
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        session.check_interrupted()  # From here on an interruption ends the stream itself.
        *columns, last = header.packets
        stream = Stream(
            session.send,
            last.seq,
            _written_condition(statement),
            proof_max_age_s=self._settings.rights_max_age_s,
            proven_s=proof_begun_s,
        )
        handle = self._engine.subscribe(
            queue,
            stream,
            holder=session.number,
            row_format=row_format,
            limit=_number(statement.limit),
            prefetch=_number(statement.prefetch),
            first_wait_ns=_first_wait_ns(statement),
            selection=_selection(statement, row_format.time_zone),
        )
        stream.attach(handle)
        session.stream = stream
        session.send(b"".join(frame(packet.payload, packet.seq) for packet in columns))  # No row can precede them.
        in_condition = statement.condition.columns if statement.condition else ()
        rights = Rights(queue, [*row_format.columns, *in_condition])
        try:
            await self._attend(session, stream, rights)
        except ConnectionError:
            assert stream.over  # The session ended it when it lost its server.
        except Exception as error:
            log.exception("%r: a stream failed", session)
            stream.refuse(unforeseen(error, session.number))
        finally:
            handle.cancel()
        stream.close(session.capabilities, session.status)
        if not session.in_step:
            session.client.close()

    async def _attend(self, session: ClientSession, stream: Stream, rights: Rights) -> None:
        """Prove the client's rights again and keep the backing connection open, until the stream is
        over and every row that it was given is sent or released."""
        while stream.unproven or not stream.over:
            if stream.unproven:
                begun_s = time.monotonic()
                if (refusal := await rights.lost(session)) is None:
                    stream.proven(begun_s)
                else:
                    stream.refuse(refusal)
            elif not await stream.wait(self._settings.ping_interval_s):
                await session.internal_command(COM_PING)  # Else the server closes the idle connection.


async def _prepare_internally(session: ClientSession, text: bytes) -> Answer:
    return await session.internal_command(bytes([COM_STMT_PREPARE]) + text)


def _select(queue: QueueTable, columns: Sequence[str], partitions: Sequence[str], condition: str) -> str:
    """A SELECT of no row. Its answer describes the columns, or is an error if one is missing or
    denied."""
    table = TableName(queue.id.name, queue.id.db).quoted()
    if partitions:
        table += f" {_partition_clause(partitions)}"
    return sql("stream_columns", columns=", ".join(map(quoted, columns)), table=table, condition=condition)


def _partition_clause(partitions: Sequence[str]) -> str:
    return f"PARTITION ({', '.join(map(quoted, partitions))})"


def _columns(statement: StreamStatement, queue: QueueTable) -> tuple[str, ...]:
    """The names of the columns, with those of the table in place of `*`."""
    named: list[str] = []
    for column in statement.columns:
        if isinstance(column, Star):
            named += queue.default_columns
        else:
            named.append(column)
    return tuple(named)


def _parse_stream(context: Context, text: bytes) -> StreamStatement:
    try:
        text.decode(context.codec)
    except UnicodeDecodeError as error:
        raise ServerError(1300, "HY000", f"Invalid {context.codec} character string in STREAM: {error}") from None
    return parse_stream(text, context.codec, context.mode)


def _refuse_endless(statement: StreamStatement, *, in_transaction: bool) -> None:
    if in_transaction and statement.wait is None and not statement.nowait:
        raise ServerError(
            1105,
            "HY000",
            "A STREAM that does not end cannot run inside a transaction, which it would keep open: "
            "COMMIT first, or bound it (STREAM … LIMIT 10 WAIT 20, or NOWAIT)",
        )


def _selection(statement: StreamStatement, time_zone: str) -> Selection:
    """Which messages the statement selects. Streams with equal selections share a filter group."""
    partitions = tuple(sorted(set(statement.partitions)))
    if statement.condition is None:
        return replace(ANYTHING, partitions=partitions)
    return Selection(statement.condition.sql(), partitions, time_zone)


def _written_condition(statement: StreamStatement) -> str | None:
    """The selection as SHOW STREAMS shows it: as written, with the values of parameters. None: all
    messages."""
    condition = statement.condition
    written = shortened(condition.sql()) if condition and "?" in (statement.written or "") else statement.written
    if not statement.partitions:
        return written
    partitions = _partition_clause(statement.partitions)
    return f"{partitions} WHERE {written}" if written else partitions


def _first_wait_ns(statement: StreamStatement) -> int | None:
    """How long a bounded stream waits for its first message; None for an endless one."""
    if statement.nowait:
        return 0
    if statement.wait is None:
        return None
    assert isinstance(statement.wait, Decimal)
    return int(statement.wait * NS_PER_S)


def _number(value: int | Param | None) -> int | None:
    assert not isinstance(value, Param)
    return value
