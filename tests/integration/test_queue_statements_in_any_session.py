"""STREAM and ACK whatever the session is set to: rows are, byte for byte, those of a SELECT of the same columns."""

from __future__ import annotations

from typing import Final

import pymysql
import pytest

from proxy.embedded.server import Flavour
from proxy.wire.packets import parse_err, parse_ok
from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.raw import ALL, BASE, DEPRECATE_EOF, RawClient
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

COLUMNS: Final = {
    "tiny": ("TINYINT", "-128", "127"),
    "tiny_unsigned": ("TINYINT UNSIGNED", "0", "255"),
    "small": ("SMALLINT", "-32768", "32767"),
    "medium": ("MEDIUMINT", "-8388608", "8388607"),
    "medium_unsigned": ("MEDIUMINT UNSIGNED ZEROFILL", "7", "16777215"),
    "plain": ("INT", "-2147483648", "2147483647"),
    "big": ("BIGINT", "-9223372036854775808", "9223372036854775807"),
    "big_unsigned": ("BIGINT UNSIGNED", "0", "18446744073709551615"),
    "exact": ("DECIMAL(65, 30)", "-1.5", "99999999999999999999999999999999999.999999999999999999999999999999"),
    "single": ("FLOAT", "-1.5e-30", "3.4e38"),
    "twice": ("DOUBLE", "-2.2250738585072014e-308", "1.7976931348623157e308"),
    "bits": ("BIT(33)", "b'0'", "b'111111111111111111111111111111111'"),
    "one_bit": ("BIT(1)", "b'0'", "b'1'"),
    "truth": ("BOOLEAN", "FALSE", "TRUE"),
    "a_day": ("DATE", "'1000-01-01'", "'9999-12-31'"),
    "clock": ("TIME", "'-838:59:59'", "'00:00:00'"),
    "clock6": ("TIME(6)", "'-01:02:03.000004'", "'838:59:58.999999'"),
    "moment": ("DATETIME", "'1000-01-01 00:00:00'", "'2026-01-02 03:04:05'"),
    "moment6": ("DATETIME(6)", "'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"),
    "stamp": ("TIMESTAMP NULL", "'1970-01-02 00:00:01'", "'2038-01-18 03:14:07'"),
    "stamp3": ("TIMESTAMP(3) NULL", "'1970-01-02 00:00:01.001'", "'2038-01-18 03:14:07.999'"),
    "a_year": ("YEAR", "1901", "2155"),
    "fixed": ("CHAR(10)", "''", "'Größe  '"),
    "variable": ("VARCHAR(300)", "''", "REPEAT('ß', 300)"),
    "latin": ("VARCHAR(10) CHARACTER SET latin1", "'é'", "'Größe'"),
    "wide": ("VARCHAR(10) CHARACTER SET utf16", "'é'", "'日本😀'"),
    "asian": ("VARCHAR(10) CHARACTER SET gbk", "'中'", "'中文'"),
    "raw": ("BINARY(5)", "x'00'", "x'00ff27225c'"),
    "raw_variable": ("VARBINARY(70)", "''", "x'00ff27225c0a0d1a'"),
    "tiny_text": ("TINYTEXT", "''", "REPEAT('x', 255)"),
    "long_text": ("LONGTEXT", "'日本'", "REPEAT('x', 70000)"),
    "bytes": ("LONGBLOB", "''", "REPEAT(x'00ff', 9000)"),
    "choice": ("ENUM('a', 'ü')", "'a'", "'ü'"),
    "choices": ("SET('a', 'b', 'ü')", "''", "'a,ü'"),
    "document": ("JSON", "'[]'", """'{"a": ["ü", 1.5, null]}'"""),
    "place": ("POINT", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(-1.5 2e10)')"),
    "shape": ("GEOMETRY", "ST_GeomFromText('LINESTRING(0 0, 1 1)')", "ST_GeomFromText('POINT(0 0)')"),
}
ONLY: Final[dict[Flavour, dict[str, tuple[str, str, str]]]] = {
    "mariadb": {
        "address": ("INET6", "'::'", "'2001:db8::1'"),
        "address4": ("INET4", "'0.0.0.0'", "'192.0.2.1'"),
        "identity": (
            "UUID",
            "'00000000-0000-0000-0000-000000000001'",
            "'123e4567-e89b-12d3-a456-426655440000'",
        ),
        "squeezed": ("TEXT COMPRESSED", "''", "REPEAT('x', 9000)"),
    },
    "mysql": {"direction": ("VECTOR(3)", "STRING_TO_VECTOR('[1,2,3]')", "STRING_TO_VECTOR('[-1,0.5,1e10]')")},
}


def make_table(connection, flavour: Flavour) -> list[str]:
    """A queue with a column of every type; twice a row of least values, of greatest, of NULLs. Its columns."""
    columns = {**COLUMNS, **ONLY[flavour]}
    create_queue(connection, "m", ", ".join(f"{name} {kind}" for name, (kind, _, _) in columns.items()))
    names = ", ".join(columns)
    for values in 2 * list(zip(*((low, high, "NULL") for _, low, high in columns.values()), strict=True)):
        run(connection, f"INSERT INTO m ({names}) VALUES ({', '.join(values)})")
    return ["id", *columns]


SESSIONS: Final = {
    "plain": "DO 0",
    "latin1": "SET NAMES latin1",
    "results in utf16": "SET character_set_results = utf16",
    "results in gbk": "SET character_set_results = gbk",
    "results as stored": "SET character_set_results = NULL",
    "results in utf8mb3": "SET character_set_results = utf8mb3",
    "names in gbk": "SET NAMES gbk",
    "sjis": "SET NAMES sjis",
    "another time zone": "SET time_zone = '-11:30'",
    "ANSI_QUOTES": "SET sql_mode = 'ANSI_QUOTES'",
    "NO_BACKSLASH_ESCAPES": "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "PAD_CHAR_TO_FULL_LENGTH": "SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'",
    "the strictest": "SET sql_mode = 'TRADITIONAL,ANSI,ONLY_FULL_GROUP_BY'",
    "nothing is selected": "SET sql_select_limit = 0",
    "safe updates": "SET sql_safe_updates = 1",
    "autocommit off": "SET autocommit = 0",
    "a transaction": "BEGIN",
    "serializable": "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "tracked": "SET session_track_schema = ON, session_track_state_change = ON",
}


@pytest.mark.parametrize("capabilities", [BASE, BASE | DEPRECATE_EOF, ALL], ids=["old", "no EOF", "all"])
@pytest.mark.parametrize("session", SESSIONS)
def test_rows_are_those_of_a_select_byte_for_byte(proxy, server, database, flavour, session, capabilities) -> None:
    with connect(server, database=database, charset="utf8mb4") as root:
        columns = ", ".join(make_table(root, flavour))
    with RawClient(proxy, capabilities, database) as client:
        client.query(SESSIONS[session])
        select = client.query(f"SELECT {columns} FROM m ORDER BY m.id LIMIT 3")  # Or sql_select_limit would decide.
        prepared_select = client.execute(
            client.prepare(f"SELECT {columns} FROM m WHERE m.id > 3 ORDER BY m.id LIMIT 3")
        )
        if session == "autocommit off":
            client.query("COMMIT")
        stream = client.query(f"STREAM {columns} FROM m LIMIT 3 NOWAIT")
        assert payloads(stream) == payloads(select)
        assert [packet.seq for packet in stream] == [packet.seq for packet in select]
        number = client.prepare(f"STREAM {columns} FROM m LIMIT ? NOWAIT")
        assert payloads(client.execute(number, 3)) == payloads(prepared_select)
        ack = client.prepare("ACK FROM m WHERE id IN (?, ?)")
        assert parse_ok(client.execute(ack, 1, 2)[-1].payload).head.affected_rows == 2
        assert parse_ok(client.query("ACK FROM m WHERE id = 3")[-1].payload).head.affected_rows == 1


def payloads(answer) -> list[bytes]:
    """All packets but the last, whose flags say other things of a SELECT than of a STREAM."""
    return [packet.payload for packet in without_flags(answer)]


def without_flags(answer):
    return [packet for packet in answer if packet.payload[:1] != b"\xfe" or len(packet.payload) > 8]


def test_names_are_read_as_the_session_writes_them(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "`größe und maß`", "payload TEXT, `ä``ö` INT")
        run(plain, "INSERT INTO `größe und maß` (payload) VALUES ('a'), ('b')")
    with proxy.connect(database=database, charset="latin1") as client:
        assert rows(client, "STREAM `ä``ö`, payload FROM `größe und maß` LIMIT 1 NOWAIT") == [(None, "a")]
        assert run(client, "ACK FROM `größe und maß` WHERE payload = 'a'") == 1
    with proxy.connect(database=database, sql_mode="ANSI_QUOTES") as client:
        assert rows(client, 'STREAM "payload" FROM "größe und maß" LIMIT 1 NOWAIT') == [("b",)]
        assert run(client, 'ACK FROM "größe und maß" WHERE "payload" = \'b\'') == 1


@pytest.mark.parametrize(
    ("sql_mode", "written"),
    [
        ("", r"'it''s \\ \'x\''"),
        ("NO_BACKSLASH_ESCAPES", r"'it''s \ ''x'''"),
        ("NO_BACKSLASH_ESCAPES,ANSI_QUOTES", r"'it''s \ ''x'''"),
    ],
)
def test_strings_are_read_as_the_session_writes_them(proxy, database, sql_mode, written) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        run(plain, r"INSERT INTO m (payload) VALUES ('it''s \\ \'x\''), ('other')")
    with proxy.connect(database=database, sql_mode=sql_mode) as client:
        assert run(client, f"ACK FROM m WHERE payload = {written}") == 1
        assert rows(client, "SELECT payload FROM m WHERE time_acked IS NOT NULL") == [(r"it's \ 'x'",)]


def test_a_driver_that_switches_autocommit_off_streams_and_acknowledges(proxy, database) -> None:
    """As PyMySQL does by default: what it acknowledges is done when it commits."""
    with proxy.connect(database=database) as plain, proxy.connect(database=database, autocommit=False) as client:
        create_queue(plain, "m")
        enqueue(plain, "m", "ab")
        assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 5") == [("a",)]
        assert run(client, "ACK FROM m WHERE id = 1") == 1
        assert rows(plain, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(2,)]
        client.commit()
        assert rows(plain, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(1,)]


@pytest.mark.parametrize("clause", ["LIMIT ?", "LIMIT 1 WAIT ?", "PREFETCH ? NOWAIT"])
def test_a_place_for_a_parameter_in_a_statement_that_is_not_prepared_is_a_syntax_error(proxy, database, clause) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        for statement in (f"STREAM * FROM m {clause}", "ACK FROM m WHERE id = ?"):
            with pytest.raises(pymysql.MySQLError) as error:
                run(client, statement)
            assert error.value.args[0] == 1064
        assert rows(client, "SELECT 1") == [(1,)]


def test_a_temporary_table_in_the_queues_place_opens_no_door(proxy, database) -> None:
    """On a temporary table of one's own one may do everything, and nothing about the queue behind it."""
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["secret"])
        with user(plain, database) as name:
            run(plain, f"GRANT CREATE TEMPORARY TABLES ON {database}.* TO {name}@localhost")
            with proxy.connect(user=name, database=database) as client:
                with pytest.raises(pymysql.MySQLError) as error:
                    rows(client, "STREAM payload FROM m NOWAIT")
                assert error.value.args[0] == 1142
                run(
                    client,
                    "CREATE TEMPORARY TABLE m (id BIGINT, priority INT, epoch BIGINT, time_next BIGINT,"
                    " time_acked BIGINT, payload TEXT)",
                )
                for statement in ("STREAM payload FROM m NOWAIT", "STREAM payload FROM m"):
                    with pytest.raises(pymysql.MySQLError, match="temporary") as error:
                        rows(client, statement)
                    assert error.value.args[0] == 1105
                prepared = RawClient(proxy, BASE, database, user=name)
                with prepared:
                    prepared.query(
                        "CREATE TEMPORARY TABLE m (id BIGINT, priority INT, epoch BIGINT, time_next BIGINT,"
                        " time_acked BIGINT, payload TEXT)"
                    )
                    number = prepared.prepare("STREAM payload FROM m NOWAIT")
                    answer = prepared.execute(number)
                    assert parse_err(answer[-1].payload).code in (1105, 1243)
        assert rows(plain, "STREAM payload, epoch FROM m NOWAIT") == [("secret", 1)]


