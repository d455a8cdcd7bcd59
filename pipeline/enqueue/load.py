"""One batch on its way into a queue: what both modes know of it, and how its slices are sized.

A *slice* is what is written in one transaction and what is or is not there yet: the same set of messages in each run of
the batch, whatever the cluster and the settings (`cut`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame

from pipeline.common.progress import Progress
from pipeline.common.table import Table
from pipeline.common.tasks import can_exceed
from pipeline.endpoint import Endpoint
from pipeline.enqueue.checking import Facts
from pipeline.enqueue.cut import PIECES_MAX, Cut, Piece
from pipeline.enqueue.ledger import Batch, Ledger, Reject
from pipeline.enqueue.mapping import Mapped, required_fillers
from pipeline.errors import JobError

BATCH_OCTETS: Final = 4 * 1024 * 1024
"""Of one INSERT: beyond that it gets no cheaper, and four of them fit into the smallest default packet."""
BATCH_ROWS_MAX: Final = 5000

ROWS_OVER: Final = 10
"""How many times the rows that a slice should have a file's piece may have: rows cost a transaction little."""
OCTETS_OVER: Final = 1.5
"""The same of octets: what goes with each row on the wire comes to it, and groups have a limit (`slice_octets`)."""


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
    rejects_max: int = 10_000
    """Of a batch: each costs the server some twenty statements, and beyond it the data is wrong, not its rows."""
    look_s: float = 0.5
    """Between looks at what has been committed."""

    @property
    def writers(self) -> int:
        """How many tasks can write at once."""
        return max(1, self.max_connections - 1)


@dataclass(frozen=True)
class Load:
    """A batch that was checked and written down."""

    endpoint: Endpoint
    table: Table
    mapped: Mapped
    batch: Batch
    cut: Cut
    slices: tuple[Piece, ...]
    spread_ns: int | None
    settings: Settings
    jdbc: Mapping[str, str] = field(repr=False)
    sets_aside: bool = False
    """Rows that the server refuses are set aside, where without it they end the job."""

    @property
    def ledger(self) -> Ledger:
        """Where it is written down."""
        return Ledger(self.table)

    @property
    def fillers(self) -> dict[str, int]:
        """Columns of the queue's own that neither the data nor the table fills."""
        return required_fillers(self.table, self.mapped.names)

    def refuse(self, cursor: Any, number: int) -> Callable[[int, int, str], None]:
        """What sets a row of a slice aside, in the cursor's transaction. It raises JobError when they are too many."""
        name, most = self.batch.name, self.settings.rejects_max
        already = len(self.ledger.rejects(cursor.connection, name))

        def refuse(place: int, code: int, reason: str) -> None:
            nonlocal already
            already += 1
            if already > most:
                raise JobError(
                    f"the server refuses more than {most:,} rows, the last one with: {reason}. Make the data fit, or"
                    " allow more by --rejects-max, and run this again"
                )
            self.ledger.reject(cursor, name, Reject(number, place, code, reason))

        return refuse

    def sliced(self, wanted: Sequence[int]) -> DataFrame:
        """The rows of these slices, as the cut has them; no more partitions than connections may be open at once."""
        writers = self.settings.writers
        bounded = can_exceed(self.mapped.frame.sparkSession, writers)
        return self.cut.sliced(self.slices, wanted, writers if bounded else None)

    def write(self, frame: DataFrame, table: str) -> None:
        """Append it by JDBC, one transaction a partition."""
        rows = max(1, self.batch.messages)
        octets = sum(piece.octets for piece in self.slices)
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

    def finish(self, report: Callable[[Progress], None]) -> bool:
        """All are there: end the batch, unless another run has done it; whether it was this one."""


def slices_wanted(facts: Facts, settings: Settings) -> int:
    """How many slices are of the right size."""
    return max(-(-facts.rows // settings.slice_rows), -(-facts.octets // settings.slice_octets), 1)


def serves(facts: Facts, settings: Settings, cores: int) -> bool:
    """Whether the pieces of files make slices: none too large, and not so few that half of the tasks would idle."""
    rows = max(settings.slice_rows, facts.rows / PIECES_MAX)
    octets = max(settings.slice_octets, facts.octets / PIECES_MAX)
    filled = [piece for piece in facts.pieces if piece.rows]
    busy = min(cores, settings.writers, slices_wanted(facts, settings))
    return 2 * len(filled) >= min(busy, facts.rows) and all(
        piece.rows <= ROWS_OVER * rows and piece.octets <= OCTETS_OVER * octets for piece in filled
    )


def rows_of(load: Load, slices: Sequence[int]) -> int:
    """How many messages these slices have."""
    return sum(load.slices[number].rows for number in slices)
