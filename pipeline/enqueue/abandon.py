"""Lists and removes what jobs that died have left in a queue's database: batches, and queries that
write.

A job that died cannot be told from a slow one, so a batch may be abandoned while a job works on it.
Both lock the batch's row in the ledger. Abandoning waits for a job that is publishing, and fails if
that takes long. A job whose row is gone, abandoned or begun again ends with AbandonedError.

An *atomic* batch and one of `df.write` exist only in staging tables. Under the lock these are
dropped, then the row is deleted. Nothing of the batch is left, and its name is free. A *query* is
forgotten in the same way; its messages stay. If this dies between the two,
the batch lacks its staging table, and can be abandoned again or run again. A job that still runs
makes no table of another batch: each time a batch is begun, its staging table has another name. The
job drops its own when it ends.

A batch that was written to another table than the one that has the queue's name now is forgotten,
too, also if it was finished.

Of a *streaming* batch some slices may be in the queue. Then its row stays, marked as abandoned, and
the rows of its slices stay, of which tasks write none any more. Its name is not free, because a new
run of the batch would add the written slices twice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from ..common.connection import ignored
from ..common.ledger import QUERY, Batch, Ledger, staging_name
from ..common.staging import drop_staging, staging_tables
from ..common.table import Table, located
from ..endpoint import Endpoint
from ..errors import JobError, PipelineError

NS_PER_S: Final = 10**9

LOCK_S: Final = 5
"""Waits for a job that records a slice, or a task that commits one. Publishing a whole batch takes
longer."""


_WRITING: Final = "tasks of batch {!r} are writing just now: end its job, and try again"


@dataclass(frozen=True, slots=True)
class Standing:
    """A batch and its progress: the slices that are written, to the queue or the staging table.

    `rejected`: rows that the server refused and that were set aside.
    """

    batch: Batch
    slices: int
    written: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Left:
    """What the pipeline has recorded for a queue.

    `strays` are staging tables that belong to no known batch or query of any queue in this
    database: their job was killed before its first publication, or has not come to it yet.
    """

    batches: tuple[Standing, ...]
    strays: tuple[str, ...]


def listed(endpoint: Endpoint, table: str) -> Left:
    """List the batches, queries and stray staging tables. Raises PipelineError."""
    endpoint, queue = located(endpoint, table)
    return endpoint.run(lambda connection: _look(connection, queue))


def abandon(endpoint: Endpoint, table: str, batch: str) -> str:
    """Abandon a batch. Returns the result as a sentence.

    Raises PipelineError if the batch does not exist or is wholly in the queue, JobError if a job is
    publishing it.
    """
    endpoint, queue = located(endpoint, table)
    seen: list[Batch] = []
    return endpoint.run(lambda connection: _abandon(connection, endpoint, queue, batch, seen))


# --- listing ---


def _look(connection: Any, queue: Table) -> Left:
    # The tables first: a batch is recorded before its table is made, so no batch's table is taken
    # for a stray.
    tables = staging_tables(connection, queue.database)
    ledger = Ledger(queue)
    own = tuple(staging_name(owner, batch) for owner, batch in ledger.everywhere(connection))
    strays = tuple(sorted(name for name in tables if not name.startswith(own)))
    rejected = ledger.rejected(connection)
    batches = ledger.all(connection) if own else []
    return Left(tuple(Standing(*row, rejected.get(row[0].name, 0)) for row in batches), strays)


# --- texts ---


def lines(left: Left) -> Iterator[str]:
    """The lines of `--list`."""
    rows = [("batch", "mode", "messages", "begun (UTC)", "state")]
    for standing in left.batches:
        batch = standing.batch
        rows.append((batch.name, batch.mode, f"{batch.messages:,}", _time(batch.begun), _state(standing)))
    yield from _aligned(rows) if left.batches else ["no batches"]
    for name in left.strays:
        yield f"{name}: a staging table of no known batch or query, of this queue or another one of the database"


def _state(standing: Standing) -> str:
    refused = f", {standing.rejected:,} rows refused" if standing.rejected else ""
    if standing.batch.finished is not None:
        return f"finished {_time(standing.batch.finished)}{refused}"
    if standing.batch.mode == QUERY:
        return f"{standing.batch.slices:,} micro-batches published"
    if standing.batch.mode != "streaming":
        return f"under way, {standing.written:,} slices staged"
    since = "under way" if standing.batch.abandoned is None else f"abandoned {_time(standing.batch.abandoned)}"
    return f"{since}, {standing.written:,} of {standing.slices:,} slices in the queue{refused}"


def _time(ns: int) -> str:
    return dt.datetime.fromtimestamp(ns // NS_PER_S, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


# --- abandoning ---


def _abandon(connection: Any, endpoint: Endpoint, queue: Table, name: str, seen: list[Batch]) -> str:
    """`seen`: the batch as earlier attempts read it. If its row is gone now, they deleted it, and
    the answer was lost."""
    ledger = Ledger(queue)
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}, lock_wait_timeout = {LOCK_S}")
        connection.begin()
        batch = None
        with _waiting(f"batch {name!r} is being published just now"), ignored(ER.NO_SUCH_TABLE):
            batch = ledger.seize(cursor, name)
        if batch is None and not seen:
            raise PipelineError(f"there is no batch {name!r} of {queue.quoted} (--list shows those that there are)")
        if batch is not None:
            seen.append(batch)
            is_elsewhere = ledger.is_elsewhere(cursor, batch)
            if batch.finished is not None and not is_elsewhere:
                connection.rollback()
                drop(connection, queue, batch)  # its job may have died before it dropped the table
                raise PipelineError(f"batch {name!r} is done: its {batch.messages:,} messages are in {queue.quoted}")
            with _waiting(_WRITING.format(name)):  # no task writes a slice until this transaction ends
                slices = ledger.slices(cursor, name, " FOR UPDATE")
            if batch.mode == "streaming" and any(slices.values()) and not is_elsewhere:
                ledger.abandon(cursor, name)
                connection.commit()
                return _said(batch, slices, queue)
            # On another connection: DROP TABLE ends a transaction, and nobody may publish until the
            # row is deleted.
            endpoint.run(lambda other: drop(other, queue, batch))
            ledger.delete(cursor, name)
        connection.commit()
    if seen[0].mode == QUERY:
        return f"query {name}: forgotten; its {seen[0].messages:,} messages stay in {queue.quoted}"
    return f"batch {name}: abandoned, nothing of it is in {queue.quoted}, and its name is free"


def _said(batch: Batch, slices: Mapping[int, bool], queue: Table) -> str:
    written = sum(slices.values())
    rest = ", the others never will be" if written < len(slices) else ""
    return f"batch {batch.name}: abandoned, {written:,} of its {len(slices):,} slices are in {queue.quoted}{rest}"


def drop(connection: Any, queue: Table, batch: Batch) -> None:
    """Drop the staging table, if the batch has one. Raises JobError if a task is writing."""
    with connection.cursor() as cursor, _waiting(_WRITING.format(batch.name)):
        cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_S}")
        drop_staging(connection, queue, batch)


@contextmanager
def _waiting(busy: str) -> Iterator[None]:
    """For a statement that waits for a lock: if it waits in vain, this is the error's text."""
    try:
        yield
    except pymysql.MySQLError as error:
        if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
            raise
        raise JobError(busy) from None
