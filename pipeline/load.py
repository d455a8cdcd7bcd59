"""One batch on its way into a queue: what both modes know of it, and how its rows are cut into slices.

A *slice* is the rows whose hash falls into one range. Which rows those are depends on their values alone, so a slice is
the same set of messages in each run of the batch, whatever the cluster, the partitioning and the settings; duplicate
rows stay together. A slice is what is written in one transaction and what is or is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.checking import BUCKETS, HASH, Bucket, Facts, hashed, slice_of
from pipeline.endpoint import Endpoint
from pipeline.ledger import Batch, Ledger
from pipeline.mapping import Mapped, required_fillers
from pipeline.table import Table

SLICE: Final = "ackstream_slice"
ROW: Final = "ackstream_row"
ROWS_OF_A_PARTITION: Final = 2**33
"""Spark's monotonically_increasing_id counts rows below this, and partitions above."""

BATCH_OCTETS: Final = 4 * 1024 * 1024
"""Of one INSERT: beyond that it gets no cheaper, and four of them fit into the smallest default packet."""
BATCH_ROWS_MAX: Final = 5000


@dataclass(frozen=True, slots=True)
class Settings:
    """How a batch is carried out."""

    max_connections: int = 16
    """Of the whole job: one of the driver's, the others of tasks that write. Each takes a thread of the server."""
    slice_rows: int = 100_000
    """A transaction that a server commits in a second or two, and a task long enough to be worth starting."""
    slice_octets: int = 64 * 1024 * 1024
    """The same for long messages: well below what replication allows a transaction (150 MB in a group)."""
    rounds: int = 4
    """How often the tasks are begun again for slices that are missing, after each task was tried several times."""
    look_s: float = 0.5
    """Between looks at what has been committed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: `done` of `total` messages in this phase."""

    phase: str
    done: int
    total: int


@dataclass(frozen=True)
class Load:
    """A batch that was checked and written down."""

    endpoint: Endpoint
    table: Table
    mapped: Mapped
    batch: Batch
    slices: tuple[Bucket, ...]
    spread_ns: int | None
    settings: Settings
    jdbc: Mapping[str, str] = field(repr=False)

    @property
    def ledger(self) -> Ledger:
        """Where it is written down."""
        return Ledger(self.table)

    @property
    def fillers(self) -> dict[str, int]:
        """Columns of the queue's own that neither the data nor the table fills."""
        return required_fillers(self.table, self.mapped.names)

    def sliced(self, wanted: Sequence[int]) -> tuple[DataFrame, int]:
        """The rows of these slices, each slice in one partition and in a definite order there, and how many partitions.

        Slice s is in partition s modulo their number; `ROW` counts the rows of a partition.
        """
        count = len(self.slices)
        frame = hashed(self.mapped).withColumn(SLICE, slice_of(f.col(HASH), count))
        if len(wanted) < sum(each.rows > 0 for each in self.slices):
            frame = frame.where(f.col(SLICE).isin(list(wanted)))
        partitions = self._partitions(frame)
        frame = frame.repartitionById(partitions, f.col(SLICE) % partitions).sortWithinPartitions(HASH)
        row = f.monotonically_increasing_id().bitwiseAND(f.lit(ROWS_OF_A_PARTITION - 1))
        return frame.withColumn(ROW, row), partitions

    def _partitions(self, frame: DataFrame) -> int:
        """One a slice, unless more tasks than connections could run at once; then one a connection."""
        spark = frame.sparkSession
        writers = max(1, self.settings.max_connections - 1)
        growing = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        cores = spark.sparkContext.defaultParallelism
        return min(len(self.slices), writers) if growing or cores > writers else len(self.slices)

    def write(self, frame: DataFrame, table: str) -> None:
        """Append it by JDBC, one transaction a partition."""
        rows = max(1, self.batch.messages)
        octets = sum(each.octets for each in self.slices)
        batch_rows = min(BATCH_ROWS_MAX, max(1, BATCH_OCTETS * rows // max(1, octets)))
        writer = frame.write.format("jdbc").options(**self.jdbc)
        writer.option("dbtable", table).option("batchsize", batch_rows).option("isolationLevel", "READ_COMMITTED").mode(
            "append"
        ).save()


class Way(Protocol):
    """How slices get into the queue."""

    phase: str

    def prepare(self) -> None:
        """Make ready; safe to repeat, by a rerun too."""

    def look(self) -> tuple[int, ...]:
        """See what the tasks have committed, do what follows from it, and say which slices are missing."""

    def write(self, wanted: Sequence[int]) -> None:
        """Run the tasks that write these."""

    def finish(self, report: Callable[[Progress], None]) -> None:
        """All are there: end the batch."""


def slice_count(facts: Facts, settings: Settings) -> int:
    """A power of two, since slices are made of buckets."""
    wanted = max(-(-facts.rows // settings.slice_rows), -(-facts.octets // settings.slice_octets), 1)
    return int(min(BUCKETS, 1 << (wanted - 1).bit_length()))


def looked_up(values: Sequence[int], index: Expression) -> Expression:
    """The value at an index, of few enough values to travel with the plan."""
    return f.get(f.expr(f"array({', '.join(f'{value}L' for value in values)})"), index)


def rows_of(load: Load, slices: Sequence[int]) -> int:
    """How many messages these slices have."""
    return sum(load.slices[each].rows for each in slices)


def unused(_value: Any) -> None:
    """Reports to nobody."""
