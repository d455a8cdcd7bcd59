"""The connections of the admin port: so many at most, and none that stays silent.

Nobody has shown a right yet who opens one. When there are as many as allowed, the one that has been
silent longest makes room for the next. So a probe is answered however many a stranger opens, and
clients of the database find file descriptors left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.transport.backlog import BACKLOG

log = logging.getLogger(__name__)

SILENT_S = 30.0
"""Time until a request is complete, TLS included, and between two requests. Prometheus asks every 15 s
to 60 s, and connects again where it has to."""
LOOK_S = 1.0
"""How often silent connections are looked for."""
AGAIN_S = 1.0
"""The pause when the process has no free file descriptor."""
LOGGED_S = 60.0
"""The least time between two lines in the log."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(eq=False, slots=True)
class Connection:
    """One connection."""

    socket: socket.socket
    since_s: float
    """When it was opened, or its last request ended."""
    requests: int = 0
    """Requests under way."""


class AdminConnections:
    """Accepts connections and closes them. A middleware of the application shows which have requests."""

    def __init__(self, connections_max: int, context: ssl.SSLContext | None, silent_s: float = SILENT_S) -> None:
        self._max, self._context, self._silent_s = connections_max, context, silent_s
        self._listening: list[socket.socket] = []
        self._open: dict[int, Connection] = {}
        """By file descriptor."""
        self._serve: Callable[[], asyncio.Protocol] = asyncio.Protocol
        self._looking: asyncio.TimerHandle | None = None
        self._logged_s = -LOGGED_S
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(
        self, serve: Callable[[], asyncio.Protocol], host: str, port: int, *, reuse_port: bool = False
    ) -> tuple[str, int]:
        """Listen on all addresses of the host. Returns the first. Raises OSError. `serve` makes the
        protocol of a connection."""
        loop, self._serve = asyncio.get_running_loop(), serve
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            at = (address[0], self._listening[0].getsockname()[1] if self._listening else port, *address[2:])
            one = socket.create_server(at, family=family, backlog=BACKLOG, reuse_port=reuse_port)
            self._listening.append(one)
            one.setblocking(False)
            loop.add_reader(one, self._accept, one)
        self._look_again()
        taken_host, taken_port = self._listening[0].getsockname()[:2]
        return taken_host, taken_port

    def close(self) -> None:
        """Accept no more."""
        if self._looking is not None:
            self._looking.cancel()
        for one in self._listening:
            asyncio.get_running_loop().remove_reader(one)
            one.close()
        self._listening.clear()

    @web.middleware
    async def follow(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A request is under way."""
        peer = None if request.transport is None else request.transport.get_extra_info("socket")
        connection = self._open.get(peer.fileno()) if peer is not None else None
        if connection is None:
            return await handler(request)
        connection.requests += 1
        try:
            return await handler(request)
        finally:
            connection.requests -= 1
            connection.since_s = asyncio.get_running_loop().time()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            peer, _ = listening.accept()
        except OSError as error:  # Otherwise it has gone.
            if error.errno in NO_ROOM:
                loop.remove_reader(listening)
                loop.call_later(AGAIN_S, self._resume, listening)
            return
        self._look()
        if len(self._open) >= self._max and not self._make_room():
            peer.close()
            return
        peer.setblocking(False)
        self._open[peer.fileno()] = Connection(peer, loop.time())
        task = loop.create_task(self._adopt(peer), name="admin connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _adopt(self, peer: socket.socket) -> None:
        timeout_s = None if self._context is None else self._silent_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._serve, peer, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except OSError:  # It is gone, or is no client of TLS.
            peer.close()

    def _make_room(self) -> bool:
        """Close the connection that has been silent longest. False: all have requests under way."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._logged_s + LOGGED_S:
            self._logged_s = now_s
            log.warning(
                "the admin port has %d connections (admin_connections_max): for each further one, the one that has"
                " been silent longest is closed",
                self._max,
                extra={"event": "admin.full"},
            )
        silent = [connection for connection in self._open.values() if not connection.requests]
        if silent:
            self._end(min(silent, key=lambda connection: connection.since_s))
        return bool(silent)

    def _look_again(self) -> None:
        self._look()
        self._looking = asyncio.get_running_loop().call_later(min(LOOK_S, self._silent_s), self._look_again)

    def _look(self) -> None:
        """Forget connections that are closed, and end those that are silent."""
        self._open = {number: found for number, found in self._open.items() if found.socket.fileno() == number}
        latest_s = asyncio.get_running_loop().time() - self._silent_s
        for connection in list(self._open.values()):
            if not connection.requests and connection.since_s < latest_s:
                self._end(connection)

    def _end(self, connection: Connection) -> None:
        del self._open[connection.socket.fileno()]
        with contextlib.suppress(OSError):  # Its transport notices the end, and closes it.
            connection.socket.shutdown(socket.SHUT_RDWR)