def test_a_prepared_use_changes_the_database_of_what_follows(flavour, proxy, database) -> None:
    with connect(proxy) as plain:
        run(plain, f"CREATE DATABASE {database}_2")
        run(plain, f"USE {database}_2")
        create_queue(plain, "there")
        enqueue(plain, "there", "x")
        run(plain, f"USE {database}")
        create_queue(plain, "here")
        with RawClient(proxy, BASE, database) as client:
            use = client.prepare(f"USE {database}_2")
            assert bool(use) == (flavour == "mariadb")  # MySQL prepares none.
            if use:
                assert client.query("ACK FROM here WHERE id = 1")[-1].payload[0] == 0
                client.execute(use)
                assert parse_ok(client.query("ACK FROM there WHERE id = 1")[-1].payload).head.affected_rows == 1
        run(plain, f"DROP DATABASE {database}_2")


UNSPELLABLE: Final = "日本"


@pytest.mark.parametrize("charset", ["latin1", "ascii"])
def test_a_client_whose_charset_lacks_a_column_s_name_streams_as_it_selects(server, proxy, database, charset) -> None:
    with connect(server, database=database) as root:
        create_queue(root, "m", f"`{UNSPELLABLE}` INT COMMENT '{UNSPELLABLE}', payload TEXT", vt_ack_wait="30")
        comment = rows(root, f"SHOW TABLE STATUS FROM {database} LIKE 'm'")[0][17]
        run(root, f"ALTER TABLE m COMMENT '{comment}, {UNSPELLABLE}'")
        for _ in range(3):
            run(root, f"INSERT INTO m (`{UNSPELLABLE}`, payload) VALUES (7, '{UNSPELLABLE}')")
    with RawClient(proxy, BASE, database) as client:
        client.query(f"SET NAMES {charset}")
        streamed = client.query("STREAM * FROM m LIMIT 1 NOWAIT")
        assert len(streamed) > 2, streamed  # No error.
        assert [packet.payload.count(b"??") for packet in streamed[2:3]] == [2]  # The name, and that in the table.
        assert streamed[-2].payload == b"\x011\x017\x02??"
        number = client.prepare("STREAM * FROM m LIMIT 1 NOWAIT")
        assert client.execute(number)[-2].payload[-3:] == b"\x02??"
        assert client.query("SELECT @@character_set_client")[-2].payload.endswith(charset.encode())
        assert client.query("ACK FROM m WHERE id IN (1, 2)")[-1].payload[:2] == b"\0\2"
