"""Moves acknowledged rows of a queue to Parquet files, and deletes them from the server when they
are verified.

    archive(spark, endpoint, "shop.orders", "hdfs:///archive/orders", keep_s=3600)

A *run* is recorded before anything else: a cutoff in the past, and ids that cut the table into
slices of about equally many rows (`ranges`), and these into chunks. For each chunk, in this order:

1. its rows are written to a folder that no other attempt uses;
2. they are read back and compared with the rows of the server, which are read once more: by count
   and by sums of hashes of each row;
3. the folder is renamed to its place, in one atomic step. So a chunk in its place is complete and
   verified;
4. its rows are deleted in small batches, if `id`, `epoch` and `time_acked` are as they were
   archived; then this is recorded.

A driver may be killed anywhere. Run again, it continues the same run. A chunk that is not in its
place is written again, and none of its rows have been deleted. A chunk in its place is never
written again; only its deletes are repeated. So a row is on the server, or in exactly one chunk in
its place, or in both until it is deleted. The deletes take their rows from the files. A row that
appears late below the cutoff, because its transaction was long, stays for the next run. A row that
was redriven meanwhile stays, and is archived again when it is acknowledged again. The proxy may
purge rows at any time; rows that it purged before they were read cannot be archived, but are
counted as missed.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..common.connection import LazyConnection
from ..common.directives import Directives
from ..common.files import Files
from ..common.pages import Pages, read_pages
from ..common.progress import Progress, unused
from ..common.ranges import Range, cut
from ..common.rows import schema_of, selection
from ..common.statements import NOW, Id, Statements, do, fetch, fetching
from ..common.table import Table, describe, located
from ..common.tasks import require_classic
from ..endpoint import Endpoint, quoted
from ..errors import JobError, PipelineError, ProblemsError, cause

CHUNK, DAY = "archived_chunk", "acked_day"
"""The partition columns: the chunk, and the day of `time_acked` in UTC."""

RUNS, PENDING, MESSAGES = "runs", "pending", "messages"
"""The folders in the archive's folder."""

DAY_NS: Final = 86_400 * 10**9

LOCK_S: Final = 3
"""For the lock: the server may still have the connection of a driver that was killed just now."""

TRIES: Final = 3
"""How often a chunk is written if its rows change meanwhile. Acknowledged rows should not
change."""

_UNORDERED: Final = frozenset({"enum", "set"})

_log = logging.getLogger(__name__)

Key = tuple[Id, int, int]
"""`id`, `epoch` and `time_acked` of an acknowledged row."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a call: of a new run and of the unfinished run before it, with what that had
    done before it stopped."""

    queue: str
    rows: int = 0
    """Messages that were archived."""
    left: int = 0
    """Of them, those that stay on the server because they were redriven or changed after they were
    archived."""
    missed: int = 0
    """Messages that were counted when a run began and did not exist any more when they were
    read."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a run is cut, and how many connections its tasks have at once."""

    chunk_rows: int = 1_000_000
    """Rows of a chunk: what a kill costs. A chunk has about one file for each task and day."""
    slice_rows: int = 20_000
    """Rows of a range that one task reads, page after page."""
    delete_rows: int = 500
    """Rows of one DELETE, which holds its locks for some milliseconds."""
    max_connections: int = 8
    """Connections of the tasks. The driver has two more."""


@dataclass(frozen=True)
class _Run:
    """A run, as it is recorded."""

    number: int
    table: str
    cutoff: int
    planned: int
    bounds: list[Id | None]
    slices: int
    """Ranges of a chunk."""

    @property
    def chunks(self) -> list[list[Range]]:
        ranges = [Range(*ends) for ends in pairwise(self.bounds)]
        return [ranges[at : at + self.slices] for at in range(0, len(ranges), self.slices)]

    def to_json(self) -> str:
        """The text of its file."""
        bounds = [{"hex": bound.hex()} if isinstance(bound, bytes) else bound for bound in self.bounds]
        return json.dumps({**asdict(self), "bounds": bounds})

    @classmethod
    def read(cls, text: str) -> _Run:
        """The run that `to_json` wrote."""
        values = json.loads(text)
        values["bounds"] = [
            bytes.fromhex(bound["hex"]) if isinstance(bound, dict) else bound for bound in values["bounds"]
        ]
        return cls(**values)


@dataclass(frozen=True, slots=True)
class _Difference:
    """The difference between the rows that were read back and the server's."""

    rows: int
    gone: int = 0
    late: int = 0
    changed: int = 0


