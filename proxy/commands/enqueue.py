"""`ackstream enqueue`: messages from lines of JSON or from CSV."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

import click
from pymysql.connections import Connection

from engine.quoting import quoted
from proxy.commands.connection import Address, reported, table_name, url_option
from proxy.commands.values import of_json
from proxy.session.queries import sql


class BadLineError(click.ClickException):
    """The input cannot be read. The text names the line."""


def from_json(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
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
        yield {name: of_json(value) for name, value in message.items()}


def from_csv(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The messages of CSV with a first line of column names. Raises BadLineError."""
    reader = csv.DictReader(lines, strict=True)
    try:
        for message in reader:
            if None in message or None in message.values():
                raise BadLineError(f"line {reader.line_num} has not as many fields as the first one")
            yield message
    except csv.Error as error:
        raise BadLineError(f"line {reader.line_num} is not CSV: {error}") from None


def _insert(connection: Connection[Any], queue: str, batch: Iterable[Mapping[str, Any]]) -> int:
    """Insert messages in one statement for each run of messages with the same columns."""
    count = 0
    for columns, run in itertools.groupby(batch, key=tuple):
        values = [tuple(message.values()) for message in run]
        names = ", ".join(map(quoted, columns))
        row = f"({', '.join(['%s'] * len(columns))})"
        text = sql("enqueue", table=table_name(queue), columns=names, rows=", ".join([row] * len(values)))
        with connection.cursor() as cursor:
            count += cursor.execute(text, [value for message in values for value in message])
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

    Values that are objects or arrays are stored as JSON. {"$base64": "…"} stands for bytes. Without
    --all-or-none, the batches before an error stay: the error says how many messages they have.

    \b
    Examples:
      ackstream enqueue orders < orders.jsonl
      ackstream enqueue orders --format csv --file orders.csv --all-or-none
      ackstream peek orders --url …  | ackstream enqueue copy
    """
    messages = from_json(source) if form == "json" else from_csv(source)
    count = 0
    with address.connect() as connection:
        connection.autocommit(False)
        try:
            with click.progressbar(messages, label=queue, file=sys.stderr, show_pos=True) as shown:
                rest = iter(shown)
                while some := list(itertools.islice(rest, batch)):
                    done = _insert(connection, queue, some)
                    if not all_or_none:
                        connection.commit()
                    count += done
            connection.commit()
        except BaseException:
            if count:
                click.echo(f"{0 if all_or_none else count} messages were enqueued before the error", err=True)
            raise
    click.echo(json.dumps({"enqueued": count}) if as_json else f"{count} messages were enqueued", err=not as_json)
