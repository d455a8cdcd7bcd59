"""A connection of a client, and what all clients share."""

from __future__ import annotations

import socket
from collections.abc import Callable

from bench.processes import HOST

AT_ONCE = 500
"""So many messages are enqueued before their answers are read."""
TIMEOUT_S = 60.0

Taken = Callable[[], object]


def ignored() -> None:
    """Do nothing."""


class Connection:
    """A socket with a buffer for reading."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", buffering=1 << 18)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def line(self) -> bytes:
        """Return the next line without its end."""
        line: bytes = self._file.readline()
        if not line:
            raise ConnectionError("the server has closed the connection")
        return line[:-2]

    def read(self, size: int) -> bytes:
        """Return so many bytes, and drop the line end after them."""
        data: bytes = self._file.read(size + 2)
        return data[:-2]

    def exactly(self, size: int) -> bytes:
        """Return so many bytes."""
        data: bytes = self._file.read(size)
        if len(data) < size:
            raise ConnectionError("the server has closed the connection")
        return data
