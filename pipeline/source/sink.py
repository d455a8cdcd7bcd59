"""Rows into a queue: `df.writeStream` and `df.write` to `format("ackstream")`, each batch wholly
and once.

If Spark runs a batch again, its rows may be in other partitions, and a task may run more than once.
So no task can write into the queue by itself. Tasks stage their rows (`common.staging`), each
attempt as a slice with a random number. The driver publishes the attempts that Spark reports as
successful, in one transaction on the server with the row of the batch in the ledger
(`common.ledger`). The rows become messages in the order of their partitions.

- A *query* has one row in the ledger, by Spark's id of the query, which a checkpoint keeps.
  Streaming queries number their batches and run only the last one again, so the number of the next
  one is enough: a batch below it is skipped.
- A *batch of `df.write`* is known by the option `batch`. Written again, it adds nothing, and other
  data of this name is refused: tasks add up the SHA-256 of their rows. Without a name it gets one
  from the job, so that a COMMIT whose answer was lost can be repeated, and is forgotten at the end.

Staging tables are dropped after each publication, with the rows of failed attempts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pymysql
from pymysql.constants import ER
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..common.connection import LazyConnection, ignored
from ..common.ledger import FINGERPRINT_CHARACTERS, QUERY, WRITE, Batch, Ledger, query, staging_name
from ..common.literals import insert, pieces, rows_as_sql
from ..common.staging import KEY, PLACE, SLICE, drop_staging, publish
from ..common.statements import NOW, do
from ..common.table import TEXTS, Table, hashed_name
from ..endpoint import quoted, quoted_list
from ..errors import JobError, PipelineError, ProblemsError, without_traceback
from .options import Common

CLEARING_S: Final = 5
"""How long dropping a staging table may wait for the transaction of a failed attempt. Later the next
batch drops it."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties that Spark sets in each task of a streaming query."""

_FINGERPRINT: Final = "w2:"

_SUNK: Final = (
    *(t.NumericType, t.BooleanType, t.StringType, t.BinaryType, t.NullType),
    *(t.DateType, t.TimestampType, t.TimestampNTZType),
)
"""Types whose values can be written in SQL."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The rows that one attempt of a task has staged for a batch of a query, or the batch 0 of a
    write; and the sum of their digests, if these are computed."""

    name: str
    number: int
    attempt: int
    rows: int
    digests: int = 0


