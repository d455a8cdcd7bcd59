"""What only a real server can show: ids and columns of every type, other sessions at once, lost connections."""

from __future__ import annotations

import contextlib
import itertools
import re
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND

from engine.catalog.verdict import TableFacts
from engine.model import NS_PER_S, Delivery, Key, Portion, Return, RowFormat, Share, TableId, Wanted
from engine.packets import Result
from engine.queue_table import BrokenTable, QueueTable
from engine.quoting import text_literal
from engine.store import information_schema, mysql, roster
from engine.store.acks import Ack
from engine.store.connection import StoreConnection
from engine.store.mysql import MySQLStore, StoreLimits
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.port import AckUnknownError, Origin, Roster, StoreError, Timed
from engine.store.queries import statement
from engine.store.roster import RosterConnection, _queue_lock
from proxy.embedded.server import EmbeddedServer, Flavour
from proxy.wire.packets import is_end_of_rows
from tests.support import insides
from tests.support.servers import ServerName, ServerPool, connect, server_or_skip
from tests.support.stores import (
    COLUMNS,
    COMMENT,
    SCAN_INDEXES,
    ServerSubject,
    counted_store,
    interrupted_store,
    mysql_store,
)
from tests.support.waiting import eventually

S = NS_PER_S
OWN = "priority INT NOT NULL DEFAULT 0, epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT"


@contextlib.contextmanager
def subject_on(
    server: EmbeddedServer, columns: str = COLUMNS, index: str = SCAN_INDEXES["ascending"]
) -> Iterator[ServerSubject]:
    subject = ServerSubject(server, columns=columns, index=index)
    yield subject
    subject.close()


@pytest.fixture
def subject(server: EmbeddedServer) -> Iterator[ServerSubject]:
    with subject_on(server) as made:
        yield made


def insert(subject: ServerSubject, *keys: int, body: str = "x") -> None:
    subject.execute(
        f"INSERT INTO messages (id, body) VALUES {', '.join(f'({key}, %s)' for key in keys)}", *[body] * len(keys)
    )


def claim_all(subject: ServerSubject, limit: int = 10_000) -> dict[Key, Delivery]:
    """Claim whatever is due."""
    entries = subject.store.scan(subject.table, limit).value.entries
    wanted = [Wanted(entry.key, entry.epoch, 30 * S) for entry in entries]
    return {claim.key: claim.delivery for claim in subject.store.claim(subject.table, wanted).value}


@dataclass(frozen=True)
class IdType:
    """A type that an id can have, and values of it as SQL."""

    sql: str
    values: tuple[str, ...]
    mariadb_only: bool = False


ID_TYPES = [
    IdType("BIGINT UNSIGNED", ("18446744073709551615", "0", "1")),
    IdType("BIGINT", ("-9223372036854775808", "9223372036854775807")),
    IdType("TINYINT", ("-128", "7")),
    IdType("BIT(64)", ("b'101'", "18446744073709551615")),
    IdType("YEAR", ("2024", "1999")),
    IdType("DECIMAL(30,10)", ("'12345678901234567890.0123456789'", "-0.5")),
    IdType("FLOAT", ("0.1", "3.4e38", "-2.5")),
    IdType("DOUBLE", ("0.1e0 + 0.2e0", "1e300", "-1.5e308")),
    IdType("VARCHAR(50) CHARACTER SET latin1", ("'café'", "'a''b'", "''")),
    IdType("VARCHAR(50) CHARACTER SET gbk", ("'中文'", "'a'")),
    IdType("VARCHAR(50) CHARACTER SET utf16", ("'中文'", "'a'")),
    IdType("VARCHAR(50) CHARACTER SET utf8mb4", ("'😀'", "'a\\\\'", "'o''clock'")),
    IdType("VARCHAR(50) COLLATE utf8mb4_general_ci", ("'Ab'", "'trailing  '", "'ß'")),
    IdType("VARCHAR(50) COLLATE utf8mb4_bin", ("'Ab'", "'aB'", "'trailing  '")),
    IdType("VARCHAR(50) COLLATE latin1_german2_ci", ("'Ab'", "'ü  '")),
    IdType("CHAR(20) CHARACTER SET utf8mb4", ("'abc'", "'é'")),
    IdType("CHAR(36) CHARACTER SET ascii", ("'2f1e0c0a-0000-4000-8000-000000000001'",)),
    IdType("BINARY(16)", ("x'00112233445566778899aabbccddeeff'", "x'00'", "x'27202020'")),
    IdType("VARBINARY(20)", ("x'00ff20'", "''")),
    IdType("ENUM('new', 'é') CHARACTER SET utf8mb4", ("'new'", "'é'")),
    IdType("DATETIME(6)", ("'2024-03-31 02:30:00.000001'", "'2024-01-01'")),
    IdType("DATE", ("'2024-01-01'", "'2024-02-29'")),
    IdType("TIME(3)", ("'-838:59:58.999'", "'10:00:00'")),
    IdType("TIMESTAMP(6)", ("'2024-01-01 10:00:00.5'", "'2024-07-01 01:30:00'")),
    IdType("UUID", ("'2f1e0c0a-0000-4000-8000-000000000001'",), mariadb_only=True),
    IdType("INET6", ("'::1'", "'2001:db8::7'"), mariadb_only=True),
]

FORMATS = [
    RowFormat(("body",), binary=False),
    RowFormat(("body",), binary=True),
    RowFormat(("body",), binary=False, charset="latin1", time_zone="+05:30", pad_char=True),
    RowFormat(("body",), binary=True, charset="gbk", time_zone="-03:00", pad_char=True),
    RowFormat(("body",), binary=False, charset=None),
    RowFormat(("body",), binary=True, charset="utf16"),
]


@pytest.mark.parametrize("id_type", ID_TYPES, ids=lambda id_type: id_type.sql)
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_an_id_of_any_type_goes_all_the_way(server: EmbeddedServer, id_type: IdType) -> None:
    if id_type.mariadb_only and server.flavour != "mariadb":
        pytest.skip("a type of MariaDB's")
    columns = f"id {id_type.sql} NOT NULL PRIMARY KEY, {OWN}, body VARCHAR(20) NOT NULL DEFAULT 'hello'"
    with subject_on(server, columns) as subject:
        subject.execute("SET time_zone = '+00:00'")
        subject.execute(f"INSERT INTO messages (id) VALUES {', '.join(f'({value})' for value in id_type.values)}")
        store, table = subject.store, subject.table
        claims = claim_all(subject)
        assert len(claims) == len(id_type.values)
        for row_format in FORMATS:
            fetched = store.fetch(table, row_format, claims, 1 << 20).value
            assert set(fetched.rows) == set(claims), row_format
            assert len(set(fetched.rows.values())) == 1
        found = store.lookup(table, list(claims)).value
        assert {key: (entry.epoch, entry.due_ns) for key, entry in found.items()} == claims
        returns = [Return(key, entry.epoch, entry.due_ns, 5, sent=False) for key, entry in found.items()]
        assert store.release(table, returns).value.rows == len(claims)
        assert subject.execute("SELECT DISTINCT epoch, time_next FROM messages") == [(0, 5)]
        before = subject.execute("SELECT id FROM messages ORDER BY id")
        result = store.move_dead_letters(table, [Wanted(key, 0, S) for key in claims], subject.dead_letter()).value
        assert (set(result.moved), result.problem) == (set(claims), None)
        assert subject.execute("SELECT id FROM dead ORDER BY id") == before
        subject.execute("INSERT INTO messages SELECT * FROM dead")
        subject.execute("UPDATE messages SET time_acked = 1, time_next = NULL")
        assert store.purge(table, 0, 100).value.rows == len(claims)


