"""The command line `ackstream-archive`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from ..common.command_line import (
    Duration,
    ending,
    reporting,
    running_spark,
    spark_options,
    table_option,
    where_options,
)
from ..endpoint import Endpoint
from .job import Archived, Sizes, archive

PROGRAM: Final = "ackstream-archive"


@click.command()
@where_options
@table_option
@click.option("--to", "target", required=True, help="the archive's folder: one table's, on HDFS or a local file system")
@click.option(
    "--keep", type=Duration(), default="1h", show_default=True, help="leave messages that were acknowledged since"
)
@click.option("--chunk-rows", type=click.IntRange(1), default=Sizes().chunk_rows, show_default=True)
@click.option("--max-connections", type=click.IntRange(1), default=Sizes().max_connections, show_default=True)
@spark_options
@click.pass_obj
def cli(session: SparkSession | None, /, **given: Any) -> None:
    """Write the acknowledged messages of a queue to Parquet, verify them, and delete them from the
    queue.

    Stop it at any time, and run the same command again: no message is lost, and none is archived
    twice. Exit status 2: an option or the table is unsuitable; 1: it failed on the way, run it
    again.
    """
    with ending(PROGRAM):
        for line in said(_run(session, **given)):
            click.echo(line)


def main() -> None:
    """The entry point of the console script and of spark-submit."""
    cli(prog_name=PROGRAM)


def said(outcome: Archived) -> list[str]:
    """A result as lines of text."""
    rate = outcome.rows / max(outcome.seconds, 0.001)
    lines = [f"{outcome.queue}: {outcome.rows:,} messages archived, {outcome.seconds:.1f} s, {rate:,.0f} a second"]
    if outcome.left:
        lines.append(f"{outcome.left:,} of them stay in the queue: they were redriven or changed meanwhile")
    if outcome.missed:
        lines.append(
            f"{outcome.missed:,} others were purged or redriven before they were read: raise the queue's PURGE_AFTER"
        )
    return lines


def _run(
    session: SparkSession | None,
    *,
    url: str,
    password_file: str | None,
    table: str,
    target: str,
    keep: float,
    chunk_rows: int,
    max_connections: int,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> Archived:
    endpoint = Endpoint.from_url(url, password_file=password_file)
    with running_spark(session, PROGRAM, master, conf) as spark, reporting() as report:
        return archive(
            spark,
            endpoint,
            table,
            target,
            keep_s=keep,
            sizes=Sizes(chunk_rows=chunk_rows, max_connections=max_connections),
            report=report,
            warn=lambda text: click.echo(f"{PROGRAM}: {text}", err=True),
        )


if __name__ == "__main__":
    main()
