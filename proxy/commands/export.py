"""`ackstream peek` and `ackstream export`: messages as lines of JSON or CSV, without delivering them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from functools import partial

import click
from pymysql.cursors import SSCursor

from engine.quoting import quoted
from proxy.commands.connection import Address, reported, table_name, url_option
from proxy.commands.values import as_csv, as_json
from proxy.session.queries import sql


def _write(address: Address, queue: str, form: str, query: Callable[..., str]) -> None:
    """`query`: of a table and its columns."""
    table = table_name(queue)
    with address.connect(SSCursor) as connection, connection.cursor() as cursor:
        cursor.execute(sql("columns_of", table=table))
        columns = ", ".join(quoted(str(name)) for name, *_ in cursor.fetchall())
        cursor.execute(query(table=table, columns=columns))
        names = [column[0] for column in cursor.description]
        writer = csv.writer(sys.stdout)
        if form == "csv":
            writer.writerow(names)
        for row in cursor:
            if form == "csv":
                writer.writerow(map(as_csv, row))
            else:
                click.echo(as_json(dict(zip(names, row, strict=True))))


form_option = click.option("--format", "form", type=click.Choice(["json", "csv"]), default="json", show_default=True)


@click.command()
@click.argument("queue")
@url_option
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1), help="Messages.")
@form_option
@reported
def peek(queue: str, address: Address, limit: int, form: str) -> None:
    """Show the next messages of QUEUE, the most urgent first. Nothing is delivered or changed.

    Scheduled messages and those in flight are shown behind those that are due, by their time.

    \b
    Example:
      ackstream peek orders --limit 3
    """
    _write(address, queue, form, partial(sql, "peek", limit=limit))


@click.command()
@click.argument("queue")
@url_option
@form_option
@click.option("--acknowledged", is_flag=True, help="Also those that are acknowledged and not purged yet.")
@reported
def export(queue: str, address: Address, form: str, acknowledged: bool) -> None:  # noqa: FBT001  # click passes it
    """Write all unacknowledged messages of QUEUE, with all columns. Nothing is delivered or changed.

    \b
    Example:
      ackstream export orders_dead --format csv > dead.csv
    """
    condition = "TRUE" if acknowledged else "time_acked IS NULL"
    _write(address, queue, form, partial(sql, "export", condition=condition))