COLUMN_TYPES = """
    c_null INT, c_tiny TINYINT, c_unsigned BIGINT UNSIGNED, c_float FLOAT, c_double DOUBLE, c_decimal DECIMAL(20,5),
    c_bit BIT(10), c_year YEAR, c_date DATE, c_time TIME(3), c_datetime DATETIME(6), c_stamp TIMESTAMP(3) NULL,
    c_char CHAR(10) CHARACTER SET utf8mb4, c_latin VARCHAR(20) CHARACTER SET latin1, c_text TEXT CHARACTER SET utf8mb4,
    c_binary BINARY(4), c_blob BLOB, c_enum ENUM('x', 'ü') CHARACTER SET utf8mb4, c_set SET('a', 'b'), c_json JSON,
    c_point POINT, c_shape GEOMETRY, c_hidden INT INVISIBLE, c_virtual INT AS (c_tiny * 2) VIRTUAL
"""
COLUMN_VALUES = """
    NULL, -7, 18446744073709551615, 0.1, 1e300, -12345.67890, b'1010101010', 2024, '2024-02-29', '-10:00:00.123',
    '2024-03-31 02:30:00.000001', '2024-01-01 12:00:00.5', 'pad é', 'café', REPEAT('long ü ', 60), x'00ff', x'ff00fe',
    'ü', 'a,b', '{"a": [1, "é"]}', POINT(1, 2), ST_GeomFromText('LINESTRING(0 0, 1 1)'), 42
"""


def plain_rows(connection: Any, text: str, *, binary: bool) -> list[bytes]:
    """The row packets that a client gets for a SELECT, read by PyMySQL."""
    if not binary:
        insides.send(connection, COMMAND.COM_QUERY, text.encode())
    else:
        insides.send(connection, COMMAND.COM_STMT_PREPARE, text.encode())
        statement_id, columns = struct.unpack_from("<IH", insides.packet(connection), 1)
        for _ in range(columns + 1):
            insides.packet(connection)
        insides.send(connection, COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement_id, 0, 1))
    columns = insides.packet(connection)[0]
    for _ in range(columns + 1):
        insides.packet(connection)
    rows = []
    while not is_end_of_rows(packet := insides.packet(connection), 0):
        rows.append(packet)
    return rows


class TestPayloads:
    names = re.findall(r"\bc_\w+(?= [A-Z])", COLUMN_TYPES)

    @pytest.mark.parametrize("row_format", FORMATS, ids=str)
    @pytest.mark.filterwarnings("ignore:.*deprecated")
    def test_they_are_the_bytes_of_a_plain_select(self, server: EmbeddedServer, row_format: RowFormat) -> None:
        columns = f"id BIGINT NOT NULL PRIMARY KEY, {OWN}, {COLUMN_TYPES}"
        listed = ", ".join(self.names)
        with subject_on(server, columns) as subject:
            subject.execute("SET NAMES utf8mb4")
            subject.execute(
                f"INSERT INTO messages (id, {', '.join(self.names[:-1])}) VALUES (1, {COLUMN_VALUES}),"
                f" (2, {', '.join(['NULL'] * (len(self.names) - 1))})"
            )
            claims = claim_all(subject)
            with subject.connect() as client, client.cursor() as cursor:
                cursor.execute(
                    "SET character_set_results = %s, time_zone = %s", [row_format.charset, row_format.time_zone]
                )
                if row_format.pad_char:
                    cursor.execute("SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
                text = f"SELECT {listed} FROM messages ORDER BY id"
                expected = plain_rows(client, text, binary=row_format.binary)
            row_format = replace(row_format, columns=tuple(self.names))
            rows = subject.store.fetch(subject.table, row_format, claims, 1 << 20).value.rows
            assert [rows[1], rows[2]] == expected
            subject.execute("UPDATE messages SET epoch = 0, time_next = 0")
            wanted = [Wanted(key, 0, 30 * S) for key in (1, 2)]
            result = subject.store.claim_and_fetch(subject.table, wanted, row_format, 1 << 20).value
            assert result.rows is not None
            assert [result.rows.rows[1], result.rows.rows[2]] == expected

    @pytest.mark.parametrize("count", [5, 6, 7, 13, 14, 15])
    def test_the_bitmap_of_nulls_is_right_at_every_width(self, server: EmbeddedServer, count: int) -> None:
        names = [f"c{number}" for number in range(count)]
        columns = f"id BIGINT NOT NULL PRIMARY KEY, {OWN}, {', '.join(f'{name} INT' for name in names)}"
        with subject_on(server, columns) as subject:
            for key in range(count):
                subject.execute(f"INSERT INTO messages (id, {names[key]}) VALUES ({key}, 7)")
            claims = claim_all(subject)
            with subject.connect() as client:
                expected = plain_rows(client, f"SELECT {', '.join(names)} FROM messages ORDER BY id", binary=True)
            row_format = RowFormat(tuple(names), binary=True)
            rows = subject.store.fetch(subject.table, row_format, claims, 1 << 20).value.rows
            assert [rows[key] for key in range(count)] == expected

    def test_a_context_does_not_outlive_its_fetch(self, subject: ServerSubject) -> None:
        insert(subject, 1, body="é")
        claims = claim_all(subject)
        latin = RowFormat(("body",), binary=False, charset="latin1")
        for row_format, expected in ((latin, b"\x01\xe9"), (replace(latin, charset="utf8mb4"), b"\x02\xc3\xa9")) * 2:
            assert subject.store.fetch(subject.table, row_format, claims, 1000).value.rows == {1: expected}

    def test_an_unknown_time_zone_is_an_error_and_affects_no_other_fetch(self, subject: ServerSubject) -> None:
        insert(subject, 1)
        claims = claim_all(subject)
        with pytest.raises(StoreError, match="time zone") as caught:
            subject.store.fetch(subject.table, RowFormat(("body",), binary=False, time_zone="Mars/Base"), claims, 1000)
        assert caught.value.code == 1298
        good = RowFormat(("body",), binary=False)
        assert subject.store.fetch(subject.table, good, claims, 1000).value.rows == {1: b"\x01x"}

    def test_a_dropped_column_is_a_lasting_error(self, subject: ServerSubject) -> None:
        insert(subject, 1)
        claims = claim_all(subject)
        for binary in (False, True):
            with pytest.raises(StoreError) as caught:
                subject.store.fetch(subject.table, RowFormat(("gone",), binary=binary), claims, 1000)
            assert (caught.value.code, caught.value.lasting) == (1054, True)


class TestRowsBehindAClaim:
    TEXT = RowFormat(("id", "body"), binary=False)

    @pytest.mark.parametrize(("binary", "packets"), [(False, 2), (True, 4)])
    def test_a_claim_and_its_rows_take_two_packets(self, subject: ServerSubject, binary: bool, packets: int) -> None:
        """A prepared statement takes two more: its number is known only when the first was answered, and it is
        closed."""
        row_format = replace(self.TEXT, binary=binary)
        with counted_store(subject) as (store, sent):
            for keys in ((1, 2), (3, 4), (5, 6)):
                insert(subject, *keys)
                wanted = [Wanted(key, 0, S) for key in keys]
                result = store.claim_and_fetch(subject.table, wanted, row_format, 1 << 20).value
                assert result.rows is not None
                assert sorted(result.rows.rows) == [*keys]
                assert len(sent) == packets
                sent.clear()

    def test_an_error_in_reading_leaves_the_claim(self, subject: ServerSubject) -> None:
        insert(subject, 1, 2)
        for key, binary in ((1, False), (2, True)):
            gone = RowFormat(("gone",), binary=binary)
            claims, rows, *_ = subject.store.claim_and_fetch(subject.table, [Wanted(key, 0, 30 * S)], gone, 1000).value
            assert rows is None
            assert [claim.key for claim in claims] == [key]
            fetched = subject.store.fetch(subject.table, self.TEXT, {key: claims[0].delivery}, 1000).value
            assert list(fetched.rows) == [key]

    def test_an_error_in_claiming_is_raised_and_nothing_is_claimed_or_locked(self, server: EmbeddedServer) -> None:
        subject = ServerSubject(server)
        insert(subject, 1)
        subject.execute(
            "CREATE TRIGGER t BEFORE UPDATE ON messages FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"
        )
        with counted_store(subject) as (store, _):
            with pytest.raises(StoreError, match="no"):
                store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], self.TEXT, 1000)
            subject.execute("DROP TRIGGER t")
            claims, rows, *_ = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], self.TEXT, 1000).value
            assert rows is not None
            assert ([claim.epoch for claim in claims], list(rows.rows)) == ([1], [1])
        subject.close()


