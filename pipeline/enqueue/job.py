"""Writes any DataFrame into a message table through the proxy, each batch once.

    enqueue(frame, endpoint, "shop.orders", batch="2026-11-21")

In this order: the columns are matched with the real table; the data is read once, to check every
value and compute a fingerprint (`checking`); the batch is recorded (`ledger`); its slices are
written (`common.slices`, by `direct` or `staged`), and those that are missing again; the batch is recorded
as finished. Nothing is written before the third step. From there on, this driver or another run of
the same batch can repeat each step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import pymysql
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame

from ..common.files import Files
from ..common.ledger import BATCH_CHARACTERS, Batch, Ledger
from ..common.progress import Progress, unused
from ..common.table import Table, located
from ..common.tasks import require_classic
from ..endpoint import Endpoint
from ..errors import AbandonedError, JobError, PipelineError, ProblemsError, cause
from .abandon import drop
from .checking import Check, Facts, duplicates, examine, read
from .cut import ByHash, Cut, by_files, file_octets
from .direct import Direct
from .fingerprint import Sums
from .load import Load, Settings, rows_of, serves, slices_wanted
from .mapping import Mapped, mapped
from .rejects import export
from .staged import Staged

Mode = Literal["streaming", "atomic"]

NS_PER_S: Final = 1_000_000_000

ENDING_S: Final = 10.0
"""For tasks that are interrupted to end. What they have committed by then is found when the batch
is cleared up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a batch. Of all its runs exactly one has `added` set."""

    batch: str
    queue: str
    messages: int
    added: bool
    seconds: float
    beside: bool = False
    """Another run of the batch ended it at the same time."""
    rejected: int = 0
    """Messages that the server refused and that were set aside."""
    written: int = 0
    """Messages of slices that this run had to write. The others were written by earlier runs."""


def enqueue(
    frame: DataFrame,
    endpoint: Endpoint,
    table: str,
    *,
    batch: str,
    mode: Mode = "streaming",
    mapping: Mapping[str, str | Expression] | None = None,
    spread_s: float | None = None,
    rejects: str | None = None,
    settings: Settings | None = None,
    report: Callable[[Progress], None] = unused,
) -> Outcome:
    """Write the rows of a frame into a queue, unless this batch is in it already.

    `batch` names the data. Run again after any failure, it adds what is missing and nothing twice.
    `mapping`: column of the queue = expression over the frame; without it columns go by their
    names. `spread_s`: due evenly over so many seconds from now, not at once. `rejects`: a folder
    for rows that the server refuses, as Parquet with its reasons; without it the first of them ends
    the job.

    Raises ProblemsError if the data does not fit (nothing was written), JobError if something
    failed on the way (run it again).
    """
    began = time.monotonic()
    work = _Work(batch, mode, spread_s, settings or Settings(), report, rejects)
    load = work.load(frame, endpoint, table, mapping)
    there = load.batch.finished is not None
    added, written = False, 0
    if not there:
        try:
            added, written = _carry_out(work.way(load), load, report)
        except AbandonedError:
            load.endpoint.run(lambda connection: drop(connection, load.table, load.batch))
            raise
    refused = load.endpoint.run(lambda connection: load.ledger.rejects(connection, batch))
    if refused and rejects is not None:
        export(load, refused, rejects)
    return Outcome(
        batch,
        f"{load.table.database}.{load.table.name}",
        load.batch.messages,
        added,
        time.monotonic() - began,
        beside=not (there or added),
        rejected=len(refused),
        written=written,
    )


@dataclass(frozen=True)
class _Work:
    """The arguments of a call."""

    batch: str
    mode: Mode
    spread_s: float | None
    settings: Settings
    report: Callable[[Progress], None]
    rejects: str | None

    def way(self, load: Load) -> Direct:
        """How its slices are written, by the mode."""
        return Direct(load) if self.mode == "streaming" else Staged(load)

    def load(
        self, frame: DataFrame, endpoint: Endpoint, table: str, mapping: Mapping[str, str | Expression] | None
    ) -> Load:
        """Check everything, and record the batch. Raises PipelineError."""
        _check_arguments(self.batch, self.mode, self.spread_s, self.settings)
        require_classic(frame.sparkSession, "enqueue")
        if self.rejects is not None:
            Files(frame.sparkSession, self.rejects)  # raises PipelineError before anything is written
        endpoint, queue = located(endpoint, table)
        fitting = _fitting(frame, endpoint, queue, mapping, self)
        return _begun(fitting, queue, endpoint, self)


def _fitting(
    frame: DataFrame,
    endpoint: Endpoint,
    queue: Table,
    mapping: Mapping[str, str | Expression] | None,
    work: _Work,
) -> Mapped:
    if not queue.is_queue:
        raise PipelineError(f"{queue.quoted} is no message table (CREATE QUEUE makes one)")
    fitting, problems = mapped(frame, queue, mapping, spread=work.spread_s is not None)
    if problems:
        # The values of the columns that fit are checked too.
        if fitting.columns and fitting.is_stable:
            problems += [*examine(fitting, queue), *duplicates(fitting, queue, endpoint)]
        raise ProblemsError(f"the data does not fit {queue.quoted}; nothing was written", problems)
    return fitting


def _check_arguments(batch: str, mode: str, spread_s: float | None, settings: Settings) -> None:
    if not batch or len(batch) > BATCH_CHARACTERS:
        raise PipelineError(f"a batch has a name of 1 to {BATCH_CHARACTERS} characters")
    if mode not in get_args(Mode):
        raise PipelineError(f"the mode is streaming or atomic, not {mode!r}")
    if spread_s is not None and not 0 < spread_s <= 10 * 365 * 86_400:
        raise PipelineError("the spread is more than nothing and at most ten years")
    if settings.check not in get_args(Check):
        raise PipelineError(f"the check is all, sample or off, not {settings.check!r}")
    if settings.max_connections < 2:
        raise PipelineError("max connections is at least 2: one of the driver's and one that writes")


def _begun(fitting: Mapped, queue: Table, endpoint: Endpoint, work: _Work) -> Load:
    """Read the data, and record the batch."""
    work.report(Progress("checking", 0, 0))
    ledger = Ledger(queue)
    known = endpoint.run(lambda connection: ledger.find(connection, work.batch))
    cut, facts = _cut(fitting, queue, known, endpoint, work.settings)
    slices = cut.count(slices_wanted(facts, work.settings), facts.pieces)
    fingerprint = facts.fingerprint(fitting.names, cut.sums)
    new = Batch(work.batch, work.mode, fingerprint, cut.file_octets, slices, facts.rows, 0, None)
    found = endpoint.run(lambda connection: ledger.begin(connection, new))
    spread_ns = None if work.spread_s is None else round(work.spread_s * NS_PER_S)
    rejects_max = work.settings.rejects_max if work.rejects is not None else None
    parts = cut.slices(facts.pieces, found.slices)
    return Load(endpoint, queue, fitting, found, cut, parts, spread_ns, work.settings, rejects_max)


def _cut(
    fitting: Mapped, queue: Table, known: Batch | None, endpoint: Endpoint, settings: Settings
) -> tuple[Cut, Facts]:
    """Cut and read the data. A batch that is in the ledger is cut as it was."""
    octets = known.file_octets if known else file_octets(settings.slice_rows, settings.slice_octets)
    sums = Sums()
    files = None if octets is None else by_files(fitting, octets, sums)
    if known and octets is not None and files is None:
        raise PipelineError(
            f"batch {known.name!r} was begun with rows as they came from files, and these come in another way: give"
            " this one another name, or the same data as then"
        )
    cut: Cut = files or ByHash(fitting, sums)
    facts, problems = read(cut, fitting, queue, settings.check)
    if settings.check == "all":
        problems += duplicates(fitting, queue, endpoint)
    if problems:
        raise ProblemsError(f"the data does not fit {queue.quoted}; nothing was written", problems)
    cores = fitting.frame.sparkSession.sparkContext.defaultParallelism
    if files and not known and not serves(facts, files.tasks(facts.pieces), settings, cores):
        cut = ByHash(fitting, sums)
        facts, _ = read(cut, fitting, queue, "off")
    return cut, facts


def _carry_out(way: Direct, load: Load, report: Callable[[Progress], None]) -> tuple[bool, int]:
    """Write missing slices until none is missing. Returns whether this run ended the batch, and how
    many messages were missing. Raises JobError."""
    way.prepare()
    wanted = rows_of(load, way.look())
    failure: BaseException | None = None
    rounds = load.settings.rounds
    while (missing := way.look()) and rounds:
        failure = _write(way, missing, load, report)
        rounds -= 1
    if missing:
        left = rows_of(load, missing)
        hint = "" if load.rejects_max is not None else ". Where the server refuses rows, --rejects sets them aside"
        raise JobError(
            f"{left:,} of {load.batch.messages:,} messages could not be written:"
            f" {cause(failure) if failure else 'the tasks ended and the rows are not there'}{hint}"
        ) from failure
    return way.finish(report), wanted


def _write(
    way: Direct, missing: tuple[int, ...], load: Load, report: Callable[[Progress], None]
) -> BaseException | None:
    """Run the tasks for these slices, and publish and report what they commit. Returns the error
    that they failed with."""
    failures: list[BaseException] = []

    def show(left: tuple[int, ...]) -> None:
        total = load.batch.messages
        report(Progress(way.phase, total - rows_of(load, left), total))

    def run() -> None:
        try:
            way.write(missing)
        except (Py4JError, PySparkException, pymysql.MySQLError) as failure:
            failures.append(failure)

    spark = load.mapped.frame.sparkSession
    tag = f"ackstream-{threading.get_ident()}-{time.monotonic_ns()}"
    spark.addTag(tag)
    job = InheritableThread(target=run, name="ackstream-enqueue", daemon=True)
    show(missing)
    try:
        job.start()
        ended = False
        while not ended:
            job.join(load.settings.look_s)
            ended = not job.is_alive()  # before `look`, so that the last one finds all
            show(way.look())
    except BaseException:
        spark.interruptTag(tag)
        job.join(ENDING_S)
        raise
    finally:
        spark.removeTag(tag)
    return failures[0] if failures else None
