"""The event filter: which events of the binary log can be skipped without decoding.

Most events of a busy server are transactions on tables that are no queues. Decoding an event costs
the reader ten µs or more. Its first bytes show in less than one µs that it can be skipped. Skipped
are the rows of tables that are not followed, by their table maps, and the events that only begin or
end a transaction without relevant rows. Events of unknown types are never skipped.

The engine's own transactions are skipped too: claims, releases, purges. The first event of a
transaction shows whose it is (`OwnTransactions`). Three kinds of rows in them are decoded all the
same, because no dispatcher knows them. Inserted rows: a dead message that arrives in a queue. Rows
of a statement that writes to several followed tables: a trigger has written to another queue. Rows
before the reader has the number of the connection.

An event in a packet: a byte 0x00, 19 bytes of header (4 of time, 1 of type, 4 of the server's id,
…), its body, and perhaps four bytes of checksum. Events of rows contain the number of a table that
an earlier table map has announced. All table maps of a statement come before its rows. MySQL and
MariaDB have this in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TYPE_AT: Final = 5
SERVER_ID: Final = slice(6, 10)
BODY_AT: Final = 20
THREAD_ID: Final = slice(BODY_AT, BODY_AT + 4)
"""In an event of a statement: the connection that has run it."""
TABLE_ID: Final = slice(BODY_AT, BODY_AT + 6)
ROWS_FLAGS_AT: Final = BODY_AT + 6
STATEMENT_ENDS: Final = 1
"""A flag of rows: the last ones of their statement."""
SCHEMA_AT: Final = BODY_AT + 8
"""In a table map: after the table's number and two bytes of flags."""

QUERY: Final = 2
ROTATE: Final = 4
XID: Final = 16
TABLE_MAP: Final = 19
ANNOTATE: Final = 160
"""MariaDB's text of a statement, before its table maps."""
ROWS: Final = frozenset({23, 24, 25, 30, 31, 32, 39})
"""Inserts, updates and deletes of both versions, and partial updates."""
COMPRESSED_ROWS: Final = frozenset(range(166, 172))
"""MariaDB's inserts, updates and deletes with log_bin_compress."""
INSERTED_ROWS: Final = frozenset({23, 30, 166, 169})
TRANSACTION_BEGINS: Final = frozenset({33, 34, 42, ANNOTATE, 162})
"""MySQL's GTIDs (also anonymous and tagged), MariaDB's GTID, and MariaDB's text of a statement. The
end of a transaction shows as much."""

CHECKSUM: Final = 4
BEGIN: Final = b"\0BEGIN"
"""A statement's text follows the name of its schema and a zero byte."""

PASSED_TABLES_MAX: Final = 100_000
"""Numbers of skipped tables that are remembered. A server gives a table a new number whenever it
opens it."""


@dataclass(slots=True)
class OwnTransactions:
    """What the first event of the engine's own transactions contains (engine.store.own_writes).

    On MariaDB the text of each statement begins with `mark`. On MySQL the BEGIN contains the server
    and the number of a connection. A replicated transaction has the id of another server.
    """

    mark: bytes = b""
    """Empty: no statement has one."""
    server_id: bytes = b""
    connections: frozenset[bytes] = frozenset()

    def is_marked(self, event: bytes) -> bool:
        """Whether the event is the text of a statement of the engine's."""
        return bool(self.mark) and event.startswith(self.mark, BODY_AT)

    def is_begun_by(self, event: bytes) -> bool:
        """Whether the event is the BEGIN of a connection of the engine's."""
        return event[THREAD_ID] in self.connections and event[SERVER_ID] == self.server_id


class EventFilter:
    """The filter for one reader of the binary log.

    `follows(schema, table)` returns whether a table is followed, `pending()` whether the transaction
    that is being read has changes to report.
    """

    def __init__(
        self,
        follows: Callable[[bytes, bytes], bool],
        pending: Callable[[], bool],
        own: OwnTransactions | None = None,
    ) -> None:
        self._follows = follows
        self._pending = pending
        self._own = own or OwnTransactions()
        self._passed: set[bytes] = set()
        self._mapped: set[bytes] = set()
        """Numbers of followed tables whose maps were decoded since the log's file began. Their later
        maps are skipped: a table that is altered gets another number."""
        self._in_own = False
        """The transaction that is being read is the engine's own."""
        self._written: set[bytes] = set()
        """The followed tables that the present statement of it writes to."""
        self._second = b""

    def wants(self, event: bytes) -> bool:
        """Whether the event must be decoded."""
        if len(event) <= SCHEMA_AT or event[0] != 0:
            return True
        kind = event[TYPE_AT]
        if kind in TRANSACTION_BEGINS:
            self._begin(own=kind == ANNOTATE and self._own.is_marked(event))
            return False
        if self._in_own and (kind in ROWS or kind in COMPRESSED_ROWS):
            return self._wants_own_rows(kind, event)
        if kind in ROWS:
            return event[TABLE_ID] not in self._passed
        if kind == TABLE_MAP:
            return self._wants_table(event)
        if kind == XID:
            # The first one of each second is wanted in any case: its time shows how far behind the
            # reader is.
            second, self._second = self._second, event[1:TYPE_AT]
            return self._pending() or second != self._second
        if kind == QUERY and (event.endswith(BEGIN) or event.endswith(BEGIN, 0, -CHECKSUM)):
            self._begin(own=self._own.is_begun_by(event))
            return False
        if kind == ROTATE:
            self._mapped.clear()  # As the library forgets its table maps.
        return True

    def _begin(self, *, own: bool) -> None:
        """A transaction begins, or, on MariaDB, a statement."""
        self._in_own = own
        self._written.clear()

    def _wants_own_rows(self, kind: int, event: bytes) -> bool:
        number = event[TABLE_ID]
        alone = len(self._written) == 1
        if event[ROWS_FLAGS_AT] & STATEMENT_ENDS:
            self._written.clear()
        if number in self._passed:
            return False
        return not alone or kind in INSERTED_ROWS

    def _wants_table(self, event: bytes) -> bool:
        schema_end = SCHEMA_AT + 1 + event[SCHEMA_AT]
        table_at = schema_end + 2
        table_end = table_at + event[schema_end + 1]
        number = event[TABLE_ID]
        if self._follows(event[SCHEMA_AT + 1 : schema_end], event[table_at:table_end]):
            self._passed.discard(number)
            self._written.add(number)
            known = number in self._mapped
            _add(self._mapped, number)
            return not known
        _add(self._passed, number)
        self._mapped.discard(number)
        return False


def _add(numbers: set[bytes], number: bytes) -> None:
    """Remember a table's number, within the bound."""
    if len(numbers) >= PASSED_TABLES_MAX:
        numbers.clear()
    numbers.add(number)
