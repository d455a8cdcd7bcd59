"""Cuts a batch into slices, each written in one transaction: by the files its rows come from, or by
their hashes.

A slice must have the same messages in each run of a batch, whatever the cluster, its load and the
settings are then. There are two ways:

- *By files*, if only projections and filters come after the scan of the files: a slice is a chunk
  of a partition of the scan: rows one after another. Nothing is shuffled or sorted. How
  Spark cuts files depends on their lengths, on the order in which the file system lists them, and
  on four settings. The settings are set here, and the one that varies is kept in the ledger.
  Partition and place are part of the batch's fingerprint.
- *By hash*, for all else: a slice is the rows whose hashes fall into one range, in the order of the
  hashes. It takes a shuffle and a sort, and does not depend on where the rows come from and in
  which order.

The way is decided when a batch is begun. A cut's `frame` has the mapped columns and for each row
the words of its checksum and its PIECE. Pieces are checked one by one, and `numbers` are all there
are, those without rows included.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ..common.staging import PLACE, SLICE
from .fingerprint import ORDER, Checksum, Sums
from .mapping import Mapped

PIECES_MAX: Final = 4096
"""Pieces of a batch, and so its slices, at most. Their aggregates take a few hundred kilobytes on
the driver."""

PIECE: Final = "ackstream_piece"

ROWS_OF_A_PARTITION: Final = 2**33
"""Spark's monotonically_increasing_id counts rows below this, and partitions above. So do the numbers
of pieces of files, with chunks instead of rows."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The aggregates of some rows: of a slice, or of a part of one."""

    rows: int
    checksum: Checksum
    """Differs from that of any other rows (`fingerprint`)."""
    octets: int
    number: int = 0
    """Its PIECE."""


# --- by hash ---


