"""Which events of the binary log are decoded, and which are skipped."""

from __future__ import annotations

import pytest

from engine.binlog import event_filter
from engine.binlog.event_filter import EventFilter

HEARTBEAT, ROTATE, PAYLOAD, GTID, MARIADB_GTID, WRITE_ROWS = 27, 4, 40, 33, 162, 30
OURS, THEIRS = 7, 8


def event(kind: int, body: bytes = b"", second: int = 1) -> bytes:
    header = second.to_bytes(4, "little") + bytes([kind]) + bytes(14)
    return b"\0" + header + body + bytes(12)


def table_map(number: int, schema: bytes, table: bytes) -> bytes:
    names = b"".join(bytes([len(name)]) + name + b"\0" for name in (schema, table))
    return event(event_filter.TABLE_MAP, number.to_bytes(6, "little") + b"\1\0" + names + b"\2\3\3\0\0")


def rows(number: int) -> bytes:
    return event(WRITE_ROWS, number.to_bytes(6, "little") + b"\1\0")


def query(text: bytes, checksum: bytes = b"") -> bytes:
    return event(event_filter.QUERY)[: event_filter.BODY_AT] + bytes(13) + b"shop\0" + text + checksum


class Log:
    """An event filter for `shop.orders`, and whether the transaction has changes."""

    def __init__(self) -> None:
        self.pending = False
        self.event_filter = EventFilter(lambda *table: table == (b"shop", b"orders"), lambda: self.pending)

    def read(self, *events: bytes) -> list[bool]:
        return [self.event_filter.wants(event) for event in events]


@pytest.fixture
def log() -> Log:
    return Log()


def test_rows_of_a_queue_are_read_and_those_of_other_tables_are_not(log: Log) -> None:
    assert log.read(table_map(OURS, b"shop", b"orders"), rows(OURS)) == [True, True]
    assert log.read(table_map(THEIRS, b"shop", b"order"), rows(THEIRS), rows(OURS)) == [False, False, True]
    assert log.read(table_map(9, b"shops", b"orders"), rows(9)) == [False, False]


def test_a_number_that_another_table_had_is_checked_again(log: Log) -> None:
    assert log.read(table_map(OURS, b"shop", b"other"), rows(OURS)) == [False, False]
    assert log.read(table_map(OURS, b"shop", b"orders"), rows(OURS)) == [True, True]


def test_rows_without_a_table_map_are_read(log: Log) -> None:
    assert log.read(rows(4711)) == [True]


def test_how_many_numbers_are_kept_is_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_filter, "PASSED_TABLES_MAX", 3)
    for number in range(100, 120):
        assert log.read(table_map(number, b"a", b"b"), rows(number)) == [False, False]
    assert len(log.event_filter._passed) <= 3


def test_the_end_of_a_transaction_is_read_if_it_has_changes_and_once_a_second(log: Log) -> None:
    ends = [event(event_filter.XID, second=second) for second in (1, 1, 2, 2)]
    assert log.read(*ends) == [True, False, True, False]
    log.pending = True
    assert log.read(*ends[-2:]) == [True, True]


@pytest.mark.parametrize("checksum", [b"", b"\1\2\3\4"])
def test_statements_are_read_except_the_begin_of_a_transaction(log: Log, checksum: bytes) -> None:
    assert log.read(query(b"BEGIN", checksum)) == [False]
    assert (
        log.read(*(query(text, checksum) for text in (b"DROP TABLE t", b"ROLLBACK", b"XA BEGIN", b"x"))) == [True] * 4
    )


def test_the_begin_of_a_transaction_is_skipped(log: Log) -> None:
    assert log.read(event(GTID), event(MARIADB_GTID)) == [False, False]


@pytest.mark.parametrize("kind", [HEARTBEAT, ROTATE, PAYLOAD, 250])
def test_all_other_events_are_read(log: Log, kind: int) -> None:
    assert log.read(event(kind)) == [True]


@pytest.mark.parametrize(
    "packet", [b"", b"\xfe\0\0\2\0", b"\xff\x10\x04#HY000gone, and a text that is longer", b"\0" * 20]
)
def test_a_packet_that_is_no_event_is_read(log: Log, packet: bytes) -> None:
    assert log.read(packet) == [True]
