"""A report on the messages of queues: volumes, waits, deliveries, dead letters, backlog.

    report(spark, endpoint, ["shop.orders"], by=["tenant"], created="created_at").write("hdfs:///reports/orders")

The rows are read once (`history`), aggregated on the executors (`measures`) and written as Parquet,
every group of them. The page (`page`) is made of what was written: the queues as a whole, and of
each column the values with most messages. The driver gets no more than that, whatever the queues
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..common.directives import Directives
from ..common.files import Files
from ..common.progress import Progress, unused
from ..common.table import Table, describe, split_name
from ..common.tasks import require_classic
from ..endpoint import Endpoint
from ..errors import PipelineError
from . import measures
from .history import History, Named, Queue, Reading, read
from .page import Page, Part, page

PAGE: Final = "report.html"
WINDOW_S: Final = 3600.0
TOP: Final = 20
TOP_LIMIT: Final = 1_000
"""Values on a page at most. Parquet has all."""

ATTEMPTS_MAX: Final = 1_000
"""Different numbers of deliveries that a page counts, from the lowest on."""


@dataclass(frozen=True)
class Report:
    """Aggregates of some queues, each a DataFrame with `queue`, `by` (NULL: the whole queue) and
    `value`."""

    spark: SparkSession
    queues: tuple[Queue, ...]
    named: Named
    history: History
    window_s: float
    width_s: int
    frames: dict[str, DataFrame]

    def write(self, target: str, *, top: int = TOP, on_progress: Callable[[Progress], None] = unused) -> str:
        """Write a folder of Parquet for each frame, and `report.html`, whose path is returned. An
        earlier report there is replaced."""
        written: dict[str, DataFrame] = {}
        for done, (name, frame) in enumerate(self.frames.items()):
            on_progress(Progress("writing", done, len(self.frames) + 1))
            place = f"{target.rstrip('/')}/{name}"
            frame.coalesce(_parts(self.spark)).write.mode("overwrite").parquet(place)
            written[name] = self.spark.read.schema(frame.schema).parquet(place)
        text = page(self._page(replace(self, frames=written), top))
        Files(self.spark, target).put(PAGE, text)
        on_progress(Progress("writing", len(self.frames) + 1, len(self.frames) + 1))
        return f"{target.rstrip('/')}/{PAGE}"

    def close(self) -> None:
        """Free the rows that Spark keeps."""
        self.history.drop()
        self.frames["volumes"].unpersist()

    def _page(self, written: Report, top: int) -> Page:
        parts = [
            Part(
                queue,
                written.totals(queue),
                {name: written.greatest(queue, name, top) for name in self.named.by},
                {name: written.values(queue, name) for name in self.named.by},
            )
            for queue in self.queues
        ]
        incomplete = self.history.incomplete
        return Page(self.history.now_ns, self.window_s, self.width_s, self.named, top, tuple(parts), incomplete)

    def totals(self, queue: Queue) -> dict[str, list[dict[str, Any]]]:
        """The few rows of each frame for a queue as a whole."""
        found = {
            name: frame.where((f.col("queue") == queue.name) & f.col("by").isNull())
            for name, frame in self.frames.items()
        }
        found["attempts"] = found["attempts"].orderBy("attempts").limit(ATTEMPTS_MAX)
        # As a number, because Python would get a time in its own zone, which has one hour twice in
        # autumn.
        started = found["over_time"].withColumn("start", f.unix_micros("start"))
        found["over_time"] = started.orderBy("start").limit(measures.BUCKETS_MAX + 2)
        return {name: _rows(frame) for name, frame in found.items()}

    def values(self, queue: Queue, by: str) -> tuple[int, int]:
        """How many values a column has, and how many messages."""
        here = self.frames["volumes"].where((f.col("queue") == queue.name) & (f.col("by") == by))
        messages = f.sum(f.col("acknowledged") + f.col("unacknowledged") + f.col("dead"))
        ((count, total),) = here.agg(f.count("*"), messages).collect()
        return int(count), int(total or 0)

    def greatest(self, queue: Queue, by: str, top: int) -> list[dict[str, Any]]:
        """The values with most messages, each with its times."""
        here = (f.col("queue") == queue.name) & (f.col("by") == by)
        messages = f.col("acknowledged") + f.col("unacknowledged") + f.col("dead")
        volumes = self.frames["volumes"].where(here).withColumn("messages", messages)
        chosen = volumes.orderBy(f.col("messages").desc(), f.col("value")).limit(top)
        measure = f.col("measure") == (measures.DUE if self.named.due else measures.CREATED)
        times = self.frames["times"].where(here & measure).select("value", "p50", "p95", "p99")
        forecast = self.frames["forecast"].where(here).select("value", "growth_per_s")
        for other in (times, forecast):
            renamed = other.withColumnRenamed("value", "same")
            chosen = chosen.join(renamed, f.col("value").eqNullSafe(f.col("same")), "left").drop("same")
        return _rows(chosen.orderBy(f.col("messages").desc(), f.col("value")))


def report(
    spark: SparkSession,
    endpoint: Endpoint,
    tables: Sequence[str],
    *,
    by: Sequence[str] = (),
    created: str | None = None,
    due: str | None = None,
    archives: Mapping[str, str] | None = None,
    window_s: float = WINDOW_S,
    reading: Reading | None = None,
    on_progress: Callable[[Progress], None] = unused,
) -> Report:
    """Read queues and compute the aggregates.

    Groups are the values of the columns in `by`, and of those by which all of the queues group their
    messages. `created`, `due`: columns in which the application keeps these times. `archives`: the folders of
    ackstream-archive, by table. `on_progress` gets the progress. Raises PipelineError if an argument is
    unsuitable, JobError if it failed on the way.
    """
    require_classic(spark, "report")
    if not tables:
        raise PipelineError("name a queue: database.table")
    if window_s <= 0:
        raise PipelineError("the window is longer than nothing")
    names = dict.fromkeys(split_name(table, endpoint.database) for table in tables)
    places = {split_name(table, endpoint.database): place for table, place in (archives or {}).items()}
    if unknown := places.keys() - names.keys():
        raise PipelineError(f"an archive is given for {'.'.join(unknown.pop())}, which is not reported on")
    queues = endpoint.first(lambda connection: tuple(_queue(connection, *name, places.get(name)) for name in names))
    named = Named(tuple(dict.fromkeys([*by, *_grouped_by(queues)])), created, due)
    on_progress(Progress("reading", 0, 0))
    history = read(spark, endpoint, queues, named, reading or Reading(), on_progress)
    # Messages that were acknowledged longer ago are purged, so the rates must not include that
    # time.
    window_s = min([window_s, *(kept for queue in queues if (kept := queue.directives.seconds("vt_purge_after")))])
    volumes = measures.volumes(history, window_s).coalesce(_parts(spark)).persist()
    first = volumes.where(f.col("by").isNull()).agg(f.min("first_acknowledged")).collect()[0][0]
    since_ns = min(history.now_ns - round(window_s * 10**9), history.now_ns if first is None else first)
    width_s = measures.width_for((history.now_ns - since_ns) / 10**9)
    frames = {
        "volumes": volumes,
        "times": measures.times(history, queues),
        "attempts": measures.attempts(history),
        "over_time": measures.over_time(history, since_ns, width_s),
        "forecast": measures.forecast(volumes, history.now_ns, window_s, created=created is not None),
    }
    return Report(spark, queues, named, history, window_s, width_s, frames)


def _parts(spark: SparkSession) -> int:
    """Partitions of aggregates, and files of a folder. There are few groups, and a task for each of
    two hundred shuffle partitions takes more than their rows do."""
    return max(1, spark.sparkContext.defaultParallelism)


def _grouped_by(queues: Sequence[Queue]) -> list[str]:
    """The columns by which all of the queues group their messages (GROUP_BY)."""
    named = [[name.strip() for name in queue.directives.get("group_by", "").split("|")] for queue in queues]
    return [name for name in named[0] if name and all(name in others for others in named)]


def _queue(connection: Any, database: str, name: str, archive: str | None) -> Queue:
    table = describe(connection, database, name)
    found = Directives(table.comment)
    dead: Table | None = None
    if "dead_letter" in found:
        try:
            dead = describe(connection, *split_name(found["dead_letter"], database))
        except PipelineError:
            dead = None  # The page reports that it could not be read.
    return Queue(table, dead if dead is not None and dead.is_queue else None, found, archive)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
