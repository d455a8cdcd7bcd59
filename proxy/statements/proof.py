"""What a STREAM must prove and learn before it may deliver: the same for every kind of STREAM.

Rights are the client's own. Before the engine delivers anything, the client's session runs
statements that change and return no row: an UPDATE, and a SELECT of the columns. What is denied is
therefore denied by the server in its own words. The SELECT also returns the column packets, which
are passed on as the server wrote them. A prepared STREAM is prepared on the server as that SELECT.

The first time, these statements run one after another, each made of what the one before has shown.
A STREAM that the session has run before is proven in one round trip: its context, the table's
definition and an UPDATE of no row that names all columns are written together. If the context and
the definition are those of the time before, so are the meaning of the text and the column packets.
In any other case what the server returned is dropped, and the STREAM is proven as if it were the
first.

Each of the three is left out where it shows nothing new:
- the context, if no statement has run in the session since it was shown: nothing else changes it. A
  STREAM … FOR UPDATE as text without a condition does not need it either (`_means_the_same`): the
  session reads the rows itself, and the server's answer describes them;
- the definition, if another session reads it meanwhile (proxy.statements.definition_checks);
- the rights, if the context is left out and they were proven less than half of `rights_max_age_s`
  ago. Running streams renew them at the same age.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from engine.model import RowFormat
from engine.queue_table import QueueTable
from engine.quoting import quoted
from engine.service import Engine
from proxy.session.commit_notices import PreparedStream
from proxy.session.internal_queries import (
    UNBOUND,
    Context,
    Refused,
    checked_query,
    context_answer,
    context_signature,
    definition_digest,
    definition_seen,
    end_own_transaction,
    not_refused,
    read_context,
    remember_context,
    take_context,
)
from proxy.session.known_streams import Key, KnownStream, Wanted
from proxy.session.prepared import python_values
from proxy.session.queries import sql
from proxy.session.stream import INTERRUPTED
from proxy.statements.definition_checks import DefinitionChecks
from proxy.statements.long_statements import LongStatementReader
from proxy.statements.rights import right_to_stream
from proxy.statements.tables import known_table_id, may_settle, refused_as_client
from proxy.wire.packets import AUTOCOMMIT, ServerError
from proxy.wire.params import CURSOR_FLAGS_AT
from sqlrewrite.names import TableName
from sqlrewrite.stream import Star, StreamStatement, parse_stream

if TYPE_CHECKING:
    from proxy.session.answers import Answer, Answers
    from proxy.session.ports import ClientSession
    from proxy.session.prepared import TrackedStatement

PARAMETER_COUNT_AVAILABLE = 0x08

OMITTING = frozenset({"MYSQL323", "MYSQL40", "NO_FIELD_OPTIONS", "NO_KEY_OPTIONS", "NO_TABLE_OPTIONS"})
"""Values of MariaDB's sql_mode under which SHOW CREATE TABLE omits some of the definition."""

_COMMIT = sql("commit").encode()


@dataclass(frozen=True, slots=True)
class ProvenStream:
    """A STREAM whose client may read its columns and settle its messages."""

    statement: StreamStatement
    """Without parameters."""
    queue: QueueTable
    row_format: RowFormat
    header: tuple[bytes, ...] | None
    """The packets that precede the rows; None if they come with the rows (`KnownStream.header`)."""
    begun_s: float
    """When the last proof of the rights was begun, by the monotonic clock."""
    was_in_transaction: bool
    """Whether the client had a transaction open before the internal queries."""


