"""Atomic mode: all of the batch or nothing, however many partitions it has and however the job dies.

Tasks write into a staging table of the batch's own; when every slice is there, the driver publishes them in one
transaction on the server, by INSERT … SELECT, with the ledger's word that it is done. Nothing large crosses the wire in
one transaction, and a rerun finds what is staged already, or that all is done.

Spark may carry out a task more than once, and each time may commit. So each attempt's rows are told apart: a task has a
connection of its own, whose number is the default of `ackstream_attempt`. A transaction holds whole slices, so an
attempt's slice is there wholly or not at all, and publishing takes one attempt of each. (The numbers begin anew when a
server does. Two attempts with the same one have the same keys: the second fails as a duplicate and is tried again.)
Before a slice is published, the server counts its rows and adds up their hashes: they must be the data that was
checked.

The statements are one a slice, because a server with `innodb_autoinc_lock_mode = 1` (MariaDB's default) lets nobody
else insert while one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pymysql
from pymysql.constants import ER
from pyspark.sql import functions as f

from pipeline.cut import HASH, PLACE, SLICE
from pipeline.endpoint import quoted, quoted_list
from pipeline.errors import JobError
from pipeline.ledger import NOW_NS
from pipeline.load import Load, Progress

ATTEMPT: Final = "ackstream_attempt"


class Staged:
    """The slices of a batch on their way into its staging table."""

    phase = "staging"

    def __init__(self, load: Load) -> None:
        self._load = load
        self._staging = load.ledger.staging(load.batch)
        self._attempts: dict[int, int] = {}
        """Of each slice that is there: the attempt that is taken."""

    def prepare(self) -> None:
        """Make the staging table: columns as the queue has them."""
        definition = (
            f"CREATE TABLE IF NOT EXISTS {self._staging} ({SLICE} INT NOT NULL DEFAULT 0,"
            f" {ATTEMPT} BIGINT UNSIGNED NOT NULL DEFAULT (CONNECTION_ID()), {PLACE} BIGINT NOT NULL DEFAULT 0,"
            f" {HASH} BIGINT NOT NULL DEFAULT 0, PRIMARY KEY ({SLICE}, {ATTEMPT}, {PLACE})) ENGINE=InnoDB"
            f" SELECT {quoted_list(self._load.mapped.names)} FROM {self._load.table.quoted} WHERE FALSE"
        )
        self._load.endpoint.run(lambda connection: _execute(connection, definition))

    def look(self) -> tuple[int, ...]:
        """See which slices are staged."""
        try:
            self._attempts = self._load.endpoint.run(self._staged)
        except pymysql.ProgrammingError as error:
            if error.args[0] != ER.NO_SUCH_TABLE:
                raise
            self._load.endpoint.run(self._check)
            raise JobError("the staging table has been dropped: run this again") from None
        return tuple(
            number for number, each in enumerate(self._load.slices) if each.rows and number not in self._attempts
        )

    def _staged(self, connection: Any) -> dict[int, int]:
        found: dict[int, int] = {}
        with connection.cursor() as cursor:
            # A look at the end of each group in the index, however many rows are before it.
            cursor.execute(f"SELECT {SLICE}, {ATTEMPT}, MAX({PLACE}) FROM {self._staging} GROUP BY {SLICE}, {ATTEMPT}")
            for number, attempt, last in cursor.fetchall():
                if last + 1 == self._load.slices[number].rows:
                    found.setdefault(number, attempt)
        return found

    def write(self, wanted: Sequence[int]) -> None:
        """Run the tasks."""
        own = [f.col(name) for name in (SLICE, PLACE, HASH)]
        columns = own + [f.col(quoted(each)) for each in self._load.mapped.names]
        self._load.write(self._load.sliced(wanted).select(columns), self._staging)

    def finish(self, report: Callable[[Progress], None]) -> None:
        """Publish it all."""
        load = self._load
        try:
            load.endpoint.run(lambda connection: self._publish(connection, report))
        except pymysql.MySQLError as error:
            raise JobError(
                f"the server refuses the batch, none of it is in the queue: {error.args[1]}. Make the data fit and give"
                " it another name, or make room for it and run this again"
            ) from None
        load.endpoint.run(lambda connection: _execute(connection, f"DROP TABLE IF EXISTS {self._staging}"))

    def _check(self, connection: Any) -> None:
        """Raise AbandonedError if so: whoever abandons a batch locks it first, and then drops its table."""
        with connection.cursor() as cursor:
            self._load.ledger.lock(cursor, self._load.batch)

    def _publish(self, connection: Any, report: Callable[[Progress], None]) -> None:
        load = self._load
        connection.begin()
        with connection.cursor() as cursor:
            if load.ledger.lock(cursor, load.batch).finished is not None:
                connection.rollback()
                return
            cursor.execute(f"SELECT {NOW_NS}")
            (now,) = cursor.fetchone()
            done = 0
            for number, attempt in sorted(self._attempts.items()):
                self._verify(cursor, number, attempt)
                done += self._publish_slice(cursor, number, attempt, now)
                report(Progress("publishing", done, load.batch.messages))
            if done != load.batch.messages:
                raise JobError(f"{done:,} of {load.batch.messages:,} messages are staged: run this again")
            load.ledger.finish(cursor, load.batch.name)
        connection.commit()

    def _verify(self, cursor: Any, number: int, attempt: int) -> None:
        where = f"WHERE {SLICE} = %s AND {ATTEMPT} = %s"
        cursor.execute(f"SELECT COUNT(*), BIT_XOR({HASH}) FROM {self._staging} {where}", [number, attempt])
        expected = self._load.slices[number]
        if cursor.fetchone() != (expected.rows, expected.checksum):
            cursor.connection.rollback()
            cursor.execute(f"DROP TABLE {self._staging}")
            raise JobError(
                "the data changed while it was read, none of it is in the queue: write it to files that stay as they"
                " are, and run this again"
            )

    def _publish_slice(self, cursor: Any, number: int, attempt: int, now: int) -> int:
        load = self._load
        values = {name: quoted(name) for name in load.mapped.names}
        values |= {name: str(value) for name, value in load.fillers.items()}
        time_name = load.table.by_name["time_next"].name
        if load.spread_ns is not None:
            share = f"({PLACE} + {number} / {len(load.slices)}) * {load.spread_ns} / {load.slices[number].rows}"
            values[time_name] = f"{now} + FLOOR({share})"
        values.setdefault(time_name, str(now))
        return int(
            cursor.execute(
                f"INSERT INTO {load.table.quoted} ({quoted_list(list(values))}) SELECT {', '.join(values.values())}"
                f" FROM {self._staging} WHERE {SLICE} = %s AND {ATTEMPT} = %s",
                [number, attempt],
            )
        )


def _execute(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
