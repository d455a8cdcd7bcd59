"""The statements about a queue's messages, each with the reason for its form.

Messages are named by lists of ids, never by ranges. From `id IN (…) AND epoch = n` the proxy knows
which messages a statement acknowledges, and the server uses the primary key. All statements but
STREAM are fenced by the epoch: they leave messages alone that have been delivered again since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

from pymysql.converters import escape_string
from pyspark.sql import types as t

from ..endpoint import quoted
from ..errors import PipelineError
from .table import Table

NOW: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
"""The server's time, in nanoseconds as in `time_next`."""

IDS_MAX: Final = 2_000
"""Ids in one statement: it takes some ten milliseconds, holds its locks as long, and its text has
some 20 kB."""

_INEXACT: Final = frozenset({"float", "double", "bit", "geometry", "point", "vector"})
"""Types whose values change when they are written as text and read back."""

Id: TypeAlias = int | str | bytes
Row = Sequence[Any]


class Messages(Enum):
    """Which messages a batch `read` returns."""

    READY = "ready"
    """Due and not acknowledged. Messages in flight are not due."""
    UNACKNOWLEDGED = "unacknowledged"
    """Ready, scheduled or in flight."""
    ALL = "all"
    """These, and the acknowledged ones that are still kept."""


@dataclass(frozen=True)
class Statements:
    """The statements about one queue."""

    table: Table
    where: str | None = None
    """Which messages: the STREAM's own condition."""

    def __post_init__(self) -> None:
        kind = self._id.data_type
        if not self.table.is_queue:
            raise PipelineError(
                f"{self.table.quoted} is no message table: its comment lacks vitess_message, or it lacks one of the"
                " columns id, priority, epoch, time_next, time_acked (CREATE QUEUE makes one)"
            )
        if kind in _INEXACT:
            raise PipelineError(f"the id of {self.table.quoted} is a {kind}, which cannot be named exactly")

    @property
    def _id(self) -> Any:
        column = self.table.by_name.get("id")
        if column is None:
            raise PipelineError(f"{self.table.quoted} is no message table: it has no column id")
        return column

    @property
    def whole_ids(self) -> bool:
        """Whether ids are integers."""
        return self._id.integer_range is not None

    @property
    def along_key(self) -> str:
        """The table in FROM, with a hint to read it along the key on `id`.

        Without the hint, planners use another index where the table is small or where they expect
        few acknowledged rows. Then they sort for each page, or lock rows that do not match.
        """
        key = self.table.key_on_id
        return f"{self.table.quoted} FORCE INDEX ({quoted(key.name)})" if key else self.table.quoted

    def id_of(self, value: Any) -> Id:
        """An id from its value in a result of text or in `columns`."""
        if self.whole_ids:
            return int(value)
        if isinstance(value, bytes) and self._id.spark_type != t.BinaryType():
            return value.decode()
        return value  # type: ignore[no-any-return]  # as PyMySQL gives it

    def stream(self, count: int, wait_s: float) -> str:
        """Claim messages: their ids, epochs and deadlines. The tasks read the other columns."""
        where = f" WHERE ({self.where})" if self.where else ""
        patience = f"WAIT {wait_s:g}" if wait_s else "NOWAIT"
        return f"STREAM id, epoch, time_next FROM {self.table.quoted}{where} LIMIT {count} {patience}"

    def acknowledge(self, epoch: int, ids: Sequence[Id]) -> str:
        """Acknowledge messages, unless they were delivered again since."""
        return f"ACK FROM {self.table.quoted} WHERE {self._these(epoch, ids)}"

    def extend(self, epoch: int, ids: Sequence[Id], by_s: int) -> str:
        """Extend messages, unless they were delivered again since."""
        return f"EXTEND FROM {self.table.quoted} WHERE {self._these(epoch, ids)} BY {by_s}"

    def postpone(self, epoch: int, ids: Sequence[Id], by_s: int) -> str:
        """Let messages wait that were given back and that nobody has claimed since. They are not in
        flight, so EXTEND is not for them. Needs a lease column."""
        given_back = f"({quoted(self.table.lease_column or '')} <> time_next OR time_next <= {NOW})"
        return f"NACK FROM {self.table.quoted} WHERE {self._these(epoch, ids)} AND {given_back} DELAY {by_s}"

    def leases(self, epoch: int, ids: Sequence[Id]) -> str:
        """The leases of messages that were not delivered again since; NULL in a queue without a
        lease column."""
        lease = self.table.lease_column
        what = "NULL" if lease is None else quoted(lease)
        return f"SELECT id, {what} FROM {self.table.quoted} WHERE {self._these(epoch, ids)} AND time_acked IS NULL"

    def read(self, what: str, epoch: int, ids: Sequence[Id]) -> str:
        """Read messages, unless they were delivered again since."""
        return f"SELECT {what} FROM {self.table.quoted} WHERE {self._these(epoch, ids)} AND time_acked IS NULL"

    def none(self) -> str:
        """No message. The server checks the `where`."""
        return f"SELECT 1 FROM {self.table.quoted} WHERE ({self.where or 'TRUE'}) LIMIT 0"

    def count_ready(self) -> str:
        """How many are due now."""
        where = f" AND ({self.where})" if self.where else ""
        return f"SELECT COUNT(*) FROM {self.table.quoted} WHERE time_acked IS NULL AND time_next <= {NOW}{where}"

    def sample_ready(self, most: int) -> str:
        """How many of the first `most` unacknowledged messages there are, and how many of these are
        due and meet the `where`. Without a `where` it reads the index alone, in its order: within a
        priority those that are due come first."""
        wanted = f"time_next <= {NOW}" + (f" AND ({self.where})" if self.where else "")
        first = f"SELECT {wanted} AS wanted FROM {self.table.quoted} WHERE time_acked IS NULL LIMIT {most}"
        return f"SELECT COUNT(*), COUNT(IF(wanted, 1, NULL)) FROM ({first}) AS first"

    def comment(self) -> str:
        """The comment of the table, with the queue's directives as they are now."""
        database, name = (f"'{escape_string(part)}'" for part in (self.table.database, self.table.name))
        return (
            "SELECT table_comment FROM information_schema.tables"
            f" WHERE table_schema = {database} AND table_name = {name}"
        )

    def read_condition(self, messages: Messages, now_ns: int, more: Sequence[str] = ()) -> str:
        """The condition of a batch read."""
        conditions = [*([f"({self.where})"] if self.where else []), *more]
        if messages is not Messages.ALL:
            conditions.append("time_acked IS NULL")
        if messages is Messages.READY:
            conditions.append(f"time_next <= {now_ns}")
        return " AND ".join(conditions) or "TRUE"

    def page(self, what: str, condition: str, after: Id | None, until: Id | None, count: int) -> str:
        """The next rows along the key on `id`. The last column of each is its id."""
        conditions = " AND ".join([condition, *self.within(after, until)])
        return f"SELECT {what}, id FROM {self.along_key} WHERE {conditions} ORDER BY id LIMIT {count}"

    def within(self, after: Id | None, until: Id | None) -> list[str]:
        """Conditions for the ids behind `after`, up to and with `until`; None is no bound."""
        lower = [] if after is None else [f"id > {self.literal(after)}"]
        upper = [] if until is None else [f"id <= {self.literal(until)}"]
        return lower + upper

    def ends(self) -> str:
        """The least and the greatest id."""
        return f"SELECT MIN(id), MAX(id) FROM {self.table.quoted}"

    def _these(self, epoch: int, ids: Sequence[Id]) -> str:
        return f"id IN ({','.join(map(self.literal, ids))}) AND epoch = {epoch}"

    def literal(self, key: Id) -> str:
        """An id in SQL."""
        if isinstance(key, bytes):
            return f"x'{key.hex()}'"
        # The server compares a DECIMAL with a text as floating-point numbers.
        return str(key) if isinstance(key, int) or self._id.data_type == "decimal" else f"'{escape_string(key)}'"


def fetch(statement: str, connection: Any) -> tuple[Row, ...]:
    """All rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return tuple(cursor.fetchall())


def do(statement: str, connection: Any) -> int:
    """How many rows a statement changed."""
    with connection.cursor() as cursor:
        return int(cursor.execute(statement))


def fetching(statement: str) -> partial[tuple[Row, ...]]:
    """`fetch` for one statement; it takes the connection."""
    return partial(fetch, statement)