def archive(
    spark: SparkSession,
    endpoint: Endpoint,
    table: str,
    target: str,
    *,
    keep_s: float = 3600.0,
    sizes: Sizes | None = None,
    report: Callable[[Progress], None] = unused,
    warn: Callable[[str], None] = _log.warning,
) -> Archived:
    """Archive and purge messages that were acknowledged more than `keep_s` seconds ago, after
    finishing an unfinished run.

    `warn` gets a text before anything is done, if few messages will be left to archive. Raises
    PipelineError if an argument or the table is unsuitable, JobError if the job failed on the way
    (run it again).
    """
    sizes = sizes or Sizes()
    if keep_s < 0:
        raise PipelineError("what is kept is not less than nothing")
    if min(sizes.chunk_rows, sizes.slice_rows, sizes.delete_rows, sizes.max_connections) < 1:
        raise PipelineError("sizes are 1 or more")
    require_classic(spark, "archive")
    endpoint, queue = located(endpoint, table)
    files = Files(spark, target)
    files.require_renaming()
    archiver = _Archiver(spark, endpoint, queue, files, sizes, report)
    if warning := too_late(queue, keep_s):
        warn(warning)
    try:
        return archiver.run(keep_s)
    except PySparkException as error:
        raise JobError(cause(error)) from error


def too_late(queue: Table, keep_s: float) -> str | None:
    """A warning if the proxy purges messages before they are archived; else None."""
    directives = Directives(queue.comment)
    purge_after_s = directives.seconds("vt_purge_after")
    if purge_after_s is None or purge_after_s > keep_s:
        return None
    return (
        f"the proxy purges {queue.quoted} itself, {directives['vt_purge_after']} s after the acknowledgement, and what"
        f" is younger than {keep_s:g} s is not archived yet: little or nothing will be left to archive. Raise"
        " PURGE_AFTER (ALTER QUEUE) to what is kept here, and the time from one run to the end of the next, and some"
        " more"
    )


