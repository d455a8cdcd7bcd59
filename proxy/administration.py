"""CREATE QUEUE and its family: statements about queues, carried out on the client's own session with its rights.

Each change is one statement of the server's, so it is done or not done, whenever the server dies. A dead-letter
table that has to be made comes first: without its queue it is a queue by itself, empty, and the next attempt finds
it there. What a comment says is changed by reading it and writing it anew; between the two an advisory lock keeps
other proxies' changes out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.comment import (
    DEFAULTS,
    NONE,
    OPTIONS,
    REQUIRED,
    combination_problem,
    is_marked,
    make_comment,
    option_name,
    option_problem,
    parse_comment,
    queue_values,
    split_comment,
    text_problem,
    with_source,
)
from engine.model import NS_PER_S, BrokenTable, Policy, QueueTable, TableId
from engine.queries import first_partition_clause
from engine.retention import WIDTH_LEAST_NS
from engine.service import Engine
from proxy.hints import PreparedQueueStatement, Preparing
from proxy.inspection import QUEUE_COLUMNS, STREAM_COLUMNS, Inspection
from proxy.questions import (
    NO_DATABASE,
    UNBOUND,
    Context,
    Refused,
    ask,
    end_what_we_began,
    from_hex,
    not_refused,
    raw_rows,
    read_context,
    refuse_temporary,
    rows,
    text_literal,
    text_rows,
)
from proxy.results import NAME, TEXT, Column, Result, answer_execute, answer_query
from proxy.upkeep import Upkeep, refuse_in_transaction
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.framing import frame
from proxy.wire.packets import ServerError
from proxy.wire.params import parse_execute, python_value, query_text
from sqlrewrite.definitions import NOW_NS, TIME_KEY, not_by_time
from sqlrewrite.errors import SqlError
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
    from proxy.judge import OwnStatement
    from proxy.session import Answer as ServerAnswer
    from proxy.session import Session

LOCK_WAIT_S = 10
"""Time for another proxy's change of the same comment: it needs a millisecond once it has the table."""

TABLE_EXISTS = 1050

CREATE_QUEUE_COLUMNS = (Column("Queue", NAME), Column("Create Queue", TEXT))

Answer = bytes | Result
"""An OK packet, or rows."""


