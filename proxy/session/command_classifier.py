"""Classifies a client's commands, given the earlier commands of its session.

Every command is classified before it is relayed: whether it is a queue statement, and what is
remembered until the server has answered it (its pending command). That depends on the prepared
statements, the default database and two switches of the protocol, which earlier commands and their
answers have set. This module sends nothing.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Final

from engine.packets import HEADER, WireError
from proxy.session.commit_notices import (
    Killed,
    PendingCommand,
    PreparedQueueStatement,
    PreparedSettle,
    PreparedStream,
    Preparing,
    Settled,
    Touched,
)
from proxy.session.prepared import TrackedStatement
from proxy.session.proven_rights import ProvenRights
from proxy.session.rephrasing import Rephrase
from proxy.wire.commands import (
    COM_CHANGE_USER,
    COM_QUERY,
    COM_STMT_BULK_EXECUTE,
    COM_STMT_EXECUTE,
    COM_STMT_PREPARE,
)
from proxy.wire.fields import Reader
from proxy.wire.framing import Command
from proxy.wire.mimic_adapter import Capabilities, Commands
from proxy.wire.packets import ServerError
from proxy.wire.params import CURSOR_FLAGS_AT, execute_id, query_text
from proxy.wire.trace_context import trace_context
from proxy.wire.walker import Outcome
from sqlrewrite.ack import KEYS_MAX
from sqlrewrite.classify import (
    OTHER,
    QUEUE_STATEMENT_VERBS,
    Head,
    Kill,
    KillByExpression,
    TransactionEnd,
    Verb,
    classify,
    may_be_queue_statement,
    needs_no_transaction,
    parse_kill,
    transaction_end,
)
from sqlrewrite.hints import hint_for
from sqlrewrite.lexicon import GAP, WORD_END, bytes_pattern

QUERY_ATTRIBUTES = int(Capabilities.CLIENT_QUERY_ATTRIBUTES)
MULTI_STATEMENTS = int(Capabilities.CLIENT_MULTI_STATEMENTS)
MULTI_STATEMENTS_ON, MULTI_STATEMENTS_OFF = b"\0\0", b"\1\0"
"""The argument of COM_SET_OPTION. The server refuses any other."""

LAST_PREPARED = 0xFFFFFFFF
"""The number by which MariaDB's drivers may execute the statement that was prepared last, before
they have its own."""

COM_STMT_CLOSE = int(Commands.COM_STMT_CLOSE)
COM_STMT_RESET = int(Commands.COM_STMT_RESET)
COM_STMT_SEND_LONG_DATA = int(Commands.COM_STMT_SEND_LONG_DATA)
LONG_DATA_INDEX_AT = 5
"""In COM_STMT_SEND_LONG_DATA, behind the command byte and the statement's number."""

NUMBER = slice(HEADER + 1, HEADER + 5)
"""The place of the statement's number in the packet of such a command."""

NUMBER_BYTES = 5
"""A payload with the number has at least so many."""

EXECUTIONS = frozenset((COM_STMT_EXECUTE, COM_STMT_BULK_EXECUTE))
ABOUT_STATEMENTS = EXECUTIONS | {COM_STMT_CLOSE, COM_STMT_RESET, COM_STMT_SEND_LONG_DATA}
"""Commands that name a prepared statement."""
FORGETTING = frozenset((int(Commands.COM_RESET_CONNECTION), COM_CHANGE_USER))
"""Commands after which the server has no prepared statements."""
UNREMARKABLE = frozenset((COM_QUERY, COM_STMT_EXECUTE))
"""Commands whose answers change nothing here, unless they have a pending command."""
ABOUT_THE_SESSION = FORGETTING | {int(Commands.COM_INIT_DB), int(Commands.COM_SET_OPTION)}

CarriedOutHere = PreparedStream | PreparedSettle | PreparedQueueStatement | KillByExpression
"""Prepared statements whose execution is withheld and carried out by the proxy, and a KILL as text."""


