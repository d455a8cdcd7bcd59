"""The rows of queues for a report: a few columns of each, read once, in parallel, and kept until
the report is made.

A row has `epoch` (the number of its deliveries), `time_next`, `time_acked`, the times when it was
created and due if the application keeps them, and the columns to group by, as text. All times are
nanoseconds since 1970. The server computes these columns while it reads along the key, and sends no
others.

Each task has one connection, and the driver has one while no task runs. If Spark could run more
tasks at once than connections are allowed, ranges are joined so that it cannot. If reading fails,
the rows that were read are kept, and the next round reads the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..common.connection import LazyConnection
from ..common.directives import Directives
from ..common.pages import Pages, read_pages
from ..common.progress import Progress, unused
from ..common.ranges import cut
from ..common.statements import NOW, Statements, fetching
from ..common.table import Column, Table
from ..common.tasks import can_exceed
from ..endpoint import Endpoint, quoted
from ..errors import JobError, ProblemsError, cause
from . import archived
from .archived import Archive

LOOK_S: Final = 0.5
"""Between two reports of progress."""

VALUE_LENGTH: Final = 200
"""Characters of a value to group by, at most: more than a name has, for the case that somebody
groups by payloads."""


@dataclass(frozen=True, slots=True)
class Named:
    """The application's columns that a report uses."""

    by: tuple[str, ...] = ()
    created: str | None = None
    due: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings for reading."""

    max_connections: int = 16
    """Of the whole job. Each takes a thread of the server."""
    range_rows: int = 100_000
    """Rows of a task, about: a second's work, and what is read again if a connection breaks."""
    rounds: int = 4
    """How often ranges that failed are read again, after Spark has tried each several times."""


@dataclass(frozen=True)
class Queue:
    """A queue to report on, the directives of its comment, and the folder of its archive."""

    table: Table
    dead: Table | None = None
    directives: Directives = field(default_factory=lambda: Directives(""))
    archive: str | None = None

    @property
    def name(self) -> str:
        """`database.table`, without quotes."""
        return f"{self.table.database}.{self.table.name}"

    @property
    def first_wait_ns(self) -> int | None:
        """How long a first delivery waits for its acknowledgement. It is exact; only later waits
        vary."""
        wait = self.directives.seconds("vt_ack_wait")
        if wait is None:
            return None
        least, most = self.directives.seconds("vt_min_backoff") or wait, self.directives.seconds("vt_max_backoff")
        bounded = max(wait, least) if most is None else min(max(wait, least), most)
        return round(bounded * 10**9)


def check(queues: Sequence[Queue], named: Named) -> None:
    """Raise ProblemsError with every reason why these queues cannot be reported on."""
    problems: list[str] = []
    for queue in queues:
        if not queue.table.is_queue:
            problems.append(f"{queue.name}: is no message table (CREATE QUEUE makes one)")
        for name in (*named.by, *filter(None, (named.created, named.due))):
            if name.casefold() not in queue.table.by_name:
                known = ", ".join(column.name for column in queue.table.columns)
                problems.append(f"{queue.name}: has no column {name}; it has {known}")
        for name in filter(None, (named.created, named.due)):
            column = queue.table.by_name.get(name.casefold())
            if column is not None and _nanoseconds(column) is None:
                problems.append(
                    f"{queue.name}: {name} is {column.column_type}, which is no time: DATETIME or TIMESTAMP (in UTC),"
                    " or BIGINT with nanoseconds since 1970, are"
                )
        if queue.archive:
            problems += [f"{queue.name}: {problem}" for problem in archived.problems(queue.table, named.by)]
    if problems:
        raise ProblemsError("the report cannot be made", problems)


@dataclass(frozen=True)
class History:
    """The rows of some queues, kept on the executors until `drop`."""

    rows: DataFrame
    named: Named
    now_ns: int
    """The server's time when the reading began."""
    incomplete: frozenset[str] = frozenset()
    """Queues from which messages were archived while they were read. Such messages may be
    missing."""

    def drop(self) -> None:
        """Free the rows."""
        self.rows.unpersist()


def read(
    spark: SparkSession,
    endpoint: Endpoint,
    queues: Sequence[Queue],
    named: Named,
    reading: Reading,
    on_progress: Callable[[Progress], None] = unused,
) -> History:
    """Read the queues once. Raises ProblemsError, and JobError, after which the same call may
    succeed."""
    check(queues, named)
    archives = {queue.name: Archive.at(spark, queue.archive, queue.table) for queue in queues if queue.archive}
    connection = LazyConnection(endpoint)
    try:
        ((now,),) = connection.run(fetching(f"SELECT {NOW}"))
        plans = [
            _Plan(
                queue.name, table, dead=table is queue.dead, named=named, connection=connection, rows=reading.range_rows
            )
            for queue in queues
            for table in (queue.table, queue.dead)
            if table is not None
        ]
    finally:
        connection.close()
    parts = [part for plan in plans if (part := plan.frame(spark, endpoint)) is not None]
    rows = reduce(DataFrame.union, parts) if parts else spark.createDataFrame([], _schema(named))
    rows = _bounded(rows, max(1, reading.max_connections - 1))
    tables = {queue.name: queue.table for queue in queues}
    old = [
        _archived(archive.rows(spark, tables[name]), name, tables[name], named)
        for name, archive in archives.items()
        if archive.chunks
    ]
    rows = reduce(DataFrame.union, old, rows).persist()
    with _watched(rows, on_progress):
        _fill(rows, endpoint, reading.rounds)
    return History(rows, named, int(now), frozenset(name for name, archive in archives.items() if archive.has_changed))


