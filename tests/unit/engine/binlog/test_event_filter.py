"""Which events of the binary log are decoded, and which are skipped."""

from __future__ import annotations

import pytest

from engine.binlog import event_filter
from engine.binlog.event_filter import EventFilter, OwnTransactions

HEARTBEAT, ROTATE, PAYLOAD, GTID, MARIADB_GTID, WRITE_ROWS = 27, 4, 40, 33, 162, 30
UPDATE_ROWS, PARTIAL_UPDATE_ROWS, DELETE_ROWS = 31, 39, 32
MARIADB_WRITE_ROWS, MARIADB_UPDATE_ROWS, MARIADB_COMPRESSED_UPDATE_ROWS = 23, 24, 167
OURS, THEIRS = 7, 8
ANOTHER_QUEUE = 9
SERVER, CONNECTION = 3, 70_001
MARK = b"/* ackstream:0123456789abcdef */ "


def event(kind: int, body: bytes = b"", second: int = 1, server: int = SERVER) -> bytes:
    header = second.to_bytes(4, "little") + bytes([kind]) + server.to_bytes(4, "little") + bytes(10)
    return b"\0" + header + body + bytes(12)


def table_map(number: int, schema: bytes, table: bytes) -> bytes:
    names = b"".join(bytes([len(name)]) + name + b"\0" for name in (schema, table))
    return event(event_filter.TABLE_MAP, number.to_bytes(6, "little") + b"\1\0" + names + b"\2\3\3\0\0")


def rows(number: int, kind: int = WRITE_ROWS, *, last: bool = True) -> bytes:
    return event(kind, number.to_bytes(6, "little") + bytes([last, 0]))


def query(text: bytes, checksum: bytes = b"", connection: int = 0, server: int = SERVER) -> bytes:
    header = event(event_filter.QUERY, server=server)[: event_filter.BODY_AT]
    return header + connection.to_bytes(4, "little") + bytes(9) + b"shop\0" + text + checksum


def begin(connection: int = CONNECTION, server: int = SERVER) -> bytes:
    return query(b"BEGIN", b"\1\2\3\4", connection, server)


def text(statement: bytes) -> bytes:
    return event(event_filter.ANNOTATE, statement)


class Log:
    """An event filter for `shop.orders` and `shop.mails`, and whether the transaction has changes."""

    def __init__(self) -> None:
        self.pending = False
        self.own = OwnTransactions(MARK, SERVER.to_bytes(4, "little"))
        self.followed = {(b"shop", b"orders"), (b"shop", b"mails")}
        self.event_filter = EventFilter(lambda *table: table in self.followed, lambda: self.pending, self.own)

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


OWN_BEGINS = {
    "mysql": [event(GTID), begin()],
    "mariadb": [event(MARIADB_GTID), text(MARK + b"UPDATE orders")],
}
FOREIGN_BEGINS = {
    "another connection": [event(GTID), begin(CONNECTION + 1)],
    "another server": [event(GTID), begin(server=SERVER + 1)],
    "a text without the mark": [event(MARIADB_GTID), text(b"UPDATE /* ackstream claim */ orders")],
    "a text with the mark of another proxy": [event(MARIADB_GTID), text(b"/* ackstream:00 */ UPDATE orders")],
    "a text that contains the mark": [event(MARIADB_GTID), text(b"UPDATE orders " + MARK)],
}


@pytest.fixture(params=OWN_BEGINS)
def own(request: pytest.FixtureRequest, log: Log) -> list[bytes]:
    """The beginning of a transaction of the engine's own, in a log that has shown the queue's table map."""
    log.own.connections = frozenset({CONNECTION.to_bytes(4, "little")})
    log.read(table_map(OURS, b"shop", b"orders"))
    return OWN_BEGINS[request.param]


@pytest.mark.parametrize(
    "kind", [UPDATE_ROWS, PARTIAL_UPDATE_ROWS, DELETE_ROWS, MARIADB_UPDATE_ROWS, MARIADB_COMPRESSED_UPDATE_ROWS]
)
def test_of_an_own_transaction_nothing_is_decoded(log: Log, own: list[bytes], kind: int) -> None:
    log.read(event(event_filter.XID))
    events = [*own, table_map(OURS, b"shop", b"orders"), rows(OURS, kind, last=False), rows(OURS, kind)]
    assert not any(log.read(*events, event(event_filter.XID)))


@pytest.mark.parametrize("foreign", FOREIGN_BEGINS)
def test_what_follows_an_own_transaction_is_read(log: Log, own: list[bytes], foreign: str) -> None:
    log.read(*own, table_map(OURS, b"shop", b"orders"), rows(OURS, UPDATE_ROWS))
    read = log.read(*FOREIGN_BEGINS[foreign], table_map(OURS, b"shop", b"orders"), rows(OURS, UPDATE_ROWS))
    assert read == [False, False, False, True]


def test_a_message_that_the_engine_inserts_is_read(log: Log, own: list[bytes]) -> None:
    """A dead message arrives in a queue of its own."""
    for kind in (WRITE_ROWS, MARIADB_WRITE_ROWS):
        log.read(*own, table_map(ANOTHER_QUEUE, b"shop", b"mails"))
        assert log.read(rows(ANOTHER_QUEUE, kind)) == [True]
        assert log.read(table_map(OURS, b"shop", b"orders"), rows(OURS, DELETE_ROWS)) == [False, False]


def test_rows_are_read_if_a_trigger_of_the_same_statement_writes_to_another_queue(log: Log, own: list[bytes]) -> None:
    maps = [table_map(OURS, b"shop", b"orders"), table_map(ANOTHER_QUEUE, b"shop", b"mails")]
    log.read(*own, *maps)
    changed = [rows(OURS, UPDATE_ROWS, last=False), rows(ANOTHER_QUEUE, UPDATE_ROWS)]
    assert log.read(*changed) == [True, True]
    assert log.read(*own, *maps[:1], *changed[:1]) == [False] * 4  # The next statement has no trigger.


def test_a_trigger_that_writes_to_a_table_that_is_no_queue_changes_nothing(log: Log, own: list[bytes]) -> None:
    log.read(*own, table_map(OURS, b"shop", b"orders"), table_map(THEIRS, b"shop", b"audit"))
    assert log.read(rows(OURS, UPDATE_ROWS, last=False), rows(THEIRS, WRITE_ROWS)) == [False, False]
    assert log.read(table_map(OURS, b"shop", b"orders"), rows(OURS, UPDATE_ROWS)) == [False, False]


def test_the_first_map_of_a_table_in_each_file_is_decoded(log: Log) -> None:
    orders = table_map(OURS, b"shop", b"orders")
    assert log.read(orders, rows(OURS), orders, rows(OURS)) == [True, True, False, True]
    assert log.read(event(ROTATE), orders, orders) == [True, True, False]
    assert log.read(table_map(OURS, b"shop", b"other"), orders) == [False, True]


def test_without_a_mark_and_without_connections_everything_is_read(log: Log) -> None:
    log.own.mark = b""
    for begins in OWN_BEGINS.values():
        log.read(*begins)
        assert log.read(table_map(OURS, b"shop", b"orders"), rows(OURS, UPDATE_ROWS))[1]
