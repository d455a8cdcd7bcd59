"""The transaction that acknowledges messages for several clients (`acks`), on a connection of the engine.

It is one packet if each ACK names its message by the id alone: the rows are locked, updated, and
committed. `send` sends it, and `run` reads the replies, maybe later. If another transaction has locked one
of the rows, the server refuses the locking SELECT, and if the server is read-only, the statement before
it. What is behind a refused statement does not run, so nothing was done. The messages are then
acknowledged in two packets, as those of ACKs that name an epoch: the first locks the rows that nobody
else has locked, the second updates just these.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from engine.model import Key
from engine.packets import text_values
from engine.queue_table import QueueTable
from engine.store.acks import Ack, shares
from engine.store.begun import OnePacket
from engine.store.claiming import WAITED_S
from engine.store.connection import Begun, Result, StoreConnection
from engine.store.information_schema import now_ns
from engine.store.port import AckUnknownError, StoreError, Timed
from engine.store.queries import statement, statements_of
from engine.store.scan import entries_of

SHORT_MAX: Final = 200
"""ACKs in a packet that certainly fits into an empty send buffer, which has 16 kB on Linux: an id of 20
digits is in it twice."""

LOCKED_AT: Final = 3
"""The place of the locked rows among the results."""

Counts = Sequence[int | None]
"""The affected rows of each ACK; None: it is left out."""


class AckBatch(OnePacket):
    """ACKs that are carried out in one transaction."""

    def __init__(self, table: QueueTable, acks: Sequence[Ack]) -> None:
        super().__init__()
        self._sql = statements_of(table)
        self._acks = acks
        self._ids = {ack.key: None for ack in acks}
        self._in_one_packet = all(ack.epoch is None for ack in acks)
        self._sent_s = 0.0

    @property
    def is_short(self) -> bool:
        """Whether all is in one packet, which can be sent without waiting."""
        return self._in_one_packet and len(self._acks) <= SHORT_MAX

    def run(self, connection: StoreConnection) -> Timed[Counts]:
        """Carry it out. Raises StoreError if certainly nothing was done, and else AckUnknownError."""
        counted = self._at_once(connection) if self._in_one_packet else None
        return counted or self._in_two_packets(connection)

    def _write(self, connection: StoreConnection) -> Begun:
        statements = [
            statement("writable"),
            statement("now"),
            statement("begin"),
            *self._sql.for_ids("ack_lock_all", self._ids),
            *self._sql.for_ids("ack_update", self._ids),
            statement("commit"),
        ]
        self._sent_s = time.monotonic()
        return connection.begin(statements)

    def _at_once(self, connection: StoreConnection) -> Timed[Counts] | None:
        """None: the server has refused a statement, and nothing was done."""
        try:
            sent = self.begun(connection)
        except StoreError as error:
            raise AckUnknownError(str(error), code=error.code) from error
        results: list[Result] = []
        try:
            for result in connection.results(sent):
                results.append(result)  # noqa: PERF402  # Those before an error count.
        except StoreError as error:
            if connection.broken or len(results) == sent.statements - 1:  # At the commit.
                keys = self._ids if connection.broken else self._shares([results[LOCKED_AT]])[1]
                self._surely_undone(connection, keys, error)
                raise
            if error.waited and time.monotonic() - self._sent_s > WAITED_S:
                raise
            return None  # The reset has rolled back.
        now, update = results[1], results[-2]
        counts, keys = self._shares([results[LOCKED_AT]])
        if update.affected != len(keys):
            connection.broken = True  # It is committed: nothing is to be rolled back.
            raise AckUnknownError("a message was changed between two statements of one transaction")
        return Timed(counts, now_ns(now))

    def _in_two_packets(self, connection: StoreConnection) -> Timed[Counts]:
        locks = self._sql.for_ids("ack_lock", self._ids)
        now, _, *locked = connection.run([statement("now"), statement("begin"), *locks])
        counts, keys = self._shares(locked)
        try:
            connection.run([*self._sql.for_ids("ack_update", keys), statement("commit")])
        except StoreError as error:
            self._surely_undone(connection, keys, error)
            raise
        return Timed(counts, now_ns(now))

    def _shares(self, locked: Iterable[Result]) -> tuple[Counts, Sequence[Key]]:
        return shares(self._acks, (self._id_and_epoch(row) for result in locked for row in result.rows))

    def _id_and_epoch(self, row: bytes) -> tuple[Key, int | None]:
        raw, epoch = text_values(row)
        return self._sql.key(raw or b""), None if epoch is None else int(epoch)

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
