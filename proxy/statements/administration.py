"""CREATE QUEUE and its family: statements about queues, carried out on the client's own session with its rights.

Each change is one statement of the server's, so it is done or not done, whenever the server dies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.catalog.directives import (
    DEFAULTS,
    NONE,
    OPTIONS,
    REQUIRED,
    combination_problem,
    is_marked,
    option_name,
    option_problem,
    queue_values,
    split_comment,
    text_problem,
)
from engine.model import QueueTable, TableId
from engine.packets import frame
from engine.service import Engine
from proxy.session.commit_notices import PreparedQueueStatement, Preparing
from proxy.session.internal_queries import (
    NO_DATABASE,
    UNBOUND,
    Context,
    end_own_transaction,
    read_context,
    refuse_temporary,
)
from proxy.session.queries import sql
from proxy.statements.creation import Creation
from proxy.statements.long_statements import Reading
from proxy.statements.purge_redrive import PurgeRedrive, refuse_in_transaction
from proxy.statements.results import NAME, TEXT, Column, Result, answer_execute, answer_query
from proxy.statements.show import QUEUE_COLUMNS, STREAM_COLUMNS, Show
from proxy.statements.tables import (
    change_comment,
    change_schema,
    comment_of,
    marked_comment,
    no_queue,
    show_create_table,
    table_id,
)
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.packets import ServerError
from proxy.wire.params import parse_execute, python_value, query_text
from sqlrewrite.names import TableName
from sqlrewrite.printing import print_queue, retention_read
from sqlrewrite.queues import (
    AlterQueue,
    CreateQueue,
    DropQueue,
    Options,
    PauseQueue,
    PurgeQueue,
    QueueStatement,
    RedriveQueue,
    ShowCreateQueue,
    ShowQueues,
    ShowStreams,
    parse_queue_statement,
)

if TYPE_CHECKING:
    from proxy.session.command_classifier import TrackedStatement
    from proxy.session.ports import ClientSession

CREATE_QUEUE_COLUMNS = (Column("Queue", NAME), Column("Create Queue", TEXT))

Answer = bytes | Result
"""An OK packet, or rows."""


class Administration:
    """Carries out the statements about queues."""

    def __init__(self, engine: Engine, inspection: Show, reading: Reading) -> None:
        self._engine = engine
        self._reading = reading
        self._inspection = inspection
        self._upkeep = PurgeRedrive(engine)
        self._creation = Creation(engine)

    # The three commands.

    async def query(self, session: ClientSession, payload: bytes) -> None:
        """A statement as text."""
        was_in_transaction = session.in_transaction
        context, statement = await self._read(session, query_text(payload, attributes=session.classifier.attributes))
        if isinstance(statement, RedriveQueue) and statement.param_count:
            raise UNBOUND.again()
        answer = await self._carry_out(session, context, statement, in_transaction=was_in_transaction)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        if isinstance(answer, Result):
            await answer_query(session, answer, was_in_transaction=was_in_transaction)
        else:
            session.send(frame(answer, 1))

    async def prepare(self, session: ClientSession, payload: bytes) -> None:
        """PREPARE: the server prepares something with the same columns and parameters, and so gives it a number."""
        was_in_transaction = session.in_transaction
        _, statement = await self._read(session, payload[1:])
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        columns = _columns(statement)
        params = statement.param_count if isinstance(statement, RedriveQueue) else 0
        text = Result(columns).select(params) if columns else sql("nothing", values=", ".join(["0", *["?"] * params]))
        preparing = Preparing(PreparedQueueStatement(statement))
        session.forward(bytes([COM_STMT_PREPARE]) + text.encode("ascii"), preparing)

    async def execute(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedQueueStatement, payload: bytes
    ) -> None:
        """The execution of what was prepared."""
        statement = prepared.statement
        was_in_transaction = session.in_transaction
        context = await read_context(session)
        if isinstance(statement, RedriveQueue):
            execute = parse_execute(
                payload,
                statement.param_count,
                types=own.types,
                long_data=own.long_data,
                attributes=session.classifier.attributes,
            )
            own.types = execute.types
            values = zip(execute.values, execute.types, strict=False)  # Attributes have types as well.
            statement = statement.bind([python_value(value, kind, context.codec) for value, kind in values])
        answer = await self._carry_out(session, context, statement, in_transaction=was_in_transaction)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        if isinstance(answer, Result):
            await answer_execute(session, answer, was_in_transaction=was_in_transaction)
        else:
            session.send(frame(answer, 1))

    async def _read(self, session: ClientSession, text: bytes) -> tuple[Context, QueueStatement]:
        """The statement, its tables with their databases."""
        context = await read_context(session)
        read = partial(parse_queue_statement, options=OPTIONS, codec=context.codec, mode=context.mode)
        statement = await self._reading.whole(session, text, read)
        named: dict[str, Any] = {
            each.name: _full_name(context, name)
            for each in fields(statement)
            if isinstance(name := getattr(statement, each.name), TableName)
        }
        return context, replace(statement, **named)

    async def _carry_out(
        self, session: ClientSession, context: Context, statement: QueueStatement, *, in_transaction: bool
    ) -> Answer:
        match statement:
            case CreateQueue():
                given, without = _checked(statement.options)
                _check(queue_values(given, without), statement.comment)
                return await self._creation.create(session, statement, given, without)
            case AlterQueue():
                return await self._alter(session, context, statement)
            case DropQueue():
                return await self._drop(session, statement)
            case PauseQueue(table, paused):
                return await change_comment(
                    self._engine, session, table, lambda values, rest: (_paused(values, paused=paused), rest)
                )
            case PurgeQueue(table):
                refuse_in_transaction(statement, in_transaction=in_transaction)
                return await self._upkeep.purge(session, await self._usable(session, table))
            case RedriveQueue():
                refuse_in_transaction(statement, in_transaction=in_transaction)
                return await self._redrive(session, statement)
            case ShowQueues(db, like):
                return await self._inspection.queues(session, db, like)
            case ShowStreams():
                return await self._inspection.streams(session)
            case ShowCreateQueue(table):
                return await self._show_create(session, context, table)

    # ALTER, PAUSE, RESUME, DROP.

    async def _alter(self, session: ClientSession, context: Context, statement: AlterQueue) -> bytes:
        changed, without = _checked(statement.options)
        reset = {OPTIONS[name] for name, value in statement.options if value is None}

        def change(values: dict[str, str], rest: str) -> tuple[dict[str, str], str]:
            new = {key: value for key, value in values.items() if key not in reset | without} | changed
            for key in reset & DEFAULTS.keys():
                new[key] = queue_values(new)[key]
            _check(new, statement.comment)
            return new, rest if statement.comment is None else statement.comment

        if "dead_letter" in changed:
            values, _ = split_comment(await marked_comment(session, statement.table))
            _check({**values, **changed}, None)
            definition = partial(self._definition, session, context, statement.table)
            await self._creation.dead_letter(session, statement.table, {**values, **changed}, definition)
        return await change_comment(self._engine, session, statement.table, change)

    async def _drop(self, session: ClientSession, statement: DropQueue) -> bytes:
        comment = await comment_of(session, statement.table)
        if comment is not None and not is_marked(comment):
            raise no_queue(statement.table, "DROP TABLE drops it")
        if comment is not None:
            await refuse_temporary(session, statement.table)
        if_exists = "IF EXISTS " if statement.if_exists else ""
        text = sql("drop_table", if_exists=if_exists, table=statement.table.quoted())
        return (await change_schema(self._engine, session, text)).packets[0].payload

    # SHOW CREATE QUEUE, REDRIVE.

    async def _show_create(self, session: ClientSession, context: Context, table: TableName) -> Result:
        statement = await self._definition(session, context, table)
        if statement.comment is None or not is_marked(statement.comment):
            raise no_queue(table, "SHOW CREATE TABLE shows it")
        values, rest = split_comment(statement.comment)
        without = {key: NONE for key in DEFAULTS if key not in values}
        options = [(option_name(key), value) for key, value in {**values, **without}.items()]
        text = print_queue(statement, table.name, options, rest, no_backslash_escapes=session.no_backslash_escapes)
        return Result(CREATE_QUEUE_COLUMNS, [[table.name, text]])

    async def _definition(self, session: ClientSession, context: Context, table: TableName) -> CreateQueue:
        """A table that is there, as the CREATE QUEUE that its SHOW CREATE TABLE amounts to."""
        written = await show_create_table(session, context, table)
        if not written.startswith(b"CREATE TABLE"):
            raise no_queue(table, "SHOW CREATE TABLE shows it")
        # Both servers escape backslashes here in any sql_mode.
        mode = replace(context.mode, no_backslash_escapes=False)
        statement = parse_queue_statement(written.replace(b"CREATE TABLE", b"CREATE QUEUE", 1), OPTIONS, mode=mode)
        assert isinstance(statement, CreateQueue)
        return retention_read(replace(statement, table=table))

    async def _redrive(self, session: ClientSession, statement: RedriveQueue) -> bytes:
        dead = await self._usable(session, statement.dead)
        names = self._sources(dead.id) if statement.target is None else [statement.target]
        visible = [each for each in names if await comment_of(session, each) is not None]
        if statement.target is None and len(visible) != 1:
            found = ", ".join(f"{each.db}.{each.name}" for each in visible) or "no queue"
            hint = "say where its messages are to go, REDRIVE QUEUE … TO t"
            raise ServerError(1105, "HY000", f"{dead.id} is the DEAD_LETTER of {found}: {hint}")
        (target,) = visible or names
        queue = await self._usable(session, target)
        return await self._upkeep.redrive(session, dead, queue, statement.condition)

    def _sources(self, dead: TableId) -> list[TableName]:
        """The queues whose dead messages go there."""
        return [
            TableName(queue.id.name, queue.id.db) for queue, _ in self._engine.runners() if queue.dead_letter == dead
        ]

    async def _usable(self, session: ClientSession, table: TableName) -> QueueTable:
        """The table as a queue, which the client's session sees as well."""
        await marked_comment(session, table)
        return await self._engine.queue(table_id(table), fresh=True)


