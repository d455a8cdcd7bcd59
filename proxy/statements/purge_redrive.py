"""PURGE QUEUE and REDRIVE QUEUE: many rows in batches, each batch one transaction on the client's
own session.

Locked rows are passed over, so these statements do not wait for an application's open transaction
and do not undo what it does. Rows that the server refuses to change are passed over, too
(engine.refused). If the work ends between two batches (KILL QUERY, a lost connection, an error),
every message is in one of the two tables. Neither runs inside a transaction of the
client's, which would have to be as large as the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from string import Template
from typing import TYPE_CHECKING, TypeVar

from engine.model import Key, TableId
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.refused import NAMED_MAX, InParts
from engine.service import Engine
from engine.store.port import NOT_OF_A_ROW, ROLLED_BACK
from engine.store.queries import FORMS
from proxy.session.internal_queries import (
    Refused,
    checked_query,
    end_own_transaction,
    from_hex,
    raw_rows,
    rows,
    server_time_ns,
)
from proxy.session.queries import sql
from proxy.statements.tables import comment_of, marked_comment, table_id
from proxy.wire.packets import ServerError, make_ok, parse_err
from sqlrewrite.condition import Condition
from sqlrewrite.definitions import NOW_NS
from sqlrewrite.names import TableName
from sqlrewrite.queue_statements import PurgeQueue, RedriveQueue

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

T = TypeVar("T")

BATCH_ROWS = 1_000
"""Rows of one transaction: so many that commits do not dominate, so few that locks are held for
milliseconds."""

ATTEMPTS_MAX = 5
"""Attempts at a batch that the server rolls back in favour of another transaction."""

REFUSED_MAX = 1_000
"""Rows that the server refuses and that are passed over. With more, the statement ends: a purge names them in the
text that finds the next batch."""

COLUMNS_MAX = 4_096
"""The most columns that a table can have."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What is done to rows in batches."""

    queue: QueueTable
    """The rows are its."""
    find: Callable[[Key | None, str], str]
    """The statement that finds and locks a batch: behind the last id of the batch before, and with a condition
    that leaves out what was refused."""
    statements: Callable[[str], Sequence[str]]
    """What is done to rows with these ids. Each statement concerns all of them."""
    done: str
    """What has been done, in a word."""
    committed: Callable[[], None] = lambda: None


class PurgeRedrive:
    """Carries out the two statements."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def purge(self, session: ClientSession, name: TableName) -> bytes:
        """Delete the messages of a queue that are acknowledged now; returns the OK packet."""
        queue = await self._usable(session, name)
        table = qualified(queue.id)
        hint = f"FORCE INDEX ({quoted(queue.scan_index)})" if queue.scan_index else ""
        now_ns = await server_time_ns(session)
        words = {"id": _id(queue), "table": table, "index_hint": hint, "before_ns": now_ns, "limit": BATCH_ROWS}
        work = _Work(
            queue,
            lambda _, more: sql("find_acknowledged", more=more, **words),
            lambda ids: [sql("delete_acknowledged", table=table, ids=ids)],
            "deleted",
        )
        return await _in_batches(session, work)

    async def redrive(self, session: ClientSession, statement: RedriveQueue) -> bytes:
        """Move dead messages to another queue as new ones; returns the OK packet."""
        dead = await self._usable(session, statement.dead)
        names = self._sources(dead.id) if statement.target is None else [statement.target]
        if not names:  # Its queue may have been made a moment ago, through another proxy.
            await self._engine.refresh_catalog()
            names = self._sources(dead.id)
        visible = [name for name in names if await comment_of(session, name) is not None]
        if statement.target is None and len(visible) != 1:
            found = ", ".join(f"{name.db}.{name.name}" for name in visible) or "no queue"
            hint = "say where its messages are to go, REDRIVE QUEUE … TO t"
            raise ServerError(1105, "HY000", f"{dead.id} is the DEAD_LETTER of {found}: {hint}")
        (target,) = visible or names
        return await self._move(session, dead, await self._usable(session, target), statement.condition)

    def _sources(self, dead: TableId) -> list[TableName]:
        """The queues whose dead messages go to this table."""
        return [
            TableName(queue.id.name, queue.id.db) for queue, _ in self._engine.runners() if queue.dead_letter == dead
        ]

    async def _usable(self, session: ClientSession, table: TableName) -> QueueTable:
        """The table as a queue that the client's session sees as well."""
        await marked_comment(session, table)
        return await self._engine.queue(table_id(table), fresh=True)

    async def _move(
        self, session: ClientSession, dead: QueueTable, target: QueueTable, condition: Condition | None
    ) -> bytes:
        source, into = qualified(dead.id), qualified(target.id)
        # A client without these rights may not see the columns either, and gets the server's error.
        await checked_query(session, sql("right_to_redrive", into=into, source=source))
        columns = await _common_columns(session, dead, target)
        names = ", ".join(map(quoted, columns))
        values = ", ".join(_AS_NEW.get(column.casefold(), quoted(column)) for column in columns)
        wanted = "" if condition is None else f" AND {condition.sql()}"

        def find(last: Key | None, _more: str) -> str:
            behind = "" if last is None else f" AND id > {FORMS[dead.id_kind].literal(last)}"
            return sql("find_dead", condition=f"time_acked IS NULL{behind}{wanted}", **words)

        words = {"id": _id(dead), "table": source, "id_index": quoted(dead.id_index), "limit": BATCH_ROWS}
        copy = {"into": into, "columns": names, "values": values, "table": source}
        work = _Work(
            dead,
            find,
            lambda ids: [sql("copy_dead", ids=ids, **copy), sql("delete_dead", table=source, ids=ids)],
            "moved",
            lambda: self._engine.written(target.id.name.casefold()),
        )
        return await _in_batches(session, work)


