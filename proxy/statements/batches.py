"""The open batches of a queue, with what is left of them.

For SHOW BATCHES, all is read on the client's own session, with its rights: the queues with batches in
the same database that the client may read. For the page of a queue, the engine's account reads. A
queue names the batches of its first unacknowledged messages; each is counted up to a bound, by the
indexes of the columns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import islice
from string import Template
from typing import TYPE_CHECKING

from engine.model import Key, TableId
from engine.queue_table import BatchColumn, QueueTable
from engine.quoting import qualified, quoted
from engine.service import Engine
from engine.store.batches import converted
from engine.store.queries import FORMS
from proxy.session.internal_queries import Refused, checked_query
from proxy.session.queries import sql
from proxy.statements.depth import ClientCounting, Counting
from proxy.statements.results import COUNT, WORDS, ResultColumn, ResultSet
from proxy.statements.tables import marked_comment, refused_as_client, table_id
from proxy.wire.packets import ServerError
from sqlrewrite.names import TableName

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

LIMIT_DEFAULT = 100
"""Batches that are shown without LIMIT."""

READ_MAX = 5_000
"""Unacknowledged messages of the queue that are read for the batches that they name."""

COUNTED_MAX = 10_000
"""Messages of one batch in one table that are counted."""

BATCH_COLUMNS = (
    ResultColumn("Batch", WORDS),
    ResultColumn("Parts", COUNT),
    ResultColumn("Acknowledged", COUNT),
    ResultColumn("Dead", COUNT),
    ResultColumn("Waiting", COUNT),
)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A column of a table whose messages are counted, and a condition on their state."""

    index: str
    """The table with the hint that forces the index of the column."""
    column: str
    like: BatchColumn
    """The column whose type it has."""
    state: str = ""

    def count(self, batch: Key) -> str:
        literal = FORMS[self.like.kind].literal(converted(batch, self.like.kind))
        words = {"index": self.index, "column": self.column, "batch": literal, "limit": COUNTED_MAX}
        return f"({sql('count_of_batch', state=self.state, **words)})"


@dataclass(frozen=True, slots=True)
class ShownBatch:
    """A batch, with the counts of its messages."""

    name: str
    parts: int
    acknowledged: int
    dead: int
    waiting: int
    """Follow-ups that were not delivered yet."""


MayRead = Callable[[TableId, str], Awaitable[bool]]
"""Whether a column of a table may be read."""


class Batches:
    """Reads batches, and carries out SHOW BATCHES."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def show(self, session: ClientSession, table: TableName, limit: int | None) -> ResultSet:
        """The open batches that the messages of a queue name."""
        await marked_comment(session, table)
        queue = await refused_as_client(session, table, self._engine.queue(table_id(table)))
        if queue.batch is None and queue.after_batch is None:
            problem = f"{queue.id} has no batches: ALTER QUEUE {table.quoted()} BATCHES adds their columns"
            raise ServerError(1105, "HY000", problem)
        counting = ClientCounting(session)
        found = await self.read(counting, queue, limit or LIMIT_DEFAULT, partial(_may_read, session))
        return ResultSet(BATCH_COLUMNS, [list(astuple(batch)) for batch in found])

    async def read(
        self, counting: Counting, queue: QueueTable, limit: int, may_read: MayRead | None = None
    ) -> Sequence[ShownBatch]:
        """The open batches that the messages of a queue name. `may_read`: None if every column may be read. Raises what
        `counting` raises."""
        batches = await self._named(counting, queue, limit)
        parts, dead, waiting = await self._columns(queue, may_read)
        acknowledged = [_Counted(part.index, part.column, part.like, "AND time_acked IS NOT NULL") for part in parts]
        shown: list[ShownBatch] = []
        for batch in batches:
            text = sql(
                "batches_counted",
                parts=_sum(parts, batch),
                acknowledged=_sum(acknowledged, batch),
                dead=_sum(dead, batch),
                waiting=_sum(waiting, batch),
            )
            ((*counts,),) = await counting.rows(text)
            name = f"0x{batch.hex()}" if isinstance(batch, bytes) else str(batch)
            shown.append(ShownBatch(name, *(int(count or 0) for count in counts)))
        return shown

    async def _named(self, counting: Counting, queue: QueueTable, limit: int) -> list[Key]:
        """The batches that unacknowledged messages of the queue name, in their order."""
        found: list[Key] = []
        awaited, part = queue.after_batch, queue.batch
        if awaited is not None:
            named = f"{quoted(awaited.name)} IS NOT NULL"
            found += await self._named_by(counting, queue, awaited, awaited.index, named, limit)
        if part is not None and queue.scan_index is not None:
            found += await self._named_by(counting, queue, part, queue.scan_index, "TRUE", limit)
        unique = {str(batch): batch for batch in sorted(found, key=lambda batch: (isinstance(batch, str), batch))}
        return list(islice(unique.values(), limit))

    async def _named_by(
        self, counting: Counting, queue: QueueTable, column: BatchColumn, index: str, named: str, limit: int
    ) -> list[Key]:
        form = FORMS[column.kind]
        text = sql(
            "batches_named",
            value=f"HEX({Template(form.expression).substitute(column=quoted(column.name))})",
            column=quoted(column.name),
            index=f"{qualified(queue.id)} FORCE INDEX ({quoted(index)})",
            named=named,
            read_max=READ_MAX,
            limit=limit,
        )
        return [form.parse(bytes.fromhex(raw)) for (raw,) in await counting.rows(text) if raw is not None]

    async def _columns(
        self, queue: QueueTable, may_read: MayRead | None
    ) -> tuple[Sequence[_Counted], Sequence[_Counted], Sequence[_Counted]]:
        """The columns of parts, of dead parts, and of follow-ups in the database, as far as they may be read."""

        async def readable(table: TableId, column: str) -> bool:
            return may_read is None or await may_read(table, column)

        known = {found.id: found for found, _ in self._engine.runners()}
        of_database = {name: found for name, found in known.items() if name.db == queue.id.db}
        parts: list[_Counted] = []
        waiting: list[_Counted] = []
        letters: dict[TableId, _Counted] = {}
        for found in {**of_database, queue.id: queue}.values():
            if found.batch is not None and await readable(found.id, found.batch.name):
                parts.append(_counted(found.id, found.batch))
                dead = None if found.dead_letter is None else known.get(found.dead_letter)
                if dead is not None and await readable(dead.id, found.batch.name):
                    state = "AND time_acked IS NULL"
                    # Whether it has the index by batch is not known.
                    hinted = f"{qualified(dead.id)} IGNORE INDEX FOR GROUP BY ({quoted(dead.id_index)})"
                    letters[dead.id] = _Counted(hinted, quoted(found.batch.name), found.batch, state)
            if found.after_batch is not None and await readable(found.id, found.after_batch.name):
                state = "AND time_acked IS NULL AND COALESCE(epoch, 0) = 0"
                waiting.append(_counted(found.id, found.after_batch, state))
        return parts, list(letters.values()), waiting


async def _may_read(session: ClientSession, table: TableId, column: str) -> bool:
    try:
        await checked_query(session, sql("may_read", table=qualified(table), column=quoted(column)))
    except Refused:
        return False
    return True


def _counted(table: TableId, column: BatchColumn, state: str = "") -> _Counted:
    hint = f"{qualified(table)} FORCE INDEX ({quoted(column.index)})"
    return _Counted(hint, quoted(column.name), column, state)


def _sum(columns: Sequence[_Counted], batch: Key) -> str:
    return " + ".join([*(column.count(batch) for column in columns), "0"])
