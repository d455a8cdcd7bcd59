"""Protocols by which parts of the proxy use each other without importing each other.

`ClientSession` is a session as queue statements use it. `SessionHost` is what a session needs of
the listener.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from engine.service import Engine
from engine.store.port import Origin
from proxy.login.relay import LoggedIn
from proxy.session.answers import Answers, OnPayloads, ServerAnswer
from proxy.session.command_classifier import CommandClassifier
from proxy.session.commit_notices import CommitNotices, PendingCommand
from proxy.session.known_streams import KnownStreams
from proxy.session.rephrasing import Rephrase
from proxy.session.statement_memory import StatementMemory
from proxy.session.stream import Stream
from proxy.session.traffic import Traffic
from proxy.settings import Settings
from proxy.transport.tls import Tls
from proxy.wire.packets import ServerError
from sqlrewrite.classify import Kill, Verb


class Begun(enum.Enum):
    """What was done of a statement at once, without a task."""

    NOTHING = enum.auto()
    """Nothing: a task has to carry it out."""
    UNDER_WAY = enum.auto()
    """It is carried out, and a callback follows its end."""
    FORWARDED = enum.auto()
    """It was sent to the server in the client's name."""


class ClientTransport(Protocol):
    """The client connection, as queue statements use it."""

    def close(self) -> None:
        """Close the connection when everything is written."""

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio's transports do."""


class ClientSession(Protocol):
    """One client's session, as queue statements use it. They run one at a time."""

    classifier: CommandClassifier
    commit_notices: CommitNotices
    stream: Stream | None
    interrupted: ServerError | None
    charset: str
    codec: str
    known_streams: KnownStreams
    origin: Origin

    @property
    def number(self) -> int:
        """The proxy's own number of the session. It is never used again."""

    @property
    def connection_id(self) -> int:
        """The server's id of the backing connection."""

    @property
    def info(self) -> LoggedIn | None:
        """Who logged in; None before that."""

    @property
    def client(self) -> ClientTransport:
        """The client connection."""

    @property
    def capabilities(self) -> int:
        """The capabilities that client and server agreed upon."""

    @property
    def status(self) -> int:
        """The status flags that the server sent last."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    @property
    def no_backslash_escapes(self) -> bool:
        """Whether the session's sql_mode has NO_BACKSLASH_ESCAPES."""

    @property
    def in_step(self) -> bool:
        """Whether the connection survives the failure of a queue statement."""

    def read_server(self) -> None:
        """Read the server, however full the client is: nothing of what comes is for it."""

    async def internal_query(self, text: bytes) -> ServerAnswer:
        """Run a statement on the backing connection; its answer is not sent to the client. Raises
        ConnectionError, WireError."""

    async def internal_queries(self, texts: Sequence[bytes]) -> Answers:
        """Run several statements, all written together: one round trip. Each runs, whatever the
        others return. Raises ConnectionError, WireError."""

    async def internal_command(self, payload: bytes) -> ServerAnswer:
        """Run any command with an answer, as `internal_query` runs a statement."""

    async def internal_rows(self, command: bytes, on_rows: OnPayloads) -> ServerAnswer:
        """Run a command that returns rows on the backing connection, and pass the rows on as they come
        (RowQuery). The answer has only the last packet."""

    def check_interrupted(self) -> None:
        """Raise the error that the running queue statement is to end with, if it was
        interrupted."""

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

    def show(self, answer: ServerAnswer, pending: PendingCommand) -> None:
        """Send the answer to an internal command to the client."""

    def send(self, data: bytes) -> None:
        """Send packets to the client."""

    @property
    def server_name(self) -> str | None:
        """The server's name for Origin; None if it was not read yet."""

    def server_is(self, name: str | None) -> None:
        """The server has returned its name."""

    def hang_up(self, error: ServerError) -> None:
        """Close the connection with this error."""


Hosted_contra = TypeVar("Hosted_contra", contravariant=True)


class SessionHost(Protocol[Hosted_contra]):
    """What a session needs of the listener."""

    settings: Settings
    tls: Tls
    engine: Engine
    statement_memory: StatementMemory
    traffic: Traffic

    @property
    def carry_out(self) -> Callable[[Hosted_contra, Verb, bytes], Coroutine[Any, Any, None]]:
        """Carries out a withheld queue statement and answers the client."""

    @property
    def begin_settling(self) -> Callable[[Hosted_contra, Verb, bytes, Callable[[], object]], Begun]:
        """Begins to carry out a withheld ACK, NACK or EXTEND without a task, if that is possible
        (Acknowledgement.begin)."""

    def session_begun(self, session: Hosted_contra) -> None:
        """A client has connected: open its backing connection."""

    def session_opened(self, session: Hosted_contra) -> None:
        """A client has logged in."""

    def session_closed(self, session: Hosted_contra) -> None:
        """A client is gone."""

    def abandoned(self, session: Hosted_contra) -> None:
        """A client is gone, and the server still runs a statement of its."""

    def login_refused(self, code: int) -> None:
        """A server has refused a session's login with this error."""

    def server_in_doubt(self) -> None:
        """A session got an error that another primary explains."""

    def server_is(self, origin: Origin) -> None:
        """A session has the name of its server."""

    def killed(self, kill: Kill, origin: Origin) -> None:
        """This server has accepted a KILL of a client's."""