class Administration:
    """Carries out the statements about queues."""

    def __init__(self, engine: Engine, inspection: Inspection) -> None:
        self._engine = engine
        self._inspection = inspection
        self._upkeep = Upkeep(engine)

    # The three commands.

    async def query(self, session: Session, payload: bytes) -> None:
        """A statement as text."""
        was_in_transaction = session.in_transaction
        context, statement = await self._read(session, query_text(payload, attributes=session.judge.attributes))
        if isinstance(statement, RedriveQueue) and statement.param_count:
            raise UNBOUND.again()
        answer = await self._carry_out(session, context, statement, in_transaction=was_in_transaction)
        await end_what_we_began(session, was_in_transaction=was_in_transaction)
        if isinstance(answer, Result):
            await answer_query(session, answer, was_in_transaction=was_in_transaction)
        else:
            session.send(frame(answer, 1))

    async def prepare(self, session: Session, payload: bytes) -> None:
        """PREPARE: the server prepares something with the same columns and parameters, and so gives it a number."""
        was_in_transaction = session.in_transaction
        _, statement = await self._read(session, payload[1:])
        await end_what_we_began(session, was_in_transaction=was_in_transaction)
        columns = _columns(statement)
        params = statement.param_count if isinstance(statement, RedriveQueue) else 0
        text = Result(columns).select(params) if columns else "DO " + ", ".join(["0", *["?"] * params])
        preparing = Preparing(PreparedQueueStatement(statement))
        session.forward(bytes([COM_STMT_PREPARE]) + text.encode("ascii"), preparing)

    async def execute(
        self, session: Session, own: OwnStatement, prepared: PreparedQueueStatement, payload: bytes
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
                attributes=session.judge.attributes,
            )
            own.types = execute.types
            values = zip(execute.values, execute.types, strict=False)  # Attributes have types as well.
            statement = statement.bind([python_value(value, kind, context.codec) for value, kind in values])
        answer = await self._carry_out(session, context, statement, in_transaction=was_in_transaction)
        await end_what_we_began(session, was_in_transaction=was_in_transaction)
        if isinstance(answer, Result):
            await answer_execute(session, answer, was_in_transaction=was_in_transaction)
        else:
            session.send(frame(answer, 1))

    async def _read(self, session: Session, text: bytes) -> tuple[Context, QueueStatement]:
        """The statement, its tables with their databases."""
        context = await read_context(session)
        read = partial(parse_queue_statement, options=OPTIONS, codec=context.codec, mode=context.mode)
        statement = await session.proxy.reading.whole(session, text, read)
        named: dict[str, Any] = {
            each.name: _full_name(context, name)
            for each in fields(statement)
            if isinstance(name := getattr(statement, each.name), TableName)
        }
        return context, replace(statement, **named)

    async def _carry_out(
        self, session: Session, context: Context, statement: QueueStatement, *, in_transaction: bool
    ) -> Answer:
        match statement:
            case CreateQueue():
                return await self._create(session, context, statement)
            case AlterQueue():
                return await self._alter(session, context, statement)
            case DropQueue():
                return await self._drop(session, context, statement)
            case PauseQueue(table, paused):
                return await self._change(
                    session, context, table, lambda values, rest: (_paused(values, paused=paused), rest)
                )
            case PurgeQueue(table):
                refuse_in_transaction(statement, in_transaction=in_transaction)
                return await self._upkeep.purge(session, await self._usable(session, context, table))
            case RedriveQueue():
                refuse_in_transaction(statement, in_transaction=in_transaction)
                return await self._redrive(session, context, statement)
            case ShowQueues(db, like):
                return await self._inspection.queues(session, db, like)
            case ShowStreams():
                return await self._inspection.streams(session)
            case ShowCreateQueue(table):
                return await self._show_create(session, context, table)

    # CREATE QUEUE.

    async def _create(self, session: Session, context: Context, statement: CreateQueue) -> bytes:
        given, without = _checked(statement.options)
        values = queue_values(given, without)
        _check(values, statement.comment)
        comment = make_comment(values, statement.comment or "")
        table = statement.table
        partitions = await _partitions(session, statement, values) if statement.by_partition else ""
        text = _create_table(session, context, statement, table, statement.definitions_sql(), comment, partitions)
        if statement.if_not_exists and await _comment(session, context, table) is not None:
            return (await self._schema(session, text)).packets[0].payload
        made = await self._make_dead_letter(session, context, statement, values)
        try:
            packet = (await self._schema(session, text)).packets[0].payload
            await self._refuse_broken(session, context, table)
        except (Refused, ServerError):
            if made is not None:
                await self._schema(session, _encode(context, f"DROP TABLE IF EXISTS {made.quoted()}"), may_fail=True)
            raise
        return packet

    async def _make_dead_letter(
        self, session: Session, context: Context, statement: CreateQueue, values: Mapping[str, str]
    ) -> TableName | None:
        """The table where dead messages go, if it had to be made."""
        dead = _dead_letter(values, statement.table)
        if dead is None:
            return None
        if dead == statement.table:
            problem = f"DEAD_LETTER = {values['dead_letter']} is the queue itself: name another table"
            raise ServerError(1105, "HY000", problem)
        comment = await _comment(session, context, dead)
        if comment is not None:
            if not is_marked(comment):
                raise _no_queue(dead, "so it cannot be a DEAD_LETTER")
            await self._let_in(session, context, dead, statement.table)
            return None
        own = {key: value for key, value in values.items() if key not in _NOT_OF_DEAD_LETTERS}
        own = _consenting(own, dead, statement.table)
        definitions = statement.dead_letter_sql()
        text = _create_table(session, context, statement, dead, definitions, make_comment(own))
        answer = await self._schema(session, text, may_fail=True)
        if answer.error is None:
            return dead
        if answer.error.code == TABLE_EXISTS:  # Made meanwhile, or of no concern to this client.
            return None
        raise Refused(answer.packets[-1].payload)

    async def _let_in(self, session: Session, context: Context, dead: TableName, source: TableName) -> None:
        """Have the comment of `dead` name `source`, whose dead messages may come there, with the client's rights."""
        if _takes(await _marked_comment(session, context, dead), dead, source):
            return

        def change(values: dict[str, str], rest: str) -> tuple[dict[str, str], str]:
            if _takes(make_comment(values, rest), dead, source):  # Somebody else has done it meanwhile.
                return values, rest
            return _consenting(values, dead, source), rest

        await self._change(session, context, dead, change)

    async def _refuse_broken(self, session: Session, context: Context, table: TableName) -> None:
        """A table whose own declarations make it useless as a queue is taken back."""
        found = await self._engine.inspect(_id(table), fresh=True)
        if isinstance(found, BrokenTable):
            await self._schema(session, _encode(context, f"DROP TABLE {table.quoted()}"), may_fail=True)
            raise ServerError(1105, "HY000", f"This would be no queue: {'; '.join(found.problems)}")

    # ALTER, PAUSE, RESUME, DROP.

    async def _alter(self, session: Session, context: Context, statement: AlterQueue) -> bytes:
        changed, without = _checked(statement.options)
        reset = {OPTIONS[name] for name, value in statement.options if value is None}

        def change(values: dict[str, str], rest: str) -> tuple[dict[str, str], str]:
            new = {key: value for key, value in values.items() if key not in reset | without} | changed
            for key in reset & DEFAULTS.keys():
                new[key] = queue_values(new)[key]
            _check(new, statement.comment)
            return new, rest if statement.comment is None else statement.comment

        if "dead_letter" in changed:
            await self._make_dead_letter_of(session, context, statement.table, changed)
        return await self._change(session, context, statement.table, change)

    async def _make_dead_letter_of(
        self, session: Session, context: Context, table: TableName, changed: Mapping[str, str]
    ) -> None:
        """A dead-letter table for a queue that is there already."""
        await _marked_comment(session, context, table)
        statement = await self._definition(session, context, table)
        values, _ = split_comment(statement.comment or "")
        _check({**values, **changed}, None)
        await self._make_dead_letter(session, context, statement, {**values, **changed})

    async def _change(
        self,
        session: Session,
        context: Context,
        table: TableName,
        change: Callable[[dict[str, str], str], tuple[dict[str, str], str]],
    ) -> bytes:
        """Read the comment, and write it anew as `change` makes it."""

        async def locked() -> bytes:
            values, rest = change(*split_comment(await _marked_comment(session, context, table)))
            literal = _string_literal(session, make_comment(values, rest))
            text = _encode(context, f"ALTER TABLE {table.quoted()} COMMENT = {literal}")
            return (await self._schema(session, text)).packets[0].payload

        return await _with_lock(session, table, locked)

    async def _drop(self, session: Session, context: Context, statement: DropQueue) -> bytes:
        comment = await _comment(session, context, statement.table)
        if comment is not None and not is_marked(comment):
            raise _no_queue(statement.table, "DROP TABLE drops it")
        if comment is not None:
            await refuse_temporary(session, statement.table)
        if_exists = "IF EXISTS " if statement.if_exists else ""
        text = _encode(context, f"DROP TABLE {if_exists}{statement.table.quoted()}")
        return (await self._schema(session, text)).packets[0].payload

    # SHOW CREATE QUEUE, REDRIVE.

    async def _show_create(self, session: Session, context: Context, table: TableName) -> Result:
        statement = await self._definition(session, context, table)
        if statement.comment is None or not is_marked(statement.comment):
            raise _no_queue(table, "SHOW CREATE TABLE shows it")
        values, rest = split_comment(statement.comment)
        without = {key: NONE for key in DEFAULTS if key not in values}
        options = [(option_name(key), value) for key, value in {**values, **without}.items()]
        text = print_queue(statement, table.name, options, rest, no_backslash_escapes=session.no_backslash_escapes)
        return Result(CREATE_QUEUE_COLUMNS, [[table.name, text]])

    async def _definition(self, session: Session, context: Context, table: TableName) -> CreateQueue:
        """A table that is there, as the CREATE QUEUE that its SHOW CREATE TABLE amounts to."""
        written = await _show_create_table(session, context, table)
        if not written.startswith(b"CREATE TABLE"):
            raise _no_queue(table, "SHOW CREATE TABLE shows it")
        # Both servers escape backslashes here in any sql_mode.
        mode = replace(context.mode, no_backslash_escapes=False)
        statement = parse_queue_statement(written.replace(b"CREATE TABLE", b"CREATE QUEUE", 1), OPTIONS, mode=mode)
        assert isinstance(statement, CreateQueue)
        return retention_read(replace(statement, table=table))

    async def _redrive(self, session: Session, context: Context, statement: RedriveQueue) -> bytes:
        dead = await self._usable(session, context, statement.dead)
        names = self._sources(dead.id) if statement.target is None else [statement.target]
        visible = [each for each in names if await _comment(session, context, each) is not None]
        if statement.target is None and len(visible) != 1:
            found = ", ".join(f"{each.db}.{each.name}" for each in visible) or "no queue"
            hint = "say where its messages are to go, REDRIVE QUEUE … TO t"
            raise ServerError(1105, "HY000", f"{dead.id} is the DEAD_LETTER of {found}: {hint}")
        (target,) = visible or names
        queue = await self._usable(session, context, target)
        return await self._upkeep.redrive(session, context.codec, dead, queue, statement.condition)

    def _sources(self, dead: TableId) -> list[TableName]:
        """The queues whose dead messages go there."""
        return [
            TableName(queue.id.name, queue.id.db) for queue, _ in self._engine.runners() if queue.dead_letter == dead
        ]

    async def _usable(self, session: Session, context: Context, table: TableName) -> QueueTable:
        """The table as a queue, which the client's session sees as well."""
        await _marked_comment(session, context, table)
        return await self._engine.queue(_id(table), fresh=True)

    async def _schema(self, session: Session, text: bytes, *, may_fail: bool = False) -> ServerAnswer:
        """A change of a table. It ends the client's transaction, as the server's own DDL does."""
        answer = await session.ask(text)
        session.hints.finished(answer.outcome)
        self._engine.schema_changed()
        return answer if may_fail else not_refused(answer)


