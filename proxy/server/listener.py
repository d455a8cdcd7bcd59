"""The proxy itself: it accepts clients, opens a backing connection for each, and holds all sessions.

Sessions reach each other here: a KILL that the server accepted ends the stream of the session with
that id.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from engine.service import Engine
from engine.store.opening import BackendAddress
from engine.store.port import NoPrimaryError, Origin, StoreError, may_be_same
from engine.store.pymysql_adapter import ER
from engine.store.reach import FULL, Reach
from engine.store.route import Route
from proxy.server.silence import silent_s
from proxy.server.transports import BackingConnection, ClientConnection
from proxy.session.session import Session
from proxy.session.statement_memory import StatementMemory
from proxy.session.stream import INTERRUPTED, SERVER_LOST, SHUTDOWN
from proxy.session.traffic import Traffic
from proxy.settings import Settings
from proxy.statements.statements import Statements
from proxy.transport.backlog import BACKLOG
from proxy.transport.tls import Tls
from proxy.transport.unixsocket import UnixSocket
from proxy.wire.packets import UNREACHABLE, ServerError
from sqlrewrite.classify import Kill

log = logging.getLogger(__name__)

DRAIN_POLL_S = 0.05

SILENT_S = 0.25
"""A client that has neither sent nor received anything for so long is not about to send a statement, but by chance."""

SERVERS_MAX = 64
"""How many servers are distinguished. A proxy has one, or a few behind one name."""

NOWHERE = ("", 0)
"""The address of no server."""

TOO_MANY = ServerError(1040, "08004", "Too many connections")


class Proxy:
    """All sessions of the listening sockets."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        route: Route,
        tls: Tls,
        reach: Reach | None = None,
    ) -> None:
        """`route`: to the server that new clients are connected to. `reach`: of the engine's connections."""
        self.engine = engine
        self.settings = settings
        self.route = route
        self.tls = tls
        self.reach = reach or Reach()
        self.sessions: set[Session] = set()
        self.connections_total = 0
        self.backing_errors = 0
        """Clients for which no backing connection could be opened."""
        self.traffic = Traffic()
        self._by_connection_id: dict[int, set[Session]] = {}
        """Several sessions may have one id, because each server counts its own."""
        self._servers: set[Origin] = set()
        """The servers that sessions have reported."""
        self._numbers = itertools.count(1)
        self._listeners: list[asyncio.Server] = []
        self._unix_socket: UnixSocket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._kill_refused = False
        self.statement_memory = StatementMemory(settings.statement_bytes_max)
        self._statements = Statements(engine, settings, lambda: self.sessions)
        self.carry_out = self._statements.carry_out
        self.begin_settling = self._statements.begin_settling

    # Life.

    async def start(self) -> tuple[str, int]:
        """Listen. Returns the address. Raises OSError."""
        endpoint, shared = self.settings.listen, self.settings.reuse_port or self.settings.processes > 1
        listener = await asyncio.get_running_loop().create_server(
            self._accept, endpoint.host, endpoint.port, backlog=BACKLOG, reuse_port=shared or None
        )
        self._listeners.append(listener)
        host, port = listener.sockets[0].getsockname()[:2]
        return host, port

    async def start_locally(self, path: Path) -> None:
        """Listen on a unix socket as well. Raises OSError."""
        self._unix_socket = UnixSocket(path, self.settings.listen_socket_mode)
        listener = await asyncio.get_running_loop().create_unix_server(
            self._accept_local, sock=self._unix_socket.bound, backlog=BACKLOG
        )
        self._listeners.append(listener)

    def stop_listening(self) -> None:
        """Accept no more clients."""
        for listener in self._listeners:
            listener.close()
        if self._unix_socket is not None:
            self._unix_socket.remove()

    async def drain(self) -> None:
        """Close connections as their commands end, streams first; all of them after `drain_timeout_s`. Before,
        clients have `drain_work_s` to acknowledge what they hold."""
        if self.settings.drain_work_s:
            await self._let_work_end()
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await self.engine.drain()
                while self.sessions:
                    for session in list(self.sessions):
                        if session.idle or session.logging_in:
                            session.client.close()
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            log.warning(
                "%d connections were cut off at the end of the drain",
                len(self.sessions),
                extra={"event": "drain.cut_off"},
            )
        for session in list(self.sessions):
            session.client.abort()
        self._statements.close()

    async def _let_work_end(self) -> None:
        """End all streams, bounded ones without an error, then close connections that hold no message, after a pause
        of their clients: a client that uses its connection again and again would otherwise lose a statement."""
        self._statements.refuse_streams()
        for session in self.streams():
            if session.stream is not None and session.stream.is_bounded:
                session.stream.complete()
            else:
                session.interrupt(SHUTDOWN.again())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_work_s):
                while self.sessions:
                    for session in list(self.sessions):
                        busy = not session.idle or self.engine.holds(session.number)
                        if session.logging_in or not (busy or silent_s(session.client) < SILENT_S):
                            session.client.close()
                    await asyncio.sleep(DRAIN_POLL_S)

    # What sessions report.

    def session_begun(self, session: Session) -> None:
        """A client has connected: open its backing connection."""
        self.sessions.add(session)
        self.connections_total += 1
        self._spawn(self._connect(session), f"session {session.number}: connect")

    def session_opened(self, session: Session) -> None:
        """A client has logged in."""
        self._by_connection_id.setdefault(session.connection_id, set()).add(session)

    def session_closed(self, session: Session) -> None:
        """A client is gone: release what it holds."""
        self.sessions.discard(session)
        alike = self._by_connection_id.get(session.connection_id, set())
        alike.discard(session)
        if not alike:
            self._by_connection_id.pop(session.connection_id, None)
        self.engine.disconnected(session.number)

    def server_is(self, origin: Origin) -> None:
        """A session has found out which server it has."""
        if len(self._servers) < SERVERS_MAX:
            self._servers.add(origin)

    def killed(self, kill: Kill, origin: Origin) -> None:
        """A server has accepted a KILL: it also ends what the proxy runs for that connection of the server."""
        if kill.connection_id is not None:
            for session in tuple(self._by_connection_id.get(kill.connection_id, ())):
                if may_be_same(session.origin, origin):
                    session.interrupt(INTERRUPTED if kill.query_only else SERVER_LOST)

    def abandoned(self, session: Session) -> None:
        """A client is gone and its server still at work for it: stop that by KILL, and close the connection."""
        self._spawn(self._abandon(session), f"session {session.number}: kill")

    async def _abandon(self, session: Session) -> None:
        try:
            # Its connection is still open here, so no other connection of the server has the id.
            if not await self.engine.kill(session.connection_id, self._known(session.origin)):
                log.warning(
                    "%r: what its vanished client left running is not stopped: it runs on another server than the one"
                    " that the engine is connected to, or there are several behind %s:%d",
                    session,
                    *session.origin.address,
                    extra={"event": "kill.impossible"},
                )
        except StoreError as error:
            if error.code == ER.KILL_DENIED_ERROR and not self._kill_refused:
                self._kill_refused = True
                log.warning(
                    "ackstream may not KILL what vanished clients leave running, which the server finishes for nobody:"
                    " grant its account CONNECTION_ADMIN, or CONNECTION ADMIN on MariaDB (%s)",
                    error,
                    extra={"event": "kill.refused"},
                )
        session.server.abort()

    def _known(self, origin: Origin) -> Origin:
        """The origin with its name, if only one known server has this address; NOWHERE if several have."""
        if origin.name is None:
            there = [server for server in self._servers if server.address == origin.address]
            if len(there) > 1:
                return Origin(NOWHERE)
            return there[0] if there else origin
        return origin

    def server_in_doubt(self) -> None:
        """A session got an error that another primary explains."""
        self.route.in_doubt()

    def login_refused(self, code: int) -> None:
        """A server has refused a client with this error."""
        if code == TOO_MANY.code:
            self.reach.states.exhausted.report(FULL)

    def server_changed(self, address: BackendAddress) -> None:
        """The server at this address is the primary: end all connections to others. Their clients
        are told what a server's end tells them."""
        for session in list(self.sessions):
            session.leave_server_unless(address)

    def streams(self) -> Iterable[Session]:
        """The sessions with a running stream."""
        return [session for session in self.sessions if session.stream is not None]

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)  # Otherwise the garbage collector may take it.
        task.add_done_callback(self._tasks.discard)

    # Accepting clients.

    def _accept(self) -> ClientConnection:
        return ClientConnection(Session(self, next(self._numbers)))

    def _accept_local(self) -> ClientConnection:
        return ClientConnection(Session(self, next(self._numbers), client_is_local=True))

    async def _connect(self, session: Session) -> None:
        """Open the backing connection of a new client, or report to the client why not."""
        if len(self.sessions) > (limit := self.settings.connections_max):
            session.refuse_login(TOO_MANY)
            text = f"the proxy refuses clients (1040): it has as many as connections_max allows, {limit}"
            self.reach.states.exhausted.report(text)
            return
        self._tune(session.client)
        try:
            session.backend = backend = self.route.address
        except NoPrimaryError as error:
            session.refuse_login(ServerError(UNREACHABLE, "HY000", f"ackstream has no server for new clients: {error}"))
            return
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: BackingConnection(session), *backend.target
                )
        except (OSError, TimeoutError) as error:
            self.backing_errors += 1
            self.server_in_doubt()
            reason = str(error) or "it does not answer"
            text = f"ackstream cannot connect to the backing server at {backend.host}:{backend.port}: {reason}"
            session.refuse_login(ServerError(UNREACHABLE, "HY000", text))
            return
        self.reach.answered()
        self._tune(transport)
        if self.route.present not in {backend, None}:  # Another server became the primary meanwhile.
            transport.abort()

    def _tune(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():  # The client was gone before there was a connection for it.
            return
        transport.set_write_buffer_limits(high=self.settings.write_buffer_bytes)
        peer = transport.get_extra_info("socket")
        if peer is None or peer.family == socket.AF_UNIX:
            return
        idle_s = self.settings.keepalive_idle_s
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_s // 6))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
