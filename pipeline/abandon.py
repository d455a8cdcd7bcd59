"""What jobs that died have left in a queue's database: which batches and queries there are, and how to be rid of them.

Nobody here can tell a job that died from one that is slow, so a batch may be abandoned beside a job that is at work on
it. Both lock the batch's row in the ledger: whoever publishes is waited for or, if that takes long, wins; and who finds
the row gone, or begun anew, gives up.

An *atomic* batch is nowhere but in its staging table. Under the lock that table is dropped, then the row is deleted:
nothing of the batch is left, and its name is free. Whoever dies between the two has left a batch that lacks its staging
table, which can be abandoned again, or run again. A job that still runs makes no other batch's table, since each time a
batch is begun its table has another name, and drops its own when it gives up.

A query's *sink* has a staging table, too, and a row in `ackstream_sinks` that knows its last batch.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from pipeline.endpoint import Endpoint, quoted
from pipeline.errors import JobError, PipelineError
from pipeline.ledger import STAGING, Batch, Ledger, staging_name
from pipeline.load import SLICE
from pipeline.sink import SINK, SINKS, staging_of
from pipeline.table import Table, describe, split_name

NS_PER_S: Final = 10**9

LOCK_S: Final = 5
"""For a job that writes down a slice, or a task that commits one. Who publishes a whole batch takes longer."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A batch, and how far it is: of a streaming one, the slices that are in; of an atomic one, those that wait."""

    batch: Batch
    slices: int
    published: int
    staged: int | None


@dataclass(frozen=True, slots=True)
class Query:
    """A query's sink: its last batch, if one has been published, and its staging tables."""

    name: str
    batch: int
    staging: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """What the pipeline has written down beside a queue.

    `strays` are staging tables of neither a batch nor a query that is known, of any queue in this database: of a job
    that was killed before its first publication, or is about to have it.
    """

    batches: tuple[Standing, ...]
    queries: tuple[Query, ...]
    strays: tuple[str, ...]


def listed(endpoint: Endpoint, table: str) -> Left:
    """Look."""
    endpoint, queue = _found(endpoint, table)
    return endpoint.run(lambda connection: _look(connection, queue))


def abandon(endpoint: Endpoint, table: str, batch: str) -> str:
    """Give a batch up; what became of it, in a sentence. Raises PipelineError if it is published."""
    endpoint, queue = _found(endpoint, table)
    locked: list[Batch] = []
    return endpoint.run(lambda connection: _abandon(connection, endpoint, queue, batch, locked))


def abandon_query(endpoint: Endpoint, table: str, query: str) -> str:
    """Forget a query whose checkpoint is gone; what became of it, in a sentence."""
    endpoint, queue = _found(endpoint, table)
    return endpoint.run(lambda connection: _abandon_query(connection, queue, query))


def _found(endpoint: Endpoint, table: str) -> tuple[Endpoint, Table]:
    database, name = split_name(table, endpoint.database)
    endpoint = endpoint.in_database(database)
    return endpoint, endpoint.run(lambda connection: describe(connection, database, name))


# --- looking ---


def _look(connection: Any, queue: Table) -> Left:
    # The tables first: a batch is written down before its table is made, so none is taken for a stray.
    tables = _columns_of_staging_tables(connection, queue.database)
    sinks = _rows(connection, f"SELECT queue, query, batch FROM {_sinks(queue)} ORDER BY query")
    batches = _rows(connection, f"SELECT queue, batch, begun FROM {quoted(queue.database, 'ackstream_batches')}")
    taken = {staging_name(*row) for row in batches}
    queries = []
    for owner, query, last in sinks:
        own = tuple(name for name, columns in tables.items() if name == staging_of(owner, query, columns))
        taken.update(own)
        if owner == queue.name:
            queries.append(Query(query, last, own))
    standings = tuple(_standings(connection, queue)) if batches else ()
    return Left(standings, tuple(queries), tuple(sorted(tables.keys() - taken)))


def _standings(connection: Any, queue: Table) -> Iterator[Standing]:
    ledger = Ledger(queue)
    for batch, slices, published in ledger.all(connection):
        staged = None
        if batch.mode == "atomic":
            # A look at the ends of each group in the index, however many rows are between them.
            found = _rows(connection, f"SELECT COUNT(DISTINCT {SLICE}) FROM {ledger.staging(batch)}")
            staged = found[0][0] if found else None
        yield Standing(batch, slices, published, staged)


