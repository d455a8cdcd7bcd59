"""Which queues have follow-ups that wait for the parts in a queue: those of its database."""

from __future__ import annotations

from collections.abc import Sequence

from engine.model import TableId
from engine.queue_table import QueueTable


class FollowUpQueues:
    """The queues with parts, and with follow-ups, by database."""

    def __init__(self) -> None:
        self._queues: dict[TableId, QueueTable] = {}
        """All queues with batches."""
        self._of_parts: dict[TableId, Sequence[TableId]] = {}

    def of_parts(self, table: TableId) -> Sequence[TableId]:
        """The queues whose follow-ups may wait for the messages of a table."""
        return self._of_parts.get(table, ())

    def queue_found(self, queue: QueueTable) -> None:
        """A queue was found, or its description has changed."""
        if queue.batch is not None or queue.after_batch is not None:
            self._queues[queue.id] = queue
        elif self._queues.pop(queue.id, None) is None:
            return
        self._arrange()

    def queue_lost(self, table: TableId) -> None:
        """A table is no queue any more: its parts count as deleted."""
        if self._queues.pop(table, None) is not None:
            self._arrange()

    def _arrange(self) -> None:
        waiting = [queue.id for queue in self._queues.values() if queue.after_batch is not None]
        self._of_parts = {}
        for queue in self._queues.values():
            if queue.batch is not None:
                of_database = [table for table in waiting if table.db == queue.id.db]
                self._of_parts[queue.id] = of_database
                if queue.policy.dead_parts_hold and (letters := queue.dead_letter) is not None:
                    self._of_parts[letters] = of_database
