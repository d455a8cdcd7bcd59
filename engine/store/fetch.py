"""Reads rows for delivery: their packets unchanged, each with the epoch and lease of its message.

The session gets the subscriber's context (character set, time zone, padding), so the server
produces the same bytes as on the client's own connection. A budget bounds the bytes held. Keys are
read in slices that should fit it, by the size of the table's earlier rows. Rows beyond the budget
are received and dropped.

The rows of a claim are read behind its commit in the same packet (`send_behind`), if all its
subscribers have one format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from engine.model import Delivery, FetchResult, Key, RowFormat
from engine.packets import Result
from engine.queue_table import QueueTable
from engine.quoting import quoted
from engine.store.connection import Begun, SessionContext, StoreConnection
from engine.store.information_schema import now_ns
from engine.store.port import Timed
from engine.store.pymysql_adapter import COMMAND
from engine.store.queries import statement, statements_of
from engine.store.row_packets import split_binary_row, split_text_row


class SentBehind(NamedTuple):
    """A fetch that was sent behind statements."""

    begun: Begun
    left: Sequence[Key]
    """Keys beyond its slice."""


class RowFetch:
    """One fetch: slices of its keys, as large as the budget allows by the estimated size of
    rows."""

    def __init__(
        self, table: QueueTable, row_format: RowFormat, keys: Mapping[Key, Delivery], budget_bytes: int, row_bytes: int
    ) -> None:
        sql_mode = "PAD_CHAR_TO_FULL_LENGTH" if row_format.pad_char else ""
        self.context = SessionContext(row_format.charset, row_format.time_zone, sql_mode)
        self.row_bytes = row_bytes
        """The estimated size of a row, and after the first rows their mean."""
        self._sql = statements_of(table)
        self._columns = row_format.columns
        self._binary = row_format.binary
        self._pad_chars = table.id_pad_chars if row_format.pad_char else 0
        self._keys = keys
        self._budget_bytes = budget_bytes
        self._rows: dict[Key, bytes] = {}
        self._unread: set[Key] = set()
        self._changed: set[Key] = set()
        self._bytes = 0

    def run(self, connection: StoreConnection) -> Timed[FetchResult]:
        """Read slices until all keys have been read or the budget is used up."""
        now = None
        left = list(self._keys)
        while left and not self._spent:
            part, left = self._sliced(left)
            now = self._read(connection, part)
            if self._rows:
                self.row_bytes = self._bytes // len(self._rows)
        if now is None:
            (now,) = connection.run([statement("now")])
        return Timed(self._result(left), now_ns(now))

    def send_behind(self, connection: StoreConnection, statements: Sequence[str]) -> SentBehind:
        """Send `statements`, which commit what they write, and what reads the first slice behind them, in
        the same packet. `read_behind` reads the replies. Raises StoreError."""
        part, left = self._sliced(list(self._keys))
        command = COMMAND.COM_STMT_PREPARE if self._binary else COMMAND.COM_QUERY
        begun = connection.send_with_command(statements, self.context, command, self._text(part).encode())
        return SentBehind(begun, left)

    def read_behind(
        self,
        connection: StoreConnection,
        sent: SentBehind,
        on_results: Callable[[Sequence[Result]], Mapping[Key, Delivery]] | None = None,
    ) -> FetchResult | None:
        """Read the replies to what `send_behind` has sent.

        `on_results` returns the deliveries, if they follow from the results of the statements: rows of
        others are not kept. Keys beyond the slice are unread. None: the rows could not be read; the
        statements have succeeded all the same. Raises StoreError if one failed.
        """

        def note(results: Sequence[Result]) -> None:
            if on_results is not None:
                self._keys = on_results(results)

        read = partial(self._execute, connection) if self._binary else partial(connection.result, self._keep)
        if not connection.read_with_command(sent.begun, self.context, read, note):
            return None
        return self._result(sent.left)

    @property
    def text(self) -> str:
        """The statement that reads the rows of all keys, in the text protocol. For few keys."""
        return self._text(list(self._keys))

    def take(self, rows: Iterable[bytes], deliveries: Mapping[Key, Delivery]) -> FetchResult:
        """The result of these rows, which `text` has read. Those of other deliveries are not kept."""
        self._keys = deliveries
        for row in rows:
            self._keep(row)
        return self._result(())

    @property
    def _full(self) -> bool:
        return bool(self._rows) and self._bytes >= self._budget_bytes

    @property
    def _spent(self) -> bool:
        """Whether another row probably does not fit."""
        return bool(self._rows) and self._bytes + self.row_bytes > self._budget_bytes

    def _sliced(self, keys: list[Key]) -> tuple[list[Key], list[Key]]:
        """The next slice of these keys, and the others."""
        count = max(1, (self._budget_bytes - self._bytes) // max(1, self.row_bytes))
        return keys[:count], keys[count:]

    def _result(self, left: Sequence[Key]) -> FetchResult:
        if self._rows:
            self.row_bytes = self._bytes // len(self._rows)
        return FetchResult(self._rows, frozenset([*self._unread, *left]), frozenset(self._changed))

    def _text(self, keys: Sequence[Key]) -> str:
        columns = ", ".join(map(quoted, self._columns))
        return self._sql("fetch", ids=self._sql.ids(map(self._padded, keys)), columns=columns)

    def _read(self, connection: StoreConnection, keys: Sequence[Key]) -> Result:
        text = self._text(keys)
        if not self._binary:
            now, _ = connection.run([statement("now"), text], self.context, self._keep)
            return now
        (now,) = connection.run([statement("now")], self.context)
        connection.send(COMMAND.COM_STMT_PREPARE, text.encode())
        self._execute(connection)
        return now

    def _execute(self, connection: StoreConnection) -> Result:
        """Run the statement that is being prepared."""
        statement_id = connection.prepared()
        connection.send(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement_id, 0, 1))
        try:
            return connection.result(self._keep)
        finally:
            if not connection.broken:
                connection.send(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement_id))

    def _keep(self, packet: bytes) -> None:
        marker, row = split_binary_row(packet, len(self._columns)) if self._binary else split_text_row(packet)
        epoch, until_ns, raw = marker.split(b":", 2)
        key = self._sql.key(raw.rstrip(b" ") if self._pad_chars else raw)
        delivery = self._keys.get(key)
        if delivery is None or delivery.epoch != int(epoch):
            return
        if delivery.until_ns != int(until_ns):
            self._changed.add(key)
        elif self._full:
            self._unread.add(key)
        else:
            self._rows[key] = row
            self._bytes += len(row)

    def _padded(self, key: Key) -> Key:
        # Under PAD_CHAR_TO_FULL_LENGTH, MySQL compares the padded value, and most collations
        # compare blanks.
        return key.ljust(self._pad_chars) if isinstance(key, str) else key
