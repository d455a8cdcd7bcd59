"""One client and its backing connection: logging in, relaying, and stepping in where a statement is ours.

A session goes through three phases. *Login*: the server's own greeting and the dialogue that follows are passed on, so
that the server authenticates the client itself. *Relay*: bytes go through as they came; each command's first bytes
are looked at (framing, classify), and the answers' structure is followed (walker), which tells when the connection is
quiet, whether a transaction is open, and what a statement changed. *Ours*: one statement is withheld and carried
out by proxy.statements, which may ask the server on this very connection, with this client's rights; meanwhile
whatever else the client sends waits in a queue.

Everything happens on the event loop's thread. A session's only task is the one that runs a statement of ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.packets import HEADER, WireError, frame
from engine.store.port import Origin
from proxy.login.dialogue import LoginRefused, ToClient, ToServer
from proxy.login.relay import ChangeUserRelay, LoggedIn, LoginRelay, SecureClient, SecureServer, Step
from proxy.session.answers import Answer, InternalQuery
from proxy.session.command_classifier import (
    ABOUT_STATEMENTS,
    COM_STMT_SEND_LONG_DATA,
    EXECUTIONS,
    NOT_FAST,
    UNREMARKABLE,
    CarriedOutHere,
    CommandClassifier,
)
from proxy.session.commit_notices import CommitNotices, Killed, PendingCommand, Preparing
from proxy.session.stream import SERVER_LOST, Stream, unforeseen
from proxy.transport.proxy_protocol import announcement
from proxy.transport.tls import TlsLayer
from proxy.wire.commands import COM_CHANGE_USER, SILENT
from proxy.wire.fields import PacketTooLarge
from proxy.wire.framing import Command, CommandFramer, Dropped, Event
from proxy.wire.mimic_adapter import ServerStatus
from proxy.wire.packets import UNREACHABLE, ServerError, make_err
from proxy.wire.params import make_query
from proxy.wire.walker import FileRequest, Outcome, ResponseWalker
from sqlrewrite.classify import QUEUE_STATEMENT_VERBS, Verb

if TYPE_CHECKING:
    from proxy.session.ports import SessionHost

log = logging.getLogger(__name__)

NO_BACKSLASH_ESCAPES = int(ServerStatus.SERVER_STATUS_NO_BACKSLASH_ESCAPES)


class Session:
    """One client connection, its backing connection, and where they stand."""

    def __init__(self, proxy: SessionHost[Session], number: int, *, client_is_local: bool = False) -> None:
        self.proxy = proxy
        self.number = number
        self.client: asyncio.Transport
        self.server: asyncio.Transport
        self.origin: Origin
        """Which server the backing connection leads to."""
        self.login: LoginRelay | None = LoginRelay(proxy.tls.policy, client_is_local=client_is_local)
        self.info: LoggedIn | None = None
        self.stream: Stream | None = None
        self.interrupted: ServerError | None = None
        """Why the running statement of ours is to end, if somebody wants it to: looked at between its steps."""
        self.classifier = CommandClassifier()
        self.commit_notices = CommitNotices(proxy.engine)
        self.codec = "utf-8"
        self.charset = "utf8mb4"
        """The charset in which the client writes, as of the last time it was asked for; `codec`: as Python calls it."""
        self._server_ready = False
        self._server_is_full = False
        self._client_is_full = False
        self._client_is_held = False
        self._framer = CommandFramer(self.classifier.wants_whole, partial(proxy.statement_memory.grown, self))
        self._walker: ResponseWalker[PendingCommand]
        self._pipelined_max = proxy.settings.pipelined_max
        self._withheld: deque[Event] = deque()
        self._withheld_bytes = 0
        self._running_bytes = 0
        """Of the statement of ours that is carried out."""
        self._task: asyncio.Task[None] | None = None
        self._internal_query: InternalQuery | None = None
        self._change_user: ChangeUserRelay | None = None
        """A change of user under way, where what is said must be fitted to two legs of different kind."""
        self._farewell: ServerError | None = None
        """Why the connection is to end as soon as the server has answered what it was asked."""
        self._closed = False
        self._deadline = asyncio.get_running_loop().call_later(proxy.settings.login_timeout_s, self._login_too_slow)

    def __repr__(self) -> str:
        phase = "login" if self.login else "stream" if self.stream else "ours" if self._task else "relay"
        return f"<Session {self.number} id={self.connection_id} {phase}>"

    @property
    def connection_id(self) -> int:
        """The server's own number for this connection, which the client sees as well."""
        return self.info.connection_id if self.info else 0

    @property
    def capabilities(self) -> int:
        """What client and server agreed upon."""
        return self.info.capabilities if self.info else 0

    @property
    def status(self) -> int:
        """The status flags that the server sent last."""
        return self._walker.status

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._walker.in_transaction

    @property
    def no_backslash_escapes(self) -> bool:
        """Whether the session's sql_mode says so."""
        return bool(self.status & NO_BACKSLASH_ESCAPES)

    @property
    def in_step(self) -> bool:
        """Whether the server is there and owes nothing: then a statement of ours can fail and the connection go on."""
        return self._walker.idle and self._internal_query is None and self._server_ready

    @property
    def idle(self) -> bool:
        """Whether the client could be sent away without breaking anything off."""
        return self.login is None and self._task is None and self._walker.idle and not self.in_transaction

    # The client's leg.

    def client_connected(self, transport: asyncio.Transport) -> None:
        """A client is here."""
        self.client = transport
        self.proxy.session_begun(self)

    def server_connected(self, transport: asyncio.Transport) -> None:
        """Its backing connection is open."""
        self.server = transport
        host, port = (transport.get_extra_info("peername") or self.proxy.backend)[:2]
        self.origin = Origin((str(host), int(port)))
        if self.proxy.settings.proxy_protocol:
            transport.write(announcement(self.client, transport))
        self._server_ready = True
        if self._closed:
            transport.abort()

    def client_sent(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._farewell is not None:
            return
        try:
            if self.login is not None:
                self._client_said_in_login(self.login, data)
                return
            at_rest = self._task is None and not self._withheld and self._change_user is None
            if (
                at_rest
                and self._framer.is_command(data)
                and (pending := self.classifier.classify_fast(data)) is not NOT_FAST
            ):
                self._relay(data[HEADER], pending, data)
                return
            for event in self._framer.feed(data):
                if self._withheld or self._task is not None or not self._pass(event):
                    self._withhold(event)
            self._tell_memory()
        except LoginRefused as refused:
            self.hang_up(refused.error)
        except WireError as error:
            self.hang_up(ServerError(error.code, error.sqlstate, str(error)))
        except Exception as error:  # noqa: BLE001  # Anything else is a fault of ours: the client is told so.
            self._fail(error)

    def client_lost(self) -> None:
        """The client is gone: free its backing connection and what it holds."""
        if self._closed:
            return
        self._closed = True
        self._farewell = None
        self.proxy.statement_memory.holds(self, 0, 0)
        self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._server_ready:
            self._leave_server()
        self.proxy.session_closed(self)

    def _leave_server(self) -> None:
        """Close the backing connection, when what the client asked for last is done, but soon."""
        if self.login is not None or self._client_is_full or self._walker.idle:
            self.server.close()
        else:
            # A server that computes, or waits for a lock, does not see that nobody is there.
            self._deadline = asyncio.get_running_loop().call_later(
                self.proxy.settings.abandoned_s, self.proxy.abandoned, self
            )

    def client_full(self) -> None:
        """The client does not read: stop reading for it."""
        self._client_is_full = True
        if self.stream is not None:
            self.stream.pause()
        elif self._server_ready:
            self.server.pause_reading()

    def client_has_room(self) -> None:
        """The client reads again."""
        self._client_is_full = False
        if self._server_ready and not self.server.is_closing():
            self.server.resume_reading()
        if self.stream is not None:
            self.stream.resume()

    # The server's leg.

    def server_sent(self, data: bytes) -> None:
        """Bytes from the server."""
        try:
            if self.login is not None:
                self._server_said_in_login(self.login, data)
                return
            apart = self._closed or self._change_user or self._internal_query or self.stream
            if not apart:
                self.client.write(data)  # First of all: the client need not wait for what is thought about it.
            events = self._walker.feed(data)
            if apart and not self._closed:  # If it is, the client is gone, and there is nobody to tell.
                self._server_said_apart(data)
            for event in events:
                if isinstance(event, FileRequest):
                    self._framer.enter_infile()
                else:
                    self._finished(event)
        except LoginRefused as refused:
            self.hang_up(refused.error)
            return
        except Exception as error:  # noqa: BLE001
            self._cannot_follow(error) if isinstance(error, WireError) else self._fail(error)
            return
        if self._closed:
            if self._walker.idle or self._framer.infile:
                self.server.close()
        elif self._farewell is not None:
            if self._walker.idle:
                self.hang_up(self._farewell)
        elif (self._withheld or self._client_is_held) and self._task is None:
            self._resume()

    def _cannot_follow(self, error: WireError) -> None:
        log.warning("%r: the server's answer cannot be followed: %s", self, error)
        if self._task is not None:  # Nothing of it has been shown to the client.
            self.hang_up(ServerError(error.code, error.sqlstate, f"ackstream cannot follow the server: {error}"))
        self.client.close()

    def _fail(self, error: Exception) -> None:
        """Something that was not foreseen was raised outside a statement of ours: where the bytes stand is not known
        any more, so the connection ends."""
        log.error("%r: the connection ends", self, exc_info=error)
        self.hang_up(unforeseen(error, self.number))

    def server_lost(self) -> None:
        """The server closed the connection: so does the proxy, having said why where it can."""
        self._server_ready = False
        if self._closed:
            self._deadline.cancel()
            return
        # It can acknowledge nothing any more, and may take long to read what it was sent.
        self.proxy.engine.disconnected(self.number)
        if self._internal_query is not None and not self._internal_query.answered.done():
            self._internal_query.answered.set_exception(ConnectionResetError("the server closed the connection"))
        if self.stream is not None:
            self.stream.abort(SERVER_LOST)
        elif self._task is None and not (self.login is not None and self.login.waiting):
            self.client.close()

    def server_full(self) -> None:
        """The server does not read."""
        self._server_is_full = True
        self.client.pause_reading()

    def server_has_room(self) -> None:
        """The server reads again."""
        self._server_is_full = False
        self._read_client()

    def refuse_login(self, error: ServerError) -> None:
        """No server stands behind the proxy, or no room: say so in the greeting's place."""
        self._write_client(frame(make_err(error.code, error.sqlstate, error.message, protocol41=False), 0))
        self.client.close()

    # What others may ask of a session.

    def interrupt(self, error: ServerError) -> None:
        """End the running statement of ours, as KILL QUERY does; nothing otherwise."""
        self.interrupted = error
        if self.stream is not None:
            self.stream.abort(error)

    def server_is(self, name: str | None) -> None:
        """The server has said which one it is."""
        if name is not None and name != self.origin.name:
            self.origin = replace(self.origin, name=name)
            self.proxy.server_is(self.origin)

    def check_interrupted(self) -> None:
        """Raises the error that the running statement of ours is to end with, if somebody wants it to end.

        To be called after each await of it, before what it did can no longer be taken back.
        """
        if self.interrupted is not None:
            raise self.interrupted.again()

    def hang_up(self, error: ServerError) -> None:
        """Close the connection, having said why: in the place of the answer that is owed, or behind those under way."""
        relay = self.login or self._change_user
        if relay is not None:
            self._write_client(relay.refusal(error))
        elif self.stream is not None:
            self.stream.abort(error)
            self.stream.close(self.capabilities, self.status)
        elif self._task is None and not self._walker.idle and self._server_ready:
            self._farewell = error  # In the middle of an answer there is no place for it.
            return
        else:
            self.send_error(error)
        self.client.close()

    # What statements of ours use (proxy.statements).

    async def internal_query(self, text: bytes) -> Answer:
        """Run a statement of ours on this connection; its answer is not shown to the client."""
        return await self.internal_command(make_query(text, attributes=self.classifier.attributes))

    async def internal_command(self, payload: bytes) -> Answer:
        """The same for any command with an answer."""
        assert self._internal_query is None
        if not self._walker.idle:
            raise WireError("the server speaks out of turn")
        if not self._server_ready:
            raise ConnectionResetError("the server closed the connection")
        self._internal_query = InternalQuery()
        try:
            self._walker.expect(payload[0], None)
            self.server.write(frame(payload, 0))
            return await self._internal_query.answered
        finally:
            self._internal_query = None

    def forward(self, payload: bytes, pending: PendingCommand) -> None:
        """Send a command in the client's name; its answer goes to the client."""
        self.classifier.preparing = isinstance(pending, Preparing)
        self._walker.expect(payload[0], pending)
        self._write_server(frame(payload, 0))

    def show(self, answer: Answer, pending: PendingCommand) -> None:
        """Pass the answer to a command of ours on to the client, as if the client had sent that command."""
        self.classifier.command_answered(replace(answer.outcome, pending=pending))
        self.send(b"".join(frame(packet.payload, packet.seq) for packet in answer.packets))

    def send_error(self, error: ServerError) -> None:
        """Answer the client's command with an error."""
        self._write_client(frame(make_err(error.code, error.sqlstate, error.message), 1))

    def send(self, data: bytes) -> None:
        """Send packets to the client."""
        self._write_client(data)

    # Login.

    def _carry_out(self, steps: Sequence[Step]) -> None:
        """What a login asks for. Beginning TLS may bring more from the client at once, so it comes last."""
        for step in steps:
            match step:
                case ToClient(data):
                    self._write_client(data)
                case ToServer(data):
                    self._write_server(data)
                case SecureServer():
                    self._secure_server()
                case SecureClient(rest):
                    self._secure_client(rest)

    def _secure_client(self, rest: bytes) -> None:
        context = self.proxy.tls.to_client
        assert context is not None
        layer = TlsLayer(self.client, context, server_side=True, failed=self._client_tls_failed)
        self.client = layer
        layer.start(rest)

    def _secure_server(self) -> None:
        if not self._server_ready:
            return
        host, _ = self.proxy.backend
        layer = TlsLayer(
            self.server, self.proxy.tls.to_server, server_side=False, host=host, failed=self._server_tls_failed
        )
        self.server = layer
        layer.start()

    def _client_tls_failed(self, reason: str) -> None:
        log.info("%r: TLS with the client failed: %s", self, reason)

    def _server_tls_failed(self, reason: str) -> None:
        log.warning("%r: TLS with the server failed: %s", self, reason)
        self.hang_up(
            ServerError(UNREACHABLE, "HY000", f"ackstream has no TLS connection to the backing server: {reason}")
        )

    def _server_said_apart(self, data: bytes) -> None:
        """What is not for the client as it is."""
        if self._change_user is not None:
            self._carry_out(self._change_user.from_server(data))
            if self._change_user.over:
                self._change_user = None
        elif self._internal_query is not None:
            self._internal_query.feed(data)

    def _client_said_in_login(self, login: LoginRelay, data: bytes) -> None:
        self._carry_out(login.from_client(data))
        if login.refused:
            self.client.close()

    def _server_said_in_login(self, login: LoginRelay, data: bytes) -> None:
        self._carry_out(login.from_server(data))
        if login.refused:
            self.client.close()
        elif login.done is not None:
            self._deadline.cancel()
            self.login = None
            self.info = login.done
            self.classifier.logged_in(self.capabilities)
            self._walker = ResponseWalker(self.capabilities, login.done.status)
            self.proxy.session_opened(self)

    def _login_too_slow(self) -> None:
        log.info("%r: not logged in after %g s", self, self.proxy.settings.login_timeout_s)
        self.client.abort()

    # Relay.

    def _pass(self, event: Event) -> bool:
        """Send an event on to the server, or begin to carry it out here; False to be asked again when all is quiet."""
        if isinstance(event, Dropped):
            return self._refuse_dropped(event)
        if not isinstance(event, Command):
            self._carry_out(self._change_user.from_client(event)) if self._change_user else self._write_server(event)
            return True
        if self._change_user is not None:
            return False
        if event.byte == COM_CHANGE_USER and self.info is not None and self.info.dialogue.translates:
            return self._begin_change_of_user(event, self.info)
        if self.classifier.preparing and event.byte in ABOUT_STATEMENTS:
            return False  # It may be about the statement whose number we are waiting for.
        if event.byte in SILENT and len(event.data) - HEADER < SILENT[event.byte]:
            raise WireError("a command that has no answer is cut off")  # MySQL answers that, MariaDB does not.
        verb, pending = self.classifier.classify(event)
        if (verb is not Verb.OTHER and verb in QUEUE_STATEMENT_VERBS) or (
            pending is not None and isinstance(pending, CarriedOutHere)
        ):
            return self._begin(verb, event)
        long_data = event.byte == COM_STMT_SEND_LONG_DATA
        self._relay(event.byte, pending, self.classifier.renumbered(event) if long_data else event.data)
        return True

    def _relay(self, byte: int, pending: PendingCommand, data: bytes) -> None:
        """Send a command on to the server, and expect its answer."""
        outstanding = self._walker.expect(byte, pending)
        self._write_server(data)
        if outstanding > self._pipelined_max:
            self._hold_client()

    def drop_statement(self) -> None:
        """Forget the statement that is being gathered: all clients together hold too much."""
        event = self._framer.drop()
        try:
            if self._withheld or self._task is not None or not self._pass(event):
                self._withhold(event)
        except WireError as error:
            self.hang_up(ServerError(error.code, error.sqlstate, str(error)))

    def _refuse_dropped(self, command: Dropped) -> bool:
        """Answer a statement whose bytes are gone."""
        if self._change_user is not None or not self._walker.idle:
            return False
        error = self.proxy.statement_memory.refusal
        if command.byte in EXECUTIONS:  # The server has long data for it, which the next one would take for its own.
            raise PacketTooLarge(error.message)
        self.send_error(error)
        return True

    def _tell_memory(self) -> None:
        """What is held of the client's, for the bound over all sessions."""
        if not self._closed:
            self.proxy.statement_memory.holds(self, self._framer.gathered, self._withheld_bytes + self._running_bytes)

    def _begin_change_of_user(self, command: Command, login: LoggedIn) -> bool:
        """A dialogue follows in which a password may be shown: fit it to the two legs, as the login was."""
        if not self._walker.idle:
            return False
        self.classifier.session_command(command)
        self._walker.expect(command.byte, None)
        self._change_user = ChangeUserRelay(login)
        self._carry_out(self._change_user.begin(command.payload))
        return True

    def _finished(self, outcome: Outcome[PendingCommand]) -> None:
        """The server has answered a command."""
        question = self._internal_query
        if question is not None:
            question.finish(outcome)
            return
        if outcome.command is None and self.stream is not None:
            # The server hangs up, and said why; a stream's client must hear it in its place.
            self.stream.abort(SERVER_LOST)
            return
        if outcome.pending is not None or outcome.command not in UNREMARKABLE:
            self.classifier.command_answered(outcome)
            if isinstance(outcome.pending, Killed) and outcome.ok:
                self.proxy.killed(outcome.pending.kill, self.origin)
        self.commit_notices.command_finished(outcome)

    # Ours.

    def _begin(self, verb: Verb, command: Command) -> bool:
        if not self._walker.idle:
            return False
        if not command.whole:
            # It was sent ahead of the answer that would have said whose it is.
            raise PacketTooLarge("a statement of ackstream's is too long to be sent ahead")
        self.interrupted = None
        self._running_bytes = len(command.data)
        self._task = asyncio.get_running_loop().create_task(
            self.proxy.carry_out(self, verb, command.payload), name=f"session {self.number}: {verb.name}"
        )
        self._task.add_done_callback(self._queue_statement_done)
        return True

    def _queue_statement_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.stream = None
        self._running_bytes = 0
        if task.cancelled() or self._closed or self.client.is_closing():
            return
        error = task.exception()
        if isinstance(error, WireError):
            self._cannot_follow(error)
        elif error is not None and not isinstance(error, ConnectionError):
            log.error("%r: a statement failed", self, exc_info=error)
        if error is not None or not self._server_ready:
            self.client.close()
            return
        if self._client_is_full:
            self.server.pause_reading()  # A stream has filled it, and relaying goes on.
        self._resume()

    def _withhold(self, event: Event) -> None:
        self._withheld.append(event)
        self._withheld_bytes += _size(event)
        if self._withheld_bytes > self.proxy.settings.withheld_bytes_max or self.proxy.statement_memory.full:
            self._hold_client()

    def _hold_client(self) -> None:
        """Read no more from the client until what it sent has been dealt with."""
        self._client_is_held = True
        self.client.pause_reading()

    def _read_client(self) -> None:
        """Read from the client again, if nothing speaks against it."""
        if not (self._client_is_held or self._server_is_full or self.client.is_closing()):
            self.client.resume_reading()

    def _resume(self) -> None:
        """Go on with what the client sent meanwhile."""
        try:
            while self._withheld and self._task is None:
                event = self._withheld[0]
                if not self._pass(event):
                    return
                self._withheld.popleft()
                self._withheld_bytes -= _size(event)
            if self._client_is_held and self._walker.outstanding <= self._pipelined_max:
                self._client_is_held = False
                self._read_client()
        except WireError as error:
            self.hang_up(ServerError(error.code, error.sqlstate, str(error)))
        finally:
            self._tell_memory()

    def _write_server(self, data: bytes) -> None:
        if data and self._server_ready:
            self.server.write(data)

    def _write_client(self, data: bytes) -> None:
        if data and not self.client.is_closing():
            self.client.write(data)


def _size(event: Event) -> int:
    """The bytes that are held of it."""
    return len(event.data) if isinstance(event, Command) else len(event) if isinstance(event, bytes) else 0
