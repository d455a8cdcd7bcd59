"""What is known of each batch, kept beside the queue: small tables in its database.

`ackstream_batches` has a row for each batch that was begun, and when it was finished; it stays, so that the same batch
adds nothing again. `ackstream_slices` has a row for each slice of a batch under way in streaming mode, and goes with
its end. `ackstream_rejects` has a row for each one that the server refused, where such rows are set aside; they stay
with their batch. All of this module's changes are transactions that can be done again: each looks first at what is
there.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from pipeline.common.connection import MissingTableIgnored, rows_if_any
from pipeline.common.statements import NOW
from pipeline.common.table import Table, hashed_name
from pipeline.endpoint import quoted
from pipeline.errors import AbandonedError, JobError, PipelineError

BATCH_CHARACTERS: Final = 190
"""So that the key fits into an index on every server."""

STAGING: Final = "ackstream_staging_"

WITHHELD_NS: Final = 7_258_118_400_000_000_000
"""The first of January 2200: when a message is due that proves that its slice is there, and waits to be published."""

_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS {database}.ackstream_batches (
      queue VARCHAR(64) NOT NULL, batch VARCHAR(190) NOT NULL, mode VARCHAR(16) NOT NULL,
      fingerprint CHAR(32) NOT NULL, file_octets BIGINT NULL, slices INT NOT NULL, messages BIGINT NOT NULL,
      begun BIGINT NOT NULL, finished BIGINT NULL, abandoned BIGINT NULL, PRIMARY KEY (queue, batch)
    ) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
    """,
    """
    CREATE TABLE IF NOT EXISTS {database}.ackstream_slices (
      queue VARCHAR(64) NOT NULL, batch VARCHAR(190) NOT NULL, slice INT NOT NULL,
      mark TEXT NOT NULL, due BIGINT NOT NULL, published BIGINT NULL, PRIMARY KEY (queue, batch, slice)
    ) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
    """,
)

