"""Notices to the engine of what a client's statements may have changed, sent at commit.

Each relayed command has a pending command in the walker, which returns it with the outcome. What a
statement touched is kept while a transaction is open, and reported when none is. Not every
transaction that ends was committed, but a notice that was not needed costs one scan. An ACK that
autocommitted and affected as many rows as it names is certain. So is one in a transaction, if COMMIT
ends it and nothing in between can have undone the ACK. For any other ACK the engine looks the
messages up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.dispatch.scan_position import SETTLING_NS
from engine.model import NS_PER_S, TableId
from engine.service import NO_IDS, Engine
from engine.store.port import ROLLED_BACK
from proxy.wire.commands import COM_CHANGE_USER, COM_QUERY, COM_STMT_PREPARE
from proxy.wire.mimic_adapter import Commands
from proxy.wire.walker import Outcome
from sqlrewrite.ack import KEYS_MAX, KeyLiterals, SettleStatement
from sqlrewrite.classify import Head, Kill, KillByExpression, TransactionEnd, Verb
from sqlrewrite.names import Param
from sqlrewrite.queue_statements import QueueStatement
from sqlrewrite.stream import StreamStatement

TOUCHED_TABLES_MAX = 64
"""Tables remembered for one transaction; one that touches more wakes all."""
SETTLED_VALUES_MAX = KEYS_MAX
"""Message ids remembered for one transaction, of all tables; beyond them, what is in flight is
looked up."""

DIGITS_MAX = 80
"""Digits of a number that can be an id. A DECIMAL has 65."""


@dataclass(frozen=True, slots=True)
class Touched:
    """The statement may have changed rows of a table with this name in any database (None: of any
    table), or with `schema` the table itself. `inserts`: it can only have added rows."""

    table: str | None
    schema: bool = False
    inserts: bool = False
    trace: str | None = None
    """The trace context that the client sent with it, if tracing is on."""

    @classmethod
    def by(cls, head: Head) -> Touched | None:
        """The pending command of a statement with this head."""
        if head.verb is Verb.WRITE:
            return cls(head.table, inserts=head.inserts)
        return cls(head.table, schema=True) if head.verb is Verb.SCHEMA else None


@dataclass(frozen=True, slots=True)
class Settled:
    """The statement is an ACK, NACK or EXTEND of these messages, or of unknown ones (None)."""

    verb: Verb
    table: TableId
    values: Sequence[object] | None
    """Numbers are int or Decimal, strings bytes."""
    certain: bool = False
    """Whether the values are all that the statement names. If it is then committed with as many rows
    affected, it has acknowledged exactly these: of the queue, unless a temporary table of the session
    hides that."""


@dataclass(frozen=True, slots=True)
class PreparedSettle:
    """A prepared ACK, NACK or EXTEND. Its keys are literals and parameters."""

    table: TableId
    statement: SettleStatement

    def settled(self, values: Sequence[object] | None) -> Settled:
        """The messages that an execution with these values settles; None: the values could not be
        read."""
        statement = self.statement
        keys = _literals(statement)
        if keys is None or values is None:
            return Settled(statement.verb, self.table, None)
        found = [values[key.index] if isinstance(key, Param) else key for key in keys]
        return Settled(statement.verb, self.table, found, statement.key_literals is not KeyLiterals.MIXED)


@dataclass(frozen=True, slots=True)
class PreparedStream:
    """A prepared STREAM. Its table is looked up at each execution, in the database that was the
    default at PREPARE."""

    table: TableId
    statement: StreamStatement
    columns: tuple[str, ...]
    """What `*` stood for at PREPARE: the server has prepared a SELECT of these columns."""


def settled(statement: SettleStatement, table: TableId) -> Settled:
    """The messages that a statement without parameters settles."""
    return PreparedSettle(table, statement).settled(None if statement.param_count else ())


def _literals(statement: SettleStatement) -> Sequence[object] | None:
    """The ids that a statement names; None if its condition is of another form."""
    keys = statement.keys
    if keys is None or statement.key_literals is not KeyLiterals.NUMBERS:
        return keys
    if any(len(key) > DIGITS_MAX for key in keys if isinstance(key, bytes)):
        return None
    return [int(key) if isinstance(key, bytes) else key for key in keys]


@dataclass(frozen=True, slots=True)
class Killed:
    """The statement is a KILL of another connection, or of its statement."""

    kill: Kill


@dataclass(frozen=True, slots=True)
class PreparedQueueStatement:
    """A prepared CREATE QUEUE or one of its family. Its tables have the database that was the
    default at PREPARE."""

    statement: QueueStatement


Prepared = Touched | PreparedSettle | PreparedStream | PreparedQueueStatement | Killed | KillByExpression


@dataclass(frozen=True, slots=True)
class Preparing:
    """The server prepares a statement that is tracked."""

    statement: Prepared


PendingCommand = Touched | Settled | Preparing | Killed | TransactionEnd | None


TRANSPARENT = frozenset((COM_QUERY, COM_STMT_PREPARE, int(Commands.COM_PING)))
"""Commands that undo nothing, except for statements with a pending command."""


def _may_undo(outcome: Outcome[PendingCommand]) -> bool:
    """Whether a statement may have undone an ACK earlier in its transaction: a rollback to a
    savepoint, or a statement that changes the table, or may. Of an execution of a prepared
    statement that is not tracked, the text is not known. An error may have rolled back all."""
    pending = outcome.pending
    if pending is TransactionEnd.COMMIT:
        return False  # Its answer decides.
    unknown = pending is None and outcome.command not in TRANSPARENT
    return unknown or not outcome.ok or pending is TransactionEnd.TO_SAVEPOINT or isinstance(pending, Touched)


ENDS = (TransactionEnd.COMMIT, TransactionEnd.ROLLBACK)
ROLLING_BACK = frozenset((int(Commands.COM_RESET_CONNECTION), COM_CHANGE_USER))
"""Commands that end the open transaction without a commit."""


class CommitNotices:
    """What the open transaction of one session has touched, settled and locked."""

    def __init__(self, engine: Engine, session: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`session`: its number."""
        self._engine = engine
        self._session = session
        self._clock = clock
        self._since_s = 0.0
        self._touched: dict[str | None, bool] = {}
        """By table, whether rows were only added to it."""
        self._settled: dict[tuple[Verb, TableId], list[object] | None] = {}
        self._values = 0
        """The number of values in `_settled` and `_acknowledged`."""
        self._acknowledged: dict[TableId, list[object]] = {}
        """What the transaction has certainly acknowledged, if it is committed."""
        self._locker: int | None = None
        """The number of this session, if the open transaction has locked messages."""

    def command_finished(self, outcome: Outcome[PendingCommand]) -> None:
        """The server has answered a command. Notify the engine of everything that is committed by
        now."""
        pending = outcome.pending
        if pending is None and not (self._touched or self._settled or self._acknowledged or self.locks_messages):
            return  # As for all commands of clients that only read.
        if self._acknowledged and _may_undo(outcome):
            self._doubt()
        match pending:
            case Touched() as pending if outcome.ok or outcome.results:
                self._touch(pending)
                if pending.trace is not None and pending.table is not None:
                    self._engine.traced(pending.table, _inserted_ids(outcome), pending.trace)
                if pending.schema:
                    self._engine.schema_changed(pending.table)
            case Settled() as pending if outcome.ok and outcome.affected_rows:
                self._remember(pending, outcome)
        ended = pending in ENDS or not outcome.in_transaction
        if self._acknowledged and ended:
            self._report_acknowledged(certain=outcome.ok and pending is TransactionEnd.COMMIT)
        if (self._touched or self._settled) and ended:
            self._committed(_inserted_ids(outcome))
        if self.locks_messages:
            self._follow_locks(outcome)

    @property
    def locks_messages(self) -> bool:
        """Whether the open transaction has locked messages (STREAM … FOR UPDATE)."""
        return self._locker is not None

    @property
    def follows_transaction(self) -> bool:
        """Whether it matters how the open transaction ends: it has locked or acknowledged messages."""
        return self._locker is not None or bool(self._acknowledged)

    def messages_locked(self, session: int) -> None:
        """The transaction of the session with this number has locked messages, or may have."""
        self._locker = session

    def locks_gone(self, *, failed: bool) -> None:
        """The transaction has ended, and its locks with it: `failed` if it was certainly rolled
        back."""
        self._doubt()
        if (locker := self._locker) is not None:
            self._locker = None
            self._engine.transaction_ended(locker, failed=failed)

    def _follow_locks(self, outcome: Outcome[PendingCommand]) -> None:
        """Find out whether the command has ended the transaction. In doubt, the messages are free
        again and no failure is counted: their rows decide."""
        pending = outcome.pending
        if outcome.error_code in ROLLED_BACK or (outcome.ok and outcome.command in ROLLING_BACK):
            self.locks_gone(failed=True)
        elif pending in ENDS:
            self.locks_gone(failed=outcome.ok and pending is TransactionEnd.ROLLBACK)
        elif not outcome.in_transaction:
            self.locks_gone(failed=False)
        elif pending == Touched(None) and outcome.results > outcome.ok:
            self.locks_gone(failed=False)  # One of several statements, or a procedure, may have ended it.

    def _touch(self, pending: Touched) -> None:
        if not self._touched:
            self._since_s = self._clock()
        self._touched[pending.table] = pending.inserts and self._touched.get(pending.table, True)
        if len(self._touched) > TOUCHED_TABLES_MAX:
            self._touched = {None: False}

    def _remember(self, pending: Settled, outcome: Outcome[PendingCommand]) -> None:
        values = pending.values
        if values is not None and outcome.affected_rows > len(values):
            values = None  # It settled others as well: a number equals several ids that are text.
        if not outcome.in_transaction:
            certain = pending.certain and values is not None and outcome.affected_rows == len(values)
            self._notify(pending.verb, pending.table, values, certain=certain)
            return
        certain = pending.certain and pending.verb is Verb.ACK
        if values is None or self._values + len(values) > SETTLED_VALUES_MAX:
            values = None
        elif certain and outcome.affected_rows == len(values):
            self._values += len(values)
            self._acknowledged.setdefault(pending.table, []).extend(values)
            return
        known = self._settled.setdefault((pending.verb, pending.table), [])
        if known is None or values is None:
            self._values -= len(known or ())
            self._settled[pending.verb, pending.table] = None
        else:
            self._values += len(values)
            known.extend(values)

    def _doubt(self) -> None:
        """What was certain is not any more: a later statement may have undone it."""
        acknowledged, self._acknowledged = self._acknowledged, {}
        for table, values in acknowledged.items():
            known = self._settled.setdefault((Verb.ACK, table), [])
            if known is None:
                self._values -= len(values)
            else:
                known.extend(values)

    def _report_acknowledged(self, *, certain: bool) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        for table, values in acknowledged.items():
            self._values -= len(values)
            self._engine.acknowledged(table, values, certain=certain, holder=self._session)

    def _notify(self, verb: Verb, table: TableId, values: Sequence[object] | None, *, certain: bool) -> None:
        match verb:
            case Verb.NACK:
                self._engine.given_back(table, values)
            case Verb.EXTEND:
                self._engine.extended(table, values)
            case _:
                self._engine.acknowledged(table, values, certain=certain, holder=self._session)

    def _committed(self, ids: range) -> None:
        touched, self._touched = self._touched, {}
        quick = self._clock() < self._since_s + SETTLING_NS / NS_PER_S
        settled, self._settled, self._values = self._settled, {}, 0
        for (verb, table), values in settled.items():
            self._notify(verb, table, values, certain=False)
        if None in touched:
            touched = {None: False}
        for name, inserts in touched.items():
            only = inserts and quick and len(touched) == 1
            self._engine.written(name, inserted=inserts and quick, ids=ids if only else NO_IDS)


def _inserted_ids(outcome: Outcome[PendingCommand]) -> range:
    """The ids of the rows of an autocommitted INSERT, if the server gave them out in order. A
    statement can make its answer show others."""
    pending = outcome.pending
    if isinstance(pending, Touched) and pending.inserts and outcome.ok and outcome.results == 1:
        return range(outcome.insert_id, outcome.insert_id + outcome.affected_rows) if outcome.insert_id else NO_IDS
    return NO_IDS
