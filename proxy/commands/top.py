"""`ackstream top`: the queues and their consumers in a terminal, updated every few seconds.

It runs SHOW FULL QUEUES and SHOW STREAMS with the account of the URL, and shows what that account
may see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import pymysql
from pymysql.cursors import DictCursor
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxy.commands.connection import Address, error_text, reported, url_option
from proxy.commands.values import as_json

Row = Mapping[str, Any]

SORTS: Mapping[str, Callable[[Row], Any]] = {
    "name": lambda row: (row["Database"], row["Name"]),
    "ready": lambda row: -(row["Ready"] or 0),
    "oldest": lambda row: -(row["Oldest_ready_s"] or 0),
    "in-flight": lambda row: -(row["In_flight"] or 0),
    "dead": lambda row: -(row["Dead"] or 0),
    "rate": lambda row: -(row["Acked_per_s"] or 0),
}

NUMBERS = ("Ready", "Scheduled", "In_flight", "Dead")
RATES = ("Enqueued_per_s", "Acked_per_s")
AROUND_LINES = 9
"""Lines of the screen for heads, frames and the line of totals."""
STREAMS_SHARE = 3
"""The streams have this part of the screen's lines."""


def queues_table(queues: Sequence[Row], lines: int) -> RenderableType:
    """The first queues that fit."""
    table = Table(expand=True, highlight=False, title=f"{len(queues)} queues", title_justify="left")
    table.add_column("Queue", ratio=2, no_wrap=True)
    for name in (*map(_title, NUMBERS), "Oldest", "In/s", "Acked/s", "Streams"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("State", ratio=1, no_wrap=True)
    for row in queues[:lines]:
        consumed = row["Subscribers"] or row["In_flight"]  # A worker that polls has no stream while it works.
        stuck = row["State"] == "broken" or (row["Ready"] and not (consumed and row["State"] == "running"))
        cells = [f"{row['Database']}.{row['Name']}", *(_number(row[name]) for name in NUMBERS)]
        cells += [_seconds(row["Oldest_ready_s"]), *(_rate(row[name]) for name in RATES), _number(row["Subscribers"])]
        cells.append(f"{row['State']}: {row['Problem']}" if row["Problem"] else row["State"])
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in cells), style="bold" if stuck else "")
    return table


def _title(name: str) -> str:
    return name.replace("_", " ")


def streams_table(streams: Sequence[Row], lines: int) -> RenderableType:
    """The streams with the most messages in flight."""
    table = Table(expand=True, highlight=False, title=f"{len(streams)} streams", title_justify="left")
    for name in ("Id", "User", "Host", "Program", "Queue", "Delivered", "In flight", "Idle"):
        table.add_column(name, justify="right" if name in {"Id", "Delivered", "In flight", "Idle"} else "left")
    for row in sorted(streams, key=lambda row: -(row["In_flight"] or 0))[:lines]:
        cells = [str(row["Id"]), *(row[name] or "" for name in ("User", "Host", "Program", "Queue"))]
        cells += [_number(row["Delivered"]), _number(row["In_flight"]), _seconds(row["Idle_s"])]
        table.add_row(*(Text(str(cell), overflow="ellipsis", no_wrap=True) for cell in cells))
    return table


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= size:
            return f"{float(value) / size:.1f} {unit}"
    return f"{value:.0f} s"


class Top:
    """Reads through a connection that is opened again when it is lost."""

    def __init__(self, address: Address, sort: str, search: str) -> None:
        self._address, self._sort, self._search = address, SORTS[sort], search.casefold()
        self._connection: Any = None

    def read(self) -> tuple[list[Row], list[Row]]:
        """The queues and the streams. Raises pymysql.MySQLError."""
        if self._connection is None:
            self._connection = self._address.connect(DictCursor)
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SHOW FULL QUEUES")
                found = [
                    row for row in cursor.fetchall() if self._search in f"{row['Database']}.{row['Name']}".casefold()
                ]
                cursor.execute("SHOW STREAMS")
                return sorted(found, key=self._sort), list(cursor.fetchall())
        except pymysql.MySQLError:
            self._connection = None
            raise

    def screen(self, height: int) -> RenderableType:
        """The present state, or why there is none, in so many lines."""
        try:
            queues, streams = self.read()
        except pymysql.MySQLError as error:
            return Text(f"{error_text(error)}; trying again", style="bold")
        free = max(2, height - AROUND_LINES)
        below = min(len(streams), free // STREAMS_SHARE)
        return Group(queues_table(queues, free - below), streams_table(streams, below))


@click.command()
@url_option
@click.option("--sort", type=click.Choice(list(SORTS)), default="ready", show_default=True, help="Order of the queues.")
@click.option("--search", default="", metavar="TEXT", help="Queues whose name contains this.")
@click.option("--interval", default=2.0, show_default=True, type=click.FloatRange(min=0.5), help="Seconds.")
@click.option("--once", is_flag=True, help="Print the present state and end, as without a terminal.")
@click.option("--json", "lines", is_flag=True, help="Print one JSON object for each queue and end.")
@reported
def top(
    address: Address,
    sort: str,
    search: str,
    interval: float,
    once: bool,  # noqa: FBT001  # click passes it
    lines: bool,  # noqa: FBT001
) -> None:
    """Show the queues and their consumers, updated every few seconds; Ctrl-C ends it.

    Broken queues, and those with due messages that nobody reads or works on, are bold.

    \b
    Examples:
      ackstream top
      ackstream top --sort oldest --search orders
      ackstream top --json | jq 'select(.Dead > 0)'
    """
    shown = Top(address, sort, search)
    console = Console()
    if lines:
        for row in shown.read()[0]:
            click.echo(as_json({**row, **{name: _plain(row[name]) for name in (*RATES, "Oldest_ready_s")}}))
        return
    if once or not console.is_terminal or console.is_dumb_terminal:
        queues, streams = shown.read()
        console.print(Group(queues_table(queues, len(queues)), streams_table(streams, len(streams))))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(shown.screen(console.height), refresh=True)
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)
