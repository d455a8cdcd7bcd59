"""SHOW DELIVERIES and SHOW PROXIES: who holds which message, through which proxy, and who may see it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mysql.connector
import pymysql
import pytest

from proxy import __version__
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.servers import ServerName, connect, running_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


@pytest.fixture
def other(server: EmbeddedServer, tmp_path: Path) -> Iterator[RunningProxy]:
    with running_proxy(server, tmp_path / "other.log") as proxy:
        yield proxy


def shown(connection: Any, statement: str = "SHOW DELIVERIES FROM m") -> list[dict[str, Any]]:
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def ids(connection: Any, statement: str = "SHOW DELIVERIES FROM m") -> list[str]:
    return [row["Id"] for row in shown(connection, statement)]


def test_a_message_in_flight_is_shown_with_its_client(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) ACK_WAIT = 60")
    enqueue(connection, "m", "ab")
    with proxy.connect(database=database, program_name="worker 7") as worker:
        assert len(rows(worker, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
        (row,) = shown(connection)
        since, until = row.pop("Since"), row.pop("Until")
        assert row.pop("Host").startswith("127.0.0.1:")
        (own,) = [found for found in shown(connection, "SHOW PROXIES") if found["Streams"] is not None]
        assert row == {
            "Id": "1", "Epoch": 1, "Queue": f"{database}.m", "Proxy": own["Slot"],
            "Connection": worker.thread_id(), "User": "root", "Program": "worker 7",
        }  # fmt: skip
        assert rows(
            connection,
            "SELECT %s BETWEEN NOW() - INTERVAL 50 SECOND AND NOW(), %s BETWEEN NOW() AND NOW() + INTERVAL 61 SECOND",
            [since, until],
        ) == [(1, 1)]
        run(worker, "ACK m WHERE id = 1")
    assert shown(connection) == []


def test_what_is_not_in_flight_any_more_is_not_shown(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "abcdef")
    assert len(rows(connection, "STREAM id FROM m LIMIT 5 WAIT 10")) == 5
    run(connection, "ACK m WHERE id = 1")
    run(connection, "NACK m WHERE id = 2 DELAY 600")
    run(connection, "UPDATE m SET time_next = time_next + 1000000 WHERE id = 3")
    assert ids(connection) == ["4", "5"]
    run(connection, "EXTEND m WHERE id = 4 BY 3600")
    assert ids(connection) == ["5", "4"]
    assert ids(connection, "SHOW DELIVERIES FROM m LIMIT 1") == ["5"]


@pytest.mark.parametrize("options", ["", "MAX_IN_FLIGHT = 100"])
def test_what_another_proxy_holds_is_shown_without_its_client(other, proxy, connection, database, options) -> None:
    """With an index on the lease column, and without."""
    run(connection, f"CREATE QUEUE m (payload TEXT) {options}")
    enqueue(connection, "m", "abc")
    eventually(lambda: len(shown(connection, "SHOW PROXIES")) >= 2)
    with other.connect(database=database) as elsewhere:
        assert len(rows(elsewhere, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
        (there,) = shown(elsewhere)
        (here,) = shown(connection)
        assert (there["Connection"], here["Connection"]) == (elsewhere.thread_id(), None)
        assert (here["Id"], here["Epoch"], here["Since"]) == (there["Id"], 1, None)
        assert (here["User"], here["Host"], here["Program"]) == (None, None, None)
        assert here["Proxy"] in {there["Proxy"], None}  # A proxy claims without its slot until it may use it.
        assert rows(connection, "SELECT ABS(TIMESTAMPDIFF(SECOND, %s, %s)) <= 1", [here["Until"], there["Until"]]) == [
            (1,)
        ]


def test_a_message_that_a_transaction_has_locked_has_no_end(connection, proxy, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "ab")
    with proxy.connect(database=database) as worker:
        run(worker, "BEGIN")
        assert len(rows(worker, "STREAM id FROM m LIMIT 1 WAIT 10 FOR UPDATE")) == 1
        (row,) = shown(connection)
        assert (row["Id"], row["Epoch"], row["Until"], row["Connection"]) == ("1", 0, None, worker.thread_id())
        run(worker, "ROLLBACK")
    eventually(lambda: shown(connection) == [])


def test_a_queue_without_a_lease_column_shows_what_this_proxy_holds(other, connection, database) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "ab")
    assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
    (row,) = shown(connection)
    assert (row["Id"], row["Connection"]) == ("1", connection.thread_id())
    with other.connect(database=database) as elsewhere:
        assert shown(elsewhere) == []


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("VARCHAR(20)", "'größe'", "größe"),
        ("VARBINARY(8)", "x'00ff'", "0x00ff"),
        ("DECIMAL(20,3)", "-7.5", "-7.500"),
        ("DATETIME", "'2024-02-03 04:05:06'", "2024-02-03 04:05:06"),
    ],
)
def test_an_id_of_any_type(connection, type_: str, value: str, text: str) -> None:
    run(connection, f"CREATE QUEUE m (id {type_} PRIMARY KEY, payload TEXT)")
    run(connection, f"INSERT INTO m (id) VALUES ({value})")
    assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
    (row,) = shown(connection)
    assert (row["Id"], row["Connection"]) == (text, connection.thread_id())


def test_scheduled_messages_do_not_hide_those_in_flight(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    later = "(UNIX_TIMESTAMP() + 86400) * 1000000000"
    run(connection, f"INSERT INTO m (time_next, priority) SELECT {later}, seq.n % 2 FROM (WITH RECURSIVE s AS"
        " (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s WHERE n < 900) SELECT n FROM s) AS seq")  # fmt: skip
    run(connection, "INSERT INTO m (id, priority) VALUES (5001, 0), (5002, 1)")
    assert len(rows(connection, "STREAM id FROM m LIMIT 2 WAIT 10")) == 2
    assert sorted(ids(connection)) == ["5001", "5002"]


def test_without_the_right_to_read_a_queue_its_deliveries_are_not_shown(server, proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "a")
    assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
    with connect(server) as root:
        with user(root, database, "INSERT") as name, proxy.connect(user=name, password="", database=database) as client:
            assert shown(client, "SHOW DELIVERIES") == []
            with pytest.raises(pymysql.MySQLError, match="SELECT command denied"):
                shown(client)
        with user(root, database, "SELECT") as name, proxy.connect(user=name, password="", database=database) as client:
            (row,) = shown(client, "SHOW DELIVERIES")
            assert (row["Id"], row["Connection"], row["User"], row["Host"]) == ("1", None, None, None)
            run(root, f"GRANT PROCESS ON *.* TO {name}@localhost")
            with proxy.connect(user=name, password="", database=database) as privileged:
                (row,) = shown(privileged)
                assert (row["Connection"], row["User"]) == (connection.thread_id(), "root")


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SHOW DELIVERIES FROM nothing", 1146),
        ("SHOW DELIVERIES FROM plain", 1347),
        ("SHOW DELIVERIES LIMIT 0", 1064),
        ("SHOW DELIVERIES LIMIT 10001", 1064),
        ("SHOW PROXIES LIKE 'a'", 1064),
    ],
)
def test_what_is_refused(connection, statement: str, code: int) -> None:
    run(connection, "CREATE TABLE plain (a INT)")
    with pytest.raises(pymysql.MySQLError) as raised:
        shown(connection, statement)
    assert raised.value.args[0] == code


def test_prepared(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "a")
    assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
    with (
        mysql.connector.connect(
            host=proxy.host, port=proxy.port, user="root", database=database, ssl_disabled=True, autocommit=True
        ) as client,
        client.cursor(prepared=True) as cursor,
    ):
        cursor.execute("SHOW DELIVERIES FROM m LIMIT 5")
        found: Any = cursor.fetchall()
        assert [row[:3] for row in found] == [("1", 1, f"{database}.m")]
        cursor.execute("SHOW PROXIES")
        found = cursor.fetchall()
        assert [row[2] for row in found if row[4] is not None] == [__version__]


def test_the_mysql_client_prints_it(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "a")
    assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
    command = [
        "mysql",
        "-h",
        proxy.host,
        "-P",
        str(proxy.port),
        "-u",
        "root",
        database,
        "-e",
        "SHOW DELIVERIES FROM m\\G",
    ]
    printed = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=True).stdout
    assert f"Queue: {database}.m" in printed
    assert "Id: 1\n" in printed


def test_proxies_are_shown_with_what_they_publish(other, connection, consume, proxy, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "abc")
    consume(proxy.connect(database=database), "STREAM * FROM m PREFETCH 2")
    eventually(lambda: [row["In_flight"] for row in shown(connection, "SHOW PROXIES") if row["Streams"] == 1] == [2])
    with other.connect() as elsewhere:
        eventually(lambda: any(row["Streams"] == 0 for row in shown(elsewhere, "SHOW PROXIES")))
        (there,) = [row for row in shown(elsewhere, "SHOW PROXIES") if row["Streams"] is not None]
    eventually(lambda: any(row["Slot"] == there["Slot"] for row in shown(connection, "SHOW PROXIES")))
    (here,) = [row for row in shown(connection, "SHOW PROXIES") if row["Slot"] == there["Slot"]]
    assert there["Version"] == __version__
    assert (there["Streams"], there["In_flight"]) == (0, 0)
    assert (here["Streams"], here["In_flight"], here["Connection"]) == (None, None, there["Connection"])
    assert rows(connection, "SELECT IS_USED_LOCK(%s)", [f"ackstream/{there['Slot']}"]) == [(there["Connection"],)]
    assert {row["Name"] for row in shown(connection, "SHOW PROXIES") if row["Streams"] is None} == {None}


def test_with_the_performance_schema_other_proxies_have_names(server_name: ServerName, tmp_path: Path) -> None:
    """The test servers run without it, MariaDB by default as well."""
    with (
        running_server(server_name, options=["--performance-schema=ON"]) as server,
        running_proxy(server, tmp_path / "a.log") as first,
        running_proxy(server, tmp_path / "b.log") as second,
        first.connect() as here,
        second.connect() as there,
    ):
        for connection in (here, there):
            eventually(lambda: len(shown(connection, "SHOW PROXIES")) == 2)  # noqa: B023
        since = "SELECT ABS(TIMESTAMPDIFF(SECOND, %s, %s)) < 60"
        for own, other in zip(shown(here, "SHOW PROXIES"), shown(there, "SHOW PROXIES"), strict=True):
            assert (own["Slot"], own["Name"], own["Version"]) == (other["Slot"], other["Name"], __version__)
            assert rows(here, since, [own["Since"], other["Since"]]) == [(1,)]
            assert sorted([own["Streams"] is None, other["Streams"] is None]) == [False, True]
