"""A relay in front of a server that withholds answers, so that a test can act in the middle of a statement.

Everything passes until `hold` names a connection. Then a number of its answers pass, and the next one waits.
"""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Protocol, Self

GREETING_HEAD = 5
"""Bytes of a greeting before the server's version: the packet's header and the protocol's."""
READ_BYTES = 1 << 16


class Server(Protocol):
    """Where the server is."""

    host: str
    port: int


class Gate:
    """The address to connect to instead of the server's. Thread-safe."""

    def __init__(self, server: Server) -> None:
        self.host = "127.0.0.1"
        self._server = server
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._connection_id: int | None = None  # guarded by _changed, as is all below
        self._passing = 0
        self._held = False
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def hold(self, connection_id: int, *, passing: int) -> None:
        """Let as many more answers to this connection pass, and hold the next one."""
        with self._changed:
            self._connection_id, self._passing, self._held = connection_id, passing, False

    def held(self) -> bool:
        """Whether an answer waits."""
        with self._changed:
            return self._held

    def release(self) -> None:
        """Let everything pass."""
        with self._changed:
            self._connection_id, self._held = None, False
            self._changed.notify_all()

    def close(self) -> None:
        """Cut all connections."""
        self.release()
        with self._changed:
            self._closed = True
            for opened in (self._listener, *self._sockets):
                opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self, work: object, *arguments: object) -> None:
        assert callable(work)
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((self._server.host, self._server.port))
            except OSError:
                client.close()
                return
            with self._changed:
                if self._closed:  # Meanwhile: nobody else closes these two.
                    client.close()
                    server.close()
                    return
                self._sockets += (client, server)
            self._start(self._pass, client, server)
            self._start(self._pass_answers, server, client)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(READ_BYTES):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _pass_answers(self, source: socket.socket, target: socket.socket) -> None:
        connection_id: int | None = None
        try:
            while data := source.recv(READ_BYTES):
                if connection_id is None:
                    at = data.index(0, GREETING_HEAD) + 1
                    connection_id = int.from_bytes(data[at : at + 4], "little")
                else:
                    self._wait(connection_id)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _wait(self, connection_id: int) -> None:
        """Wait until an answer that has come may pass; it is small enough to come at once."""
        with self._changed:
            if connection_id != self._connection_id:
                return
            if self._passing:
                self._passing -= 1
                return
            self._held = True
            self._changed.wait_for(lambda: connection_id != self._connection_id)
