"""A condition's canonical form, on real servers: the rows that the client's own text finds in its own session."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from statistics import median
from typing import Any

import mysql.connector
import pymysql
import pytest
from hypothesis import HealthCheck, given, settings

from proxy.session.queries import sql
from sqlrewrite.lexicon import SqlMode
from sqlrewrite.stream import parse_stream
from tests.support.conditions import CHARACTERS, conditions
from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

MODES = {
    "plain": SqlMode(),
    "ANSI_QUOTES,PIPES_AS_CONCAT": SqlMode(ansi_quotes=True),
    "NO_BACKSLASH_ESCAPES": SqlMode(no_backslash_escapes=True),
    "HIGH_NOT_PRECEDENCE": SqlMode(high_not_precedence=True),
    "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE": SqlMode(True, True, True),
}


@pytest.fixture
def table(server, database) -> Iterator[Any]:
    """A connection with everyday settings, and a table t with a little of everything."""
    dice = random.Random(1)
    words = ["".join(letters) for length in range(3) for letters in itertools.product(CHARACTERS, repeat=length)]
    moments = [None, "2026-01-02", "2026-01-02 03:04:05", "2026-01-02 03:04:05.5", "2025-12-31"]
    with connect(server) as connection:
        run(connection, f"USE {database}")
        run(
            connection,
            "CREATE TABLE t (id INT PRIMARY KEY, number INT, word VARCHAR(20) CHARACTER SET utf8mb4,"
            " moment DATETIME(6), amount DECIMAL(10,3), raw VARBINARY(20), clock TIME(6))",
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO t (id, number, word, moment) VALUES (%s, %s, %s, %s)",
                [
                    (
                        number,
                        dice.choice([None, *range(-3, 4)]),
                        word,
                        dice.choice(moments),
                    )
                    for number, word in enumerate([None, *words, *dice.choices(words, k=100)])
                ],
            )
            cursor.execute("UPDATE t SET amount = number * 0.5, raw = word, clock = TIME(moment)")
        connection.commit()
        yield connection


@pytest.mark.parametrize("charset", ["utf8mb4", "latin1", "gbk", "binary"])
@pytest.mark.parametrize("name", MODES)
def test_the_canonical_form_finds_the_rows_that_the_clients_text_finds(table, server, database, name, charset) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(conditions(MODES[name]))
    def same_rows(written: str) -> None:
        # What the client's character set cannot write is a question mark, for the server and for us.
        where = written.encode(codec, "replace").decode(codec)
        condition = parse_stream(f"STREAM * FROM t WHERE {where}".encode(), mode=mode).condition
        assert condition is not None
        expected = rows(session, f"SELECT id FROM t WHERE {where} ORDER BY id")
        assert rows(session, f"SELECT id FROM t WHERE {condition.sql()} ORDER BY id") == expected
        assert rows(table, f"SELECT id FROM t WHERE {condition.sql()} ORDER BY id") == expected

    codec = {"latin1": "cp1252", "gbk": "gbk"}.get(charset, "utf-8")
    with connect(server, database=database, charset="utf8mb4" if charset == "binary" else charset) as session:
        run(session, f"SET NAMES {charset}")
        run(session, f"SET sql_mode = '{'' if name == 'plain' else name}'")
        *_, like_escapes, _server = rows(session, sql("context", server_name="NULL"))[0]
        binary = charset == "binary"
        mode = replace(MODES[name], like_escapes=bool(int(like_escapes)), strings_are_bytes=binary)
        same_rows()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("number > ?", 1),
        ("number = ?", 1.0),
        ("number = ?", "1"),
        ("amount <= ?", Decimal("-0.5")),
        ("word = ?", "a"),
        ("word LIKE ?", "%'%"),
        ("word LIKE ?", r"\%%"),
        ("word <=> ?", None),
        ("raw = ?", b"a"),
        ("raw > ?", "ß".encode()),
        ("number = ?", b"1"),
        ("moment = ?", datetime(2026, 1, 2, 3, 4, 5, 500_000)),  # noqa: DTZ001
        ("moment >= ?", date(2026, 1, 2)),
        ("clock = ?", timedelta(hours=3, minutes=4, seconds=5)),
    ],
)
def test_a_bound_condition_finds_the_rows_that_the_prepared_statement_finds(
    table, server, database, where, value
) -> None:
    condition = parse_stream(f"STREAM * FROM t WHERE {where}".encode()).condition
    assert condition is not None
    connection = mysql.connector.connect(
        host=server.host, port=server.port, user="root", use_pure=True, ssl_disabled=True, database=database
    )
    try:
        cursor = connection.cursor(prepared=True)
        cursor.execute(f"SELECT id FROM t WHERE {where} ORDER BY id", (value,))
        expected = cursor.fetchall()
        cursor.execute(f"SELECT id FROM t WHERE {condition.template()} ORDER BY id", (value,))
        assert cursor.fetchall() == expected
        cursor.close()
    finally:
        connection.close()
    assert expected
    assert rows(table, f"SELECT id FROM t WHERE {condition.bind([value]).sql()} ORDER BY id") == expected


# -- What the client's own session says about it, before anything is delivered.


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def error_of(connection: Any, statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as caught:
        rows(connection, statement)
    number, text = caught.value.args
    return number, text


def test_columns_and_partitions_that_are_not_there_are_the_servers_errors(connection) -> None:
    create_queue(connection, "m")
    assert error_of(connection, "STREAM * FROM m WHERE missing = 1 NOWAIT")[0] == 1054
    assert error_of(connection, "STREAM * FROM m PARTITION (p9) NOWAIT")[0] == 1747
    run(connection, "ALTER TABLE m PARTITION BY HASH (id) PARTITIONS 2")
    number, text = error_of(connection, "STREAM * FROM m PARTITION (p9) NOWAIT")
    assert (number, "p9" in text) == (1735, True)


def test_a_column_that_the_client_may_not_read_cannot_be_compared(connection, proxy, database) -> None:
    create_queue(connection, "m")
    with (
        user(connection, database, "SELECT (id)", "UPDATE") as name,
        proxy.connect(user=name, database=database) as reader,
    ):
        number, text = error_of(reader, "STREAM id FROM m WHERE payload = 'a' NOWAIT")
        assert (number, "payload" in text) == (1143, True)


def test_an_error_in_a_condition_leaves_no_transaction_open(connection) -> None:
    create_queue(connection, "m")
    connection.autocommit(False)
    assert error_of(connection, "STREAM * FROM m WHERE missing = 1 NOWAIT")[0] == 1054
    assert not connection.server_status & 1


def test_a_condition_is_read_in_the_sessions_sql_mode_and_character_set(connection, proxy, database) -> None:
    create_queue(connection, "m")
    run(connection, "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'")
    assert "missing" in error_of(connection, r"""STREAM * FROM m WHERE "payload" = '\' AND missing = 1 NOWAIT""")[1]
    with proxy.connect(database=database, charset="gbk") as other:
        # The second byte of this character looks like a backslash.
        assert "missing" in error_of(other, "STREAM * FROM m WHERE payload = '縗' AND missing = 1 NOWAIT")[1]


