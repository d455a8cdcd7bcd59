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

A proof holds for a quarter of `rights_max_age_s`, a second by default, if the session has run nothing
since but queue statements and the beginnings and ends of transactions. These do not change its context,
and the loop of a worker has no others. What another session changes meanwhile, a right or the table,
counts when that time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from engine.model import RowFormat
from engine.queue_table import QueueTable
from engine.quoting import quoted
from engine.service import Engine
from engine.store.pymysql_adapter import ER
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
from proxy.session.known_streams import Key, KnownStream
from proxy.session.prepared import python_values
from proxy.session.queries import sql
from proxy.session.stream import INTERRUPTED
from proxy.statements.long_statements import LongStatementReader
from proxy.statements.rights import right_to_stream
from proxy.statements.tables import known_table_id, may_settle, refused_as_client
from proxy.wire.packets import AUTOCOMMIT, ServerError
from proxy.wire.params import CURSOR_FLAGS_AT
from sqlrewrite.names import TableName
from sqlrewrite.stream import Star, StreamStatement, parse_stream

if TYPE_CHECKING:
    from proxy.session.answers import Answers, ServerAnswer
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
    header: tuple[bytes, ...]
    """The packets that precede the rows."""
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
        self._holds_s = rights_max_age_s / 4
        self._clock = clock

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
        queue, seen = await self._queue(session, context.full_name(statement.table), statement.first_wait_s)
        _refuse_endless(statement, in_transaction=was_in_transaction)
        columns = _columns(statement, queue)
        condition = statement.condition.sql() if statement.condition else "TRUE"
        header = await checked_query(session, _select(queue, columns, statement.partitions, condition))
        row_format = context.row_format(columns, binary=False)
        proven = ProvenStream(statement, queue, row_format, _before_rows(header), begun_s, was_in_transaction)
        if (known := _known(proven, context, signature, seen)) is not None:
            session.known_streams.remember(text, len(text), known)
        return proven

    async def prepare(self, session: ClientSession, text: bytes) -> tuple[PreparedStream, str]:
        """The statement, and the SELECT of no row that the server is to prepare for it."""
        context = await read_context(session)
        statement = await self._reader.read(session, text, partial(_parse_stream, context))
        queue, _ = await self._queue(session, context.full_name(statement.table), None)  # Its parameters are not known.
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
        statement = prepared.statement.bind(python_values(execution, context.string_codec))
        begun_s = self._clock()
        table = TableName(prepared.table.name, prepared.table.db)
        queue, seen = await self._queue(session, table, statement.first_wait_s)
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
        """Prove a STREAM that is known; None if it has to be proven as if it were the first.

        None of the queries has an effect that another statement of the session can see, so it does
        not matter that all of them run.
        """
        known = session.known_streams.get(key)
        if known is None or session.classifier.known_db != known.context.db:
            return None
        was_in_transaction = session.in_transaction
        session.check_interrupted()
        if self._still_holds(session, known) or await self._shown(session, known):
            remember_context(session, known.context)
            _refuse_endless(known.statement, in_transaction=was_in_transaction)
            return ProvenStream(
                known.statement, known.queue, known.row_format, known.header, known.begun_s, was_in_transaction
            )
        session.known_streams.forget(key)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        return None

    def _still_holds(self, session: ClientSession, known: KnownStream) -> bool:
        """Whether the session has proven the STREAM a moment ago, and has run nothing since that could
        matter."""
        lately = self._clock() < known.begun_s + self._holds_s
        return lately and session.classifier.shown_context == known.context_signature and self._is_known(known)

    async def _shown(self, session: ClientSession, known: KnownStream) -> bool:
        """Whether the session shows the context, the definition and the rights as the time before. Raises
        Refused if one of the queries was interrupted."""
        begun_s = self._clock()
        answers = (await _answered(session, known)).split()
        if not (_same(known, answers) and self._is_known(known)):
            return False
        known.begun_s = begun_s
        session.classifier.shown_context = known.context_signature
        return True

    def _is_known(self, known: KnownStream) -> bool:
        """Whether the engine has read no other description of the table since."""
        return self._engine.known_queue(known.queue.id, known.definition) is known.queue

    async def _queue(
        self, session: ClientSession, table: TableName, wait_s: Decimal | None
    ) -> tuple[QueueTable, bytes | None]:
        """The table as the queue that it is now, if the client may stream from it and settle its
        messages; and the digest of its definition, if the client may see all of it. `wait_s`: how long
        the server may be held up by a lock of the table; None: as long as the session's settings say."""
        table_id = known_table_id(table)
        seen = await definition_seen(session, table)
        found = self._engine.queue(table_id, text=seen, fresh=seen is None)
        queue = await refused_as_client(session, table, found)
        await may_settle(session, table, wait_s=wait_s)
        return queue, seen


async def _answered(session: ClientSession, known: KnownStream) -> Answers:
    """The answers to the queries of the proof, which are written together. Under autocommit=0, a transaction
    that they begin ends with them, unless the client's locks follow in it."""
    goes_on = known.statement.locks or session.in_transaction or session.status & AUTOCOMMIT
    return await session.internal_queries(known.queries if goes_on else (*known.queries, _COMMIT))


def _raise_interrupted(answers: Sequence[ServerAnswer]) -> None:
    """Raise Refused if one of the queries was interrupted, or was held up by a lock for the stream's WAIT."""
    for answer in answers:
        if answer.outcome.error_code in (INTERRUPTED.code, ER.LOCK_WAIT_TIMEOUT):
            raise Refused(answer.packets[-1].payload)


def _same(known: KnownStream, answers: Sequence[ServerAnswer]) -> bool:
    """Whether the answers show what is known. Raises Refused as `_raise_interrupted` does."""
    _raise_interrupted(answers)
    if not all(answer.outcome.ok for answer in answers):
        return False
    context, definition, *_ = answers
    return context_signature(context) == known.context_signature and definition_digest(definition) == known.definition


async def _context(session: ClientSession) -> tuple[tuple[bytes | None, ...], Context]:
    answer = await context_answer(session)
    return context_signature(answer), take_context(session, answer)


def _known(
    proven: ProvenStream,
    context: Context,
    signature: tuple[bytes | None, ...],
    seen: bytes | None,
) -> KnownStream | None:
    """What to remember of a STREAM; None if it cannot be proven in one round trip."""
    if seen is None or context.sql_mode & OMITTING:
        return None
    queue = proven.queue
    texts = (
        sql("context", server_name="NULL"),
        sql("show_create_table", table=TableName(queue.id.name, queue.id.db).quoted()),
        right_to_stream(queue, columns_read(proven.statement, proven.row_format), wait_s=proven.statement.first_wait_s),
    )
    if not all(map(str.isascii, texts)):
        return None  # In another character set, their bytes could be other statements.
    queries = tuple(map(str.encode, texts))
    return KnownStream(
        *(proven.statement, queue, proven.row_format, proven.header, context, signature, seen, queries),
        begun_s=proven.begun_s,
    )


def _before_rows(answer: ServerAnswer) -> tuple[bytes, ...]:
    """The packets that precede the rows, from an answer without any."""
    return tuple(packet.payload for packet in answer.packets[:-1])


def columns_read(statement: StreamStatement, row_format: RowFormat) -> tuple[str, ...]:
    """All columns that a STREAM reads: those that it returns, and those of its condition."""
    return (*row_format.columns, *(statement.condition.columns if statement.condition else ()))


def _parse_stream(context: Context, text: bytes) -> StreamStatement:
    context.check_text(text, "STREAM")
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