class TestOthersAtTheSameTime:
    def test_many_claimers_never_get_the_same_delivery(self, subject: ServerSubject) -> None:
        keys = range(1, 401)
        insert(subject, *keys)
        start = threading.Barrier(4)

        def claim(turn: int) -> list[Key]:
            start.wait()
            got: list[Key] = []
            for first in range(1, 401, 50):
                part = range(first, first + 50)
                ordered = part if turn % 2 else reversed(part)
                wanted = [Wanted(key, 0, 30 * S) for key in ordered]
                got += [claim.key for claim in subject.store.claim(subject.table, wanted).value]
            return got

        with ThreadPoolExecutor(4) as threads:
            claims = [key for got in threads.map(claim, range(4)) for key in got]
        assert len(claims) == len(set(claims))
        missed = set(keys) - set(claims)
        # Two that meet may both skip a row; it is still there, untouched.
        assert set(claim_all(subject)) == missed
        assert subject.execute("SELECT DISTINCT epoch FROM messages") == [(1,)]

    def test_claims_and_acknowledgements_that_cross_do_not_fail(self, subject: ServerSubject) -> None:
        keys = range(1, 301)
        insert(subject, *keys)
        claimed = threading.Semaphore(0)

        def acknowledge() -> None:
            with subject.connect() as consumer, consumer.cursor() as cursor:
                for first in range(1, 301, 20):
                    claimed.acquire()
                    part = list(range(first, first + 20))[::-1]
                    cursor.execute("UPDATE messages SET time_acked = 1, time_next = NULL WHERE id IN %s", [part])

        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(acknowledge)
            for first in range(1, 301, 20):
                subject.store.claim(subject.table, [Wanted(key, 0, 30 * S) for key in range(first, first + 20)])
                claimed.release()
                subject.store.scan(subject.table, 1000)
            done.result()
        assert subject.execute("SELECT COUNT(*) FROM messages WHERE time_acked = 1") == [(300,)]

    def test_a_release_waits_a_little_for_a_row_that_is_locked(self, subject: ServerSubject) -> None:
        insert(subject, 1, 2)
        claims = subject.store.claim(subject.table, [Wanted(key, 0, 30 * S) for key in (1, 2)]).value
        returns = [Return(claim.key, claim.epoch, claim.deadline_ns, claim.due_ns, sent=False) for claim in claims]
        with ThreadPoolExecutor(1) as threads:
            with subject.locked(1):
                released = threads.submit(subject.store.release, subject.table, returns)
                eventually(
                    lambda: subject.row(2) and subject.execute("SELECT epoch FROM messages WHERE id = 2")[0] == (0,)
                )
            assert released.result().value.rows == 2

    def test_a_row_that_stays_locked_is_not_released_and_the_others_are(self, subject: ServerSubject) -> None:
        store = MySQLStore(
            BackendAddress(subject.server.host, subject.server.port, "root"), StoreLimits(locked_pauses_s=(0.001,))
        )
        insert(subject, 1, 2)
        claims = store.claim(subject.table, [Wanted(key, 0, 30 * S) for key in (1, 2)]).value
        returns = [Return(claim.key, claim.epoch, claim.deadline_ns, claim.due_ns, sent=False) for claim in claims]
        with subject.locked(1):
            assert store.release(subject.table, returns).value.rows == 1
        store.close()

    def test_purging_a_small_table_is_not_stopped_by_a_locked_row(self, subject: ServerSubject) -> None:
        insert(subject, *range(1, 51))
        subject.acknowledge(*range(11, 51))
        with subject.locked(*range(1, 11)):
            assert subject.store.purge(subject.table, 0, 100).value.rows == 40
        assert subject.execute("SELECT COUNT(*) FROM messages") == [(10,)]

    def test_a_purge_neither_waits_for_a_transaction_nor_makes_one_wait(self, subject: ServerSubject) -> None:
        """Another session inserts, acknowledges and locks around each packet of the purge, and keeps it all open."""
        insert(subject, *range(1, 101))
        subject.acknowledge(*range(1, 51))
        turns = itertools.count(51)
        with subject.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 1")

            def work(_at: int, _connection: StoreConnection) -> None:
                turn = next(turns)
                cursor.execute("INSERT INTO messages (id) VALUES (%s), (%s)", [-turn, 1000 + turn])
                cursor.execute("UPDATE messages SET time_acked = 5, time_next = NULL WHERE id = %s", [turn])
                cursor.execute("SELECT * FROM messages WHERE id = %s FOR UPDATE", [turn + 20])

            with interrupted_store(subject, work, work) as store:
                assert store.purge(subject.table, 0, 30).value.rows == 30
                assert store.purge(subject.table, 0, 30).value.rows == 20
            other.commit()
        assert next(turns) > 60

    def test_a_locked_acknowledged_row_is_purged_later(self, subject: ServerSubject) -> None:
        insert(subject, 1, 2)
        subject.acknowledge(1, 2)
        with subject.locked(1):
            assert subject.store.purge(subject.table, 0, 100).value.rows == 1
        assert subject.store.purge(subject.table, 0, 100).value.rows == 1

    def test_rows_changed_by_hand_are_claimed_as_they_now_are(self, server: EmbeddedServer) -> None:
        nullable = COLUMNS.replace("priority INT NOT NULL DEFAULT 0", "priority INT").replace(
            "epoch BIGINT NOT NULL", "epoch BIGINT"
        )
        with subject_on(server, nullable) as subject:
            subject.execute("INSERT INTO messages (id, priority, epoch) VALUES (1, NULL, NULL), (2, -5, 0)")
            entries = subject.store.scan(subject.table, 10).value.entries
            assert [(entry.key, entry.epoch) for entry in entries] == [(1, 0), (2, 0)]
            assert {key: delivery.epoch for key, delivery in claim_all(subject).items()} == {1: 1, 2: 1}


