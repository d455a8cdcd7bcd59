"""Moves dead messages into their dead-letter table, in one transaction, without copying rows to the
engine.

First the rows are locked as a claim locks them, and the dead-letter table's metadata is locked.
Then the two tables are compared. An ALTER that adds a column, or withdraws the consent in the
comment, waits until the locks are released. A message that the server refuses does not hold back
the others: the batch is rolled back to a savepoint and tried in parts (`port.in_parts`). The remaining
messages are postponed in the same transaction. So each row is in exactly one of the two tables, whenever the
connection breaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.catalog.verdict import evaluate
from engine.model import Key, MoveResult, TableId, Wanted
from engine.packets import text_values
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted
from engine.refused import named
from engine.store.connection import MOVING, StoreConnection
from engine.store.dead_letter_plan import Chain, columns_to_move, obstacles
from engine.store.information_schema import now_ns, table_facts
from engine.store.port import StoreError, Timed, in_parts
from engine.store.pymysql_adapter import ER
from engine.store.queries import END_OF_TIME_NS, TableStatements, statement
from engine.store.scan import entries_of, keys_of


class DeadLetterMove:
    """One transaction that moves the messages it can, and postpones the others."""

    def __init__(self, connection: StoreConnection, table: QueueTable, dead_letter: TableId) -> None:
        self._connection, self._table, self._dead_letter = connection, table, dead_letter
        self._sql = TableStatements(table)
        self._now_ns = 0
        self._reasons: dict[Key, str] = {}
        """The reasons of the messages that stay."""

    def run(self, wanted: Mapping[Key, Wanted]) -> Timed[MoveResult]:
        """Move those of `wanted` that may be moved."""
        sql = self._sql
        now, _, *locked = self._connection.run(
            [statement("now"), statement("begin"), *sql.for_ids("claim_lock", wanted)],
        )
        self._now_ns = now_ns(now)
        dead = [
            entry.key
            for entry in entries_of(sql, *locked)
            if (want := wanted.get(entry.key)) and want.epoch == entry.epoch
        ]
        moved = self._moved_from(dead) if dead else []
        # Postponing may be refused, too. Such a message is tried again soon.
        in_parts(list(self._reasons), lambda part: self._postpone({key: wanted[key] for key in part}))
        self._connection.run([statement("commit")])
        return Timed(MoveResult(tuple(moved), self._problem()), self._now_ns)

    def _postpone(self, wanted: Mapping[Key, Wanted]) -> None:
        due_ns = {key: self._now_ns + want.wait_ns for key, want in wanted.items()}
        self._connection.run([*self._sql.updates("dead_letter_postpone", due_ns)])

    def _moved_from(self, keys: Sequence[Key]) -> list[Key]:
        denied = self._hold()
        source = table_facts(self._connection, self._table.id).value
        target = table_facts(self._connection, self._dead_letter).value
        if source is None:
            raise StoreError(f"Table '{self._table.id}' doesn't exist", code=ER.NO_SUCH_TABLE, lasting=True)
        if problems := obstacles(source, self._dead_letter, target):
            return self._refuse(keys, "; ".join(problems))
        if denied is not None:
            return self._refuse(keys, denied)
        there = target and evaluate(target)
        assert isinstance(there, QueueTable)
        if problem := self._circle(there):
            return self._refuse(keys, problem)
        return self._moved(TableStatements(there), columns_to_move(source), keys)

    def _hold(self) -> str | None:
        """Lock the dead-letter table's metadata until the commit.

        Returns a lasting error's text, else None.
        """
        try:
            self._connection.run([statement("dead_letter_hold", dead_letter=qualified(self._dead_letter))])
        except StoreError as error:
            if not error.lasting:
                raise
            return str(error)
        return None

    def _circle(self, there: QueueTable) -> str | None:
        chain = Chain(self._table.id, there)
        while chain.onward is not None:
            facts = table_facts(self._connection, chain.onward).value
            chain.add(None if facts is None else evaluate(facts))
        return chain.problem

    def _moved(self, there: TableStatements, columns: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        """Move `keys`. Returns the moved ones; the others get a reason."""

        def move(part: Sequence[Key]) -> list[Key]:
            self._connection.run([statement("mark")])
            try:
                return self._move(there, columns, part)
            except StoreError as error:
                if error.refused or error.lasting:
                    self._connection.run([statement("back_to_mark")])
                raise

        moved, reasons = in_parts(keys, move)
        self._reasons |= reasons
        return [key for part in moved for key in part]

    def _move(self, there: TableStatements, columns: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        deletes = self._make_room(there, keys)
        keys = [key for key in keys if key not in self._reasons]
        if not keys:
            return []
        ids = self._sql.ids(keys)
        insert = self._sql(
            "dead_letter_insert",
            dead_letter=qualified(self._dead_letter),
            columns=", ".join(map(quoted, columns)),
            now_ns=self._now_ns,
            ids=ids,
        )
        *_, inserted = self._connection.run([*deletes, insert], MOVING)
        if inserted.warnings:  # A note under a strict sql_mode: trailing blanks were cut off.
            (warning,) = self._connection.run([statement("warnings")], MOVING)
            text = " ".join((value or b"").decode() for value in text_values(warning.rows[0])[1:])
            raise StoreError(text, refused=True)
        (deleted,) = self._connection.run([self._sql("dead_letter_delete", ids=ids)])
        if not inserted.affected == deleted.affected == len(keys):
            text = f"of {len(keys)} rows {inserted.affected} were copied and {deleted.affected} deleted"
            raise StoreError(text, refused=True)
        return list(keys)

    def _make_room(self, there: TableStatements, keys: Sequence[Key]) -> list[str]:
        """Lock acknowledged rows of these ids in the dead-letter table.

        Returns the statement that deletes them.
        """
        ends = {"before_ns": END_OF_TIME_NS}
        live, acked = self._connection.run(
            [*there.for_ids("lookup", keys), *there.for_ids("dead_letter_there", keys, **ends)]
        )
        taken = {entry.key for entry in entries_of(there, live)}
        old = set(keys_of(there, acked)) - taken
        lock = there.for_ids("purge_lock", old, partitions="", **ends)
        locked = set(keys_of(there, *self._connection.run(lock)) if lock else ())
        name = self._dead_letter
        self._refuse([key for key in keys if key in taken], f"{name} has a row of that id, unacknowledged")
        self._refuse([key for key in keys if key in old - locked], f"its acknowledged row in {name} is locked")
        return there.for_ids("purge_delete", locked, partitions="", **ends)

    def _refuse(self, keys: Sequence[Key], reason: str) -> list[Key]:
        self._reasons |= dict.fromkeys(keys, reason)
        return []

    def _problem(self) -> str | None:
        if not self._reasons:
            return None
        return f"dead messages stay in {self._table.id} and are tried again later: {named(self._reasons)}"
