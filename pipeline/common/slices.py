"""Writes the slices of a batch from Spark's tasks, each exactly once.

A task writes a slice in one transaction, which begins with the slice's row in the ledger. So of
several tasks with the same slice, however late, only one commits it, and none does when the batch
is abandoned or finished. The ledger alone shows which slices are written. Spark's JDBC writer can
add nothing to its transactions, so rows come here as Arrow batches, by `df.write` to a source of
this module, which is also faster.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
import pymysql
from pymysql.constants import ER
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..endpoint import Endpoint
from ..errors import JobError
from .ledger import Batch, Ledger, Reject
from .literals import insert, pieces, rows_as_sql
from .staging import PLACE, SLICE
from .statements import do

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

T = TypeVar("T")

Refuse = Callable[[int, int, str], None]
"""Takes a row that the server refuses: its place, the error's number and its text."""


@dataclass(frozen=True)
class Target(DataSourceArrowWriter):
    """Where the slices of a batch are written to, and what Spark calls in each task."""

    endpoint: Endpoint
    ledger: Ledger
    batch: Batch
    table: str
    columns: tuple[str, ...]
    rows: tuple[int, ...]
    """How many rows each slice has."""
    rejects_max: int | None = None
    """How many refused rows are set aside. None: the first one is an error."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: write the slices of a partition. Rows have SLICE and PLACE, and come one
        slice after another."""
        with (
            self.endpoint.connect() as connection,
            connection.cursor() as cursor,
            closing(ahead(self._parts(iterator))) as coming,
        ):
            do("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", connection)
            for number, parts in groupby(coming, key=attrgetter("slice")):
                connection.begin()
                if self.ledger.write_slice(cursor, self.batch, number):
                    count = sum(self._insert(cursor, part) for part in parts)
                    if count != self.rows[number]:
                        raise JobError(f"the data changed while it was read: slice {number} has {count:,} rows now")
                connection.commit()
        return WriterCommitMessage()

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_Part]:
        for batch in batches:
            start = 0
            for number, group in groupby(batch.column(SLICE).to_pylist()):
                part = batch.slice(start, len(list(group)))
                start += part.num_rows
                yield _Part(number, part.column(PLACE)[0].as_py(), rows_as_sql(part.select(list(self.columns))))

    def _insert(self, cursor: Any, part: _Part) -> int:
        rows = part.rows
        refuse = refusing(self.ledger, cursor, self.batch, part.slice, self.rejects_max, part.first)
        for some in pieces(rows):
            sift(some, lambda span: insert(cursor, self.table, self.columns, rows[span.start : span.stop]), refuse)
        return len(rows)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a slice that come one after another, in SQL. `first`: the place of the first one."""

    slice: int
    first: int
    rows: list[bytes]


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The items. A thread makes the next one while the caller uses one, so two are in memory: the
    server inserts rows while the next ones are read from Spark and put into SQL.

    Raises what making an item raises, behind the items before it. To close it waits until the item
    that is being made is made.
    """
    end = object()
    with ThreadPoolExecutor(1) as maker:
        coming: Future[T | object] = maker.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = maker.submit(next, items, end)
            yield cast("T", item)


def write_slices(frame: DataFrame, target: Target) -> None:
    """Run the tasks that write the slices of a frame. It has SLICE, PLACE and the target's
    columns."""
    spark: Any = frame.sparkSession
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 (of this thread: Spark looks there)
    spark.dataSource.register(SlicesSource)
    public = replace(target, endpoint=replace(target.endpoint, password=""))
    options = {"target": base64.b64encode(pickle.dumps(public)).decode(), "password": target.endpoint.password}
    frame.write.format(SlicesSource.name()).options(**options).mode("append").save()


class SlicesSource(DataSource):
    """What Spark calls for `write_slices`."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "ackstream_slices"

    def writer(self, schema: StructType, overwrite: bool) -> Target:  # noqa: FBT001  # Spark's
        """The writer for `df.write`."""
        target: Target = pickle.loads(base64.b64decode(self.options["target"]))  # noqa: S301 (the driver's own)
        return replace(target, endpoint=replace(target.endpoint, password=self.options["password"]))


# --- rows that the server refuses ---


def refusing(ledger: Ledger, cursor: Any, batch: Batch, number: int, most: int | None, first: int = 0) -> Refuse | None:
    """A function that sets a row of a slice aside, in the cursor's transaction. It raises JobError
    if the batch has more than `most`. Places are counted from `first` on. None sets none aside."""
    if most is None:
        return None
    already: int | None = None

    def refuse(place: int, code: int, reason: str) -> None:
        nonlocal already
        if already is None:
            ledger.lock(cursor, batch)  # other tasks wait, so the count is exact
            already = len(ledger.rejects(cursor.connection, batch.name))
        already += 1
        if already > most:
            raise JobError(
                f"the server refuses more than {most:,} rows, the last one with: {reason}. Make the data fit, or"
                " allow more by --rejects-max, and run this again"
            )
        ledger.reject(cursor, batch.name, Reject(number, first + place, code, reason))

    return refuse


def sift(places: range, publish: Callable[[range], int], refuse: Refuse | None) -> int:
    """Publish rows, except those that the server refuses. Returns how many were published.

    A range that is refused is halved until it is one row. The server undoes a statement that fails,
    and the transaction goes on. Without `refuse`, the error is raised.
    """
    published = 0
    waiting = [places] if places else []
    while waiting:
        some = waiting.pop()
        try:
            published += publish(some)
        except pymysql.MySQLError as error:
            if refuse is None or error.args[0] not in REFUSALS:
                raise
            if len(some) == 1:
                refuse(some.start, error.args[0], str(error.args[1]))
                continue
            half = len(some) // 2
            waiting += [some[half:], some[:half]]  # the first half first
    return published
