"""Messages of every shape go through the proxy as they are: large, of any type, id and name."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from pymysql.cursors import SSCursor

from engine.store.queries import partition_clause
from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import directives, rows, run
from tests.support.servers import binary_or_skip, connect, running_server

pytestmark = pytest.mark.either_server

OWN = "priority INT NOT NULL DEFAULT 0, epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT"
NEXT = "KEY next_up (time_acked, priority, time_next)"
COLUMNS = """
    c_null INT, c_unsigned BIGINT UNSIGNED, c_float FLOAT, c_double DOUBLE, c_decimal DECIMAL(20,5), c_bit BIT(10),
    c_year YEAR, c_date DATE, c_time TIME(3), c_datetime DATETIME(6), c_stamp TIMESTAMP(3) NULL, c_char CHAR(10),
    c_text TEXT, c_binary BINARY(4), c_blob BLOB, c_enum ENUM('x', 'ü'), c_set SET('a', 'b'), c_json JSON, c_point POINT
"""
VALUES = """
    NULL, 18446744073709551615, 0.1, 1e300, -12345.67890, b'1010101010', 2024, '2024-02-29', '-10:00:00.123',
    '2024-03-31 02:30:00.000001', '2024-01-01 12:00:00.5', 'pad é', 'long ü', x'00ff', x'ff00fe', 'ü', 'a,b',
    '{"a": [1, "é"]}', POINT(1, 2)
"""
MIB = 1 << 20
LARGE_BYTES = 40 * MIB
COPIES = 4
"""Of large rows, at most, in the proxy's memory: one that was framed and is in its socket's buffer, and of the next one
the pieces in which it came and the whole, or the whole and what is sent of it; and 40 % for the packet read last."""
GIVEN_BACK_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
"""glibc's own value to begin with; left alone, it grows, and memory that was freed is kept for a while."""


@pytest.fixture
def connection(proxy: RunningProxy, database: str):
    with proxy.connect(database=database) as connection:
        yield connection


def create(connection, name: str, columns: str, tail: str = "") -> None:
    run(connection, f"CREATE TABLE {name} ({columns}, {OWN}, {NEXT}) COMMENT '{directives()}' {tail}")


