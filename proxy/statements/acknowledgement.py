"""ACK, NACK and EXTEND: each is one guarded UPDATE in the client's session and transaction.

The server's answer to the UPDATE is the answer to the statement. Before it is sent, the table is
known to be a queue. A prepared one is prepared on the server as its UPDATE, so most executions are
relayed and never come here.

An ACK of one id outside a transaction may be committed together with those of other clients, on a
connection of the engine, if the client can observe no difference: its session has just carried out
one of the same form (OwnAcks), and has run nothing that could make another one do anything else
(`CommandClassifier.updates_alike`). Its answer is made from the server's answer to that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.model import TableId
from engine.packets import WireError, frame
from engine.queue_table import SettleColumns
from engine.quoting import qualified, quoted
from engine.runtime.gathered_acks import AckResult
from engine.service import Engine
from proxy.session.commit_notices import DIGITS_MAX, PreparedSettle, Preparing, Settled, settled
from proxy.session.internal_queries import read_context
from proxy.session.own_acks import AckAnswers, AckForm, KnownAck
from proxy.session.queries import sql
from proxy.session.rephrasing import Rephrase
from proxy.statements.long_statements import in_steps
from proxy.statements.tables import known_table_id, may_settle, refused_as_client
from proxy.wire.bulk import rearranged_in_bulk
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.packets import AUTOCOMMIT, ServerError, make_err
from proxy.wire.params import make_query
from sqlrewrite.ack import ReasonColumns, SettleStatement, settle_steps
from sqlrewrite.classify import Verb
from sqlrewrite.errors import PARSE_ERROR
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


class Acknowledgement:
    """Carries out the three statements."""

    def __init__(self, engine: Engine, *, gather: bool) -> None:
        """`gather`: whether ACKs of several clients may be committed together."""
        self._engine = engine
        self._gather = gather

    async def query(self, session: ClientSession, text: bytes) -> None:
        """A statement as text."""
        alone = self._gather and not session.in_transaction and bool(session.status & AUTOCOMMIT)
        known = alone and session.own_acks.known(text, session.classifier.known_db) is not None
        statement, table, update = await self._read(session, text)
        form = await self._form(session, statement, table, binary=False) if alone else None
        pending = settled(statement, table, form, may_be_hidden=session.classifier.may_be_hidden(table))
        # A known text was not gathered: else `begin` would have carried it out.
        if known or not await self._gathered(session, pending, _epoch(statement, ())):
            query = make_query(update, attributes=session.classifier.attributes)
            session.forward(query, pending, _about_own_text(session, statement, text, update))
        if form is not None:
            _learn(session, text, statement, form)
        elif not alone:
            session.own_acks.doubt()  # Its answer is no proof, and may be a refusal.

    async def prepare(self, session: ClientSession, text: bytes) -> None:
        """PREPARE: the server prepares the UPDATE."""
        statement, table, update = await self._read(session, text)
        form = await self._form(session, statement, table, binary=True)
        prepared = PreparedSettle(table, replace(statement, condition=b""), form)  # The server keeps the condition.
        rephrase = _about_own_text(session, statement, text, update)
        session.forward(bytes([COM_STMT_PREPARE]) + update, Preparing(prepared), rephrase)

    async def execute(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedSettle, payload: bytes
    ) -> None:
        """Run a prepared NACK or EXTEND whose delay or reason is a parameter, or an ACK that may be
        gathered."""
        statement, attributes = prepared.statement, session.classifier.attributes
        if not statement.moved_params:
            try:
                values = own.read_values(payload, statement.param_count, attributes=attributes)
            except WireError:
                session.forward(payload, prepared.settled(None, may_be_hidden=True))  # The server refuses it.
                return
            pending = prepared.settled(values, may_be_hidden=session.classifier.may_be_hidden(prepared.table))
            if not await self._gathered(session, pending, _epoch(statement, values)):
                session.forward(payload, pending)
            return
        execution = own.read_execution(payload, statement.param_count, attributes=attributes)
        statement.check_delay(execution.values)
        reordered = own.rearranged(payload, _order(statement), attributes=attributes)
        session.forward(reordered, prepared.settled(execution.values, may_be_hidden=True))

    async def execute_in_bulk(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedSettle, payload: bytes
    ) -> None:
        """Run a prepared NACK or EXTEND whose delay or reason is a parameter once for each row of parameters."""
        statement = prepared.statement
        rearranging = rearranged_in_bulk(payload, _order(statement), types=own.types, check=statement.check_delay)
        reordered, own.types = await in_steps(session, rearranging)
        session.forward(reordered, prepared.settled(None, may_be_hidden=True))

    async def _form(
        self, session: ClientSession, statement: SettleStatement, table: TableId, *, binary: bool
    ) -> AckForm | None:
        """The form of an ACK that may be gathered; None of any other statement."""
        one = statement.verb is Verb.ACK and statement.keys is not None and len(statement.keys) == 1
        if not (self._gather and one and session.classifier.updates_alike and (table.db + table.name).isascii()):
            return None  # Names in ASCII have the same bytes in all character sets.
        if session.server_name is None:
            await read_context(session)
        return AckForm(table, statement.epoch is not None, binary)

    def begin(self, session: ClientSession, ack: KnownAck, over: Callable[[bool], object]) -> bool:
        """Carry out an ACK of a known text together with those of other clients, and answer it.

        The server owes no answer. The loop calls `over` afterwards; with False if nothing was done, and
        the session has to carry it out. Returns False if that is known at once: then `over` is not called.
        """
        return self._begin(session, ack.form, ack.key, None, over)

    async def _gathered(self, session: ClientSession, pending: Settled, epoch: int | None = None) -> bool:
        """The same for an ACK that was read. Returns whether it is answered. `epoch`: that in its
        condition."""
        form = pending.form
        if form is None or pending.values is None or (epoch is None and form.fenced):
            return False  # The last: it is no usual number.
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self._begin(session, form, pending.values[0], epoch, partial(_set, over)):
            return False
        if await over:
            return True
        session.check_interrupted()
        if not session.in_step:
            raise ConnectionResetError("the server closed the connection")
        return False

    def _begin(
        self, session: ClientSession, form: AckForm, value: object, epoch: int | None, over: Callable[[bool], object]
    ) -> bool:
        alike = session.classifier.updates_alike and not session.in_transaction
        answers = session.own_acks.answers(form, session.status) if alike else None
        if answers is None:
            return False
        answer = partial(_answer, session, form.table, answers, over)
        return self._engine.gather_ack(form.table, value, epoch, session.origin, answer)

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
        reason = _reason_columns(columns)
        if statement.reason is not None and reason is None:
            await may_settle(session, table)
            raise ServerError(1105, "HY000", NO_REASON_COLUMN.format(columns.table, qualified(columns.table)))
        lease = None if columns.lease is None else quoted(columns.lease).encode()
        update = statement.update(lease, reason, by_primary_key=columns.by_primary_key, ack_mark=columns.ack_mark)
        return statement, columns.table, update


def _order(statement: SettleStatement) -> Sequence[int]:
    """The parameters in the order of the UPDATE: the delay and the reason are the client's last ones, and its first."""
    others = statement.param_count - statement.moved_params
    return (*range(others, statement.param_count), *range(others))


