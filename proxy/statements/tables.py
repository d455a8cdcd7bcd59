"""A queue's table on the client's own session: its comment, and changes of both, with the client's
rights.

A comment is changed by reading it and writing it again. A lock of the engine's (engine.store.roster)
excludes the changes of other proxies between the two. A name or a comment may have characters that the
client's character set lacks: such statements are sent in UTF-8.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from engine.catalog.directives import is_marked, make_comment, split_comment
from engine.model import TableId
from engine.packets import error_fields
from engine.quoting import text_literal
from engine.runtime.queues import UnusableQueue
from engine.service import Engine
from engine.store.port import StoreError
from proxy.session.internal_queries import (
    NO_DATABASE,
    Context,
    Refused,
    checked_query,
    from_hex,
    not_refused,
    raw_rows,
    refuse_temporary,
    rows,
    setting,
    spelled,
)
from proxy.session.queries import sql
from proxy.wire.packets import ServerError
from sqlrewrite import literals
from sqlrewrite.names import TableName

if TYPE_CHECKING:
    from proxy.session.answers import ServerAnswer
    from proxy.session.ports import ClientSession

T = TypeVar("T")

CHANGE_WAIT_S = 10.0
"""How long to wait for another change of the same comment, which takes milliseconds."""

CHANGE_PAUSE_S = 0.05
"""Between two attempts."""

COMMENT_CHARS_MAX = 2048
"""The longest comment of a table on both servers. Without strict mode they cut a longer one, and so a directive."""

COMMENT_TOO_LONG = 1628

TABLE_DENIED = 1142
"""The server's error about a table on which the account lacks a privilege."""

Change = Callable[[dict[str, str], str], tuple[dict[str, str], str]]
"""From the directives in a comment and the text besides them to the new ones."""


def table_id(table: TableName) -> TableId:
    """The name of a table whose database is known."""
    assert table.db is not None
    return TableId(table.db, table.name)


def known_table_id(table: TableName) -> TableId:
    """The name of a table. Raises ServerError where its database is not known."""
    if table.db is None:
        raise NO_DATABASE.again()
    return TableId(table.db, table.name)


async def refused_as_client(session: ClientSession, table: TableName, finding: Awaitable[T]) -> T:
    """The result of `finding`, which raises UnusableQueue if the table is no queue.

    A client that may not see the table learns no more about it than the server's error: raises
    Refused with that. It is the error that a queue gets, too, so it does not show what is a queue.
    """
    try:
        return await finding
    except UnusableQueue:
        try:
            await checked_query(session, sql("right_to_see", table=table.quoted()))
        except Refused as refused:
            if error_fields(refused.payload)[0] == TABLE_DENIED:
                await may_settle(session, table)
            raise
        raise


def lock_wait_s(wait_s: Decimal) -> int:
    """The lock_wait_timeout for a stream that waits so long for its first message: whole seconds, at least one."""
    return max(1, math.ceil(wait_s))


def right_to_settle(table: TableName, condition: str = "FALSE", *, wait_s: Decimal | None = None) -> str:
    """An UPDATE of no row, which the server denies to a client that may not settle messages of the table.

    `condition` is false, and may name columns that the client needs as well. `wait_s`: how long the server
    may wait for a lock of the table, or of all tables, before the UPDATE fails with 1205; None: as long as
    the session's lock_wait_timeout says. At least a second.
    """
    within = sql("update") if wait_s is None else sql("update_within", seconds=lock_wait_s(wait_s))
    return sql("right_to_stream", within=within, table=table.quoted(), condition=condition)


async def may_settle(session: ClientSession, table: TableName, *, wait_s: Decimal | None = None) -> None:
    """Raises Refused with the server's error if the client may not settle messages of the table, or if a
    lock has held up the server for `wait_s`, as in `right_to_settle`."""
    await checked_query(session, right_to_settle(table, wait_s=wait_s))


def no_queue(table: TableName, hint: str) -> ServerError:
    """The error for a table that is no queue."""
    return ServerError(1347, "HY000", f"'{table.db}.{table.name}' is not a queue ({hint})")


def string_literal(session: ClientSession, text: str) -> str:
    """A string literal in the session's sql_mode, for places where the server takes no
    expression."""
    return literals.string(text, no_backslash_escapes=session.no_backslash_escapes)


async def comment_of(session: ClientSession, table: TableName) -> str | None:
    """The comment of a table; None if the client sees no such table."""
    assert table.db is not None
    found = await rows(session, sql("table_comment", db=text_literal(table.db), name=text_literal(table.name)))
    for db, name, comment, _ in found:
        if (from_hex(db), from_hex(name)) == (table.db, table.name):
            return from_hex(comment)
    # MariaDB compares names here without regard to case. That is right only where the server does
    # so everywhere.
    return next((from_hex(comment) for _, _, comment, folded in found if folded != "0"), None)


