"""The staging table of a batch of ackstream-enqueue (`common.staging`), written by JDBC.

Its columns take all values that Spark has, not only those that the queue's columns take. So the
server refuses a row when it is published, by a statement for which the row is known, and not in a
task that writes a hundred thousand. A task's transaction has whole slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pymysql
from pymysql.constants import ER
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..common.staging import KEY, PLACE, SLICE, publish, slices_staged, within
from ..endpoint import quoted
from ..errors import JobError
from .load import Load

REFUSALS: Final = frozenset(
    {
        *(ER.BAD_NULL_ERROR, ER.DUP_ENTRY, ER.NO_DEFAULT_FOR_FIELD, ER.DATA_TOO_LONG),
        *(ER.WARN_DATA_OUT_OF_RANGE, ER.WARN_DATA_TRUNCATED, ER.TRUNCATED_WRONG_VALUE),
        *(ER.TRUNCATED_WRONG_VALUE_FOR_FIELD, ER.ILLEGAL_VALUE_FOR_TYPE, ER.WRONG_VALUE_FOR_TYPE),
        *(ER.CANT_CREATE_GEOMETRY_OBJECT, ER.DATETIME_FUNCTION_OVERFLOW, ER.INVALID_CHARACTER_STRING),
        *(ER.NO_REFERENCED_ROW, ER.NO_REFERENCED_ROW_2),
        *(1526, 1586, 1644, 1690),  # no partition; a key named; a trigger's SIGNAL; out of range in an expression
        *(3037, 3616, 3617, 3643),  # geometry
        *(3140, 3141, 3144, 3146, 3150, 3157, 3903),  # JSON
        *(3819, 4025),  # CHECK of MySQL, CHECK of MariaDB
        *(3854, 4078),  # not in the column's character set; a cast that MariaDB does not do
    }
)
"""Errors of a single row; other rows may be accepted."""

Refuse = Callable[[int, int, str], None]
"""Takes a row that the server refuses: its place, the error's number and its text."""


class Staging:
    """The staging table of one batch."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.name = load.ledger.staging(load.batch)

    def make(self, connection: Any) -> None:
        """Create the table, unless it exists."""
        load = self._load
        kinds = {field.name: _kind(field.dataType) for field in load.mapped.frame.schema}
        columns = [KEY]
        columns += [f"{name} BIGINT NOT NULL" for name in load.cut.version.staged]
        columns += [f"{quoted(name)} {kinds[name]}" for name in load.mapped.names]
        _execute(connection, f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)}) ENGINE=InnoDB")

    def drop(self, connection: Any) -> None:
        """Drop the table, if it exists."""
        _execute(connection, f"DROP TABLE IF EXISTS {self.name}")

    def write(self, wanted: Iterable[int]) -> None:
        """Run the tasks that stage these slices."""
        names = (SLICE, PLACE, *self._load.cut.version.staged, *self._load.mapped.names)
        columns = [f.col(quoted(name)) for name in names]
        self._load.write(self._load.sliced(tuple(wanted)).select(columns), self.name)

    def staged(self, connection: Any, numbers: Iterable[int]) -> set[int]:
        """Which of these slices are staged. Raises pymysql.ProgrammingError if the table does not
        exist."""
        return slices_staged(connection, self.name, numbers)

    def verify(self, cursor: Any, number: int) -> None:
        """Check that the staged rows of a slice are the data that was checked. Raises JobError, and
        drops the table."""
        version, expected = self._load.cut.version, self._load.slices[number]
        cursor.execute(f"SELECT COUNT(*), {version.aggregates_sql()} FROM {self.name} WHERE {within(number)}")
        count, *answer = cursor.fetchone()
        if count != expected.rows or not version.agrees(expected.checksum, answer):
            cursor.connection.rollback()
            cursor.execute(f"DROP TABLE {self.name}")
            raise JobError(
                "the data changed while it was read, and what was staged of it is not in the queue: write it to files"
                " that stay as they are, and run this again"
            )

    def publish(
        self, cursor: Any, number: int, begin: int, places: range | None = None, own: Mapping[str, str] | None = None
    ) -> int:
        """Make messages of rows of a slice, by default all, in one statement. Returns how many.

        They are due from `begin` on, in ns, unless the data has `time_next`. `own`: columns with
        other values, in SQL.
        """
        load = self._load
        values = {name: quoted(name) for name in load.mapped.names}
        values |= {name: str(value) for name, value in load.fillers.items()}
        time_name = load.table.by_name["time_next"].name
        if load.spread_ns is not None:
            share = f"({PLACE} + {number} / {len(load.slices)}) * {load.spread_ns} / {load.slices[number].rows}"
            values[time_name] = f"{begin} + FLOOR({share})"
        values.setdefault(time_name, str(begin))
        values |= own or {}
        return publish(cursor, self.name, load.table, values, number, places)


def sift(places: range, publish: Callable[[range], int], refuse: Refuse) -> int:
    """Publish rows, except those that the server refuses. Returns how many were published.

    A range that is refused is halved until it is one row. The server undoes a statement that fails,
    and the transaction goes on.
    """
    published = 0
    waiting = [places] if places else []
    while waiting:
        some = waiting.pop()
        try:
            published += publish(some)
        except pymysql.MySQLError as error:
            if error.args[0] not in REFUSALS:
                raise
            if len(some) == 1:
                refuse(some.start, error.args[0], str(error.args[1]))
                continue
            half = len(some) // 2
            waiting += [some[half:], some[:half]]  # the first half first
    return published


def _kind(kind: t.DataType) -> str:
    """A column type that takes all values of Spark's type, as JDBC writes them."""
    if isinstance(kind, t.DecimalType):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if isinstance(kind, t.FloatType | t.DoubleType):
        return "DOUBLE"  # a FLOAT is transferred as text, which a DOUBLE column of the queue takes unchanged
    if isinstance(kind, t.BinaryType):
        return "LONGBLOB"
    return "BIGINT" if isinstance(kind, t.IntegralType) else "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def _execute(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