def _archived(rows: DataFrame, queue: str, table: Table, named: Named) -> DataFrame:
    schema = _schema(named)
    forms = archived.forms(table, named.by, named.created, named.due, VALUE_LENGTH)
    whole = {"queue": f.lit(queue), "dead": f.lit(False), **forms}
    return rows.select(*(whole[column.name].cast(column.dataType).alias(column.name) for column in schema))


class _Plan:
    """How one table is read."""

    def __init__(
        self, queue: str, table: Table, *, dead: bool, named: Named, connection: LazyConnection, rows: int
    ) -> None:
        self._statements = Statements(table)
        self._queue = queue
        self._table = table
        self._dead = dead
        self._named = named
        self._ranges = cut(self._statements, lambda statement: connection.run(fetching(statement)), rows)

    def frame(self, spark: SparkSession, endpoint: Endpoint) -> DataFrame | None:
        """A partition for each range; None if there are no rows."""
        if not self._ranges:
            return None
        whole = _schema(self._named)
        forms = {name: form for name, form in self._forms().items() if form is not None}
        schema = t.StructType([field for field in whole if field.name in forms])
        pages = Pages(endpoint, self._statements, ", ".join(forms[name] for name in schema.names), schema)
        found = read_pages(spark, pages, [[ids] for ids in self._ranges])
        known = {"queue": f.lit(self._queue), "dead": f.lit(self._dead), **{name: f.col(name) for name in forms}}
        return found.select(
            [known.get(column.name, f.lit(None)).cast(column.dataType).alias(column.name) for column in whole]
        )

    def _forms(self) -> dict[str, str | None]:
        """The columns of `_schema` in SQL; None for one that the table lacks or that is not asked for."""
        return {
            "epoch": "CAST(epoch AS SIGNED)",
            "time_next": "CAST(time_next AS SIGNED)",
            "time_acked": "CAST(time_acked AS SIGNED)",
            "created": self._time(self._named.created),
            "due": self._time(self._named.due),
            **{column: self._value(name) for name, column in columns_of(self._named)},
        }

    def _time(self, name: str | None) -> str | None:
        column = self._table.by_name.get((name or "").casefold())
        return None if column is None else _nanoseconds(column)

    def _value(self, name: str) -> str | None:
        """A value to group by."""
        column = self._table.by_name.get(name.casefold())
        if column is None:
            return None
        form = f"{quoted(column.name)} + 0" if column.data_type == "bit" else quoted(column.name)
        form = f"HEX({form})" if column.spark_type == t.BinaryType() else f"CAST({form} AS CHAR)"
        return f"LEFT({form}, {VALUE_LENGTH})"


def _nanoseconds(column: Column) -> str | None:
    """A time as nanoseconds since 1970, in SQL for a session in UTC; None if the column is no
    time."""
    if column.integer_range is not None and column.data_type == "bigint":
        return f"CAST({quoted(column.name)} AS SIGNED)"
    if column.data_type in {"datetime", "timestamp"}:
        return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {quoted(column.name)}) * 1000"
    return None


def _schema(named: Named) -> t.StructType:
    schema = t.StructType([t.StructField("queue", t.StringType()), t.StructField("dead", t.BooleanType())])
    for name in ("epoch", "time_next", "time_acked", "created", "due"):
        schema.add(name, t.LongType())
    for number in range(len(named.by)):
        schema.add(f"by_{number}", t.StringType())
    return schema


def _bounded(rows: DataFrame, tasks: int) -> DataFrame:
    """The rows in so many partitions that no more than `tasks` tasks run at once."""
    return rows.coalesce(tasks) if can_exceed(rows.sparkSession, tasks) else rows


@contextlib.contextmanager
def _watched(rows: DataFrame, on_progress: Callable[[Progress], None]) -> Iterator[None]:
    """Report from time to time how many ranges have been read."""
    total, ended = rows.rdd.getNumPartitions(), threading.Event()
    tracker = rows.sparkSession.sparkContext.statusTracker()

    def look() -> None:
        while not ended.wait(LOOK_S):
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            done = [stage.numCompletedTasks for stage in stages if stage and stage.numTasks == total]
            if done:
                on_progress(Progress("reading", max(done), total))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
    on_progress(Progress("reading", total, total))


def _fill(rows: DataFrame, endpoint: Endpoint, rounds: int) -> None:
    for attempt in range(1, rounds + 1):
        try:
            rows.count()
        except (PySparkException, Py4JJavaError) as error:
            if attempt == rounds:
                raise JobError(f"the queues could not be read: {cause(error)}") from error
            endpoint.run(lambda connection: connection.ping(reconnect=False))  # waits until the server is back
        else:
            return


# --- the rows, seen from different sides ---


def columns_of(named: Named) -> Iterable[tuple[str, str]]:
    """The columns to group by, and their names in the rows."""
    return ((name, f"by_{number}") for number, name in enumerate(named.by))


def grouped(history: History) -> DataFrame:
    """Each row once for its queue (`by` is NULL), and once for each column to group by, with its
    value."""
    pairs: list[Expression] = [_pair(None, f.lit(None).cast("string"))]
    pairs += [_pair(name, f.col(column)) for name, column in columns_of(history.named)]
    kept = ("queue", "dead", "epoch", "time_next", "time_acked", "created", "due")
    exploded = history.rows.select(*kept, f.explode(f.array(*pairs)).alias("group"))
    return exploded.select(*kept, "group.by", "group.value")


def _pair(name: str | None, value: Expression) -> Expression:
    named: Any = f.lit(name).cast("string")
    return f.struct(named.alias("by"), value.alias("value"))
