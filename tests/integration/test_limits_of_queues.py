"""MAX_IN_FLIGHT over all proxies: what CREATE QUEUE and ALTER QUEUE make for it, and what users see of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from tests.support import insides
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

LEASE_KEY = "SELECT index_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'm'"
IN_FLIGHT = "SELECT id FROM m WHERE time_acked IS NULL AND lease = time_next AND lease > {now} ORDER BY id"
NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def keys(connection: Connection[Any]) -> list[str]:
    """The columns of each key of the table."""
    found = rows(
        connection,
        "SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics"
        " WHERE table_schema = DATABASE() AND table_name = 'm' GROUP BY index_name",
    )
    return [str(row[0]) for row in found]


def problem(connection: Connection[Any], name: str = "m") -> str | None:
    (row,) = rows(connection, f"SHOW FULL QUEUES LIKE '{name}'")
    return None if row[-1] is None else str(row[-1])


def in_flight(connection: Connection[Any]) -> list[int]:
    return [row[0] for row in rows(connection, IN_FLIGHT.format(now=NOW))]


def test_create_queue_makes_the_index_that_the_limit_requires(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) MAX_IN_FLIGHT = 2")
    assert "time_acked,lease,time_next" in keys(connection)
    assert problem(connection) is None


def test_create_queue_without_a_limit_makes_no_further_index(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT)")
    assert sorted(keys(connection)) == ["id", "time_acked,priority,time_next,id"]


def test_show_create_queue_makes_the_same_queue_again(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) MAX_IN_FLIGHT = 2")
    ((_, text),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "KEY" not in text
    before = keys(connection)
    run(connection, "DROP QUEUE m")
    run(connection, text)
    assert keys(connection) == before


def test_alter_queue_makes_column_and_index_on_a_queue_in_use(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a", "b", "c"])
    run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = 2")
    assert "time_acked,lease,time_next" in keys(connection)
    assert problem(connection) is None
    assert len(rows(connection, "STREAM id FROM m LIMIT 3 NOWAIT")) == 2
    assert in_flight(connection) == [1, 2]


def test_alter_queue_twice_makes_them_once(connection) -> None:
    create_queue(connection, "m")
    run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = 2")
    before = keys(connection)
    run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = 3")
    run(connection, "ALTER QUEUE m LEASE = lease")
    assert keys(connection) == before


def test_a_queue_without_them_shows_what_to_do(connection) -> None:
    create_queue(connection, "m", max_in_flight="2")
    found = problem(connection)
    assert found is not None
    assert found.startswith("nothing is delivered: ")
    assert rows(connection, "STREAM id FROM m NOWAIT") == []
    run(connection, found[found.index("ALTER QUEUE") : found.index(" adds what")])
    assert problem(connection) is None


def test_a_column_of_the_application_with_the_name_of_the_lease_column_is_left_alone(connection) -> None:
    with pytest.raises(pymysql.MySQLError, match="MAX_IN_FLIGHT needs a lease column"):
        run(connection, "CREATE QUEUE m (lease VARCHAR(20), body INT) MAX_IN_FLIGHT = 2")
    run(connection, "CREATE QUEUE m (lease VARCHAR(20), body INT)")
    with pytest.raises(pymysql.MySQLError, match="MAX_IN_FLIGHT needs a lease column"):
        run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = 2")
    assert problem(connection) is None
    run(connection, "ALTER QUEUE m LEASE = held_until, MAX_IN_FLIGHT = 2")
    assert problem(connection) is None
    assert "time_acked,held_until,time_next" in keys(connection)


def test_an_acknowledgement_a_nack_and_a_plain_update_free_places(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) MAX_IN_FLIGHT = 2")
    run(connection, "INSERT INTO m (body) VALUES (1), (2), (3), (4), (5), (6)")
    assert rows(connection, "STREAM id FROM m LIMIT 9 NOWAIT") == [(1,), (2,)]
    assert rows(connection, "STREAM id FROM m LIMIT 9 NOWAIT") == []
    run(connection, "ACK m WHERE id = 1")
    assert rows(connection, "STREAM id FROM m LIMIT 9 WAIT 10") == [(3,)]
    run(connection, "NACK m WHERE id = 2 DELAY 600")
    assert rows(connection, "STREAM id FROM m LIMIT 9 WAIT 10") == [(4,)]
    run(connection, "UPDATE m SET time_next = time_next + 600000000000 WHERE id = 3")
    assert rows(connection, "STREAM id FROM m LIMIT 9 WAIT 10") == [(5,)]
    run(connection, "DELETE FROM m WHERE id = 4")
    assert rows(connection, "STREAM id FROM m LIMIT 9 WAIT 10") == [(6,)]


def test_extend_keeps_the_place_of_a_message_in_flight(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) MAX_IN_FLIGHT = 1")
    run(connection, "INSERT INTO m (body) VALUES (1)")
    rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10")
    run(connection, "UPDATE m SET lease = lease DIV 1000 * 1000 + 77, time_next = lease")
    ((before,),) = rows(connection, "SELECT lease FROM m")
    assert run(connection, "EXTEND m WHERE id = 1 BY 600") == 1
    ((lease, time_next),) = rows(connection, "SELECT lease, time_next FROM m")
    assert lease == time_next
    assert lease > before
    assert lease % 10**9 == before % 10**9
    assert in_flight(connection) == [1]


def test_extend_gives_no_place_to_a_message_whose_place_was_given_on(connection) -> None:
    """It was given back, and another message may have the place now."""
    run(connection, "CREATE QUEUE m (body INT) MAX_IN_FLIGHT = 1")
    run(connection, "INSERT INTO m (body) VALUES (1), (2)")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    run(connection, "NACK m WHERE id = 1 DELAY 600")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(2,)]
    assert run(connection, "EXTEND m WHERE id = 1 BY 700") == 0
    assert in_flight(connection) == [2]
    ((due_s,),) = rows(connection, f"SELECT (time_next - {NOW}) / 1000000000 FROM m WHERE id = 1")
    assert due_s <= 600


def test_for_update_is_refused_with_the_reason(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) MAX_IN_FLIGHT = 1")
    connection.begin()
    with pytest.raises(pymysql.MySQLError, match="not possible on a queue with MAX_IN_FLIGHT"):
        rows(connection, "STREAM id FROM m LIMIT 1 NOWAIT FOR UPDATE")
    assert rows(connection, "SELECT 1") == [(1,)]


def test_max_rate_holds_over_all_proxies_by_a_table_that_create_queue_makes(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) MAX_RATE = 100")
    assert problem(connection) is None
    run(connection, "INSERT INTO m (body) VALUES (1), (2), (3)")
    assert len(rows(connection, "STREAM id FROM m LIMIT 3 WAIT 10")) == 3
    ((name, is_near),) = rows(connection, f"SELECT queue, ABS(full_ns - {NOW}) < 60000000000 FROM ackstream_limits")
    assert (name, is_near) == ("m", 1)


def test_alter_queue_makes_the_table_of_limits(connection) -> None:
    create_queue(connection, "m")
    run(connection, "ALTER QUEUE m MAX_RATE = 100")
    assert problem(connection) is None
    assert rows(connection, "SELECT COUNT(*) FROM ackstream_limits") == [(0,)]


def test_a_queue_without_the_table_of_limits_delivers_nothing_and_shows_what_to_do(connection) -> None:
    create_queue(connection, "m", max_rate="50")
    found = problem(connection)
    assert found is not None
    assert found.startswith("nothing is delivered: ")
    run(connection, found[found.index("ALTER QUEUE") : found.index(" makes the table")])
    run(connection, "ALTER QUEUE m MAX_RATE = 60")
    assert problem(connection) is None


def test_a_table_of_limits_that_is_dropped_is_a_problem_until_it_is_made_again(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT) MAX_RATE = 100")
    run(connection, "DROP TABLE ackstream_limits")
    eventually(lambda: problem(connection) is not None, timeout_s=30)
    run(connection, "INSERT INTO m (body) VALUES (1)")
    run(connection, "ALTER QUEUE m MAX_RATE = 100")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 20") == [(1,)]


@pytest.mark.parametrize("limit", ["MAX_IN_FLIGHT = 2", "MAX_RATE = 5"])
def test_without_its_lease_column_a_limit_is_refused_only_if_it_counts_what_is_in_flight(connection, limit) -> None:
    run(connection, f"CREATE QUEUE m (body INT) {limit}")
    if limit.startswith("MAX_RATE"):
        run(connection, "ALTER QUEUE m LEASE = NONE")
    else:
        with pytest.raises(pymysql.MySQLError, match="MAX_IN_FLIGHT needs a lease column"):
            run(connection, "ALTER QUEUE m LEASE = NONE")
    assert problem(connection) is None


def test_a_queue_without_a_limit_makes_no_table(connection) -> None:
    run(connection, "CREATE QUEUE m (body INT)")
    assert rows(connection, "SHOW TABLES LIKE 'ackstream%'") == []


@pytest.mark.parametrize("limit", ["MAX_RATE = 50", "MAX_IN_FLIGHT = 3"])
def test_a_poll_gets_its_part_beside_a_consumer_that_takes_each_message_as_soon_as_it_may(
    connection, proxy, database, limit
) -> None:
    run(connection, f"CREATE QUEUE m (payload TEXT) {limit}")
    enqueue(connection, "m", map(str, range(2_000)))
    ended = threading.Event()

    def work() -> None:
        reading = proxy.connect(database=database)
        cursor = SSCursor(reading)
        cursor.execute("STREAM id FROM m")
        with proxy.connect(database=database) as acknowledging:
            while not ended.is_set() and (row := cursor.fetchone()):
                run(acknowledging, f"ACK FROM m WHERE id = {row[0]}")
        insides.forget_result(reading)
        insides.vanish(reading)

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        try:
            eventually(lambda: rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked > 0")[0][0] > 2)
            with proxy.connect(database=database, read_timeout=20) as polling:
                for _ in range(3):
                    got = rows(polling, "STREAM id FROM m LIMIT 2 WAIT 20")
                    assert got
                    run(polling, f"ACK FROM m WHERE id IN ({', '.join(str(number) for (number,) in got)})")
        finally:
            ended.set()
        worker.result(10)
