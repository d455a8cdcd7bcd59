"""Which messages are free: a lookup under shared locks, which end with the statement.

The connection is READ COMMITTED, so no gap between rows is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.model import Key
from engine.packets import text_values
from engine.queue_table import QueueTable
from engine.store.begun import OnePacket
from engine.store.connection import Begun, StoreConnection
from engine.store.port import Answer
from engine.store.queries import statements_of

SHORT_CHARS: Final = 8_000
"""Of a statement in a packet that certainly fits into an empty send buffer, which has 16 kB on Linux."""


class UnlockedLookup(OnePacket):
    """The lookup of messages that are unacknowledged and due, and locked by no other transaction."""

    def __init__(self, table: QueueTable, keys: Sequence[Key]) -> None:
        """`keys`: at least one."""
        super().__init__()
        self._sql = statements_of(table)
        self._text = self._sql("lookup_unlocked", ids=self._sql.ids(keys))

    @property
    def is_short(self) -> bool:
        """Whether the packet can be sent without waiting."""
        return len(self._text) <= SHORT_CHARS

    def run(self, connection: StoreConnection) -> Answer[frozenset[Key]]:
        """The keys of these messages. Raises StoreError."""
        (found,) = connection.results(self.begun(connection))
        ids = (id_ for row in found.rows if (id_ := text_values(row)[0]) is not None)
        return Answer(frozenset(map(self._sql.key, ids)))

    def _write(self, connection: StoreConnection) -> Begun:
        return connection.begin([self._text])
