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
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
import pymysql
from pymysql.constants import CLIENT, ER
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

SIFTING: Final[dict[str, Any]] = {"client_flag": CLIENT.MULTI_STATEMENTS}
"""Options of a connection for `sift`, which sends several statements in a packet."""

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
            self.endpoint.connect(**SIFTING) as connection,
            connection.cursor() as cursor,
            closing(ahead(self._parts(iterator))) as coming,
        ):
            do("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", connection)
            for number, parts in groupby(coming, key=attrgetter("slice")):
                connection.begin()
                if self.ledger.write_slice(cursor, self.batch, number):
                    most = self.rejects_max
                    aside = None if most is None else Aside(self.ledger, self.batch, number, most)
                    count = sum(self._insert(cursor, part, aside) for part in parts)
                    if count != self.rows[number]:
                        raise JobError(f"the data changed while it was read: slice {number} has {count:,} rows now")
                    if aside:
                        aside.record(cursor)
                connection.commit()
        return WriterCommitMessage()

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_Part]:
        for batch in batches:
            start = 0
            for number, group in groupby(batch.column(SLICE).to_pylist()):
                part = batch.slice(start, len(list(group)))
                start += part.num_rows
                yield _Part(number, part.column(PLACE)[0].as_py(), rows_as_sql(part.select(list(self.columns))))

    def _insert(self, cursor: Any, part: _Part, aside: Aside | None) -> int:
        def statement(some: range) -> bytes:
            return insert(self.table, self.columns, part.rows[some.start : some.stop])

        refuse = aside.refusing(cursor, part.first) if aside else None
        for some in pieces(part.rows):
            sift(cursor, some, statement, refuse)
        return len(part.rows)


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


RECORDED_AT_ONCE: Final = 1_000
"""Refused rows of one INSERT into the ledger, with their reasons some 200 kB."""

PIECE_ROWS: Final = 32
"""Rows of an INSERT beside refused ones. Half of them, on average, are inserted one by one to find one
that is refused."""

GAPS: Final = 4
"""How many times the rows that came, on average, between two refused ones are sent in one packet. What
comes behind the next refused row is sent again."""


class Aside:
    """The rows of a slice that are set aside, in the transaction that writes the others."""

    def __init__(self, ledger: Ledger, batch: Batch, number: int, most: int) -> None:
        self._ledger = ledger
        self._batch = batch
        self._number = number
        self._most = most
        self._count = 0
        self._reason = ""
        self._unrecorded: list[Reject] = []

    def refusing(self, cursor: Any, first: int = 0) -> Refuse:
        """A function that sets a row aside. Places are counted from `first` on. It raises JobError if
        the slice alone has too many."""

        def refuse(place: int, code: int, reason: str) -> None:
            self._count, self._reason = self._count + 1, reason
            self._check(self._count)
            self._unrecorded.append(Reject(self._number, first + place, code, reason))
            if len(self._unrecorded) == RECORDED_AT_ONCE:
                self._write(cursor)

        return refuse

    def record(self, cursor: Any) -> None:
        """Record the rest, at the end of the slice. Raises JobError if the batch has too many: those of
        other slices are counted behind a lock, which is held until the commit, so the count is
        exact."""
        self._write(cursor)
        if self._count:
            self._ledger.lock(cursor, self._batch)
            self._check(self._ledger.rejected(cursor.connection)[self._batch.name])

    def _write(self, cursor: Any) -> None:
        if self._unrecorded:
            self._ledger.reject(cursor, self._batch.name, self._unrecorded)
        self._unrecorded = []

    def _check(self, count: int) -> None:
        if count > self._most:
            raise JobError(
                f"the server refuses more than {self._most:,} rows, the last one with: {self._reason}. Make the data"
                " fit, or allow more by --rejects-max, and run this again"
            )


def sift(cursor: Any, places: range, statement: Callable[[range], bytes], refuse: Refuse | None) -> None:
    """Publish rows by the statement for some of them, except those that the server refuses.

    If it refuses one of them all, they are sent as many statements in one packet: pieces first, of
    which the server carries out those before the first that it refuses, and then the rows of that
    piece. So a refused row takes two packets. The server undoes a statement that fails, and the
    transaction goes on. Without `refuse`, the error is raised.
    """
    if not places or (error := _publish(cursor, [statement(places)])[1]) is None:
        return
    if refuse is None:
        raise error
    at, refused = places.start, 0
    while at < places.stop:
        most = max(PIECE_ROWS, GAPS * (at - places.start) // refused) if refused else len(places)
        some = range(at, min(at + most, places.stop))
        published, error = _publish(cursor, [statement(piece) for piece in _parts(some, PIECE_ROWS)])
        at = min(at + published * PIECE_ROWS, some.stop)
        if error is not None:
            rows = _parts(range(at, min(at + PIECE_ROWS, some.stop)), 1)
            published, error = _publish(cursor, [statement(row) for row in rows])
            at += published
        if error is not None:
            refuse(at, error.args[0], str(error.args[1]))
            at, refused = at + 1, refused + 1


def _parts(places: range, size: int) -> list[range]:
    return [places[start : start + size] for start in range(0, len(places), size)]


def _publish(cursor: Any, statements: Sequence[bytes]) -> tuple[int, pymysql.MySQLError | None]:
    """Carry out statements, which are sent as one packet, up to the first in which a row is refused.
    Returns how many those before it are, and its error."""
    done = 0
    try:
        cursor.execute(b";".join(statements))
        done = 1
        while cursor.nextset():
            done += 1
    except pymysql.MySQLError as error:
        if error.args[0] not in REFUSALS:
            raise
        return done, error
    return done, None
