"""What is read of the binary log's changes of a queue: the columns, and which changes are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.binlog.row_image import ABSENT
from engine.model import SLOTS, TableId
from engine.queue_table import QueueTable

QUEUE_COLUMNS = ("id", "priority", "epoch", "time_next", "time_acked")
EPOCH_AT, DUE_AT, ACKED_AT, LEASE_AT = 2, 3, 4, 5

Row = tuple[Any, ...]
"""The values of an image of a row, each a `Value`: those of QUEUE_COLUMNS, then with a ChangeFilter's lease column
that one, then those of the group columns of the scope. All of QUEUE_COLUMNS but the id are integers."""


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Leaves out what a proxy knows or does not need: acknowledgements that its own clients have made
    through it, claims of other proxies, and the acknowledgements of messages that others hold.

    The answer to an acknowledgement has shown the engine what it did. If that answer was lost, its lease ends
    by a lookup or at its deadline, as without the binary log.

    A message that another proxy has claimed is not due here before its wait is over, and a scan finds
    it then. A key that was read ahead and claimed elsewhere costs one key of a claim in vain.
    """

    column: str | None
    """The lease column. A claim writes the new time_next into it again, with the slot of its proxy. None:
    what other proxies do is not left out."""
    slots: frozenset[int]
    """The slots of the proxies that get the changes: what they hold is not left out."""
    own_slot: int = 0
    """The slot that ends the time_acked of acknowledgements through the proxy that gets the changes. 0:
    these are not left out. An application that writes time_acked itself, with nanoseconds, writes these
    three digits once in a thousand times. Then the lease ends as if the answer was lost."""

    def is_claim(self, before: Row, after: Row) -> bool:
        """Whether this change of a row is a claim. All rows of an event are changed by one statement."""
        if self.column is None:
            return False
        lease, epoch = after[LEASE_AT], before[EPOCH_AT]
        if not isinstance(lease, int) or not isinstance(epoch, int):
            return False
        claimed = lease % SLOTS != 0 and lease == after[DUE_AT] and lease != before[LEASE_AT]
        return claimed and after[EPOCH_AT] == epoch + 1 and after[ACKED_AT] is None

    def is_own_ack(self, before: Row, after: Row) -> bool:
        """Whether this change of a row is an acknowledgement through the proxy that gets the changes."""
        acked = after[ACKED_AT]
        if self.own_slot == 0 or not isinstance(acked, int) or after[0] not in {before[0], ABSENT}:
            return False
        return acked % SLOTS == self.own_slot

    def is_foreign_ack(self, before: Row, after: Row) -> bool:
        """Whether this change of a row acknowledges a message that another proxy holds or held last."""
        if self.column is None:
            return False
        lease = before[LEASE_AT]
        if not isinstance(lease, int) or not isinstance(after[ACKED_AT], int):
            return False
        slot = lease % SLOTS
        return slot != 0 and slot not in self.slots and lease == before[DUE_AT]


def change_filter(queue: QueueTable, slots: frozenset[int], own_slot: int = 0) -> ChangeFilter | None:
    """The filter for a queue and a proxy that has or had `slots` on the server, and has `own_slot` now (0:
    none). None if every change matters.

    Limits, groups, semaphores and batches depend on what is in flight, wherever it is acknowledged. Proxies
    that do not divide the messages among themselves read ahead the same ones.
    """
    if not slots or not queue.stands_alone:
        return None
    column = queue.lease_column if queue.is_shareable else None
    return ChangeFilter(column, slots, own_slot) if column is not None or own_slot else None


@dataclass(frozen=True, slots=True)
class Scope:
    """What is read of the changes of one table."""

    left_out: ChangeFilter | None = None
    group_columns: tuple[str, ...] = ()
    """The columns whose values are the message group of an entry. Empty: its group is not read."""


FollowedTables = Mapping[TableId, Scope]
"""The tables to follow, and what is read of their changes."""