# What the statements say.


def _full_name(context: Context, table: TableName) -> TableName:
    full = context.full_name(table)
    if full.db is None:
        raise NO_DATABASE.again()
    return full


def _id(table: TableName) -> TableId:
    assert table.db is not None
    return TableId(table.db, table.name)


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


_NOT_OF_DEAD_LETTERS = frozenset({"max_attempts", "dead_letter", "dead_letter_of", "max_rate", "paused"})
"""The directives that a dead-letter table does not take over from its queue."""


def _dead_letter(values: Mapping[str, str], table: TableName) -> TableName | None:
    """Where the dead messages of a table go. A name without database is in that of its queue."""
    if "dead_letter" not in values:
        return None
    db, _, name = values["dead_letter"].rpartition(".")
    return TableName(name, db or table.db)


def _takes(comment: str, dead: TableName, source: TableName) -> bool:
    """Whether a comment lets dead messages of `source` into the table `dead`; raises where it is none of a queue."""
    match parse_comment(comment):
        case Policy() as policy:
            named = (TableId(db or _id(dead).db, name) for db, name in policy.dead_letter_of)
            return _id(source) in named
        case problems:
            raise _no_queue(dead, f"so it cannot be a DEAD_LETTER: {'; '.join(problems or ())}")


def _consenting(values: Mapping[str, str], dead: TableName, source: TableName) -> dict[str, str]:
    """The directives of `dead`, with consent to take the dead messages of `source`."""
    consenting = with_source(values, _id(dead), _id(source))
    if consenting is None:
        problem = (
            f"The COMMENT of {dead.db}.{dead.name} has to name {source.db}.{source.name}, and cannot for its comma"
        )
        raise ServerError(1105, "HY000", problem)
    return consenting


