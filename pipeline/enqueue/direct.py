"""Streaming mode: tasks write slices straight into the queue, and their messages are delivered at
once.

The ledger has a row for each slice, and a task's transaction (`common.slices`) changes it. So a
slice is in the queue once, whether tasks run twice, drivers die, or another run of the batch writes
the same slice at the same time. With rejects, tasks set refused rows aside in this transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ..common.progress import Progress
from ..common.slices import SIFTING, Target, write_slices
from ..common.staging import PLACE, SLICE
from ..endpoint import quoted
from .cut import looked_up
from .load import Load


class Direct:
    """Writes the slices of a batch into the queue."""

    phase = "enqueueing"

    def __init__(self, load: Load) -> None:
        self._load = load
        self._filled = [number for number, piece in enumerate(load.slices) if piece.rows]

    def prepare(self) -> None:
        """Record the slices. Safe to repeat, by another run too. Raises PipelineError."""
        if self._load.rejects_max is not None:
            self._load.endpoint.run(self._load.ledger.make_room_for_rejects)
        self._load.endpoint.run(self._record)

    def _record(self, connection: Any) -> None:
        load, ledger = self._load, self._load.ledger
        connection.begin()
        with connection.cursor() as cursor:
            # Under the lock: another run may have recorded them, or has ended the batch.
            ended = ledger.lock(cursor, load.batch).finished is not None
            if not (ended or ledger.slices(cursor, load.batch.name)):
                ledger.add_slices(cursor, load.batch, self._filled)
        connection.commit()

    def look(self) -> tuple[int, ...]:
        """The slices that are not written. All are checked each time, because a failover may undo
        some. Raises AbandonedError."""
        return self._load.endpoint.run(self._missing)

    def _missing(self, connection: Any) -> tuple[int, ...]:
        load = self._load
        connection.begin()
        with connection.cursor() as cursor:
            load.ledger.lock(cursor, load.batch)
            written = load.ledger.slices(cursor, load.batch.name)
        connection.commit()
        return tuple(sorted(number for number, is_written in written.items() if not is_written))

    def write(self, wanted: Sequence[int]) -> None:
        """Run the tasks that write these slices."""
        load = self._load
        columns = {name: f.col(quoted(name)) for name in load.mapped.names}
        columns |= {name: f.lit(value) for name, value in load.fillers.items()}
        # Looked up, because a constant would be compiled into the code of the tasks, again for each
        # batch.
        time = looked_up([load.batch.begun] * len(load.slices), f.col(SLICE))
        if load.spread_ns is not None:
            rows = looked_up([max(1, piece.rows) for piece in load.slices], f.col(SLICE))
            time += ((f.col(PLACE) + f.col(SLICE) / len(load.slices)) * load.spread_ns / rows).cast("bigint")
        columns.setdefault(load.table.by_name["time_next"].name, time)
        frame = load.sliced(wanted).select(SLICE, PLACE, *[value.alias(name) for name, value in columns.items()])
        self._write(frame, load.table.quoted, tuple(columns), load.rejects_max)

    def _write(self, frame: DataFrame, table: str, columns: tuple[str, ...], rejects_max: int | None = None) -> None:
        load = self._load
        rows = tuple(piece.rows for piece in load.slices)
        write_slices(frame, Target(load.endpoint, load.ledger, load.batch, table, columns, rows, rejects_max))

    def finish(self, report: Callable[[Progress], None]) -> bool:
        """End the batch when no slice is missing. Returns False if another run has ended it."""
        tried: set[int] = set()
        return self._load.endpoint.run(lambda connection: self._publish(connection, report, tried), **SIFTING)

    def _publish(self, connection: Any, report: Callable[[Progress], None], tried: set[int]) -> bool:
        connection.begin()
        with connection.cursor() as cursor:
            by_us = self._load.ledger.finish(cursor, self._load.batch, tried)
        connection.commit()
        return by_us
