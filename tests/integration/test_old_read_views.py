"""Transactions that began to read before a message was delivered, or extended: they settle it all the same.

By default MariaDB refuses since 11.6.2 that a transaction under REPEATABLE READ changes or locks a row that has
changed since it began to read (1020, innodb_snapshot_isolation), and rolls it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mysql.connector
import pymysql
import pytest

from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.waiting import eventually

WITH_EACH_DEFAULT = pytest.mark.parametrize("server_name", ["mysql", "mariadb-11"], indirect=True, scope="session")
RECORD_CHANGED = 1020

SETTLED = {
    "ACK m WHERE id = 1 AND epoch = 1": "time_acked IS NOT NULL",
    "ACK FROM m WHERE payload = 'a'": "time_acked IS NOT NULL",
    "NACK m WHERE id = 1 AND epoch = 1 DELAY 100": "time_acked IS NULL",
    "EXTEND m WHERE id = 1 AND epoch = 1 BY 100": "time_acked IS NULL",
}


@pytest.fixture
def other(proxy, database) -> Iterator[Any]:
    """Another session, which has made a queue with a message, and a table."""
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", ["a"])
        run(connection, "CREATE TABLE effects (n INT PRIMARY KEY)")
        run(connection, "INSERT INTO effects VALUES (1)")
        yield connection


@pytest.fixture
def client(other, proxy, database) -> Iterator[Any]:
    """A session in a transaction that has begun to read."""
    with proxy.connect(database=database, autocommit=False) as connection:
        assert rows(connection, "SELECT n FROM effects") == [(1,)]
        yield connection


@WITH_EACH_DEFAULT
@pytest.mark.parametrize("statement", SETTLED)
def test_what_was_received_within_the_transaction_is_settled_in_it(client, other, statement: str) -> None:
    assert rows(client, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 1)]
    run(client, "INSERT INTO effects VALUES (2)")
    assert run(client, statement) == 1
    client.commit()
    assert rows(other, f"SELECT id FROM m WHERE {SETTLED[statement]} AND epoch = 1") == [(1,)]
    assert rows(other, "SELECT n FROM effects") == [(1,), (2,)]


@WITH_EACH_DEFAULT
def test_a_worker_acknowledges_what_another_connection_has_extended_meanwhile(client, other, proxy, database) -> None:
    client.rollback()
    assert rows(client, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 1)]
    assert rows(client, "SELECT n FROM effects") == [(1,)]
    assert run(other, "EXTEND m WHERE id = 1 AND epoch = 1 BY 100") == 1
    assert run(client, "ACK m WHERE id = 1 AND epoch = 1") == 1
    client.commit()
    assert rows(other, "SELECT id FROM m WHERE time_acked IS NULL") == []


@WITH_EACH_DEFAULT
def test_a_prepared_statement_settles_as_well(other, proxy, database) -> None:
    login = {"host": proxy.host, "port": proxy.port, "user": "root", "database": database}
    client = mysql.connector.connect(**login, autocommit=False, use_pure=True)
    cursor = client.cursor(prepared=True)
    cursor.execute("SELECT n FROM effects WHERE n = %s", (1,))
    assert cursor.fetchall() == [(1,)]
    cursor.execute("STREAM id, epoch FROM m LIMIT %s WAIT 10", (1,))
    assert cursor.fetchall() == [(1, 1)]
    cursor.execute("NACK m WHERE id = %s AND epoch = %s DELAY %s", (1, 1, 0))
    assert cursor.rowcount == 1
    client.commit()
    cursor.execute("SELECT n FROM effects WHERE n = %s", (1,))
    cursor.fetchall()
    cursor.execute("STREAM id, epoch FROM m LIMIT %s WAIT 10", (1,))
    assert cursor.fetchall() == [(1, 2)]
    cursor.execute("ACK m WHERE id = %s AND epoch = %s", (1, 2))
    assert cursor.rowcount == 1
    client.commit()
    client.close()
    assert rows(other, "SELECT id FROM m WHERE time_acked IS NULL") == []


@WITH_EACH_DEFAULT
def test_for_update_locks_a_message_that_has_changed_since(client, other) -> None:
    assert rows(other, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    assert run(other, "NACK m WHERE id = 1") == 1
    run(client, "INSERT INTO effects VALUES (2)")
    assert rows(client, "STREAM id, epoch FROM m LIMIT 1 WAIT 10 FOR UPDATE") == [(1, 1)]
    assert run(client, "ACK m WHERE id = 1") == 1
    client.commit()
    assert rows(other, "SELECT id FROM m WHERE time_acked IS NULL") == []
    assert rows(other, "SELECT n FROM effects") == [(1,), (2,)]


@pytest.mark.parametrize("server_name", ["mariadb-11"], indirect=True, scope="session")
def test_the_clients_own_statements_are_as_isolated_as_before(client, other) -> None:
    assert rows(client, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    run(other, "UPDATE effects SET n = 5")
    assert run(client, "ACK m WHERE id = 1") == 1
    with pytest.raises(pymysql.err.MySQLError) as error:
        run(client, "UPDATE effects SET n = n + 1")
    assert error.value.args[0] == RECORD_CHANGED
    assert error.value.args[1].startswith("Record has changed since last read")  # As docs/troubleshooting.md quotes it.
    assert rows(other, "SELECT id FROM m WHERE time_acked IS NULL") == [(1,)]


@pytest.mark.parametrize("server_name", ["mariadb-11"], indirect=True, scope="session")
def test_a_transaction_that_the_server_has_rolled_back_keeps_no_message(client, other) -> None:
    assert rows(client, "STREAM id FROM m LIMIT 1 WAIT 10 FOR UPDATE") == [(1,)]
    run(other, "UPDATE effects SET n = 5")
    with pytest.raises(pymysql.err.MySQLError) as error:
        run(client, "UPDATE effects SET n = n + 1")
    assert error.value.args[0] == RECORD_CHANGED
    eventually(lambda: rows(other, "SELECT epoch FROM m") == [(1,)], what="the failure counted, as after a ROLLBACK")


@pytest.mark.parametrize("server_name", ["mariadb"], indirect=True, scope="session")
def test_where_an_older_server_was_told_to_refuse_it_the_error_says_what_to_do(client, other) -> None:
    client.rollback()
    run(client, "SET SESSION innodb_snapshot_isolation = ON")
    assert rows(client, "SELECT n FROM effects") == [(1,)]
    assert rows(client, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 1)]
    with pytest.raises(pymysql.err.MySQLError, match="READ COMMITTED") as error:
        run(client, "ACK m WHERE id = 1 AND epoch = 1")
    assert error.value.args[0] == RECORD_CHANGED
    run(client, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    assert rows(client, "SELECT n FROM effects") == [(1,)]
    assert run(client, "ACK m WHERE id = 1 AND epoch = 1") == 1
