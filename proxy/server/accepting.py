"""The listening sockets of a proxy with several workers: the parent accepts each client and passes
it on to a worker.

If the workers accepted from one socket, the busiest one would get most clients, because it waited
last; with a socket each (SO_REUSEPORT), a hash of the addresses decides, and clients that wait for
a worker that ends are lost. A client of a proxy stays for long, so its worker is worth a choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

from proxy.transport.backlog import BACKLOG
from proxy.transport.unixsocket import UnixSocket

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 64
AGAIN_S = 1.0
"""The pause when the process has no free file descriptor."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts clients while it is not paused. `pass_on` takes a client and closes its socket."""

    def __init__(self, pass_on: Callable[[socket.socket], None], *, reuse_port: bool = False) -> None:
        """`reuse_port`: whether another proxy may listen on the same addresses."""
        self._pass_on, self._reuse_port = pass_on, reuse_port
        self._sockets: list[socket.socket] = []
        self._unix_socket: UnixSocket | None = None
        self._paused = True

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on all addresses of the host. Returns the first. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        first: tuple[str, int] | None = None
        for family, _, _, _, address in dict.fromkeys(found):
            listening = socket.socket(family, socket.SOCK_STREAM)
            self._sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, self._reuse_port)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address[0], address[1] if first is None else first[1], *address[2:]))
            listening.listen(BACKLOG)
            listening.setblocking(False)
            first = first or listening.getsockname()[:2]
        assert first is not None
        return first

    def listen_locally(self, unix_socket: UnixSocket) -> None:
        """Listen on a unix socket as well."""
        self._unix_socket = unix_socket
        unix_socket.bound.listen(BACKLOG)
        unix_socket.bound.setblocking(False)
        self._sockets.append(unix_socket.bound)

    def resume(self) -> None:
        """Accept clients. Those that came meanwhile have waited."""
        if self._paused:
            self._paused = False
            for listening in self._sockets:
                asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def pause(self) -> None:
        """Let clients wait."""
        if not self._paused:
            self._paused = True
            for listening in self._sockets:
                asyncio.get_running_loop().remove_reader(listening)

    def close(self) -> None:
        """Accept no more clients."""
        self.pause()
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()
        if self._unix_socket is not None:
            self._unix_socket.remove()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._paused:
                return
            try:
                client, _ = listening.accept()
            except OSError as error:
                if error.errno in NO_ROOM:
                    log.error("clients wait for a free file descriptor: %s", error, extra={"event": "accepting.paused"})  # noqa: TRY400  # the text says it all
                    self.pause()
                    asyncio.get_running_loop().call_later(AGAIN_S, self._resume_if_open)
                return  # Nobody waits, or the client has gone.
            with contextlib.suppress(OSError):
                self._pass_on(client)

    def _resume_if_open(self) -> None:
        if self._sockets:
            self.resume()
