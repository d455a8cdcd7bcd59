"""The proxy itself: it takes clients in, opens each its backing connection, and knows all sessions.

It is also where sessions reach each other: a KILL that the server accepted ends the stream of the session with that id.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Iterable

from engine.service import Engine
from proxy.legs import ClientLeg, ServerLeg
from proxy.session import Session
from proxy.settings import Settings
from proxy.statements import Statements
from proxy.stream import INTERRUPTED, SHUTDOWN
from proxy.wire.packets import ServerError
from sqlrewrite.classify import Kill

log = logging.getLogger(__name__)

DRAIN_POLL_S = 0.05

TOO_MANY = ServerError(1040, "08004", "Too many connections")


class Proxy:
    """All sessions of one listening socket."""

    def __init__(self, engine: Engine, settings: Settings, backend: tuple[str, int]) -> None:
        self.engine = engine
        self.settings = settings
        self.backend = backend
        self.sessions: set[Session] = set()
        self.connections_total = 0
        self._by_connection_id: dict[int, Session] = {}
        self._numbers = itertools.count(1)
        self._connecting: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.carry_out = Statements(engine, settings.ping_interval_s).carry_out

    # Life.

    async def start(self) -> tuple[str, int]:
        """Listen; the address that was taken. Raises OSError."""
        endpoint = self.settings.listen
        self._listener = await asyncio.get_running_loop().create_server(self._accept, endpoint.host, endpoint.port)
        host, port = self._listener.sockets[0].getsockname()[:2]
        return host, port

    def stop_listening(self) -> None:
        """Take nobody in any more."""
        if self._listener is not None:
            self._listener.close()

    async def drain(self) -> None:
        """Send clients away as their commands end, streams first; at the latest when time is up."""
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await self.engine.drain()
                while self.sessions:
                    for session in list(self.sessions):
                        if session.idle or session.login is not None:
                            session.client.close()
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            log.warning("%d connections were cut off at the end of the drain", len(self.sessions))
        for session in list(self.sessions):
            session.client.abort()

    # What sessions tell.

    def session_begun(self, session: Session) -> None:
        """A client has connected: open its backing connection."""
        self.sessions.add(session)
        self.connections_total += 1
        task = asyncio.get_running_loop().create_task(self._connect(session), name=f"session {session.number}: connect")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def session_opened(self, session: Session) -> None:
        """A client has logged in."""
        self._by_connection_id[session.connection_id] = session

    def session_closed(self, session: Session) -> None:
        """A client is gone; what it held is anybody's, or its own until its wait ends."""
        self.sessions.discard(session)
        if self._by_connection_id.get(session.connection_id) is session:
            del self._by_connection_id[session.connection_id]
        self.engine.disconnected(session.number)

    def killed(self, kill: Kill) -> None:
        """The server has accepted a KILL: it applies to what runs here as well."""
        session = self._by_connection_id.get(kill.connection_id)
        if session is not None:
            session.interrupt(INTERRUPTED if kill.query_only else SHUTDOWN)

    def streams(self) -> Iterable[Session]:
        """The sessions with a running stream."""
        return [each for each in self.sessions if each.stream is not None]

    # Taking in.

    def _accept(self) -> ClientLeg:
        return ClientLeg(Session(self, next(self._numbers)))

    async def _connect(self, session: Session) -> None:
        """Open the backing connection of a new client, or tell the client why not."""
        if len(self.sessions) > self.settings.connections_max:
            session.refuse_login(TOO_MANY)
            return
        self._tune(session.client, keepalive=True)
        host, port = self.backend
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: ServerLeg(session), host, port
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or "it does not answer"
            text = f"ackstream cannot connect to the backing server at {host}:{port}: {reason}"
            session.refuse_login(ServerError(2003, "HY000", text))
            return
        self._tune(transport, keepalive=False)

    def _tune(self, transport: asyncio.Transport, *, keepalive: bool) -> None:
        if transport.is_closing():  # The client left while its backing connection was being opened.
            return
        transport.set_write_buffer_limits(high=self.settings.write_buffer_bytes)
        peer = transport.get_extra_info("socket")
        if peer is None or not keepalive:
            return
        idle_s = self.settings.keepalive_idle_s
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_s // 6))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
