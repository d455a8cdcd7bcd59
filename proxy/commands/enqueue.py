"""`ackstream enqueue`: messages from lines of JSON or from CSV, also those that `export` wrote.

A message that was exported is a new one: what its columns say of deliveries before is left out, and so are values
that the server computes.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click
from pymysql import MySQLError
from pymysql.cursors import Cursor

from engine.quoting import quoted
from proxy.commands.connection import Address, counted, error_text, reported, table_name, url_option
from proxy.commands.values import of_csv, of_json
from proxy.session.queries import sql

DELIVERIES = frozenset({"epoch", "time_acked"})
"""Columns of each queue that say what became of a message. Their values would make a new one dead, or acknowledged."""
NAMED = re.compile(r"^(?:LEASE|REASON) = '?(.+?)'?$", re.MULTILINE)
"""Further ones, in what SHOW CREATE QUEUE shows."""
REASON_AT = "_at"
"""Behind the name of the column with a reason: the column with its time."""


class BadLineError(click.ClickException):
    """A line of the input cannot be read or enqueued. The text names it."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message with the line that it ends in."""

    line: int
    values: Mapping[str, Any]


def from_json(lines: Iterable[str]) -> Iterator[Message]:
    """The messages of lines of JSON. Empty lines are left out. Raises BadLineError."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError as error:
            raise BadLineError(f"line {number} is not JSON: {error}") from None
        if not isinstance(message, dict) or not message:
            raise BadLineError(f"line {number} is not an object with columns")
        yield Message(number, {name: of_json(value) for name, value in message.items()})


def from_csv(lines: Iterable[str]) -> Iterator[Message]:
    """The messages of CSV with a first line of column names. Raises BadLineError."""
    reader = csv.DictReader(lines, strict=True)
    try:
        for message in reader:
            if None in message or None in message.values():
                raise BadLineError(f"line {reader.line_num} has not as many fields as the first one")
            yield Message(reader.line_num, {name: of_csv(value) for name, value in message.items()})
    except csv.Error as error:
        raise BadLineError(f"line {reader.line_num} is not CSV: {error}") from None


class _Target:
    """The queue. Its methods raise MySQLError."""

    def __init__(self, cursor: Cursor, queue: str) -> None:
        self._cursor, self._table = cursor, table_name(queue)
        cursor.execute(sql("create_queue_of", table=self._table))
        ((_, shown),) = cursor.fetchall()
        named = NAMED.findall(shown)
        cursor.execute(sql("columns_of", table=self._table))
        computed = {name for name, *_, extra in cursor.fetchall() if extra.endswith(" GENERATED")}
        self._left_out = DELIVERIES | computed | {*named, *(name + REASON_AT for name in named)}

    def insert(self, batch: Sequence[Message]) -> int:
        """Insert messages. Raises BadLineError for a message that the server refuses. The transaction then has to be
        rolled back."""
        self._cursor.execute(sql("mark"))
        try:
            return self._insert(batch)
        except MySQLError:
            self._find_refused(batch)
            raise

    def _find_refused(self, batch: Sequence[Message]) -> None:
        """Raise the error of the first message that is refused by itself."""
        try:
            self._cursor.execute(sql("back_to_mark"))
        except MySQLError:
            return  # No message is the reason: a deadlock has ended the transaction, or the connection is lost.
        for message in batch:
            try:
                self._insert([message])
            except MySQLError as error:
                raise BadLineError(f"line {message.line}: {error_text(error)}") from None

    def _insert(self, batch: Iterable[Message]) -> int:
        """Insert messages in one statement for each run of messages with the same columns."""
        count = 0
        kept = [
            {name: value for name, value in message.values.items() if name not in self._left_out} for message in batch
        ]
        for columns, run in itertools.groupby(kept, key=tuple):
            values = [tuple(message.values()) for message in run]
            names = ", ".join(map(quoted, columns))
            row = f"({', '.join(['%s'] * len(columns))})"
            text = sql("enqueue", table=self._table, columns=names, rows=", ".join([row] * len(values)))
            count += self._cursor.execute(text, [value for message in values for value in message])
        return count


@click.command()
@click.argument("queue")
@url_option
@click.option("--file", "source", type=click.File(encoding="utf-8"), default="-", help="Default: standard input.")
@click.option("--format", "form", type=click.Choice(["json", "csv"]), default="json", show_default=True)
@click.option("--batch", default=500, show_default=True, type=click.IntRange(1, 10_000), help="Messages a transaction.")
@click.option("--all-or-none", is_flag=True, help="One transaction for all messages.")
@click.option("--json", "as_json", is_flag=True, help="Report the count as JSON on standard output.")
@reported
def enqueue(
    queue: str,
    address: Address,
    source: TextIO,
    form: str,
    batch: int,
    all_or_none: bool,  # noqa: FBT001  # click passes it
    as_json: bool,  # noqa: FBT001
) -> None:
    """Insert messages into QUEUE: a JSON object with columns on each line, or CSV with a header.

    Values that are objects or arrays are stored as JSON. {"$base64": "…"} stands for bytes. Messages
    that `export` wrote are new ones: epoch, time_acked, lease and reason are left out. Without
    --all-or-none, the batches before an error stay: the error says how many messages they have.

    \b
    Examples:
      ackstream enqueue orders < orders.jsonl
      ackstream enqueue orders --format csv --file orders.csv --all-or-none
      ackstream export orders_dead | ackstream enqueue orders
    """
    messages = from_json(source) if form == "json" else from_csv(source)
    count = 0
    with address.connect() as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        target = _Target(cursor, queue)
        try:
            with click.progressbar(messages, label=queue, file=sys.stderr, show_pos=True) as shown:
                rest = iter(shown)
                while some := list(itertools.islice(rest, batch)):
                    done = target.insert(some)
                    if not all_or_none:
                        connection.commit()
                    count += done
            connection.commit()
        except BaseException:
            if count:
                click.echo(f"{_enqueued(0 if all_or_none else count)} before the error", err=True)
            raise
    click.echo(json.dumps({"enqueued": count}) if as_json else _enqueued(count), err=not as_json)


def _enqueued(count: int) -> str:
    return f"{counted(count, 'message')} {'was' if count == 1 else 'were'} enqueued"
