"""What a client sends after its login: commands are found, classified, and passed on to the server,
handed over as queue statements, or withheld.

Nearly all are whole packets that the server gets unchanged at once. Withheld are all commands
behind a queue statement that is being carried out, and a command that cannot be decided or begun
before the server has answered those before it. They continue in their order (`resume`).
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from engine.packets import HEADER, WireError
from proxy.login.relay import LoggedIn
from proxy.session.authentication import Authentication
from proxy.session.command_classifier import (
    ABOUT_STATEMENTS,
    COM_STMT_SEND_LONG_DATA,
    EXECUTIONS,
    NOT_FAST,
    CarriedOutHere,
    CommandClassifier,
)
from proxy.session.commit_notices import PendingCommand
from proxy.session.connections import Connections
from proxy.session.rephrasing import Rephrase
from proxy.session.statement_memory import StatementMemory
from proxy.session.traffic import Traffic
from proxy.session.withheld import Withheld
from proxy.settings import Settings
from proxy.wire.commands import COM_CHANGE_USER, COM_STMT_EXECUTE, SILENT
from proxy.wire.fields import PacketTooLarge
from proxy.wire.framing import Command, CommandFramer, Dropped, Event
from proxy.wire.packets import ServerError
from proxy.wire.params import asks_for_cursor
from proxy.wire.walker import ResponseWalker
from sqlrewrite.classify import QUEUE_STATEMENT_VERBS, Verb


class RelayingSession(Protocol):
    """What the relay needs of its session."""

    def begin_statement(self, verb: Verb, payload: bytes) -> bool:
        """Carry out a queue statement. Returns True if that was done at once, and only the server's answer
        is to come; else `CommandRelay.statement_over` follows."""

    def rephrase_error(self, rephrase: Rephrase) -> None:
        """Put an error that is the answer to the next command into other words."""

    def send_error(self, error: ServerError) -> None:
        """Answer the client's command with an error."""

    def hang_up(self, error: ServerError) -> None:
        """Close the connection with this error."""