def _columns_of_staging_tables(connection: Any, database: str) -> dict[str, tuple[str, ...]]:
    """Staging tables of batches and of sinks, with the columns that they have from the queue."""
    found: dict[str, tuple[str, ...]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s"
            " AND (LEFT(table_name, %s) = %s OR LEFT(table_name, %s) = %s) ORDER BY table_name, ordinal_position",
            [database, len(STAGING), STAGING, len(SINK), SINK],
        )
        for name, column in cursor.fetchall():
            found.setdefault(name, ())
            if not column.startswith("#"):
                found[name] += (column,)
    return found


def _sinks(queue: Table) -> str:
    return quoted(queue.database, SINKS)


def _rows(connection: Any, question: str) -> list[tuple[Any, ...]]:
    """None of a table that is not there."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(question)
        except pymysql.ProgrammingError as error:
            if error.args[0] != ER.NO_SUCH_TABLE:
                raise
            return []
        return list(cursor.fetchall())


# --- saying ---


def lines(left: Left) -> Iterator[str]:
    """For people."""
    rows = [("batch", "mode", "messages", "begun (UTC)", "state")]
    for each in left.batches:
        batch = each.batch
        rows.append((batch.name, batch.mode, f"{batch.messages:,}", _time(batch.begun), _state(each)))
    yield from _aligned(rows) if left.batches else ["no batches"]
    for query in left.queries:
        yield f"query {query.name}: batch {query.batch} was the last"
    for name in left.strays:
        yield f"{name}: a staging table of no known batch or query, of this queue or another one of the database"


def _state(each: Standing) -> str:
    if each.batch.finished is not None:
        return f"finished {_time(each.batch.finished)}"
    if each.batch.mode == "atomic":
        return f"under way, {each.staged or 0:,} slices staged"
    return f"under way, {each.published:,} of {each.slices:,} slices in the queue"


def _time(ns: int) -> str:
    return dt.datetime.fromtimestamp(ns // NS_PER_S, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


# --- giving up ---


def _abandon(connection: Any, endpoint: Endpoint, queue: Table, name: str, locked: list[Batch]) -> str:
    """`locked`: what earlier attempts have found; if it is gone now, it was they who did it, and an answer got lost."""
    ledger, done = Ledger(queue), f"batch {name}: abandoned, nothing of it is in {queue.quoted}, and its name is free"
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}, lock_wait_timeout = {LOCK_S}")
        connection.begin()
        batch = _locked(cursor, ledger, name)
        if batch is None and locked:
            return done
        if batch is None:
            raise PipelineError(f"there is no batch {name!r} of {queue.quoted} (--list shows those that there are)")
        if batch.finished is not None:
            connection.rollback()
            cursor.execute(f"DROP TABLE IF EXISTS {ledger.staging(batch)}")  # its job died between the two
            raise PipelineError(f"batch {name!r} is published: its {batch.messages:,} messages are in {queue.quoted}")
        locked.append(batch)
        # On another connection, for DROP TABLE ends a transaction, and until the row is gone nobody may publish.
        endpoint.run(lambda other: _drop(other, ledger, batch))
        ledger.delete(cursor, name)
        connection.commit()
    return done


def _locked(cursor: Any, ledger: Ledger, name: str) -> Batch | None:
    try:
        return ledger.find(cursor, name, " FOR UPDATE")
    except pymysql.MySQLError as error:
        if error.args[0] == ER.NO_SUCH_TABLE:
            return None
        if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
            raise
        raise JobError(f"batch {name!r} is being published just now") from None


def _drop(connection: Any, ledger: Ledger, batch: Batch) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_S}")
        try:
            cursor.execute(f"DROP TABLE IF EXISTS {ledger.staging(batch)}")
        except pymysql.MySQLError as error:
            if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
                raise
            raise JobError(f"tasks of batch {batch.name!r} are writing just now: end its job, and try again") from None


def _abandon_query(connection: Any, queue: Table, name: str) -> str:
    found = next((each for each in _look(connection, queue).queries if each.name == name), None)
    if found is None:
        raise PipelineError(f"there is no query {name!r} that writes to {queue.quoted} (--list shows those there are)")
    with connection.cursor() as cursor:
        for table in found.staging:
            cursor.execute(f"DROP TABLE IF EXISTS {quoted(queue.database, table)}")
        cursor.execute(f"DELETE FROM {_sinks(queue)} WHERE queue = %s AND query = %s", [queue.name, name])
    return f"query {name}: forgotten; its messages up to batch {found.batch} stay in {queue.quoted}"
