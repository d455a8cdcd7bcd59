"""The command line `ackstream-enqueue`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Final, get_args

import click
from pyspark.sql import DataFrame, SparkSession

from ..common.command_line import (
    Assignment,
    Duration,
    ending,
    reading_source,
    reporting,
    running_spark,
    spark_options,
    table_option,
    where_options,
)
from ..endpoint import Endpoint
from ..errors import PipelineError
from .abandon import abandon, lines, listed
from .checking import Check
from .job import Outcome, enqueue
from .load import Settings

PROGRAM: Final = "ackstream-enqueue"
REJECTED: Final = 3
"""The exit status of a batch that is in the queue except for rows that the server refused."""
FORMATS: Final = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".orc": "orc"}


@click.command()
@where_options
@table_option
@click.option("--batch", help="a name for this data; run again, it adds nothing twice")
@click.option("--source", multiple=True, help="files or folders that Spark reads; several must have one format")
@click.option("--format", "format_", help="the format of --source, if its name does not end in it")
@click.option("--option", "options", multiple=True, type=Assignment(), help="an option of Spark's reader")
@click.option("--query", help="Spark SQL for the data, over --source as `source` or the catalog's tables")
@click.option("--mapping", multiple=True, type=Assignment(), help="column=expression; without any, columns go by name")
@click.option("--spread", type=Duration(), help="due evenly over this time from now, such as 1h, not at once")
@click.option("--mode", type=click.Choice(["streaming", "atomic"]), default="streaming", show_default=True)
@click.option(
    "--check",
    type=click.Choice(get_args(Check)),
    default="all",
    show_default=True,
    help="the rows that are compared with the table first; off: the server alone refuses what does not fit",
)
@click.option("--max-connections", type=int, default=Settings().max_connections, show_default=True)
@click.option("--slice-rows", type=click.IntRange(1), default=Settings().slice_rows, show_default=True)
@click.option("--rejects", metavar="DIR", help="write rows that the server refuses to DIR as Parquet")
@click.option("--rejects-max", type=click.IntRange(1), default=Settings().rejects_max, show_default=True)
@click.option("--list", "list_", is_flag=True, help="only list the queue's batches and queries")
@click.option("--abandon", "to_abandon", help="a batch that is never finished, or a query whose checkpoint is gone")
@spark_options
@click.pass_obj
def cli(
    session: SparkSession | None,
    /,
    *,
    list_: bool,
    to_abandon: str | None,
    **given: Any,
) -> None:
    """Put the rows of any data that Spark can read into a queue, each batch once.

    \b
    streaming: messages go out as they come in; a rerun adds what is missing
    atomic:    all rows at once or none

    After a failure, run the same command again. --list and --abandon are for a batch that will
    never be run again. Exit status 3: the batch is in the queue except for rows that the server
    refused and that were set aside; 2: the data or an option is wrong, and nothing was written; 1:
    it failed on the way.
    """  # noqa: D301 (click's own mark)
    with ending(PROGRAM):
        if list_ or to_abandon:
            where = Endpoint.from_url(given["url"], password_file=given["password_file"]), given["table"]
            if to_abandon:
                click.echo(abandon(*where, to_abandon))
            if list_:
                click.echo("\n".join(lines(listed(*where))))
        elif not given["batch"]:
            raise click.MissingParameter(param_hint="'--batch'", param_type="option")
        else:
            text, status = _run(session, **given)
            click.echo(text)
            if status:
                sys.exit(status)


def main() -> None:
    """The entry point of the console script and of spark-submit."""
    cli(prog_name=PROGRAM)


def said(outcome: Outcome) -> str:
    """An outcome as a line of text."""
    messages = f"{outcome.messages - outcome.rejected:,} messages"
    refused = f"; {outcome.rejected:,} that the server refused are set aside" if outcome.rejected else ""
    if outcome.beside:
        return f"batch {outcome.batch}: {messages} in {outcome.queue}, ended by another run of it{refused}"
    if not outcome.added:
        return f"batch {outcome.batch} is in {outcome.queue} already ({messages}): nothing added{refused}"
    some = f", {outcome.written:,} of them by this run" if outcome.written < outcome.messages else ""
    rate = outcome.written / max(outcome.seconds, 0.001)
    return (
        f"batch {outcome.batch}: {messages} in {outcome.queue}{some}, {outcome.seconds:.1f} s, {rate:,.0f} a second"
        f"{refused}"
    )


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
    check: Any,
    max_connections: int,
    slice_rows: int,
    rejects: str | None,
    rejects_max: int,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> tuple[str, int]:
    """Returns the text to print, and the exit status."""
    endpoint = Endpoint.from_url(url, password_file=password_file)
    if len(dict(mapping)) < len(mapping):
        raise PipelineError("--mapping names a column twice")
    with running_spark(session, PROGRAM, master, conf) as spark, reporting() as report:
        with reading_source():
            frame = _data(spark, source, format_, dict(options), query)
        settings = Settings(max_connections, slice_rows=slice_rows, rejects_max=rejects_max, check=check)
        outcome = enqueue(
            frame,
            endpoint,
            table,
            batch=batch,
            mode=mode,
            mapping=dict(mapping) or None,
            spread_s=spread,
            rejects=rejects,
            settings=settings,
            report=report,
        )
        return said(outcome), REJECTED if outcome.rejected else 0


def _data(
    spark: SparkSession, source: Sequence[str], format_: str | None, options: dict[str, str], query: str | None
) -> DataFrame:
    if not source:
        if query is None:
            raise PipelineError("name the data: --source, --query, or both")
        return spark.sql(query)
    suffixes = {PurePosixPath(path).suffix for path in source}
    kind = format_ or FORMATS.get(suffixes.pop() if len(suffixes) == 1 else "")
    if kind is None:
        raise PipelineError(f"--format is needed: the name of the source does not end in one of {', '.join(FORMATS)}")
    defaults = {"header": "true", "inferSchema": "true"} if kind == "csv" else {}
    frame = spark.read.format(kind).options(**{**defaults, **options}).load(list(source))
    if query is None:
        return frame
    frame.createOrReplaceTempView("source")
    return spark.sql(query)


if __name__ == "__main__":
    main()
