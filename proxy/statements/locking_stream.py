"""STREAM … FOR UPDATE: the client's transaction locks the messages, and the lock is the claim.

The engine chooses keys and offers them (`LockingStream.lock`). The client's own session reads and
locks these rows by id, skips those that others have locked, and passes the rows to the client as
they come. The engine gets the keys that were locked. Nothing is written. The end of the
transaction ends the locks; CommitNotices reports it to the engine.

Under REPEATABLE READ, a session that skips a locked row, or finds no row of an id, locks the gap
there until its transaction ends. Behind the last row of a table, that keeps producers from inserting
while the session waits for messages. The row of a message that another proxy has claimed stays locked
too, and its consumer's ACK waits. So, where other proxies may have taken some of the messages, or no
scan has shown some, a connection of the engine finds out first which are due and free (`Unlocked`):
it keeps no locks.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from engine.catalog.limits import LIMIT_DIRECTIVES
from engine.dispatch.effects import Lock
from engine.model import Entry, Key, Selection
from engine.packets import prepare_ok_at
from engine.quoting import quoted
from engine.runtime.table_runner import LockAnswer
from engine.store.port import ROLLED_BACK
from engine.store.queries import TableStatements
from engine.store.row_packets import split_binary_row, split_text_row
from proxy.session.internal_queries import end_own_transaction, spelled
from proxy.session.queries import sql
from proxy.session.stream import Stream
from proxy.statements.keeping_alive import KeepingAlive
from proxy.statements.proof import ProvenStream
from proxy.statements.results import PLAIN_EXECUTION
from proxy.statements.tables import lock_wait_s
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.mimic_adapter import Commands
from proxy.wire.packets import AUTOCOMMIT, ServerError
from proxy.wire.params import make_query

if TYPE_CHECKING:
    from proxy.session.answers import OnPayloads, ServerAnswer
    from proxy.session.ports import ClientSession


SOON_S = 0.002
"""If messages are ready, the engine offers them in the next turn of the event loop, and so does it end
a stream that has its last message. Until then nothing is written to the client."""

NO_TRANSACTION = ServerError(
    1105,
    "HY000",
    "STREAM … FOR UPDATE locks messages until the transaction ends, and no transaction is open: BEGIN first "
    "(or SET autocommit = 0), or leave FOR UPDATE out to claim messages",
)

COUNTED = ServerError(
    1105,
    "HY000",
    f"STREAM … FOR UPDATE is not possible on a queue with {', '.join(limit.option for limit in LIMIT_DIRECTIVES[:-1])}"
    f" or {LIMIT_DIRECTIVES[-1].option}: these hold over all proxies, which cannot count messages that a transaction "
    "has locked. Leave FOR UPDATE out to claim messages",
)


FOLLOW_UPS = ServerError(
    1105,
    "HY000",
    "STREAM … FOR UPDATE is not possible on a queue with AFTER_BATCH: whether a batch is done is checked by claims. "
    "Leave FOR UPDATE out to claim messages",
)


class Unlocked(Protocol):
    """Finds out what a session may try to lock."""

    def __call__(self, keys: tuple[Key, ...], *, unscanned: bool) -> Awaitable[tuple[Key, ...]]:
        """Those of the messages that are due and that no other transaction has locked just now, as in
        Engine.unlocked."""


def refuse_without_transaction(session: ClientSession, proven: ProvenStream) -> None:
    """Raise ServerError if the locks would end with the statement that takes them."""
    if not proven.was_in_transaction and session.status & AUTOCOMMIT:
        raise NO_TRANSACTION.again()


class LockingStream(Stream):
    """The stream of a STREAM … FOR UPDATE. Its rows come over the backing connection."""

    rows_from_server = True

    def __init__(
        self,
        write: Callable[[bytes], None],
        read_server: Callable[[], None],
        condition: str | None,
        *,
        is_bounded: bool = False,
    ) -> None:
        """`read_server` has the rest of the rows read when the stream is over, although its client may not
        read: the end of the connection, and of the lock, comes behind them."""
        super().__init__(write, condition, waits=False, is_bounded=is_bounded)
        self._read_server = read_server
        self._offers: deque[tuple[Lock, LockAnswer]] = deque()
        self._answer: LockAnswer | None = None
        """How to answer the lock under way."""
        self._locked: set[Key] = set()
        """Of the lock under way: the messages whose rows the client was sent."""
        self._read: list[Entry] = []
        """Of an unscanned lock: what these rows show."""

    def lock(self, lock: Lock, answer: LockAnswer) -> None:
        """The engine offers messages to be locked."""
        self._offers.append((lock, answer))
        self._attention.set()

    async def next_offer(self, timeout_s: float) -> tuple[Lock, LockAnswer] | None:
        """The next offer; None if the stream is over, or after this time."""
        if not self._offers and not self.over:
            await self.wait(timeout_s)
        self._attention.clear()
        return self._offers.popleft() if self._offers and not self.over else None

    def lock_begins(self, answer: LockAnswer) -> None:
        """The session has the server lock what was offered."""
        self._answer, self._locked, self._read = answer, set(), []

    def lock_ends(self) -> None:
        """Answer the lock under way, unless it was answered before."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self._locked, self._read)

    def connection_lost(self) -> None:
        """Answer now. The session's task is cancelled, but runs after the engine has learned that
        the client is gone: deliveries that are not known then do not count as failed."""
        self.lock_ends()

    def _finish(self, error: ServerError | None) -> None:
        if not self.over:
            super()._finish(error)
            self._read_server()

    def decline_offers(self) -> None:
        """Answer the offers that nobody takes any more: nothing was locked."""
        while self._offers:
            _, answer = self._offers.popleft()
            answer(frozenset())

    def flush(self) -> None:
        """Write what is to be sent. Otherwise it is written with the next rows or the end."""
        self._writes.flush()

    def pass_rows(self, keys: Iterable[Key], rows: Sequence[bytes], read: Iterable[Entry]) -> None:
        """Send rows that the server has sent, without the id that precedes each. `read`: what they show, in an
        unscanned lock."""
        self._locked.update(keys)
        self._read += read
        if not self.over:
            self._send(tuple(rows))

    def refuse(self, error: ServerError) -> None:
        """End the stream with this error, if it has not ended with another one. What the transaction has
        locked stays locked."""
        self.abort(error)
        self._error = self._error or error


