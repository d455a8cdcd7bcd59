"""Streaming mode: tasks write straight into the queue, one transaction for each slice, and messages
are delivered at once.

A slice must not be written twice: neither by a task that is run again because its executor died
after the commit, nor by a second run of the batch after the driver died. Spark's JDBC writer can
add nothing else to its transaction, so one of the rows is the proof. The *mark* of a slice is its
first row:

- Its `id` is fixed before the slice is written. If the data has ids, it is one of them. If the
  server generates ids, one is drawn from its counter for each slice (by an INSERT that is rolled
  back) and kept in the ledger. `id` is unique, so of several transactions with the same slice only
  one can commit.
- It is withheld: its `time_next` is in the year 2200. So it is not delivered, acknowledged or
  purged, and can be found if the slice was committed, however much later.
- The driver or a rerun that finds it sets its real time and records the slice as published, in one
  transaction. From then on the ledger is the proof, and no run writes that slice again.

**Rows that the server refuses** end a job, unless it sets them aside. Then slices that the tasks
could not write are staged (`staging`), and the driver publishes each in one transaction on the
server: the accepted rows, the mark first; a row in the ledger for each refused one; and that the
slice is published. No other proof is needed. The mark's id is still used, so that of this
transaction and a task that is still alive only one can commit. If a slice's id was taken before the
batch was begun, the slice has no mark and is staged from the beginning.

A row with the mark's id and another time proves nothing (it was changed by hand, or the id was
taken) and ends the job with an error. One risk remains: a task that Spark gave up but that still
runs, has not sent its first row, and goes on after its slice was published by another one, consumed
*and* purged (`vt_purge_after` later), would write the slice again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pymysql
from pyspark.sql import functions as f

from ..common.connection import MissingTableIgnored
from ..common.ledger import WITHHELD_NS, Slice
from ..common.progress import Progress
from ..common.staging import PLACE, SLICE
from ..endpoint import is_transient, quoted
from ..errors import JobError, PipelineError
from .cut import looked_up
from .load import Load
from .staging import REFUSALS, Refuse, Staging, sift

MARKS_AT_ONCE: Final = 200
"""Marks in one statement."""


def unfit(load_has_ids: bool, id_is_unique: bool, id_is_counted: bool) -> list[str]:  # noqa: FBT001
    """Why a table cannot be filled in this mode."""
    if not id_is_unique:
        return ["id: has no unique key of its own, which streaming mode goes by: use the atomic mode"]
    if not load_has_ids and not id_is_counted:
        return ["id: is neither in the data nor AUTO_INCREMENT, and streaming mode goes by it: use the atomic mode"]
    return []


class Direct:
    """Writes the slices of a batch straight into the queue."""

    phase = "enqueueing"

    def __init__(self, load: Load) -> None:
        self._load = load
        self._marks: dict[int, Any] = {}
        """The ids as they were fixed at the beginning, by slice. Those of published slices stay:
        tasks write them until they end."""
        self._missing: set[int] = set()
        """Slices that are not published."""
        self._staging = Staging(load)
        self._to_stage: set[int] = set()
        """Slices that are written to the staging table first."""
        self._written: set[int] = set()
        """Slices that tasks have tried to write straight into the queue."""

    def prepare(self) -> None:
        """Record the slices and the ids of their marks. Raises PipelineError."""
        load, ledger = self._load, self._load.ledger
        if load.sets_aside:
            load.endpoint.run(ledger.make_room_for_rejects)
        known = load.endpoint.run(lambda connection: ledger.slices(connection, load.batch.name))
        if not known:
            known = load.endpoint.run(self._write_down)
        self._marks = {number: entry.mark for number, entry in known.items() if entry.mark is not None}
        self._to_stage = known.keys() - self._marks.keys()
        self._missing = {number for number, entry in known.items() if not entry.published}

    def _write_down(self, connection: Any) -> dict[int, Slice]:
        load, ledger = self._load, self._load.ledger
        filled = [number for number, piece in enumerate(load.slices) if piece.rows]
        with_ids = load.mapped.has("id")
        drawn = [] if with_ids else load.endpoint.run(lambda own: self._draw(own, len(filled)))
        marks = (
            {number: load.slices[number].first_id for number in filled}
            if with_ids
            else dict(zip(filled, drawn, strict=True))
        )
        connection.begin()
        with connection.cursor() as cursor:
            finished = ledger.lock(cursor, load.batch).finished is not None
            # Another driver was faster. Slices that it has published and deleted must not be
            # recorded again.
            if (known := ledger.slices(connection, load.batch.name)) or finished:
                connection.rollback()
                return known
            if with_ids and (there := self._find(connection, marks)):
                if not load.sets_aside:
                    raise PipelineError(
                        f"id: {marks[min(there)]!r} is in the queue already. To set such rows aside: --rejects"
                    )
                marks |= dict.fromkeys(there)
            slices = {number: Slice(mark, self._time_of_mark(number), False) for number, mark in marks.items()}
            ledger.add_slices(cursor, load.batch.name, slices)
        connection.commit()
        return slices

    def _draw(self, connection: Any, count: int) -> list[int]:
        """Values of the table's AUTO_INCREMENT counter, which are then unused."""
        drawn: list[int] = []
        with connection.cursor() as cursor:
            # The row is rolled back, so it may lack the application's values.
            cursor.execute("SET SESSION sql_mode = '', foreign_key_checks = 0 /*M!, check_constraint_checks = 0 */")
            try:
                for _ in range(count):
                    connection.begin()
                    cursor.execute(f"INSERT INTO {self._load.table.quoted} (time_next) VALUES ({WITHHELD_NS})")
                    drawn.append(cursor.lastrowid)
                    connection.rollback()
            except pymysql.MySQLError as error:
                if is_transient(error):
                    raise
                raise PipelineError(
                    f"id: none could be drawn from the table's counter ({error.args[1]}): give the messages ids"
                    " of their own, or use the atomic mode"
                ) from None
        return drawn

    def look(self) -> tuple[int, ...]:
        """Publish the slices whose marks are found and those that are staged. Returns the slices
        that are missing.

        Other runs of the batch may publish slices at the same time.
        """
        if self._missing:
            self._missing = self._load.endpoint.run(self._publish)
        if staged := self._to_stage & self._missing:
            for number in self._load.endpoint.run(lambda connection: self._staged(connection, staged)):
                self._load.endpoint.run(partial(self._publish_staged, number))
            self._missing = self._load.endpoint.run(self._publish)
        return tuple(sorted(self._missing))

    def _staged(self, connection: Any, numbers: set[int]) -> list[int]:
        with MissingTableIgnored():
            return sorted(self._staging.staged(connection, numbers))
        return []  # before the first of them is written

    def _publish(self, connection: Any) -> set[int]:
        load = self._load
        found = self._find(connection, {number: self._marks[number] for number in self._missing & self._marks.keys()})
        connection.begin()
        with connection.cursor() as cursor:
            load.ledger.lock(cursor, load.batch)
            for number, time_next in sorted(found.items()):
                # The ledger's row first: another run that publishes this slice waits for it, and
                # then finds it done.
                if load.ledger.publish(cursor, load.batch.name, number):
                    self._release(cursor, number, time_next)
            missing = load.ledger.unpublished(cursor, load.batch.name)
        connection.commit()
        return missing

    def _publish_staged(self, number: int, connection: Any) -> None:
        """Publish a staged slice, and record its refused rows and that it is published, in one
        transaction."""
        load = self._load
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.begin()
            load.ledger.lock(cursor, load.batch)
            if not load.ledger.publish(cursor, load.batch.name, number):  # by another run
                connection.rollback()
                return
            self._staging.verify(cursor, number)
            refuse = load.refuse(cursor, number)
            places = range(load.slices[number].rows)
            first = self._publish_mark(cursor, number, refuse)
            if first is None:
                connection.rollback()
                return
            sift(places[first:], lambda some: self._staging.publish(cursor, number, load.batch.begun, some), refuse)
        connection.commit()

    def _publish_mark(self, cursor: Any, number: int, refuse: Refuse) -> int | None:
        """Publish the row with the mark's id. Returns the number of this row and those refused
        before it.

        None if a task has committed the slice with its mark meanwhile. If the data has no ids, the
        first row that the server accepts gets the mark's.
        """
        if number not in self._marks:
            return 0
        load, drawn = self._load, not self._load.mapped.has("id")
        own = {load.table.by_name["id"].name: str(self._marks[number])} if drawn else None
        for place in range(load.slices[number].rows if drawn else 1):
            try:
                self._staging.publish(cursor, number, load.batch.begun, range(place, place + 1), own)
            except pymysql.MySQLError as error:
                if error.args[0] not in REFUSALS:
                    raise
                there = self._find(cursor.connection, {number: self._marks[number]})
                if there.get(number) == WITHHELD_NS:
                    return None
                if there and drawn:
                    self._release(cursor, number, there[number])
                refuse(place, error.args[0], str(error.args[1]))
            else:
                return place + 1
        return load.slices[number].rows if drawn else 1

    def _release(self, cursor: Any, number: int, time_next: int | None) -> None:
        mark = self._marks[number]
        if time_next == WITHHELD_NS:
            statement = f"UPDATE {self._load.table.quoted} SET time_next = %s WHERE id = %s AND time_next = %s"
            if cursor.execute(statement, [self._time_of_mark(number), mark, WITHHELD_NS]):
                return
        raise JobError(
            f"message {mark!r} is not as the job wrote it: somebody changed it, or took its id, so it cannot be told"
            f" whether slice {number} is in the queue. If it is, set its time_next to {WITHHELD_NS} and run this again;"
            " if not, delete that message"
        )

    def _find(self, connection: Any, marks: dict[int, Any]) -> dict[int, int | None]:
        """The slices whose marks are in the queue, and their `time_next`."""
        found: dict[int, int | None] = {}
        numbers = sorted(marks)
        with connection.cursor() as cursor:
            for start in range(0, len(numbers), MARKS_AT_ONCE):
                some = numbers[start : start + MARKS_AT_ONCE]
                # The server compares as it does for uniqueness: by the column's type and collation.
                statement = f"SELECT {{}}, time_next FROM {self._load.table.quoted} WHERE id = %s"
                cursor.execute(" UNION ALL ".join(map(statement.format, some)), [marks[number] for number in some])
                found.update(cursor.fetchall())
        return found

    def _time_of_mark(self, number: int) -> int:
        load = self._load
        if load.mapped.has("time_next"):
            return load.slices[number].first_time or 0
        if load.spread_ns is None:
            return load.batch.begun
        count = len(load.slices)
        return load.batch.begun + int(number / count * load.spread_ns / load.slices[number].rows)

    def write(self, wanted: Sequence[int]) -> None:
        """Run the tasks. If rows are set aside, slices that they could not write are staged the
        next time."""
        if self._load.sets_aside:
            self._to_stage |= self._written & {*wanted}
        straight = [number for number in wanted if number not in self._to_stage]
        self._written |= {*straight}
        if staged := [number for number in wanted if number in self._to_stage]:
            self._load.endpoint.run(self._staging.make)
            there = self._load.endpoint.run(lambda connection: self._staged(connection, {*staged}))
            self._staging.write([number for number in staged if number not in there])
        if straight:
            self._write_straight(straight)

    def _write_straight(self, wanted: Sequence[int]) -> None:
        load = self._load
        is_mark = f.col(PLACE) == 0
        columns = {name: f.col(quoted(name)) for name in load.mapped.names}
        columns |= {name: f.lit(value) for name, value in load.fillers.items() if name.casefold() != "time_next"}
        time_name = load.table.by_name["time_next"].name
        # Looked up, because a constant would be compiled into the code of the tasks, again for each
        # batch.
        begun = looked_up([load.batch.begun] * len(load.slices), f.col(SLICE))
        time = columns.get(time_name, begun)
        if load.spread_ns is not None:
            rows = looked_up([max(1, piece.rows) for piece in load.slices], f.col(SLICE))
            offset = (f.col(PLACE) + f.col(SLICE) / len(load.slices)) * load.spread_ns / rows
            time = begun + offset.cast("bigint")
        columns[time_name] = f.when(is_mark, f.lit(WITHHELD_NS)).otherwise(time)
        if not load.mapped.has("id"):
            ids = looked_up([self._marks.get(number, 0) for number in range(len(load.slices))], f.col(SLICE))
            columns[load.table.by_name["id"].name] = f.when(is_mark, ids)
        frame = load.sliced(wanted)
        load.write(frame.select([value.alias(name) for name, value in columns.items()]), load.table.quoted)

    def finish(self, report: Callable[[Progress], None]) -> bool:
        """Record that the whole batch is in the queue. Returns whether this run did."""
        load = self._load
        tried: set[int] = set()

        def done(connection: Any) -> bool:
            connection.begin()
            with connection.cursor() as cursor:
                by_us = load.ledger.finish(cursor, load.batch, tried)
            connection.commit()
            return by_us

        by_us = load.endpoint.run(done)
        load.endpoint.run(self._staging.drop)
        return by_us