class Proof:
    """Proves STREAM statements on the sessions of their clients.

    Its methods raise what ends the statement: SqlError, ServerError, Refused, UnusableQueue,
    StoreError, ConnectionError. Under autocommit=0 the internal queries may have begun a
    transaction, which the caller ends (`end_own_transaction`).
    """

    def __init__(
        self, engine: Engine, reader: LongStatementReader, rights_max_age_s: float, clock: Callable[[], float]
    ) -> None:
        """`rights_max_age_s`: no row is delivered on an older proof of the rights."""
        self._engine = engine
        self._reader = reader
        # Half of it, as for running streams: the rows of a STREAM that begins wait for no proof.
        self._rights_renewed_s = rights_max_age_s / 2
        self._clock = clock
        self._checks = DefinitionChecks()

    async def query(self, session: ClientSession, text: bytes) -> ProvenStream:
        """Prove a statement as text."""
        if (proven := await self._proven_again(session, text)) is not None:
            return proven
        was_in_transaction = session.in_transaction
        signature, context = await _context(session)
        statement = await self._reader.read(session, text, partial(_parse_stream, context))
        if statement.param_count:
            raise UNBOUND.again()
        begun_s = self._clock()
        queue, seen = await self._queue(session, context.full_name(statement.table))
        _refuse_endless(statement, in_transaction=was_in_transaction)
        columns = _columns(statement, queue)
        condition = statement.condition.sql() if statement.condition else "TRUE"
        header = await checked_query(session, _select(queue, columns, statement.partitions, condition))
        row_format = context.row_format(columns, binary=False)
        proven = ProvenStream(statement, queue, row_format, _before_rows(header), begun_s, was_in_transaction)
        if (known := _known(proven, context, signature, seen, text)) is not None:
            session.known_streams.remember(text, len(text), known)
        return proven

    async def prepare(self, session: ClientSession, text: bytes) -> tuple[PreparedStream, str]:
        """The statement, and the SELECT of no row that the server is to prepare for it."""
        context = await read_context(session)
        statement = await self._reader.read(session, text, partial(_parse_stream, context))
        queue, _ = await self._queue(session, context.full_name(statement.table))
        # The SELECT has as many parameters as the statement, so that the server counts and takes
        # them.
        condition = statement.condition
        others = statement.param_count - (condition.param_count if condition else 0)
        where = (condition.template() if condition else "TRUE") + " AND ? IS NULL" * others
        columns = _columns(statement, queue)
        return PreparedStream(queue.id, statement, columns), _select(queue, columns, statement.partitions, where)

    async def execute(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedStream, payload: bytes
    ) -> ProvenStream:
        """Prove the execution of a prepared STREAM."""
        attributes = session.classifier.attributes
        execution = own.read_execution(payload, prepared.statement.param_count, attributes=attributes)
        key = own, execution
        has_long_data = bool(own.long_data)  # The server holds them for the execution.
        if not has_long_data and (proven := await self._proven_again(session, key)) is not None:
            return proven
        was_in_transaction = session.in_transaction
        signature, context = await _context(session)
        statement = prepared.statement.bind(python_values(execution, context.codec))
        begun_s = self._clock()
        queue, seen = await self._queue(session, TableName(prepared.table.name, prepared.table.db))
        _refuse_endless(statement, in_transaction=was_in_transaction)
        flags = payload[CURSOR_FLAGS_AT] & PARAMETER_COUNT_AVAILABLE  # No cursor: rows are sent as they come.
        plain = payload[:CURSOR_FLAGS_AT] + bytes([flags]) + payload[CURSOR_FLAGS_AT + 1 :]
        plain = own.rearranged(plain, range(prepared.statement.param_count), attributes=attributes)
        session.check_interrupted()
        header = not_refused(await session.internal_command(plain))
        row_format = context.row_format(prepared.columns, binary=True)
        proven = ProvenStream(statement, queue, row_format, _before_rows(header), begun_s, was_in_transaction)
        if (known := _known(proven, context, signature, seen)) is not None and not has_long_data:
            session.known_streams.remember(key, len(payload), known)
        return proven

    async def _proven_again(self, session: ClientSession, key: Key) -> ProvenStream | None:
        """Prove a STREAM in one round trip; None if it has to be proven as if it were the first.

        None of the queries has an effect that another statement of the session can see, so it does
        not matter that all of them run.
        """
        known = session.known_streams.get(key)
        if known is None or session.classifier.known_db != known.context.db:
            return None
        was_in_transaction = session.in_transaction
        session.check_interrupted()
        shown = await self._shown_with_others(session, known)
        if not shown:
            # The server's answers show whether a transaction is open.
            await end_own_transaction(session, was_in_transaction=was_in_transaction)
            shown = await self._shown_alone(session, known)
        if shown:
            if known.header is not None:
                remember_context(session, known.context)
            _refuse_endless(known.statement, in_transaction=was_in_transaction)
            return ProvenStream(
                known.statement, known.queue, known.row_format, known.header, known.granted_s, was_in_transaction
            )
        session.known_streams.forget(key)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        return None

    async def _shown_alone(self, session: ClientSession, known: KnownStream) -> bool:
        """Whether the session shows the context, the definition and the rights of the time before. Raises
        Refused if one of the queries was interrupted."""
        check, shown = self._checks.begin(_subject(session, known)), False
        try:
            shown = await self._shown(session, known, self._wanted(session, known, definition=True))
        finally:
            self._checks.end(check, shown=shown)
        if shown := shown and self._is_known(known):
            session.classifier.not_hidden(known.queue.id)
        return shown

    async def _shown_with_others(self, session: ClientSession, known: KnownStream) -> bool:
        """Whether the session shows the context and the rights, and another session the definition.
        Returns False if no other is reading it, and whenever the session has to show all itself.

        No temporary table may hide the queue: either nothing has run in the session since it has shown
        the definition itself, or the session reads the rows itself and has run nothing that could have
        made one.
        """
        has_run_nothing = session.classifier.shown_context == known.context_signature
        if not (has_run_nothing or _certainly_not_hidden(session, known)):
            return False
        definition = self._checks.join(_subject(session, known))
        if definition is None:
            return False
        wanted = self._wanted(session, known, definition=False)
        if any(wanted) and not await self._shown(session, known, wanted):
            return False
        if not (await definition and self._is_known(known)):
            return False
        session.check_interrupted()
        if not session.in_step:
            raise ConnectionResetError("the server closed the connection")
        return True

    def _wanted(self, session: ClientSession, known: KnownStream, *, definition: bool) -> Wanted:
        """What the session has to show."""
        context = known.header is not None and session.classifier.shown_context != known.context_signature
        # What has run may be a SET ROLE. If the session reads the rows itself, the server denies them then.
        return Wanted(context, definition, context or self._clock() - known.granted_s > self._rights_renewed_s)

    async def _shown(self, session: ClientSession, known: KnownStream, wanted: Wanted) -> bool:
        """Whether the session shows this as it was the time before. Raises Refused if one of the queries
        was interrupted."""
        begun_s, context = self._clock(), session.classifier.shown_context
        answers = await _answered(session, known, known.queries(wanted))
        if not known.is_proof(wanted, answers.raw):
            if not _same(known, wanted, answers.split()):
                return False
            known.proven_by(wanted, answers.raw)
        if wanted.rights:
            known.granted_s = begun_s
        session.classifier.shown_context = known.context_signature if wanted.context else context
        return True

    def _is_known(self, known: KnownStream) -> bool:
        """Whether the engine has read no other description of the table since."""
        return self._engine.known_queue(known.queue.id, known.definition) is known.queue

    async def _queue(self, session: ClientSession, table: TableName) -> tuple[QueueTable, bytes | None]:
        """The table as the queue that it is now, if the client may stream from it and settle its
        messages; and the digest of its definition, if the client may see all of it."""
        table_id = known_table_id(table)
        seen = await definition_seen(session, table)
        found = self._engine.queue(table_id, text=seen, fresh=seen is None)
        queue = await refused_as_client(session, table, found)
        await may_settle(session, table)
        session.classifier.not_hidden(queue.id)
        return queue, seen