class TestLargeStatements:
    def test_more_keys_than_a_server_likes_in_one_list(self, subject: ServerSubject) -> None:
        insert(subject, *range(1, 3001))
        claims = claim_all(subject)
        assert len(claims) == 3000
        found = subject.store.lookup(subject.table, list(claims)).value
        assert {key: (entry.epoch, entry.due_ns) for key, entry in found.items()} == claims
        rows = subject.store.fetch(subject.table, RowFormat(("id",), binary=False), claims, 1 << 20).value.rows
        assert len(rows) == 3000


class TestConnections:
    @pytest.fixture
    def stores(self, subject: ServerSubject) -> Iterator[Callable[..., MySQLStore]]:
        made: list[MySQLStore] = []

        def make(**limits: Any) -> MySQLStore:
            address = BackendAddress(subject.server.host, subject.server.port, "worker", "secret")
            made.append(MySQLStore(address, StoreLimits(**limits)))
            return made[-1]

        user = "'worker'@'%'"
        subject.execute(f"CREATE USER {user} IDENTIFIED BY 'secret'")
        subject.execute(f"GRANT ALL ON {subject.database}.* TO {user}")
        yield make
        for made_store in made:
            made_store.close()
        subject.execute(f"DROP USER {user}")

    def sessions(self, subject: ServerSubject, state: str = "%") -> list[int]:
        found = subject.execute(
            "SELECT id FROM information_schema.processlist WHERE user = 'worker' AND COALESCE(state, '') LIKE %s", state
        )
        return [connection_id for (connection_id,) in found]

    def test_one_after_the_other_uses_one_connection(
        self, subject: ServerSubject, stores: Callable[..., MySQLStore]
    ) -> None:
        store = stores()
        for _ in range(5):
            store.scan(subject.table, 10)
        assert len(self.sessions(subject)) == 1

    def test_a_connection_that_was_ended_while_idle_is_replaced_without_an_error(
        self, subject: ServerSubject, stores: Callable[..., MySQLStore]
    ) -> None:
        store = stores()
        store.scan(subject.table, 10)
        (idle,) = self.sessions(subject)
        subject.execute(f"KILL {idle}")
        eventually(lambda: not self.sessions(subject))
        store.scan(subject.table, 10)

    def test_a_connection_lost_in_a_statement_is_an_error_and_then_replaced(
        self, subject: ServerSubject, stores: Callable[..., MySQLStore]
    ) -> None:
        store = stores()
        with ThreadPoolExecutor(1) as threads:
            subject.execute("LOCK TABLES messages WRITE")
            scan = threads.submit(store.scan, subject.table, 10)
            (waiting,) = eventually(lambda: self.sessions(subject, "Waiting for table%"))
            subject.execute(f"KILL {waiting}")
            with pytest.raises(StoreError) as caught:
                scan.result()
            subject.execute("UNLOCK TABLES")
        assert caught.value.code in {1317, 2013, 1053, 1927}
        assert not caught.value.lasting
        assert store.scan(subject.table, 10).value.entries == ()

    def test_a_table_that_is_being_altered_is_an_error_soon(
        self, subject: ServerSubject, stores: Callable[..., MySQLStore]
    ) -> None:
        store = stores()
        subject.execute("LOCK TABLES messages WRITE")
        with pytest.raises(StoreError) as caught:
            store.scan(subject.table, 10)
        subject.execute("UNLOCK TABLES")
        assert (caught.value.code, caught.value.lasting) == (1205, False)

    def test_there_are_never_more_connections_than_allowed(
        self, subject: ServerSubject, stores: Callable[..., MySQLStore]
    ) -> None:
        store = stores(connections=2)
        with ThreadPoolExecutor(6) as threads:
            scans = [threads.submit(store.scan, subject.table, 10) for _ in range(60)]
            assert all(scan.result().value.entries == () for scan in scans)
        assert 1 <= len(self.sessions(subject)) <= 2

    def test_closing_ends_calls_that_wait_for_the_server(
        self, subject: ServerSubject, stores: Callable[..., MySQLStore]
    ) -> None:
        store = stores(connections=1)
        with ThreadPoolExecutor(2) as threads:
            subject.execute("LOCK TABLES messages WRITE")
            scans = [threads.submit(store.scan, subject.table, 10) for _ in range(2)]
            eventually(lambda: self.sessions(subject, "Waiting for table%"))
            store.close()
            for scan in scans:
                with pytest.raises(StoreError):
                    scan.result()
            subject.execute("UNLOCK TABLES")
        eventually(lambda: not self.sessions(subject))

    def test_an_error_leaves_no_lock_behind(self, subject: ServerSubject, stores: Callable[..., MySQLStore]) -> None:
        store = stores()
        insert(subject, 1)
        broken = replace(subject.table, id_index="gone")
        with pytest.raises(StoreError) as caught:
            store.claim(broken, [Wanted(1, 0, 30 * S)])
        assert (caught.value.code, caught.value.lasting) == (1176, True)
        assert len(self.sessions(subject)) == 1
        assert [claim.key for claim in store.claim(subject.table, [Wanted(1, 0, 30 * S)]).value] == [1]

    def test_a_table_that_was_dropped_is_a_lasting_error(self, subject: ServerSubject) -> None:
        subject.execute("DROP TABLE messages")
        with pytest.raises(StoreError) as caught:
            subject.store.scan(subject.table, 10)
        assert (caught.value.code, caught.value.lasting) == (1146, True)

    @pytest.mark.parametrize("tls", [None, True, False])
    def test_a_refused_login_is_an_error_without_the_password(
        self, server: EmbeddedServer, *, tls: bool | None
    ) -> None:
        store = MySQLStore(BackendAddress(server.host, server.port, "nobody", "hush-hush", tls=tls))
        with pytest.raises(StoreError) as caught:
            store.discover()
        assert caught.value.code in {1045, 2026}
        assert "hush-hush" not in f"{caught.value} {caught.value!r}"

    def test_a_server_that_is_not_there_is_an_error(self) -> None:
        with pytest.raises(StoreError) as caught:
            MySQLStore(BackendAddress("127.0.0.1", 1, "root")).discover()
        assert caught.value.code == 2003


