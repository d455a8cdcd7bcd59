"""The event filter: which events of the binary log can be skipped without decoding.

Most events of a busy server are transactions on tables that are no queues. Decoding an event costs
the reader ten µs or more. Its first bytes show in less than one µs that it can be skipped. Skipped
are the rows of tables that are not followed, by their table maps, and the events that only begin or
end a transaction without relevant rows. Events of unknown types are never skipped.

An event in a packet: a byte 0x00, 19 bytes of header (4 of time, 1 of type, …), its body, and
perhaps four bytes of checksum. Events of rows contain the number of a table that an earlier table
map has announced. MySQL and MariaDB have this in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TYPE_AT: Final = 5
BODY_AT: Final = 20
TABLE_ID: Final = slice(BODY_AT, BODY_AT + 6)
SCHEMA_AT: Final = BODY_AT + 8
"""In a table map: after the table's number and two bytes of flags."""

QUERY: Final = 2
XID: Final = 16
TABLE_MAP: Final = 19
ROWS: Final = frozenset({23, 24, 25, 30, 31, 32, 39})
"""Inserts, updates and deletes of both versions, and partial updates."""
TRANSACTION_BEGINS: Final = frozenset({33, 34, 42, 160, 162})
"""MySQL's GTIDs (also anonymous and tagged), MariaDB's GTID, and MariaDB's text of a statement. The
end of a transaction shows as much."""

CHECKSUM: Final = 4
BEGIN: Final = b"\0BEGIN"
"""A statement's text follows the name of its schema and a zero byte."""

PASSED_TABLES_MAX: Final = 100_000
"""Numbers of skipped tables that are remembered. A server gives a table a new number whenever it
opens it."""


class EventFilter:
    """The filter for one reader of the binary log.

    `follows(schema, table)` returns whether a table is followed, `pending()` whether the
    transaction that is being read has changes to report.
    """

    def __init__(self, follows: Callable[[bytes, bytes], bool], pending: Callable[[], bool]) -> None:
        self._follows = follows
        self._pending = pending
        self._passed: set[bytes] = set()
        self._second = b""

    def wants(self, event: bytes) -> bool:
        """Whether the event must be decoded."""
        if len(event) <= SCHEMA_AT or event[0] != 0:
            return True
        kind = event[TYPE_AT]
        if kind in TRANSACTION_BEGINS:
            return False
        if kind in ROWS:
            return event[TABLE_ID] not in self._passed
        if kind == TABLE_MAP:
            return self._wants_table(event)
        if kind == XID:
            # The first one of each second is wanted in any case: its time shows how far behind the
            # reader is.
            second, self._second = self._second, event[1:TYPE_AT]
            return self._pending() or second != self._second
        return kind != QUERY or not (event.endswith(BEGIN) or event.endswith(BEGIN, 0, -CHECKSUM))

    def _wants_table(self, event: bytes) -> bool:
        schema_end = SCHEMA_AT + 1 + event[SCHEMA_AT]
        table_at = schema_end + 2
        table_end = table_at + event[schema_end + 1]
        if self._follows(event[SCHEMA_AT + 1 : schema_end], event[table_at:table_end]):
            self._passed.discard(event[TABLE_ID])
            return True
        if len(self._passed) >= PASSED_TABLES_MAX:
            self._passed.clear()
        self._passed.add(event[TABLE_ID])
        return False
