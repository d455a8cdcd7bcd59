"""The adapter of mysql-replication: events of the binary log as values of our own.

The library requests the binary log, negotiates, and decodes events: the transaction, the table, the
columns. It does not decode rows (engine.binlog.row_image has the reasons). This module alone uses
what the library does not document. If an installed release lacks it, IncompatibleVersionError names
it:

- it reads each packet by `_read_packet` of the connection that its `pymysql_wrapper` made. A
  connection that overrides this method skips events before they are decoded, and reads the ends of
  transactions itself (`FilteredConnection`). If a release reads otherwise, no event is skipped, and
  all else works;
- it writes the request by `_write_bytes` of that connection, with the flags behind the position.
  On MariaDB the connection sets the flag for the texts of statements. If a release writes
  otherwise, the engine's own transactions are decoded like all others;
- an event of rows has `table_id`, `schema`, `table`, `columns` with their `data`, the bitmaps of
  the columns that are present, and leaves its rows unread in `packet`, from `packet.read_bytes` to
  `event_size`. Only the first event of a table is decoded by the library, which takes as long as
  ten rows. Later ones are decoded here (`decoded`).

No other module of engine imports the library (an import contract in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import (
    HeartbeatLogEvent,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from engine.binlog.changes import Change
from engine.binlog.event_filter import BODY_AT, TABLE_ID, TYPE_AT, XID
from engine.binlog.row_image import bits
from engine.store.pymysql_adapter import Connection, IncompatibleVersionError, MySQLError

_XID: Final = bytes([XID])
_COM_BINLOG_DUMP: Final = 0x12
_COMMAND_AT, _FLAGS_AT = 4, 9
_SEND_ANNOTATE_ROWS: Final = 0x02
"""MariaDB: send the texts of statements too. Without it they are replaced or left out."""

HEADER_BYTES: Final = BODY_AT - 1
ROWS_AT: Final = BODY_AT + 8
"""In an event of rows: after the table's number and two bytes of flags."""
_ROWS: Final = {
    **dict.fromkeys((23, 30), Change.INSERT),
    **dict.fromkeys((24, 31), Change.UPDATE),
    **dict.fromkeys((25, 32), Change.DELETE),
}
_WITH_EXTRA_DATA: Final = frozenset({30, 31, 32})
"""The second version, of MySQL."""
_TWO_BYTES: Final = 0xFC
"""Stands before a count of two bytes."""

TABLES_MAX: Final = 10_000
"""Tables that are remembered. A server gives a table a new number whenever it opens it."""

COMPRESSED: Final = frozenset({40, *range(165, 172)})
"""Compressed events that the library does not decode: MySQL's whole transactions, MariaDB's rows
and statements."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The end of a transaction, at this second by the server's clock."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """XA PREPARE: the transaction is not committed yet, and may never be."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement's text: DDL, BEGIN, ROLLBACK, or a change that was logged by its text."""

    text: str


@dataclass(frozen=True, slots=True)
class Idle:
    """A heartbeat: the reader is at the end of the binary log."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A transaction, or a part of one, that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table in the binary log, under a number until the server opens it again."""

    number: int
    schema: str
    name: str
    columns: tuple[Mapping[str, Any], ...]
    """Their descriptions, for engine.binlog.row_image.field_of."""
    checksum: int
    """Bytes of the checksum at the end of its events."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table, changed by one statement."""

    table: LoggedTable
    change: Change
    present: tuple[int, ...]
    """The columns of each image of a row, a bit for each column."""
    data: bytes
    """The images of the rows."""
    partial: bool = False
    """Whether the images hold parts of values (JSON)."""


@dataclass(frozen=True, slots=True)
class Other:
    """An event without relevance here."""


Event = Committed | Prepared | Statement | Idle | Unreadable | Rows | Other

_CHANGES: Final = {
    WriteRowsEvent: Change.INSERT,
    UpdateRowsEvent: Change.UPDATE,
    PartialUpdateRowsEvent: Change.UPDATE,
    DeleteRowsEvent: Change.DELETE,
}
_OTHERS: Final = (RotateEvent, QueryEvent, XidEvent, XAPrepareEvent, HeartbeatLogEvent, NotImplementedEvent)


class _CommittedError(Exception):
    """The end of a transaction, at this second. It passes through the library, which would take
    longer to decode the event than to read its rows."""

    def __init__(self, timestamp: int) -> None:
        super().__init__()
        self.timestamp = timestamp


