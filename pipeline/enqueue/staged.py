"""Atomic mode: the whole batch or nothing, however many partitions it has and however the job dies.

Tasks write into the batch's own staging table. When every slice is there, the driver publishes them
in one transaction on the server, by INSERT … SELECT, and records the batch as finished in it. The
transaction sends no rows over the wire. A rerun finds what is staged already, or that the batch is
finished.

Spark may run a task more than once, and each run may commit. `staging` describes why a slice is
staged once nevertheless. Before a slice is published, the server counts its rows and adds up the
words of their digests. They must be those of the data that was checked.

Each slice has its own statement, because a server with `innodb_autoinc_lock_mode = 1` (MariaDB's
default) blocks other INSERTs while one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pymysql
from pymysql.constants import ER

from ..common.progress import Progress
from ..common.statements import NOW
from ..errors import JobError
from .load import Load
from .staging import Staging, sift


class Staged:
    """Writes the slices of a batch to its staging table, and publishes them together."""

    phase = "staging"

    def __init__(self, load: Load) -> None:
        self._load = load
        self._staging = Staging(load)
        self._filled = [number for number, piece in enumerate(load.slices) if piece.rows]

    def prepare(self) -> None:
        """Make the staging table."""
        if self._load.sets_aside:
            self._load.endpoint.run(self._load.ledger.make_room_for_rejects)
        self._load.endpoint.run(self._staging.make)

    def look(self) -> tuple[int, ...]:
        """Find which slices are not staged. All are checked each time, because a failover may undo
        some."""
        return self._load.endpoint.run(self._missing)

    def _missing(self, connection: Any) -> tuple[int, ...]:
        load = self._load
        found = load.ledger.find(connection, load.batch.name)
        if found and found.begun == load.batch.begun and found.finished is not None:
            return ()  # another run has published it
        try:
            staged = self._staging.staged(connection, self._filled)
        except pymysql.ProgrammingError as error:
            if error.args[0] != ER.NO_SUCH_TABLE:
                raise
            if self._is_finished(connection):  # just now
                return ()
            raise JobError("the staging table has been dropped: run this again") from None
        return tuple(number for number in self._filled if number not in staged)

    def write(self, wanted: Sequence[int]) -> None:
        """Run the tasks."""
        self._staging.write(wanted)

    def finish(self, report: Callable[[Progress], None]) -> bool:
        """Publish the whole batch. Returns whether this run did. Raises JobError."""
        load = self._load
        tried: set[int] = set()
        try:
            by_us = load.endpoint.run(lambda connection: self._publish(connection, report, tried))
        except pymysql.MySQLError as error:
            raise JobError(
                f"the server refuses the batch, none of it is in the queue: {error.args[1]}. Make the data fit and give"
                " it another name, make room for it, or have such rows set aside (--rejects), and run this again"
            ) from None
        load.endpoint.run(self._staging.drop)
        return by_us

    def _is_finished(self, connection: Any) -> bool:
        """Whether the batch is finished. Raises AbandonedError: abandoning locks a batch, then
        drops its table."""
        with connection.cursor() as cursor:
            return self._load.ledger.lock(cursor, self._load.batch).finished is not None

    def _publish(self, connection: Any, report: Callable[[Progress], None], tried: set[int]) -> bool:
        load = self._load
        with connection.cursor() as cursor:
            # At a higher level the server locks each staged row while it copies it.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.begin()
            if load.ledger.lock(cursor, load.batch).finished is not None:
                by_us = load.ledger.finish(cursor, load.batch, tried)
                connection.rollback()
                return by_us
            cursor.execute(f"SELECT {NOW}")
            (now,) = cursor.fetchone()
            done = 0
            for number in self._filled:
                self._staging.verify(cursor, number)
                done += self._publish_slice(cursor, number, now)
                report(Progress("publishing", done, load.batch.messages))
            if done != load.batch.messages:
                raise JobError(f"{done:,} of {load.batch.messages:,} messages are staged: run this again")
            by_us = load.ledger.finish(cursor, load.batch, tried)
        connection.commit()
        return by_us

    def _publish_slice(self, cursor: Any, number: int, now: int) -> int:
        """Publish a slice. Returns how many rows are in the queue or set aside."""
        load, staging = self._load, self._staging
        if not load.sets_aside:
            return staging.publish(cursor, number, now)
        refused: list[int] = []
        refuse = load.refuse(cursor, number)

        def aside(place: int, code: int, reason: str) -> None:
            refuse(place, code, reason)
            refused.append(place)

        places = range(load.slices[number].rows)
        return sift(places, lambda some: staging.publish(cursor, number, now, some), aside) + len(refused)
