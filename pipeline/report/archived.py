"""Rows that `ackstream-archive` has taken from a queue, with the columns of `history`.

An archive is read only while no run is under way. Then a chunk in its place is no longer in the
queue, and no message is counted twice, except one that was redriven after it was archived and so
ended twice. The list of chunks is read before the queue. Messages that are archived while the queue
is read may be in neither, so the report then notes that it is incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..archive.job import MESSAGES, RUNS
from ..common.files import Files
from ..common.table import Column, Table
from ..endpoint import quoted
from ..errors import PipelineError

WRITTEN_DIFFERENTLY: Final = frozenset({"float", "double", "datetime", "timestamp"})
"""Types whose values the server and Spark write as different texts."""


@dataclass(frozen=True)
class Archive:
    """The chunks of an archive at one moment."""

    files: Files
    runs: frozenset[str]
    chunks: tuple[str, ...] = field(repr=False)

    @classmethod
    def at(cls, spark: SparkSession, place: str, table: Table) -> Archive:
        """List an archive's folder. Raises PipelineError."""
        files = Files(spark, place)
        runs = frozenset(files.names(RUNS))
        begun = sorted(name.removesuffix(".json") for name in runs if name.endswith(".json"))
        if not begun:
            raise PipelineError(f"{place} is no archive of ackstream-archive")
        of = json.loads(files.read(f"{RUNS}/{begun[-1]}.json"))["table"]
        if of != table.quoted:
            raise PipelineError(f"{place} is the archive of {of}, not of {table.quoted}")
        if any(f"{run}.done" not in runs for run in begun):
            raise PipelineError(
                f"a run of ackstream-archive to {place} is under way, or was stopped: let it end, or run it again"
            )
        return cls(files, runs, tuple(sorted(name for name in files.names(MESSAGES) if "=" in name)))

    @property
    def has_changed(self) -> bool:
        """Whether more has been archived since."""
        return frozenset(self.files.names(RUNS)) != self.runs

    def rows(self, spark: SparkSession, table: Table) -> DataFrame:
        """The archived rows; needs at least one chunk. Columns that were added later are NULL in
        older chunks."""
        places = [self.files.path(f"{MESSAGES}/{chunk}") for chunk in self.chunks]
        options = {"basePath": self.files.path(MESSAGES), "mergeSchema": "true"}
        found = spark.read.options(**options).parquet(*places)
        there = {name.casefold() for name in found.columns}
        added = [column for column in table.columns if column.name.casefold() not in there]
        return found.withColumns({column.name: f.lit(None).cast(column.spark_type) for column in added})


def problems(table: Table, by: Sequence[str]) -> list[str]:
    """Columns to group by whose values would have another text in the archive than in the queue."""
    columns = (table.by_name.get(name.casefold()) for name in by)
    return [
        f"{column.name} is {column.column_type}, whose values are not written alike in the queue and in its archive"
        for column in columns
        if column is not None and column.data_type in WRITTEN_DIFFERENTLY
    ]


def nanoseconds(column: Column) -> Expression:
    """A time of the application as nanoseconds since 1970; without a zone it is in UTC."""
    value = f.col(quoted(column.name))
    if column.data_type == "bigint":
        return value.cast("bigint")
    if column.data_type == "datetime":
        # A cast alone would read it in the session's time zone.
        value = f.concat(value.cast("string"), f.lit("Z")).cast("timestamp")
    return f.unix_micros(value) * 1_000


def text(column: Column, length: int) -> Expression:
    """A value to group by, as the server's text."""
    value = f.col(quoted(column.name))
    value = f.hex(value) if column.spark_type == t.BinaryType() else value.cast("string")
    return f.substring(value, 1, length)


def forms(table: Table, by: Sequence[str], created: str | None, due: str | None, length: int) -> dict[str, Expression]:
    """The columns of `history` as expressions over archived rows."""
    nothing = f.lit(None).cast("bigint")

    def form(name: str | None, make: Callable[[Column], Expression]) -> Expression:
        column = table.by_name.get((name or "").casefold())
        return nothing if column is None else make(column)

    return {
        "epoch": f.col("epoch").cast("bigint"),
        "time_next": nothing,
        "time_acked": f.col("time_acked").cast("bigint"),
        "created": form(created, nanoseconds),
        "due": form(due, nanoseconds),
        **{f"by_{number}": form(name, lambda column: text(column, length)) for number, name in enumerate(by)},
    }
