"""Everything that is not ours: as on a direct connection."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT
from pymysql.cursors import SSCursor

from tests.support import insides
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually


def test_a_refused_client_that_goes_on_is_not_served(proxy, server) -> None:
    connection: Any = pymysql.connect(host=proxy.host, port=proxy.port, user="nobody", password="x", defer_connect=True)
    with pytest.raises(pymysql.err.OperationalError):
        connection.connect()
    assert not insides.is_open(connection)


def test_an_unknown_database_is_the_servers_own_error(proxy) -> None:
    with pytest.raises(pymysql.err.OperationalError) as error:
        proxy.connect(database="no_such_database")
    assert error.value.args[0] == 1049


def test_several_statements_give_several_results(proxy) -> None:
    with proxy.connect(client_flag=CLIENT.MULTI_STATEMENTS) as client, client.cursor() as cursor:
        cursor.execute("SELECT 1; SELECT 2, 3; DO 0")
        results = [list(cursor.fetchall())]
        while cursor.nextset():
            results.append(list(cursor.fetchall()))
        assert results == [[(1,)], [(2, 3)], []]


def test_a_statement_of_more_than_sixteen_megabytes_goes_through_both_ways(proxy, server) -> None:
    with connect(server) as root:
        ((allowed,),) = rows(root, "SELECT @@max_allowed_packet")
    size = 17 << 20
    if allowed < 40 << 20:
        with connect(server) as root:
            run(root, f"SET GLOBAL max_allowed_packet = {64 << 20}")
    with proxy.connect(max_allowed_packet=64 << 20) as client:
        text = "x" * size
        assert rows(client, "SELECT %s", [text]) == [(text,)]


def test_a_local_file_is_loaded_by_the_client(proxy, database, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"{i}\t\x03STREAM * FROM t\n" for i in range(200_000)))
    with proxy.connect(database=database, local_infile=True) as client:
        run(client, "CREATE TABLE t (a INT, b TEXT)")
        assert run(client, f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE t") == 200_000
        assert rows(client, "SELECT COUNT(DISTINCT b) FROM t") == [(1,)]


def test_an_unbuffered_result_can_be_read_slowly(proxy, database) -> None:
    with proxy.connect(database=database) as client, SSCursor(client) as cursor:
        cursor.execute(
            "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
            " SELECT i, REPEAT('x', 20000) FROM n"
        )
        assert sum(1 for _ in cursor) == 1000


def test_errors_in_the_middle_leave_the_connection_usable(proxy) -> None:
    with proxy.connect() as client:
        for statement in ("SELEC 1", "SELECT * FROM nowhere.nothing", "/*", "STREAMS"):
            with pytest.raises(pymysql.MySQLError):
                rows(client, statement)
        assert rows(client, "SELECT 1") == [(1,)]


def test_ping_init_db_reset_and_change_of_database_work(proxy, database) -> None:
    with proxy.connect() as client:
        client.ping()
        client.select_db(database)
        create_queue(client, "m")
        run(client, "INSERT INTO m (payload) VALUES ('here')")
        assert rows(client, "STREAM payload FROM m NOWAIT") == [("here",)]
        run(client, "USE mysql")
        with pytest.raises(pymysql.MySQLError):
            run(client, "ACK FROM m WHERE id = 1")
        client.select_db(database)
        assert run(client, "ACK FROM m WHERE id = 1") == 1


def test_a_client_that_vanishes_frees_its_backing_connection(proxy, server) -> None:
    client = proxy.connect()
    thread = client.thread_id()
    insides.vanish(client)
    with connect(server) as root:
        listed = f"SELECT id FROM information_schema.processlist WHERE id = {thread}"
        eventually(lambda: not rows(root, listed))


def test_clients_that_leave_before_they_are_greeted_are_no_error(proxy, server) -> None:
    for _ in range(100):
        socket.create_connection((proxy.host, proxy.port)).close()
    with proxy.connect() as client:  # Taken in after all of them.
        assert rows(client, "SELECT 1") == [(1,)]
    assert "Traceback" not in proxy.output


def test_a_killed_connection_ends_at_the_client_too(proxy, server) -> None:
    with proxy.connect() as client, connect(server) as root:
        run(root, f"KILL {client.thread_id()}")
        with pytest.raises(pymysql.err.OperationalError):
            eventually(lambda: rows(client, "SELECT 1") and None)


def test_a_big_insert_is_enqueued_all_or_nothing(proxy, database) -> None:
    with proxy.connect(database=database) as client, proxy.connect(database=database) as other:
        create_queue(client, "m")
        values = ", ".join(f"('message {i}')" for i in range(10_000))
        run(client, "BEGIN")
        assert run(client, f"INSERT INTO m (payload) VALUES {values}") == 10_000
        assert rows(other, "STREAM id FROM m NOWAIT") == []
        run(client, "ROLLBACK")
        assert rows(other, "STREAM id FROM m NOWAIT") == []
        run(client, "BEGIN")
        run(client, f"INSERT INTO m (payload) VALUES {values}")
        run(client, "COMMIT")
        assert len(rows(other, "STREAM id FROM m NOWAIT")) == 10_000


def test_no_server_behind_the_proxy_is_said_at_once_and_clearly(
    private_proxy: RunningProxy, private_server: Any
) -> None:
    private_server.kill()
    with pytest.raises(pymysql.err.OperationalError, match="cannot connect to the backing server"):
        private_proxy.connect()
