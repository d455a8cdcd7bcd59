"""The command line `ackstream-report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from ..common.command_line import (
    Assignment,
    Duration,
    ending,
    reporting,
    running_spark,
    spark_options,
    where_options,
)
from ..common.files import Files
from ..endpoint import Endpoint
from .history import Reading
from .job import TOP, TOP_LIMIT, WINDOW_S, report

PROGRAM: Final = "ackstream-report"


@click.command()
@where_options
@click.option("--table", "tables", multiple=True, required=True, help="a queue: database.table; may be repeated")
@click.option("--out", required=True, help="a folder for report.html and Parquet; an earlier report there is replaced")
@click.option("--by", multiple=True, help="a column to group by, such as the tenant; may be repeated")
@click.option("--created-column", help="the column with the time a message was created: DATETIME, TIMESTAMP or ns")
@click.option("--due-column", help="the column with the time a message was due, if not when it was created")
@click.option(
    "--archive", multiple=True, type=Assignment(), help="table=folder: also count what ackstream-archive took"
)
@click.option("--window", type=Duration(), default=f"{WINDOW_S:.0f}s", help="the time that rates are computed over; 1h")
@click.option("--top", type=click.IntRange(1, TOP_LIMIT), default=TOP, show_default=True, help="values on the page")
@click.option("--max-connections", type=click.IntRange(1), default=Reading().max_connections, show_default=True)
@click.option("--range-rows", type=click.IntRange(1), default=Reading().range_rows, show_default=True)
@spark_options
@click.pass_obj
def cli(session: SparkSession | None, /, **given: Any) -> None:
    """Report on queues: volumes, waits, time to acknowledgement, deliveries, dead letters, backlog.

    Writes a page, report.html, and all aggregates as Parquet. Claims and changes no messages.

    Exit status 2: an option is unsuitable; 1: it failed on the way, run it again.
    """
    with ending(PROGRAM):
        click.echo(_run(session, **given))


def main() -> None:
    """The entry point of the console script and of spark-submit."""
    cli(prog_name=PROGRAM)


def _run(
    session: SparkSession | None,
    *,
    url: str,
    password_file: str | None,
    tables: Sequence[str],
    out: str,
    by: Sequence[str],
    created_column: str | None,
    due_column: str | None,
    archive: Sequence[tuple[str, str]],
    window: float,
    top: int,
    max_connections: int,
    range_rows: int,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> str:
    endpoint = Endpoint.from_url(url, password_file=password_file)
    with running_spark(session, PROGRAM, master, conf) as spark, reporting() as on_progress:
        Files(spark, out)  # raises PipelineError before hours of reading
        made = report(
            spark,
            endpoint,
            tables,
            by=by,
            created=created_column,
            due=due_column,
            archives=dict(archive),
            window_s=window,
            reading=Reading(max_connections, range_rows),
            on_progress=on_progress,
        )
        try:
            return made.write(out, top=top, on_progress=on_progress)
        finally:
            made.close()


if __name__ == "__main__":
    main()
