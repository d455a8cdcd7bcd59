"""Carrying out the statements that are ours, on behalf of one session.

Each runs as one task while the session relays nothing. Rights are the client's own: whatever the engine will do for a
STREAM, the client's session shows first that it may, by statements on its own connection that do nothing (an UPDATE
of no row, a SELECT of no row), so that what is denied is denied by MySQL in its own words. The SELECT of no row also
gives the column packets, which are passed on as the server wrote them. An ACK is one guarded UPDATE, in the
client's session and transaction, and so are NACK and EXTEND; their answer is the server's.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from engine.model import ANYTHING, NS_PER_S, QueueTable, RowFormat, Selection, TableId
from engine.packets import WireError, frame
from engine.quoting import quoted
from engine.runtime.queues import UnusableQueue
from engine.service import Engine
from engine.store.port import StoreError
from proxy.session.commit_notices import PreparedQueueStatement, PreparedSettle, PreparedStream, Preparing, settled
from proxy.session.internal_queries import (
    NO_DATABASE,
    UNBOUND,
    Context,
    Refused,
    as_packet,
    checked_query,
    definition_seen,
    encodable,
    end_own_transaction,
    keep_next_transaction,
    not_refused,
    read_context,
    spelled,
)
from proxy.session.queries import sql
from proxy.session.stream import SERVER_LOST, Stream, unforeseen
from proxy.settings import Settings
from proxy.statements.administration import Administration
from proxy.statements.long_statements import Reading, in_steps
from proxy.statements.rights import Rights
from proxy.wire.commands import COM_STMT_BULK_EXECUTE, COM_STMT_PREPARE
from proxy.wire.mimic_adapter import Commands
from proxy.wire.packets import ServerError
from proxy.wire.params import execute_id, make_query, parse_execute, python_value, query_text, rearranged
from sqlrewrite.ack import SettleStatement, settle_steps
from sqlrewrite.classify import Verb
from sqlrewrite.errors import SqlError
from sqlrewrite.names import Param, TableName
from sqlrewrite.stream import Star, StreamStatement, parse_stream, shortened

if TYPE_CHECKING:
    from proxy.session.answers import Answer
    from proxy.session.command_classifier import TrackedStatement
    from proxy.session.ports import ClientSession

log = logging.getLogger(__name__)

NO_BULK = ServerError(
    1295, "HY000", "This statement cannot be executed in bulk: execute it once for each set of parameters"
)

SETTLING = (Verb.ACK, Verb.NACK, Verb.EXTEND)
"""The statements that are one UPDATE in the client's transaction."""

COM_PING = bytes([Commands.COM_PING])

CURSOR_FLAGS_AT = 5
PARAMETER_COUNT_AVAILABLE = 0x08


