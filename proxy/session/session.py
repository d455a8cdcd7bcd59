"""One client connection with its backing connection: logging in, relaying, and carrying out queue
statements.

A session has three phases. *Login*: the server's greeting and the dialogue that follows are passed
on, so that the server authenticates the client itself. *Relay*: bytes are passed on unchanged. The
CommandRelay classifies each command by its first bytes, and the walker follows the structure of the
answers, which shows when the connection is quiet, whether a transaction is open, and what a
statement changed. *Statement*: a queue statement is carried out by proxy.statements, which may run
internal queries on the backing connection, with this client's rights. Whatever else the client
sends meanwhile is withheld.

Everything runs on the event loop's thread. A session's only task is the one that runs a queue
statement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.packets import WireError, frame
from engine.store.opening import BackendAddress
from engine.store.port import Origin
from engine.store.route import READ_ONLY
from proxy.login.dialogue import LoginRefused
from proxy.login.relay import LoggedIn
from proxy.session.answers import Answers, InternalQueries, OnPayloads, RowQuery, ServerAnswer
from proxy.session.authentication import Authentication
from proxy.session.command_classifier import UNREMARKABLE, CommandClassifier
from proxy.session.command_relay import CommandRelay
from proxy.session.commit_notices import CommitNotices, Killed, PendingCommand, Preparing, Settled
from proxy.session.connections import Connections
from proxy.session.known_streams import KnownStreams
from proxy.session.ports import Begun
from proxy.session.rephrasing import Rephrase, Rephrasing
from proxy.session.stream import SERVER_LOST, Stream, unforeseen
from proxy.transport.proxy_protocol import announcement
from proxy.wire.mimic_adapter import ServerStatus
from proxy.wire.packets import UNREACHABLE, ServerError, make_err
from proxy.wire.params import make_query
from proxy.wire.walker import FileRequest, Outcome, ResponseWalker
from sqlrewrite.classify import Verb

if TYPE_CHECKING:
    from proxy.session.ports import SessionHost

log = logging.getLogger(__name__)

NO_BACKSLASH_ESCAPES = int(ServerStatus.SERVER_STATUS_NO_BACKSLASH_ESCAPES)


class Session:
    """One client connection with its backing connection, and their state in the protocol."""

    def __init__(self, proxy: SessionHost[Session], number: int, *, client_is_local: bool = False) -> None:
        self.proxy = proxy
        self._traffic = proxy.traffic
        self.number = number
        self.backend: BackendAddress | None = None
        """The address of the server that the backing connection leads to; None before it is
        opened."""
        self.origin: Origin
        """The server that the backing connection leads to."""
        self.stream: Stream | None = None
        self.interrupted: ServerError | None = None
        """The error that the running queue statement is to end with, if it was interrupted: checked
        between its steps."""
        self.classifier = CommandClassifier(proxy.settings.rights_max_age_s, traces=proxy.settings.tracing)
        self.commit_notices = CommitNotices(proxy.engine, number)
        self.known_streams = KnownStreams()
        self.codec = "utf-8"
        self.charset = "utf8mb4"
        """The client's character set, as last read from the server; `codec` is Python's name of
        it."""
        self._connections = Connections(
            proxy.tls,
            client_tls_failed=self._client_tls_failed,
            server_tls_failed=self._server_tls_failed,
        )
        self._authentication = Authentication(self._connections, proxy.tls.policy, client_is_local=client_is_local)
        self._relay = CommandRelay(
            self,
            self._connections,
            self._authentication,
            self.classifier,
            proxy.statement_memory,
            proxy.settings,
            proxy.traffic,
        )
        self._walker: ResponseWalker[PendingCommand]
        self._task: asyncio.Task[None] | None = None
        self._acknowledging = False
        """Whether the engine carries out an ACK, without a task."""
        self._internal_answers: InternalQueries | None = None
        self._rephrasing: Rephrasing | None = None
        """Follows the answer under way if its error is to be put into other words."""
        self._farewell: ServerError | None = None
        """The error that ends the connection as soon as the server has answered everything."""
        self._closed = False
        self._deadline: asyncio.TimerHandle
        """Ends a login that takes too long, or a server's last statement for a client that is gone."""

    def __repr__(self) -> str:
        phase = (
            "login" if self.logging_in else "stream" if self.stream else "statement" if self._carrying_out else "relay"
        )
        return f"<Session {self.number} id={self.connection_id} {phase}>"

    @property
    def client(self) -> asyncio.Transport:
        """The client connection."""
        return self._connections.client

    @property
    def server(self) -> asyncio.Transport:
        """The backing connection."""
        return self._connections.server

    @property
    def logging_in(self) -> bool:
        """Whether the login is not over."""
        return self._authentication.login is not None

    @property
    def info(self) -> LoggedIn | None:
        """Who logged in; None before that."""
        return self._authentication.info

    @property
    def connection_id(self) -> int:
        """The server's id of the backing connection, which the client sees as well."""
        return self.info.connection_id if self.info else 0

    @property
    def capabilities(self) -> int:
        """The capabilities that client and server agreed upon."""
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
        """Whether the session's sql_mode has NO_BACKSLASH_ESCAPES."""
        return bool(self.status & NO_BACKSLASH_ESCAPES)

    @property
    def server_name(self) -> str | None:
        """The server's name for Origin; None if it was not read yet."""
        return self.origin.name

    @property
    def in_step(self) -> bool:
        """Whether the server is there and owes no answer, so that the connection survives a queue
        statement's failure."""
        return self._walker.idle and self._internal_answers is None and self._connections.server_ready

    @property
    def idle(self) -> bool:
        """Whether the connection can be closed without aborting anything."""
        return not self.logging_in and not self._carrying_out and self._walker.idle and not self.in_transaction

    @property
    def _carrying_out(self) -> bool:
        """Whether a statement of the client's is carried out here, not by the server."""
        return self._task is not None or self._acknowledging

    # The client connection.

    def client_connected(self, transport: asyncio.Transport) -> None:
        """A client has connected."""
        self._connections.client = transport
        # Not earlier: a process that was stopped in between would run the timer before it has a client to end.
        login_timeout_s = self.proxy.settings.login_timeout_s
        self._deadline = asyncio.get_running_loop().call_later(login_timeout_s, self._login_too_slow)
        self.proxy.session_begun(self)

    def server_connected(self, transport: asyncio.Transport) -> None:
        """The backing connection is open."""
        self._connections.server = transport
        assert self.backend is not None
        self._connections.server_host = self.backend.host
        host, port = (transport.get_extra_info("peername") or self.backend.target)[:2]
        self.origin = Origin((str(host), int(port)))
        if self.proxy.settings.proxy_protocol:
            transport.write(announcement(self.client, transport))
        self._connections.server_ready = True
        if self._closed:
            transport.abort()

    def client_sent(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._farewell is not None:
            return
        self._traffic.client_bytes += len(data)
        try:
            if (login := self._authentication.login) is not None:
                self._authentication.client_sent(login, data)
            else:
                self._relay.feed(data)
        except LoginRefused as refused:
            self.hang_up(refused.error)
        except WireError as error:
            self.hang_up(ServerError(error.code, error.sqlstate, str(error)))
        except Exception as error:  # noqa: BLE001  # Anything else is a fault of the proxy.
            self._fail(error)

    def client_ended(self) -> None:
        """The client sends nothing more. If it does not read either, it is gone: what it holds is released now,
        and not when its system gives the connection up."""
        if self._connections.client_is_full:
            self.client.abort()

    def client_lost(self) -> None:
        """The client is gone: close its backing connection and release what it holds."""
        if self._closed:
            return
        self._closed = True
        self._farewell = None
        self._relay.close()
        self._deadline.cancel()
        if self.stream is not None:
            self.stream.connection_lost()
        if self._task is not None:
            self._task.cancel()
        if self._connections.server_ready:
            self._leave_server()
        self.proxy.session_closed(self)

    def _leave_server(self) -> None:
        """Close the backing connection when the client's last statement is done, or after
        `abandoned_s`."""
        if self.logging_in or self._connections.client_is_full or self._walker.idle:
            self.server.close()
        else:
            # A server that computes, or waits for a lock, does not notice that the client is gone.
            self._deadline = asyncio.get_running_loop().call_later(
                self.proxy.settings.abandoned_s, self.proxy.abandoned, self
            )

    def client_full(self) -> None:
        """The client does not read."""
        self._connections.client_full(self.stream)

    def client_has_room(self) -> None:
        """The client reads again."""
        self._connections.client_has_room(self.stream)

    # The backing connection.

    def server_sent(self, data: bytes) -> None:
        """Bytes from the server."""
        self._traffic.server_bytes += len(data)
        try:
            if (login := self._authentication.login) is not None:
                if self._authentication.server_sent(login, data):
                    self._logged_in()
                elif login.error is not None:
                    self.proxy.login_refused(login.error)
                return
            change_user = self._authentication.change_user
            not_relayed = self._closed or change_user or self._internal_answers or self.stream or self._rephrasing
            if not not_relayed:
                # Before the answer is analysed, so that the client does not wait for that.
                self._connections.client.write(data)
            events = self._walker.feed(data)
            if not_relayed and not self._closed:
                if change_user is not None:
                    self._authentication.server_continues(change_user, data)
                elif self._internal_answers is not None:
                    self._internal_answers.feed(data)
                elif self._rephrasing is not None:
                    self._send_rephrased(self._rephrasing, data, events)
            for event in events:
                if isinstance(event, FileRequest):
                    self._relay.file_requested()
                else:
                    self._finished(event)
        except LoginRefused as refused:
            self.hang_up(refused.error)
            return
        except Exception as error:  # noqa: BLE001
            self._cannot_follow(error) if isinstance(error, WireError) else self._fail(error)
            return
        if self._closed:
            if self._walker.idle or self._relay.sends_file:
                self.server.close()
        elif self._farewell is not None:
            if self._walker.idle:
                self.hang_up(self._farewell)
        elif (self._relay.withheld or self._connections.client_is_held) and not self._carrying_out:
            self._relay.resume()

    def _send_rephrased(
        self, rephrasing: Rephrasing, data: bytes, events: Sequence[Outcome[PendingCommand] | FileRequest]
    ) -> None:
        self._connections.client.write(rephrasing.feed(data, events))
        if rephrasing.over:
            self._rephrasing = None

    def _cannot_follow(self, error: WireError) -> None:
        log.warning(
            "%r: the server's answer cannot be followed: %s", self, error, extra={"event": "answer.not_followed"}
        )
        if self._carrying_out:  # The client has received nothing of the answer.
            self.hang_up(ServerError(error.code, error.sqlstate, f"ackstream cannot follow the server: {error}"))
        self.client.close()

    def _fail(self, error: Exception) -> None:
        """End the connection: an unforeseen error outside a queue statement leaves it unknown where
        in the protocol the two sides are."""
        log.error("%r: the connection ends", self, exc_info=error, extra={"event": "session.fault"})
        self.hang_up(unforeseen(error, self.number))

    def leave_server_unless(self, address: BackendAddress) -> None:
        """End the backing connection unless it leads to this address, as if its server had ended
        it."""
        if self._connections.server_ready and self.backend != address:
            self.server.abort()
            self.server_lost()  # At once, so that what it holds is released as its last act.

    def server_lost(self) -> None:
        """The server closed the connection: close the client's, with an error where there is a
        place for one."""
        self._connections.server_ready = False
        if self._closed:
            self._deadline.cancel()
            return
        self.proxy.server_in_doubt()
        if self.stream is not None:
            self.stream.connection_lost()
        # The client can acknowledge nothing any more, and may take long to read what was written to
        # it.
        self.proxy.engine.disconnected(self.number)
        if self._internal_answers is not None and not self._internal_answers.answered.done():
            self._internal_answers.answered.set_exception(ConnectionResetError("the server closed the connection"))
        if self.stream is not None:
            self.stream.abort(SERVER_LOST)
        elif not self._carrying_out and not ((login := self._authentication.login) is not None and login.waiting):
            self.client.close()

    def server_full(self) -> None:
        """The server does not read."""
        self._connections.server_full()

    def server_has_room(self) -> None:
        """The server reads again."""
        self._connections.server_has_room()

    # What the listener and other sessions call.

    def refuse_login(self, error: ServerError) -> None:
        """Send an error in place of the greeting, and close: there is no server, or no room for
        another session."""
        self.send(frame(make_err(error.code, error.sqlstate, error.message, protocol41=False), 0))
        self.client.close()

    def interrupt(self, error: ServerError) -> None:
        """End the running queue statement with this error, as KILL QUERY does; without one, do
        nothing."""
        self.interrupted = error
        if self.stream is not None:
            self.stream.abort(error)

    def server_is(self, name: str | None) -> None:
        """The server has returned its name."""
        if name is not None and name != self.origin.name:
            self.origin = replace(self.origin, name=name)
            self.proxy.server_is(self.origin)

    def check_interrupted(self) -> None:
        """Raise the error that the running queue statement is to end with, if it was interrupted.

        To be called after each await of the statement, before something that cannot be undone.
        """
        if self.interrupted is not None:
            raise self.interrupted.again()

    def hang_up(self, error: ServerError) -> None:
        """Close the connection with this error, in place of the answer that is owed or behind those
        under way."""
        if (refusal := self._authentication.refusal(error)) is not None:
            self.send(refusal)
        elif self.stream is not None:
            self.stream.abort(error)
            self.stream.close(self.capabilities, self.status)
        elif not self._carrying_out and not self._walker.idle and self._connections.server_ready:
            self._farewell = error  # An error cannot stand in the middle of an answer.
            return
        else:
            self.send_error(error)
        self.client.close()

    # What queue statements use (proxy.session.ports).

    def read_server(self) -> None:
        """Read the server, however full the client is: nothing of what comes is for it."""
        self._connections.read_server()

    async def internal_query(self, text: bytes) -> ServerAnswer:
        """Run a statement on the backing connection; its answer is not sent to the client."""
        return (await self.internal_queries((text,))).split()[0]

    async def internal_queries(self, texts: Sequence[bytes]) -> Answers:
        """Run several statements, all written together; none of their answers is sent to the
        client. Each runs, whatever the others return."""
        attributes = self.classifier.attributes
        payloads = [make_query(text, attributes=attributes) for text in texts]
        return await self._answered(payloads, InternalQueries(len(payloads)))

    async def internal_rows(self, command: bytes, on_rows: OnPayloads) -> ServerAnswer:
        """Run a command that returns rows, which are passed on (RowQuery)."""
        return (await self._answered((command,), RowQuery(self.capabilities, on_rows))).split()[0]

    async def internal_command(self, payload: bytes) -> ServerAnswer:
        """Run any command with an answer, as `internal_query` runs a statement."""
        return (await self._answered((payload,), InternalQueries())).split()[0]

    async def _answered(self, payloads: Sequence[bytes], queries: InternalQueries) -> Answers:
        assert self._internal_answers is None
        if not self._walker.idle:
            raise WireError("the server speaks out of turn")
        if not self._connections.server_ready:
            raise ConnectionResetError("the server closed the connection")
        self._internal_answers = queries
        try:
            for payload in payloads:
                self._walker.expect(payload[0], None)
            self.server.write(b"".join(frame(payload, 0) for payload in payloads))
            return await queries.answered
        finally:
            self._internal_answers = None

    def forward(
        self,
        payload: bytes,
        pending: PendingCommand,
        rephrase: Rephrase | None = None,
        *,
        keeps_context: bool = False,
    ) -> None:
        """Send a command in the client's name; its answer goes to the client, an error in the words that
        `rephrase` returns. `keeps_context`: it certainly changes nothing of the session's context."""
        if rephrase is not None:
            self.rephrase_error(rephrase)
        self.classifier.preparing = isinstance(pending, Preparing)
        if isinstance(pending, Settled):
            self.classifier.in_followed_transaction = True
            self.classifier.next_transaction_is_set = False
        if not keeps_context:
            self.classifier.shown_context = None
        self._walker.expect(payload[0], pending)
        self._connections.write_server(frame(payload, 0))

    def rephrase_error(self, rephrase: Rephrase) -> None:
        """Put an error that is the answer to the next command into other words. The server owes no
        answer."""
        self._rephrasing = Rephrasing(rephrase)

    def show(self, answer: ServerAnswer, pending: PendingCommand) -> None:
        """Send the answer to an internal command to the client, as if the client had sent that
        command."""
        self.classifier.command_answered(answer.outcome._replace(pending=pending))
        self.send(b"".join(frame(packet.payload, packet.seq) for packet in answer.packets))

    def send_error(self, error: ServerError) -> None:
        """Answer the client's command with an error."""
        self.send(frame(make_err(error.code, error.sqlstate, error.message), 1))

    def send(self, data: bytes) -> None:
        """Send packets to the client."""
        self._connections.write_client(data)

    # Login.

    def _client_tls_failed(self, reason: str) -> None:
        log.info("%r: TLS with the client failed: %s", self, reason, extra={"event": "client.tls_failed"})

    def _server_tls_failed(self, reason: str) -> None:
        log.warning("%r: TLS with the server failed: %s", self, reason, extra={"event": "server.tls_failed"})
        self.hang_up(
            ServerError(UNREACHABLE, "HY000", f"ackstream has no TLS connection to the backing server: {reason}")
        )

    def _logged_in(self) -> None:
        assert self.info is not None
        self._deadline.cancel()
        self.classifier.logged_in(self.capabilities)
        self._walker = self._relay.walker = ResponseWalker(self.capabilities, self.info.status)
        self.proxy.session_opened(self)

    def _login_too_slow(self) -> None:
        log.info(
            "%r: not logged in after %g s",
            self,
            self.proxy.settings.login_timeout_s,
            extra={"event": "login.timed_out"},
        )
        self.client.abort()

    # Answers.

    def _finished(self, outcome: Outcome[PendingCommand]) -> None:
        """The server has answered a command."""
        if outcome.error_code in READ_ONLY:
            self.proxy.server_in_doubt()
        if self._internal_answers is not None:
            self._internal_answers.finish(outcome)
            return
        if outcome.command is None and self.stream is not None:
            # The server closes the connection with an error. The client of a stream gets one behind
            # its rows.
            self.stream.abort(SERVER_LOST)
            return
        if outcome.pending is not None or outcome.command not in UNREMARKABLE:
            self.classifier.command_answered(outcome)
            if isinstance(outcome.pending, Killed) and outcome.ok:
                self.proxy.killed(outcome.pending.kill, self.origin)
        self.commit_notices.command_finished(outcome)
        followed = self.commit_notices.follows_transaction
        if followed or self._walker.idle:  # Else an ACK may be under way.
            self.classifier.in_followed_transaction = followed

    # Queue statements.

    def begin_statement(self, verb: Verb, payload: bytes) -> bool:
        """Carry out a queue statement of the client's. The server owes no answer. Returns True if that was
        done at once: the command was forwarded."""
        self._traffic.queue_statements[verb] += 1
        self.interrupted = None
        match self.proxy.begin_settling(self, verb, payload, self._ack_over):
            case Begun.FORWARDED:
                return True
            case Begun.UNDER_WAY:
                self._acknowledging = True
            case Begun.NOTHING:
                self._begin_task(self.proxy.carry_out(self, verb, payload), verb.name)
        return False

    def _ack_over(self) -> None:
        """An ACK that the engine has carried out is answered, or was forwarded."""
        self._acknowledging = False
        self._statement_over()

    def _begin_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(work, name=f"session {self.number}: {name}")
        self._task.add_done_callback(self._queue_statement_done)

    def _queue_statement_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.stream = None
        error = None if task.cancelled() or self._gone else task.exception()
        if isinstance(error, WireError):
            self._cannot_follow(error)
        elif error is not None and not isinstance(error, ConnectionError):
            log.error("%r: a statement failed", self, exc_info=error, extra={"event": "statement.fault"})
        if error is not None:
            self.client.close()
        self._statement_over()

    def _statement_over(self) -> None:
        """Continue with what the client has sent meanwhile."""
        self._relay.statement_over()
        if self._gone:
            return
        if not self._connections.server_ready:
            self.client.close()
            return
        self._connections.stream_over()
        self._relay.resume()

    @property
    def _gone(self) -> bool:
        return self._closed or self.client.is_closing()
