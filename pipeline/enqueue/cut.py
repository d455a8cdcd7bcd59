"""How a batch is cut into slices, each written in one transaction: by the files its rows come from, or by their hashes.

A slice must be the same messages in each run of a batch, whatever the cluster, its load and the settings are then.
There are two ways to that:

- *By files*, where nothing stands between the files and us but projections and filters: a slice is a partition of the
  scan, a row's place in it the number of the row. Nothing is moved and nothing sorted. How Spark cuts files depends on
  their lengths, on the order in which the file system lists them and on four settings. The settings are ours, and the
  one that matters is kept in the ledger. Partition and place are part of what the batch is known by again.
- *By hash*, for all else: a slice is the rows whose hash falls into one range, and their order is that of the hashes.
  It takes a shuffle and a sort, and does not care where the rows come from and in which order.

Which way a batch goes is settled when it is begun. What the two have in common is `Cut`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.enqueue.fingerprint import ORDER, Checksum, Version
from pipeline.enqueue.mapping import Mapped

PIECES_MAX: Final = 4096
"""As many as a batch has slices at most. All of their aggregates are a few hundred kilobytes on the driver."""

PIECE: Final = "ackstream_piece"
SLICE: Final = "ackstream_slice"
PLACE: Final = "ackstream_place"

ROWS_OF_A_PARTITION: Final = 2**33
"""Spark's monotonically_increasing_id counts rows below this, and partitions above."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is known of some rows: of a slice, or of a part of one."""

    rows: int
    checksum: Checksum
    """What tells them from any other rows (`fingerprint`)."""
    octets: int
    first_id: Any = None
    """Of the first row, if the data has ids."""
    first_time: int | None = None
    """The same row's time_next, if the data has it."""


