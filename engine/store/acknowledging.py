"""The transaction that acknowledges messages for several clients (`acks`), on a connection of the engine.

It is one packet: the rows are locked, updated, and committed. `send` sends it, and `run` reads the replies,
maybe later. What is behind a refused statement does not run, so nothing was done then. If another
transaction has locked one of the rows, the server refuses the locking SELECT at once. It may also refuse
the UPDATE of a row. Then the ACKs are carried out in two halves, and one that is refused alone is left out.
A server that is read-only refuses the first statement, and all ACKs are left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from engine.model import Key
from engine.packets import Result, text_values
from engine.queue_table import QueueTable
from engine.store.acks import Ack, Shares, shares
from engine.store.begun import OnePacket
from engine.store.claiming import WAITED_S
from engine.store.connection import Begun, StoreConnection
from engine.store.information_schema import now_ns
from engine.store.port import AckResult, AckUnknownError, StoreError, Timed
from engine.store.queries import statement, statements_of
from engine.store.scan import entries_of

SHORT_BYTES: Final = 5_000
"""Bytes of ids in a packet that certainly fits into an empty send buffer, which has 16 kB on Linux: each id
is in it up to three times."""

REFUSALS_MAX: Final = 16
"""Refused packets after which the other ACKs are left out. One locked row among a thousand costs ten."""

LOCKED_AT: Final = 3
"""The place of the locked rows among the results."""


class AckBatch(OnePacket):
    """ACKs that are carried out in one transaction."""

    def __init__(self, table: QueueTable, acks: Sequence[Ack]) -> None:
        """`acks`: at least one, each with a key."""
        super().__init__()
        self._table, self._acks = table, acks
        self._sql = statements_of(table)
        self._keys = {key: None for ack in acks for key in ack.keys}
        self._ids = self._sql.ids(self._keys)
        self._sent_s = 0.0

    @property
    def is_short(self) -> bool:
        """Whether the packet can be sent without waiting."""
        return len(self._ids) <= SHORT_BYTES

    def run(self, connection: StoreConnection) -> Timed[Sequence[AckResult]]:
        """Carry it out. Raises StoreError if certainly nothing was done, and else AckUnknownError."""
        counts, now_at = self.attempt(connection)
        results = self._in_halves(connection) if counts is None else counts
        return Timed(results, now_at)

    def attempt(self, connection: StoreConnection) -> tuple[Sequence[AckResult] | None, int]:
        """Carry it out in one packet. The results, and the server's time. None: the server has refused to lock
        or to change a row, and nothing was done. Raises as `run` does."""
        try:
            sent = self.begun(connection)
        except StoreError as error:
            raise AckUnknownError(str(error), code=error.code) from error
        results: list[Result] = []
        try:
            for result in connection.results(sent):
                results.append(result)  # noqa: PERF402  # Those before an error count.
        except StoreError as error:
            self._raise_unless_refused(connection, results, error, at_commit=len(results) == sent.statements - 1)
            if len(results) < LOCKED_AT:  # The server is read-only. Here and below, the reset has rolled back.
                (now,) = connection.run([statement("now")])
                return [None] * len(self._acks), now_ns(now)
            return None, now_ns(results[1])
        done = self._shares(results)
        if results[-2].affected != len(done.keys):
            connection.broken = True  # It is committed: nothing is to be rolled back.
            raise AckUnknownError("a message was changed between two statements of one transaction")
        return done.counts, now_ns(results[1])

    def _write(self, connection: StoreConnection) -> Begun:
        statements = [
            statement("writable"),
            statement("now"),
            statement("begin"),
            self._sql("ack_lock", ids=self._ids),
            self._sql("ack_update", ids=self._ids, fences=self._fences()),
            statement("commit"),
        ]
        self._sent_s = time.monotonic()
        return connection.begin(statements)

    def _fences(self) -> str:
        """The end of a condition that leaves out messages whose ACKs name another epoch."""
        by_epoch: dict[int | None, dict[Key, None]] = {}
        for ack in self._acks:
            by_epoch.setdefault(ack.epoch, {}).update(dict.fromkeys(ack.keys))
        if by_epoch.keys() == {None}:
            return ""
        return f"AND ({' OR '.join(self._fence(epoch, keys) for epoch, keys in by_epoch.items())})"

    def _fence(self, epoch: int | None, keys: Iterable[Key]) -> str:
        condition = f"id IN ({self._sql.ids(keys)})"
        return condition if epoch is None else f"{condition} AND epoch = {epoch}"

    def _shares(self, results: Sequence[Result]) -> Shares:
        return shares(self._acks, dict(map(self._id_and_epoch, results[LOCKED_AT].rows)))

    def _id_and_epoch(self, row: bytes) -> tuple[Key, int | None]:
        raw, epoch = text_values(row)
        return self._sql.key(raw or b""), None if epoch is None else int(epoch)

    def _raise_unless_refused(
        self, connection: StoreConnection, results: Sequence[Result], error: StoreError, *, at_commit: bool
    ) -> None:
        """Raise the error behind these results, unless the server has refused a statement at once."""
        if connection.broken or at_commit:
            known = not connection.broken
            self._surely_undone(connection, self._shares(results).keys if known else self._keys, error)
            raise error
        if error.waited and time.monotonic() - self._sent_s > WAITED_S:
            raise error  # The table is locked.

    def _in_halves(self, connection: StoreConnection) -> Sequence[AckResult]:
        """Carry out the ACKs in smaller and smaller parts, after the server has refused all together. Parts
        may be committed, so each ACK has its own result, whatever follows."""
        results: list[AckResult] = [None] * len(self._acks)
        parts, refusals = deque(_halves(range(len(self._acks)))), 1
        while parts and refusals < REFUSALS_MAX:
            part = parts.popleft()
            acks = self._acks[part.start : part.stop]
            try:
                counts, _ = AckBatch(self._table, acks).attempt(connection)
            except AckUnknownError as error:
                counts = [error] * len(acks)
            except StoreError:
                break
            if counts is None:
                refusals += 1
                parts.extend(_halves(part))
            else:
                results[part.start : part.stop] = counts
        return results

    def _surely_undone(self, connection: StoreConnection, keys: Iterable[Key], error: StoreError) -> None:
        """Raise AckUnknownError unless the rows show that the transaction that failed has not
        acknowledged any of `keys`."""
        wanted = list(keys)
        with suppress(StoreError):
            if not connection.broken:
                _, *found = connection.run([statement("rollback"), *self._sql.for_ids("lookup", wanted)])
                if {entry.key for entry in entries_of(self._sql, *found)} == set(wanted):
                    return
        raise AckUnknownError(str(error), code=error.code) from error


def _halves(part: range) -> Iterator[range]:
    """The halves of a part; none of a part of one."""
    middle = (part.start + part.stop) // 2
    if len(part) > 1:
        yield range(part.start, middle)
        yield range(middle, part.stop)
