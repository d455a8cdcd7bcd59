"""Common parts of the command lines: options, Spark, progress, errors and exit codes."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click
import pymysql
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..endpoint import PASSWORD_VARIABLE, URL_SHAPE
from ..errors import JobError, PipelineError, cause, server_says
from .progress import Progress

LINES_S: Final = 5.0
"""Between lines of progress where there is no terminal."""

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

LOG_VARIABLE: Final = "ACKSTREAM_SPARK_LOG"
"""The level of Spark's own log, which repeats each error of a task at length."""

CONTEXT_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""To these PySpark writes each error of a query with Java's traceback, beside the exception."""

AWAY: Final = re.compile(r"java\.net\.(Connect|NoRouteToHost|SocketTimeout)Exception")
"""Causes for which a file system may be reached later."""

WRONG, FAILED = 2, 1
"""Exit codes: a setting or the data is wrong; the job failed on the way and has to be run again."""

F = TypeVar("F", bound=Callable[..., Any])


class Assignment(click.ParamType):  # type: ignore[type-arg]  # Before click 8.4 it is not generic.
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first `=`."""
        name, equals, text = str(value).partition("=")
        if not (name.strip() and equals and text.strip()):
            self.fail(f"{value!r} is not {self.name}", param, ctx)
        return name.strip(), text.strip()


class Duration(click.ParamType):  # type: ignore[type-arg]  # The same.
    """Seconds, or a number with a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read 90, 90s, 1.5h."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration: write 90, 15m, 1h or 7d", param, ctx)
        return float(found[1]) * UNITS[found[2] or "s"]


def where_options(command: F) -> F:
    """Options for where the proxy is: `url`, `password_file`."""
    password = f"the password's file, instead of ${PASSWORD_VARIABLE}"
    options = [
        click.option(
            "--url", envvar="ACKSTREAM_URL", required=True, help=f"the proxy: {URL_SHAPE}; ${PASSWORD_VARIABLE}"
        ),
        click.option("--password-file", type=click.Path(), help=password),
    ]
    return _with(options, command)


def spark_options(command: F) -> F:
    """Options for how Spark runs: `master`, `conf`."""
    options = [
        click.option("--master", help="of Spark, where spark-submit does not say; local[*] without"),
        click.option("--conf", multiple=True, type=Assignment(), help="a setting of Spark"),
    ]
    return _with(options, command)


table_option: Final = click.option("--table", required=True, help="the queue: database.table")


def _with(options: Sequence[Callable[[F], F]], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command


@contextlib.contextmanager
def ending(program: str) -> Iterator[None]:
    """Errors end the program with a text and an exit code."""
    try:
        yield
    except JobError as error:
        _end(program, str(error), FAILED)
    except PipelineError as error:
        _end(program, str(error), WRONG)
    except pymysql.MySQLError as error:
        _end(program, server_says(error), FAILED)
    except AnalysisException as error:  # before anything was begun
        _end(program, f"Spark says: {cause(error)}", WRONG)
    except (PySparkException, Py4JError) as error:
        _end(program, f"Spark says: {cause(error)}", FAILED)


@contextlib.contextmanager
def reading_source() -> Iterator[None]:
    """What Spark cannot read is wrong, and stays wrong: raises PipelineError, unless a file system is
    away."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if AWAY.search(text := cause(error)):
            raise
        raise PipelineError(f"the data cannot be read: {text}") from None


def _end(program: str, text: str, status: int) -> None:
    click.echo(f"{program}: {text}", err=True)
    sys.exit(status)


@contextlib.contextmanager
def running_spark(
    given: SparkSession | None,
    program: str,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> Iterator[SparkSession]:
    """The session that is given, or else a new one, which is stopped afterwards."""
    for name in CONTEXT_LOGGERS if LOG_VARIABLE not in os.environ else ():
        PySparkLogger.getLogger(name).setLevel("CRITICAL")
    if given is not None:
        yield given
        return
    if (master or "local").startswith("local") and "PYSPARK_GATEWAY_PORT" not in os.environ:  # not by spark-submit
        # Tasks need the packages of this Python; Spark would run the first one on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(program).config("spark.ui.showConsoleProgress", "false")
    if master:
        builder = builder.master(master)
    for name, value in conf:
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    level = os.environ.get(LOG_VARIABLE)
    if level is None:
        click.echo(f"{program}: Spark's log is off; {LOG_VARIABLE}=WARN shows it", err=True)
    spark.sparkContext.setLogLevel(level or "OFF")
    try:
        yield spark
    finally:
        spark.stop()


# --- progress ---


@contextlib.contextmanager
def reporting() -> Iterator[Callable[[Progress], None]]:
    """A function that shows progress: as a bar on a terminal, elsewhere as lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(lambda line: click.echo(line, err=True), time.monotonic).show
        return
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console) as bars:
        bar = bars.add_task("", total=None)
        yield lambda progress: bars.update(
            bar, description=progress.phase, completed=progress.done, total=progress.total or None
        )


class Lines:
    """Progress as lines: at the beginning of each phase, at its end, and every few seconds
    between."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._last: Progress | None = None
        self._next = 0.0

    def show(self, progress: Progress) -> None:
        """Write a line, if one is due."""
        last, now = self._last, self._clock()
        ended = progress.total > 0 and progress.done == progress.total
        if progress == last or not (last is None or progress.phase != last.phase or ended or now >= self._next):
            return
        self._last, self._next = progress, now + LINES_S
        counted = f" {progress.done:,} of {progress.total:,}" if progress.total else ""
        self._write(f"{progress.phase}{counted}")
