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
from .columns import Columns, reading
from .connection import LazyConnection
from .ranges import Range
from .rows import FIRST_READ, lost, next_size, record_batch
from .statements import Statements

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

    def of(self, ranges: Iterable[Range]) -> Iterator[tuple[pa.RecordBatch, Columns]]:
        """Each page, and its columns as the server sent them with the ids behind them."""
        connection = LazyConnection(self.endpoint)
        size = FIRST_READ
        for ids in ranges:
            last = ids.after
            while True:
                page = self.statements.page(self.what, self.condition, last, ids.until, size)
                *columns, keys = connection.run(reading(page))
                if not keys:
                    break
                yield record_batch(columns, self.schema), (*columns, keys)
                last = self.statements.id_of(keys[-1])
                size = next_size(size, (*columns, keys), PAGE_ROWS)
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
        for batch, columns in self.pages.of(partition.value):
            if self.exact and (found := lost(columns, batch)):
                column, row = found
                key = self.pages.statements.id_of(columns[-1][row])
                value = (columns[column][row] or b"").decode()
                raise PipelineError(
                    f"message {key!r} has {value!r} in {self.pages.schema.names[column]}, which is no day and which"
                    " Parquet cannot hold: correct it or delete the message, and run this again"
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