def test_a_prepared_condition_is_checked_when_it_is_prepared(proxy, connection, database) -> None:
    create_queue(connection, "m")
    driver = mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", use_pure=True, ssl_disabled=True, database=database
    )
    try:
        cursor = driver.cursor(prepared=True)
        with pytest.raises(mysql.connector.Error) as caught:
            cursor.execute("STREAM * FROM m WHERE missing = ? LIMIT ? WAIT ?", (1, 2, 3))
        assert caught.value.errno == 1054
    finally:
        driver.close()


# -- And then


def test_a_stream_delivers_what_it_wants_and_leaves_the_rest_to_others(connection, proxy, database, consume) -> None:
    create_queue(connection, "m")
    other = consume(proxy.connect(database=database), "STREAM id FROM m WHERE payload IN ('b', 'd') LIMIT 2")
    enqueue(connection, "m", "abcd")
    assert other.ended.wait(10)
    assert other.received == [(2,), (4,)]
    assert rows(connection, "STREAM id FROM m WHERE NOT payload = 'c' NOWAIT") == [(1,)]
    assert rows(connection, "STREAM id FROM m NOWAIT") == [(3,)]


def test_a_stream_of_partitions_delivers_what_is_in_them(connection) -> None:
    create_queue(connection, "m")
    run(connection, "ALTER TABLE m PARTITION BY HASH (id) PARTITIONS 3")
    enqueue(connection, "m", "abcdef")
    assert sorted(rows(connection, "STREAM id FROM m PARTITION (p2, p1) WHERE id < 5 NOWAIT")) == [(1,), (2,), (4,)]
    assert rows(connection, "STREAM id FROM m PARTITION (p0) NOWAIT") == [(3,), (6,)]