class Cut(Protocol):
    """How the rows of a batch are cut: first into pieces, which the check tells apart, and these make the slices."""

    @property
    def file_octets(self) -> int | None:
        """The size that files are cut into, as the ledger keeps it; None by hash."""

    @property
    def version(self) -> Version:
        """How its rows are known again."""

    @property
    def frame(self) -> DataFrame:
        """The mapped columns, and of each row the words of its checksum and its PIECE."""

    @property
    def pieces(self) -> int:
        """How many there are, those without rows included."""

    def first(self, value: Expression) -> Expression:
        """An aggregate over a piece: the value of its first row."""

    def count(self, slices: int) -> int:
        """How many slices there will be, if so many would be of the right size."""

    def slices(self, pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
        """The slices, of which there are `count`."""

    def sliced(self, slices: Sequence[Piece], wanted: Sequence[int], tasks: int | None) -> DataFrame:
        """The rows of the wanted slices, with SLICE, PLACE (from 0 on in each slice) and the words.

        A slice is in one partition, and of those there are `tasks` at most.
        """


# --- by hash ---


class ByHash:
    """The cut that does not ask where rows come from."""

    file_octets = None
    pieces = PIECES_MAX

    def __init__(self, mapped: Mapped, version: Version) -> None:
        self.version: Version = version
        ordered = mapped.frame.withColumn(ORDER, version.order(mapped.names))
        bucketed = ordered.withColumn(PIECE, _bucket(f.col(ORDER)))
        self.frame: DataFrame = version.words(bucketed, mapped.names, None)

    def first(self, value: Expression) -> Expression:
        """The row with the least hash. Of fixed length, as all aggregates here: so Spark hashes and does not sort."""
        return f.min_by(value, ORDER)

    def count(self, slices: int) -> int:
        """A power of two, since slices are made of buckets."""
        return int(min(PIECES_MAX, 1 << (slices - 1).bit_length()))

    def slices(self, pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
        """Neighbouring buckets put together."""
        size = PIECES_MAX // count
        return tuple(self._together(pieces[start : start + size]) for start in range(0, PIECES_MAX, size))

    def sliced(self, slices: Sequence[Piece], wanted: Sequence[int], tasks: int | None) -> DataFrame:
        """Slice s is in partition s modulo their number."""
        count = len(slices)
        frame = self.frame.withColumn(SLICE, (f.col(PIECE) / f.lit(PIECES_MAX // count)).cast("int"))
        frame = _only(frame, slices, wanted)
        partitions = min(count, tasks or count)
        frame = frame.repartitionById(partitions, f.col(SLICE) % partitions).sortWithinPartitions(ORDER)
        chosen = set(wanted)
        counts = [piece.rows if number in chosen else 0 for number, piece in enumerate(slices)]
        return frame.withColumn(PLACE, _row() - looked_up(_starts(counts, partitions), f.col(SLICE)))

    def _together(self, pieces: Sequence[Piece]) -> Piece:
        first = next((piece for piece in pieces if piece.rows), None)
        return Piece(
            sum(piece.rows for piece in pieces),
            self.version.together(piece.checksum for piece in pieces),
            sum(piece.octets for piece in pieces),
            first.first_id if first else None,
            first.first_time if first else None,
        )


def _bucket(value: Expression) -> Expression:
    """The bucket of a hash: its highest bits, so that the order of hashes is that of buckets, too."""
    return f.shiftright(value, 64 - PIECES_MAX.bit_length() + 1).cast("int") + f.lit(PIECES_MAX // 2)


def _starts(counts: Sequence[int], partitions: int) -> list[int]:
    """How many rows stand before each slice in its partition, where slice s is in partition s modulo `partitions`."""
    found: list[int] = []
    totals = [0] * partitions
    for number, count in enumerate(counts):
        found.append(totals[number % partitions])
        totals[number % partitions] += count
    return found


# --- by files ---

NARROW: Final = frozenset({"ColumnarToRowExec", "FilterExec", "InputAdapter", "ProjectExec", "WholeStageCodegenExec"})
"""What keeps rows in their partitions and their order. What is not known is cut by hash."""

ROW_OCTETS: Final = 128
"""Of a short message in a file. Longer ones are cut by their size, and files that are compressed give longer slices."""

_cutting = threading.Lock()


def file_octets(slice_rows: int, slice_octets: int) -> int:
    """Into how large pieces files are cut: compressed data is several times as large on the wire."""
    return max(1, min(slice_octets // 4, slice_rows * ROW_OCTETS))


class ByFiles:
    """The cut along the partitions of a scan."""

    def __init__(self, rows: DataFrame, mapped: Mapped, pieces: int, file_octets: int, version: Version) -> None:
        self.version: Version = version
        self.file_octets: int = file_octets
        self.pieces = pieces
        # Where a row stands is in its words, so that the same rows in another order are other data.
        numbered = rows.withColumn(PIECE, f.spark_partition_id()).withColumn(PLACE, _row())
        self.frame: DataFrame = version.words(numbered, mapped.names, PLACE)

    def first(self, value: Expression) -> Expression:
        """The row in the first place."""
        return f.min_by(value, PLACE)

    def count(self, slices: int) -> int:
        """As many as there are."""
        return self.pieces

    def slices(self, pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
        """The pieces themselves."""
        assert len(pieces) == count  # or else the fingerprint would be another one
        return tuple(pieces)

    def sliced(self, slices: Sequence[Piece], wanted: Sequence[int], tasks: int | None) -> DataFrame:
        """Numbered before partitions are put together, and all of them read for whichever are wanted."""
        frame = _only(self.frame.withColumnRenamed(PIECE, SLICE), slices, wanted)
        return frame if tasks is None or tasks >= self.pieces else frame.coalesce(tasks)


def by_files(mapped: Mapped, file_octets: int, version: Version) -> ByFiles | None:
    """The cut into partitions of about so many bytes of the files, if that is possible.

    The partitions are settled here, once: what is checked and what is written are the same RDD, whatever becomes of the
    session's settings meanwhile.
    """
    frame = mapped.frame.select("*")  # with a plan of its own, which nobody has carried out under other settings
    execution: Any = frame._jdf.queryExecution()  # noqa: SLF001 (there is no other way to ask)
    plan = execution.executedPlan()
    while (kind := plan.getClass().getSimpleName()) in NARROW:
        plan = plan.children().head()
    if kind != "FileSourceScanExec" or plan.bucketedScan():
        return None
    settings = {
        "spark.sql.files.maxPartitionBytes": file_octets,
        "spark.sql.files.openCostInBytes": file_octets // 4,
        # Without it, the number of cores decides.
        "spark.sql.files.minPartitionNum": 1,
        # Where there would be more, Spark fills pieces one after another up to the mean: each two are more than that.
        "spark.sql.files.maxPartitionNum": PIECES_MAX // 2,
    }
    with _cutting, _set(plan.relation().sparkSession().sessionState().conf(), settings):
        cut = execution.toRdd()
        pieces = cut.getNumPartitions()
    spark = frame.sparkSession
    session: Any = spark._jsparkSession  # noqa: SLF001
    rows = DataFrame(session.internalCreateDataFrame(cut, frame._jdf.schema(), False), spark)  # noqa: SLF001
    return ByFiles(rows, mapped, pieces, file_octets, version)


@contextmanager
def _set(conf: Any, settings: Mapping[str, int]) -> Iterator[None]:
    """Settings of a session for a moment. A plan that another thread makes meanwhile is cut in the same way."""
    before = {name: conf.getConfString(name) for name in settings if conf.contains(name)}
    try:
        for name, value in settings.items():
            conf.setConfString(name, str(value))
        yield
    finally:
        for name in settings:
            conf.setConfString(name, before[name]) if name in before else conf.unsetConf(name)


# --- both ---


def _row() -> Expression:
    """The number of a row in its partition."""
    return f.monotonically_increasing_id().bitwiseAND(f.lit(ROWS_OF_A_PARTITION - 1))


def _only(frame: DataFrame, slices: Sequence[Piece], wanted: Sequence[int]) -> DataFrame:
    """The rows of these slices."""
    if len(wanted) == sum(piece.rows > 0 for piece in slices):
        return frame
    return frame.where(f.col(SLICE).isin(list(wanted)))


def looked_up(values: Sequence[int], index: Expression) -> Expression:
    """The value at an index, of few enough values to travel with the plan."""
    return f.get(f.expr(f"array({', '.join(f'{value}L' for value in values)})"), index)
