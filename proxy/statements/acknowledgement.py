"""ACK, NACK and EXTEND.

There are two ways. *Forwarded*: the statement becomes one guarded UPDATE, which runs in the client's session
and transaction, and the server's answer is the answer to the statement. *The engine's own act*: an ACK by ids
outside transactions is carried out on a connection of the engine, where ACKs of several clients share a
commit. It names the queue, also where a temporary table of the session hides that, and compares the ids with
their literals. It leaves the session alone, so ROW_COUNT() is that of the statement before.

Before the engine acts for a session, the session proves that it may: it runs the UPDATE of its ACK without
rows, on the queue and not on a temporary table. The proof holds for `rights_max_age_s`. What the engine has not
done, because a row or the table was locked, or a server is not there, is forwarded.

An ACK is forwarded if something in the session could show the difference, or the table could: if the
client wants that (`@ackstream_acks`), in a transaction, behind LOCK TABLES or SET TRANSACTION, where the
server's answers show transaction numbers, and where a trigger or a computed column depends on who runs it.

A prepared one is prepared on the server as its UPDATE, so most executions of NACK and EXTEND are relayed and
never come here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.model import TableId
from engine.packets import WireError, frame
from engine.queue_table import SettleColumns
from engine.quoting import qualified, quoted
from engine.service import Engine
from engine.store.port import AckResult
from proxy.session.commit_notices import DIGITS_MAX, PreparedSettle, Preparing, Settled, settled
from proxy.session.internal_queries import encodable, hides_queue, read_context
from proxy.session.ports import Begun
from proxy.session.queries import sql
from proxy.session.rephrasing import Rephrase
from proxy.session.stream import SERVER_LOST
from proxy.statements.long_statements import in_steps
from proxy.statements.tables import known_table_id, may_settle, refused_as_client
from proxy.wire.bulk import rearranged_in_bulk
from proxy.wire.commands import COM_QUERY, COM_STMT_PREPARE
from proxy.wire.mimic_adapter import Capabilities, Commands, ServerStatus
from proxy.wire.packets import AUTOCOMMIT, ServerError, make_err, make_ok
from proxy.wire.params import execute_id, make_query, query_text
from sqlrewrite.ack import ReasonColumns, SettleStatement, parse_settle, settle_steps
from sqlrewrite.classify import Verb
from sqlrewrite.errors import PARSE_ERROR, SqlError
from sqlrewrite.names import Param, TableName
from sqlrewrite.server_errors import TEXT_MAX, in_own_words

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession
    from proxy.session.prepared import TrackedStatement

OUTCOME_UNKNOWN: Final = (
    "It is not known whether the message is acknowledged: the connection to the server broke at the commit ({})."
    " Send the ACK again: it affects 0 rows if the message is acknowledged already"
)

UNREADABLE_CONDITION: Final = {
    verb: f"the server cannot read the condition here; {behind}"
    for verb, behind in (
        (Verb.ACK, "an ACK ends with it: DELAY and REASON belong to NACK, BY to EXTEND"),
        (Verb.NACK, "behind it NACK takes DELAY seconds and REASON 'text'"),
        (Verb.EXTEND, "behind it EXTEND takes BY seconds"),
    )
}

RECORD_CHANGED: Final = 1020
READ_BEFORE: Final = (
    "the transaction is rolled back, because it began to read before the message was delivered or extended:"
    " SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, or let it begin with the STREAM"
)
"""Only from versions of MariaDB that do not know AS_IT_IS and were told to refuse such rows."""

NO_REASON_COLUMN: Final = "{} has no column for a REASON: ALTER QUEUE {} REASON = reason adds one"

SETTLING: Final = (Verb.ACK, Verb.NACK, Verb.EXTEND)
"""The statements that are carried out here."""

SHORT_BYTES: Final = 4_096
"""Of a command that is read at once, in a tenth of a millisecond. A longer one is read in steps."""

LASTING: Final = AUTOCOMMIT | int(ServerStatus.SERVER_STATUS_NO_BACKSLASH_ESCAPES) | 0x8000
"""The status flags that depend on the session and not on the statement. The last is MariaDB's
SERVER_STATUS_ANSI_QUOTES."""

SESSION_TRACK: Final = int(Capabilities.CLIENT_SESSION_TRACK)


@dataclass(frozen=True, slots=True)
class _Request:
    """A statement that was read, and its UPDATE."""

    statement: SettleStatement
    table: TableId
    payload: bytes
    """The command that has the server carry it out."""
    pending: Settled
    epoch: int | None
    """That in its condition; None without one."""
    rephrase: Rephrase | None = None

    @property
    def fenced(self) -> bool:
        """Whether its condition names the epoch."""
        return self.statement.epoch is not None


class Acknowledgement:
    """Carries out the three statements."""

    def __init__(self, engine: Engine, *, gather: bool) -> None:
        """`gather`: whether the engine carries out ACKs; False: all are forwarded."""
        self._engine = engine
        self._gather = gather

    def begin(self, session: ClientSession, verb: Verb, payload: bytes, over: Callable[[], object]) -> Begun:
        """Begin to carry out a statement without a task, if all that it needs is known. The server owes no
        answer. If it is under way then, `over` is called when it is answered or forwarded."""
        request = self._read_at_once(session, verb, payload)
        if request is None:
            return Begun.NOTHING
        if self._is_for_engine(session, request):
            if not session.classifier.proven_rights.holds(request.table, fenced=request.fenced):
                return Begun.NOTHING
            if self._carry_out(session, request, over):
                return Begun.UNDER_WAY
        self._forward(session, request)
        return Begun.FORWARDED

    async def query(self, session: ClientSession, text: bytes) -> None:
        """A statement as text."""
        statement, table, update = await self._read(session, text)
        await self._settle(session, _as_text(session, text, statement, table, update))

    async def prepare(self, session: ClientSession, text: bytes) -> None:
        """PREPARE: the server prepares the UPDATE."""
        statement, table, update = await self._read(session, text)
        prepared = PreparedSettle(table, replace(statement, condition=b""))  # The server keeps the condition.
        rephrase = _about_own_text(session, statement, text, update)
        session.forward(bytes([COM_STMT_PREPARE]) + update, Preparing(prepared), rephrase)

    async def execute(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedSettle, payload: bytes
    ) -> None:
        """Run a prepared NACK or EXTEND whose delay or reason is a parameter, or an ACK."""
        statement, attributes = prepared.statement, session.classifier.attributes
        if not statement.first_params:
            await self._settle(session, _as_executed(session, own, prepared, payload))
            return
        execution = own.read_execution(payload, statement.param_count, attributes=attributes)
        statement.check_delay(execution.values)
        reordered = own.rearranged(payload, statement.params_order, attributes=attributes)
        session.forward(reordered, prepared.settled(execution.values))

    async def execute_in_bulk(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedSettle, payload: bytes
    ) -> None:
        """Run a prepared NACK or EXTEND whose delay or reason is a parameter once for each row of parameters."""
        statement = prepared.statement
        rearranging = rearranged_in_bulk(payload, statement.params_order, types=own.types, check=statement.check_delay)
        reordered, own.types = await in_steps(session, rearranging)
        session.forward(reordered, prepared.settled(None))

    async def _settle(self, session: ClientSession, request: _Request) -> None:
        if self._is_for_engine(session, request) and await self._proven(session, request):
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._carry_out(session, request, partial(_end, over)):
                await over
                return
        session.check_interrupted()
        self._forward(session, request)

    def _forward(self, session: ClientSession, request: _Request) -> None:
        plain = self._engine.may_carry_out_acks(request.table)  # No trigger runs.
        session.forward(request.payload, request.pending, request.rephrase, keeps_context=plain)

    def _is_for_engine(self, session: ClientSession, request: _Request) -> bool:
        """Whether the engine may carry out the statement, if the session proves its right."""
        classifier, values = session.classifier, request.pending.values
        return (
            self._gather
            and not classifier.keeps_acks
            and request.statement.verb is Verb.ACK
            and values is not None
            and request.pending.certain
            and (request.epoch is not None or not request.fenced)
            and bool(session.status & AUTOCOMMIT)
            and not (session.in_transaction or classifier.next_transaction_is_set or classifier.has_locked_tables)
            and self._engine.may_carry_out_acks(request.table)
        )

    async def _proven(self, session: ClientSession, request: _Request) -> bool:
        """Whether the session may carry out the ACK itself, as it has shown lately or shows now, and none of
        its answers would show the number of the transaction."""
        rights = session.classifier.proven_rights
        if rights.holds(request.table, fenced=request.fenced):
            return True
        if session.server_name is None or not (request.table.db + request.table.name).isascii():
            await read_context(session)
        begun_s = rights.begin()
        session.check_interrupted()
        texts = _proofs(request, tracks=bool(session.capabilities & SESSION_TRACK))
        encoded = [encodable(session, text) for text in texts]
        queries = [query for query in encoded if query is not None]
        if len(queries) < len(encoded):
            return False  # The session's character set cannot spell the name.
        definition, update, *tracks = (await session.internal_queries(queries)).split()
        shown = update.outcome.ok and not hides_queue(definition)
        if shown and all(answer.outcome.ok and answer.packets[-2].payload == b"\x010" for answer in tracks):
            rights.remember(request.table, fenced=request.fenced, begun_s=begun_s)
            return True
        return False

    def _carry_out(self, session: ClientSession, request: _Request, over: Callable[[], object]) -> bool:
        """Have the engine carry out the ACK, and answer it. The loop calls `over` when that is done, or the
        statement was forwarded. Returns False, and does nothing, if the engine does not act now."""
        answer = partial(self._answer, session, request, over)
        values = request.pending.values
        assert values is not None
        return self._engine.carry_out_ack(request.table, values, request.epoch, session.origin, answer)

    def _answer(self, session: ClientSession, request: _Request, over: Callable[[], object], result: AckResult) -> None:
        """Answer an ACK that the engine has carried out. If nothing was done, forward it."""
        try:
            if session.client.is_closing():
                return
            if isinstance(result, int):
                info = b"Rows matched: %d  Changed: %d  Warnings: 0" % (result, result)
                session.send(frame(make_ok(affected_rows=result, status=session.status & LASTING, info=info), 1))
            elif result is not None:
                error = ServerError(1105, "HY000", OUTCOME_UNKNOWN.format(result))
                session.send(frame(make_err(error.code, error.sqlstate, error.message), 1))
            elif (refusal := session.interrupted or (None if session.in_step else SERVER_LOST)) is not None:
                session.send(frame(make_err(refusal.code, refusal.sqlstate, refusal.message), 1))
            else:
                self._forward(session, request)
        except Exception:
            log.exception("%r: an ACK could not be answered", session, extra={"event": "statement.fault"})
            session.client.close()
        finally:
            over()

    def _read_at_once(self, session: ClientSession, verb: Verb, payload: bytes) -> _Request | None:
        """The statement, if it is short and nothing has to be read from a server; else None."""
        if len(payload) > SHORT_BYTES:
            return None
        try:
            if payload[0] == COM_QUERY and verb in SETTLING:
                return self._text_at_once(session, query_text(payload, attributes=session.classifier.attributes))
            own = session.classifier.statement(execute_id(payload)) if payload[0] == Commands.COM_STMT_EXECUTE else None
            if own is None or not isinstance(own.statement, PreparedSettle) or own.statement.statement.first_params:
                return None
            return _as_executed(session, own, own.statement, payload)
        except (SqlError, WireError):
            return None

    def _text_at_once(self, session: ClientSession, text: bytes) -> _Request | None:
        if b'"' in text or not text.isascii():
            return None
        statement = parse_settle(text, no_backslash_escapes=session.no_backslash_escapes)
        db = statement.table.db or session.classifier.known_db
        columns = None if db is None else self._engine.known_to_settle(TableId(db, statement.table.name))
        if columns is None or (statement.reason is not None and columns.reason is None):
            return None
        return _as_text(session, text, statement, columns.table, _update(statement, columns))

    async def _read(self, session: ClientSession, text: bytes) -> tuple[SettleStatement, TableId, bytes]:
        """The statement, its table, which is a queue, and its UPDATE. Raises SqlError, Refused,
        UnusableQueue, ServerError."""
        codec, ansi_quotes = "utf-8", False
        if b'"' in text or not text.isascii():
            context = await read_context(session)
            codec, ansi_quotes = context.codec, context.mode.ansi_quotes
        statement = await in_steps(
            session,
            settle_steps(text, codec, no_backslash_escapes=session.no_backslash_escapes, ansi_quotes=ansi_quotes),
        )
        db = statement.table.db or session.classifier.known_db or (await read_context(session)).db
        table = TableName(statement.table.name, db)
        columns = await refused_as_client(session, table, self._engine.to_settle(known_table_id(table)))
        session.check_interrupted()
        if statement.reason is not None and columns.reason is None:
            await may_settle(session, table)
            raise ServerError(1105, "HY000", NO_REASON_COLUMN.format(columns.table, qualified(columns.table)))
        return statement, columns.table, _update(statement, columns)


def _update(statement: SettleStatement, columns: SettleColumns) -> bytes:
    lease = None if columns.lease is None else quoted(columns.lease).encode()
    reason = _reason_columns(columns)
    return statement.update(lease, reason, by_primary_key=columns.by_primary_key, ack_mark=columns.ack_mark)


def _as_text(
    session: ClientSession, text: bytes, statement: SettleStatement, table: TableId, update: bytes
) -> _Request:
    query = make_query(update, attributes=session.classifier.attributes)
    rephrase = _about_own_text(session, statement, text, update)
    return _Request(statement, table, query, settled(statement, table), _epoch(statement, ()), rephrase)


def _as_executed(session: ClientSession, own: TrackedStatement, prepared: PreparedSettle, payload: bytes) -> _Request:
    """An execution with the values of its parameters; without, if they cannot be read: the server refuses it."""
    statement = prepared.statement
    try:
        values = own.read_values(payload, statement.param_count, attributes=session.classifier.attributes)
    except WireError:
        return _Request(statement, prepared.table, payload, prepared.settled(None), None)
    return _Request(statement, prepared.table, payload, prepared.settled(values), _epoch(statement, values))


def _proofs(request: _Request, *, tracks: bool) -> list[str]:
    """The queries of a proof: the definition of the table, the UPDATE of the ACK without rows, and whether the
    server's answers show transactions."""
    table = TableName(request.table.name, request.table.db).quoted()
    fence = "AND epoch IS NULL" if request.fenced else ""
    queries = [sql("show_create_table", table=table), sql("right_to_ack", table=table, fence=fence)]
    return [*queries, sql("tracks_transactions")] if tracks else queries


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():  # The client may be gone.
        future.set_result(None)


