"""GROUP_LIMIT: what CREATE QUEUE and ALTER QUEUE make for it, and what it does through one proxy and through two."""

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
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

LIMITED = "CREATE QUEUE m (tenant VARCHAR(20), body TEXT) GROUP_BY = (tenant), GROUP_LIMIT = 2"
BY_GROUP = "time_acked,lease,time_next,tenant"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def insert(connection: Connection[Any], tenant: str | None, messages: int) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO m (tenant, body) VALUES (%s, 'x')", [(tenant,)] * messages)


def keys(connection: Connection[Any]) -> list[str]:
    """The columns of each key of the table."""
    found = rows(
        connection,
        "SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics"
        " WHERE table_schema = DATABASE() AND table_name = 'm' GROUP BY index_name",
    )
    return sorted(str(row[0]) for row in found)


def problem(connection: Connection[Any]) -> str | None:
    (row,) = rows(connection, "SHOW FULL QUEUES LIKE 'm'")
    return None if row[-1] is None else str(row[-1])


def refused(connection: Connection[Any], statement: str) -> str:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    return str(error.value.args[1])


def test_create_queue_makes_the_indexes_and_show_create_queue_the_same_queue_again(connection) -> None:
    run(connection, LIMITED)
    made = keys(connection)
    assert made == ["id", BY_GROUP, "time_acked,priority,tenant,time_next,id", "time_acked,priority,time_next,id"]
    assert problem(connection) is None
    ((_, text),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "GROUP_LIMIT = 2" in text
    assert "KEY" not in text
    run(connection, "DROP QUEUE m")
    run(connection, text)
    assert keys(connection) == made


def test_alter_queue_gives_a_queue_in_use_a_limit_and_takes_it_back(connection) -> None:
    create_queue(connection, "m", "tenant VARCHAR(20), body TEXT")
    insert(connection, "a", 5)
    run(connection, "ALTER QUEUE m GROUP_BY = (tenant), GROUP_LIMIT = 2")
    assert BY_GROUP in keys(connection)
    assert problem(connection) is None
    assert len(rows(connection, "STREAM id FROM m NOWAIT")) == 2
    before = keys(connection)
    run(connection, "ALTER QUEUE m GROUP_LIMIT = 3")
    assert keys(connection) == before
    assert len(rows(connection, "STREAM id FROM m NOWAIT")) == 1
    run(connection, "ALTER QUEUE m GROUP_LIMIT = NONE")
    assert len(rows(connection, "STREAM id FROM m NOWAIT")) == 2


def test_the_directive_alone_delivers_nothing_and_shows_what_to_do(connection) -> None:
    create_queue(connection, "m", "tenant VARCHAR(20), body TEXT", group_by="tenant", group_limit="1")
    insert(connection, "a", 3)
    assert rows(connection, "STREAM id FROM m NOWAIT") == []
    found = problem(connection)
    assert found is not None
    found = found[found.index("nothing is delivered") :]
    run(connection, found[found.index("ALTER QUEUE") : found.index(" adds what")])
    assert BY_GROUP in keys(connection)
    assert len(rows(connection, "STREAM id FROM m LIMIT 3 WAIT 10")) == 1


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE QUEUE m (tenant INT) GROUP_LIMIT = 2", "GROUP_LIMIT needs GROUP_BY"),
        ("CREATE QUEUE m (tenant INT) GROUP_BY = (tenant), GROUP_LIMIT = 0", "GROUP_LIMIT = '0' is not a whole number"),
    ],
)
def test_what_cannot_be_a_limit_is_refused(connection, statement: str, problem: str) -> None:
    assert problem in refused(connection, statement)


def test_groups_cannot_be_removed_from_a_queue_with_a_limit(connection) -> None:
    run(connection, LIMITED)
    assert "GROUP_LIMIT needs GROUP_BY" in refused(connection, "ALTER QUEUE m GROUP_BY = NONE")


def test_for_update_is_refused(connection) -> None:
    run(connection, LIMITED)
    run(connection, "BEGIN")
    assert "GROUP_LIMIT" in refused(connection, "STREAM id FROM m LIMIT 1 NOWAIT FOR UPDATE")


def test_a_full_group_hides_nobody_and_goes_on_with_each_ack(connection, proxy, database, consume) -> None:
    run(connection, LIMITED)
    insert(connection, "noisy", 3_000)
    insert(connection, "quiet", 1)
    insert(connection, None, 3)
    consumer = consume(proxy.connect(database=database), "STREAM id, tenant FROM m")
    eventually(lambda: len(consumer.received) >= 5)
    assert sorted(str(tenant) for _, tenant in consumer.received) == ["None", "None", "noisy", "noisy", "quiet"]
    insert(connection, "late", 1)
    eventually(lambda: len(consumer.received) == 6)
    (first,) = [number for number, tenant in consumer.received if tenant == "noisy"][:1]
    run(connection, f"ACK m WHERE id = {first}")
    eventually(lambda: [tenant for _, tenant in consumer.received[6:]] == ["noisy"])


@pytest.fixture
def two(server: EmbeddedServer, database: str, tmp_path: Path) -> Iterator[Sequence[RunningProxy]]:
    """Two proxies and the queue m, which is polled every hour."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(running_proxy(server, tmp_path / f"{number}.log")) for number in range(2)]
        with running[0].connect(database=database) as connection:
            run(connection, f"{LIMITED}, ACK_WAIT = 3600, POLLER_INTERVAL = 3600")
        yield running


def test_a_place_that_comes_free_through_another_proxy_is_used_at_once(two, database, consume) -> None:
    one = two[0].connect(database=database)
    with two[1].connect(database=database) as other:
        insert(one, "a", 4)
        held = rows(one, "STREAM id FROM m LIMIT 2 WAIT 20")
        consumer = consume(two[1].connect(database=database), "STREAM id FROM m")
        insert(other, "b", 1)
        eventually(lambda: len(consumer.received) == 1)
        run(one, f"ACK m WHERE id = {held[0][0]}")
        eventually(lambda: len(consumer.received) == 2)
        one.close()  # Its message is released.
        eventually(lambda: len(consumer.received) == 3)


def test_no_group_ever_has_more_in_flight_through_two_proxies(two, server, database) -> None:
    tenants, messages, over, most = ("a", "b", "c"), 60, threading.Event(), 0
    with two[0].connect(database=database) as connection:
        for tenant in tenants:
            insert(connection, tenant, messages)
    done: list[int] = []

    def work(proxy: RunningProxy) -> None:
        with proxy.connect(database=database) as connection:
            while len(done) < messages * len(tenants):
                got = rows(connection, "STREAM id FROM m LIMIT 4 WAIT 1")
                if got:
                    done.extend([row[0] for row in got])
                    run(connection, f"ACK m WHERE id IN ({', '.join(str(row[0]) for row in got)})")

    def observe() -> None:
        nonlocal most
        with connect(server) as direct:
            direct.select_db(database)
            while not over.is_set():
                counts = rows(
                    direct,
                    "SELECT COUNT(*) FROM m WHERE time_acked IS NULL AND lease = time_next GROUP BY tenant",
                )
                most = max([most, *(row[0] for row in counts)])

    workers = [threading.Thread(target=work, args=[proxy], daemon=True) for proxy in two for _ in range(3)]
    observer = threading.Thread(target=observe, daemon=True)
    for thread in (*workers, observer):
        thread.start()
    for thread in workers:
        thread.join(60)
    over.set()
    observer.join(10)
    assert sorted(done) == list(range(1, messages * len(tenants) + 1))
    assert most == 2
