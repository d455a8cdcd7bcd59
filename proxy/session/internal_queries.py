"""Internal queries: statements of the proxy on a client's backing connection, which the client does
not see.

They run with the client's rights and in its character set, so the server itself decides what the
client may do and how names are read. An error of the server is passed on unchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.catalog.directives import is_marked
from engine.model import RowFormat
from engine.packets import WireError, text_values
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from proxy.session.charsets import BINARY, codec_of
from proxy.session.queries import sql
from proxy.wire.fields import Reader
from proxy.wire.packets import DEPRECATE_EOF, ServerError, make_err
from sqlrewrite.definitions import NOW_NS
from sqlrewrite.errors import SqlError
from sqlrewrite.lexicon import SqlMode
from sqlrewrite.names import TableName

if TYPE_CHECKING:
    from proxy.session.answers import ServerAnswer
    from proxy.session.ports import ClientSession

NO_DATABASE = ServerError(1046, "3D000", "No database selected")

RESTORING_ATTEMPTS = 3
"""Attempts to restore a setting of the client's session before the connection is closed."""

NOT_SHOWN = frozenset({ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})
"""Errors of SHOW CREATE TABLE after which another query gets the error that clients expect."""

CONTEXT_COLUMNS = 6
"""Of the context query, besides the server's name."""

_COUNTER = re.compile(rb" AUTO_INCREMENT=[0-9]+ ")
"""The part of a table's definition that each INSERT changes."""

UNBOUND = ServerError(
    1064, "42000", "You have an error in your SQL syntax: '?' can stand only in a statement that is prepared"
)


class Refused(Exception):
    """The server refused an internal query. Its ERR packet is the client's answer."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(payload)
        self.payload = payload


@dataclass(frozen=True, slots=True)
class Context:
    """The settings of a session that decide how names and conditions are read, and the bytes of
    rows."""

    db: str | None
    codec: str
    charset_results: str | None
    time_zone: str
    sql_mode: frozenset[str]
    like_escapes: bool
    charset: str
    """That of the client's statements, as the server calls it; `codec` is Python's name of it."""

    @property
    def mode(self) -> SqlMode:
        """The sql_mode and the character set, as far as they decide how text is read."""
        return SqlMode(
            ansi_quotes="ANSI_QUOTES" in self.sql_mode,
            no_backslash_escapes="NO_BACKSLASH_ESCAPES" in self.sql_mode,
            high_not_precedence="HIGH_NOT_PRECEDENCE" in self.sql_mode,
            like_escapes=self.like_escapes,
            strings_are_bytes=self.charset == BINARY,
        )

    @property
    def string_codec(self) -> str | None:
        """Python's name of the character set of strings that are sent as parameters; None: they are bytes."""
        return None if self.charset == BINARY else self.codec

    def check_text(self, text: bytes, statement: str) -> None:
        """Raise ServerError if a statement of this kind is no text in the client's character set."""
        try:
            text.decode(self.codec)
        except UnicodeDecodeError as error:
            text_of_error = f"Invalid {self.codec} character string in {statement}: {error}"
            raise ServerError(1300, "HY000", text_of_error) from None

    def full_name(self, table: TableName) -> TableName:
        """The table's name with its database."""
        return TableName(table.name, table.db or self.db)

    def row_format(self, columns: tuple[str, ...], *, binary: bool) -> RowFormat:
        """The format of rows in this session."""
        pad_char = "PAD_CHAR_TO_FULL_LENGTH" in self.sql_mode
        return RowFormat(columns, binary, self.charset_results, self.time_zone, pad_char)


async def end_own_transaction(session: ClientSession, *, was_in_transaction: bool) -> None:
    """Commit a transaction that internal queries have begun, as they do with autocommit off.

    Left open, it would hold the table's metadata lock.
    """
    if session.in_transaction and not was_in_transaction:
        await session.internal_query(sql("commit").encode())


def keep_next_transaction(session: ClientSession) -> None:
    """Raise ServerError if a SET TRANSACTION is in effect for the client's next transaction: an
    internal query that reads a table would use it up."""
    if session.classifier.next_transaction_is_set and not session.in_transaction:
        text = (
            "This statement would use up the SET TRANSACTION of this session, which is for its next transaction: begin"
            " that first, or COMMIT to drop the setting, or make it last with SET SESSION TRANSACTION"
        )
        raise ServerError(1105, "HY000", text)


