"""Atomic mode: all of the batch or nothing, however many partitions it has and however the job dies.

Tasks write into a staging table of the batch's own; when every slice is there, the driver publishes them in one
transaction on the server, by INSERT … SELECT, with the ledger's word that it is done. Nothing large crosses the wire in
one transaction, and a rerun finds what is staged already, or that all is done.

Spark may carry out a task more than once, and each time may commit. A row's key is a number made of its slice and its
place there, and a transaction holds whole slices: so of several transactions with the same slice one alone can commit,
and the first row of a slice is the proof of the others. Before a slice is published, the server counts its rows and
adds up the words of their digests: they must be the data that was checked.

The statements are one a slice, because a server with `innodb_autoinc_lock_mode = 1` (MariaDB's default) lets nobody
else insert while one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pymysql
from pymysql.constants import ER
from pyspark.sql import functions as f

from pipeline.cut import PLACE, ROWS_OF_A_PARTITION, SLICE
from pipeline.endpoint import quoted, quoted_list
from pipeline.errors import JobError
from pipeline.ledger import NOW_NS
from pipeline.load import Load, Progress

ROW: Final = "ackstream_row"
LOOKED_FOR_AT_ONCE: Final = 1000
"""Slices in one statement."""


class Staged:
    """The slices of a batch on their way into its staging table."""

    phase = "staging"

    def __init__(self, load: Load) -> None:
        self._load = load
        self._staging = load.ledger.staging(load.batch)
        self._filled = [number for number, each in enumerate(load.slices) if each.rows]

    def prepare(self) -> None:
        """Make the staging table: columns as the queue has them."""
        words = "".join(f", {name} BIGINT NOT NULL DEFAULT 0" for name in self._load.cut.version.staged)
        definition = (
            f"CREATE TABLE IF NOT EXISTS {self._staging} ({ROW} BIGINT NOT NULL DEFAULT 0 PRIMARY KEY{words})"
            " ENGINE=InnoDB"
            f" SELECT {quoted_list(self._load.mapped.names)} FROM {self._load.table.quoted} WHERE FALSE"
        )
        self._load.endpoint.run(lambda connection: _execute(connection, definition))

    def look(self) -> tuple[int, ...]:
        """See which slices are staged: all, each time, since a failover may take back what was there."""
        return self._load.endpoint.run(self._missing)

    def _missing(self, connection: Any) -> tuple[int, ...]:
        load = self._load
        found = load.ledger.find(connection, load.batch.name)
        if found and found.begun == load.batch.begun and found.finished is not None:
            return ()  # another run has published it
        try:
            staged = slices_staged(connection, self._staging, self._filled)
        except pymysql.ProgrammingError as error:
            if error.args[0] != ER.NO_SUCH_TABLE:
                raise
            if self._is_finished(connection):  # just now
                return ()
            raise JobError("the staging table has been dropped: run this again") from None
        return tuple(number for number in self._filled if number not in staged)

    def write(self, wanted: Sequence[int]) -> None:
        """Run the tasks."""
        row = f.col(SLICE) * ROWS_OF_A_PARTITION + f.col(PLACE)
        names = (*self._load.cut.version.staged, *self._load.mapped.names)
        columns = [row.alias(ROW), *(f.col(quoted(each)) for each in names)]
        self._load.write(self._load.sliced(wanted).select(columns), self._staging)

    def finish(self, report: Callable[[Progress], None]) -> bool:
        """Publish it all."""
        load = self._load
        tried: set[int] = set()
        try:
            by_us = load.endpoint.run(lambda connection: self._publish(connection, report, tried))
        except pymysql.MySQLError as error:
            raise JobError(
                f"the server refuses the batch, none of it is in the queue: {error.args[1]}. Make the data fit and give"
                " it another name, or make room for it and run this again"
            ) from None
        load.endpoint.run(lambda connection: _execute(connection, f"DROP TABLE IF EXISTS {self._staging}"))
        return by_us

    def _is_finished(self, connection: Any) -> bool:
        """Raises AbandonedError if so: whoever abandons a batch locks it first, and then drops its table."""
        with connection.cursor() as cursor:
            return self._load.ledger.lock(cursor, self._load.batch).finished is not None

    def _publish(self, connection: Any, report: Callable[[Progress], None], tried: set[int]) -> bool:
        load = self._load
        with connection.cursor() as cursor:
            # Else the server locks each row that is staged while it copies it.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.begin()
            if load.ledger.lock(cursor, load.batch).finished is not None:
                by_us = load.ledger.finish(cursor, load.batch, tried)
                connection.rollback()
                return by_us
            cursor.execute(f"SELECT {NOW_NS}")
            (now,) = cursor.fetchone()
            done = 0
            for number in self._filled:
                self._verify(cursor, number)
                done += self._publish_slice(cursor, number, now)
                report(Progress("publishing", done, load.batch.messages))
            if done != load.batch.messages:
                raise JobError(f"{done:,} of {load.batch.messages:,} messages are staged: run this again")
            by_us = load.ledger.finish(cursor, load.batch, tried)
        connection.commit()
        return by_us

    def _verify(self, cursor: Any, number: int) -> None:
        version, expected = self._load.cut.version, self._load.slices[number]
        cursor.execute(f"SELECT COUNT(*), {version.asked()} FROM {self._staging} WHERE {_within(number)}")
        count, *answer = cursor.fetchone()
        if count != expected.rows or not version.agrees(expected.checksum, answer):
            cursor.connection.rollback()
            cursor.execute(f"DROP TABLE {self._staging}")
            raise JobError(
                "the data changed while it was read, none of it is in the queue: write it to files that stay as they"
                " are, and run this again"
            )

    def _publish_slice(self, cursor: Any, number: int, now: int) -> int:
        load = self._load
        values = {name: quoted(name) for name in load.mapped.names}
        values |= {name: str(value) for name, value in load.fillers.items()}
        time_name = load.table.by_name["time_next"].name
        if load.spread_ns is not None:
            place = f"({ROW} - {_rows(number).start})"
            share = f"({place} + {number} / {len(load.slices)}) * {load.spread_ns} / {load.slices[number].rows}"
            values[time_name] = f"{now} + FLOOR({share})"
        values.setdefault(time_name, str(now))
        return int(
            cursor.execute(
                f"INSERT INTO {load.table.quoted} ({quoted_list(list(values))}) SELECT {', '.join(values.values())}"
                f" FROM {self._staging} WHERE {_within(number)}"
            )
        )


def slices_staged(connection: Any, staging: str, numbers: Iterable[int]) -> set[int]:
    """Which of these slices are there: one look at a key for each, however many rows there are, committed or not.

    Raises pymysql.ProgrammingError if the table is not there.
    """
    found: set[int] = set()
    wanted = list(numbers)
    with connection.cursor() as cursor:
        for start in range(0, len(wanted), LOOKED_FOR_AT_ONCE):
            first = {_rows(number).start: number for number in wanted[start : start + LOOKED_FOR_AT_ONCE]}
            cursor.execute(f"SELECT {ROW} FROM {staging} WHERE {ROW} IN ({', '.join(map(str, first))})")
            found |= {first[row] for (row,) in cursor.fetchall()}
    return found


def _rows(number: int) -> range:
    """The rows that a slice can have."""
    return range(number * ROWS_OF_A_PARTITION, (number + 1) * ROWS_OF_A_PARTITION)


def _within(number: int) -> str:
    return f"{ROW} BETWEEN {_rows(number)[0]} AND {_rows(number)[-1]}"


def _execute(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
