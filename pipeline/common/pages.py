"""Reads tables on executors: ranges of ids, page after page along the key, so the server sorts nothing
and a lost connection costs one page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..endpoint import Endpoint
from ..errors import PipelineError, without_traceback
from .connection import LazyConnection
from .ranges import Range
from .rows import FIRST_READ, lost, next_size, record_batch
from .statements import Row, Statements, fetching

PAGE_ROWS = 20_000
"""Of one page, at most: a task has some ten megabytes of short rows."""


@dataclass(frozen=True)
class Pages:
    """The rows of a table that meet a condition, in ranges of ids."""

    endpoint: Endpoint
    statements: Statements
    what: str
    """The columns in SQL, for those of `schema`."""
    schema: StructType
    condition: str = "TRUE"

    def of(self, ranges: Iterable[Range]) -> Iterator[tuple[pa.RecordBatch, tuple[Row, ...]]]:
        """Each page, and its rows as text with their ids behind them."""
        connection = LazyConnection(self.endpoint)
        for ids in ranges:
            last, size = ids.after, FIRST_READ
            rows: tuple[Row, ...] = ((),)
            while rows:
                page = self.statements.page(self.what, self.condition, last, ids.until, size)
                rows = connection.run(fetching(page))
                if rows:
                    last = self.statements.id_of(rows[-1][-1])
                    yield record_batch([row[:-1] for row in rows], self.schema), rows
                    size = next_size(size, rows, PAGE_ROWS)
        connection.close()


@dataclass(frozen=True)
class PagesReader(DataSourceReader):
    """What Spark calls for `read_pages`."""

    pages: Pages
    shares: Sequence[Sequence[Range]]
    exact: bool

    def partitions(self) -> list[InputPartition]:
        """One task for each share of the ranges."""
        return [InputPartition(share) for share in self.shares if share]

    @without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        for batch, rows in self.pages.of(partition.value):
            if self.exact and (found := lost(rows, batch)):
                number, column = found
                value = rows[number][self.pages.schema.names.index(column)]
                raise PipelineError(
                    f"message {rows[number][-1]!r} has {value!r} in {column}, which is no day and which Parquet cannot"
                    " hold: correct it or delete the message, and run this again"
                )
            yield batch


def read_pages(
    spark: SparkSession, pages: Pages, shares: Sequence[Sequence[Range]], *, exact: bool = False
) -> DataFrame:
    """The rows of these ranges, each share read by one task. `exact`: a value that Spark cannot have is
    an error, and not NULL."""
    name = "ackstream_pages"
    reader = PagesReader(pages, shares, exact)

    class Source(DataSource):
        """A local class, which Spark pickles by value: the reader differs from call to call."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return reader.pages.schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return reader

    spark.dataSource.register(Source)
    return spark.read.format(name).load()
