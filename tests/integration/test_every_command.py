"""Every command of the protocol, packet for packet as on a direct connection.

Each script is played twice, on the server and through the proxy, by clients of all kinds: with and without
CLIENT_DEPRECATE_EOF, and with everything that the proxy lets pass. What comes back must be the same, and the
connection must be in step afterwards.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

import pytest
from mysql_mimic.types import Capabilities, Commands, str_len

from engine.packets import PAYLOAD_MAX, frame
from proxy.wire.commands import COM_STMT_BULK_EXECUTE
from proxy.wire.framing import Packet
from proxy.wire.handshake import PASSABLE, SSL, ZSTD
from proxy.wire.packets import ServerError, parse_err, parse_ok
from tests.support.conversations import SCRIPTS, Script
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import ALL, BASE, DEPRECATE_EOF, NUMBER, SESSION_TRACK, STRING, RawClient, binary
from tests.support.servers import MARIADBS, connect

KINDS: Final = {"old": BASE, "no EOF": BASE | DEPRECATE_EOF, "tracking": BASE | SESSION_TRACK, "all": ALL}

COMPRESS = int(Capabilities.CLIENT_COMPRESS)
OPTIONAL_METADATA = int(Capabilities.CLIENT_OPTIONAL_RESULTSET_METADATA)
MARIADB_PROGRESS = 1 << 32
MARIADB_BITS = 38
"""How many flags the two servers know: MySQL's 32, and MariaDB's."""
ABORTED = "SHOW GLOBAL STATUS LIKE 'Aborted_connects'"
MARIADB_COM_MULTI = 1 << 33

STATEMENT_NUMBER = re.compile(rb"\([0-9]+\)")
"""In texts of errors. MariaDB counts the prepared statements of all connections."""

LAST_PREPARED = 0xFFFFFFFF


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


@pytest.mark.parametrize("server_name", ["mysql"], indirect=True, scope="session")
@pytest.mark.parametrize("size", [0, 3, 5_000, 3 << 20])
def test_query_attributes_reach_the_server_however_long_they_are(server, proxy, size: int) -> None:
    for place in (server, proxy):
        with RawClient(place, ALL) as client:
            attribute = b"\x01\x01\0\x01" + bytes([STRING, 0]) + str_len(b"trace") + str_len(b"x" * size)
            query = frame(b"\x03" + attribute + b"SELECT 'here'", 0)
            client.sock.sendall(query[:5_000])  # At first less than all that the attribute needs.
            client.sock.sendall(query[5_000:])
            assert client.answer(0x03)[-2].payload == b"\x04here"


@pytest.mark.parametrize("server_name", ["mysql"], indirect=True, scope="session")
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


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
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
    assert b"\x03100\x044950" in [packet.payload for packet in relayed]


BULK = (
    ("ACK FROM m WHERE id = ?", (NUMBER,), ((1,), (3,), (9,)), 2, "SELECT id FROM m WHERE time_acked IS NOT NULL"),
    (
        "NACK FROM m WHERE id = ? DELAY ?",
        (NUMBER, STRING),
        ((1, "3600.5"), (3, "7200"), (9, "1")),
        2,
        "SELECT id FROM m WHERE time_next > (UNIX_TIMESTAMP() + 3599) * 1000000000",
    ),
    (
        "EXTEND FROM m WHERE id = ? AND priority < ? BY ?",
        (NUMBER, NUMBER, NUMBER),
        ((1, 1, 3600), (2, 0, 3600), (3, 2, 7200)),
        2,
        "SELECT id FROM m WHERE time_next > (UNIX_TIMESTAMP() + 3599) * 1000000000",
    ),
)


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
@pytest.mark.parametrize(("text", "types", "rows_sent", "affected", "shown"), BULK, ids=["ACK", "NACK", "EXTEND"])
def test_messages_are_settled_in_bulk(proxy, database, text, types, rows_sent, affected, shown) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", "abc")
        assert len(rows(plain, "STREAM id FROM m NOWAIT")) == 3
        with RawClient(proxy, ALL, database) as client:
            number = client.prepare(text)
            head = b"".join(bytes([kind, 0]) for kind in types)
            for flags in (b"\x80\0", b"\0\0"):  # The types are not sent again.
                body = b"".join(b"\0" + binary(value) for row in rows_sent for value in row)
                answer = client.about(COM_STMT_BULK_EXECUTE, number, flags + (head if flags[0] else b"") + body)
                found = rows(plain, shown)
                assert found == [(1,), (3,)]
                if flags[0]:
                    assert parse_ok(answer[-1].payload).head.affected_rows == affected


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
def test_a_delay_that_is_none_refuses_all_rows_of_a_bulk_execution(proxy, database) -> None:
    with proxy.connect(database=database) as plain, RawClient(proxy, ALL, database) as client:
        create_queue(plain, "m")
        enqueue(plain, "m", "ab")
        number = client.prepare("NACK FROM m WHERE id = ? DELAY ?")
        body = b"".join(b"\0" + binary(1) + b"\0" + binary(delay) for delay in ("3600", "never"))
        answer = client.about(COM_STMT_BULK_EXECUTE, number, b"\x80\0" + bytes([NUMBER, 0, STRING, 0]) + body)
        assert parse_err(answer[-1].payload).code == 1210
        assert len(rows(plain, "STREAM id FROM m NOWAIT")) == 2


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
def test_a_prepared_stream_in_bulk_is_refused_as_any_select_is(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
    with RawClient(proxy, ALL, database) as client:
        stream, select = client.prepare("STREAM * FROM m LIMIT ? NOWAIT"), client.prepare("SELECT ?")
        body = b"\x80\0" + bytes([NUMBER, 0]) + b"\0" + (1).to_bytes(8, "little")
        refused = [client.about(COM_STMT_BULK_EXECUTE, number, body)[-1].payload for number in (stream, select)]
        assert refused[0] == refused[1]
        assert parse_err(refused[0]).code == 1295


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
@pytest.mark.parametrize("text", ["SELECT id, payload FROM m", "STREAM id, payload FROM m NOWAIT"])
def test_column_packets_that_the_client_knows_already_are_not_sent_again(proxy, database, text: str) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, ALL, database) as client:
        number = client.prepare(text)
        head, *rows, _end = client.execute(number)
        assert head.payload == b"\x02\x00"
        assert [row.payload for row in rows] == [b"\0\0" + (1).to_bytes(8, "little") + b"\x01a"]


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
def test_a_statement_is_found_by_the_number_that_means_the_last_one(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, ALL, database) as client:
        client.prepare("STREAM payload FROM m LIMIT ? NOWAIT")
        assert client.execute(LAST_PREPARED, 5)[-2].payload == b"\0\0\x01a"
        client.about(Commands.COM_STMT_CLOSE, LAST_PREPARED)
        assert parse_err(client.execute(LAST_PREPARED, 5)[-1].payload).code == 1243


def test_prepared_queue_statements_are_gone_after_a_reset_of_the_connection(proxy, database) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        enqueue(plain, "m", ["a"])
    with RawClient(proxy, BASE, database) as client:
        stream, ack = client.prepare("STREAM * FROM m NOWAIT"), client.prepare("ACK FROM m WHERE id = ?")
        client.ask(bytes([Commands.COM_RESET_CONNECTION]))
        for number, values in ((stream, ()), (ack, (1,))):
            assert parse_err(client.execute(number, *values)[-1].payload).code == 1243
        assert client.query("STREAM payload FROM m NOWAIT")[-2].payload == b"\x01a"


def test_a_queue_statement_prepared_behind_a_reset_under_way_is_tracked(proxy, database) -> None:
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


@pytest.mark.parametrize("command", [Commands.COM_STMT_CLOSE, Commands.COM_STMT_SEND_LONG_DATA])
def test_a_command_without_answer_that_is_cut_off_puts_nothing_out_of_step(proxy, command) -> None:
    """MySQL answers such a one with an error, which must not pass for the answer to what was sent behind it."""
    with RawClient(proxy, BASE) as client:
        client.sock.sendall(frame(bytes([command, 1]), 0) + frame(b"\x03SELECT 'not this'", 0))
        assert parse_err(client.packet().payload).code == 1835
        with pytest.raises(ConnectionResetError):
            client.packet()


def test_an_ack_beside_another_statement_is_refused_by_the_server_only_where_there_can_be_several(
    proxy, database
) -> None:
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


def test_a_flag_that_was_not_offered_and_is_claimed_all_the_same_is_refused_or_not_believed(proxy) -> None:
    with RawClient(proxy, BASE) as client:
        claimed = [1 << bit for bit in range(MARIADB_BITS) if not client.greeting.capabilities >> bit & 1]
    for flag in claimed:
        if flag in (COMPRESS, ZSTD):
            with pytest.raises(ServerError, match=r"compression.*MYSQLI_CLIENT_COMPRESS") as refused:
                RawClient(proxy, BASE, claimed=flag)
            assert refused.value.code == 1043
        else:
            with RawClient(proxy, BASE, claimed=flag) as client:
                assert client.query("SELECT 'plain'")[-2].payload == b"\x05plain"


def test_a_client_that_compresses_has_logged_in_when_it_is_refused(private_server, private_proxy) -> None:
    """Otherwise the server counts it as an error of the proxy's host, and blocks that after a hundred."""
    with connect(private_server) as root:
        before = rows(root, ABORTED)
        for _ in range(3):
            with pytest.raises(ServerError, match="compression"):
                RawClient(private_proxy, BASE, claimed=COMPRESS)
        assert rows(root, ABORTED) == before


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
