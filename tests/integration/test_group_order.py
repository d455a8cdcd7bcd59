"""GROUP_ORDER = STRICT: what CREATE QUEUE and ALTER QUEUE make for it, and the order of deliveries through proxies."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

STRICT = "CREATE QUEUE m (tenant VARCHAR(20), body TEXT) GROUP_BY = (tenant), GROUP_ORDER = STRICT"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def insert(connection: Connection[Any], *tenants: str) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO m (tenant, body) VALUES (%s, 'x')", [(tenant,) for tenant in tenants])


def keys(connection: Connection[Any]) -> list[str]:
    """The columns of each key of the table."""
    found = rows(
        connection,
        "SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics"
        " WHERE table_schema = DATABASE() AND table_name = 'm' GROUP BY index_name",
    )
    return sorted(str(row[0]) for row in found)


MADE = [
    "id",
    "time_acked,lease,time_next,tenant",
    "time_acked,priority,tenant,time_next,id",
    "time_acked,priority,time_next,id",
    "time_acked,tenant,id",
]


def refused(connection: Connection[Any], statement: str) -> str:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    return str(error.value.args[1])


def take(connection: Connection[Any], clause: str = "NOWAIT") -> list[int]:
    return [row[0] for row in rows(connection, f"STREAM id FROM m {clause}")]


def test_create_queue_makes_the_indexes_and_show_create_queue_the_same_queue_again(connection) -> None:
    run(connection, STRICT)
    assert keys(connection) == MADE
    ((_, text),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "GROUP_ORDER = 'STRICT'" in text
    assert "KEY" not in text
    run(connection, "DROP QUEUE m")
    run(connection, text)
    assert keys(connection) == MADE


def test_alter_queue_gives_a_queue_in_use_an_order_and_takes_it_back(connection) -> None:
    create_queue(connection, "m", "tenant VARCHAR(20), body TEXT")
    insert(connection, "a", "a", "a", "b")
    run(connection, "ALTER QUEUE m GROUP_BY = (tenant), GROUP_ORDER = STRICT")
    assert {MADE[1], MADE[2], MADE[4]} <= {*keys(connection)}
    assert take(connection) == [1, 4]
    run(connection, "ALTER QUEUE m GROUP_ORDER = NONE")
    assert sorted(take(connection)) == [2, 3]


def test_a_queue_without_the_indexes_delivers_nothing_and_shows_what_to_do(connection) -> None:
    create_queue(connection, "m", "tenant VARCHAR(20), body TEXT", group_by="tenant", group_order="strict")
    insert(connection, "a")
    assert take(connection) == []
    (shown,) = rows(connection, "SHOW FULL QUEUES LIKE 'm'")
    found = str(shown[-1])
    found = found[found.index("nothing is delivered") :]
    run(connection, found[found.index("ALTER QUEUE") : found.index(" adds what")])
    assert take(connection) == [1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("GROUP_ORDER = STRICT", "GROUP_ORDER needs GROUP_BY"),
        ("GROUP_BY = (tenant), GROUP_ORDER = LOOSE", "GROUP_ORDER = 'LOOSE' is not STRICT"),
    ],
)
def test_what_cannot_be_an_order_is_refused(connection, options: str, problem: str) -> None:
    assert problem in refused(connection, f"CREATE QUEUE m (tenant INT) {options}")


def test_one_message_of_a_group_at_a_time_whatever_becomes_of_it(connection) -> None:
    run(connection, STRICT)
    insert(connection, "a", "a", "a", "b")
    assert take(connection) == [1, 4]
    run(connection, "NACK m WHERE id = 1 DELAY 3600")
    assert take(connection) == []
    run(connection, "UPDATE m SET time_next = 0 WHERE id = 1")
    assert take(connection, "WAIT 20 LIMIT 1") == [1]
    run(connection, "ACK m WHERE id = 1")
    assert take(connection) == [2]
    run(connection, "DELETE FROM m WHERE id = 2")
    assert take(connection, "WAIT 20 LIMIT 1") == [3]  # As soon as the binary log reports the deletion.


def test_a_dead_message_frees_its_group(connection) -> None:
    run(connection, f"{STRICT}, MAX_ATTEMPTS = 1, DEAD_LETTER = graves")
    insert(connection, "a", "a")
    assert take(connection) == [1]
    run(connection, "NACK m WHERE id = 1")
    assert take(connection, "WAIT 20 LIMIT 1") == [2]
    assert rows(connection, "SELECT id FROM graves") == [(1,)]


RUNS = f"{STRICT}, GROUP_LIMIT = 3"


def test_a_group_limit_besides_makes_runs_of_so_many_messages(connection) -> None:
    run(connection, RUNS)
    insert(connection, "a", "a", "b", "a", "a", "a")
    assert take(connection) == [1, 2, 4, 3]
    run(connection, "ACK m WHERE id IN (1, 4)")
    assert take(connection) == []
    run(connection, "ACK m WHERE id = 2")
    assert take(connection, "LIMIT 2 WAIT 20") == [5, 6]
    ((_, text),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "GROUP_ORDER = 'STRICT'" in text
    assert "GROUP_LIMIT = 3" in text
    run(connection, "DROP QUEUE m")
    run(connection, text)
    assert keys(connection) == MADE


def test_alter_queue_changes_the_length_of_runs(connection) -> None:
    run(connection, STRICT)
    insert(connection, "a", "a", "a", "a", "a", "a")
    assert take(connection) == [1]
    run(connection, "ALTER QUEUE m GROUP_LIMIT = 2")
    assert take(connection) == []
    run(connection, "ACK m WHERE id = 1")
    assert take(connection, "LIMIT 2 WAIT 20") == [2, 3]
    run(connection, "ALTER QUEUE m GROUP_LIMIT = NONE")
    run(connection, "ACK m WHERE id IN (2, 3)")
    assert take(connection, "LIMIT 1 WAIT 20") == [4]
    assert take(connection) == []


def in_flight(connection: Connection[Any]) -> list[int]:
    return [row[0] for row in rows(connection, "SELECT id FROM m WHERE time_acked IS NULL AND lease = time_next")]


def test_a_message_that_is_given_back_takes_the_later_ones_of_its_run_along(connection) -> None:
    run(connection, f"{RUNS}, ACK_WAIT = 3600")
    insert(connection, *["a"] * 5)
    assert take(connection) == [1, 2, 3]
    run(connection, "NACK m WHERE id = 2 DELAY 3600")
    eventually(lambda: in_flight(connection) == [1])
    run(connection, "ACK m WHERE id = 1")
    assert take(connection) == []
    ((found, _, _, flying, _, waits, _),) = rows(connection, "SHOW GROUPS FROM m")
    assert (found, flying, waits) == ("a", 0, None)
    run(connection, "UPDATE m SET time_next = 0 WHERE id = 2")
    assert take(connection, "WAIT 20 LIMIT 3") == [2]  # It was delivered before, so it comes alone.
    run(connection, "ACK m WHERE id = 2")
    assert take(connection, "LIMIT 1 WAIT 20") == [3]
    run(connection, "ACK m WHERE id = 3")
    assert take(connection, "LIMIT 2 WAIT 20") == [4, 5]


def test_a_client_that_goes_gives_its_run_back(proxy, database, connection) -> None:
    run(connection, f"{RUNS}, ACK_WAIT = 3600")
    insert(connection, *["a"] * 5)
    with proxy.connect(database=database) as gone:
        assert take(gone) == [1, 2, 3]
        run(gone, "ACK m WHERE id = 1")
    eventually(lambda: in_flight(connection) == [])
    assert take(connection, "WAIT 20 LIMIT 3") == [2]


def test_a_run_is_of_one_stream(proxy, database, connection, consume) -> None:
    run(connection, RUNS)
    consumers = [consume(proxy.connect(database=database), "STREAM id, tenant FROM m") for _ in range(3)]
    values = ", ".join(f"('{tenant}', 'x')" for tenant in "abcdefghi" for _ in range(3))
    run(connection, f"INSERT INTO m (tenant, body) VALUES {values}")
    eventually(lambda: sum(len(consumer.received) for consumer in consumers) == 27)
    for tenant in "abcdefghi":
        found = [[number for number, of in consumer.received if of == tenant] for consumer in consumers]
        assert sorted(map(len, found)) == [0, 0, 3]
        assert all(numbers == sorted(numbers) for numbers in found)


@pytest.fixture
def two(server: EmbeddedServer, database: str, tmp_path: Path) -> Iterator[Sequence[RunningProxy]]:
    """Two proxies and the queue m, which is polled every hour."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(running_proxy(server, tmp_path / f"{number}.log")) for number in range(2)]
        with running[0].connect(database=database) as connection:
            run(connection, f"{STRICT}, ACK_WAIT = 3600, POLLER_INTERVAL = 3600")
        yield running