class ByHash:
    """The cut by hash, which does not depend on where rows come from."""

    file_octets = None

    def __init__(self, mapped: Mapped, sums: Sums) -> None:
        self.sums: Sums = sums
        ordered = mapped.frame.withColumn(ORDER, sums.order(mapped.names))
        bucketed = ordered.withColumn(PIECE, _bucket(f.col(ORDER)))
        self.frame: DataFrame = sums.words(bucketed, mapped.names, None)

    def numbers(self, found: Iterable[int]) -> Sequence[int]:
        """The numbers of all pieces. `found`: of those that have rows."""
        return range(PIECES_MAX)

    def tasks(self, pieces: Sequence[Piece]) -> int:
        """How many tasks can write pieces at once."""
        return sum(piece.rows > 0 for piece in pieces)

    def count(self, slices: int, pieces: Sequence[Piece]) -> int:
        """The number of slices, if `slices` of them would have the right size: a power of two,
        because each has the same number of buckets."""
        return int(min(PIECES_MAX, 1 << (slices - 1).bit_length()))

    def slices(self, pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
        """The `count` slices: neighbouring buckets joined."""
        size = PIECES_MAX // count
        return tuple(_together(self.sums, pieces[start : start + size]) for start in range(0, PIECES_MAX, size))

    def sliced(self, slices: Sequence[Piece], wanted: Sequence[int], tasks: int | None) -> DataFrame:
        """The rows of the wanted slices, with SLICE, PLACE (from 0 on in each slice) and the words,
        one slice after another in at most `tasks` partitions: slice s in partition s modulo their
        number."""
        count = len(slices)
        frame = self.frame.withColumn(SLICE, (f.col(PIECE) / f.lit(PIECES_MAX // count)).cast("int"))
        frame = _only(frame, slices, wanted)
        partitions = min(count, tasks or count)
        frame = frame.repartitionById(partitions, f.col(SLICE) % partitions).sortWithinPartitions(ORDER)
        chosen = set(wanted)
        counts = [piece.rows if number in chosen else 0 for number, piece in enumerate(slices)]
        return frame.withColumn(PLACE, _row() - looked_up(_starts(counts, partitions), f.col(SLICE)))


def _bucket(value: Expression) -> Expression:
    """The bucket of a hash: its highest bits, so buckets have the order of the hashes."""
    return f.shiftright(value, 64 - PIECES_MAX.bit_length() + 1).cast("int") + f.lit(PIECES_MAX // 2)


def _starts(counts: Sequence[int], partitions: int) -> list[int]:
    """How many rows come before each slice in its partition, if slice s is in partition s modulo
    `partitions`."""
    found: list[int] = []
    totals = [0] * partitions
    for number, count in enumerate(counts):
        found.append(totals[number % partitions])
        totals[number % partitions] += count
    return found


# --- by files ---

NARROW: Final = frozenset({"ColumnarToRowExec", "FilterExec", "InputAdapter", "ProjectExec", "WholeStageCodegenExec"})
"""Nodes of a plan that keep rows in their partitions and their order. With any other node the data
is cut by hash."""

ROW_OCTETS: Final = 128
"""The size of a short message in a file. Longer ones are cut by their size. Compressed files give
longer slices."""

_cutting = threading.Lock()


def file_octets(slice_rows: int, slice_octets: int) -> int:
    """The size of the pieces that files are cut into. Compressed data is several times as large on
    the wire."""
    return max(1, min(slice_octets // 4, slice_rows * ROW_OCTETS))


class ByFiles:
    """The cut along the partitions of a scan, and within them by the number of rows: a file may have
    parts of any length that only one task can read."""

    def __init__(self, rows: DataFrame, mapped: Mapped, partitions: int, file_octets: int, sums: Sums) -> None:
        self.sums: Sums = sums
        self.file_octets: int = file_octets
        self.partitions = partitions
        # A row's words include its place, so the same rows in another order are other data.
        number = f.spark_partition_id() * f.lit(ROWS_OF_A_PARTITION) + _chunk(sums.chunk_rows)
        numbered = rows.withColumn(PLACE, _row()).withColumn(PIECE, number)
        self.frame: DataFrame = sums.words(numbered, mapped.names, PLACE)
        self._slice_rows = sums.chunk_rows

    def numbers(self, found: Iterable[int]) -> Sequence[int]:
        """The numbers of all pieces: each partition has at least one."""
        return sorted({partition * ROWS_OF_A_PARTITION for partition in range(self.partitions)} | set(found))

    def tasks(self, pieces: Sequence[Piece]) -> int:
        """How many tasks can write pieces at once."""
        return len({piece.number // ROWS_OF_A_PARTITION for piece in pieces if piece.rows})

    def count(self, slices: int, pieces: Sequence[Piece]) -> int:
        """The number of slices: the pieces, or neighbours of a partition joined if there are more than
        PIECES_MAX."""
        return len(_joined(pieces, self._factor(pieces)))

    def slices(self, pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
        """The `count` slices."""
        factor = self._factor(pieces)
        self._slice_rows = self.sums.chunk_rows * factor
        joined = _joined(pieces, factor)
        assert len(joined) == count  # else the fingerprint would differ
        return tuple(_together(self.sums, some, number) for number, some in joined.items())

    def sliced(self, slices: Sequence[Piece], wanted: Sequence[int], tasks: int | None) -> DataFrame:
        """The rows of the wanted slices. Rows are numbered before partitions are joined. All files are read, whichever
        slices are wanted."""
        firsts = [number for number, piece in enumerate(slices) if piece.number % ROWS_OF_A_PARTITION == 0]
        partition = f.floor(f.col(PIECE) / f.lit(ROWS_OF_A_PARTITION))
        slice_number = looked_up(firsts, partition) + _chunk(self._slice_rows)
        frame = self.frame.withColumn(SLICE, slice_number.cast("int"))
        frame = frame.withColumn(PLACE, f.col(PLACE) % f.lit(self._slice_rows))
        frame = _only(frame, slices, wanted)
        return frame if tasks is None or tasks >= self.partitions else frame.coalesce(tasks)

    def _factor(self, pieces: Sequence[Piece]) -> int:
        """How many pieces of a partition make a slice, a power of two. It follows from the data alone."""
        factor = 1
        while len(_joined(pieces, factor)) > max(PIECES_MAX, self.partitions):
            factor *= 2
        return factor


def _chunk(rows: int) -> Expression:
    """The number of a row's chunk of so many rows in its partition."""
    return f.floor(f.col(PLACE) / f.lit(rows))


def _joined(pieces: Sequence[Piece], factor: int) -> dict[int, list[Piece]]:
    """The pieces of each slice, by its number: those of `factor` neighbouring chunks of a partition."""
    joined: dict[int, list[Piece]] = {}
    for piece in pieces:
        partition, chunk = divmod(piece.number, ROWS_OF_A_PARTITION)
        joined.setdefault(partition * ROWS_OF_A_PARTITION + chunk // factor, []).append(piece)
    return joined


Cut = ByHash | ByFiles


def by_files(mapped: Mapped, file_octets: int, sums: Sums) -> ByFiles | None:
    """The cut into partitions of about `file_octets` bytes of the files; None if the data cannot be
    cut so.

    The partitions are determined here, once. The same RDD is checked and written, even if the
    session's settings change meanwhile.
    """
    frame = mapped.frame.select("*")  # with a plan of its own, which was not executed with other settings
    execution: Any = frame._jdf.queryExecution()  # noqa: SLF001 (there is no other way to ask)
    plan = execution.executedPlan()
    while (kind := plan.getClass().getSimpleName()) in NARROW:
        plan = plan.children().head()
    if kind != "FileSourceScanExec" or plan.bucketedScan():
        return None
    settings = {
        "spark.sql.files.maxPartitionBytes": file_octets,
        "spark.sql.files.openCostInBytes": file_octets // 4,
        # Without it, the number of partitions depends on the cores.
        "spark.sql.files.minPartitionNum": 1,
        # With more, Spark fills pieces one after another up to the mean, and any two are larger
        # than that.
        "spark.sql.files.maxPartitionNum": PIECES_MAX // 2,
    }
    with _cutting, _set(plan.relation().sparkSession().sessionState().conf(), settings):
        cut = execution.toRdd()
        partitions = cut.getNumPartitions()
    spark = frame.sparkSession
    session: Any = spark._jsparkSession  # noqa: SLF001
    rows = DataFrame(session.internalCreateDataFrame(cut, frame._jdf.schema(), False), spark)  # noqa: SLF001
    return ByFiles(rows, mapped, partitions, file_octets, sums)


@contextmanager
def _set(conf: Any, settings: Mapping[str, int]) -> Iterator[None]:
    """Sets settings of a session for a moment. A plan that another thread makes meanwhile is cut in
    the same way."""
    before = {name: conf.getConfString(name) for name in settings if conf.contains(name)}
    try:
        for name, value in settings.items():
            conf.setConfString(name, str(value))
        yield
    finally:
        for name in settings:
            conf.setConfString(name, before[name]) if name in before else conf.unsetConf(name)


# --- both ---


def _together(sums: Sums, pieces: Sequence[Piece], number: int = 0) -> Piece:
    """Several pieces as one."""
    return Piece(
        sum(piece.rows for piece in pieces),
        sums.together(piece.checksum for piece in pieces),
        sum(piece.octets for piece in pieces),
        number,
    )


def _row() -> Expression:
    """The number of a row in its partition."""
    return f.monotonically_increasing_id().bitwiseAND(f.lit(ROWS_OF_A_PARTITION - 1))


def _only(frame: DataFrame, slices: Sequence[Piece], wanted: Sequence[int]) -> DataFrame:
    """The rows of these slices."""
    if len(wanted) == sum(piece.rows > 0 for piece in slices):
        return frame
    return frame.where(f.col(SLICE).isin(list(wanted)))


def looked_up(values: Sequence[int], index: Expression) -> Expression:
    """The value at an index. The values are part of the plan, so they must be few."""
    return f.get(f.expr(f"array({', '.join(f'{value}L' for value in values)})"), index)
