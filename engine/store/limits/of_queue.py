"""The row of a queue, which each claim of it locks if it has a limit of its own, and `max_rate`, whose time
is in that row."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dispatch.burst import burst_of
from engine.model import Claimed, Key
from engine.packets import Result, text_values
from engine.queue_table import QueueTable
from engine.quoting import qualified, text_literal
from engine.store.connection import StoreConnection
from engine.store.limits.limit import Choice, Left, Limit
from engine.store.limits.pace import Pace
from engine.store.queries import statement
from engine.store.unprepared import Unprepared


class Rate(Choice):
    """What `max_rate` allows."""

    def __init__(self, pace: Pace, full_ns: int | None, now_ns: int) -> None:
        """`full_ns`: the time that is kept."""
        self._pace, self._full_ns, self._now_ns = pace, full_ns, now_ns
        self._allowed = pace.allowed(full_ns, now_ns)
        self.taken = 0
        """How many messages the claim takes."""

    @property
    def written_ns(self) -> int:
        """The time to keep behind the claim."""
        return self._pace.after(self._full_ns, self._now_ns, self.taken)

    def has_place(self, key: Key) -> bool:
        return self.taken < self._allowed

    def note_taken(self, claim: Claimed) -> None:
        self.taken += 1

    def leave(self, left: Left) -> None:
        left.paced_until_ns = self._pace.ready_ns(self.written_ns)


class QueueLimit(Limit):
    """Locks the row."""

    choice: Rate | None = None

    @property
    def locks(self) -> Sequence[str]:
        return [statement("limit_lock", **_words(self._table))]

    def read(self, locked: Sequence[Result], counted: Sequence[Result], now_ns: int) -> None:
        if not locked[0].rows:
            raise NoLimitRow(self._table)
        (full_ns,) = text_values(locked[0].rows[0])
        policy = self._table.policy
        if policy.max_rate is not None:
            pace = Pace(policy.max_rate, burst_of(self._claim_s), policy.max_burst)
            self.choice = Rate(pace, int(full_ns or 0), now_ns)

    def writes(self) -> Sequence[str]:
        if self.choice is None or not self.choice.taken:
            return ()
        return [statement("limit_write", full_ns=self.choice.written_ns, **_words(self._table))]


class NoLimitRow(Unprepared):
    """The table of limits has no row of the queue yet."""

    def __init__(self, table: QueueTable) -> None:
        super().__init__(f"{table.limits} has no row of {table.id}")
        self._table = table

    def prepare(self, connection: StoreConnection) -> None:
        """Insert the row, unless it is there."""
        steps = ("begin", "limit_lock", "limit_add", "commit")
        connection.run([statement(step, **_words(self._table)) for step in steps])


def _words(table: QueueTable) -> dict[str, str]:
    return {"limits": qualified(table.limits), "queue": text_literal(table.id.name)}
