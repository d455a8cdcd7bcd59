"""Rows that `ackstream-archive` has taken from a queue, in the form of pipeline.report.history.

Only an archive with no run under way is read: there, what is in place is no longer in the queue, so no message is
counted twice, but for one that was redriven after it was archived and so ended twice. What is in place is settled
before the queue is read, and what is archived while it is read may be in neither; such a reading says so.
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

from pipeline.archive.files import Files
from pipeline.archive.job import MESSAGES, RUNS
from pipeline.common.table import Column, Table
from pipeline.endpoint import quoted
from pipeline.errors import PipelineError

WRITTEN_DIFFERENTLY: Final = frozenset({"float", "double", "datetime", "timestamp"})
"""Types of which server and Spark do not write a value as the same text."""


@dataclass(frozen=True)
class Archive:
    """What was in place when this was made."""

    files: Files
    runs: frozenset[str]
    chunks: tuple[str, ...] = field(repr=False)

    @classmethod
    def at(cls, spark: SparkSession, place: str, table: Table) -> Archive:
        """Look at an archive's folder. Raises PipelineError."""
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
        """Whether more was archived since."""
        return frozenset(self.files.names(RUNS)) != self.runs

    def rows(self, spark: SparkSession, table: Table) -> DataFrame:
        """As they were archived, if there is a chunk at all. Columns that were added later are NULL in older ones."""
        places = [self.files.path(f"{MESSAGES}/{chunk}") for chunk in self.chunks]
        options = {"basePath": self.files.path(MESSAGES), "mergeSchema": "true"}
        found = spark.read.options(**options).parquet(*places)
        there = {name.casefold() for name in found.columns}
        added = [column for column in table.columns if column.name.casefold() not in there]
        return found.withColumns({column.name: f.lit(None).cast(column.spark_type) for column in added})


def problems(table: Table, by: Sequence[str]) -> list[str]:
    """Columns whose archived values would not be told to be the same as the queue's."""
    columns = (table.by_name.get(name.casefold()) for name in by)
    return [
        f"{column.name} is {column.column_type}, whose values are not written alike in the queue and in its archive"
        for column in columns
        if column is not None and column.data_type in WRITTEN_DIFFERENTLY
    ]


def nanoseconds(column: Column) -> Expression:
    """A time of the application's; without a zone it is UTC."""
    value = f.col(quoted(column.name))
    if column.data_type == "bigint":
        return value.cast("bigint")
    if column.data_type == "datetime":
        # A cast would take it for a time in the session's zone.
        value = f.concat(value.cast("string"), f.lit("Z")).cast("timestamp")
    return f.unix_micros(value) * 1_000


def text(column: Column, length: int) -> Expression:
    """A value to group by, as the server writes it."""
    value = f.col(quoted(column.name))
    value = f.hex(value) if column.spark_type == t.BinaryType() else value.cast("string")
    return f.substring(value, 1, length)


def forms(table: Table, by: Sequence[str], created: str | None, due: str | None, length: int) -> dict[str, Expression]:
    """The columns of pipeline.report.history over archived rows."""
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
