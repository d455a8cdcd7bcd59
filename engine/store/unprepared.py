"""A claim that lacks something which is made outside its transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

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


class UnknownQueues(Unprepared):
    """The claim depends on queues of its database that are not described yet."""

    def __init__(self, queues: str, describe: Callable[[StoreConnection], object]) -> None:
        """`queues`: which ones, in words. `describe`: describes them."""
        super().__init__(f"{queues} were changed again and again")
        self._describe = describe

    def prepare(self, connection: StoreConnection) -> None:
        """Describe them."""
        self._describe(connection)
