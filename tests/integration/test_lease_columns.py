"""The lease column of a queue: how a queue gets one, and what writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mysql.connector
import pymysql
import pytest
from pymysql.connections import Connection

from tests.support.queues import create_queue, enqueue, rows, run

pytestmark = pytest.mark.either_server

NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
IN_FLIGHT = "SELECT id FROM m WHERE time_acked IS NULL AND lease = time_next"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def comment(connection: Connection[Any]) -> str:
    found = rows(
        connection,
        "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'm'",
    )
    return str(found[0][0])


def test_create_queue_adds_it_and_neither_select_nor_stream_shows_it(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT)")
    run(connection, "INSERT INTO m (body) VALUES (5)")
    assert rows(connection, "STREAM * FROM m LIMIT 1 WAIT 10") == [(1, 5)]
    assert len(rows(connection, "SELECT * FROM m")[0]) == 6
    assert rows(connection, IN_FLIGHT) == [(1,)]


def test_a_message_is_in_flight_until_it_is_acknowledged_given_back_or_scheduled(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT)")
    run(connection, "INSERT INTO m (body) VALUES (1), (2), (3), (4)")
    assert len(rows(connection, "STREAM id FROM m LIMIT 4 WAIT 10")) == 4
    run(connection, "ACK m WHERE id = 1")
    run(connection, "NACK m WHERE id = 2 DELAY 600")
    run(connection, "UPDATE m SET time_next = time_next + 60000000000 WHERE id = 3")
    assert rows(connection, IN_FLIGHT) == [(4,)]


@pytest.fixture(params=["text", "prepared"])
def extend(request, proxy, database) -> Iterator[Callable[[], None]]:
    """Extends the wait of message 1 by ten minutes."""
    with mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", use_pure=True, ssl_disabled=True, database=database
    ) as client:
        cursor = client.cursor(prepared=request.param == "prepared")

        def run_it() -> None:
            place = "?" if request.param == "prepared" else "%s"
            cursor.execute(f"EXTEND m WHERE id = {place} BY {place}", (1, 600))
            client.commit()

        yield run_it


def test_extend_prolongs_the_lease_and_keeps_the_digits_of_its_claim_and_its_proxy(connection, extend) -> None:
    run(connection, "CREATE QUEUE m (body INT)")
    run(connection, "INSERT INTO m (body) VALUES (1)")
    rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")
    run(connection, "UPDATE m SET lease = lease DIV 1000 * 1000 + 77, time_next = lease")
    ((before,),) = rows(connection, "SELECT lease FROM m")
    ((now,),) = rows(connection, f"SELECT {NOW}")
    extend()
    ((lease, time_next),) = rows(connection, "SELECT lease, time_next FROM m")
    assert lease == time_next
    assert lease - now >= 600 * 10**9
    assert lease % 10**9 == before % 10**9


def test_alter_queue_gives_it_to_a_queue_in_use(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a", "b"])
    assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
    run(connection, "ALTER QUEUE m LEASE = lease")
    assert "lease=lease" in comment(connection)
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(2,)]
    assert rows(connection, IN_FLIGHT) == [(2,)]
    assert run(connection, "ACK m WHERE id IN (1, 2)") == 2


def test_alter_queue_stops_its_use_and_keeps_the_column(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT)")
    run(connection, "ALTER QUEUE m LEASE = NONE")
    run(connection, "INSERT INTO m (body) VALUES (1)")
    assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")) == 1
    assert rows(connection, "SELECT lease FROM m") == [(None,)]
    run(connection, "ALTER QUEUE m LEASE = DEFAULT")
    assert "lease=lease" in comment(connection)


def test_it_may_have_another_name(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) LEASE = held_until")
    run(connection, "INSERT INTO m (body) VALUES (1)")
    rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")
    assert rows(connection, "SELECT held_until = time_next FROM m") == [(1,)]


def test_a_column_of_the_application_with_that_name_is_left_alone(connection) -> None:
    run(connection, "CREATE QUEUE m (lease VARCHAR(20), body INT)")
    assert "lease=" not in comment(connection)
    run(connection, "INSERT INTO m (lease, body) VALUES ('flat 3', 1)")
    assert rows(connection, "STREAM lease FROM m LIMIT 1 WAIT 10") == [("flat 3",)]


def test_a_column_of_another_type_is_refused(connection) -> None:
    with pytest.raises(pymysql.MySQLError, match="lease=flat names a column of another type"):
        run(connection, "CREATE QUEUE m (flat VARCHAR(20)) LEASE = flat")