class _RowsError(Exception):
    """Rows that were decoded here. They pass through the library as the end of a transaction."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows


class FilteredConnection(Connection):
    """A connection of PyMySQL's that skips packets once `wants` is set."""

    wants: Callable[[bytes], bool] | None = None
    """Whether a packet is handed out; None: all are."""
    tables: Mapping[int, LoggedTable] = MappingProxyType({})
    """The tables whose rows are decoded here, by their numbers."""

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is a MariaDB."""
        return "MariaDB" in str(self.get_server_info())  # type: ignore[no-untyped-call]

    def take_lock(self, name: str) -> bool:
        """Take a user-level lock for as long as the connection lives. Returns whether it has it."""
        try:
            with self.cursor() as cursor:
                cursor.execute("SELECT GET_LOCK(%s, 0)", (name,))
                return bool(cursor.fetchone() == (1,))
        except MySQLError:
            return False

    def _write_bytes(self, data: bytes) -> Any:
        if self.is_mariadb and data[_COMMAND_AT : _COMMAND_AT + 1] == bytes([_COM_BINLOG_DUMP]):
            flags = data[_FLAGS_AT] | _SEND_ANNOTATE_ROWS
            data = data[:_FLAGS_AT] + bytes([flags]) + data[_FLAGS_AT + 1 :]
        return super()._write_bytes(data)  # type: ignore[misc]  # not in PyMySQL's stubs

    def _read_packet(self, *arguments: Any) -> Any:
        read: Callable[..., Any] = super()._read_packet
        wants = self.wants
        packet = read(*arguments)
        if wants is not None:
            while not wants(event := packet.get_all_data()):
                packet = read(*arguments)
            if event[:1] == b"\0" and event[TYPE_AT : TYPE_AT + 1] == _XID:
                raise _CommittedError(int.from_bytes(event[1:TYPE_AT], "little"))
            if (rows := decoded(event, self.tables)) is not None:
                raise _RowsError(rows)
        return packet


class LogStream:
    """The binary log from a position on.

    `connect` opens connections, and gets PyMySQL's options.
    """

    def __init__(
        self,
        connect: Callable[..., Connection],
        *,
        server_id: int,
        file: str,
        position: int,
        tables: set[str],
        schemas: set[str],
        heartbeat_s: float,
    ) -> None:
        """`tables` and `schemas` are read at each event, so they can change.

        Raises IncompatibleVersionError.
        """
        self._tables: dict[int, LoggedTable] = {}

        def connect_filtered(**options: Any) -> Connection:
            connection = connect(**options)
            if isinstance(connection, FilteredConnection):
                connection.tables = self._tables
            return connection

        with _expected():
            self._stream = BinLogStreamReader(
                {},
                server_id,
                log_file=file,
                log_pos=position,
                resume_stream=True,
                blocking=True,
                only_events=[*_CHANGES, *_OTHERS],
                filter_non_implemented_events=False,
                only_tables=tables,
                only_schemas=schemas,
                freeze_schema=True,  # A changed table has another number in the log.
                slave_heartbeat=heartbeat_s,
                pymysql_wrapper=connect_filtered,
                enable_logging=False,
            )

    def fetchone(self) -> Event | None:
        """The next event; None at the end.

        Raises MySQLError, and any exception for an unreadable event.
        """
        try:
            found = self._stream.fetchone()
        except _CommittedError as end:
            return Committed(end.timestamp)
        except _RowsError as found_here:
            return found_here.rows
        if isinstance(found, RotateEvent):
            self._tables.clear()  # As the library does. A server that was restarted counts tables anew.
        event = None if found is None else _event(found)
        if isinstance(event, Rows):
            if len(self._tables) >= TABLES_MAX:
                self._tables.clear()
            self._tables[event.table.number] = event.table
        return event


def decoded(event: bytes, tables: Mapping[int, LoggedTable]) -> Rows | None:
    """The rows of an event, if it has rows of one of these tables. None for others, and for forms
    that only the library decodes."""
    if len(event) < ROWS_AT or event[0] != 0 or (change := _ROWS.get(event[TYPE_AT])) is None:
        return None
    table = tables.get(int.from_bytes(event[TABLE_ID], "little"))
    if table is None:
        return None
    at = ROWS_AT
    if event[TYPE_AT] in _WITH_EXTRA_DATA:  # Its length includes the two bytes of the length.
        at += int.from_bytes(event[at : at + 2], "little")
    count, at = event[at], at + 1
    if count == _TWO_BYTES:
        count, at = int.from_bytes(event[at : at + 2], "little"), at + 2
    if count != len(table.columns):
        return None
    size = (count + 7) // 8
    present = []
    for _ in range(1 + (change is Change.UPDATE)):
        present.append(bits(event[at : at + size]))
        at += size
    return Rows(table, change, tuple(present), event[at : len(event) - table.checksum])


def read_rows(event: Any, change: Change, *, partial: bool = False) -> Rows:
    """The rows of an event that the library has decoded, which can be read once. Raises
    IncompatibleVersionError."""
    with _expected():
        packet = event.packet
        columns = tuple(column.data for column in event.columns)
        checksum = packet.event_size - HEADER_BYTES - event.event_size
        present = [bits(event.columns_present_bitmap)]
        if change is Change.UPDATE:
            present.append(bits(event.columns_present_bitmap2))
        table = LoggedTable(event.table_id, event.schema, event.table, columns, checksum)
        return Rows(table, change, tuple(present), packet.read(event.event_size - packet.read_bytes), partial)


def _event(found: Any) -> Event:
    with _expected():
        match found:
            case WriteRowsEvent() | UpdateRowsEvent() | DeleteRowsEvent():
                return read_rows(found, _CHANGES[type(found)], partial=isinstance(found, PartialUpdateRowsEvent))
            case XidEvent() | XAPrepareEvent(one_phase=True):
                return Committed(found.timestamp)
            case XAPrepareEvent():
                return Prepared()
            case QueryEvent():
                return Statement(found.query)
            case HeartbeatLogEvent():
                return Idle()
            case NotImplementedEvent() if found.event_type in COMPRESSED:
                return Unreadable()
            case _:
                return Other()


@contextmanager
def _expected() -> Iterator[None]:
    """Turn a missing, undocumented attribute of the library into IncompatibleVersionError."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        raise IncompatibleVersionError(
            f"mysql-replication {version('mysql-replication')} does not fit this ackstream: {error}."
            " Install another release of mysql-replication."
        ) from error