@dataclass(frozen=True)
class Sink:
    """The target of the rows. Tasks and the driver each have a copy."""

    where: Common
    table: Table
    columns: tuple[str, ...]
    batch: Batch | None = None
    """The batch of a write, in the ledger; None for a query."""
    job: str = ""
    """Of several jobs that write one batch, each has its own staging table."""
    forgets: bool = False
    """Whether the batch is deleted from the ledger when it is published."""

    @classmethod
    def of(cls, where: Common, table: Table, schema: t.StructType) -> Sink:
        """A sink for rows of this schema. Raises ProblemsError with everything that does not
        fit."""
        problems = list(_problems(table, schema))
        if problems:
            raise ProblemsError(f"these rows cannot be messages of {table.quoted}; nothing was written", problems)
        return cls(where, table, tuple(table.by_name[name.casefold()].name for name in schema.fieldNames()))

    def writing(self, name: str | None) -> Sink:
        """This sink for a batch of `df.write`, which is recorded. Raises PipelineError if the name
        is taken by another kind of batch."""
        job = f"job {os.urandom(12).hex()}"
        batch = self.where.endpoint.run(lambda connection: self.ledger.open(connection, name or job, WRITE))
        return replace(self, batch=batch, job=job, forgets=name is None)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the queue."""
        return Ledger(self.table)

    def staging(self, name: str) -> str:
        """The staging table of a query or of this write. With other columns it is another table."""
        first = staging_name(self.table.name, self.batch or query(name))
        return quoted(self.table.database, hashed_name(f"{first}_", self.job, *self.columns))

    def stage(self, batches: Iterator[pa.RecordBatch], name: str, number: int) -> Written:
        """On an executor: write a partition."""
        attempt = int.from_bytes(os.urandom(7))
        connection = LazyConnection(self.where.endpoint, as_text=False)
        rows = digests = 0
        known = self.batch is not None and self.batch.finished is not None
        for batch in batches:
            values = rows_as_sql(batch)
            if self.batch is not None and not self.forgets:
                digests += sum(map(_digest, values))
            if not known:  # Otherwise only the digests are needed.
                placed = [b"%d,%d,%b" % (attempt, place, row) for place, row in enumerate(values, rows)]
                for some in pieces(placed):
                    connection.run(partial(self._insert, self.staging(name), placed[some.start : some.stop]))
            rows += len(values)
        connection.close()
        return Written(name, number, attempt, rows, digests)

    def publish(self, written: Sequence[Written]) -> None:
        """On the driver: make messages of the attempts' rows, unless that was done. Raises
        PipelineError if other data was written under the name of this batch."""
        filled = [attempt for attempt in written if attempt.rows]
        if not (filled or self.batch):
            return
        name, number = (self.batch.name, 0) if self.batch else (filled[0].name, filled[0].number)
        connection = LazyConnection(self.where.endpoint, as_text=False)
        connection.run(partial(self._publish, name, number, filled))
        connection.run(partial(self._clear, self.batch or query(name), drop_staging))
        connection.close()

    def clear(self) -> None:
        """After a write that failed: drop what its own tasks have staged."""
        assert self.batch is not None
        own = f"DROP TABLE IF EXISTS {self.staging(self.batch.name)}"
        self.where.endpoint.run(partial(self._clear, self.batch, lambda connection, *_: do(own, connection)))

    def _insert(self, staging: str, rows: Sequence[bytes], connection: Any) -> None:
        # An INSERT whose answer was lost is repeated and finds its own rows.
        again = f" ON DUPLICATE KEY UPDATE {PLACE} = {PLACE}"
        statement = insert(staging, (SLICE, PLACE, *self.columns), rows, again)
        with connection.cursor() as cursor:
            try:
                cursor.execute(statement)
            except pymysql.ProgrammingError as error:
                if error.args[0] != ER.NO_SUCH_TABLE:
                    raise
                cursor.execute(
                    f"CREATE TABLE IF NOT EXISTS {staging} ({KEY}) ENGINE=InnoDB"
                    f" SELECT {quoted_list(self.columns)} FROM {self.table.quoted} WHERE FALSE"
                )
                cursor.execute(statement)

    def _publish(self, name: str, number: int, written: Sequence[Written], connection: Any) -> None:
        ledger = self.ledger
        batch = self.batch or ledger.find(connection, name) or ledger.open(connection, name, QUERY)
        rows = sum(attempt.rows for attempt in written)
        fingerprint = "" if self.batch is None else _fingerprint(self.columns, rows, written)
        connection.begin()
        with connection.cursor() as cursor:
            there = ledger.lock(cursor, batch)
            if there.slices > number:
                connection.rollback()
                if there.fingerprint != fingerprint:
                    raise PipelineError(
                        f"batch {name!r} was written with other data ({there.messages:,} messages): give this one"
                        " another name, or the same data as then"
                    )
                return
            for attempt in written:
                self._publish_attempt(cursor, attempt)
            ledger.add_slice(cursor, batch, number + 1, rows, fingerprint)
        connection.commit()

    def _publish_attempt(self, cursor: Any, written: Written) -> None:
        values = {name: quoted(name) for name in self.columns}
        # Due now, by the server's clock.
        values.setdefault(self.table.by_name["time_next"].name, NOW)
        count = cursor.execute(publish(self.staging(written.name), self.table, values, written.attempt))
        if count != written.rows:
            raise JobError(
                f"{count:,} of {written.rows:,} rows of a task are staged: somebody else changes"
                f" {self.staging(written.name)}; do two queries run from one checkpoint?"
            )

    def _clear(self, batch: Batch, drop: Callable[[Any, Table, Batch], object], connection: Any) -> None:
        do(f"SET SESSION lock_wait_timeout = {CLEARING_S}", connection)
        with ignored(ER.LOCK_WAIT_TIMEOUT):
            drop(connection, self.table, batch)
        if self.forgets:
            with connection.cursor() as cursor:
                self.ledger.delete(cursor, batch.name)


class StreamWriter(DataSourceStreamArrowWriter):
    """What Spark calls for `writeStream`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage a partition."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        name, number = map(context.getLocalProperty, (QUERY_ID, BATCH_ID))
        assert name is not None, "Spark sets the query of a task"
        assert number is not None, "Spark sets the batch of a task"
        return self._sink.stage(iterator, name, int(number))

    @without_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """On the driver: publish what the tasks have staged."""
        self._sink.publish([message for message in messages if isinstance(message, Written)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Nothing to do: what is staged is deleted with the next batch."""


class BatchWriter(DataSourceArrowWriter):
    """What Spark calls for `write`."""

    def __init__(self, sink: Sink, batch: str | None) -> None:
        self._sink = sink.writing(batch)

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage a partition."""
        assert self._sink.batch is not None
        return self._sink.stage(iterator, self._sink.batch.name, 0)

    @without_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish what the tasks have staged."""
        self._sink.publish([message for message in messages if isinstance(message, Written)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: drop what the tasks have staged."""
        self._sink.clear()


def _digest(row: bytes) -> int:
    """The SHA-256 of a row as a number. Sums of these depend on no order, and count a row as often
    as it occurs."""
    return int.from_bytes(hashlib.sha256(row).digest())


def _fingerprint(columns: Sequence[str], rows: int, written: Sequence[Written]) -> str:
    """The fingerprint of a write."""
    digests = sum(attempt.digests for attempt in written)
    whole = hashlib.sha256(repr((tuple(columns), rows, digests)).encode())
    return (_FINGERPRINT + whole.hexdigest())[:FINGERPRINT_CHARACTERS]


def _problems(table: Table, schema: t.StructType) -> Iterator[str]:
    if not table.is_queue:
        yield "it is no message table (CREATE QUEUE makes one)"
        return
    given = {name.casefold() for name in schema.fieldNames()}
    for field in schema.fields:
        name = field.name.casefold()
        if name in {"epoch", "time_acked"}:
            yield f"{field.name} is the queue's own: drop it"
        elif name not in table.by_name:
            yield f"there is no column {field.name}; there are {', '.join(column.name for column in table.columns)}"
        elif table.by_name[name].generated:
            yield f"the server computes {field.name}: drop it"
        elif isinstance(field.dataType, (t.ArrayType, t.MapType, t.StructType, t.VariantType)):
            yield f"{field.name} is {field.dataType.simpleString()}: make it text by to_json"
        elif isinstance(field.dataType, t.BooleanType) and table.by_name[name].data_type in TEXTS:
            yield f"{field.name} is boolean, for a text: cast it to STRING (true, false) or to INT (1, 0)"
        elif not isinstance(field.dataType, _SUNK):
            yield f"{field.name} is {field.dataType.simpleString()}, which the server does not have: cast it to STRING"
    for column in table.columns:
        if column.required and column.name.casefold() not in given:
            yield f"{column.name} has no default, and there is no such column"
