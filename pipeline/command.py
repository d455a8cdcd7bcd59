"""`ackstream-enqueue`: files, or a query, into a queue. `--help` says how; `pipeline.enqueue` is what it does."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import click
import pymysql
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from pipeline.endpoint import DEBIANS_JAR, PASSWORD_VARIABLE, URL_SHAPE, Endpoint, find_jar
from pipeline.enqueue import Outcome, enqueue
from pipeline.errors import JobError, PipelineError
from pipeline.load import Progress, Settings

FORMATS: Final = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".orc": "orc"}
LINES_S: Final = 5.0
"""Between lines of progress where there is no terminal."""

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

WRONG, FAILED = 2, 1
"""Exit codes: what was asked for cannot be done; it was begun and has to be run again."""


class Assignment(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first `=`."""
        name, equals, text = str(value).partition("=")
        if not (name.strip() and equals and text.strip()):
            self.fail(f"{value!r} is not {self.name}", param, ctx)
        return name.strip(), text.strip()


class Duration(click.ParamType[float]):
    """Seconds, or a number with a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read 90, 90s, 1.5h."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration: write 90, 15m, 1h or 7d", param, ctx)
        return float(found[1]) * UNITS[found[2] or "s"]


@click.command()
@click.option("--url", envvar="ACKSTREAM_URL", required=True, help=f"the proxy: {URL_SHAPE}; ${PASSWORD_VARIABLE}")
@click.option("--password-file", type=click.Path(), help=f"the password's file, instead of ${PASSWORD_VARIABLE}")
@click.option("--table", required=True, help="the queue: database.table")
@click.option("--batch", required=True, help="a name for this data: the same again adds nothing twice")
@click.option("--source", multiple=True, help="files or folders that Spark can read; several of one format")
@click.option("--format", "format_", help="the format of --source, where its name does not end in it")
@click.option("--option", "options", multiple=True, type=Assignment(), help="an option of Spark's reader")
@click.option("--query", help="Spark SQL in place of the data, over --source as `source` or the catalog's tables")
@click.option("--mapping", multiple=True, type=Assignment(), help="column=expression; without any, columns go by name")
@click.option("--spread", type=Duration(), help="due evenly over so long from now, such as 1h, instead of at once")
@click.option("--mode", type=click.Choice(["streaming", "atomic"]), default="streaming", show_default=True)
@click.option("--max-connections", type=int, default=Settings().max_connections, show_default=True)
@click.option("--slice-rows", type=click.IntRange(1), default=Settings().slice_rows, show_default=True)
@click.option("--jar", help=f"the JDBC driver's, unless Spark was given it or it is {DEBIANS_JAR}")
@click.option("--master", help="of Spark, where spark-submit does not say; local[*] without")
@click.option("--conf", multiple=True, type=Assignment(), help="a setting of Spark")
@click.pass_obj
def cli(session: SparkSession | None, /, **given: Any) -> None:
    """Put the rows of any data that Spark can read into a queue, each batch once.

    \b
    streaming: messages go out as they come in; a rerun adds what is missing
    atomic:    all rows at once or none

    Run the same command again after whatever happened. Exit status 2: the data or a setting is wrong, and nothing was
    written; 1: it failed on the way.
    """  # noqa: D301 (click's own mark)
    try:
        outcome = _run(session, **given)
    except JobError as error:
        _end(str(error), FAILED)
    except PipelineError as error:
        _end(str(error), WRONG)
    except pymysql.MySQLError as error:
        _end(f"the server says: {error.args[-1]} ({error.args[0]})", FAILED)
    except PySparkException as error:
        _end(f"Spark says: {str(error).strip().splitlines()[0]}", FAILED)
    else:
        click.echo(said(outcome))


def main() -> None:
    """The console script, and what spark-submit calls."""
    cli(prog_name="ackstream-enqueue")


def said(outcome: Outcome) -> str:
    """An outcome in a line."""
    if not outcome.added:
        return f"batch {outcome.batch} is in {outcome.queue} already ({outcome.messages:,} messages): nothing added"
    rate = outcome.messages / max(outcome.seconds, 0.001)
    return (
        f"batch {outcome.batch}: {outcome.messages:,} messages in {outcome.queue},"
        f" {outcome.seconds:.1f} s, {rate:,.0f} a second"
    )


def _end(text: str, status: int) -> None:
    click.echo(f"ackstream-enqueue: {text}", err=True)
    sys.exit(status)


def _run(
    session: SparkSession | None,
    *,
    url: str,
    password_file: str | None,
    table: str,
    batch: str,
    source: Sequence[str],
    format_: str | None,
    options: Sequence[tuple[str, str]],
    query: str | None,
    mapping: Sequence[tuple[str, str]],
    spread: float | None,
    mode: Any,
    max_connections: int,
    slice_rows: int,
    jar: str | None,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> Outcome:
    endpoint = Endpoint.from_url(url, password_file=password_file)
    if len(dict(mapping)) < len(mapping):
        raise PipelineError("--mapping names a column twice")
    spark = session or _session(master, jar, dict(conf))
    try:
        frame = _data(spark, source, format_, dict(options), query)
        with _reporting() as report:
            return enqueue(
                frame,
                endpoint,
                table,
                batch=batch,
                mode=mode,
                mapping=dict(mapping) or None,
                spread_s=spread,
                settings=Settings(max_connections=max_connections, slice_rows=slice_rows),
                report=report,
            )
    finally:
        if session is None:
            spark.stop()


def _session(master: str | None, jar: str | None, conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("ackstream-enqueue").config("spark.ui.showConsoleProgress", "false")
    if master:
        builder = builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    if "spark.jars" not in conf and (jar or DEBIANS_JAR.exists()):
        builder = builder.config("spark.jars", str(find_jar(jar)))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("ACKSTREAM_SPARK_LOG", "OFF"))
    return spark


def _data(
    spark: SparkSession, source: Sequence[str], format_: str | None, options: dict[str, str], query: str | None
) -> DataFrame:
    if not source:
        if query is None:
            raise PipelineError("name the data: --source, --query, or both")
        return spark.sql(query)
    suffixes = {PurePosixPath(each).suffix for each in source}
    kind = format_ or FORMATS.get(suffixes.pop() if len(suffixes) == 1 else "")
    if kind is None:
        raise PipelineError(f"--format is needed: the name of the source does not end in one of {', '.join(FORMATS)}")
    defaults = {"header": "true", "inferSchema": "true"} if kind == "csv" else {}
    frame = spark.read.format(kind).options(**{**defaults, **options}).load(list(source))
    if query is None:
        return frame
    frame.createOrReplaceTempView("source")
    return spark.sql(query)


# --- progress ---


@contextlib.contextmanager
def _reporting() -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, now and then a line elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(lambda line: click.echo(line, err=True), time.monotonic).tell
        return
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console) as bars:
        bar = bars.add_task("", total=None)
        yield lambda progress: bars.update(
            bar, description=progress.phase, completed=progress.done, total=progress.total or None
        )


class Lines:
    """Progress as lines: at the beginning of each phase, at its end, and every few seconds between."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._last: Progress | None = None
        self._next = 0.0

    def tell(self, progress: Progress) -> None:
        """Say it, if it is time."""
        last, now = self._last, self._clock()
        ended = progress.total > 0 and progress.done == progress.total
        if progress == last or not (last is None or progress.phase != last.phase or ended or now >= self._next):
            return
        self._last, self._next = progress, now + LINES_S
        counted = f" {progress.done:,} of {progress.total:,}" if progress.total else ""
        self._write(f"{progress.phase}{counted}")


if __name__ == "__main__":
    main()