def _answer(
    session: ClientSession, table: TableId, answers: AckAnswers, over: Callable[[bool], object], result: AckResult
) -> None:
    """Answer an ACK that was gathered, unless nothing was done."""
    try:
        if isinstance(result, int):
            session.own_acks.catch_up = _leaving(result, table)
            session.send(answers.of(result))
        elif result is not None:
            error = ServerError(1105, "HY000", OUTCOME_UNKNOWN.format(result))
            session.send(frame(make_err(error.code, error.sqlstate, error.message), 1))
    except Exception:
        log.exception("%r: an ACK could not be answered", session, extra={"event": "statement.fault"})
        session.client.close()
    finally:
        over(result is not None)


def _set(future: asyncio.Future[bool], result: bool) -> None:  # noqa: FBT001
    if not future.done():  # The client may be gone.
        future.set_result(result)


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


def _leaving(count: int, table: TableId) -> bytes:
    """A statement that leaves a session as an ACK of so many messages does."""
    if count:
        return sql("count_of_one").encode()
    return sql("count_of_none", table=TableName(table.name, table.db).quoted()).encode("ascii")


def _learn(session: ClientSession, text: bytes, statement: SettleStatement, form: AckForm) -> None:
    """Remember the meaning of a text, except for its id."""
    db = None if statement.table.db is not None else session.classifier.known_db
    keys = statement.keys
    if keys is not None and isinstance(keys[0], bytes) and statement.epoch is None and (db or statement.table.db):
        session.own_acks.learn(text, keys[0], form, db)
