"""Any DataFrame into a message table, by Spark's JDBC writer through the proxy, each batch once.

    enqueue(frame, endpoint, "shop.orders", batch="2026-11-21")

In this order: the columns are matched with the real table; the data is read once, to see whether every value fits and
to know it again (`checking`); the batch is written down (`ledger`); its slices are written (`load`, and `direct` or
`staged`), and those that are missing once more; the batch is written down as finished. Until the third step nothing is
written anywhere, and from there on each step can be repeated, by this driver or by another run of the same batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame

from pipeline.abandon import settle
from pipeline.checking import Facts, duplicates, read
from pipeline.cut import ByHash, Cut, by_files, file_octets
from pipeline.direct import Direct, unfit
from pipeline.endpoint import Endpoint, driver_of
from pipeline.errors import AbandonedError, JobError, PipelineError, ProblemsError, cause
from pipeline.fingerprint import version_of
from pipeline.ledger import BATCH_CHARACTERS, Batch, Ledger
from pipeline.load import Load, Progress, Settings, Way, rows_of, serves, slices_wanted, unused
from pipeline.mapping import Mapped, mapped
from pipeline.staged import Staged
from pipeline.table import Table, describe, split_name

Mode = Literal["streaming", "atomic"]

NS_PER_S: Final = 1_000_000_000

ENDING_S: Final = 10.0
"""For tasks that were told to end: what they have committed by then is known to whoever clears up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch. Of all runs of it exactly one says that it `added` it."""

    batch: str
    queue: str
    messages: int
    added: bool
    seconds: float
    beside: bool = False
    """Another run of it was at work at the same time, and ended it."""


def enqueue(
    frame: DataFrame,
    endpoint: Endpoint,
    table: str,
    *,
    batch: str,
    mode: Mode = "streaming",
    mapping: Mapping[str, str | Expression] | None = None,
    spread_s: float | None = None,
    settings: Settings | None = None,
    report: Callable[[Progress], None] = unused,
) -> Outcome:
    """Put the rows of a frame into a queue, unless this batch is in it already.

    `mapping`: column of the queue = expression over the frame; without it columns go by their names. `spread_s`: due
    evenly over so many seconds from now, instead of at once. `batch` names the data: run again after whatever happened,
    it adds what is missing and nothing twice. Raises ProblemsError when the data does not fit (nothing was written),
    JobError when something failed on the way (run it again).
    """
    began = time.monotonic()
    settings = settings or Settings()
    _check_arguments(batch, mode, spread_s, settings)
    database, name = split_name(table, endpoint.database)
    endpoint = endpoint.in_database(database)
    queue = endpoint.run(lambda connection: describe(connection, database, name))
    if not queue.is_queue:
        raise PipelineError(f"{queue.quoted} is no message table (CREATE QUEUE makes one)")
    fitting, problems = mapped(frame, queue, mapping, spread=spread_s is not None)
    if mode == "streaming":
        problems += unfit(
            fitting.has("id"),
            any(key.columns == (queue.by_name["id"].name,) for key in queue.unique_keys),
            queue.by_name["id"].auto_increment,
        )
    if problems:
        raise ProblemsError(f"the data does not fit {queue.quoted}", problems)
    load = _begun(frame, fitting, queue, endpoint, batch, mode, spread_s, settings, report)
    there = load.batch.finished is not None
    added = False
    if not there:
        try:
            added = _carry_out(Direct(load) if mode == "streaming" else Staged(load), load, report)
        except AbandonedError:
            settle(endpoint, queue, load.batch)
            raise
    seconds = time.monotonic() - began
    return Outcome(batch, f"{database}.{name}", load.batch.messages, added, seconds, beside=not (there or added))


def _check_arguments(batch: str, mode: str, spread_s: float | None, settings: Settings) -> None:
    if not batch or len(batch) > BATCH_CHARACTERS:
        raise PipelineError(f"a batch has a name of 1 to {BATCH_CHARACTERS} characters")
    if mode not in get_args(Mode):
        raise PipelineError(f"the mode is streaming or atomic, not {mode!r}")
    if spread_s is not None and not 0 < spread_s <= 10 * 365 * 86_400:
        raise PipelineError("the spread is more than nothing and at most ten years")
    if settings.max_connections < 2:
        raise PipelineError("max connections is at least 2: one of the driver's and one that writes")


def _begun(
    frame: DataFrame,
    fitting: Mapped,
    queue: Table,
    endpoint: Endpoint,
    batch: str,
    mode: Mode,
    spread_s: float | None,
    settings: Settings,
    report: Callable[[Progress], None],
) -> Load:
    """Read the data, and write the batch down."""
    jdbc = endpoint.jdbc(driver_of(frame.sparkSession))
    report(Progress("checking", 0, 0))
    ledger = Ledger(queue)
    known = endpoint.run(lambda connection: ledger.find(connection, batch))
    cut, facts = _cut(fitting, queue, known, settings)
    slices, fingerprint = cut.count(slices_wanted(facts, settings)), facts.fingerprint(fitting.names, cut.version)
    new = Batch(batch, mode, fingerprint, cut.file_octets, slices, facts.rows, 0, None)
    found = endpoint.run(lambda connection: ledger.begin(connection, new))
    spread_ns = None if spread_s is None else round(spread_s * NS_PER_S)
    parts = cut.slices(facts.pieces, found.slices)
    return Load(endpoint, queue, fitting, found, cut, parts, spread_ns, settings, jdbc)


def _cut(fitting: Mapped, queue: Table, known: Batch | None, settings: Settings) -> tuple[Cut, Facts]:
    """The data as it is cut, and what is known of it when it has been read. A known batch is cut as it was."""
    octets = known.file_octets if known else file_octets(settings.slice_rows, settings.slice_octets)
    version = version_of(known.fingerprint if known else None)
    files = None if octets is None else by_files(fitting, octets, version)
    if known and octets is not None and files is None:
        raise PipelineError(
            f"batch {known.name!r} was begun with rows as they came from files, and these come in another way: give"
            " this one another name, or the same data as then"
        )
    cut: Cut = files or ByHash(fitting, version)
    facts, problems = read(cut, fitting)
    problems += duplicates(fitting, queue)
    if problems:
        raise ProblemsError(f"the data does not fit {queue.quoted}", problems)
    cores = fitting.frame.sparkSession.sparkContext.defaultParallelism
    if files and not known and not serves(facts, settings, cores):
        cut = ByHash(fitting, version)
        facts, _ = read(cut, fitting)
    return cut, facts


def _carry_out(way: Way, load: Load, report: Callable[[Progress], None]) -> bool:
    """Write what is missing until nothing is; whether it was this run that ended the batch."""
    way.prepare()
    failure: BaseException | None = None
    for _ in range(load.settings.rounds):
        missing = way.look()
        if not missing:
            break
        failure = _write(way, missing, load, report)
    else:
        if missing := way.look():
            left = rows_of(load, missing)
            raise JobError(
                f"{left:,} of {load.batch.messages:,} messages could not be written:"
                f" {cause(failure) if failure else 'the tasks ended and the rows are not there'}"
            ) from failure
    return way.finish(report)


def _write(way: Way, missing: tuple[int, ...], load: Load, report: Callable[[Progress], None]) -> BaseException | None:
    """Run the tasks for these slices, looking at what they have committed meanwhile; what they failed with, if so."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            way.write(missing)
        except (Py4JError, PySparkException) as failure:
            failures.append(failure)

    spark = load.mapped.frame.sparkSession
    tag = f"ackstream-{threading.get_ident()}-{time.monotonic_ns()}"
    spark.addTag(tag)
    job = InheritableThread(target=run, name="ackstream-enqueue", daemon=True)
    try:
        job.start()
        ended = False
        while not ended:
            job.join(load.settings.look_s)
            ended = not job.is_alive()  # before the look, so that the last one sees and tells all
            left = rows_of(load, way.look())
            report(Progress(way.phase, load.batch.messages - left, load.batch.messages))
    except BaseException:
        spark.interruptTag(tag)
        job.join(ENDING_S)
        raise
    finally:
        spark.removeTag(tag)
    return failures[0] if failures else None
