"""SHOW GROUPS: which message groups have messages, how many, and what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mysql.connector
import pymysql
import pytest
from pymysql.connections import Connection

from tests.support.queues import create_queue, rows, run, user
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

LIMITED = (
    "CREATE QUEUE m (tenant VARCHAR(20), region INT, body TEXT) GROUP_BY = (tenant, region), GROUP_LIMIT = 2, "
    "POLLER_INTERVAL = 3600"
)


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def insert(connection: Connection[Any], messages: int, **values: object) -> None:
    places = ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO m ({', '.join(values)}) VALUES ({places})", [tuple(values.values())] * messages
        )


def shown(connection: Connection[Any], rest: str = "") -> dict[str | None, dict[str, Any]]:
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"SHOW GROUPS FROM m {rest}")
        return {row["Group"]: row for row in cursor.fetchall()}


def counts(connection: Connection[Any], rest: str = "") -> dict[str | None, tuple[int, int, int]]:
    """Ready, scheduled and in flight by group."""
    found = shown(connection, rest).items()
    return {group: (row["Ready"], row["Scheduled"], row["In_flight"]) for group, row in found}


def refused(connection: Connection[Any], statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    return error.value.args[0], str(error.value.args[1])


def test_it_shows_each_group_with_its_messages_by_state(connection) -> None:
    run(connection, LIMITED)
    insert(connection, 5, tenant="a", region=1)
    insert(connection, 1, tenant="a", region=2, priority=3)
    insert(connection, 2, tenant="a", region=2, time_next=9 * 10**18)
    insert(connection, 1, tenant=None, region=None)
    insert(connection, 1, tenant="b", region=None)
    got = rows(connection, "STREAM id, tenant, region FROM m WHERE tenant = 'a' LIMIT 2 NOWAIT")
    assert {row[1:] for row in got} == {("a", 1)}
    assert counts(connection) == {None: (1, 0, 0), "a|1": (3, 0, 2), "a|2": (1, 2, 0), "b|NULL": (1, 0, 0)}
    found = shown(connection)
    assert [row["Waits_for"] for row in found.values()] == [None, "limit", None, None]
    assert all(row["Oldest_ready_s"] >= 0 for row in found.values())
    assert {row["Estimated"] for row in found.values()} == {""}


def test_acknowledged_messages_are_of_no_group(connection) -> None:
    run(connection, LIMITED)
    insert(connection, 2, tenant="a", region=1)
    run(connection, "ACK m WHERE id = 1")
    assert counts(connection) == {"a|1": (1, 0, 0)}
    run(connection, "ACK m WHERE id = 2")
    assert counts(connection) == {}


def test_like_and_limit_narrow_it_down(connection) -> None:
    run(connection, LIMITED)
    for number in range(30):
        insert(connection, 1, tenant=f"t{number:02}", region=7)
    assert list(counts(connection, "LIMIT 3")) == ["t00|7", "t01|7", "t02|7"]
    assert list(counts(connection, "LIKE 't_5|%'")) == ["t05|7", "t15|7", "t25|7"]
    assert list(counts(connection, "LIKE 't1%' LIMIT 2")) == ["t10|7", "t11|7"]
    assert counts(connection, "LIKE 'nobody'") == {}


def test_a_large_group_hides_nobody_and_is_estimated(connection) -> None:
    run(connection, "CREATE QUEUE m (tenant VARCHAR(20) CHARACTER SET latin1, body TEXT) GROUP_BY = (tenant)")
    insert(connection, 1_000, tenant="noisy")
    for _ in range(5):
        run(connection, "INSERT INTO m (tenant) SELECT tenant FROM m")
    for number in range(3):
        insert(connection, 1, tenant=f"quiet{number}")
    found = shown(connection)
    assert list(found) == ["noisy", "quiet0", "quiet1", "quiet2"]
    assert found["noisy"]["Ready"] > 5_000
    assert found["noisy"]["Estimated"] == "ready"
    assert [found[f"quiet{number}"]["Ready"] for number in range(3)] == [1, 1, 1]


def test_a_prepared_one_returns_the_same(connection, proxy, database) -> None:
    run(connection, LIMITED)
    insert(connection, 1, tenant="ä", region=1)
    with (
        mysql.connector.connect(host=proxy.host, port=proxy.port, user="root", database=database) as client,
        client.cursor(prepared=True) as cursor,
    ):
        cursor.execute("SHOW GROUPS FROM m LIKE 'ä%'")
        assert [tuple(row)[:2] for row in cursor.fetchall()] == [("ä|1", 1)]


def test_without_groups_or_their_index_the_error_contains_the_remedy(connection) -> None:
    create_queue(connection, "m", "tenant INT")
    assert "ALTER QUEUE" in refused(connection, "SHOW GROUPS FROM m")[1]
    run(connection, "DROP QUEUE m")
    create_queue(connection, "m", "tenant INT", group_by="tenant")
    assert "requires the index" in refused(connection, "SHOW GROUPS FROM m")[1]
    run(connection, "CREATE TABLE plain (id INT PRIMARY KEY)")
    assert "plain" in refused(connection, "SHOW GROUPS FROM plain")[1]
    assert refused(connection, "SHOW GROUPS FROM nothing")[0] == 1146
    assert refused(connection, "SHOW GROUPS")[0] == 1064


def test_a_client_sees_the_groups_of_tables_that_it_may_read(connection, proxy, database, server) -> None:
    run(connection, LIMITED)
    insert(connection, 1, tenant="a", region=1)
    with connect(server) as root:
        with user(root, database, "INSERT") as name, proxy.connect(user=name, database=database) as client:
            assert refused(client, "SHOW GROUPS FROM m")[0] in {1142, 1143}
        with user(root, database, "SELECT") as name, proxy.connect(user=name, database=database) as client:
            assert counts(client) == {"a|1": (1, 0, 0)}