class Statements:
    """Carries out statements with an engine's help."""

    def __init__(self, engine: Engine, settings: Settings, administration: Administration, reading: Reading) -> None:
        self._engine = engine
        self._reading = reading
        self._administration = administration
        self._settings = settings

    async def carry_out(self, session: ClientSession, verb: Verb, payload: bytes) -> None:
        """Do what a withheld command says, and answer the client, whatever is raised meanwhile.

        The connection stays usable, unless the server is gone or its answers are out of step.
        """
        was_in_transaction = session.in_transaction
        failed: Exception
        try:
            session.check_interrupted()
            if verb not in SETTLING:
                keep_next_transaction(session)
            await self._dispatch(session, verb, payload)
            return
        except (Refused, SqlError, ServerError, WireError, UnusableQueue, StoreError) as error:
            failed = error
        except ConnectionError:
            failed = SERVER_LOST
        except Exception as error:
            log.exception("%r: a statement failed", session)
            failed = unforeseen(error, session.number)
        if session.in_step:
            with suppress(ConnectionError, WireError):
                await end_own_transaction(session, was_in_transaction=was_in_transaction)
        session.send(frame(as_packet(failed), 1))
        if not session.in_step:
            session.client.close()

    async def _dispatch(self, session: ClientSession, verb: Verb, payload: bytes) -> None:
        match payload[0], verb:
            case (Commands.COM_QUERY, Verb.QUEUE):
                await self._administration.query(session, payload)
            case (Commands.COM_STMT_PREPARE, Verb.QUEUE):
                await self._administration.prepare(session, payload)
            case (Commands.COM_QUERY, Verb.STREAM):
                await self._stream(session, query_text(payload, attributes=session.classifier.attributes))
            case (Commands.COM_STMT_PREPARE, Verb.STREAM):
                await self._prepare_stream(session, payload[1:])
            case (Commands.COM_QUERY, _):
                await self._settle(session, query_text(payload, attributes=session.classifier.attributes))
            case (Commands.COM_STMT_PREPARE, _):
                await self._prepare_settle(session, payload[1:])
            case _:
                await self._execute(session, payload)

    async def _execute(self, session: ClientSession, payload: bytes) -> None:
        own = session.classifier.statement(execute_id(payload))
        assert own is not None
        if payload[0] == COM_STMT_BULK_EXECUTE:
            raise NO_BULK.again()
        try:
            match own.statement:
                case PreparedStream() as prepared:
                    await self._execute_stream(session, own, prepared, payload)
                case PreparedSettle() as prepared:
                    _execute_settle(session, own, prepared, payload)
                case PreparedQueueStatement() as prepared:
                    await self._administration.execute(session, own, prepared, payload)
                case other:
                    raise AssertionError(other)
        except SqlError:
            if own.long_data:  # An execution that fails forgets it, and this one the server has not seen.
                own.long_data = frozenset()
                await session.internal_command(bytes([Commands.COM_STMT_RESET]) + payload[1:5])
            raise

    # STREAM.

    async def _stream(self, session: ClientSession, text: bytes) -> None:
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        statement = await self._reading.whole(session, text, partial(_parse_stream, context))
        if statement.param_count:
            raise UNBOUND.again()
        asked_s = time.monotonic()
        queue = await self._queue_to_stream(session, context.full_name(statement.table))
        _refuse_endless(statement, in_transaction=was_in_transaction)
        columns = _columns(statement, queue)
        header = await checked_query(session, _select(queue, columns, statement.partitions, _condition(statement)))
        await self._deliver(
            session,
            queue,
            statement,
            context.row_format(columns, binary=False),
            header,
            asked_s=asked_s,
            was_in_transaction=was_in_transaction,
        )

    async def _prepare_stream(self, session: ClientSession, text: bytes) -> None:
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        statement = await self._reading.whole(session, text, partial(_parse_stream, context))
        queue = await self._queue_to_stream(session, context.full_name(statement.table))
        # As many places for parameters as the statement has, so that the server counts and takes them.
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
            answer = await spelled(session, select, partial(_asked_to_prepare, session))
            session.show(answer, Preparing(prepared))

    async def _execute_stream(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedStream, payload: bytes
    ) -> None:
        statement = prepared.statement
        execute = parse_execute(
            payload,
            statement.param_count,
            types=own.types,
            long_data=own.long_data,
            attributes=session.classifier.attributes,
        )
        own.types = execute.types
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        values = [
            python_value(value, kind, context.codec)
            for value, kind in zip(execute.values, execute.types, strict=False)  # Attributes have types as well.
        ]
        statement = statement.bind(values)
        table = TableName(prepared.table.name, prepared.table.db)
        asked_s = time.monotonic()
        queue = await self._queue_to_stream(session, table)
        _refuse_endless(statement, in_transaction=was_in_transaction)
        flags = payload[CURSOR_FLAGS_AT] & PARAMETER_COUNT_AVAILABLE  # No cursor: rows come as they come.
        plain = payload[:CURSOR_FLAGS_AT] + bytes([flags]) + payload[CURSOR_FLAGS_AT + 1 :]
        if order := range(prepared.statement.param_count):
            plain = rearranged(
                plain,
                order,
                types=own.types,
                long_data=own.long_data,
                attributes=session.classifier.attributes,
            )
        own.long_data = frozenset()  # It was for one execution.
        session.check_interrupted()
        header = not_refused(await session.internal_command(plain))
        row_format = context.row_format(prepared.columns, binary=True)
        await self._deliver(
            session, queue, statement, row_format, header, asked_s=asked_s, was_in_transaction=was_in_transaction
        )

    async def _deliver(
        self,
        session: ClientSession,
        queue: QueueTable,
        statement: StreamStatement,
        row_format: RowFormat,
        header: Answer,
        *,
        asked_s: float,
        was_in_transaction: bool,
    ) -> None:
        """Send the column packets, then rows until the stream ends, then what ends a result."""
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        session.check_interrupted()  # From here on the stream itself is there to be ended.
        *columns, last = header.packets
        stream = Stream(
            session.send,
            last.seq,
            _wanted(statement),
            proof_max_age_s=self._settings.rights_max_age_s,
            proven_s=asked_s,
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
        session.send(b"".join(frame(each.payload, each.seq) for each in columns))  # Rows cannot have come before.
        asked_about = statement.condition.columns if statement.condition else ()
        rights = Rights(queue, [*row_format.columns, *asked_about])
        try:
            await self._attend(session, stream, rights)
        except ConnectionError:
            assert stream.over  # The session has ended it when it lost its server.
        except Exception as error:
            log.exception("%r: a stream failed", session)
            stream.refuse(unforeseen(error, session.number))
        finally:
            handle.cancel()
        stream.close(session.capabilities, session.status)
        if not session.in_step:
            session.client.close()

    async def _attend(self, session: ClientSession, stream: Stream, rights: Rights) -> None:
        """Until the stream is over, and what it was given is sent or given back."""
        while stream.unproven or not stream.over:
            if stream.unproven:
                begun_s = time.monotonic()
                if (refusal := await rights.lost(session)) is None:
                    stream.proven(begun_s)
                else:
                    stream.refuse(refusal)
            elif not await stream.wait(self._settings.ping_interval_s):
                await session.internal_command(
                    COM_PING
                )  # Or the server would close the idle connection under the stream.

    # ACK, NACK and EXTEND.

    async def _settle(self, session: ClientSession, text: bytes) -> None:
        statement, table = await self._read_settle(session, text)
        update = make_query(statement.update(), attributes=session.classifier.attributes)
        may_be_hidden = session.classifier.may_be_hidden(table)
        session.forward(update, settled(statement, table, may_be_hidden=may_be_hidden))

    async def _prepare_settle(self, session: ClientSession, text: bytes) -> None:
        statement, table = await self._read_settle(session, text)
        prepared = PreparedSettle(table, replace(statement, condition=b""))  # The server keeps that one.
        session.forward(bytes([COM_STMT_PREPARE]) + statement.update(), Preparing(prepared))

    async def _read_settle(self, session: ClientSession, text: bytes) -> tuple[SettleStatement, TableId]:
        """The statement, and the table that it is about, which is known to be a queue."""
        codec, ansi_quotes = "utf-8", False
        if b'"' in text or not text.isascii():
            context = await read_context(session)
            codec, ansi_quotes = context.codec, context.mode.ansi_quotes
        statement = await in_steps(
            session,
            settle_steps(text, codec, no_backslash_escapes=session.no_backslash_escapes, ansi_quotes=ansi_quotes),
        )
        db = statement.table.db or session.classifier.known_db or (await read_context(session)).db
        queue = await self._table_to_settle(session, TableName(statement.table.name, db))
        session.check_interrupted()
        return statement, queue

    # All.

    async def _queue_to_stream(self, session: ClientSession, table: TableName) -> QueueTable:
        """The table as the queue that it is now, if the client's session may stream from it and acknowledge in it."""
        _named(table)
        seen = await definition_seen(session, table)
        queue = await self._queue(session, table, text=seen, fresh=seen is None)
        await checked_query(session, sql("right_to_stream", table=table.quoted(), condition="FALSE"))
        session.classifier.not_hidden(queue.id)
        return queue

    async def _queue(
        self, session: ClientSession, table: TableName, *, text: bytes | None = None, fresh: bool = False
    ) -> QueueTable:
        """See Queues.queue."""
        try:
            return await self._engine.queue(_named(table), text=text, fresh=fresh)
        except UnusableQueue:
            await _look_as_client(session, table)
            raise

    async def _table_to_settle(self, session: ClientSession, table: TableName) -> TableId:
        """See Queues.to_settle."""
        try:
            return await self._engine.to_settle(_named(table))
        except UnusableQueue:
            await _look_as_client(session, table)
            raise


def _named(table: TableName) -> TableId:
    if table.db is None:
        raise NO_DATABASE.again()
    return TableId(table.db, table.name)


async def _look_as_client(session: ClientSession, table: TableName) -> None:
    """Who may not see the table learns nothing about it but what MySQL says: raises Refused."""
    await checked_query(session, sql("right_to_see", table=table.quoted()))


async def _asked_to_prepare(session: ClientSession, text: bytes) -> Answer:
    return await session.internal_command(bytes([COM_STMT_PREPARE]) + text)


def _execute_settle(session: ClientSession, own: TrackedStatement, prepared: PreparedSettle, payload: bytes) -> None:
    """Run a prepared NACK or EXTEND whose time is a parameter: the client's last, and the UPDATE's first."""
    statement = prepared.statement
    execute = parse_execute(
        payload,
        statement.param_count,
        types=own.types,
        long_data=own.long_data,
        attributes=session.classifier.attributes,
    )
    own.types = execute.types
    statement.check_delay(execute.values)
    others = statement.param_count - 1
    reordered = rearranged(
        payload,
        (others, *range(others)),
        types=execute.types,
        long_data=own.long_data,
        attributes=session.classifier.attributes,
    )
    own.long_data = frozenset()
    session.forward(reordered, prepared.settled(execute.values, may_be_hidden=True))


def _select(queue: QueueTable, columns: tuple[str, ...], partitions: tuple[str, ...], where: str) -> str:
    """A SELECT of no row, by which the server says what the columns look like, and what is not there or not allowed."""
    table = TableName(queue.id.name, queue.id.db).quoted()
    among = f" PARTITION ({', '.join(map(quoted, partitions))})" if partitions else ""
    return sql("stream_columns", columns=", ".join(map(quoted, columns)), table=table + among, condition=where)


def _condition(statement: StreamStatement) -> str:
    return statement.condition.sql() if statement.condition else "TRUE"


def _columns(statement: StreamStatement, queue: QueueTable) -> tuple[str, ...]:
    """The columns by name, `*` being what the table makes of it."""
    named: list[str] = []
    for each in statement.columns:
        if isinstance(each, Star):
            named += queue.default_columns
        else:
            named.append(each)
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
    """Which messages it wants; equal ones share the work."""
    partitions = tuple(sorted(set(statement.partitions)))
    if statement.condition is None:
        return replace(ANYTHING, partitions=partitions)
    return Selection(statement.condition.sql(), partitions, time_zone)


def _wanted(statement: StreamStatement) -> str | None:
    """The same for people: as written, but with the values of parameters."""
    condition = statement.condition
    written = shortened(condition.sql()) if condition and "?" in (statement.written or "") else statement.written
    if not statement.partitions:
        return written
    partitions = f"PARTITION ({', '.join(map(quoted, statement.partitions))})"
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
