"""A claim that lacks something which is made outside its transaction."""

from __future__ import annotations

from abc import abstractmethod

from engine.store.connection import StoreConnection
from engine.store.port import StoreError


class Unprepared(StoreError):
    """A claim lacks something. Nothing was done: its transaction is rolled back.

    What is made between the packets of a claim may begin a transaction of its own. That would commit the
    claim's one, and release its locks.
    """

    @abstractmethod
    def prepare(self, connection: StoreConnection) -> None:
        """Make it, for the next attempt. `connection` has no transaction. Raises StoreError."""
