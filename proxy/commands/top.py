"""`ackstream top`: the queues and their consumers in a terminal, updated every few seconds.

It runs SHOW FULL QUEUES and SHOW STREAMS with the account of the URL, and shows what that account
may see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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

RATES = ("Enqueued_per_s", "Acked_per_s")
AROUND_LINES = 9
"""Lines of the screen for heads, titles and problems."""
PROBLEMS_MAX = 4
"""Of the queues that are shown."""
NAME_WIDTH = 22
"""Characters of the name of a queue, at least."""
GAP = 1
"""Between two columns."""
STREAMS_SHARE = 3
"""The streams have this part of the screen's lines."""


def queues_table(queues: Sequence[Row], lines: int, width: int) -> RenderableType:
    """The first queues that fit, with as many columns as fit, and behind them what is wrong with them."""
    shown, problems = queues[:lines], []
    table, columns = _table(len(queues), "queue", "Queue", QUEUE_COLUMNS, width)
    for row in shown:
        consumed = row["Subscribers"] or row["In_flight"]  # A worker that polls has no stream while it works.
        stuck = row["State"] == "broken" or (row["Ready"] and not (consumed and row["State"] == "running"))
        name = f"{row['Database']}.{row['Name']}"
        if row["Problem"]:
            problems.append(Text(f"{name}: {row['Problem']}"))
        cells = [name, *(column.cell(row) for column in columns)]
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in cells), style="bold" if stuck else "")
    return Group(table, *problems[:PROBLEMS_MAX])


def streams_table(streams: Sequence[Row], lines: int, width: int) -> RenderableType:
    """The streams with the most messages in flight, with as many columns as fit."""
    table, columns = _table(len(streams), "stream", "Queue", STREAM_COLUMNS, width)
    for row in sorted(streams, key=lambda row: -(row["In_flight"] or 0))[:lines]:
        cells = [row["Queue"] or "", *(column.cell(row) for column in columns)]
        table.add_row(*(Text(cell, overflow="ellipsis", no_wrap=True) for cell in cells))
    return table


def _table(count: int, what: str, first: str, columns: Sequence[Column], width: int) -> tuple[Table, Sequence[Column]]:
    """An empty table, and those of the columns that it has: they are left out from the end."""
    fitting = list(columns)
    while NAME_WIDTH + sum(column.width + GAP for column in fitting) > width and len(fitting) > 1:
        fitting.pop()
    title = f"{count:,} {what}{'' if count == 1 else 's'}"
    table = Table(expand=True, highlight=False, title=title, title_justify="left", box=None, padding=(0, GAP, 0, 0))
    table.add_column(first, ratio=1, no_wrap=True)
    for column in fitting:
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(column.title, width=column.width, no_wrap=True, justify=justify)
    return table, fitting


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column behind the name of the queue."""

    title: str
    width: int
    cell: Callable[[Row], str]
    is_number: bool = True


QUEUE_COLUMNS = (
    Column("State", 7, lambda row: row["State"], is_number=False),
    Column("Ready", 7, lambda row: _number(row["Ready"])),
    Column("Oldest", 8, lambda row: _seconds(row["Oldest_ready_s"])),
    Column("Acked/s", 8, lambda row: _rate(row["Acked_per_s"])),
    Column("In flight", 9, lambda row: _number(row["In_flight"])),
    Column("Dead", 6, lambda row: _number(row["Dead"])),
    Column("Streams", 7, lambda row: _number(row["Subscribers"])),
    Column("Scheduled", 9, lambda row: _number(row["Scheduled"])),
    Column("In/s", 8, lambda row: _rate(row["Enqueued_per_s"])),
)
"""The most important ones first: a narrow screen has no room for the last."""

STREAM_COLUMNS = (
    Column("Id", 8, lambda row: str(row["Id"])),
    Column("In flight", 9, lambda row: _number(row["In_flight"])),
    Column("Idle", 8, lambda row: _seconds(row["Idle_s"])),
    Column("Delivered", 10, lambda row: _number(row["Delivered"])),
    Column("Program", 14, lambda row: row["Program"] or "", is_number=False),
    Column("User", 12, lambda row: row["User"] or "", is_number=False),
    Column("Host", 21, lambda row: row["Host"] or "", is_number=False),
)


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

    def screen(self, width: int, height: int) -> RenderableType:
        """The present state, or why there is none, in so many characters and lines."""
        try:
            queues, streams = self.read()
        except pymysql.MySQLError as error:
            return Text(f"{error_text(error)}; trying again", style="bold")
        free = max(2, height - AROUND_LINES)
        below = min(len(streams), free // STREAMS_SHARE)
        return Group(queues_table(queues, free - below, width), "", streams_table(streams, below, width))


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
        width = console.width
        console.print(queues_table(queues, len(queues), width), "", streams_table(streams, len(streams), width))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(shown.screen(console.width, console.height), refresh=True)
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)