def peak_bytes(proxy: RunningProxy) -> int:
    """The most memory that its process has ever had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{proxy.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def test_messages_as_large_as_the_server_allows_come_whole_one_after_the_other(server_name, flavour, tmp_path) -> None:
    binary_or_skip(server_name)
    redo = "--innodb-redo-log-capacity=512M" if flavour == "mysql" else "--innodb-log-file-size=512M"
    options = ["--max-allowed-packet=64M", redo]
    with (
        environment(**GIVEN_BACK_AT_ONCE),
        running_server(server_name, options=options) as server,
        running_proxy(server, tmp_path / "log") as proxy,
    ):
        with connect(server) as direct:
            run(direct, "CREATE DATABASE large")
            direct.select_db("large")
            create(direct, "m", "id INT PRIMARY KEY, body LONGBLOB")
            for key in range(1, 4):
                run(
                    direct,
                    f"INSERT INTO m (id, body) VALUES ({key}, CONCAT('{key}', REPEAT(x'00ff', {LARGE_BYTES // 2})))",
                )
        before = peak_bytes(proxy)
        with proxy.connect(database="large") as client, SSCursor(client) as cursor:
            cursor.execute("STREAM * FROM m LIMIT 3")
            for key in range(1, 4):
                number, body = cursor.fetchone() or (0, b"")
                expected = str(key).encode() + b"\x00\xff" * (LARGE_BYTES // 2)
                assert (number, hashlib.sha256(body).digest()) == (key, hashlib.sha256(expected).digest())
            assert cursor.fetchone() is None
            assert run(client, "ACK FROM m WHERE id < 4") == 3
        assert peak_bytes(proxy) - before < COPIES * LARGE_BYTES


def test_a_row_of_every_type_is_that_of_a_select_with_the_same_types(connection) -> None:
    names = ", ".join(re.findall(r"c_\w+", COLUMNS))
    create(connection, "m", f"id INT PRIMARY KEY, {COLUMNS}, twice INT AS (id * 2), hidden INT INVISIBLE DEFAULT 7")
    run(connection, f"INSERT INTO m (id, {names}) VALUES (1, {VALUES})")
    run(connection, "INSERT INTO m (id) VALUES (2)")
    for listed in (f"id, {names}, twice", f"id, {names}, twice, hidden"):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {listed} FROM m ORDER BY id")
            expected, described = cursor.fetchall(), cursor.description
            cursor.execute(f"STREAM {'*' if 'hidden' not in listed else listed} FROM m NOWAIT")
            assert (cursor.fetchall(), cursor.description) == (expected, described)
        run(connection, "UPDATE m SET time_next = 0")


@pytest.mark.parametrize(
    ("id_type", "literals"),
    [
        ("BIGINT UNSIGNED", ["18446744073709551615", "9223372036854775808", "0"]),
        ("VARCHAR(40) COLLATE utf8mb4_general_ci", ["'Ab'", "'trailing  '", "'o''clock'"]),
        ("VARCHAR(40) COLLATE utf8mb4_bin", ["'Ab'", "'aB'", "'😀'"]),
        ("BINARY(16)", ["x'00112233445566778899aabbccddeeff'", "x'27202020202020202020202020202027'"]),
        ("DECIMAL(30,10)", ["12345678901234567890.0123456789", "-0.5"]),
        ("DATETIME(6)", ["'2024-03-31 02:30:00.000001'", "'2024-01-01'"]),
        ("UUID", ["'2f1e0c0a-0000-4000-8000-000000000001'"]),
    ],
)
def test_a_message_with_an_id_of_any_type_is_streamed_and_acknowledged(connection, flavour, id_type, literals) -> None:
    if id_type == "UUID" and flavour != "mariadb":
        pytest.skip("a type of MariaDB's")
    create(connection, "m", f"id {id_type} NOT NULL PRIMARY KEY, body INT")
    for number, literal in enumerate(literals):
        run(connection, f"INSERT INTO m (id, body) VALUES ({literal}, {number})")
    found = rows(connection, f"STREAM body, id FROM m LIMIT {len(literals)} WAIT 10")
    assert {number for number, _ in found} == set(range(len(literals)))
    for literal in literals:
        assert run(connection, f"ACK FROM m WHERE id = {literal} AND epoch = 1") == 1
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]


@pytest.mark.parametrize(
    "name", ["a b", "a`b``c", "a.b", "日本語 ü", "stream", "n" * 64, "é" * 64, "`", "--x", "/*x*/"]
)
def test_tables_and_columns_of_any_name_are_queues(connection, name) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    create(connection, quoted, f"id INT PRIMARY KEY, {quoted} INT")
    run(connection, f"INSERT INTO {quoted} (id, {quoted}) VALUES (1, 10), (2, 20)")
    assert rows(connection, f"STREAM * FROM {quoted} LIMIT 1 WAIT 10") == [(1, 10)]
    assert rows(connection, f"STREAM {quoted}, epoch FROM {quoted} LIMIT 1 WAIT 10") == [(20, 1)]
    assert run(connection, f"ACK FROM {quoted} WHERE {quoted} >= 10") == 2


@pytest.mark.parametrize("name", ["a b", "a`b", "a.b", "ü" * 40])
def test_databases_of_any_name_each_have_their_own_table_of_one_name(proxy, database, connection, name) -> None:
    others = [f"{database} {name} {number}"[:64] for number in range(2)]
    quoted = ["`" + other.replace("`", "``") + "`" for other in others]
    for number, other in enumerate(quoted):
        run(connection, f"CREATE DATABASE {other}")
        create(connection, f"{other}.m", "id INT PRIMARY KEY, body INT")
        run(connection, f"INSERT INTO {other}.m (id, body) VALUES (1, {number})")
    for number, other in enumerate(quoted):
        assert rows(connection, f"STREAM * FROM {other}.m LIMIT 1 WAIT 10") == [(1, number)]
    with proxy.connect(database=others[0]) as inside:
        assert run(inside, "ACK FROM m WHERE id = 1") == 1
        assert run(inside, f"ACK FROM {quoted[0]}.m WHERE id = 1") == 0
    assert run(connection, f"ACK FROM {quoted[1]}.m WHERE id = 1") == 1
    for other in quoted:
        run(connection, f"DROP DATABASE {other}")


def test_a_table_partitioned_by_time_is_a_queue_and_an_acknowledgement_moves_the_row(connection) -> None:
    ((now_ns,),) = rows(connection, "SELECT UNIX_TIMESTAMP() * 1000000000")
    run(
        connection,
        f"CREATE TABLE m (id BIGINT NOT NULL AUTO_INCREMENT, {OWN}, body INT, UNIQUE KEY (id, time_acked),"
        f" KEY (time_acked, priority, time_next, id)) COMMENT '{directives()}'"
        f" {partition_clause(now_ns - 10**12, 2 * 10**12, 5)}",
    )
    run(connection, "INSERT INTO m (body) VALUES (10), (20), (30)")
    assert rows(connection, "STREAM * FROM m LIMIT 3 WAIT 10") == [(1, 10), (2, 20), (3, 30)]
    assert run(connection, "ACK FROM m WHERE id IN (1, 3)") == 2
    assert rows(connection, "SELECT id FROM m PARTITION (live)") == [(2,)]
    assert rows(connection, f"SELECT id FROM m PARTITION (p{now_ns + 10**12}) ORDER BY id") == [(1,), (3,)]