def _about_own_text(session: ClientSession, statement: SettleStatement, text: bytes, update: bytes) -> Rephrase:
    """Turns the server's syntax error about the UPDATE into one about the client's statement: not if the
    condition is of a form that each server can read, or of megabytes. `_advised` does the rest."""
    if statement.keys is not None or len(update) > TEXT_MAX:
        return _advised
    codec = session.codec

    def rephrase(error: ServerError) -> ServerError | None:
        if error.code != PARSE_ERROR:
            return _advised(error)
        own, sent = text.decode(codec, "replace"), update.decode(codec, "replace")
        rephrased = in_own_words(error.message, sent, own, statement.verb.name, UNREADABLE_CONDITION[statement.verb])
        return ServerError(rephrased.code, rephrased.sqlstate, rephrased.message)

    return rephrase


def _advised(error: ServerError) -> ServerError | None:
    """An error about a row that has changed since the transaction began to read, with what to do."""
    if error.code != RECORD_CHANGED:
        return None
    return ServerError(error.code, error.sqlstate, f"{error.message}; {READ_BEFORE}")


def _reason_columns(columns: SettleColumns) -> ReasonColumns | None:
    if columns.reason is None:
        return None
    at = None if columns.reason.at is None else quoted(columns.reason.at).encode()
    return ReasonColumns(quoted(columns.reason.text).encode(), at, columns.reason.chars_max)


def _epoch(statement: SettleStatement, values: Sequence[object]) -> int | None:
    """The epoch in the condition; None without it, and if it is no usual number."""
    match statement.epoch:
        case Param(index):
            value = values[index]
            return value if isinstance(value, int) else None
        case bytes(digits) if len(digits) <= DIGITS_MAX:
            return int(digits)
        case _:
            return None