def test_a_pattern_means_what_it_means_in_a_select_of_the_same_session(connection) -> None:
    create_queue(connection, "m")
    run(connection, "SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
    run(connection, r"INSERT INTO m (payload) VALUES ('a%b'), ('a\%b'), ('a\xb')")
    expected = rows(connection, r"""SELECT id FROM m WHERE "payload" LIKE 'a\%b' ORDER BY id""")
    assert rows(connection, r"""STREAM id FROM m WHERE "payload" LIKE 'a\%b' NOWAIT""") == expected


@pytest.mark.parametrize("where", ["`größe` = 'weiß'", "`größe` = 'WEISS'", "`größe` LIKE '%ß'", "`größe` IN ('Weiß')"])
def test_strings_mean_what_they_mean_in_a_select_where_the_character_set_is_binary(connection, where) -> None:
    create_queue(connection, "m", "`größe` VARCHAR(20) CHARACTER SET utf8mb4")
    run(connection, "INSERT INTO m (`größe`) VALUES ('weiß'), ('WEISS'), ('Weiß')")
    run(connection, "SET NAMES binary")
    expected = rows(connection, f"SELECT id FROM m WHERE {where} ORDER BY id")
    assert expected
    assert rows(connection, f"STREAM id FROM m WHERE {where} NOWAIT") == expected


@pytest.mark.parametrize(
    ("charset", "wanted"), [("latin1", b"\x00a"), ("utf8mb4", b"\x00\xff"), ("binary", b"\x00\xff")]
)
def test_a_prepared_condition_takes_values_of_every_type_in_the_clients_character_set(
    connection, proxy, database, charset, wanted
) -> None:
    create_queue(connection, "m", "payload VARCHAR(20) CHARACTER SET utf8mb4, raw VARBINARY(20), moment DATETIME(6)")
    raw = f"x'{wanted.hex()}'"
    run(connection, f"INSERT INTO m (payload, raw, moment) VALUES ('größe', {raw}, '2026-01-02 03:04:05.5')")
    driver = mysql.connector.connect(
        host=proxy.host,
        port=proxy.port,
        user="root",
        use_pure=True,
        ssl_disabled=True,
        autocommit=True,
        database=database,
        charset="utf8mb4" if charset == "binary" else charset,
    )
    try:
        driver.cmd_query(f"SET NAMES {charset}")
        cursor = driver.cursor(prepared=True)
        condition = "payload LIKE ? AND ? = raw AND moment BETWEEN ? AND ? AND id IN (?, ?)"
        statement = f"STREAM id FROM m WHERE {condition} LIMIT ? WAIT ?"
        moment = datetime(2026, 1, 2, 3, 4, 5, 500_000)  # noqa: DTZ001
        for first, found in ((b"\x00", []), (wanted, [(1,)])):
            cursor.execute(statement, ("gr_ß%", first, date(2026, 1, 1), moment, 1, Decimal(7), 1, 0))
            assert cursor.fetchall() == found
        cursor.close()
    finally:
        driver.close()


def test_each_message_goes_to_exactly_one_of_those_that_want_it(connection, proxy, database, consume) -> None:
    create_queue(connection, "m")
    wanted = {
        "id BETWEEN 1 AND 60": lambda number: number <= 60,
        "payload LIKE 'a%'": lambda number: number % 3 == 0,
        "id > 30 AND NOT payload = 'b'": lambda number: number > 30 and number % 3 == 0,
    }
    consumers = {
        condition: consume(proxy.connect(database=database), f"STREAM id FROM m WHERE {condition}")
        for condition in wanted
    }
    enqueue(connection, "m", ["a" if number % 3 == 0 else "b" for number in range(1, 101)])
    anybodys = [number for number in range(1, 101) if any(wants(number) for wants in wanted.values())]
    eventually(lambda: sum(len(consumer.received) for consumer in consumers.values()) == len(anybodys))
    for condition, consumer in consumers.items():
        assert all(wanted[condition](number) for (number,) in consumer.received), condition
    assert sorted(number for consumer in consumers.values() for (number,) in consumer.received) == anybodys
    left = [(number,) for number in range(1, 101) if number not in anybodys]
    assert rows(connection, "STREAM id FROM m NOWAIT") == left


def test_messages_that_nobody_wants_cost_nothing_once_they_were_passed_over(
    connection, proxy, database, consume
) -> None:
    def rows_read() -> int:
        return sum(int(count) for _, count in rows(connection, "SHOW GLOBAL STATUS LIKE 'Handler_read_%'"))

    def cost_of_another() -> int:
        before, received = rows_read(), len(consumer.received)
        enqueue(connection, "m", ["yes"])
        eventually(lambda: len(consumer.received) == received + 1)
        return rows_read() - before

    create_queue(connection, "m")
    for _ in range(5):
        enqueue(connection, "m", ["no"] * 1_000)
    consumer = consume(proxy.connect(database=database), "STREAM id FROM m WHERE payload = 'yes'")
    eventually(lambda: cost_of_another() < 500, timeout_s=30)
    # The median, because a refresh of the catalog reads rows, too.
    assert median(cost_of_another() for _ in range(9)) < 500


@pytest.mark.parametrize(
    "condition",
    [
        "id = (SELECT 1)",
        "payload = CURRENT_USER()",
        "LENGTH(payload) > 3",
        "id = @x",
        "EXISTS (SELECT 1)",
        "id + 1 = 2",
        "MATCH (payload) AGAINST ('a')",
    ],
)
def test_what_is_no_comparison_of_the_tables_own_columns_is_refused_with_what_is_allowed(connection, condition) -> None:
    create_queue(connection, "m")
    number, text = error_of(connection, f"STREAM id FROM m WHERE {condition} NOWAIT")
    assert number == 1064
    assert "compare" in text
    assert rows(connection, "STREAM id FROM m NOWAIT") == []
