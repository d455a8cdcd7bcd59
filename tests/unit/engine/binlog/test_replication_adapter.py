"""What ackstream requires of mysql-replication beyond its documentation. A release that lacks it fails here.

The library reads a log that is written by hand, from a server that is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pymysqlreplication.event import XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from engine.binlog import replication_adapter
from engine.binlog.changes import Change
from engine.binlog.pipe import ReaderEnded
from engine.binlog.reader import read_until_ended, readable_events
from engine.binlog.replication_adapter import (
    Committed,
    Event,
    FilteredConnection,
    Idle,
    LoggedTable,
    LogStream,
    Other,
    Prepared,
    Rows,
    Statement,
    Unreadable,
    decoded,
)
from engine.binlog.row_image import Field, field_of
from engine.store.opening import BackendAddress, ConnectionLimits, connect
from engine.store.pymysql_adapter import Connection, Cursor, IncompatibleVersionError
from tests.support.scripted import QUERY, Say, ordinary, rows, scripted_server

DUMP = 0x12
QUERY_EVENT, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT, XA_PREPARE, COMPRESSED = 2, 4, 15, 16, 19, 27, 38, 40
WRITE, UPDATE, DELETE, PARTIAL_UPDATE, UPDATE_OF_FIRST_VERSION = 30, 31, 32, 39, 24
ORDERS = 7
SECOND = 1_700_000_000
ROW = b"\x00" + (5).to_bytes(4, "little") + b"\x03abc"


def event(kind: int, body: bytes = b"") -> bytes:
    """A packet of the binary log, without a checksum."""
    size = 19 + len(body)
    header = SECOND.to_bytes(4, "little") + bytes([kind]) + (1).to_bytes(4, "little") + size.to_bytes(4, "little")
    return b"\0" + header + (4).to_bytes(4, "little") + b"\0\0" + body


def table_map(number: int = ORDERS, schema: bytes = b"shop", table: bytes = b"orders") -> bytes:
    """A table of INT and VARCHAR(300)."""
    names = b"".join(bytes([len(name)]) + name + b"\0" for name in (schema, table))
    return event(TABLE_MAP, number.to_bytes(6, "little") + b"\1\0" + names + b"\x02\x03\x0f\x02\x2c\x01\x03")


def changed(kind: int, *images: bytes, number: int = ORDERS, extra: bytes = b"") -> bytes:
    """An event of rows, with extra data if it is of the second version."""
    bitmaps = b"\x03" * (2 if kind in {UPDATE, PARTIAL_UPDATE, UPDATE_OF_FIRST_VERSION} else 1)
    before = b"" if kind == UPDATE_OF_FIRST_VERSION else (2 + len(extra)).to_bytes(2, "little") + extra
    return event(kind, number.to_bytes(6, "little") + b"\1\0" + before + b"\x02" + bitmaps + b"".join(images))


def query(text: bytes) -> bytes:
    return event(QUERY_EVENT, bytes(8) + b"\x04" + bytes(4) + b"shop\0" + text)


def rotate() -> bytes:
    return event(ROTATE, (4).to_bytes(8, "little") + b"log.000001")


@contextmanager
def stream(*log: bytes, wants: Callable[[bytes], bool] | None = None) -> Iterator[LogStream]:
    """The binary log as the library reads it, up to its end."""

    def script(command: int, payload: bytes) -> Say:
        if command == DUMP:
            return Say([*log, b"\xfe\0\0\2\0"])
        if command == QUERY and b"LIKE 'BINLOG" in payload:
            return Say(rows(["BINLOG_CHECKSUM", "NONE"]))
        return ordinary(command, payload)

    def connected(*, cursorclass: type = Cursor, **_: object) -> Connection:
        connection = connect(address, ConnectionLimits(), FilteredConnection, cursorclass=cursorclass)
        connection.wants = wants
        return connection

    with scripted_server(script) as server:
        address = BackendAddress(server.host, server.port, "root")
        yield LogStream(
            connected,
            server_id=4711,
            file="log.000001",
            position=4,
            tables={"orders"},
            schemas={"shop"},
            heartbeat_s=1.0,
        )


def read(*log: bytes, wants: Callable[[bytes], bool] | None = None) -> list[Event]:
    """All relevant events of a binary log."""
    with stream(rotate(), *log, wants=wants) as log_stream:
        events = list(readable_events(log_stream.fetchone, lambda: pytest.fail("an event could not be read")))
    assert events[0] == Other()
    return events[1:]


def of_rows(found: Event) -> tuple[object, ...]:
    assert isinstance(found, Rows)
    table = found.table
    return (found.change, table.number, table.schema, table.name, found.partial, found.present, found.data)


@pytest.mark.parametrize(
    ("packet", "change", "partial", "present"),
    [
        (changed(WRITE, ROW), Change.INSERT, False, (3,)),
        (changed(UPDATE, ROW), Change.UPDATE, False, (3, 3)),
        (changed(PARTIAL_UPDATE, ROW), Change.UPDATE, True, (3, 3)),
        (changed(DELETE, ROW), Change.DELETE, False, (3,)),
    ],
)
def test_rows_come_with_their_table_and_their_bytes_unread(
    packet: bytes, change: Change, *, partial: bool, present: tuple[int, ...]
) -> None:
    (found,) = read(table_map(), packet)
    assert of_rows(found) == (change, ORDERS, "shop", "orders", partial, present, ROW)


def test_the_columns_in_the_log_are_as_the_row_reader_requires() -> None:
    (found,) = read(table_map(), changed(WRITE, ROW))
    assert isinstance(found, Rows)
    assert [field_of(told) for told in found.table.columns] == [Field(3, 4), Field(15, 2, counted=True, width=300)]


def test_with_a_filter_the_end_of_a_transaction_passes_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(XidEvent, "__init__", lambda *_, **__: pytest.fail("the library decodes it"))
    end = event(XID, bytes(8))
    found = read(table_map(), changed(WRITE, ROW), end, changed(WRITE, ROW), end, wants=lambda _: True)
    assert [type(change).__name__ for change in found] == ["Rows", "Committed", "Rows", "Committed"]
    assert found[-1] == Committed(SECOND)


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (changed(WRITE, ROW), WriteRowsEvent),
        (changed(UPDATE, ROW, ROW), UpdateRowsEvent),
        (changed(DELETE, ROW), DeleteRowsEvent),
        (changed(WRITE, ROW, extra=b"\1\3\0"), WriteRowsEvent),
        (changed(UPDATE_OF_FIRST_VERSION, ROW, ROW), UpdateRowsEvent),
    ],
    ids=["insert", "update", "delete", "into a partition", "update on MariaDB"],
)
def test_with_a_filter_the_library_decodes_only_the_first_rows_of_a_table(
    monkeypatch: pytest.MonkeyPatch, packet: bytes, kind: type[Any]
) -> None:
    by_library: list[object] = []
    decode = kind.__init__

    def count(self: object, *arguments: Any, **options: Any) -> None:
        by_library.append(self)
        decode(self, *arguments, **options)

    monkeypatch.setattr(kind, "__init__", count)
    first, *others = read(table_map(), packet, packet, packet, wants=lambda _: True)
    assert others == [first, first]
    assert len(by_library) == 1


def test_the_library_decodes_a_tables_rows_again_in_the_next_file_of_the_log() -> None:
    row_of_mails = table_map(table=b"orders", schema=b"shop"), changed(WRITE, ROW)
    other = event(TABLE_MAP, ORDERS.to_bytes(6, "little") + b"\1\0\4shop\0\6orders\0\x01\x03\0\x01")
    last = event(WRITE, ORDERS.to_bytes(6, "little") + b"\1\0\2\0\1\1" + b"\0\5\0\0\0")
    found = read(*row_of_mails, rotate(), other, last, wants=lambda _: True)
    assert [len(rows.table.columns) for rows in found if isinstance(rows, Rows)] == [2, 1]


def test_rows_end_before_their_checksum() -> None:
    table = LoggedTable(ORDERS, "shop", "orders", ({}, {}), 4)
    found = decoded(changed(WRITE, ROW) + b"\xff\xff\xff\xff", {ORDERS: table})
    assert found == Rows(table, Change.INSERT, (3,), ROW)


def test_rows_of_many_columns_are_decoded_too() -> None:
    table = LoggedTable(ORDERS, "shop", "orders", ({},) * 300, 0)
    bitmap = (2**300 - 1).to_bytes(38, "little")
    body = ORDERS.to_bytes(6, "little") + b"\1\0\2\0" + b"\xfc" + (300).to_bytes(2, "little") + bitmap + ROW
    assert decoded(event(WRITE, body), {ORDERS: table}) == Rows(table, Change.INSERT, (2**300 - 1,), ROW)


def test_rows_that_do_not_have_the_tables_columns_are_left_to_the_library() -> None:
    table = LoggedTable(ORDERS, "shop", "orders", ({},) * 3, 0)
    assert decoded(changed(WRITE, ROW), {ORDERS: table}) is None


def test_rows_of_tables_that_are_not_followed_are_skipped() -> None:
    assert read(table_map(8, b"shop", b"mails"), changed(WRITE, ROW, number=8)) == []
    assert read(table_map(9, b"other", b"orders"), changed(WRITE, ROW, number=9)) == []


@pytest.mark.parametrize(
    ("packet", "meaning"),
    [
        (event(XID, bytes(8)), Committed(SECOND)),
        (event(XA_PREPARE, b"\1" + bytes(12)), Committed(SECOND)),
        (event(XA_PREPARE, b"\0" + bytes(12)), Prepared()),
        (query(b"DROP TABLE t"), Statement("DROP TABLE t")),
        (event(HEARTBEAT, b"log.000001"), Idle()),
        (event(COMPRESSED, b"whatever"), Unreadable()),
        (event(166, b"whatever"), Unreadable()),
        (event(200, b"from the future"), Other()),
    ],
)
def test_other_events_have_their_meaning(packet: bytes, meaning: Event) -> None:
    assert read(packet) == [meaning]


def test_a_packet_that_is_not_wanted_is_not_decoded() -> None:
    broken = event(QUERY_EVENT, b"of no meaning")
    seen: list[bytes] = []

    def wants(packet: bytes) -> bool:
        seen.append(packet)
        return packet != broken

    assert read(broken, query(b"BEGIN"), broken, broken, event(XID, bytes(8)), wants=wants) == [
        Statement("BEGIN"),
        Committed(SECOND),
    ]
    assert seen.count(broken) == 3


def test_a_missing_attribute_of_an_event_is_named_with_the_installed_release() -> None:
    event_of_another_release = SimpleNamespace(columns_present_bitmap=b"\3")
    with pytest.raises(IncompatibleVersionError, match=r"^mysql-replication [\d.]+ does not fit .* 'packet'"):
        replication_adapter.read_rows(event_of_another_release, Change.UPDATE)


def test_a_library_without_one_of_its_settings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_wrapper(settings: object, server_id: int, *, log_file: str) -> None:
        raise AssertionError

    monkeypatch.setattr(replication_adapter, "BinLogStreamReader", without_wrapper)
    with pytest.raises(IncompatibleVersionError, match="unexpected keyword argument"), stream():
        pass


def test_an_incompatible_release_ends_the_reader_for_good_with_its_name() -> None:
    def fetch() -> Event:
        raise IncompatibleVersionError("mysql-replication 9.9 does not fit")

    def read_on() -> None:
        list(readable_events(fetch, lambda: None))

    assert read_until_ended(read_on) == ReaderEnded("mysql-replication 9.9 does not fit", refused=True)
