"""PURGE QUEUE and REDRIVE QUEUE: many rows in batches, each batch one transaction on the client's
own session.

Locked rows are passed over, so these statements do not wait for an application's open transaction
and do not undo what it does. If the work ends between two batches (KILL QUERY, a lost connection,
an error), every message is in one of the two tables. Neither runs inside a transaction of the
client's, which would have to be as large as the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from string import Template
from typing import TYPE_CHECKING

from engine.model import Key, TableId
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.service import Engine
from engine.store.port import ROLLED_BACK
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

BATCH_ROWS = 1_000
"""Rows of one transaction: so many that commits do not dominate, so few that locks are held for
milliseconds."""

ATTEMPTS_MAX = 5
"""Attempts at a batch that the server rolls back in favour of another transaction."""

COLUMNS_MAX = 4_096
"""The most columns that a table can have."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The result of one transaction: its number of rows, and the last id."""

    count: int
    last: Key | None = None


class PurgeRedrive:
    """Carries out the two statements."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def purge(self, session: ClientSession, name: TableName) -> bytes:
        """Delete the messages of a queue that are acknowledged now; returns the OK packet."""
        queue = await self._usable(session, name)
        table, form = qualified(queue.id), FORMS[queue.id_kind]
        hint = f"FORCE INDEX ({quoted(queue.scan_index)})" if queue.scan_index else ""
        now_ns = await server_time_ns(session)
        find = sql("find_acknowledged", id=_id(queue), table=table, index_hint=hint, before_ns=now_ns, limit=BATCH_ROWS)

        async def batch(_last: Key | None) -> _Batch:
            keys = await _keys(session, queue, find)
            if keys:
                ids = ", ".join(map(form.literal, keys))
                deleted = await checked_query(session, sql("delete_acknowledged", table=table, ids=ids))
                return _Batch(deleted.outcome.affected_rows)
            return _Batch(0)

        return await _in_batches(session, batch)

    async def redrive(self, session: ClientSession, statement: RedriveQueue) -> bytes:
        """Move dead messages to another queue as new ones; returns the OK packet."""
        dead = await self._usable(session, statement.dead)
        names = self._sources(dead.id) if statement.target is None else [statement.target]
        if not names:  # Its queue may have been made a moment ago, through another proxy or worker.
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
        form = FORMS[dead.id_kind]
        source, into = qualified(dead.id), qualified(target.id)
        # A client without these rights may not see the columns either, and gets the server's error.
        await checked_query(session, sql("right_to_redrive", into=into, source=source))
        columns = await _common_columns(session, dead, target)
        names = ", ".join(map(quoted, columns))
        values = ", ".join(_AS_NEW.get(column.casefold(), quoted(column)) for column in columns)

        async def batch(last: Key | None) -> _Batch:
            behind = "" if last is None else f" AND id > {form.literal(last)}"
            wanted = "" if condition is None else f" AND {condition.sql()}"
            find = sql(
                "find_dead",
                id=_id(dead),
                table=source,
                id_index=quoted(dead.id_index),
                condition=f"time_acked IS NULL{behind}{wanted}",
                limit=BATCH_ROWS,
            )
            keys = await _keys(session, dead, find)
            if not keys:
                return _Batch(0)
            ids = ", ".join(map(form.literal, keys))
            copy = sql("copy_dead", into=into, columns=names, values=values, table=source, ids=ids)
            moved = await checked_query(session, copy)
            deleted = await checked_query(session, sql("delete_dead", table=source, ids=ids))
            counts = moved.outcome.affected_rows, deleted.outcome.affected_rows
            if set(counts) != {len(keys)}:  # By a trigger or a collation. No message may be lost.
                problem = f"Of {len(keys)} dead messages {counts[0]} were copied and {counts[1]} deleted: rolled back"
                raise ServerError(1105, "HY000", problem)
            return _Batch(len(keys), keys[-1])

        return await _in_batches(session, batch, lambda: self._engine.written(target.id.name.casefold()))


def refuse_in_transaction(statement: PurgeQueue | RedriveQueue, *, in_transaction: bool) -> None:
    """Raise ServerError inside a transaction of the client's."""
    if in_transaction:
        name = "PURGE QUEUE" if isinstance(statement, PurgeQueue) else "REDRIVE QUEUE"
        text = f"{name} commits batch by batch, so it cannot run inside a transaction: COMMIT or ROLLBACK first"
        raise ServerError(1179, "25000", text)


_AS_NEW = {"epoch": "0", "time_next": NOW_NS, "time_acked": "NULL"}
"""The values of columns that a moved message does not keep."""


async def _in_batches(
    session: ClientSession,
    batch: Callable[[Key | None], Awaitable[_Batch]],
    committed: Callable[[], None] | None = None,
) -> bytes:
    """Run batches until one finds nothing; returns the OK packet with the number of all rows."""
    await end_own_transaction(session, was_in_transaction=False)
    total = 0
    last: Key | None = None
    while session.interrupted is None:
        done = await _in_transaction(session, partial(batch, last))
        if committed is not None and done.count:
            committed()
        total, last = total + done.count, done.last
        if not done.count:
            return make_ok(affected_rows=total, status=session.status)
    raise session.interrupted.again()


async def _in_transaction(session: ClientSession, work: Callable[[], Awaitable[_Batch]]) -> _Batch:
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
