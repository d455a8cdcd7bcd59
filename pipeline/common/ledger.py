"""The ledger of batches: small tables in the queue's database.

`ackstream_batches` has a row for all that this package writes into a queue, by its *mode*:

- `streaming` and `atomic`: a batch of ackstream-enqueue, with the time it was finished. The row
  stays, so that the same batch adds nothing again.
- `write`: a batch of `df.write`, likewise. Its data is known when it is published: as one slice.
- `query`: a streaming query, by its id. Its slices are the micro-batches that are published.

`ackstream_slices` has a row for each slice of a batch of ackstream-enqueue, until the batch ends:
`published` is set in the transaction that writes the slice, into the queue or the staging table.
`ackstream_rejects` has a row for each row that the server refused and that was set aside;
they stay with their batch. All changes are transactions that can be repeated: each first reads what
is there. The comment of each table ends with its version; tables of earlier releases have none, and
are of version 1.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from ..endpoint import quoted
from ..errors import AbandonedError, JobError, PipelineError
from .connection import ignored, rows_if_any
from .statements import NOW
from .table import Table, hashed_name

QUERY: Final = "query"
WRITE: Final = "write"

FINGERPRINT_CHARACTERS: Final = 32

BATCH_CHARACTERS: Final = 190
"""The key fits into an index on every server."""

STAGING: Final = "ackstream_staging_"

WITHHELD_NS: Final = 7_258_118_400_000_000_000
"""The first of January 2200. Data may not have this `time_next` or a later one."""

_WRITTEN_IN_TASKS: Final = "null"
"""The `mark` of a slice. Earlier versions had the id of a message there, which proved the slice."""

VERSION: Final = 1
"""Of all tables of the ledger. It is raised only where an older program would use them wrongly."""

_VERSIONS: Final = """
    SELECT table_name, table_comment FROM information_schema.tables
    WHERE table_schema = %s AND table_name IN ('ackstream_batches', 'ackstream_slices', 'ackstream_rejects')
    """

_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS {database}.ackstream_batches (
      queue VARCHAR(64) NOT NULL, batch VARCHAR(190) NOT NULL, mode VARCHAR(16) NOT NULL,
      fingerprint CHAR(32) NOT NULL, file_octets BIGINT NULL, slices INT NOT NULL, messages BIGINT NOT NULL,
      begun BIGINT NOT NULL, finished BIGINT NULL, abandoned BIGINT NULL, PRIMARY KEY (queue, batch)
    ) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT 'ackstream: the ledger (version 1)'
    """,
    """
    CREATE TABLE IF NOT EXISTS {database}.ackstream_slices (
      queue VARCHAR(64) NOT NULL, batch VARCHAR(190) NOT NULL, slice INT NOT NULL,
      mark TEXT NOT NULL, due BIGINT NOT NULL, published BIGINT NULL, PRIMARY KEY (queue, batch, slice)
    ) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT 'ackstream: the ledger (version 1)'
    """,
)

_REJECTS: Final = """
    CREATE TABLE IF NOT EXISTS {database}.ackstream_rejects (
      queue VARCHAR(64) NOT NULL, batch VARCHAR(190) NOT NULL, slice INT NOT NULL, place BIGINT NOT NULL,
      code INT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (queue, batch, slice, place)
    ) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT 'ackstream: the ledger (version 1)'
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch or a query in the ledger. Times are the server's, in nanoseconds."""

    name: str
    mode: str
    fingerprint: str
    file_octets: int | None
    """The size of the pieces that its files were cut into; None: it was cut by the hashes of its
    rows."""
    slices: int
    messages: int
    begun: int
    finished: int | None
    abandoned: int | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that the server refused and that was set aside: its place in the batch, and the
    server's error."""

    slice: int
    place: int
    code: int
    reason: str


_COLUMNS: Final = "batch, mode, fingerprint, file_octets, slices, messages, begun, finished, abandoned"