_REJECTS: Final = """
    CREATE TABLE IF NOT EXISTS {database}.ackstream_rejects (
      queue VARCHAR(64) NOT NULL, batch VARCHAR(190) NOT NULL, slice INT NOT NULL, place BIGINT NOT NULL,
      code INT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (queue, batch, slice, place)
    ) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the ledger has it. Times are the server's, in nanoseconds."""

    name: str
    mode: str
    fingerprint: str
    file_octets: int | None
    """Into how large pieces the files were cut that it came from; None: it was cut by the hashes of its rows."""
    slices: int
    messages: int
    begun: int
    finished: int | None
    abandoned: int | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of a batch under way in streaming mode."""

    mark: Any
    """The id of the message that it is known by. None: by its row in the ledger alone."""
    due: int
    """That message's real time."""
    published: bool


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that the server refused and that was set aside: where it is in its batch, and why."""

    slice: int
    place: int
    code: int
    reason: str


_COLUMNS: Final = "batch, mode, fingerprint, file_octets, slices, messages, begun, finished, abandoned"


class Ledger:
    """The ledger of one queue. Each method takes the connection that it works on."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._batches = quoted(table.database, "ackstream_batches")
        self._slices = quoted(table.database, "ackstream_slices")
        self._rejects = quoted(table.database, "ackstream_rejects")

    def staging(self, batch: Batch) -> str:
        """The name of the table where a batch waits to be published.

        It is another one each time that the batch is begun: a job whose batch was abandoned under it, and which works
        on, is not in the way of the next one.
        """
        return quoted(self._table.database, staging_name(self._table.name, batch.name, batch.begun))

    def find(self, connection: Any, batch: str) -> Batch | None:
        """The batch, if it was begun."""
        with connection.cursor() as cursor, MissingTableIgnored():
            return self._read(cursor, batch)
        return None

    def begin(self, connection: Any, new: Batch) -> Batch:
        """Write down that it begins, unless it is there; the batch as it is there."""
        with connection.cursor() as cursor:
            try:
                self._insert(cursor, new)
            except pymysql.ProgrammingError as error:
                if error.args[0] != ER.NO_SUCH_TABLE:
                    raise
                for table in _TABLES:
                    cursor.execute(table.format(database=quoted(self._table.database)))
                self._insert(cursor, new)
            found = self._read(cursor, new.name)
        assert found is not None
        if found.abandoned is not None:
            raise PipelineError(
                f"batch {new.name!r} was abandoned, and some of it may be in the queue: give this one another name"
            )
        if found.mode != new.mode:
            raise _other(new.name, f"in mode {found.mode}", "mode")
        if found.file_octets != new.file_octets:
            raise JobError(f"another run has begun batch {new.name!r} meanwhile, with other settings: run this again")
        if found.fingerprint != new.fingerprint:
            files = "" if found.file_octets is None else ", or with files that Spark lists or cuts otherwise"
            raise _other(new.name, f"with other data ({found.messages:,} messages){files}", "data")
        return found

    def _insert(self, cursor: Any, new: Batch) -> None:
        cursor.execute(
            f"INSERT INTO {self._batches} (queue, batch, mode, fingerprint, file_octets, slices, messages, begun)"
            f" VALUES (%s, %s, %s, %s, %s, %s, %s, {NOW}) ON DUPLICATE KEY UPDATE batch = batch",
            [self._table.name, new.name, new.mode, new.fingerprint, new.file_octets, new.slices, new.messages],
        )

    def lock(self, cursor: Any, batch: Batch) -> Batch:
        """The batch, which nobody else publishes or abandons until this transaction ends.

        Raises AbandonedError; also if it has been begun anew since, perhaps with other data.
        """
        found = self.seize(cursor, batch.name)
        if found is None or found.abandoned is not None or found.begun != batch.begun:
            raise AbandonedError(f"batch {batch.name!r} has been abandoned while this job was at work on it")
        return found

    def seize(self, cursor: Any, batch: str) -> Batch | None:
        """The batch, whatever it is; it does not change until this transaction ends."""
        return self._read(cursor, batch, " FOR UPDATE")

    def abandon(self, cursor: Any, batch: str) -> None:
        """Write down that the rest of it never comes. Its slices stay written down: tasks may yet commit some."""
        cursor.execute(
            f"UPDATE {self._batches} SET abandoned = {NOW} WHERE queue = %s AND batch = %s AND abandoned IS NULL",
            [self._table.name, batch],
        )

    def delete(self, cursor: Any, batch: str) -> None:
        """Know nothing of it any more."""
        for table in (self._batches, self._slices):
            cursor.execute(f"DELETE FROM {table} WHERE queue = %s AND batch = %s", [self._table.name, batch])

    def make_room_for_rejects(self, connection: Any) -> None:
        """Before they come, for it ends a transaction."""
        with connection.cursor() as cursor:
            cursor.execute(_REJECTS.format(database=quoted(self._table.database)))

    def reject(self, cursor: Any, batch: str, row: Reject) -> None:
        """Write down, in the transaction that publishes the other rows of its slice, that this one is refused."""
        cursor.execute(
            f"INSERT INTO {self._rejects} (queue, batch, slice, place, code, reason) VALUES (%s, %s, %s, %s, %s, %s)",
            [self._table.name, batch, row.slice, row.place, row.code, row.reason],
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
        """How many of each batch."""
        statement = f"SELECT batch, COUNT(*) FROM {self._rejects} WHERE queue = %s GROUP BY batch"
        return dict(rows_if_any(connection, statement, [self._table.name]))

    def all(self, connection: Any) -> list[tuple[Batch, int, int]]:
        """The batches of the queue as they were begun; of each its slices under way, and how many are published."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {_COLUMNS}, COUNT(slice), COUNT(published) FROM {self._batches}"
                f" LEFT JOIN {self._slices} USING (queue, batch) WHERE queue = %s"
                f" GROUP BY {_COLUMNS} ORDER BY begun, batch",
                [self._table.name],
            )
            return [(Batch(*row[:-2]), row[-2], row[-1]) for row in cursor.fetchall()]

    def finish(self, cursor: Any, batch: Batch, tried: set[int]) -> bool:
        """Write down that all of it is published, unless that is done; whether it was this run that did it.

        Of several runs of a batch exactly one gets True, though answers to commits are lost and this is repeated:
        `tried` keeps the moments that this run has written, each with a random end. Raises AbandonedError.
        """
        finished = self.lock(cursor, batch).finished
        if finished is not None:
            return finished in tried
        cursor.execute(f"SELECT {NOW}")
        moment = cursor.fetchone()[0] + secrets.randbelow(1000)  # the server's clock counts microseconds
        tried.add(moment)
        this = [self._table.name, batch.name]
        cursor.execute(f"UPDATE {self._batches} SET finished = {moment} WHERE queue = %s AND batch = %s", this)
        # They are of no more interest.
        cursor.execute(f"DELETE FROM {self._slices} WHERE queue = %s AND batch = %s", this)
        return True

    def unpublished(self, cursor: Any, batch: str) -> set[int]:
        """The slices that are written down and not published, by whomever."""
        cursor.execute(
            f"SELECT slice FROM {self._slices} WHERE queue = %s AND batch = %s AND published IS NULL",
            [self._table.name, batch],
        )
        return {number for (number,) in cursor.fetchall()}

    def slices(self, connection: Any, batch: str) -> dict[int, Slice]:
        """The slices that are written down."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT slice, mark, due, published FROM {self._slices} WHERE queue = %s AND batch = %s",
                [self._table.name, batch],
            )
            return {
                number: Slice(json.loads(mark, object_hook=_decoded), due, published is not None)
                for number, mark, due, published in cursor.fetchall()
            }

    def add_slices(self, cursor: Any, batch: str, slices: Mapping[int, Slice]) -> None:
        """Write down slices, none of which is published."""
        cursor.executemany(
            f"INSERT INTO {self._slices} (queue, batch, slice, mark, due) VALUES (%s, %s, %s, %s, %s)",
            [
                (self._table.name, batch, number, json.dumps(entry.mark, default=_encoded), entry.due)
                for number, entry in slices.items()
            ],
        )

    def publish(self, cursor: Any, batch: str, number: int) -> bool:
        """Write down that a slice is published; whether it was not yet."""
        return bool(
            cursor.execute(
                f"UPDATE {self._slices} SET published = {NOW}"
                " WHERE queue = %s AND batch = %s AND slice = %s AND published IS NULL",
                [self._table.name, batch, number],
            )
        )

    def _read(self, cursor: Any, batch: str, suffix: str = "") -> Batch | None:
        cursor.execute(
            f"SELECT {_COLUMNS} FROM {self._batches} WHERE queue = %s AND batch = %s{suffix}",
            [self._table.name, batch],
        )
        found = cursor.fetchone()
        return None if found is None else Batch(*found)


def staging_name(queue: str, batch: str, begun: int) -> str:
    """Of a staging table, without its database."""
    return hashed_name(STAGING, queue, batch, str(begun))


def _encoded(key: Any) -> Any:
    """An id as JSON has it, where that has no such type."""
    if isinstance(key, bytes | bytearray):
        return {"bytes": key.hex()}
    return {"decimal": f"{key:f}"} if isinstance(key, Decimal) else str(key)


def _decoded(told: dict[str, str]) -> Any:
    return bytes.fromhex(told["bytes"]) if "bytes" in told else Decimal(told["decimal"])


def _other(batch: str, said: str, what: str) -> PipelineError:
    return PipelineError(f"batch {batch!r} was begun {said}: give this one another name, or the same {what} as then")