WITHOUT_PENDING = (Verb.OTHER, Verb.NEARLY, Verb.NEXT_TRANSACTION, *QUEUE_STATEMENT_VERBS)
"""Statements that have no pending command."""
KEEPING = (*QUEUE_STATEMENT_VERBS, Verb.KILL, Verb.USE)
"""Statements that do not use up a SET TRANSACTION here: queue statements are refused while there is one, or
use it up when they are forwarded."""


SELECTS: Final = (b"SEL", b"sel")
"""How most statements begin that neither lock tables nor change settings."""
NOTED_WORD: Final = bytes_pattern(rf"{GAP}(SET|LOCK|UNLOCK){WORD_END}")
ACKS_OF: Final = bytes_pattern(rf"{GAP}SET{GAP}@ackstream_acks{GAP}:?={GAP}'(SESSION|ENGINE)'{GAP}(?>(?:;{GAP})?)\Z")
"""The session's option: who carries its ACKs out."""

FRAMING: Final = bytes_pattern(rf"{GAP}(?:BEGIN|START{GAP}TRANSACTION|COMMIT|ROLLBACK){GAP}(?>(?:;{GAP})?)\Z")
"""How drivers begin and end transactions."""
FRAMING_MAX: Final = 64
"""Bytes of the packet of such a statement."""

CLASSIFIED_MAX: Final = 1024
"""Bytes of a text whose head is remembered."""
NONE_CLASSIFIED: Final = (b"", OTHER)
"""An empty text is no queue statement."""


class NotFast(enum.Enum):
    """A command that the fast path does not decide."""

    NOT_FAST = enum.auto()


NOT_FAST: Final = NotFast.NOT_FAST