def is_ascending(keys: Sequence[Key]) -> bool:
    """Whether integer keys are in the order of their values."""
    return all(map(operator.lt, keys, keys[1:]))


class LockingSession:
    """Locks messages in the transaction of one session, for one stream."""

    def __init__(self, session: ClientSession, proven: ProvenStream, selection: Selection, unlocked: Unlocked) -> None:
        self._session = session
        self._unlocked = unlocked
        self._was_in_transaction = proven.was_in_transaction
        self._has_locked = False
        """Whether a lock was tried: the transaction is the client's since."""
        self._proven = proven
        self._statements = TableStatements(proven.queue, selection)
        self._columns = proven.row_format.columns
        self._binary = proven.row_format.binary
        assert proven.statement.first_wait_s is not None  # FOR UPDATE requires WAIT or NOWAIT.
        self._lock_wait_s = lock_wait_s(proven.statement.first_wait_s)
        self._pad_chars = proven.queue.id_pad_chars if proven.row_format.pad_char else 0

    async def attend(self, stream: LockingStream, alive: KeepingAlive) -> None:
        """Lock what the engine offers, and keep the backing connection open, until the stream is
        over. While nothing is offered, and if nothing was, the transaction of the proof ends."""
        try:
            await self._attend(stream, alive)
        finally:
            stream.decline_offers()

    async def _attend(self, stream: LockingStream, alive: KeepingAlive) -> None:
        timeout_s = SOON_S
        while (offer := await stream.next_offer(timeout_s)) is not None or not stream.over:
            if offer is not None:
                timeout_s = SOON_S
                await self._lock_free(stream, *offer)
            elif timeout_s == SOON_S:
                timeout_s = alive.pause_s
                stream.flush()
                await self._end_own_transaction()
            else:
                await alive.touch()
                timeout_s = alive.pause_s
        await self._end_own_transaction()

    async def _end_own_transaction(self) -> None:
        """End a transaction that only the proof has begun."""
        if not self._has_locked:
            await end_own_transaction(self._session, was_in_transaction=self._was_in_transaction)

    async def _lock_free(self, stream: LockingStream, lock: Lock, answer: LockAnswer) -> None:
        """Lock those of the offered messages that are there and that others have not locked, and answer."""
        stream.lock_begins(answer)
        try:
            keys = await self._unlocked(lock.keys, unscanned=lock.unscanned)
            if keys and not stream.over:
                await self._lock(stream, lock if keys is lock.keys else replace(lock, keys=keys))
        finally:
            stream.lock_ends()

    async def _lock(self, stream: LockingStream, lock: Lock) -> None:
        """Lock the messages and pass their rows on. An error of the server ends the stream."""
        session = self._session
        self._has_locked = True
        session.commit_notices.messages_locked(session.number)
        session.classifier.in_followed_transaction = True
        run = self._execute if self._binary else self._query
        done = await spelled(session, self._select(lock), partial(run, partial(self._pass, stream, lock)))
        stream.lock_ends()
        if (error := done.error) is not None:
            stream.refuse(error)
            if error.code in ROLLED_BACK:
                session.commit_notices.locks_gone(failed=True)

    async def _query(self, on_rows: OnPayloads, text: bytes) -> ServerAnswer:
        command = make_query(text, attributes=self._session.classifier.attributes)
        return await self._session.internal_rows(command, on_rows)

    async def _execute(self, on_rows: OnPayloads, text: bytes) -> ServerAnswer:
        """Run the statement as a prepared one: its rows come in the binary protocol."""
        session = self._session
        prepared = await session.internal_command(bytes([COM_STMT_PREPARE]) + text)
        if prepared.error is not None:
            return prepared
        head = prepared.packets[0].payload
        number = prepare_ok_at(head, 0, len(head)).statement_id.to_bytes(4, "little")
        execute = bytes([Commands.COM_STMT_EXECUTE]) + number + PLAIN_EXECUTION
        answer = await session.internal_rows(execute, on_rows)
        session.forward(bytes([Commands.COM_STMT_CLOSE]) + number, None)
        return answer

    def _select(self, lock: Lock) -> str:
        return sql(
            "lock_messages",
            **self._statements.words,
            first=self._statements.words["row" if lock.unscanned else "id"],
            columns=", ".join(map(quoted, self._columns)),
            ids=self._statements.ids(map(self._padded, lock.keys)),
            now_ns=lock.now_ns,
            alive="TRUE" if lock.epoch_below is None else f"COALESCE(epoch, 0) < {lock.epoch_below}",
            order="id" if self._statements.ids_are_integers and is_ascending(lock.keys) else "priority, time_next, id",
            limit=len(lock.keys),
            seconds=self._lock_wait_s,
        )

    def _pass(self, stream: LockingStream, lock: Lock, rows: Sequence[bytes]) -> None:
        keys: list[Key] = []
        passed: list[bytes] = []
        read: list[Entry] = []
        for row in rows:
            raw, rest = split_binary_row(row, len(self._columns)) if self._binary else split_text_row(row)
            raw = raw.rstrip(b" ") if self._pad_chars else raw
            if lock.unscanned:
                read.append(self._statements.entry(raw))
            keys.append(read[-1].key if lock.unscanned else self._statements.key(raw))
            passed.append(rest)
        stream.pass_rows(keys, passed, read)

    def _padded(self, key: Key) -> Key:
        # Under PAD_CHAR_TO_FULL_LENGTH, MySQL compares the padded value, and most collations
        # compare blanks.
        return key.ljust(self._pad_chars) if isinstance(key, str) else key