class _Archiver:
    """Runs of one queue into one folder."""

    def __init__(
        self,
        spark: SparkSession,
        endpoint: Endpoint,
        table: Table,
        files: Files,
        sizes: Sizes,
        report: Callable[[Progress], None],
    ) -> None:
        self._spark = spark
        self._endpoint = endpoint
        self._table = table
        self._files = files
        self._sizes = sizes
        self._report = report
        self._statements = Statements(table)
        self._id = table.by_name["id"]
        self._schema = schema_of(table, [column.name for column in table.columns])
        self._columns = [f.col(quoted(column.name)) for column in table.columns]
        if problems := list(_problems(table)):
            raise ProblemsError(f"{table.quoted} cannot be archived; nothing was written", problems)

    def run(self, keep_s: float) -> Archived:
        """Finish the unfinished run, then make a new one."""
        began = time.monotonic()
        done = Archived(self._table.quoted)
        with self._endpoint.connect() as lock:
            self._stand_alone(lock)
            self._files.delete(PENDING)  # of runs that were killed
            for next_run in (self._resumed, partial(self._begun, keep_s)):
                if (run := next_run()) is not None:
                    rows, left = self._carry_out(run, lock)
                    missed = max(0, run.planned - rows)
                    done = Archived(done.queue, done.rows + rows, done.left + left, done.missed + missed)
            self._files.delete(PENDING)
        return Archived(done.queue, done.rows, done.left, done.missed, time.monotonic() - began)

    def _stand_alone(self, lock: Any) -> None:
        with lock.cursor() as cursor:
            name = f"ackstream-archive {self._table.quoted}"
            cursor.execute("SELECT GET_LOCK(SHA2(%s, 224), %s)", [name, LOCK_S])
            if cursor.fetchone() != (1,):
                raise PipelineError(f"another ackstream-archive is at work on {self._table.quoted}")
            # A missing privilege shows now, not after the first chunk. A column that the account
            # may not read would not be archived.
            cursor.execute(f"SELECT * FROM {self._table.quoted} LIMIT 0")
            cursor.execute(f"DELETE FROM {self._table.quoted} WHERE FALSE")

    def _check(self, lock: Any) -> None:
        """Check that this job still has the lock and the table still has the same columns. Raises
        JobError."""
        lock.ping(reconnect=False)  # The lock ends with its connection.
        if describe(lock, self._table.database, self._table.name).columns != self._table.columns:
            raise JobError(f"{self._table.quoted} has other columns than when this began: run it again")

    # --- runs ---

    def _resumed(self) -> _Run | None:
        """The unfinished run, if there is one. Raises PipelineError if the folder is another
        table's archive."""
        names = self._files.names(RUNS)
        runs = sorted(name for name in names if name.endswith(".json"))
        if not runs:
            return None
        run = _Run.read(self._files.read(f"{RUNS}/{runs[-1]}"))
        if run.table != self._table.quoted:
            raise PipelineError(f"this folder is the archive of {run.table}, not of {self._table.quoted}")
        return None if _done(run) in names else run

    def _begun(self, keep_s: float) -> _Run | None:
        """A new run, unless there is nothing to archive."""
        self._report(Progress("planning", 0, 0))
        # Counting a billion rows takes minutes, so this has a connection without a read timeout.
        ((now,),) = self._endpoint.run(fetching(f"SELECT {NOW}"))
        cutoff = int(now) - round(keep_s * 10**9)
        count = f"SELECT COUNT(*) FROM {self._table.quoted} WHERE {_acknowledged(cutoff)}"
        ((planned,),) = self._endpoint.run(fetching(count))
        if not planned:
            return None
        number = sum(name.endswith(".json") for name in self._files.names(RUNS)) + 1
        rows = min(self._sizes.slice_rows, self._sizes.chunk_rows)
        connection = LazyConnection(self._endpoint)
        slices = cut(self._statements, lambda statement: connection.run(fetching(statement)), rows)
        connection.close()
        # Rows behind the last bound were not acknowledged before the cutoff.
        bounds = [*(part.after for part in slices[:1]), *(part.until for part in slices)]
        run = _Run(number, self._table.quoted, cutoff, int(planned), bounds, -(-self._sizes.chunk_rows // rows))
        self._files.write(f"{RUNS}/{number:06d}.json", run.to_json())
        return run

    def _carry_out(self, run: _Run, lock: Any) -> tuple[int, int]:
        """Archive chunk after chunk. Returns how many rows are in them, and how many of those stay
        on the server."""
        rows = left = 0
        for number, ranges in enumerate(run.chunks):
            self._report(Progress("archiving", rows, run.planned))
            place = f"{MESSAGES}/{CHUNK}={run.number:06d}-{number:06d}"
            self._check(lock)
            if self._files.exists(place) or self._write(run, ranges, place, lock):
                rows += int(json.loads(self._files.read(f"{place}/_verified.json"))["rows"])
                left += self._purge(place)
        self._report(Progress("archiving", rows, rows))
        self._files.write(f"{RUNS}/{_done(run)}", "")
        return rows, left

    # --- a chunk ---

    def _write(self, run: _Run, ranges: list[Range], place: str, lock: Any) -> bool:
        """Write and verify a chunk, and rename it to its place. Returns False if it is empty.
        Raises JobError."""
        found = _Difference(0)
        for _ in range(TRIES):
            # The JVM of a killed driver may go on writing for a while, so each attempt has its own
            # folder.
            pending = f"{PENDING}/{uuid.uuid4().hex}"
            server = self._server(run, ranges)
            day = f.date_add(f.lit("1970-01-01").cast("date"), f.expr(f"CAST(time_acked DIV {DAY_NS} AS INT)"))
            server.withColumn(DAY, day).write.partitionBy(DAY).parquet(self._files.path(pending))
            found = self._compare(server, self._back(pending))
            if not (found.late or found.changed):
                if found.rows:
                    self._files.write(f"{pending}/_verified.json", json.dumps(asdict(found)))
                    self._check(lock)
                    self._files.rename(pending, place)
                return found.rows > 0
        raise JobError(
            f"acknowledged rows of {self._table.quoted} change while they are archived ({found}), or what was written"
            " is not what is read back (all executors must write to one file system): run it again"
        )

    def _back(self, place: str) -> DataFrame:
        return self._spark.read.schema(self._schema).parquet(self._files.path(place)).select(*self._columns)

    def _server(self, run: _Run, ranges: list[Range]) -> DataFrame:
        """The server's rows, read in parallel, page after page."""
        tasks = self._sizes.max_connections
        what = selection(self._table, self._schema)
        pages = Pages(self._endpoint, self._statements, what, self._schema, _acknowledged(run.cutoff))
        return read_pages(self._spark, pages, [ranges[at::tasks] for at in range(tasks)], exact=True)

    def _compare(self, server: DataFrame, back: DataFrame) -> _Difference:
        """Compare count and checksums, and row by row only if they differ."""
        ours, theirs = self._sums(back), self._sums(server)
        if ours == theirs:
            return _Difference(ours[0])
        key, hashed = f.col(quoted(self._id.name)).alias("id"), f.struct(*self._hashes())
        mine = back.select(key, hashed.alias("mine"))
        other = server.select(key, hashed.alias("other"))
        compared = mine.join(other, "id", "full").agg(
            f.count("mine"),
            f.count_if(f.col("other").isNull()),
            f.count_if(f.col("mine").isNull()),
            # A row that occurs twice counts as changed.
            f.count_if(f.col("mine") != f.col("other")) + f.count("id") - f.count_distinct("id"),
        )
        return _Difference(*compared.collect()[0])

    def _hashes(self) -> list[Expression]:
        # The hash ignores NULLs, so it also gets which columns are NULL.
        parts = [part for column in self._columns for part in (column, column.isNull())]
        return [f.xxhash64(*parts), f.hash(*parts)]

    def _sums(self, frame: DataFrame) -> tuple[int, ...]:
        sums = [f.sum(hashed.cast("decimal(20,0)")) for hashed in self._hashes()]
        row = frame.agg(f.count("*"), *sums).collect()[0]
        return tuple(int(value or 0) for value in row)

    def _purge(self, place: str) -> int:
        """Delete a chunk's rows from the server. Repeatable. Returns how many stay because they
        have changed."""
        end = f"{place}/_purged.json"
        if not self._files.exists(end):
            endpoint, statements, size = self._endpoint, self._statements, self._sizes.delete_rows

            def delete(found: Iterable[Any]) -> Iterator[int]:
                rows = iter(found)
                connection = LazyConnection(endpoint)
                while some := [(_literal_id(row[0]), row[1], row[2]) for row in islice(rows, size)]:
                    if connection.run(partial(do, deletion(statements, some))) < len(some):
                        ((there,),) = connection.run(partial(fetch, still_there(statements, some)))
                        yield int(there)
                connection.close()

            keys = self._back(place).select(f.col(quoted(self._id.name)), "epoch", "time_acked")
            left = keys.coalesce(self._sizes.max_connections).rdd.mapPartitions(delete).sum()
            self._files.write(end, json.dumps({"left": int(left)}))
        return int(json.loads(self._files.read(end))["left"])


def deletion(statements: Statements, rows: Sequence[Key]) -> str:
    """The DELETE of these rows, if they are as they were archived.

    It uses the key on `id`. Messages that were acknowledged together have the same `time_acked`,
    and a DELETE along the index on that would lock them all.
    """
    ids: dict[tuple[int, int], list[str]] = {}
    for key, epoch, acked in rows:
        ids.setdefault((epoch, acked), []).append(statements.literal(key))
    these = " OR ".join(
        f"(id IN ({','.join(some)}) AND epoch = {epoch} AND time_acked = {acked})"
        for (epoch, acked), some in ids.items()
    )
    # With one table this form is equivalent to DELETE FROM, which cannot have a hint.
    return f"DELETE FROM {statements.table.quoted} USING {statements.along_key} WHERE {these}"


def still_there(statements: Statements, rows: Sequence[Key]) -> str:
    """The SELECT that counts the rows with these ids, in whatever state."""
    ids = ",".join(statements.literal(key) for key, _, _ in rows)
    return f"SELECT COUNT(*) FROM {statements.along_key} WHERE id IN ({ids})"


def _acknowledged(cutoff: int) -> str:
    return f"time_acked IS NOT NULL AND time_acked < {cutoff}"


def _done(run: _Run) -> str:
    return f"{run.number:06d}.done"


def _problems(table: Table) -> Iterator[str]:
    """Why a table cannot be archived exactly."""
    kind = table.by_name["id"].data_type
    if kind == "timestamp":
        yield "id: is a TIMESTAMP, which no text without a time zone names"
    if kind in _UNORDERED:
        yield f"id: is of type {kind.upper()}, whose order is not that of its texts, so it cannot be walked along"
    for name in {CHUNK, DAY} & table.by_name.keys():
        yield f"{name}: is a name that the archive's folders need"


def _literal_id(key: Any) -> Id:
    """An id for a statement."""
    if isinstance(key, int):
        return key
    if isinstance(key, bytes | bytearray):
        return bytes(key)
    # str() of a Decimal may have an exponent, which SQL reads as a floating-point number.
    return f"{key:f}" if type(key).__name__ == "Decimal" else str(key)