# What the statements say.


def _full_name(context: Context, table: TableName) -> TableName:
    full = context.full_name(table)
    if full.db is None:
        raise NO_DATABASE.again()
    return full


def _columns(statement: QueueStatement) -> Sequence[Column]:
    match statement:
        case ShowQueues():
            return QUEUE_COLUMNS
        case ShowStreams():
            return STREAM_COLUMNS
        case ShowCreateQueue():
            return CREATE_QUEUE_COLUMNS
        case _:
            return ()


def _checked(options: Options) -> tuple[dict[str, str], set[str]]:
    """The directives that options stand for, and those that are NONE; raises for a value that cannot be."""
    values: dict[str, str] = {}
    without: set[str] = set()
    for name, value in options:
        if value is None:
            continue
        if value.upper() == NONE and OPTIONS[name] not in REQUIRED:
            without.add(OPTIONS[name])
        elif problem := option_problem(name, value):
            raise ServerError(1105, "HY000", problem)
        else:
            values[OPTIONS[name]] = value
    return values, without


def _check(values: Mapping[str, str], comment: str | None) -> None:
    problem = combination_problem(values) or text_problem(comment or "")
    if problem:
        raise ServerError(1105, "HY000", problem)


def _paused(values: dict[str, str], *, paused: bool) -> dict[str, str]:
    others = {key: value for key, value in values.items() if key != "paused"}
    return {**others, "paused": "1"} if paused else others
