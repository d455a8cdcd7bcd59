"""`ackstream-report`: what became of the messages of some queues. `--help` says how; `pipeline.report` does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from pipeline.common.command_line import (
    Assignment,
    Duration,
    ending,
    jar_option,
    reporting,
    running_spark,
    spark_options,
    where_options,
)
from pipeline.endpoint import Endpoint
from pipeline.report.history import Reading
from pipeline.report.job import TOP, TOP_LIMIT, WINDOW_S, report

PROGRAM: Final = "ackstream-report"


@click.command()
@where_options
@click.option("--table", "tables", multiple=True, required=True, help="a queue: database.table; several, if you like")
@click.option("--out", required=True, help="a folder for report.html and Parquet; an earlier report there is replaced")
@click.option("--by", multiple=True, help="a column, such as a tenant's: its values each by themselves; several too")
@click.option("--created-column", help="in which the application keeps when a message was made: DATETIME or ns")
@click.option("--due-column", help="in which it keeps when a message was due, if not when it was made")
@click.option("--archive", multiple=True, type=Assignment(), help="table=folder: what ackstream-archive took, as well")
@click.option("--window", type=Duration(), default=f"{WINDOW_S:.0f}s", help="how far back rates are taken from; 1h")
@click.option("--top", type=click.IntRange(1, TOP_LIMIT), default=TOP, show_default=True, help="values on the page")
@click.option("--max-connections", type=click.IntRange(1), default=Reading().max_connections, show_default=True)
@click.option("--range-rows", type=click.IntRange(1), default=Reading().range_rows, show_default=True)
@jar_option
@spark_options
@click.pass_obj
def cli(session: SparkSession | None, /, **given: Any) -> None:
    """Report on queues: volumes, waits, time to acknowledgement, deliveries, dead letters, backlog.

    Writes a page, report.html, and all aggregates as Parquet. Only looks: nothing is claimed or changed.

    Exit status 2: it cannot be done as it was asked for; 1: it failed on the way, run it again.
    """
    with ending(PROGRAM):
        click.echo(_run(session, **given))


def main() -> None:
    """The console script, and what spark-submit calls."""
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
    jar: str | None,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> str:
    endpoint = Endpoint.from_url(url, password_file=password_file)
    with running_spark(session, PROGRAM, master, conf, jar, jdbc=True) as spark, reporting() as tell:
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
            tell=tell,
        )
        try:
            return made.write(out, top=top, tell=tell)
        finally:
            made.close()


if __name__ == "__main__":
    main()
