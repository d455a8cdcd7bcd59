"""Which events of the binary log can be passed over unread.

Most of what a busy server logs is of no queue: transactions on other tables. To take an event apart costs the reader
ten µs and more; to see by its first bytes that it is of no interest, less than one. So what is passed over here is all
that the tables in the log, as they are announced, show to be somebody else's, and what only holds a transaction
together that has nothing in it. Whatever is not known here is wanted.

An event, as a packet has it: a byte 0x00, 19 bytes of header (4 of time, 1 of type, …), its body, and perhaps four
bytes of checksum. All that is said of rows names a table by a number that the table map before them has announced;
MySQL and MariaDB have this in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TYPE_AT: Final = 5
BODY_AT: Final = 20
TABLE_ID: Final = slice(BODY_AT, BODY_AT + 6)
SCHEMA_AT: Final = BODY_AT + 8
"""In a table map: behind the table's number and two bytes of flags."""

QUERY: Final = 2
XID: Final = 16
TABLE_MAP: Final = 19
ROWS: Final = frozenset({23, 24, 25, 30, 31, 32, 39})
"""Inserted, updated, deleted, of both versions; partly updated."""
TRANSACTION_BEGINS: Final = frozenset({33, 34, 42, 160, 162})
"""MySQL's GTID, anonymous and tagged too; MariaDB's, and its text of a statement. A transaction's end tells as much."""

CHECKSUM: Final = 4
BEGIN: Final = b"\0BEGIN"
"""The text of a statement follows its schema's name, which a zero byte ends."""

PASSED_TABLES_MAX: Final = 100_000
"""Numbers of tables that are passed over. A server gives new ones whenever it opens a table."""


class EventFilter:
    """For one reading of the log. `follows(schema, table)` and `pending()`, whether the transaction has had news, tell
    what is wanted."""

    def __init__(self, follows: Callable[[bytes, bytes], bool], pending: Callable[[], bool]) -> None:
        self._follows = follows
        self._pending = pending
        self._passed: set[bytes] = set()
        self._second = b""

    def wants(self, event: bytes) -> bool:
        """Whether it must be read."""
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
            # The first of each second is wanted all the same: by its time it is known how far behind the reading is.
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
