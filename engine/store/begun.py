"""Calls that the server has begun: their packet is sent, and no thread waits for the replies.

The event loop watches the connection instead. Whenever something has come, it calls `arrived`, which reads
that and follows the packets. When all replies are here, `finish` only parses them. If a statement has failed,
the connection is lost, or the replies are large, `finish` may wait for the server, and is called on a thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from engine.packets import EOF, EOF_MAX, ERR, HEADER, OK, lenenc_at
from engine.store.connection import Begun, StoreConnection
from engine.store.port import Answer

T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024
"""Of replies that are read on a thread. The event loop copies the others in less than a millisecond."""


class Replies:
    """How many of the replies to one packet of statements have come, and of those to the packets behind it."""

    def __init__(self, statements: int, behind: int) -> None:
        self.failed = False
        """Whether one of them is an error."""
        self._statements = statements
        self._behind = behind
        self._at = 0
        self._definitions = 0
        """Packets of the present result that are still to come before its rows."""
        self._in_rows = False

    def complete(self, data: bytes) -> bool:
        """Whether `data` has all of them. It begins with the first one, and with what was passed before."""
        while self._statements or self._behind:
            at = self._at + HEADER
            end = at + int.from_bytes(data[at - HEADER : at - 1], "little")
            if len(data) < at or len(data) < end:
                return False
            self._follow(data, at, end)
            self._at = end
        return True

    def _follow(self, data: bytes, at: int, end: int) -> None:
        first = data[at]
        if self._definitions:
            self._definitions -= 1
        elif self._in_rows:
            if first == ERR or (first == EOF and end - at < EOF_MAX):
                self._over(failed=first == ERR)
        elif first in (OK, ERR):
            self._over(failed=first == ERR)
        else:
            columns, _ = lenenc_at(data, at, end)
            self._definitions, self._in_rows = columns + 1, True

    def _over(self, *, failed: bool) -> None:
        """A reply is over. An error ends all statements of its packet."""
        self._in_rows = False
        self.failed |= failed
        if self._statements:
            self._statements = 0 if failed else self._statements - 1
        else:
            self._behind -= 1


class OnePacket(ABC):
    """A call whose statements are one packet. The event loop may send it, and a thread read the replies."""

    def __init__(self) -> None:
        self._sent: Begun | Exception | None = None

    def send(self, connection: StoreConnection) -> Begun | None:
        """Send the packet. `begun` raises the error if there is one. Returns None after an error, and never
        raises."""
        try:
            self._sent = self._write(connection)
        except Exception as error:  # noqa: BLE001  # `begun` raises it.
            self._sent = error
            return None
        return self._sent

    def begun(self, connection: StoreConnection) -> Begun:
        """What was sent. Sends it now if `send` has not been called. Raises the error of the sending."""
        if self._sent is None:
            self.send(connection)
        if isinstance(self._sent, Exception):
            raise self._sent
        assert self._sent is not None
        return self._sent

    @abstractmethod
    def _write(self, connection: StoreConnection) -> Begun:
        """Write the packet. Raises StoreError."""


class ConnectionCall(Generic[T]):
    """A call on a connection of the pool (port.BegunCall)."""

    def __init__(
        self, connection: StoreConnection, begun: Begun | None, finish: Callable[[], Answer[T] | None]
    ) -> None:
        """`begun`: None if the packet could not be sent. `finish` gives the connection back."""
        self.finish = finish
        self.fileno = connection.fileno()
        self.patience_s = connection.read_s
        self.waits = begun is None
        self._connection = connection
        self._replies = None if begun is None else Replies(begun.replies, begun.behind)

    def arrived(self) -> bool:
        """Read what has come, without waiting. Returns whether `finish` is to be called."""
        if self._replies is None:
            return True
        while not self._replies.complete(self._connection.unread):
            received = self._connection.receive()
            if received is None:
                return False
            if not received or len(self._connection.unread) > LARGE_BYTES:
                self.waits = True
                return True
        self.waits = self._replies.failed
        return True

    def abort(self) -> None:
        """Make `arrived` return True, because the connection is lost: the reply was waited for too long."""
        self._connection.timed_out = True
        self._connection.abort()