def _no_queue(table: TableName, hint: str) -> ServerError:
    return ServerError(1347, "HY000", f"'{table.db}.{table.name}' is not a queue ({hint})")


# What is asked of the server.


def _create_table(
    session: Session,
    context: Context,
    statement: CreateQueue,
    table: TableName,
    definitions: bytes,
    comment: str,
    partitions: str = "",
) -> bytes:
    if_not_exists = "IF NOT EXISTS " if statement.if_not_exists and table == statement.table else ""
    codec = statement.tokens.codec
    return _encode(
        context,
        f"CREATE TABLE {if_not_exists}{table.quoted()} (\n{definitions.decode(codec)})"
        f" COMMENT = {_string_literal(session, comment)} {statement.table_options.decode(codec)}"
        f" {partitions}",
    )


async def _partitions(session: Session, statement: CreateQueue, values: Mapping[str, str]) -> str:
    """The clause for RETENTION BY PARTITION."""
    if key := not_by_time(statement.definitions):
        text = statement.tokens.decode(key.start, key.end).strip()
        raise ServerError(
            1503,
            "HY000",
            f"RETENTION BY PARTITION cannot have {text!r}: where a table is partitioned, each unique key holds"
            f" time_acked, which is NULL while a message lives. Leave it out; {TIME_KEY} is added",
        )
    policy = parse_comment(make_comment(values))
    assert isinstance(policy, Policy)
    age_ns = policy.purge_after_ns
    if age_ns < WIDTH_LEAST_NS:
        least = WIDTH_LEAST_NS // NS_PER_S
        problem = f"a partition is {least} s wide at least: take that or more, or leave out RETENTION"
        raise ServerError(
            1105, "HY000", f"RETENTION BY PARTITION with PURGE_AFTER = {values['vt_purge_after']}: {problem}"
        )
    ((now,),) = await rows(session, f"SELECT {NOW_NS} LIMIT 1".encode())
    return first_partition_clause(int(now or 0), age_ns)


