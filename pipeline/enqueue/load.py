"""A batch that is being written: what both modes use of it, and the size of its slices.

A *slice* is written in one transaction. It has the same messages in each run of the batch, whatever
the cluster and the settings (`cut`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from ..common.ledger import Batch, Ledger
from ..common.table import Table
from ..common.tasks import can_exceed
from ..endpoint import Endpoint
from .checking import Check, Facts
from .cut import PIECES_MAX, Cut, Piece
from .mapping import Mapped, required_fillers

ROWS_OVER: Final = 10
"""By which factor a piece of a file may exceed a slice's rows. Rows cost a transaction little."""
OCTETS_OVER: Final = 1.5
"""By which factor it may exceed a slice's octets. Each row adds some on the wire, and replication
has a limit (`slice_octets`)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings for writing a batch."""

    max_connections: int = 16
    """Of the whole job: one of the driver, the others of tasks that write. Each takes a thread of
    the server."""
    slice_rows: int = 100_000
    """Rows of a slice: a transaction that a server commits in a second or two, and a task that is
    worth starting."""
    slice_octets: int = 64 * 1024 * 1024
    """Octets of a slice: well below replication's limit for a transaction (150 MB in a group)."""
    rounds: int = 4
    """How often missing slices are written again, after Spark has tried each task several times."""
    rejects_max: int = 10_000
    """Refused rows of a batch. With more the data as a whole is wrong."""
    check: Check = "all"
    """Which rows are compared with the table before anything is written. Without it the server alone refuses what
    does not fit, when some slices may be written, and changes some values silently."""
    look_s: float = 0.5
    """Between two checks of what has been committed."""

    @property
    def writers(self) -> int:
        """How many tasks can write at once."""
        return max(1, self.max_connections - 1)


@dataclass(frozen=True)
class Load:
    """A batch that was checked and recorded."""

    endpoint: Endpoint
    table: Table
    mapped: Mapped
    batch: Batch
    cut: Cut
    slices: tuple[Piece, ...]
    spread_ns: int | None
    settings: Settings
    rejects_max: int | None
    """How many rows that the server refuses are set aside. None: the first one ends the job."""

    @property
    def ledger(self) -> Ledger:
        """The ledger that it is in."""
        return Ledger(self.table)

    @property
    def fillers(self) -> dict[str, int]:
        """Values for the queue's own columns that neither the data nor the table fills."""
        return required_fillers(self.table, self.mapped.names)

    def sliced(self, wanted: Sequence[int]) -> DataFrame:
        """The rows of these slices, in no more partitions than connections may be open at once."""
        writers = self.settings.writers
        bounded = can_exceed(self.mapped.frame.sparkSession, writers)
        return self.cut.sliced(self.slices, wanted, writers if bounded else None)


def slices_wanted(facts: Facts, settings: Settings) -> int:
    """How many slices have the right size."""
    return max(-(-facts.rows // settings.slice_rows), -(-facts.octets // settings.slice_octets), 1)


def serves(facts: Facts, tasks: int, settings: Settings, cores: int) -> bool:
    """Whether the pieces of files can be slices: none too large, and in so many tasks that not half of
    them would be idle."""
    rows = max(settings.slice_rows, facts.rows / PIECES_MAX)
    octets = max(settings.slice_octets, facts.octets / PIECES_MAX)
    filled = [piece for piece in facts.pieces if piece.rows]
    busy = min(cores, settings.writers, slices_wanted(facts, settings))
    return (
        len(filled) <= PIECES_MAX
        and 2 * tasks >= min(busy, facts.rows)
        and all(piece.rows <= ROWS_OVER * rows and piece.octets <= OCTETS_OVER * octets for piece in filled)
    )


def rows_of(load: Load, slices: Sequence[int]) -> int:
    """How many messages these slices have."""
    return sum(load.slices[number].rows for number in slices)
