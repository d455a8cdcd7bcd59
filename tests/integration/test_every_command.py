"""Every command of the protocol, packet for packet as on a direct connection.

Each script is played twice, on the server and through the proxy, by clients of all kinds: with and without
CLIENT_DEPRECATE_EOF, and with everything that the proxy lets pass. What comes back must be the same, and the
connection must be in step afterwards.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Final

import pytest
from mysql_mimic.types import Capabilities, Commands, str_len

from proxy.wire.commands import COM_STMT_BULK_EXECUTE
from proxy.wire.framing import PAYLOAD_MAX, Packet, frame
from proxy.wire.handshake import PASSABLE, SSL, ZSTD
from proxy.wire.packets import parse_err, parse_ok
from tests.support.queues import create_queue, enqueue, run
from tests.support.raw import ALL, BASE, DEPRECATE_EOF, NUMBER, SESSION_TRACK, STRING, RawClient
from tests.support.servers import connect

KINDS: Final = {"old": BASE, "no EOF": BASE | DEPRECATE_EOF, "tracking": BASE | SESSION_TRACK, "all": ALL}

COMPRESS = int(Capabilities.CLIENT_COMPRESS)
OPTIONAL_METADATA = int(Capabilities.CLIENT_OPTIONAL_RESULTSET_METADATA)
MARIADB_PROGRESS = 1 << 32
MARIADB_COM_MULTI = 1 << 33

STATEMENT_NUMBER = re.compile(rb"\([0-9]+\)")
"""In texts of errors. MariaDB counts the prepared statements of all connections."""

CURSOR = 1
LAST_PREPARED = 0xFFFFFFFF

Script = Callable[[RawClient], None]
SCRIPTS: list[Script] = []


def script(play: Script) -> Script:
    SCRIPTS.append(play)
    return play


@script
def several_statements_and_several_results(client: RawClient) -> None:
    client.query("SELECT 1; SELECT 2, 'x' FROM DUAL WHERE FALSE; DO 0; SELECT 3")
    client.query("SELECT 1; SELECT nothing; SELECT 3")
    client.query("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2); SELECT * FROM t; DROP TABLE t")
    client.query("SELECT 1; SELEC 2; SELECT 3")
    client.query("")
    client.query("/* nothing */")
    client.query(";")


@script
def procedures_with_results_and_parameters_going_out(client: RawClient) -> None:
    client.query(
        "CREATE PROCEDURE p (IN a INT, OUT b INT, INOUT c VARCHAR(20))"
        " BEGIN SET b = a * 2; SET c = CONCAT(c, '!'); SELECT a, c; SELECT 'second'; END"
    )
    client.query("SET @c = 'text'; CALL p(4, @b, @c); SELECT @b, @c")
    number = client.prepare("CALL p(?, ?, ?)")
    for _ in range(2):
        client.execute(number, 5, None, "bound")
    client.query("CREATE PROCEDURE fails () BEGIN SELECT 1; SELECT * FROM missing; END")
    client.query("CALL fails()")
    client.execute(client.prepare("CALL fails()"))
    client.query("DROP PROCEDURE p")


@script
def prepared_statements(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT, b TEXT)")
    insert = client.prepare("INSERT INTO t VALUES (?, ?)")
    for a in range(3):
        client.execute(insert, a, f"row {a}")
    client.execute(insert, None, None)
    select = client.prepare("SELECT * FROM t WHERE a >= ? OR ? IS NULL")
    client.execute(select, 1, None)
    client.execute(select, 1, "x")
    client.prepare("SELEC ?")
    client.prepare("DO 0")
    client.about(Commands.COM_STMT_RESET, select)
    client.about(Commands.COM_STMT_CLOSE, select)
    client.execute(select, 1, None)  # 1243
    client.about(Commands.COM_STMT_RESET, 4711)
    client.about(Commands.COM_STMT_FETCH, 4711, bytes(4))


@script
def cursors(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2), (3), (4), (5)")
    number = client.prepare("SELECT a FROM t ORDER BY a")
    client.execute(number, cursor=CURSOR)
    for _ in range(4):
        client.about(Commands.COM_STMT_FETCH, number, (2).to_bytes(4, "little"))
    client.execute(number, cursor=CURSOR)
    client.about(Commands.COM_STMT_RESET, number)
    client.about(Commands.COM_STMT_FETCH, number, (2).to_bytes(4, "little"))
    # Not again without a cursor: MySQL 9.7 answers that with columns, no rows and a wrong end.
    client.execute(client.prepare("SELECT a FROM t WHERE a > 9"), cursor=CURSOR)
    client.execute(client.prepare("INSERT INTO t VALUES (6)"), cursor=CURSOR)


@script
def long_data(client: RawClient) -> None:
    client.query("CREATE TABLE t (a LONGBLOB)")
    number = client.prepare("INSERT INTO t VALUES (?)")
    for _ in range(3):
        client.about(Commands.COM_STMT_SEND_LONG_DATA, number, b"\0\0" + b"\x03STREAM" * 10_000)
    client.execute(number, "not this")
    client.about(Commands.COM_STMT_SEND_LONG_DATA, number, b"\0\0forgotten")
    client.about(Commands.COM_STMT_RESET, number)
    client.execute(number, "this")
    client.query("SELECT LENGTH(a), MD5(a) FROM t")
    client.about(Commands.COM_STMT_SEND_LONG_DATA, 4711, b"\0\0to nobody")


@script
def a_reset_of_the_connection(client: RawClient) -> None:
    client.query("SET @a = 1, time_zone = '+05:00'; CREATE TEMPORARY TABLE t (a INT); BEGIN")
    number = client.prepare("SELECT @a")
    client.ask(bytes([Commands.COM_RESET_CONNECTION]))
    client.execute(number)
    client.query("SELECT @a, @@time_zone")
    client.query("SELECT * FROM t")


@script
def small_commands(client: RawClient) -> None:
    client.ask(bytes([Commands.COM_PING]))
    client.ask(bytes([Commands.COM_STATISTICS]), exact=False)
    client.ask(bytes([Commands.COM_INIT_DB]) + b"information_schema")
    client.query("SELECT DATABASE()")
    client.ask(bytes([Commands.COM_INIT_DB]) + b"missing")
    client.ask(bytes([Commands.COM_DEBUG]))
    client.ask(bytes([Commands.COM_PROCESS_INFO]), exact=False)
    client.ask(bytes([Commands.COM_PROCESS_KILL]) + (0xFFFFFF).to_bytes(4, "little"))


@script
def a_list_of_fields(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT DEFAULT 7, b VARCHAR(20) NOT NULL, abc TEXT)")
    client.ask(bytes([Commands.COM_FIELD_LIST]) + b"t\0")
    client.ask(bytes([Commands.COM_FIELD_LIST]) + b"t\0a%")
    client.ask(bytes([Commands.COM_FIELD_LIST]) + b"missing\0")


@script
def several_statements_switched_off_and_on(client: RawClient) -> None:
    for option in (1, 0, 7):
        client.ask(bytes([Commands.COM_SET_OPTION]) + option.to_bytes(2, "little"))
        client.query("SELECT 1; SELECT 2")


@script
def commands_that_nobody_knows(client: RawClient) -> None:
    client.ask(b"")
    for command in (0x00, 0x05, 0x06, 0x0B, 0x0F, 0x10, 0x13, 0x14, 0x1D, 0x50, 0xF0):
        client.ask(bytes([command]) + b"text")
        client.query("SELECT 1")


@script
def files_that_the_client_loads(client: RawClient) -> None:
    client.query("CREATE TABLE t (a TEXT)")
    load = make_load(client, "LOAD DATA LOCAL INFILE 'any' INTO TABLE t")
    line = b"\x03STREAM * FROM m\n"
    client.ask(load, file=[line * 1000] * 300)  # Number 254 of the packets begins like a command.
    client.ask(load, file=[])
    client.ask(load, file=[b"no line end"])
    client.ask(make_load(client, "LOAD DATA LOCAL INFILE 'any' INTO TABLE missing"), file=[line])
    client.ask(make_load(client, "LOAD DATA LOCAL INFILE 'a' INTO TABLE t; SELECT COUNT(*) FROM t"), file=[line])
    client.query("SELECT COUNT(*), MD5(GROUP_CONCAT(DISTINCT a)) FROM t")


def make_load(client: RawClient, text: str) -> bytes:
    return b"\x03" + (b"\0\1" if client.attributes else b"") + text.encode()


@script
def transactions_and_what_a_session_tracks(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT) ENGINE=InnoDB")
    client.query("SET session_track_transaction_info = 'CHARACTERISTICS', session_track_state_change = ON")
    client.query("SET session_track_system_variables = 'autocommit,character_set_client,sql_mode,time_zone'")
    for statement in (
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT s",
        "ROLLBACK TO s",
        "COMMIT",
        "SET autocommit = 0",
        "SELECT * FROM t",
        "ROLLBACK",
        "SET NAMES latin1",
        "USE mysql",
        "START TRANSACTION READ ONLY",
        "COMMIT AND CHAIN",
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        "SET time_zone = '+03:00'; SET @a = 1",
    ):
        client.query(statement)


@script
def warnings_errors_and_odd_results(client: RawClient) -> None:
    client.query("CREATE TABLE t (a TINYINT, PRIMARY KEY (a))")
    client.query("INSERT IGNORE INTO t VALUES (1000), (1)")
    client.query("SHOW WARNINGS")
    client.query("INSERT INTO t VALUES (1), (1)")
    client.query("UPDATE t SET a = 2 WHERE a = 1")
    client.query("SELECT '', NULL, REPEAT('x', 300), REPEAT('x', 70000), 1.5, NOW() IS NULL")
    client.query("EXPLAIN SELECT * FROM t")
    client.query("CHECK TABLE t")
    client.query("HANDLER t OPEN; HANDLER t READ FIRST; HANDLER t CLOSE")
    client.query("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'so'")
    client.query("PREPARE s FROM 'SELECT ?'; SET @a = 1; EXECUTE s USING @a; DEALLOCATE PREPARE s")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("play", SCRIPTS, ids=lambda play: play.__name__)
def test_it_is_answered_as_on_a_direct_connection(server, proxy, database, play: Script, kind: str) -> None:
    direct, relayed = (transcript(server, place, database, KINDS[kind], play) for place in (server, proxy))
    assert relayed == direct


def transcript(server, place, database: str, capabilities: int, play: Script) -> list[Packet]:
    """What the server answers to the script, in a database that is empty in the beginning."""
    with connect(server) as root:
        run(root, f"DROP DATABASE {database}")
        run(root, f"CREATE DATABASE {database}")
    with RawClient(place, capabilities, database) as client:
        play(client)
        assert client.query("SELECT 'in step'")[-2].payload == b"\x07in step"
        return [Packet(seq, STATEMENT_NUMBER.sub(b"(n)", payload)) for seq, payload in client.received]


@pytest.mark.parametrize("flavour", ["mysql"], indirect=True, scope="session")
@pytest.mark.parametrize("size", [0, 3, 5_000, 3 << 20])
def test_query_attributes_reach_the_server_however_long_they_are(server, proxy, size: int) -> None:
    for place in (server, proxy):
        with RawClient(place, ALL) as client:
            attribute = b"\x01\x01\0\x01" + bytes([STRING, 0]) + str_len(b"trace") + str_len(b"x" * size)
            query = frame(b"\x03" + attribute + b"SELECT 'here'", 0)
            client.sock.sendall(query[:5_000])  # At first less than all that the attribute needs.
            client.sock.sendall(query[5_000:])
            assert client.answer(0x03)[-2].payload == b"\x04here"


@pytest.mark.parametrize("flavour", ["mysql"], indirect=True, scope="session")
def test_a_statement_of_ours_may_have_query_attributes(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, ALL, database) as client:
        attribute = b"\x01\x01\0\x01" + bytes([STRING, 0]) + str_len(b"trace") + str_len(b"of mine")
        answer = client.ask(b"\x03" + attribute + b"STREAM payload FROM m NOWAIT")
        assert answer[-2].payload == b"\x01a"
        answer = client.ask(b"\x03" + attribute + b"ACK FROM m WHERE id = 1")
        assert parse_ok(answer[-1].payload).head.affected_rows == 1


@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True, scope="session")
def test_many_rows_of_parameters_go_in_one_command(server, proxy, database) -> None:
    def play(client: RawClient) -> None:
        client.query("CREATE TABLE t (a BIGINT, b TEXT)")
        number = client.prepare("INSERT INTO t VALUES (?, ?)")
        types = bytes([NUMBER, 0, STRING, 0])
        rows = b"".join(b"\0" + a.to_bytes(8, "little") + b"\0" + str_len(b"row") for a in range(100))
        client.about(COM_STMT_BULK_EXECUTE, number, b"\x80\0" + types + rows)
        client.query("SELECT COUNT(*), SUM(a) FROM t")
        client.about(COM_STMT_BULK_EXECUTE, client.prepare("SELECT ?"), b"\x80\0" + types[:2] + rows[:9])

    direct, relayed = (transcript(server, place, database, ALL, play) for place in (server, proxy))
    assert relayed == direct
    assert b"\x03100\x044950" in [each.payload for each in relayed]


@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True, scope="session")
def test_a_prepared_stream_in_bulk_is_refused_as_any_select_is(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
    with RawClient(proxy, ALL, database) as client:
        stream, select = client.prepare("STREAM * FROM m LIMIT ? NOWAIT"), client.prepare("SELECT ?")
        body = b"\x80\0" + bytes([NUMBER, 0]) + b"\0" + (1).to_bytes(8, "little")
        refused = [client.about(COM_STMT_BULK_EXECUTE, each, body)[-1].payload for each in (stream, select)]
        assert refused[0] == refused[1]
        assert parse_err(refused[0]).code == 1295


@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True, scope="session")
@pytest.mark.parametrize("text", ["SELECT id, payload FROM m", "STREAM id, payload FROM m NOWAIT"])
def test_column_packets_that_the_client_knows_already_are_not_sent_again(proxy, database, text: str) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, ALL, database) as client:
        number = client.prepare(text)
        head, *rows, _end = client.execute(number)
        assert head.payload == b"\x02\x00"
        assert [each.payload for each in rows] == [b"\0\0" + (1).to_bytes(8, "little") + b"\x01a"]


@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True, scope="session")
def test_a_statement_is_told_by_the_number_that_means_the_last_one(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, ALL, database) as client:
        client.prepare("STREAM payload FROM m LIMIT ? NOWAIT")
        assert client.execute(LAST_PREPARED, 5)[-2].payload == b"\0\0\x01a"
        client.about(Commands.COM_STMT_CLOSE, LAST_PREPARED)
        assert parse_err(client.execute(LAST_PREPARED, 5)[-1].payload).code == 1243


def test_ours_prepared_are_gone_after_a_reset_of_the_connection(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, BASE, database) as client:
        stream, ack = client.prepare("STREAM * FROM m NOWAIT"), client.prepare("ACK FROM m WHERE id = ?")
        client.ask(bytes([Commands.COM_RESET_CONNECTION]))
        for number, values in ((stream, ()), (ack, (1,))):
            assert parse_err(client.execute(number, *values)[-1].payload).code == 1243
        assert client.query("STREAM payload FROM m NOWAIT")[-2].payload == b"\x01a"


def test_ours_prepared_behind_a_reset_that_is_still_under_way_is_ours(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, BASE, database) as client:
        old = client.prepare("ACK FROM m WHERE id = 7")
        client.send(b"\x16STREAM payload FROM m NOWAIT")
        client.send(bytes([Commands.COM_RESET_CONNECTION]))
        client.send(b"\x16STREAM payload FROM m NOWAIT")
        gone, _reset, new = (client.answer(byte)[0].payload for byte in (0x16, 0x1F, 0x16))
        for number in (old, int.from_bytes(gone[1:5], "little")):
            assert parse_err(client.execute(number)[-1].payload).code == 1243
        assert client.execute(int.from_bytes(new[1:5], "little"))[-2].payload == b"\0\0\x01a"


def test_ours_beside_another_statement_is_the_servers_to_judge_only_where_there_can_be_several(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, BASE, database) as client:
        for option in (0, 1):
            client.ask(bytes([Commands.COM_SET_OPTION]) + option.to_bytes(2, "little"))
            assert parse_err(client.query("STREAM * FROM m NOWAIT; SELECT 1")[-1].payload).code == 1064
            assert parse_err(client.query("SELECT 1; STREAM * FROM m NOWAIT")[-1].payload).code == 1064
        assert client.query("STREAM payload FROM m NOWAIT;")[-2].payload == b"\x01a"


@pytest.mark.parametrize("size", [PAYLOAD_MAX - 1, PAYLOAD_MAX, PAYLOAD_MAX + 1, 40 << 20])
def test_packets_of_sixteen_megabytes_and_more_go_both_ways(server, proxy, size: int) -> None:
    with connect(server) as root:
        run(root, f"SET GLOBAL max_allowed_packet = {64 << 20}")
    with RawClient(proxy, BASE) as client:
        head, tail = b"SELECT '", b"'"
        text = b"x" * (size - 1 - len(head) - len(tail))
        assert client.query(head + text + tail)[-2].payload == str_len(text)
        wanted = size - len(str_len(b"x" * size)) + 1
        row = client.query(f"SELECT REPEAT('y', {wanted})")[-2].payload
        assert row == str_len(b"y" * wanted)
        number = client.prepare("SELECT LENGTH(?)")
        value = bytes([STRING, 0]) + str_len(text)
        answer = client.ask(client.execution(number) + b"\0\x01" + value)
        assert int.from_bytes(answer[-2].payload[2:], "little") == len(text)
        assert client.query("SELECT 'in step'")[-2].payload == b"\x07in step"


def test_a_packet_beyond_what_the_server_allows_ends_as_on_a_direct_connection(private_server, private_proxy) -> None:
    with connect(private_server) as root:
        run(root, f"SET GLOBAL max_allowed_packet = {1 << 20}")
    for place in (private_server, private_proxy):
        # The server hangs up on unread data, which may overtake what it said.
        with RawClient(place, BASE) as client, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            assert parse_err(client.query(b"SELECT '" + b"x" * (2 << 20) + b"'")[-1].payload).code == 1153
        with RawClient(place, BASE) as client:
            assert client.query("SELECT 'alive'")[-2].payload == b"\x05alive"


def test_nothing_is_offered_that_the_proxy_cannot_follow_or_the_server_does_not_offer(server, proxy) -> None:
    with RawClient(server) as direct, RawClient(proxy) as relayed:
        offered = relayed.greeting.capabilities & ~SSL  # TLS is the proxy's own.
        assert offered & ~direct.greeting.capabilities == 0
        assert offered == direct.greeting.capabilities & PASSABLE & ~SSL
        masked = COMPRESS | ZSTD | OPTIONAL_METADATA | MARIADB_PROGRESS | MARIADB_COM_MULTI
        assert offered & masked == 0


def test_a_flag_that_was_not_offered_and_is_claimed_all_the_same_is_not_believed(proxy, database) -> None:
    with RawClient(proxy, BASE, database, claimed=OPTIONAL_METADATA | MARIADB_PROGRESS | COMPRESS) as client:
        assert client.query("SELECT 'plain'")[-2].payload == b"\x05plain"


def test_a_global_transaction_id_comes_with_what_is_committed(private_server, private_proxy, flavour) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
    tracked = {"mysql": "session_track_gtids = OWN_GTID", "mariadb": "session_track_system_variables = 'last_gtid'"}
    gtid = {"mysql": rb"[0-9a-f-]{36}:[0-9]+", "mariadb": rb"last_gtid.[0-9]+-[0-9]+-[0-9]+"}
    with RawClient(private_proxy, ALL, "shop") as client:
        client.query(f"SET {tracked[flavour]}")
        create_queue(private_proxy.connect(database="shop"), "m")
        for statement in ("INSERT INTO m (payload) VALUES ('a')", "ACK FROM m WHERE id = 1"):
            state = parse_ok(client.query(statement)[-1].payload).state
            assert re.search(gtid[flavour], state, re.DOTALL), state
        assert client.query("STREAM * FROM m NOWAIT")