class TestCatalog:
    def described(
        self, subject: ServerSubject, definition: str, name: str = "other"
    ) -> QueueTable | BrokenTable | None:
        subject.execute(f"CREATE TABLE {name} {definition} COMMENT '{COMMENT}'")
        return subject.store.describe(TableId(subject.database, name)).value

    def test_only_marked_tables_are_discovered(self, subject: ServerSubject) -> None:
        subject.execute("CREATE TABLE plain (id INT PRIMARY KEY)")
        subject.execute("CREATE TABLE nearly (id INT PRIMARY KEY) COMMENT 'vitess_messages'")
        subject.execute("CREATE TABLE broken (id INT PRIMARY KEY) COMMENT 'see wiki, vitess_message'")
        subject.execute("CREATE VIEW seen AS SELECT * FROM messages")
        found = {table.name for table in subject.store.discover().value.marked if table.db == subject.database}
        assert found == {"broken", "messages"}
        assert subject.store.describe(TableId(subject.database, "plain")).value is None
        assert subject.store.describe(TableId(subject.database, "seen")).value is None

    def test_many_tables_are_described_as_each_of_them_is(self, subject: ServerSubject) -> None:
        other_db = f"{subject.database}_too"
        subject.execute(f"CREATE DATABASE {other_db}")
        try:
            subject.execute(f"CREATE TABLE broken (id INT, {OWN}) COMMENT '{COMMENT}'")
            subject.execute("CREATE TABLE plain (id INT PRIMARY KEY)")
            subject.execute(
                f"CREATE TABLE {other_db}.broken (extra INT, id INT PRIMARY KEY, {OWN}) COMMENT '{COMMENT}'"
            )
            subject.execute(f"CREATE TABLE {other_db}.messages LIKE messages")
            asked = [
                TableId(db, name) for db in (subject.database, other_db) for name in ("messages", "broken", "plain")
            ][:-1]
            alone = {table: subject.store.describe(table).value for table in asked}
            assert isinstance(alone[TableId(other_db, "broken")], QueueTable)
            together = subject.store.describe_all(asked).value
            assert together == {table: found for table, found in alone.items() if found is not None}
            assert len(together) == 4
        finally:
            subject.execute(f"DROP DATABASE {other_db}")

    def test_every_change_of_a_table_changes_its_stamp_and_writing_to_it_does_not(self, subject: ServerSubject) -> None:
        hidden = "INVISIBLE" if subject.server.flavour == "mysql" else "IGNORED"
        changes = {
            "a": "COMMENT 'vitess_message'",
            "b": "ADD COLUMN more INT",
            "c": "ADD COLUMN more INT FIRST, ALGORITHM=INSTANT",
            "d": "RENAME COLUMN body TO text",
            "e": "DROP COLUMN body",
            "f": "DROP INDEX next_up",
            "g": "ADD INDEX by_epoch (epoch)",
            "h": "RENAME INDEX next_up TO other",
            "i": f"ALTER INDEX next_up {hidden}",
            "j": "ALTER COLUMN body SET DEFAULT 5",
            "k": "MODIFY COLUMN body BIGINT",
            "l": "ENGINE=MyISAM",
        }
        definition = f"(id INT PRIMARY KEY, {OWN}, body INT, KEY next_up (time_acked, priority, time_next))"
        for name in [*changes, "same"]:
            subject.execute(f"CREATE TABLE {name} {definition} COMMENT '{COMMENT}'")

        def stamps() -> Mapping[str, str | None]:
            marked = subject.store.discover().value.marked
            return {table.name: stamp for table, stamp in marked.items() if table.db == subject.database}

        eventually(lambda: None not in stamps().values())
        before = stamps()
        for name, change in changes.items():
            subject.execute(f"ALTER TABLE {name} {change}")
        subject.execute("INSERT INTO same (id) VALUES (1)")
        subject.execute("UPDATE same SET epoch = 1")
        after = stamps()
        assert {name for name in after if after[name] == before[name]} == {"same", "messages"}

    def test_a_refresh_takes_as_many_statements_for_a_hundred_queues_as_for_one(
        self, subject: ServerSubject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[str] = []
        run = StoreConnection.run

        def counted(connection: StoreConnection, statements: Sequence[str], *more: Any) -> list[Result]:
            sent.extend(statements)
            return run(connection, statements, *more)

        def statements_of_a_look() -> int:
            sent.clear()
            marked = subject.store.discover().value.marked
            subject.store.describe_all(list(marked))
            return len(sent)

        subject.store.discover()  # Its connection is open now.
        monkeypatch.setattr(StoreConnection, "run", counted)
        few = statements_of_a_look()
        for number in range(100):
            subject.execute(f"CREATE TABLE m{number} LIKE messages")
        assert statements_of_a_look() == few <= 12

    def test_all_problems_are_reported_at_once(self, subject: ServerSubject) -> None:
        subject.execute(
            "CREATE TABLE other (id INT, priority VARCHAR(5), epoch INT, time_acked BIGINT NOT NULL) ENGINE=MyISAM"
            " COMMENT 'vitess_message,vt_ack_wait=x,vt_batch_size=1'"
        )
        broken = subject.store.describe(TableId(subject.database, "other")).value
        assert isinstance(broken, BrokenTable)
        told = " ".join(broken.problems)
        for part in (
            "vt_ack_wait='x'",
            "vt_purge_after",
            "MyISAM",
            "id may be NULL",
            "priority is VARCHAR",
            "epoch is INT",
            "time_next is missing",
            "time_acked is NOT NULL",
            "id is not unique",
        ):
            assert part in told

    def test_a_table_that_is_dropped_while_it_is_described_is_not_reported_as_broken(
        self, subject: ServerSubject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def table_facts(connection: StoreConnection, table: TableId) -> Timed[TableFacts | None]:
            facts = information_schema.table_facts(connection, table)
            if facts.value is None:
                return facts
            subject.execute("DROP TABLE messages")
            return Timed(replace(facts.value, columns=(), indexes=()), facts.now_ns)

        monkeypatch.setattr(mysql, "table_facts", table_facts)
        assert subject.store.describe(subject.table.id).value is None

    def test_indexes_are_seen_as_they_are(self, subject: ServerSubject) -> None:
        found = self.described(
            subject,
            f"(tenant INT, id VARCHAR(40) NOT NULL, {OWN}, PRIMARY KEY (tenant, id), UNIQUE KEY by_id (id),"
            " KEY poller_idx (time_acked, priority, time_next DESC))",
        )
        assert isinstance(found, QueueTable)
        assert (found.id_index, found.scan_index, found.scan_descending) == ("by_id", "poller_idx", True)
        assert not found.scan_ties_by_id
        subject.execute("INSERT INTO other (tenant, id) VALUES (1, 'b'), (2, 'a')")
        assert {entry.key for entry in subject.store.scan(found, 10).value.entries} == {"a", "b"}

    def test_an_index_that_is_hidden_from_the_optimizer_is_not_used(self, subject: ServerSubject) -> None:
        hidden = "INVISIBLE" if subject.server.flavour == "mysql" else "IGNORED"
        found = self.described(
            subject, f"(id INT PRIMARY KEY, {OWN}, KEY next_up (time_acked, priority, time_next) {hidden})"
        )
        assert isinstance(found, QueueTable)
        assert found.scan_index is None

    def test_generated_columns_are_delivered_and_invisible_ones_are_not(self, subject: ServerSubject) -> None:
        found = self.described(subject, f"(id INT PRIMARY KEY, {OWN}, body INT AS (id * 2), secret INT INVISIBLE)")
        assert isinstance(found, QueueTable)
        assert found.default_columns == ("id", "body")

    def test_names_of_any_kind_work(self, subject: ServerSubject) -> None:
        found = self.described(
            subject,
            f"(id INT PRIMARY KEY, {OWN}, `a``b ü` INT, KEY `next``up` (time_acked, priority, time_next))",
            "`sel``ect é`",
        )
        assert found is None
        found = subject.store.describe(TableId(subject.database, "sel`ect é")).value
        assert isinstance(found, QueueTable)
        subject.execute("INSERT INTO `sel``ect é` (id, `a``b ü`) VALUES (1, 5)")
        store = subject.store
        (entry,) = store.scan(found, 10).value.entries
        claims = store.claim(found, [Wanted(entry.key, 0, S)]).value
        rows = store.fetch(
            found, RowFormat(("a`b ü",), binary=False), {claims[0].key: claims[0].delivery}, 1000
        ).value.rows
        assert rows == {1: b"\x015"}

    def test_a_name_in_another_case_is_another_table_if_the_server_is_case_sensitive(
        self, subject: ServerSubject
    ) -> None:
        assert subject.execute("SELECT @@lower_case_table_names") == [(0,)]
        assert subject.store.describe(TableId(subject.database, "MESSAGES")).value is None

    def test_views_and_tables_with_triggers_are_listed(self, subject: ServerSubject) -> None:
        names = {"plain", "Süß", "seen"}
        for name in ("plain", "Süß"):
            subject.execute(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)")
        assert not names & subject.store.discover().value.views_and_triggers
        subject.execute("CREATE VIEW seen AS SELECT * FROM messages")
        subject.execute("CREATE TRIGGER t AFTER DELETE ON `Süß` FOR EACH ROW DELETE FROM messages WHERE id = OLD.id")
        views_and_triggers = subject.store.discover().value.views_and_triggers
        assert {"seen", "süss"} <= views_and_triggers
        assert "plain" not in views_and_triggers
        assert "processlist" not in views_and_triggers


@pytest.mark.parametrize("id_type", ID_TYPES, ids=lambda id_type: id_type.sql)
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_the_server_and_the_proxy_agree_to_which_share_an_id_belongs(server: EmbeddedServer, id_type: IdType) -> None:
    if id_type.mariadb_only and server.flavour != "mariadb":
        pytest.skip("a type of MariaDB's")
    with subject_on(server, f"id {id_type.sql} NOT NULL PRIMARY KEY, {OWN}, body VARCHAR(20)") as subject:
        if not subject.table.is_shareable:
            return
        subject.execute(f"INSERT INTO messages (id) VALUES {', '.join(f'({value})' for value in id_type.values)}")
        for count in (2, 3):
            shares = [Share(number, count) for number in range(count)]
            found = {share: subject.store.scan(subject.table, 100, portion=Portion(share)).value for share in shares}
            assert sum(len(result.entries) for result in found.values()) == len(id_type.values)
            assert all(share.turn(entry.key) == 0 for share in shares for entry in found[share].entries)


class TestRoster:
    QUEUES = (TableId("d", "one"), TableId("d", "two" * 20))

    @pytest.fixture
    def alone(self, server_pool: ServerPool, server_name: ServerName) -> Iterator[Callable[[], MySQLStore]]:
        """Makes stores on a server that no other proxy uses."""
        with server_or_skip(server_name) as server, contextlib.ExitStack() as stack:

            def store() -> MySQLStore:
                made = mysql_store(server)
                stack.callback(made.close)
                return made

            yield store

    def test_one_proxy_is_alone(self, alone: Callable[[], MySQLStore]) -> None:
        found = alone().roster(self.QUEUES).value
        assert found.slot in range(1, 33)
        assert found == Roster(found.slot)

    def test_proxies_see_each_other_and_the_queues_on_which_they_have_streams(
        self, alone: Callable[[], MySQLStore]
    ) -> None:
        one, two, three = self.QUEUES[0], *(alone() for _ in range(2))
        slot = two.roster([one]).value.slot or 0
        found = three.roster(self.QUEUES).value
        assert found == Roster(found.slot, frozenset({slot}))  # The other one announces nothing while it is alone.
        other = found.slot or 0
        seen = two.roster([one]).value
        assert seen == Roster(slot, frozenset({other}), {one: (other,)})
        assert seen.share_of(one) == Share(int(slot > other), 2)
        assert seen.share_of(self.QUEUES[1]) is None
        assert three.roster(self.QUEUES).value.share_of(one) == Share(int(other > slot), 2)
        two.roster([])
        assert three.roster(self.QUEUES).value == Roster(other, frozenset({slot}))

    def test_the_place_of_a_proxy_that_is_gone_is_free(self, alone: Callable[[], MySQLStore]) -> None:
        one, two = alone(), alone()
        one.roster([])
        slot = two.roster([]).value.slot
        one.close()
        eventually(lambda: two.roster([]).value == Roster(slot))

    def test_what_another_session_keeps_from_being_announced_is_announced_later(
        self, alone: Callable[[], MySQLStore]
    ) -> None:
        queue, (one, two) = self.QUEUES[0], (alone(), alone())
        slot = one.roster([]).value.slot or 0
        other = two.roster([]).value.slot or 0
        with two._pool.connection() as stranger:
            lock = text_literal(_queue_lock(other, queue))
            stranger.run([statement("roster_lock", lock=lock, wait_s=0)])
            two.roster([queue])
            stranger.run([statement("roster_release", lock=lock)])
        assert one.roster([queue]).value.partners == {}
        two.roster([queue])
        assert one.roster([queue]).value == Roster(slot, frozenset({other}), {queue: (other,)})

    def test_changes_of_one_kind_exclude_each_other_over_all_proxies(self, alone: Callable[[], MySQLStore]) -> None:
        one, two = alone(), alone()
        assert one.begin_change("a").value
        assert not one.begin_change("a").value
        assert not two.begin_change("a").value
        assert two.begin_change("b").value
        one.end_change("a")
        assert two.begin_change("a").value
        two.close()
        eventually(lambda: one.begin_change("a").value)

    def test_a_lock_of_another_account_excludes_no_change(
        self, alone: Callable[[], MySQLStore], server_name: ServerName
    ) -> None:
        one = alone()
        with one._pool.connection() as root:
            root.run(["CREATE USER stranger"])
        address = one._route.address
        with contextlib.closing(StoreConnection(replace(address, user="stranger"), ConnectionLimits())) as stranger:
            stranger.run([statement("roster_lock", lock="'a'", wait_s=0)])
            assert one.begin_change("a").value
            assert not one.begin_change("a").value
            one.end_change("a")
            assert one.begin_change("a").value

    def test_a_proxy_whose_connection_was_lost_takes_its_slot_again_at_the_next_check(
        self, alone: Callable[[], MySQLStore]
    ) -> None:
        one, two = alone(), alone()
        slot = one.roster(self.QUEUES).value.slot
        other = two.roster(self.QUEUES).value.slot or 0
        one._roster._connection.abort()  # type: ignore[union-attr]
        eventually(lambda: not two.roster(self.QUEUES).value.others)  # The server has noticed.
        with contextlib.suppress(StoreError):
            one.roster(self.QUEUES)
        both = Roster(slot, frozenset({other}), dict.fromkeys(self.QUEUES, (other,)))
        eventually(lambda: slot in two.roster(self.QUEUES).value.others and one.roster(self.QUEUES).value == both)

    @pytest.fixture
    def silently_lost(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[MySQLStore], StoreConnection]]:
        """Lets a proxy lose the connection with its lock, which the server still has. Returns the connection."""
        lost: list[StoreConnection] = []

        def lose(store: MySQLStore) -> StoreConnection:
            connection = store._roster._connection
            assert connection is not None
            monkeypatch.setattr(connection, "stale", lambda: True)
            monkeypatch.setattr(connection, "close", lambda: None)
            lost.append(connection)
            return connection

        yield lose
        monkeypatch.undo()
        for connection in lost:
            connection.close()

    def test_a_proxy_takes_its_slot_again_though_the_server_has_not_ended_its_former_connection(
        self, alone: Callable[[], MySQLStore], silently_lost: Callable[[MySQLStore], StoreConnection]
    ) -> None:
        one = alone()
        slot = one.roster([]).value.slot
        silently_lost(one)
        assert one.roster([]).value == Roster(slot)

    def test_a_proxy_takes_its_slot_again_if_its_former_connection_ends_while_it_looks(
        self,
        alone: Callable[[], MySQLStore],
        silently_lost: Callable[[MySQLStore], StoreConnection],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        one, other = alone(), alone()
        slot = one.roster([]).value.slot
        former = silently_lost(one)
        read = RosterConnection._read

        def read_before_the_end(roster: RosterConnection, *given: Any) -> Any:
            found = read(roster, *given)
            former.abort()
            eventually(lambda: other.read(f"SELECT IS_FREE_LOCK('ackstream/{slot}')").value == [["1"]])
            return found

        monkeypatch.setattr(RosterConnection, "_read", read_before_the_end)
        assert one._roster.check([]).value.slot == slot

    def test_no_other_slot_is_taken_while_the_former_connection_holds_its_own(
        self,
        alone: Callable[[], MySQLStore],
        silently_lost: Callable[[MySQLStore], StoreConnection],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        one = alone()
        slot = one.roster([]).value.slot
        former = silently_lost(one)
        slow = {"kill": "DO 1"}  # As if the server were busy.
        monkeypatch.setattr(roster, "statement", lambda name, **given: slow.get(name) or statement(name, **given))
        for _ in range(2):
            with pytest.raises(StoreError, match=f"former connection still has the lock ackstream/{slot}"):
                one.roster([])
        former.abort()
        assert one.roster([]).value == Roster(slot)

    def test_a_proxy_whose_slot_another_one_has_takes_another_one(
        self, alone: Callable[[], MySQLStore], silently_lost: Callable[[MySQLStore], StoreConnection]
    ) -> None:
        one = alone()
        slot = one.roster([]).value.slot or 0
        former = silently_lost(one)
        other = alone()
        other._roster._slot_before = slot
        former.abort()
        eventually(lambda: other.read(f"SELECT IS_FREE_LOCK('ackstream/{slot}')").value == [["1"]])
        assert other.roster([]).value.slot == slot
        found = one.roster([]).value
        assert found.slot not in {None, slot}
        assert found.others == {slot}
        assert other._roster._connection is not None
        assert not other._roster._connection.stale()  # It was not ended as a former connection of this proxy.

    def test_a_proxy_beyond_the_number_of_slots_has_none(self, server: EmbeddedServer, flavour: Flavour) -> None:
        address = BackendAddress(server.host, server.port, "root")
        stores = [MySQLStore(address, StoreLimits(proxies_max=0)) for _ in range(2)]
        for store in stores:
            assert store.roster(self.QUEUES).value == Roster(None)
            store.close()


def test_a_dropped_memory_of_a_table_changes_no_result(server: EmbeddedServer, subject: ServerSubject) -> None:
    """A store that remembers one table, used for two in turn, returns the same as one that remembers both."""
    subject.execute("CREATE TABLE other LIKE messages")
    for name in ("messages", "other"):
        values = ", ".join(f"({key}, {key % 5}, 0, IF({key} > 20, 1, NULL), 'x')" for key in range(1, 31))
        subject.execute(f"INSERT INTO {name} (id, priority, time_next, time_acked, body) VALUES {values}")
    forgetful = MySQLStore(BackendAddress(server.host, server.port, "root"), StoreLimits(tables_remembered=1))
    with contextlib.closing(forgetful):
        other = forgetful.describe(TableId(subject.table.id.db, "other")).value
        assert isinstance(other, QueueTable)
        tables = [subject.table, other] * 3
        seen = [[store.scan(table, 5).value for table in tables] for store in (forgetful, subject.store)]
        assert seen[0] == seen[1]
        assert [forgetful.purge(table, 0, 4).value.rows for table in tables] == [4, 4, 4, 4, 2, 2]


def test_a_connection_is_killed_only_on_the_server_that_gave_it_its_id(
    subject: ServerSubject, server: EmbeddedServer
) -> None:
    here = (server.host, server.port)
    with connect(server) as other:
        number = int(other.thread_id())  # type: ignore[no-untyped-call]
        assert not subject.store.kill(number, Origin(("127.0.0.9", server.port))).value
        assert not subject.store.kill(number, Origin(here, "another server behind the same address")).value
        other.ping(reconnect=False)
        assert subject.store.kill(number, Origin(here)).value
        with pytest.raises(pymysql.MySQLError):
            other.ping(reconnect=False)


def test_no_connection_is_killed_by_its_id_alone_with_several_servers_behind_one_address(
    subject: ServerSubject, server: EmbeddedServer
) -> None:
    here = (server.host, server.port)
    with connect(server) as other:
        number = int(other.thread_id())  # type: ignore[no-untyped-call]
        subject.store._servers.add(Origin(here, "another one"))
        assert not subject.store.kill(number, Origin(here)).value
        other.ping(reconnect=False)
        (name,) = (server.name for server in subject.store._servers if server.name != "another one")
        assert subject.store.kill(number, Origin(here, name)).value


SETTINGS = {
    "timestamp": "2000000000",  # In 2033.
    "sql_select_limit": "0",
    "time_zone": "'+05:00'",
    "character_set_results": "'utf16'",
    "innodb_lock_wait_timeout": "50",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_variables_set_by_a_tables_triggers_affect_no_other_statement(server: EmbeddedServer, setting: str) -> None:
    subject = ServerSubject(server)
    before_ns = subject.now_ns()
    subject.execute("INSERT INTO messages (id, time_next, time_acked) VALUES (1, 0, NULL), (2, NULL, %s)", before_ns)
    subject.execute("INSERT INTO messages (id, time_next) VALUES (3, 4000000000000000000)")
    trigger = f"CREATE TRIGGER t BEFORE UPDATE ON messages FOR EACH ROW SET SESSION {setting} = {SETTINGS[setting]}"
    subject.execute(trigger)
    with interrupted_store(subject) as store:  # On one connection.

        def settings() -> list[bytes]:
            with store._pool.connection() as connection:
                names = ", ".join(f"@@SESSION.{name}" for name in SETTINGS if name != "timestamp")
                return connection.run([f"SELECT {names}, @@SESSION.timestamp < 1950000000"])[0].rows

        before = settings()
        assert [claim.key for claim in store.claim(subject.table, [Wanted(1, 0, S)]).value] == [1]
        assert settings() == before
        subject.execute("INSERT INTO messages (id, time_next, body) VALUES (4, 0, 'é')")
        row_format = RowFormat(("body",), binary=False)
        rows = store.claim_and_fetch(subject.table, [Wanted(4, 0, S)], row_format, 1000).value.rows
        assert rows is not None
        assert rows.rows == {4: b"\x02\xc3\xa9"}
        subject.execute("DELETE FROM messages WHERE id = 4")
        assert store.claim(subject.table, [Wanted(1, 1, S)]).now_ns - before_ns < 600 * S
        assert store.claim(subject.table, [Wanted(3, 0, S)]).value == ()
        assert store.purge(subject.table, 600 * S, 10).value.rows == 0
        looked_up = store.lookup(subject.table, [1, 2, 3])
        assert (sorted(looked_up.value, key=int), looked_up.now_ns - before_ns < 600 * S) == ([1, 3], True)
    subject.close()


class TestAcknowledgeAll:
    ACKS = (Ack((1,)), Ack((2,)))
    COMMIT = 2
    """The number of the packet with the UPDATE and the COMMIT. The server's name is read before."""

    def live(self, subject: ServerSubject) -> int:
        return len(subject.execute("SELECT id FROM messages WHERE time_acked IS NULL"))

    def test_clients_of_another_server_are_refused(self, subject: ServerSubject) -> None:
        insert(subject, 1, 2)
        for origin in (replace(subject.origin, name="another"), replace(subject.origin, name=None)):
            with pytest.raises(StoreError) as raised:
                subject.store.acknowledge_all(subject.table, self.ACKS, origin)
            assert not isinstance(raised.value, AckUnknownError)
        assert self.live(subject) == 2

    def test_a_null_epoch_equals_none(self, server: EmbeddedServer) -> None:
        with subject_on(server, COLUMNS.replace("epoch BIGINT NOT NULL", "epoch BIGINT")) as subject:
            subject.execute("INSERT INTO messages (id, epoch) VALUES (1, NULL), (2, NULL)")
            acks = (Ack((1,), 0), Ack((2,)))
            assert subject.store.acknowledge_all(subject.table, acks, subject.origin).value == (0, 1)

    @pytest.mark.parametrize("committed", [False, True])
    def test_a_connection_that_breaks_at_the_commit_leaves_the_outcome_unknown(
        self, subject: ServerSubject, *, committed: bool
    ) -> None:
        insert(subject, 1, 2)

        def break_before(at: int, connection: StoreConnection) -> None:
            if at == self.COMMIT and not committed:
                connection.abort()

        def break_after(at: int, connection: StoreConnection) -> None:
            if at == self.COMMIT:
                connection.broken = True
                raise StoreError("the answer is lost", code=2013)

        with interrupted_store(subject, break_before, break_after) as store, pytest.raises(AckUnknownError):
            store.acknowledge_all(subject.table, self.ACKS, subject.origin)
        assert eventually(lambda: self.live(subject) == (0 if committed else 2))

    def test_one_that_the_server_refuses_is_left_out(self, subject: ServerSubject) -> None:
        insert(subject, 1, 2, 3)
        signal = "IF NEW.id = 2 THEN SIGNAL SQLSTATE '45000'; END IF"
        subject.execute(f"CREATE TRIGGER t BEFORE UPDATE ON messages FOR EACH ROW BEGIN {signal}; END")
        acks = (*self.ACKS, Ack((3,)))
        assert subject.store.acknowledge_all(subject.table, acks, subject.origin).value == [1, None, 1]
        assert self.live(subject) == 1

    def test_each_of_several_has_its_own_result_if_the_connection_breaks_between_their_halves(
        self, subject: ServerSubject
    ) -> None:
        insert(subject, 1, 2, 3)

        def break_before(at: int, connection: StoreConnection) -> None:
            if at == self.COMMIT + 2:
                connection.abort()

        with subject.locked(3), interrupted_store(subject, break_before) as store:
            first, second, third = store.acknowledge_all(subject.table, (*self.ACKS, Ack((3,))), subject.origin).value
        assert first == 1
        assert isinstance(second, AckUnknownError)
        assert isinstance(third, AckUnknownError)
        assert self.live(subject) == 2

    @pytest.mark.parametrize(
        ("column", "alike"),
        [
            ("more JSON", True),
            ("more INT CHECK (more > 0)", False),
            ("more INT, CHECK (more > id)", False),
            ("more DATETIME ON UPDATE CURRENT_TIMESTAMP", False),
            ("more BIGINT AS (time_acked + 1) STORED", False),
            ("more BIGINT AS (time_acked + 1) VIRTUAL", False),
        ],
    )
    def test_the_catalog_shows_what_a_changed_row_computes(
        self, server: EmbeddedServer, column: str, *, alike: bool
    ) -> None:
        with subject_on(server, f"{COLUMNS.rstrip()}, {column}") as subject:
            assert subject.table.writes_alike == alike