def refuse_in_transaction(statement: PurgeQueue | RedriveQueue, *, in_transaction: bool) -> None:
    """Raise ServerError inside a transaction of the client's."""
    if in_transaction:
        name = "PURGE QUEUE" if isinstance(statement, PurgeQueue) else "REDRIVE QUEUE"
        text = f"{name} commits batch by batch, so it cannot run inside a transaction: COMMIT or ROLLBACK first"
        raise ServerError(1179, "25000", text)


_AS_NEW = {"epoch": "0", "time_next": NOW_NS, "time_acked": "NULL"}
"""The values of columns that a moved message does not keep."""


async def _in_batches(session: ClientSession, work: _Work) -> bytes:
    """Run batches until one finds nothing; returns the OK packet with the number of all rows. Rows that the server
    refuses are passed over, and its error is raised behind the others."""
    await end_own_transaction(session, was_in_transaction=False)
    refused: dict[Key, ServerError] = {}
    total, last = 0, None
    while session.interrupted is None and len(refused) <= REFUSED_MAX:
        keys, done = await _in_transaction(session, partial(_batch, session, work, last, refused))
        total += done
        if done:
            work.committed()
        if not keys:
            break
        last = keys[-1]
    if session.interrupted is not None:
        raise session.interrupted.again()
    if refused:
        first = next(iter(refused.values()))
        count, ids = len(refused), ", ".join(map(str, list(refused)[:NAMED_MAX]))
        stay = f"1 row stays: id {ids}" if count == 1 else f"{count} rows stay, the first of them id {ids}"
        raise ServerError(first.code, first.sqlstate, f"{first.message}: {stay}; {total} rows are {work.done}")
    return make_ok(affected_rows=total, status=session.status)


async def _batch(
    session: ClientSession, work: _Work, last: Key | None, refused: dict[Key, ServerError]
) -> tuple[Sequence[Key], int]:
    """Do the work to a batch of rows, in parts if some are refused. Returns those that were found, and how many are
    done. `refused` gets the others."""
    form = FORMS[work.queue.id_kind]
    more = f" AND id NOT IN ({', '.join(map(form.literal, refused))})" if refused else ""
    keys = await _keys(session, work.queue, work.find(last, more))
    parts, done = InParts(keys, tries_max=2 * len(keys)), 0
    errors: dict[str, ServerError] = {}
    while part := parts.next():
        await checked_query(session, sql("mark"))
        try:
            await _all_of_them(session, len(part), work.statements(", ".join(map(form.literal, part))))
        except Refused as error:
            found = parse_err(error.payload)
            if found.code in NOT_OF_A_ROW:
                raise
            await checked_query(session, sql("back_to_mark"))
            errors[found.message] = found
            parts.refused(found.message)
        else:
            parts.done()
            done += len(part)
    refused |= {key: errors[text] for key, text in parts.reasons.items()}
    return keys, done


async def _all_of_them(session: ClientSession, rows: int, statements: Sequence[str]) -> None:
    """Run statements that concern so many rows each. Raises ServerError if one did not: by a trigger or a collation.
    No message may be lost."""
    counts = [(await checked_query(session, text)).outcome.affected_rows for text in statements]
    if set(counts) != {rows}:
        raise ServerError(1105, "HY000", f"Of {rows} rows {counts} were changed: rolled back")


async def _in_transaction(session: ClientSession, work: Callable[[], Awaitable[T]]) -> T:
    """Run one batch and commit it; repeat it if the server rolled it back in favour of another transaction."""
    attempts = 0
    while True:
        attempts += 1
        await checked_query(session, sql("read_committed"))
        await checked_query(session, sql("begin"))
        try:
            done = await work()
            await checked_query(session, sql("commit"))
            return done
        except (Refused, ServerError) as error:
            await session.internal_query(sql("rollback").encode())
            rolled_back = isinstance(error, Refused) and parse_err(error.payload).code in ROLLED_BACK
            if not rolled_back or attempts == ATTEMPTS_MAX:
                raise


def _id(queue: QueueTable) -> str:
    return Template(FORMS[queue.id_kind].expression).substitute(column="id")


async def _keys(session: ClientSession, queue: QueueTable, find: str) -> list[Key]:
    answer = await checked_query(session, find)
    return [FORMS[queue.id_kind].parse(raw) for (raw,) in raw_rows(session, answer) if raw is not None]


async def _common_columns(session: ClientSession, dead: QueueTable, target: QueueTable) -> list[str]:
    """The columns to copy: all of the dead messages. Raises ServerError if the target lacks one."""
    there = {name.casefold(): extra for name, extra in await _written_columns(session, target)}
    leases = {dead.lease_column, target.lease_column}
    here = [name for name, _ in await _written_columns(session, dead) if name not in leases]
    if lost := [name for name in here if name.casefold() not in there]:
        raise ServerError(
            1105,
            "HY000",
            f"{target.id} has no column {', '.join(lost)}, which the messages in {dead.id} would lose: add it first",
        )
    if target.dead_letter != dead.id and "auto_increment" in there["id"]:
        here = [name for name in here if name.casefold() != "id"]  # Other messages there may have these ids.
    return here


async def _written_columns(session: ClientSession, queue: QueueTable) -> list[tuple[str, str]]:
    """The columns that are not generated, each with its `extra`."""
    db, table = text_literal(queue.id.db), text_literal(queue.id.name)
    read = await rows(session, sql("table_columns", db=db, name=table, limit=COLUMNS_MAX))
    found = [(from_hex(name), from_hex(extra).lower()) for name, extra, _ in read]
    return [(name, extra) for name, extra in found if "generated" not in extra.replace("default_generated", "")]
