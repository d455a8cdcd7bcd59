"""The statements about queues (CREATE QUEUE and its family), as text and prepared.

They run on the client's own backing connection, with its rights. Each change of a table is one
statement of the server, so it is done or not done, whenever the server dies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.catalog.directives import OPTIONS
from engine.packets import frame
from engine.service import Engine
from proxy.session.commit_notices import PreparedQueueStatement, Preparing
from proxy.session.internal_queries import NO_DATABASE, UNBOUND, Context, end_own_transaction, read_context
from proxy.session.prepared import python_values
from proxy.session.queries import sql
from proxy.statements.batches import BATCH_COLUMNS, Batches
from proxy.statements.definition import CREATE_QUEUE_COLUMNS, DefinitionStatements
from proxy.statements.deliveries import DELIVERY_COLUMNS, Deliveries
from proxy.statements.long_statements import LongStatementReader
from proxy.statements.message_groups import GROUP_COLUMNS, MessageGroups
from proxy.statements.proxies import PROXY_COLUMNS, Proxies
from proxy.statements.purge_redrive import PurgeRedrive, refuse_in_transaction
from proxy.statements.results import ResultColumn, ResultSet, answer_execute, answer_query
from proxy.statements.semaphores import SEMAPHORE_COLUMNS, SemaphoreStatements
from proxy.statements.show import QUEUE_COLUMNS, STREAM_COLUMNS, SUMMARY_COLUMNS, Show
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.params import query_text
from sqlrewrite.names import TableName
from sqlrewrite.queue_statements import (
    AlterQueue,
    AlterSemaphore,
    CreateQueue,
    CreateSemaphore,
    DropQueue,
    DropSemaphore,
    PauseQueue,
    PurgeQueue,
    QueueStatement,
    RedriveQueue,
    ShowBatches,
    ShowCreateQueue,
    ShowDeliveries,
    ShowGroups,
    ShowProxies,
    ShowQueues,
    ShowSemaphores,
    ShowStreams,
)
from sqlrewrite.queues import parse_queue_statement

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession
    from proxy.session.prepared import TrackedStatement

Answer = bytes | ResultSet
"""An OK packet, or rows."""


@dataclass(frozen=True, slots=True)
class Showing:
    """What carries out the SHOW statements."""

    queues: Show
    deliveries: Deliveries
    proxies: Proxies
    groups: MessageGroups


class QueueStatements:
    """Carries out the statements about queues."""

    def __init__(self, engine: Engine, showing: Showing, reader: LongStatementReader) -> None:
        self._reader = reader
        self._showing = showing
        self._purge_redrive = PurgeRedrive(engine)
        self._definition = DefinitionStatements(engine)
        self._batches = Batches(engine)
        self._semaphores = SemaphoreStatements(engine)

    async def query(self, session: ClientSession, payload: bytes) -> None:
        """A statement as text."""
        was_in_transaction = session.in_transaction
        context, statement = await self._read(session, query_text(payload, attributes=session.classifier.attributes))
        if isinstance(statement, RedriveQueue) and statement.param_count:
            raise UNBOUND.again()
        await self._run(session, context, statement, answer_query, was_in_transaction=was_in_transaction)

    async def prepare(self, session: ClientSession, payload: bytes) -> None:
        """PREPARE: the server prepares a statement with the same columns and parameters, and so
        gives it a number."""
        was_in_transaction = session.in_transaction
        _, statement = await self._read(session, payload[1:])
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        columns = _columns(statement)
        params = statement.param_count if isinstance(statement, RedriveQueue) else 0
        text = (
            ResultSet(columns).select(params) if columns else sql("nothing", values=", ".join(["0", *["?"] * params]))
        )
        preparing = Preparing(PreparedQueueStatement(statement))
        session.forward(bytes([COM_STMT_PREPARE]) + text.encode("ascii"), preparing)

    async def execute(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedQueueStatement, payload: bytes
    ) -> None:
        """The execution of a prepared one."""
        statement = prepared.statement
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        if isinstance(statement, RedriveQueue):
            attributes = session.classifier.attributes
            execution = own.read_execution(payload, statement.param_count, attributes=attributes)
            statement = statement.bind(python_values(execution, context.string_codec))
        await self._run(session, context, statement, answer_execute, was_in_transaction=was_in_transaction)

    async def _read(self, session: ClientSession, text: bytes) -> tuple[Context, QueueStatement]:
        """The statement, its tables with their databases."""
        context = await read_context(session)
        context.check_text(text, "a statement about queues")
        read = partial(parse_queue_statement, options=OPTIONS, codec=context.codec, mode=context.mode)
        statement = await self._reader.read(session, text, read)
        named: dict[str, Any] = {
            field.name: _full_name(context, name)
            for field in fields(statement)
            if isinstance(name := getattr(statement, field.name), TableName)
        }
        return context, replace(statement, **named)

    async def _run(
        self,
        session: ClientSession,
        context: Context,
        statement: QueueStatement,
        answer_rows: Callable[..., Awaitable[None]],
        *,
        was_in_transaction: bool,
    ) -> None:
        """Carry out the statement and answer the client, rows by `answer_rows`."""
        answer = await self._carry_out(session, context, statement, in_transaction=was_in_transaction)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        if isinstance(answer, ResultSet):
            await answer_rows(session, answer, was_in_transaction=was_in_transaction)
        else:
            session.send(frame(answer, 1))

    async def _carry_out(
        self, session: ClientSession, context: Context, statement: QueueStatement, *, in_transaction: bool
    ) -> Answer:
        match statement:
            case CreateQueue():
                return await self._definition.create(session, statement)
            case AlterQueue():
                return await self._definition.alter(session, context, statement)
            case DropQueue():
                return await self._definition.drop(session, statement)
            case PauseQueue(table, paused):
                return await self._definition.pause(session, table, paused=paused)
            case PurgeQueue(table):
                refuse_in_transaction(statement, in_transaction=in_transaction)
                return await self._purge_redrive.purge(session, table)
            case RedriveQueue():
                refuse_in_transaction(statement, in_transaction=in_transaction)
                return await self._purge_redrive.redrive(session, statement)
            case ShowQueues():
                return await self._showing.queues.queues(session, statement)
            case ShowStreams():
                return await self._showing.queues.streams(session)
            case ShowBatches(table, limit):
                return await self._batches.show(session, table, limit)
            case ShowDeliveries(table, limit):
                return await self._showing.deliveries.show(session, table, limit)
            case ShowGroups():
                return await self._showing.groups.show(session, context, statement)
            case ShowProxies():
                return await self._showing.proxies.show(session)
            case CreateSemaphore() | AlterSemaphore() | DropSemaphore():
                return await self._semaphores.change(session, statement, in_transaction=in_transaction)
            case ShowSemaphores():
                return await self._semaphores.show(session, context, statement)
            case ShowCreateQueue(table):
                return await self._definition.show_create(session, context, table)


def _full_name(context: Context, table: TableName) -> TableName:
    full = context.full_name(table)
    if full.db is None:
        raise NO_DATABASE.again()
    return full


def _columns(statement: QueueStatement) -> Sequence[ResultColumn]:
    """The columns of its result; none where its answer is an OK packet."""
    match statement:
        case ShowQueues(full=full):
            return QUEUE_COLUMNS if full else SUMMARY_COLUMNS
        case ShowStreams():
            return STREAM_COLUMNS
        case ShowBatches():
            return BATCH_COLUMNS
        case ShowDeliveries():
            return DELIVERY_COLUMNS
        case ShowGroups():
            return GROUP_COLUMNS
        case ShowProxies():
            return PROXY_COLUMNS
        case ShowSemaphores():
            return SEMAPHORE_COLUMNS
        case ShowCreateQueue():
            return CREATE_QUEUE_COLUMNS
        case _:
            return ()