async def marked_comment(session: ClientSession, table: TableName) -> str:
    """The comment of a queue. Raises Refused with the server's error if the table does not exist or
    is denied to the client, and ServerError if it is no queue or is hidden by a temporary table."""
    comment = await comment_of(session, table)
    if comment is None:
        await checked_query(session, sql("right_to_see", table=table.quoted()))
        raise ServerError(1146, "42S02", f"Table '{table.db}.{table.name}' doesn't exist")
    if not is_marked(comment):
        raise no_queue(table, "its COMMENT does not hold the word vitess_message")
    await refuse_temporary(session, table)
    return comment


def comment_with(table: TableName, values: Mapping[str, str], rest: str = "") -> str:
    """The comment of a table with these directives. Raises ServerError if it is too long."""
    comment = make_comment(values, rest)
    if len(comment) <= COMMENT_CHARS_MAX:
        return comment
    named = values.get("dead_letter_of", "").count("|") + 1
    remedy = (
        f"its dead_letter_of would name {named} queues. Give some of them another DEAD_LETTER, or take away those that"
        " are gone: ALTER QUEUE … DEAD_LETTER_OF = (…)"
        if named > 1
        else "shorten the text of COMMENT, or the directives"
    )
    name = f"{table.db}.{table.name}" if table.db else table.name
    problem = f"The COMMENT of {name} would have {len(comment)} characters, and a table's comment has"
    raise ServerError(COMMENT_TOO_LONG, "HY000", f"{problem} {COMMENT_CHARS_MAX} at most: {remedy}")


async def show_create_table(session: ClientSession, context: Context, table: TableName) -> bytes:
    """The table's definition in UTF-8, whatever the character set of the client's results and its sql_mode are:
    SHOW cannot convert, and some sql_modes leave out the comment, or write names as another server would."""
    session.check_interrupted()
    sql_mode = text_literal(",".join(sorted(context.sql_mode)))
    ((quotes_names,),) = await rows(session, sql("quotes_names"))
    async with AsyncExitStack() as settings:
        if context.charset_results not in {"utf8mb4", None}:
            before = str(context.charset_results)
            await settings.enter_async_context(setting(session, "character_set_results", "utf8mb4", before))
        await settings.enter_async_context(setting(session, "sql_mode", "''", sql_mode))
        if quotes_names == "0":
            await settings.enter_async_context(setting(session, "sql_quote_show_create", "1", "0"))
        answer = await spelled(session, sql("show_create_table", table=table.quoted()), session.internal_query)
    ((_, written, *_),) = raw_rows(session, not_refused(answer))
    return written or b""


async def change_schema(engine: Engine, session: ClientSession, text: str, *, may_fail: bool = False) -> ServerAnswer:
    """Run DDL. It ends the client's transaction, as the server's own DDL does. Raises Refused,
    unless it `may_fail`."""
    answer = await spelled(session, text, session.internal_query)
    session.commit_notices.command_finished(answer.outcome)
    engine.schema_changed()
    return answer if may_fail else not_refused(answer)


async def change_comment(
    engine: Engine,
    session: ClientSession,
    table: TableName,
    change: Change,
    before: Callable[[], Awaitable[None]] | None = None,
) -> bytes:
    """Read a queue's comment and write it as `change` returns it; returns the OK packet. `before`: run
    first, while no other proxy changes the table."""

    async def locked() -> bytes:
        if before is not None:
            await before()
        values, rest = change(*split_comment(await marked_comment(session, table)))
        literal = string_literal(session, comment_with(table, values, rest))
        text = sql("change_comment", table=table.quoted(), comment=literal)
        answer = await change_schema(engine, session, text)
        return answer.packets[0].payload

    return await _alone(engine, table, locked)


async def _alone(engine: Engine, table: TableName, change: Callable[[], Awaitable[bytes]]) -> bytes:
    """Run `change` while no proxy changes the same table otherwise. Without user-level locks on the server,
    nothing excludes two changes."""
    digest = hashlib.sha256(table.quoted().casefold().encode()).hexdigest()[:32]
    lock = f"ackstream:{digest}"
    loop = asyncio.get_running_loop()
    until_s = loop.time() + CHANGE_WAIT_S
    try:
        while not await engine.begin_change(lock):
            if loop.time() > until_s:
                raise ServerError(1205, "HY000", f"Another change of {table.quoted()} is under way; try again")
            await asyncio.sleep(CHANGE_PAUSE_S)
    except StoreError:
        return await change()
    try:
        return await change()
    finally:
        with suppress(StoreError):  # The server releases the lock of a connection that has ended.
            await engine.end_change(lock)
