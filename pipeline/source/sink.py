"""Rows into a queue: `df.writeStream` and `df.write` to `format("ackstream")`, each batch wholly
and once.

If Spark runs a batch again, its rows may be in other partitions, and a task may run more than once.
So no task can write into the queue by itself. Tasks write into a staging table, each attempt under
a random number. The driver publishes the attempts that Spark reports as successful, in one
transaction on the server: INSERT … SELECT, and an UPDATE of the query's last batch in
`ackstream_sinks`. A batch that is there already is skipped. Streaming queries number their batches
and run only the last one again, so one row for each query is enough. It has Spark's id of the
query, which a checkpoint keeps.

All staged rows are of one batch. So the staging table is emptied after each publication, with the
rows of failed attempts. The rows become messages in the order of their partitions.

A batch `write` gets its name from the writer, so that a COMMIT whose answer was lost can be
repeated. The name ends with the job. To write a batch of data once, however often the job is run,
use `ackstream-enqueue`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pymysql
from pymysql.constants import ER
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, MapType, StructType

from ..common.connection import LazyConnection
from ..common.statements import NOW, do
from ..common.table import Table, hashed_name
from ..endpoint import quoted, quoted_list
from ..errors import JobError, ProblemsError
from .options import Common

INSERT_ROWS: Final = 1_000
"""Of one INSERT at most. More are not faster."""

INSERT_BYTES: Final = 1 << 20
"""Of one INSERT, about: `max_allowed_packet` is 16 MB or more by default."""

EMPTYING_S: Final = 5
"""How long emptying the staging table may wait for the transaction of a failed attempt. Later the
next batch empties it."""

SINK: Final = "ackstream_sink_"
SINKS: Final = "ackstream_sinks"

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
"""The local properties that Spark sets in each task of a streaming query."""

_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS {} (
  queue VARCHAR(64) NOT NULL, query VARCHAR(64) NOT NULL, batch BIGINT NOT NULL, PRIMARY KEY (queue, query)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
"""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The rows that one attempt of a task has staged."""

    query: str
    batch: int
    attempt: int
    rows: int


@dataclass(frozen=True)
class Sink:
    """The target of the rows. Tasks and the driver each have a copy."""

    where: Common
    table: Table
    columns: tuple[str, ...]

    @classmethod
    def of(cls, where: Common, table: Table, schema: StructType) -> Sink:
        """A sink for rows of this schema. Raises ProblemsError with everything that does not
        fit."""
        problems = list(_problems(table, schema))
        if problems:
            raise ProblemsError(f"these rows cannot be messages of {table.quoted}; nothing was written", problems)
        return cls(where, table, tuple(table.by_name[name.casefold()].name for name in schema.fieldNames()))

    def staging(self, query: str) -> str:
        """The staging table of a query. With other columns it is another table."""
        return quoted(self.table.database, staging_of(self.table.name, query, self.columns))

    @property
    def ledger(self) -> str:
        """The table with each query's last batch."""
        return quoted(self.table.database, SINKS)

    def stage(self, batches: Iterator[pa.RecordBatch], query: str, batch: int) -> Written:
        """On an executor: write a partition."""
        attempt = int.from_bytes(os.urandom(7))
        connection = LazyConnection(self.where.endpoint, as_text=False)
        rows = 0
        insert = (
            f"INSERT INTO {self.staging(query)} (`#batch`, `#attempt`, `#row`, {quoted_list(self.columns)}) VALUES"
            f" ({', '.join(['%s'] * (3 + len(self.columns)))})"
            # An INSERT whose answer was lost is repeated and finds its own rows.
            " ON DUPLICATE KEY UPDATE `#row` = `#row`"
        )
        for some in _pieces(batches):
            numbered = [(batch, attempt, rows + number, *values) for number, values in enumerate(some)]
            connection.run(partial(self._insert, query, insert, numbered))
            rows += len(numbered)
        connection.close()
        return Written(query, batch, attempt, rows)

    def publish(self, written: Sequence[Written], *, forget: bool = False) -> None:
        """On the driver: make messages of the attempts' rows, unless that was done. `forget`: no
        batch will follow."""
        filled = [attempt for attempt in written if attempt.rows]
        if not filled:
            return
        query = filled[0].query
        connection = LazyConnection(self.where.endpoint, as_text=False)
        connection.run(partial(self._publish, filled))
        if forget:
            connection.run(partial(do, f"DROP TABLE IF EXISTS {self.staging(query)}"))
            connection.run(partial(self._forget, query))
        else:
            connection.run(partial(self._empty, query))
        connection.close()

    def drop(self, query: str) -> None:
        """Drop the staging table of a query that failed."""
        self.where.endpoint.run(partial(do, f"DROP TABLE IF EXISTS {self.staging(query)}"))

    def _insert(self, query: str, insert: str, rows: list[tuple[Any, ...]], connection: Any) -> None:
        with connection.cursor() as cursor:
            try:
                cursor.executemany(insert, rows)
            except pymysql.ProgrammingError as error:
                if error.args[0] != ER.NO_SUCH_TABLE:
                    raise
                cursor.execute(
                    f"CREATE TABLE IF NOT EXISTS {self.staging(query)} ("
                    " `#batch` BIGINT NOT NULL DEFAULT 0, `#attempt` BIGINT NOT NULL DEFAULT 0,"
                    " `#row` BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (`#batch`, `#attempt`, `#row`)) ENGINE=InnoDB"
                    f" SELECT {quoted_list(self.columns)} FROM {self.table.quoted} WHERE FALSE"
                )
                cursor.executemany(insert, rows)

    def _publish(self, written: Sequence[Written], connection: Any) -> None:
        query, batch = written[0].query, written[0].batch
        begin = f"INSERT INTO {self.ledger} VALUES (%s, %s, -1) ON DUPLICATE KEY UPDATE batch = batch"
        connection.begin()
        with connection.cursor() as cursor:
            try:
                cursor.execute(begin, [self.table.name, query])
            except pymysql.ProgrammingError as error:
                if error.args[0] != ER.NO_SUCH_TABLE:
                    raise
                cursor.execute(_LEDGER.format(self.ledger))  # ends the transaction
                connection.begin()
                cursor.execute(begin, [self.table.name, query])
            this = "WHERE queue = %s AND query = %s"
            cursor.execute(f"SELECT batch FROM {self.ledger} {this} FOR UPDATE", [self.table.name, query])
            (last,) = cursor.fetchone()
            if last >= batch:
                connection.rollback()
                return
            for attempt in written:
                self._publish_attempt(cursor, attempt)
            cursor.execute(f"UPDATE {self.ledger} SET batch = %s {this}", [batch, self.table.name, query])
        connection.commit()

    def _publish_attempt(self, cursor: Any, written: Written) -> None:
        values = {name: quoted(name) for name in self.columns}
        # Due now, by the server's clock.
        values.setdefault(self.table.by_name["time_next"].name, NOW)
        count = cursor.execute(
            f"INSERT INTO {self.table.quoted} ({quoted_list(list(values))}) SELECT {', '.join(values.values())}"
            f" FROM {self.staging(written.query)} WHERE `#batch` = %s AND `#attempt` = %s ORDER BY `#row`",
            [written.batch, written.attempt],
        )
        if count != written.rows:
            raise JobError(
                f"{count:,} of {written.rows:,} rows of a task are staged: somebody else changes"
                f" {self.staging(written.query)}; do two queries run from one checkpoint?"
            )

    def _empty(self, query: str, connection: Any) -> None:
        do(f"SET SESSION lock_wait_timeout = {EMPTYING_S}", connection)
        try:
            do(f"TRUNCATE TABLE {self.staging(query)}", connection)
        except pymysql.MySQLError as error:
            if error.args[0] not in {ER.LOCK_WAIT_TIMEOUT, ER.NO_SUCH_TABLE}:
                raise

    def _forget(self, query: str, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {self.ledger} WHERE queue = %s AND query = %s", [self.table.name, query])


class StreamWriter(DataSourceStreamArrowWriter):
    """What Spark calls for `writeStream`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage a partition."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query, batch = map(context.getLocalProperty, (QUERY, BATCH))
        assert query is not None, "Spark sets the query of a task"
        assert batch is not None, "Spark sets the batch of a task"
        return self._sink.stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """On the driver: publish what the tasks have staged."""
        self._sink.publish([message for message in messages if isinstance(message, Written)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Nothing to do: what is staged is deleted with the next batch."""


class BatchWriter(DataSourceArrowWriter):
    """What Spark calls for `write`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._job = f"job {os.urandom(12).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage a partition."""
        return self._sink.stage(iterator, self._job, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish what the tasks have staged."""
        self._sink.publish([message for message in messages if isinstance(message, Written)], forget=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: drop what the tasks have staged."""
        self._sink.drop(self._job)


def staging_of(queue: str, query: str, columns: Sequence[str]) -> str:
    """The name of a query's staging table, without its database."""
    return hashed_name(SINK, queue, query, *columns)


def _problems(table: Table, schema: StructType) -> Iterator[str]:
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
        elif isinstance(field.dataType, (ArrayType, MapType, StructType)):
            yield f"{field.name} is {field.dataType.simpleString()}: make it text by to_json"
    for column in table.columns:
        if column.required and column.name.casefold() not in given:
            yield f"{column.name} has no default, and there is no such column"


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[list[tuple[Any, ...]]]:
    """The rows for each INSERT."""
    for batch in batches:
        size = max(1, min(INSERT_ROWS, INSERT_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, size):
            columns = [_values(column) for column in batch.slice(start, size).columns]
            yield list(zip(*columns, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """Values for PyMySQL: times in UTC, the time zone of the session."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")) if column.type.tz else column
    return column.to_pylist()  # type: ignore[no-any-return]  # a list