def _subject(session: ClientSession, known: KnownStream) -> Hashable:
    """What a check of the definition compares."""
    return session.origin, known.queue.id, known.definition


def _certainly_not_hidden(session: ClientSession, known: KnownStream) -> bool:
    """Whether the rows come over the client's own connection, and nothing has run on it that could have
    made a temporary table."""
    queue = known.queue
    return known.statement.locks and queue.writes_alike and not session.classifier.may_be_hidden(queue.id)


async def _answered(session: ClientSession, known: KnownStream, queries: Sequence[bytes]) -> Answers:
    """The answers to queries that are written together. Under autocommit=0, a transaction that they begin
    ends with them, unless the client's locks follow in it."""
    goes_on = known.statement.locks or session.in_transaction or session.status & AUTOCOMMIT
    return await session.internal_queries(queries if goes_on else (*queries, _COMMIT))


def _raise_interrupted(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.outcome.error_code == INTERRUPTED.code:
            raise Refused(answer.packets[-1].payload)


def _same(known: KnownStream, wanted: Wanted, answers: Sequence[Answer]) -> bool:
    """Whether the answers show what is known. Raises Refused if one of the queries was
    interrupted."""
    _raise_interrupted(answers)
    if not all(answer.outcome.ok for answer in answers):
        return False
    left = iter(answers)
    if wanted.context and context_signature(next(left)) != known.context_signature:
        return False
    return not wanted.definition or definition_digest(next(left)) == known.definition


async def _context(session: ClientSession) -> tuple[tuple[bytes | None, ...], Context]:
    answer = await context_answer(session)
    return context_signature(answer), take_context(session, answer)


def _known(
    proven: ProvenStream,
    context: Context,
    signature: tuple[bytes | None, ...],
    seen: bytes | None,
    text: bytes | None = None,
) -> KnownStream | None:
    """What to remember of a STREAM; None if it cannot be proven in one round trip. `text`: the statement,
    unless it is prepared."""
    if seen is None or context.sql_mode & OMITTING:
        return None
    queue = proven.queue
    texts = (
        sql("context", server_name="NULL"),
        sql("show_create_table", table=TableName(queue.id.name, queue.id.db).quoted()),
        right_to_stream(queue, columns_read(proven.statement, proven.row_format)),
    )
    if not all(map(str.isascii, texts)):
        return None  # In another character set, their bytes could be other statements.
    header = None if text is not None and _means_the_same(text, proven) else proven.header
    first, second, third = map(str.encode, texts)
    return KnownStream(
        *(proven.statement, queue, proven.row_format, header, context, signature, seen, (first, second, third)),
        granted_s=proven.begun_s,
    )


def _means_the_same(text: bytes, proven: ProvenStream) -> bool:
    """Whether a STREAM means the same in any context with the same default database, and the session
    reads its rows itself. The server's answer then describes them."""
    return (
        proven.statement.locks
        and proven.statement.condition is None
        and not proven.queue.id_pad_chars
        and proven.queue.id_index.isascii()
        and text.isascii()
        and not (b'"' in text or b"\\" in text)
    )


def _before_rows(answer: Answer) -> tuple[bytes, ...]:
    """The packets that precede the rows, from an answer without any."""
    return tuple(packet.payload for packet in answer.packets[:-1])


def header_query(proven: ProvenStream) -> str:
    """A SELECT of no row, whose answer begins with the packets that precede the rows."""
    condition = proven.statement.condition
    columns, partitions = proven.row_format.columns, proven.statement.partitions
    return _select(proven.queue, columns, partitions, condition.sql() if condition else "TRUE")


async def with_header(session: ClientSession, proven: ProvenStream) -> ProvenStream:
    """The same with the packets that precede the rows. Raises Refused."""
    if proven.header is not None:
        return proven
    return replace(proven, header=_before_rows(await checked_query(session, header_query(proven))))


def columns_read(statement: StreamStatement, row_format: RowFormat) -> tuple[str, ...]:
    """All columns that a STREAM reads: those that it returns, and those of its condition."""
    return (*row_format.columns, *(statement.condition.columns if statement.condition else ()))


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


def _columns(statement: StreamStatement, queue: QueueTable) -> tuple[str, ...]:
    """The names of the columns, with those of the table in place of `*`."""
    named: list[str] = []
    for column in statement.columns:
        if isinstance(column, Star):
            named += queue.default_columns
        else:
            named.append(column)
    return tuple(named)


def _select(queue: QueueTable, columns: Sequence[str], partitions: Sequence[str], condition: str) -> str:
    """A SELECT of no row. Its answer describes the columns, or is an error if one is missing or
    denied."""
    table = TableName(queue.id.name, queue.id.db).quoted()
    if partitions:
        table += f" {partition_clause(partitions)}"
    return sql("stream_columns", columns=", ".join(map(quoted, columns)), table=table, condition=condition)


def partition_clause(partitions: Sequence[str]) -> str:
    """The clause that selects partitions."""
    return f"PARTITION ({', '.join(map(quoted, partitions))})"