class CommandRelay:
    """One client's commands on their way to the server."""

    def __init__(
        self,
        session: RelayingSession,
        connections: Connections,
        authentication: Authentication,
        classifier: CommandClassifier,
        memory: StatementMemory,
        settings: Settings,
        traffic: Traffic,
    ) -> None:
        self.walker: ResponseWalker[PendingCommand]
        """Set when the login is over."""
        self.withheld = Withheld()
        self._session = session
        self._connections = connections
        self._authentication = authentication
        self._classifier = classifier
        self._memory = memory
        self._traffic = traffic
        self._pipelined_max = settings.pipelined_max
        self._withheld_bytes_max = settings.withheld_bytes_max
        self._framer = CommandFramer(classifier.wants_whole, partial(memory.grown, self))
        self._statement_bytes = 0
        """Of the queue statement that is being carried out; 0 without one."""
        self._closed = False

    @property
    def sends_file(self) -> bool:
        """Whether what the client sends now is the content of a file."""
        return self._framer.infile

    def feed(self, data: bytes) -> None:
        """Bytes from the client. Raises WireError if the connection has to end."""
        at_rest = not self._statement_bytes and not self.withheld and self._authentication.change_user is None
        is_whole = at_rest and self._framer.is_command(data)
        if is_whole and (pending := self._classifier.classify_fast(data)) is not NOT_FAST:
            self._forward(data[HEADER], pending, data)
            return
        for event in self._framer.feed(data):
            self._pass_or_withhold(event)
        self._report_memory()

    def resume(self) -> None:
        """Continue with what was withheld, and read the client again."""
        try:
            while self.withheld and not self._statement_bytes:
                if not self._pass(self.withheld[0]):
                    return
                self.withheld.popleft()
            if self._connections.client_is_held and self.walker.outstanding <= self._pipelined_max:
                self._connections.release_client()
        except WireError as error:
            self._session.hang_up(ServerError(error.code, error.sqlstate, str(error)))
        finally:
            self._report_memory()

    def refuse_withheld(self) -> bool:
        """Drop the first command that is withheld, if all of it is there. Returns whether it was
        dropped: the caller answers it."""
        first = self.withheld[0] if self.withheld else None
        if not isinstance(first, Command) or not first.whole:
            return False
        self.withheld.popleft()
        return True

    def statement_over(self) -> None:
        """The queue statement is carried out. What was withheld waits for `resume`."""
        self._statement_bytes = 0

    def file_requested(self) -> None:
        """The server has requested a file of the client's."""
        self._framer.enter_infile()

    def drop_statement(self) -> None:
        """Forget the statement that is being received: all clients together hold too much."""
        event = self._framer.drop()
        try:
            self._pass_or_withhold(event)
        except WireError as error:
            self._session.hang_up(ServerError(error.code, error.sqlstate, str(error)))

    def close(self) -> None:
        """The client is gone: release the memory that its commands hold."""
        self._closed = True
        self._memory.holds(self, 0, 0)

    def _pass_or_withhold(self, event: Event) -> None:
        if self.withheld or self._statement_bytes or not self._pass(event):
            self.withheld.append(event)
            if self.withheld.size > self._withheld_bytes_max or self._memory.full:
                self._connections.hold_client()

    def _pass(self, event: Event) -> bool:
        """Send an event on to the server, or begin to carry it out here.

        Returns False if it has to wait until the server has answered what precedes it: then nothing
        is done.
        """
        if isinstance(event, Dropped):
            return self._refuse_dropped(event)
        change_user = self._authentication.change_user
        if not isinstance(event, Command):
            if change_user is not None:
                self._authentication.client_continues(change_user, event)
            else:
                self._connections.write_server(event)
            return True
        if change_user is not None:
            return False
        login = self._authentication.info
        if event.byte == COM_CHANGE_USER and login is not None and login.dialogue.translates:
            return self._begin_change_of_user(event, login)
        if self._classifier.preparing and event.byte in ABOUT_STATEMENTS:
            return False  # It may be about the statement whose number the server has not returned yet.
        if event.byte in SILENT and len(event.data) - HEADER < SILENT[event.byte]:
            raise WireError("a command that has no answer is cut off")  # MySQL answers it, MariaDB does not.
        verb, pending = self._classifier.classify(event)
        if verb is Verb.NEARLY and event.whole:
            if not self.walker.idle:
                return False
            self._session.rephrase_error(self._classifier.with_hint(event))
        if (verb is not Verb.OTHER and verb in QUEUE_STATEMENT_VERBS) or (
            pending is not None and isinstance(pending, CarriedOutHere)
        ):
            return self._begin_statement(verb, event)
        long_data = event.byte == COM_STMT_SEND_LONG_DATA
        self._forward(event.byte, pending, self._classifier.renumbered(event) if long_data else event.data)
        return True

    def _forward(self, byte: int, pending: PendingCommand, data: bytes) -> None:
        """Send a command on to the server, and expect its answer."""
        self._traffic.relayed += 1
        cursor = byte == COM_STMT_EXECUTE and asks_for_cursor(data, HEADER)
        outstanding = self.walker.expect(byte, pending, cursor=cursor)
        if self._classifier.shown_context is not None and not self._classifier.keeps_context(data):
            self._classifier.shown_context = None
        self._connections.write_server(data)
        if outstanding > self._pipelined_max:
            self._connections.hold_client()

    def _begin_statement(self, verb: Verb, command: Command) -> bool:
        if not self.walker.idle:
            return False
        if not command.whole:
            # It was sent ahead of the answer that would have shown that it is a queue statement.
            raise PacketTooLarge("a statement of ackstream's is too long to be sent ahead")
        self._statement_bytes = len(command.data)
        if self._session.begin_statement(verb, command.payload):
            self._statement_bytes = 0
        return True

    def _begin_change_of_user(self, command: Command, login: LoggedIn) -> bool:
        if not self.walker.idle:
            return False
        self._classifier.session_command(command)
        self.walker.expect(command.byte, None)
        self._authentication.begin_change_of_user(login, command.payload)
        return True

    def _refuse_dropped(self, command: Dropped) -> bool:
        """Answer a statement whose bytes are gone."""
        if self._authentication.change_user is not None or not self.walker.idle:
            return False
        error = self._memory.refusal
        if command.byte in EXECUTIONS:  # The server holds its long data, which the next execution would use.
            raise PacketTooLarge(error.message)
        self._session.send_error(error)
        return True

    def _report_memory(self) -> None:
        """Report how many bytes of the client's are held, for the bound over all sessions."""
        if not self._closed:
            self._memory.holds(self, self._framer.gathered, self.withheld.size + self._statement_bytes)
