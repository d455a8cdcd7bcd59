"""A relay in front of a server that records the commands of each connection, by round trips.

Commands belong to one round trip if they came without an answer of the server's between them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Protocol, Self

from proxy.wire.framing import Packets
from tests.support.waiting import eventually

GREETING_HEAD = 5
"""Bytes of a greeting before the server's version: the packet's header and the protocol's."""
READ_BYTES = 1 << 16


class Server(Protocol):
    """Where the server is."""

    host: str
    port: int


class Turns:
    """The address to connect to instead of the server's. Logins are not recorded. Thread-safe."""

    def __init__(self, server: Server) -> None:
        self.host = "127.0.0.1"
        self._server = server
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._turns: dict[int, list[list[bytes]]] = {}  # guarded by _lock
        threading.Thread(target=self._accept, daemon=True).start()

    def taken(self, connection_id: int) -> list[list[bytes]]:
        """The commands of this connection since the last call, a list for each round trip."""
        eventually(lambda: connection_id in self._turns)
        with self._lock:
            turns, self._turns[connection_id] = self._turns[connection_id], []
        return turns

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=[client], daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),  # Also of the connection: the server may have been stopped.
            client,
            socket.create_connection((self._server.host, self._server.port)) as server,
            selectors.DefaultSelector() as selector,
        ):
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Else an answer in parts takes 40 ms.
            greeting = server.recv(READ_BYTES)
            at = greeting.index(0, GREETING_HEAD) + 1
            turns: list[list[bytes]] = []
            with self._lock:
                self._turns[int.from_bytes(greeting[at : at + 4], "little")] = turns
            number = int.from_bytes(greeting[at : at + 4], "little")
            client.sendall(greeting)
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            packets, answered = Packets(), True
            while True:
                for key, _ in selector.select():
                    source, target = key.fileobj, key.data
                    assert isinstance(source, socket.socket)
                    if not (data := source.recv(READ_BYTES)):
                        return
                    if source is server:
                        answered = True
                    elif commands := [packet.payload for packet in packets.feed(data) if packet.seq == 0]:
                        with self._lock:
                            turns = self._turns[number]
                            turns += [[]] if answered or not turns else []
                            turns[-1] += commands
                        answered = False
                    target.sendall(data)