class Ledger:
    """The ledger of one queue. Each method takes the connection or the cursor that it uses."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._batches = quoted(table.database, "ackstream_batches")
        self._slices = quoted(table.database, "ackstream_slices")
        self._rejects = quoted(table.database, "ackstream_rejects")

    def staging(self, batch: Batch) -> str:
        """The name of a batch's staging table.

        It differs each time the batch is begun, so a job that still works on an abandoned batch
        does not disturb the next one.
        """
        return quoted(self._table.database, staging_name(self._table.name, batch))

    def find(self, connection: Any, batch: str) -> Batch | None:
        """The batch; None if it was never begun."""
        statement = f"SELECT {_COLUMNS} FROM {self._batches} WHERE queue = %s AND batch = %s"
        found = rows_if_any(connection, statement, [self._table.name, batch])
        return Batch(*found[0]) if found else None

    def begin(self, connection: Any, new: Batch) -> Batch:
        """Record a batch, unless it is there. Returns the batch in the ledger.

        Raises PipelineError if that has another mode or other data or was abandoned, JobError if
        another run began it with other settings.
        """
        found = self._record(connection, new)
        if found.abandoned is not None:
            raise PipelineError(
                f"batch {new.name!r} was abandoned, and some of it may be in the queue: give this one another name"
            )
        if found.file_octets != new.file_octets:
            raise JobError(f"another run has begun batch {new.name!r} meanwhile, with other settings: run this again")
        if found.fingerprint != new.fingerprint:
            files = "" if found.file_octets is None else ", or with files that Spark lists or cuts otherwise"
            raise _other(new.name, f"with other data ({found.messages:,} messages){files}", "data")
        return found

    def open(self, connection: Any, name: str, mode: str) -> Batch:
        """Record a query, or a batch whose data is not known yet, unless it is there. Returns it as
        it is in the ledger. Raises PipelineError if that has another mode."""
        return self._record(connection, replace(query(name), mode=mode))

    def _record(self, connection: Any, new: Batch) -> Batch:
        with connection.cursor() as cursor:
            self._refuse_newer(cursor)
            try:
                self._insert(cursor, new)
            except pymysql.ProgrammingError as error:
                if error.args[0] != ER.NO_SUCH_TABLE:
                    raise
                self._make(cursor)
                self._insert(cursor, new)
            found = self._read(cursor, new.name)
            assert found is not None
            if found.mode != new.mode:
                raise _other(new.name, f"in mode {found.mode}", "mode")
            if self.is_elsewhere(cursor, found):
                raise PipelineError(
                    f"{self._table.quoted} was made again or altered since batch {new.name!r} was written,"
                    " and shows nothing of that time. If the batch is gone with the table, run ackstream-enqueue"
                    f" --abandon {new.name!r} and then this again. If it was consumed, nothing is to be done"
                )
        return found

    def is_elsewhere(self, cursor: Any, batch: Batch) -> bool:
        """Whether what was written of a batch went to another table than the one that has the
        queue's name now, as far as can be seen.

        The servers do not tell a table that was made again from one that was altered. One that was
        altered has messages of the batch that wait, or messages that were acknowledged between the
        batch and the change. TRUNCATE is as DELETE: what somebody has removed is not written again.
        """
        made_ns = (self._table.made_s + 1) * 10**9
        if made_ns <= batch.begun or not self._table.made_s or not batch.messages:
            return False
        if batch.finished is None and not (batch.mode == "streaming" and any(self.slices(cursor, batch.name).values())):
            return False
        until = batch.finished or batch.begun
        cursor.execute(
            f"SELECT EXISTS (SELECT 1 FROM {self._table.quoted} WHERE time_acked BETWEEN {until} AND {made_ns})"
            f" OR EXISTS (SELECT 1 FROM {self._table.quoted}"
            f" WHERE time_acked IS NULL AND time_next BETWEEN {batch.begun} AND {until})"
        )
        return not cursor.fetchone()[0]

    def _refuse_newer(self, cursor: Any) -> None:
        """Raises PipelineError if a later release has changed the ledger."""
        cursor.execute(_VERSIONS, [self._table.database])
        for name, comment in cursor.fetchall():
            found = re.search(r"\(version ([0-9]+)\)$", comment)
            if found and int(found[1]) > VERSION:
                raise PipelineError(
                    f"the table {self._table.database}.{name} has version {found[1]}, and this program uses version"
                    f" {VERSION}: use a newer ackstream-spark"
                )

    def _make(self, cursor: Any) -> None:
        for table in _TABLES:
            cursor.execute(table.format(database=quoted(self._table.database)))

    def _insert(self, cursor: Any, new: Batch) -> None:
        cursor.execute(
            f"INSERT INTO {self._batches} (queue, batch, mode, fingerprint, file_octets, slices, messages, begun)"
            f" VALUES (%s, %s, %s, %s, %s, %s, %s, {NOW}) ON DUPLICATE KEY UPDATE batch = batch",
            [self._table.name, new.name, new.mode, new.fingerprint, new.file_octets, new.slices, new.messages],
        )

    def lock(self, cursor: Any, batch: Batch) -> Batch:
        """Lock a batch: nobody else publishes or abandons it until this transaction ends. Returns
        it.

        Raises AbandonedError, also if the batch has been begun again since, perhaps with other
        data.
        """
        found = self.seize(cursor, batch.name)
        if found is None or found.abandoned is not None or found.begun != batch.begun:
            raise AbandonedError(f"batch {batch.name!r} has been abandoned while this job was at work on it")
        return found

    def seize(self, cursor: Any, batch: str) -> Batch | None:
        """Lock a batch in any state, until this transaction ends. Returns it, or None if there is
        none."""
        return self._read(cursor, batch, " FOR UPDATE")

    def add_slice(self, cursor: Any, batch: Batch, slices: int, messages: int, fingerprint: str) -> None:
        """Record the last slice of a query, or the only one of a batch of `df.write`, which is then
        finished."""
        cursor.execute(
            f"UPDATE {self._batches} SET slices = %s, messages = messages + %s, fingerprint = %s,"
            f" finished = IF(mode = '{QUERY}', NULL, {NOW}) WHERE queue = %s AND batch = %s",
            [slices, messages, fingerprint, self._table.name, batch.name],
        )

    def abandon(self, cursor: Any, batch: str) -> None:
        """Record a batch as abandoned. The rows of its slices stay, and tasks write none of them
        any more."""
        this = [self._table.name, batch]
        cursor.execute(
            f"UPDATE {self._batches} SET abandoned = {NOW} WHERE queue = %s AND batch = %s AND abandoned IS NULL", this
        )
        cursor.execute(f"UPDATE {self._slices} SET due = 0 WHERE queue = %s AND batch = %s AND published IS NULL", this)

    def delete(self, cursor: Any, batch: str) -> None:
        """Delete a batch from the ledger, with its slices and refused rows."""
        for table in (self._batches, self._slices, self._rejects):
            with ignored(ER.NO_SUCH_TABLE):
                cursor.execute(f"DELETE FROM {table} WHERE queue = %s AND batch = %s", [self._table.name, batch])

    def forget_slices(self, cursor: Any, batch: Batch) -> None:
        """Delete the rows of a batch's slices: a rerun writes them again."""
        cursor.execute(
            f"DELETE FROM {self._slices} WHERE queue = %s AND batch = %s AND due = %s",
            [self._table.name, batch.name, batch.begun],
        )

    def make_room_for_rejects(self, connection: Any) -> None:
        """Create the table for refused rows. It has to be there before the transactions, because
        CREATE ends one."""
        with connection.cursor() as cursor:
            cursor.execute(_REJECTS.format(database=quoted(self._table.database)))

    def reject(self, cursor: Any, batch: str, rows: Sequence[Reject]) -> None:
        """Record refused rows, in the transaction that publishes the other rows of their slice."""
        cursor.executemany(
            f"INSERT INTO {self._rejects} (queue, batch, slice, place, code, reason) VALUES (%s, %s, %s, %s, %s, %s)",
            [(self._table.name, batch, row.slice, row.place, row.code, row.reason) for row in rows],
        )

    def rejects(self, connection: Any, batch: str) -> list[Reject]:
        """The rows of a batch that were set aside."""
        found = rows_if_any(
            connection,
            f"SELECT slice, place, code, reason FROM {self._rejects} WHERE queue = %s AND batch = %s"
            " ORDER BY slice, place",
            [self._table.name, batch],
        )
        return [Reject(*row) for row in found]

    def rejected(self, connection: Any) -> dict[str, int]:
        """How many rows of each batch were set aside."""
        statement = f"SELECT batch, COUNT(*) FROM {self._rejects} WHERE queue = %s GROUP BY batch"
        return dict(rows_if_any(connection, statement, [self._table.name]))

    def all(self, connection: Any) -> list[tuple[Batch, int, int]]:
        """The queue's batches in the order they were begun, each with its slices under way and how
        many are published."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {_COLUMNS}, COUNT(slice), COUNT(published) FROM {self._batches}"
                f" LEFT JOIN {self._slices} USING (queue, batch) WHERE queue = %s"
                f" GROUP BY {_COLUMNS} ORDER BY begun, batch",
                [self._table.name],
            )
            return [(Batch(*row[:-2]), row[-2], row[-1]) for row in cursor.fetchall()]

    def everywhere(self, connection: Any) -> list[tuple[str, Batch]]:
        """The batches of all queues in the database, each with its queue's name."""
        return [
            (row[0], Batch(*row[1:]))
            for row in rows_if_any(connection, f"SELECT queue, {_COLUMNS} FROM {self._batches}")
        ]

    def finish(self, cursor: Any, batch: Batch, tried: set[int]) -> bool:
        """Record that the whole batch is published, unless that was done. Returns whether this run
        did it.

        Exactly one of several runs of a batch gets True, even if this is repeated because the
        answer to a commit was lost: `tried` keeps the times that this run has written, each with
        random last digits. Raises AbandonedError, and JobError if a slice is not written.
        """
        finished = self.lock(cursor, batch).finished
        if finished is not None:
            return finished in tried
        if not all(self.slices(cursor, batch.name).values()):
            raise JobError(f"slices of batch {batch.name!r} that were written are gone, by a failover: run this again")
        cursor.execute(f"SELECT {NOW}")
        moment = cursor.fetchone()[0] + secrets.randbelow(1000)  # the server's clock counts microseconds
        tried.add(moment)
        this = [self._table.name, batch.name]
        cursor.execute(f"UPDATE {self._batches} SET finished = {moment} WHERE queue = %s AND batch = %s", this)
        # The slices are not needed any more.
        cursor.execute(f"DELETE FROM {self._slices} WHERE queue = %s AND batch = %s", this)
        return True

    def slices(self, cursor: Any, batch: str, suffix: str = "") -> dict[int, bool]:
        """The recorded slices, and whether each is written. Raises PipelineError for those of an
        earlier version."""
        cursor.execute(
            f"SELECT slice, published IS NOT NULL, mark FROM {self._slices} WHERE queue = %s AND batch = %s{suffix}",
            [self._table.name, batch],
        )
        found = cursor.fetchall()
        if any(mark != _WRITTEN_IN_TASKS for _, _, mark in found):
            raise PipelineError(
                f"batch {batch!r} was begun by an earlier version of ackstream-enqueue: finish or abandon it with that"
            )
        return {number: bool(written) for number, written, _ in found}

    def add_slices(self, cursor: Any, batch: Batch, numbers: Sequence[int]) -> None:
        """Record slices as not written."""
        cursor.executemany(
            f"INSERT INTO {self._slices} (queue, batch, slice, mark, due) VALUES (%s, %s, %s, %s, %s)",
            [(self._table.name, batch.name, number, _WRITTEN_IN_TASKS, batch.begun) for number in numbers],
        )

    def write_slice(self, cursor: Any, batch: Batch, number: int) -> bool:
        """Record a slice as written, in the transaction that writes it.

        Returns False if it is written already, or never will be: the batch is finished, abandoned,
        or was begun again. Waits for another transaction with this slice.
        """
        return bool(
            cursor.execute(
                f"UPDATE {self._slices} SET published = {NOW}"
                " WHERE queue = %s AND batch = %s AND slice = %s AND due = %s AND published IS NULL",
                [self._table.name, batch.name, number, batch.begun],
            )
        )

    def _read(self, cursor: Any, batch: str, suffix: str = "") -> Batch | None:
        cursor.execute(
            f"SELECT {_COLUMNS} FROM {self._batches} WHERE queue = %s AND batch = %s{suffix}",
            [self._table.name, batch],
        )
        found = cursor.fetchone()
        return None if found is None else Batch(*found)


def query(name: str) -> Batch:
    """A query, before it is in the ledger."""
    return Batch(name, QUERY, "", None, 0, 0, 0, None)


def staging_name(queue: str, batch: Batch) -> str:
    """The name of a staging table, without its database. Those of a query, by the columns of its
    rows, have more behind it."""
    # The number is that of the table's form.
    form = "3" if batch.mode == "atomic" else "2"
    return hashed_name(STAGING, queue, batch.name, form, "" if batch.mode == QUERY else str(batch.begun))


def _other(batch: str, said: str, what: str) -> PipelineError:
    return PipelineError(f"batch {batch!r} was begun {said}: give this one another name, or the same {what} as then")
