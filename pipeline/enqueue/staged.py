"""Atomic mode: the whole batch or nothing, however many partitions it has and however the job dies.

Tasks write the slices as in streaming mode (`direct`), but into the batch's own staging table. When
every slice is there, the driver publishes them in one transaction on the server, by INSERT …
SELECT, and records the batch as finished in it. The transaction sends no rows over the wire. A
rerun finds what is staged already, or that the batch is finished.

The staging table's columns take all values that Spark has, not only those that the queue's columns
take. So the server refuses a row when it is published. Before a slice is published, the server
counts its rows and adds up the words of their digests. They must be those of the data that was
checked.

Each slice has its own statement, because a server with `innodb_autoinc_lock_mode = 1` (MariaDB's
default) blocks other INSERTs while one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pymysql
from pymysql.constants import ER
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..common.progress import Progress
from ..common.slices import Aside, sift
from ..common.staging import KEY, PLACE, SLICE, publish, within
from ..common.statements import NOW, do
from ..endpoint import quoted
from ..errors import JobError
from .direct import Direct
from .load import Load


class Staged(Direct):
    """Writes the slices of a batch to its staging table, and publishes them together."""

    phase = "staging"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.staging = load.ledger.staging(load.batch)

    def prepare(self) -> None:
        """Record the slices, and make the staging table."""
        super().prepare()
        load = self._load
        kinds = {field.name: _kind(field.dataType) for field in load.mapped.frame.schema}
        columns = [KEY, *(f"{name} BIGINT NOT NULL" for name in load.cut.sums.staged)]
        columns += [f"{quoted(name)} {kinds[name]}" for name in load.mapped.names]
        create = f"CREATE TABLE IF NOT EXISTS {self.staging} ({', '.join(columns)}) ENGINE=InnoDB"
        load.endpoint.run(lambda connection: do(create, connection))

    def write(self, wanted: Sequence[int]) -> None:
        """Run the tasks that stage these slices."""
        load = self._load
        columns = (SLICE, PLACE, *load.cut.sums.staged, *load.mapped.names)
        self._write(load.sliced(wanted).select([f.col(quoted(name)) for name in columns]), self.staging, columns)

    def finish(self, report: Callable[[Progress], None]) -> bool:
        """Publish the whole batch. Returns whether this run did. Raises JobError."""
        try:
            by_us = super().finish(report)
        except pymysql.MySQLError as error:
            raise JobError(
                f"the server refuses the batch, none of it is in the queue: {error.args[1]}. Make the data fit and give"
                " it another name, make room for it, or have such rows set aside (--rejects), and run this again"
            ) from None
        self._load.endpoint.run(self._drop)
        return by_us

    def _drop(self, connection: Any) -> None:
        do(f"DROP TABLE IF EXISTS {self.staging}", connection)

    def _publish(self, connection: Any, report: Callable[[Progress], None], tried: set[int]) -> bool:
        load = self._load
        with connection.cursor() as cursor:
            # At a higher level the server locks each staged row while it copies it.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.begin()
            unpublished = self._filled if load.ledger.lock(cursor, load.batch).finished is None else []
            cursor.execute(f"SELECT {NOW}")
            (now,) = cursor.fetchone()
            done = 0
            for number in unpublished:
                self._verify(cursor, number)
                self._publish_slice(cursor, number, now)
                done += load.slices[number].rows
                report(Progress("publishing", done, load.batch.messages))
            by_us = load.ledger.finish(cursor, load.batch, tried)
        connection.commit()
        return by_us

    def _verify(self, cursor: Any, number: int) -> None:
        """Check that the staged rows of a slice are the data that was checked. Raises JobError, and
        drops the table."""
        sums, expected = self._load.cut.sums, self._load.slices[number]
        try:
            cursor.execute(f"SELECT COUNT(*), {sums.aggregates_sql()} FROM {self.staging} WHERE {within(number)}")
            count, *answer = cursor.fetchone()
        except pymysql.ProgrammingError as error:
            if error.args[0] != ER.NO_SUCH_TABLE:
                raise
            count, answer = None, []
        if count != expected.rows or not sums.agrees(expected.checksum, answer):
            cursor.connection.rollback()
            self._load.ledger.forget_slices(cursor, self._load.batch)
            self._drop(cursor.connection)
            raise JobError(
                "the data changed while it was read, or the staging table did, and what was staged of it is not in the"
                " queue: write the data to files that stay as they are, and run this again"
            )

    def _publish_slice(self, cursor: Any, number: int, now: int) -> None:
        load = self._load
        values = {name: quoted(name) for name in load.mapped.names}
        values |= {name: str(value) for name, value in load.fillers.items()}
        time = str(now)  # due at once, or from now on
        if load.spread_ns is not None:
            share = f"({PLACE} + {number} / {len(load.slices)}) * {load.spread_ns} / {load.slices[number].rows}"
            time = f"{now} + FLOOR({share})"
        values.setdefault(load.table.by_name["time_next"].name, time)
        aside = None if load.rejects_max is None else Aside(load.ledger, load.batch, number, load.rejects_max)

        def statement(some: range) -> bytes:
            return publish(self.staging, load.table, values, number, some).encode()

        sift(cursor, range(load.slices[number].rows), statement, aside.refusing(cursor) if aside else None)
        if aside:
            aside.record(cursor)


def _kind(kind: t.DataType) -> str:
    """A column type that takes all values of Spark's type, as tasks write them."""
    if isinstance(kind, t.DecimalType):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if isinstance(kind, t.FloatType | t.DoubleType):
        return "DOUBLE"
    if isinstance(kind, t.BinaryType):
        return "LONGBLOB"
    return "BIGINT" if isinstance(kind, t.IntegralType) else "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
