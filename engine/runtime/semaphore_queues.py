"""Which queues share semaphores: those of one database whose messages need some."""

from __future__ import annotations

from collections.abc import Sequence

from engine.model import TableId
from engine.queue_table import QueueTable


class SemaphoreQueues:
    """The queues whose messages need semaphores, by database."""

    def __init__(self) -> None:
        self._of_database: dict[str, set[TableId]] = {}

    def of_database(self, db: str) -> Sequence[TableId]:
        """All of a database."""
        return list(self._of_database.get(db, ()))

    def others(self, table: TableId) -> Sequence[TableId]:
        """Those that share semaphores with this queue."""
        queues = self._of_database.get(table.db, ())
        return [other for other in queues if other != table] if table in queues else ()

    def queue_found(self, queue: QueueTable) -> None:
        """A queue was found, or its description has changed."""
        if queue.policy.semaphores is not None:
            self._of_database.setdefault(queue.id.db, set()).add(queue.id)
        else:
            self.queue_lost(queue.id)

    def queue_lost(self, table: TableId) -> None:
        """A table is no queue any more."""
        if (queues := self._of_database.get(table.db)) is not None:
            queues.discard(table)
            if not queues:
                del self._of_database[table.db]