class CommandClassifier:
    """The state of one session, as its commands and their answers show it."""

    def __init__(self, rights_max_age_s: float, *, traces: bool = False) -> None:
        """`rights_max_age_s`: for how long a proof of rights holds. `traces`: whether the trace contexts
        of INSERTs are read."""
        self._traces = traces
        self.attributes = False
        """Whether queries are preceded by query attributes."""
        self.prepared: dict[int, TrackedStatement] = {}
        self.preparing = False
        """Whether the server has not answered a PREPARE of a queue statement. Until then the number
        of the statement is not known, and no command about a prepared statement can be
        classified."""
        self.next_transaction_is_set = False
        """Whether a SET TRANSACTION without SESSION may be in effect for the next transaction. Any
        statement that begins a transaction uses it up, an internal query as well. It is recognised
        as text that stands alone. One that failed counts too, until the next statement that uses a
        table."""
        self.in_followed_transaction = False
        """Whether the open transaction has locked messages (STREAM … FOR UPDATE) or acknowledged some, or
        an ACK is under way: only then is the text read that may end it."""
        self.known_db: str | None = None
        """The default database; None if it has to be read (again)."""
        self.shown_context: tuple[bytes | None, ...] | None = None
        """What the server has shown last of the session's context (`context_signature`), if nothing has run
        in the session since that could change it, or make a temporary table; else None."""
        self.proven_rights = ProvenRights(rights_max_age_s)
        self.has_locked_tables = False
        """Whether LOCK TABLES may be in effect. It is recognised as text that stands alone."""
        self.keeps_acks = False
        """Whether the session's ACKs are to be its own statements: the client has set @ackstream_acks to
        'session'."""
        self._classified = NONE_CLASSIFIED
        """The last queue statement that the fast path has left to `classify`, and its head."""
        self._db_may_change = False
        self._multi_statements = False
        self._last_prepared = 0
        self._ids_under_way = 0
        """The number of ids in executions that are not answered yet. Beyond KEYS_MAX the ids are
        not remembered."""

    def logged_in(self, capabilities: int) -> None:
        """The login is over with these capabilities."""
        self.attributes = bool(capabilities & QUERY_ATTRIBUTES)
        self._multi_statements = bool(capabilities & MULTI_STATEMENTS)

    def remember_db(self, db: str | None) -> None:
        """The server has returned the default database."""
        if not self._db_may_change:
            self.known_db = db

    def statement(self, number: int) -> TrackedStatement | None:
        """The tracked prepared statement with this number; None if it is not tracked."""
        return self.prepared.get(self._last_prepared if number == LAST_PREPARED else number)

    # Commands.

    def classify_fast(self, data: bytes) -> PendingCommand | NotFast:
        """The pending command of a command to be relayed, whose packet is `data`; NOT_FAST if
        `classify` has to decide.

        It decides nearly all commands and delays each of them. Without it, a relayed command takes
        8 to 21 % more CPU time (SELECT, INSERT and COM_STMT_EXECUTE, the kernel's share included).
        """
        byte = data[HEADER]
        if byte == COM_QUERY:
            try:
                text = query_text(data[HEADER:], attributes=True) if self.attributes else data[HEADER + 1 :]
            except WireError:
                return NOT_FAST
            head = classify(text, multi_statements=self._multi_statements)
            if head is OTHER and text[:3] not in SELECTS:
                self._note_settings(text)
            if head is OTHER and not (self.next_transaction_is_set or self.in_followed_transaction):
                return None
            if head.verb in QUEUE_STATEMENT_VERBS or head.verb is Verb.NEARLY or head.before_queue_statement:
                return NOT_FAST
            self._next_transaction(head, text)
            pending = self._pending_of(head, text)
            if isinstance(pending, KillByExpression):
                return NOT_FAST
            return self._traced(pending, data[HEADER:]) if self._traces else pending
        if byte == COM_STMT_EXECUTE and not self.preparing and len(data) >= NUMBER.stop:
            own = self.statement(int.from_bytes(data[NUMBER], "little"))
            statement = own.statement if own is not None else None
            if statement is None or isinstance(statement, Touched):
                self.next_transaction_is_set = False
                return statement
        return NOT_FAST

    def classify(self, command: Command) -> tuple[Verb, PendingCommand | CarriedOutHere]:
        """The verb of a command, and its pending command or the prepared statement to carry out. The
        verb is NEARLY also if only a later statement in the packet is nearly a queue statement."""
        try:
            return self._classify(command)
        except WireError:
            return Verb.OTHER, Touched(None)  # It is cut off or malformed. The server decides.

    def with_hint(self, command: Command) -> Rephrase:
        """What follows the server's error about a command whose verb is NEARLY."""
        text = command.payload[1:]
        if command.byte == COM_QUERY:
            text = query_text(command.payload, attributes=self.attributes)

        def rephrase(error: ServerError) -> ServerError | None:
            hint = hint_for(text, error.code, error.message)
            return None if hint is None else ServerError(error.code, error.sqlstate, f"{error.message}; {hint}")

        return rephrase

    def keeps_context(self, data: bytes) -> bool:
        """Whether a command, whose packet is `data`, certainly changes nothing of the session's context: it
        begins or ends a transaction."""
        if data[HEADER] == Commands.COM_PING:
            return True
        if data[HEADER] != COM_QUERY or len(data) > FRAMING_MAX:
            return False
        try:
            text = query_text(data[HEADER:], attributes=self.attributes)
        except WireError:
            return False
        return FRAMING.match(text) is not None

    def wants_whole(self, head: bytes) -> bool:
        """Whether a long command must be read to its end before it is decided."""
        try:
            if head[0] == COM_QUERY:
                return may_be_queue_statement(query_text(head, attributes=self.attributes))
            if head[0] == COM_STMT_PREPARE:
                return may_be_queue_statement(head[1:])
            if head[0] == COM_CHANGE_USER:
                return True
            own = self.statement(execute_id(head)) if head[0] in EXECUTIONS else None
        except WireError:  # Query attributes that are longer than the head, for instance.
            return False
        return own is not None and isinstance(own.statement, PreparedStream | PreparedSettle)

    def renumbered(self, command: Command) -> bytes:
        """COM_STMT_SEND_LONG_DATA as the server expects it: for a statement whose last
        parameters are the first of its UPDATE, with the index moved likewise."""
        own = self.statement(execute_id(command.payload))
        if own is None or not isinstance(own.statement, PreparedSettle) or not own.statement.statement.first_params:
            return command.data
        index = Reader(command.payload, LONG_DATA_INDEX_AT).uint(2)
        count = own.statement.statement.param_count
        if index >= count:
            return command.data  # The server refuses it.
        moved = own.statement.statement.params_order.index(index)
        at = HEADER + LONG_DATA_INDEX_AT
        return command.data[:at] + moved.to_bytes(2, "little") + command.data[at + 2 :]

    def session_command(self, command: Command) -> None:
        """A command is relayed that changes the state of the session."""
        self.known_db = self.shown_context = None
        self._classified = NONE_CLASSIFIED
        self.next_transaction_is_set &= command.byte not in FORGETTING
        if command.byte in FORGETTING:
            self.has_locked_tables = self.keeps_acks = False
        switch = command.payload[1:] if command.byte == Commands.COM_SET_OPTION else None
        if switch in (MULTI_STATEMENTS_ON, MULTI_STATEMENTS_OFF):
            self._multi_statements = switch == MULTI_STATEMENTS_ON

    def _classify(self, command: Command) -> tuple[Verb, PendingCommand | CarriedOutHere]:
        byte = command.byte
        if byte == COM_QUERY:
            text = query_text(command.payload, attributes=self.attributes)
            classified, head = self._classified
            if classified != text:
                head = classify(text, multi_statements=self._multi_statements)
            if head is OTHER:
                self._note_settings(text)
            self._next_transaction(head, text)
            pending = self._pending_of(head, text)
            if isinstance(pending, KillByExpression):
                return head.verb, pending if command.whole and not self.next_transaction_is_set else None
            if self._traces and command.whole:
                pending = self._traced(pending, command.payload)
            return Verb.NEARLY if head.before_queue_statement else head.verb, pending
        if byte == COM_STMT_PREPARE:
            head = classify(command.payload[1:], multi_statements=False)
            pending = self._pending_of(head, command.payload[1:])
            self._db_may_change |= head.verb is Verb.USE  # MariaDB prepares it, and any execution may be its.
            return head.verb, None if pending is None or isinstance(pending, TransactionEnd) else Preparing(pending)
        if byte in ABOUT_STATEMENTS:
            return Verb.OTHER, self._look_up(command)
        if byte in ABOUT_THE_SESSION:
            self.session_command(command)
        if byte == Commands.COM_PROCESS_KILL:
            return Verb.OTHER, Killed(Kill(Reader(command.payload, 1).uint(4), query_only=False))
        return Verb.OTHER, None

    def _next_transaction(self, head: Head, text: bytes) -> None:
        """A statement sets the characteristics of the next transaction, or uses up what another one
        has set."""
        if head.verb is Verb.NEXT_TRANSACTION:
            self.next_transaction_is_set = True
        elif self.next_transaction_is_set and head.verb not in KEEPING:
            self.next_transaction_is_set = head is OTHER and needs_no_transaction(text)

    def _note_settings(self, text: bytes) -> None:
        """A statement is relayed that may lock tables, or set what the proven rights depend on: a role, or
        what the answers of the server show of transactions."""
        match = NOTED_WORD.match(text)
        if match is None:
            return
        word = match[1].upper()
        if word == b"SET":
            self.proven_rights.forget()
            if (acks_of := ACKS_OF.match(text)) is not None:
                self.keeps_acks = acks_of[1].upper() == b"SESSION"
        else:
            self.has_locked_tables = word == b"LOCK"

    def _pending_of(self, head: Head, text: bytes) -> Touched | Killed | KillByExpression | TransactionEnd | None:
        if head is OTHER:
            return transaction_end(text) if self.in_followed_transaction else None
        if head.verb in WITHOUT_PENDING:
            return None
        if head.table is None:  # Several statements, EXECUTE, USE, DROP DATABASE …
            self.known_db = None
        if head.verb is Verb.KILL:
            kill = parse_kill(text)
            return Killed(kill) if isinstance(kill, Kill) else kill
        return Touched.by(head)

    def _traced(
        self, pending: Touched | Killed | TransactionEnd | None, payload: bytes
    ) -> Touched | Killed | TransactionEnd | None:
        """The pending command of a COM_QUERY, with the trace context of an INSERT."""
        if not isinstance(pending, Touched) or not pending.inserts:
            return pending
        context = trace_context(payload, attributes=self.attributes)
        return pending if context is None else replace(pending, trace=context)

    def _look_up(self, command: Command) -> PendingCommand | CarriedOutHere:
        """The prepared statement that a command is about, as a pending command or to be carried
        out."""
        number = execute_id(command.payload)
        own = self.statement(number)
        if command.byte == COM_STMT_CLOSE:
            self.prepared.pop(self._last_prepared if number == LAST_PREPARED else number, None)
        elif own is not None and command.byte == COM_STMT_SEND_LONG_DATA:
            own.long_data |= {int.from_bytes(command.payload[5:7], "little")}
        elif own is not None and command.byte == COM_STMT_RESET:
            own.long_data = frozenset()
        elif own is not None and command.byte in EXECUTIONS:
            match own.statement:
                case PreparedSettle() as prepared if _is_usual_ack(own, prepared, command):
                    return prepared
                case PreparedSettle() as prepared if not prepared.statement.first_params:
                    self.next_transaction_is_set = False
                    self.in_followed_transaction = True
                    return self._prepared_settle(own, prepared, command)
                case PreparedStream() if command.byte == COM_STMT_BULK_EXECUTE:
                    return None  # The server has prepared a SELECT, and refuses to execute that in bulk.
                case Killed(Kill(connection_id=None)) as killed:
                    return self._prepared_kill(own, killed, command)
                case KillByExpression() if self.next_transaction_is_set:
                    return None
                case statement:
                    return statement
        return None

    def _prepared_settle(self, own: TrackedStatement, prepared: PreparedSettle, command: Command) -> Settled:
        """The messages that an execution settles; unknown where its parameters cannot be read."""
        statement = prepared.statement
        try:
            if statement.keys is None or command.byte == COM_STMT_BULK_EXECUTE or not command.whole:
                return prepared.settled(None)
            values = own.read_values(command.payload, statement.param_count, attributes=self.attributes)
        finally:
            own.long_data = frozenset()  # It was for one execution.
        if self._ids_under_way + len(statement.keys) > KEYS_MAX:
            return prepared.settled(None)
        self._ids_under_way += len(statement.keys)
        return prepared.settled(values)

    def _prepared_kill(self, own: TrackedStatement, killed: Killed, command: Command) -> Killed | None:
        """The connection that an execution of `KILL ?` ends."""
        try:
            (value,) = own.read_execution(command.payload, 1, attributes=self.attributes).values
        finally:
            own.long_data = frozenset()  # It was for one execution.
        number = (
            value if isinstance(value, int) else int(value) if isinstance(value, bytes) and value.isdigit() else None
        )
        return None if number is None else Killed(Kill(number, killed.kill.query_only))

    # Answers.

    def command_answered(self, outcome: Outcome[PendingCommand]) -> None:
        """The server has answered a command."""
        if outcome.command in FORGETTING and outcome.ok:
            self.prepared.clear()
            self.proven_rights.forget()
        if outcome.prepared is not None:
            self._last_prepared = outcome.prepared.statement_id
        if isinstance(outcome.pending, Settled) and outcome.pending.values is not None:
            # A statement that came as text was not counted, and began when nothing was under way.
            self._ids_under_way = max(0, self._ids_under_way - len(outcome.pending.values))
        if isinstance(outcome.pending, Preparing):
            self.preparing = False
            if outcome.prepared is not None:
                self.prepared[outcome.prepared.statement_id] = TrackedStatement(outcome.pending.statement)


def _is_usual_ack(own: TrackedStatement, prepared: PreparedSettle, command: Command) -> bool:
    """Whether an execution may be carried out by the engine, as far as its packet shows: an ordinary one of an
    ACK by ids."""
    statement = prepared.statement
    return (
        statement.verb is Verb.ACK
        and statement.keys is not None
        and command.byte == COM_STMT_EXECUTE
        and command.whole
        and command.payload[CURSOR_FLAGS_AT : CURSOR_FLAGS_AT + 1] == b"\0"
        and not own.long_data
    )