async def definition_seen(session: ClientSession, table: TableName) -> bytes | None:
    """A digest of the table's definition as this session sees it, for Queues.inspect. Different
    definitions have different digests. None if the session does not see all of the definition.

    Raises ServerError if a temporary table hides the queue: internal queries would show the rights
    on that table.
    """
    answer = await spelled(session, sql("show_create_table", table=table.quoted()), session.internal_query)
    if answer.outcome.error_code in NOT_SHOWN:
        return None  # It has rights on single columns only. On a temporary table it would have all.
    text = _definition(not_refused(answer))
    if text.startswith(b"CREATE TEMPORARY"):
        refusal = f"Table '{table.db}.{table.name}' is hidden by a temporary table of this session: drop that one first"
        raise ServerError(1105, "HY000", refusal)
    if not is_marked(text.decode("utf-8", "replace")):
        return None  # It is no queue, or MariaDB omits the comment because of this session's sql_mode.
    return _digest(text)


def hides_queue(answer: ServerAnswer) -> bool:
    """Whether the answer to SHOW CREATE TABLE shows a temporary table."""
    return answer.outcome.ok and _definition(answer).startswith(b"CREATE TEMPORARY")


def definition_digest(answer: ServerAnswer) -> bytes:
    """The digest of a definition, as `definition_seen` returns it, from the answer to SHOW CREATE
    TABLE. If `definition_seen` has returned this digest, the definition is that of a queue."""
    return _digest(_definition(answer))


def _definition(answer: ServerAnswer) -> bytes:
    return (text_values(answer.packets[-2].payload)[1] or b"").replace(b"\0", b"")


def _digest(definition: bytes) -> bytes:
    return hashlib.blake2b(_COUNTER.sub(b" ", definition), digest_size=16).digest()


async def refuse_temporary(session: ClientSession, table: TableName) -> None:
    """Raise ServerError if a temporary table of this session hides the queue."""
    await definition_seen(session, table)


def as_packet(error: Exception) -> bytes:
    """The ERR packet for an error that ended a queue statement."""
    match error:
        case Refused():
            return error.payload
        case SqlError() | ServerError():
            return make_err(error.code, error.sqlstate, error.message)
        case WireError():
            return make_err(error.code, error.sqlstate, str(error))
        case StoreError():
            return make_err(1105, "HY000", f"ackstream cannot read the queue: {error}")
        case _:
            return make_err(1105, "HY000", str(error))


async def checked_query(session: ClientSession, text: str | bytes) -> ServerAnswer:
    """The server's answer to a statement; bytes are sent unchanged.

    Raises Refused with the server's error. If the running queue statement is interrupted, nothing
    is sent, and the error that it ends with is raised.
    """
    session.check_interrupted()
    if isinstance(text, bytes):
        return not_refused(await session.internal_query(text))
    return not_refused(await spelled(session, text, session.internal_query))


async def spelled(session: ClientSession, text: str, send: Callable[[bytes], Awaitable[ServerAnswer]]) -> ServerAnswer:
    """The answer that `send` returns to the text in the session's character set.

    If that lacks a character, the session reads UTF-8 for this one query. Names of columns may have
    such characters: the server lets a client SELECT all columns of a table, and shows question
    marks in their names.
    """
    if (encoded := encodable(session, text)) is not None:
        return await send(encoded)
    async with setting(session, "character_set_client", "utf8mb4", session.charset):
        return await send(text.encode())


def encodable(session: ClientSession, text: str) -> bytes | None:
    """The text in the client's character set; None if that lacks a character."""
    try:
        return text.encode(session.codec)
    except UnicodeEncodeError:
        return None


@asynccontextmanager
async def setting(session: ClientSession, variable: str, value: str, before: str) -> AsyncIterator[None]:
    """One of the session's variables has another value meanwhile. `value` and `before`: literals, or the names
    of character sets.

    Raises Refused. Closes the connection if the variable cannot be set back.
    """
    not_refused(await _set(session, variable, value))
    try:
        yield
    except (Refused, ServerError):
        await _set_surely(session, variable, before)
        raise
    await _set_surely(session, variable, before)