def _encode(context: Context, text: str) -> bytes:
    return text.encode(context.codec)


def _string_literal(session: Session, text: str) -> str:
    """A string where the server takes no expression, in the session's sql_mode."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'" if session.no_backslash_escapes else "'" + doubled.replace("\\", "\\\\") + "'"


async def _comment(session: Session, context: Context, table: TableName) -> str | None:
    """The comment of a table that the client may see; None where there is none."""
    assert table.db is not None
    question = (
        "SELECT HEX(CONVERT(table_schema USING utf8mb4)), HEX(CONVERT(table_name USING utf8mb4)),"
        " HEX(CONVERT(table_comment USING utf8mb4)), @@lower_case_table_names FROM information_schema.tables"
        f" WHERE table_schema = {text_literal(table.db)} AND table_name = {text_literal(table.name)} LIMIT 100"
    )
    found = await rows(session, _encode(context, question))
    for db, name, comment, _ in found:
        if (from_hex(db), from_hex(name)) == (table.db, table.name):
            return from_hex(comment)
    # MariaDB compares names here without regard to case, which counts only where the server does so everywhere.
    return next((from_hex(comment) for _, _, comment, folded in found if folded != "0"), None)


async def _marked_comment(session: Session, context: Context, table: TableName) -> str:
    """The comment of a queue; raises what the server says of a table that is not there, or not for this client."""
    comment = await _comment(session, context, table)
    if comment is None:
        await ask(session, _encode(context, f"SELECT 1 FROM {table.quoted()} LIMIT 0"))
        raise ServerError(1146, "42S02", f"Table '{table.db}.{table.name}' doesn't exist")
    if not is_marked(comment):
        raise _no_queue(table, "its COMMENT does not hold the word vitess_message")
    await refuse_temporary(session, table)
    return comment


async def _with_lock(session: Session, table: TableName, change: Callable[[], Awaitable[bytes]]) -> bytes:
    """Run `change` while no other proxy does the same. LOCK TABLES would want a privilege that ALTER TABLE does not."""
    digest = hashlib.sha256(table.quoted().casefold().encode()).hexdigest()[:32]
    name = text_literal(f"ackstream:{digest}")
    answer = await session.ask(f"SELECT GET_LOCK({name}, {LOCK_WAIT_S}) LIMIT 1".encode())
    taken = answer.error is None and text_rows(session, answer) == [["1"]]
    if answer.error is None and text_rows(session, answer) == [["0"]]:
        raise ServerError(1205, "HY000", f"Another change of {table.quoted()} is under way; try again")
    release = f"DO RELEASE_LOCK({name})".encode()
    try:
        packet = await change()
    except (Refused, ServerError, SqlError):  # Where the connection is lost, the lock is gone with it.
        if taken:
            await session.ask(release)
        raise
    if taken:
        await session.ask(release)
    return packet


async def _show_create_table(session: Session, context: Context, table: TableName) -> bytes:
    """In UTF-8, whatever the character set of the client's results is: SHOW knows no HEX."""
    elsewhere = context.charset_results not in {"utf8mb4", None}
    if elsewhere:
        await ask(session, b"SET character_set_results = utf8mb4")
    answer = await session.ask(_encode(context, f"SHOW CREATE TABLE {table.quoted()}"))
    if elsewhere:
        await ask(session, f"SET character_set_results = {context.charset_results}".encode())
    ((_, written, *_),) = raw_rows(session, not_refused(answer))
    return written or b""
