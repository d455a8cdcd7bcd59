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
  `event_size`.

No other module of engine imports the library (an import contract in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
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
from engine.binlog.event_filter import TYPE_AT, XID
from engine.binlog.row_image import bits
from engine.store.pymysql_adapter import Connection, IncompatibleVersionError, MySQLError

_XID: Final = bytes([XID])
_COM_BINLOG_DUMP: Final = 0x12
_COMMAND_AT, _FLAGS_AT = 4, 9
_SEND_ANNOTATE_ROWS: Final = 0x02
"""MariaDB: send the texts of statements too. Without it they are replaced or left out."""

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
class Rows:
    """Rows of one table, changed by one statement.

    `number` stands for the table until the server opens it again.
    """

    change: Change
    number: int
    schema: str
    table: str
    partial: bool
    """Whether the images hold parts of values (JSON)."""
    _event: Any

    def columns(self) -> Sequence[Mapping[str, Any]]:
        """The description of each column in the binary log, for
        engine.binlog.row_image.field_of."""
        with _expected():
            return [column.data for column in self._event.columns]

    def images(self) -> tuple[Sequence[int], bytes]:
        """The columns of each image of a row, a bit for each column, and the rows' bytes.

        Can be called once.
        """
        event = self._event
        with _expected():
            present = [bits(event.columns_present_bitmap)]
            if self.change is Change.UPDATE:
                present.append(bits(event.columns_present_bitmap2))
            return present, event.packet.read(event.event_size - event.packet.read_bytes)


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


class FilteredConnection(Connection):
    """A connection of PyMySQL's that skips packets once `wants` is set."""

    wants: Callable[[bytes], bool] | None = None
    """Whether a packet is handed out; None: all are."""

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
                pymysql_wrapper=connect,
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
        return None if found is None else _event(found)


def _event(found: Any) -> Event:
    with _expected():
        match found:
            case WriteRowsEvent() | UpdateRowsEvent() | DeleteRowsEvent():
                change = _CHANGES[type(found)]
                partial = isinstance(found, PartialUpdateRowsEvent)
                return Rows(change, found.table_id, found.schema, found.table, partial, found)
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