async def _set(session: ClientSession, variable: str, value: str) -> ServerAnswer:
    session.classifier.shown_context = None
    return await session.internal_query(sql("set_variable", variable=variable, value=value).encode())


async def _set_surely(session: ClientSession, variable: str, value: str) -> None:
    for _ in range(RESTORING_ATTEMPTS):  # A KILL QUERY meant for the query before may hit this one.
        if (await _set(session, variable, value)).outcome.ok:
            return
    session.hang_up(ServerError(1105, "HY000", f"ackstream could not set {variable} back"))


def not_refused(answer: ServerAnswer) -> ServerAnswer:
    """The answer itself. Raises Refused if it is an error."""
    if not answer.outcome.ok:
        raise Refused(answer.packets[-1].payload)
    return answer


async def read_context(session: ClientSession) -> Context:
    """Read the session's settings, and update what the session remembers of them."""
    return take_context(session, await context_answer(session))


async def context_answer(session: ClientSession) -> ServerAnswer:
    """The server's answer to the context query."""
    server_name = sql("server_name") if session.server_name is None else "NULL"
    return await checked_query(session, sql("context", server_name=server_name))


def context_signature(answer: ServerAnswer) -> tuple[bytes | None, ...]:
    """What two answers to the context query have in common if they show the same session.

    The packets before the row are compared as well: the collation of results is in no variable, but
    in the column packets. The name of the server is left out.
    """
    columns, behind = answer.packets[1 : 1 + CONTEXT_COLUMNS], answer.packets[2 + CONTEXT_COLUMNS : -2]
    packets = (packet.payload for packet in (*columns, *behind))
    return (*packets, *text_values(answer.packets[-2].payload)[:CONTEXT_COLUMNS])


def take_context(session: ClientSession, answer: ServerAnswer) -> Context:
    """The context in an answer to the context query; updates what the session remembers of it."""
    row = answer.packets[-2].payload
    db, client, results, time_zone, sql_mode, like_escapes, server = (_text(value) for value in text_values(row))
    context = Context(
        None if db is None else bytes.fromhex(db).decode(),
        codec_of(client or "utf8mb4"),
        results,
        time_zone or "SYSTEM",
        frozenset((sql_mode or "").split(",")),
        like_escapes == "1",
        client or "utf8mb4",
    )
    session.server_is(server)
    remember_context(session, context)
    return context


def remember_context(session: ClientSession, context: Context) -> None:
    """The session has this context now."""
    session.charset = context.charset
    session.codec = context.codec
    session.classifier.remember_db(context.db)


def raw_rows(session: ClientSession, answer: ServerAnswer) -> list[list[bytes | None]]:
    """The rows of an answer, with the bytes that the server sent."""
    count = Reader(answer.packets[0].payload).lenenc()
    first = 1 + count + (0 if session.capabilities & DEPRECATE_EOF else 1)
    return [text_values(packet.payload) for packet in answer.packets[first:-1]]


def text_rows(session: ClientSession, answer: ServerAnswer) -> list[list[str | None]]:
    """The rows of an answer whose values are ASCII: numbers, and text as HEX."""
    return [list(map(_text, row)) for row in raw_rows(session, answer)]


async def rows(session: ClientSession, text: str | bytes) -> list[list[str | None]]:
    """The rows that a statement returns, whose values are ASCII. See `checked_query`."""
    return text_rows(session, await checked_query(session, text))


async def server_time_ns(session: ClientSession) -> int:
    """The server's clock."""
    ((now,),) = await rows(session, sql("server_time", now_ns=NOW_NS))
    return int(now or 0)


def from_hex(value: str | None) -> str:
    """The text of a column that was read as HEX(CONVERT(… USING utf8mb4))."""
    return bytes.fromhex(value or "").decode()


def _text(value: bytes | None) -> str | None:
    # Settings are ASCII. In UCS-2 results they have NULs between the characters.
    return None if value is None else value.replace(b"\0", b"").decode("ascii", "replace")