def test_the_next_message_goes_out_as_soon_as_the_one_before_is_acknowledged_elsewhere(two, database, consume) -> None:
    with two[0].connect(database=database) as one:
        insert(one, "a", "a", "a")
        assert take(one, "LIMIT 1 WAIT 20") == [1]
        consumer = consume(two[1].connect(database=database), "STREAM id FROM m")
        insert(one, "b")
        eventually(lambda: consumer.received == [(4,)])
        for number in (1, 2):
            run(one, f"ACK m WHERE id = {number}")
            eventually(lambda number=number: consumer.received[number:] == [(number + 1,)])  # type: ignore[misc]


@pytest.mark.parametrize("most", [1, 4])
def test_two_proxies_deliver_each_group_in_order(two, database, most: int) -> None:
    tenants, messages = ("a", "b", "c", "d", "e"), 25
    with two[0].connect(database=database) as connection:
        run(connection, f"ALTER QUEUE m GROUP_LIMIT = {most}")
        insert(connection, *[tenant for _ in range(messages) for tenant in tenants])
    done: list[tuple[int, str]] = []
    changing = threading.Lock()

    def work(proxy: RunningProxy) -> None:
        with proxy.connect(database=database) as connection:
            while len(done) < messages * len(tenants):
                for number, tenant in rows(connection, "STREAM id, tenant FROM m LIMIT 3 WAIT 1"):
                    with changing:
                        done.append((number, tenant))
                    run(connection, f"ACK m WHERE id = {number}")

    workers = [threading.Thread(target=work, args=[proxy], daemon=True) for proxy in two for _ in range(3)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(90)
    assert len(done) == messages * len(tenants)
    for tenant in tenants:
        numbers = [number for number, of_tenant in done if of_tenant == tenant]
        assert numbers == sorted(numbers)
