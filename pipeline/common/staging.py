"""Staging tables: rows wait there, on the server, until one transaction makes messages of them.

Whatever writes more than one transaction can hold, or with tasks that may run twice, does three
steps: tasks *stage* rows, the driver *publishes* them by INSERT … SELECT, and in the same
transaction records that in the *ledger*. A row's key is its slice and its place there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..endpoint import quoted, quoted_list
from .ledger import STAGING, Batch, staging_name
from .table import Table

SLICE: Final = "ackstream_slice"
PLACE: Final = "ackstream_place"

KEY: Final = f"{SLICE} BIGINT NOT NULL DEFAULT 0, {PLACE} BIGINT NOT NULL DEFAULT 0, PRIMARY KEY ({SLICE}, {PLACE})"
"""The columns that each staging table has. (The defaults are for CREATE … SELECT.)"""


def publish(staging: str, queue: Table, values: Mapping[str, str], number: int, places: range | None = None) -> str:
    """The statement that makes messages of rows of a slice, by default all.

    `values`: columns of the queue, and what they get, in SQL over the staging table's.
    """
    return (
        f"INSERT INTO {queue.quoted} ({quoted_list(list(values))}) SELECT {', '.join(values.values())}"
        f" FROM {staging} WHERE {within(number, places)} ORDER BY {PLACE}"
    )


def within(number: int, places: range | None = None) -> str:
    """The condition for the rows of a slice, or those in some places of it."""
    some = "" if places is None else f" AND {PLACE} BETWEEN {places[0]} AND {places[-1]}"
    return f"{SLICE} = {number}{some}"


def staging_tables(connection: Any, database: str) -> list[str]:
    """The names of all staging tables in a database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, %s) = %s",
            [database, len(STAGING), STAGING],
        )
        return [name.decode() if isinstance(name, bytes) else name for (name,) in cursor.fetchall()]


def drop_staging(connection: Any, queue: Table, batch: Batch) -> None:
    """Drop all staging tables of a batch."""
    for name in staging_tables(connection, queue.database):
        if name.startswith(staging_name(queue.name, batch)):
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE IF EXISTS {quoted(queue.database, name)}")
