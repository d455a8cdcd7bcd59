"""Semaphores: the statements, and what they do through one proxy, through three, and when one of these is killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.queues import Consumer, rows, run, user
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

QUEUE = "CREATE QUEUE {name} (needs VARCHAR(100), body TEXT) SEMAPHORES = (needs)"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def make(connection: Connection[Any], *names: str, **capacities: int) -> None:
    """Queues and semaphores."""
    for name in names:
        run(connection, QUEUE.format(name=name))
    for name, capacity in capacities.items():
        run(connection, f"CREATE SEMAPHORE {name} CAPACITY {capacity}")


def insert(connection: Connection[Any], *needs: str | None, queue: str = "m", priority: int = 0) -> None:
    with connection.cursor() as cursor:
        values = [(needed, priority) for needed in needs]
        cursor.executemany(f"INSERT INTO {queue} (needs, body, priority) VALUES (%s, 'x', %s)", values)


def received(connection: Connection[Any], queue: str = "m", options: str = "LIMIT 10 NOWAIT") -> list[int]:
    return [int(row[0]) for row in rows(connection, f"STREAM id FROM {queue} {options}")]


def keys(connection: Connection[Any]) -> list[str]:
    found = rows(
        connection,
        "SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics"
        " WHERE table_schema = DATABASE() AND table_name = 'm' GROUP BY index_name",
    )
    return sorted(str(row[0]) for row in found)


def problem(connection: Connection[Any], queue: str = "m") -> str | None:
    (row,) = rows(connection, f"SHOW FULL QUEUES LIKE '{queue}'")
    return None if row[-1] is None else str(row[-1])


def refused(connection: Connection[Any], statement: str) -> str:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    return str(error.value.args[1])


# Statements.


def made_again(connection: Connection[Any]) -> str:
    """What SHOW CREATE QUEUE returns, by which the queue is made again. It leaves the indexes to CREATE QUEUE."""
    ((_, text),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "KEY" not in text
    run(connection, "DROP QUEUE m")
    run(connection, text)
    return str(text)


def test_create_queue_makes_the_indexes_and_show_create_queue_the_same_queue_again(connection) -> None:
    make(connection, "m")
    made = keys(connection)
    assert made == [
        "id",
        "time_acked,lease,time_next,needs",
        "time_acked,priority,needs,time_next,id",
        "time_acked,priority,time_next,id",
    ]
    assert problem(connection) is None
    assert "SEMAPHORES = 'needs'" in made_again(connection)
    assert keys(connection) == made


def test_alter_queue_gives_a_queue_in_use_semaphores_and_takes_them_back(connection) -> None:
    run(connection, "CREATE QUEUE m (needs VARCHAR(100), body TEXT)")
    insert(connection, "a", "a", None)
    run(connection, "ALTER QUEUE m SEMAPHORES = (needs)")
    assert "time_acked,lease,time_next,needs" in keys(connection)
    assert "time_acked,priority,needs,time_next,id" in keys(connection)
    assert received(connection) == [3]
    run(connection, "CREATE SEMAPHORE a CAPACITY 1")
    assert received(connection) == [1]
    run(connection, "ALTER QUEUE m SEMAPHORES = NONE")
    assert received(connection) == [2]


GROUPED = "CREATE QUEUE m (tenant VARCHAR(20), needs VARCHAR(100)) GROUP_BY = (tenant) SEMAPHORES = (needs)"
MADE = [
    "id",
    "time_acked,lease,time_next,needs",
    "time_acked,priority,tenant,needs,time_next,id",
    "time_acked,priority,time_next,id",
]


def insert_for(connection: Connection[Any], *messages: tuple[str, str | None]) -> None:
    """Messages of these tenants, with what they need."""
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO m (tenant, needs) VALUES (%s, %s)", messages)


def test_a_queue_may_have_groups_besides(connection) -> None:
    run(connection, GROUPED)
    assert keys(connection) == MADE
    assert problem(connection) is None
    text = made_again(connection)
    assert "SEMAPHORES = 'needs'" in text
    assert "GROUP_BY = 'tenant'" in text
    assert keys(connection) == MADE


def test_alter_queue_gives_groups_and_semaphores_one_after_the_other(connection) -> None:
    run(connection, "CREATE QUEUE m (tenant VARCHAR(20), needs VARCHAR(100))")
    for option in ("SEMAPHORES = (needs)", "GROUP_BY = (tenant)"):
        run(connection, f"ALTER QUEUE m {option}")
    assert {*MADE} <= {*keys(connection)}
    run(connection, "ALTER QUEUE m SEMAPHORES = NONE")
    assert problem(connection) is None
    assert "time_acked,priority,tenant,time_next,id" in keys(connection)
    run(connection, "ALTER QUEUE m SEMAPHORES = (needs), GROUP_BY = NONE")
    assert problem(connection) is None
    assert "time_acked,priority,needs,time_next,id" in keys(connection)


def test_groups_take_turns_with_the_messages_that_have_places(connection) -> None:
    run(connection, GROUPED)
    run(connection, "CREATE SEMAPHORE a CAPACITY 1")
    run(connection, "CREATE SEMAPHORE b CAPACITY 9")
    noisy = [("noisy", "a"), ("noisy", "a"), ("noisy", "b"), ("noisy", None), ("noisy", "b")]
    insert_for(connection, *noisy, ("quiet", "b"), ("quiet", "a"), ("quiet", "b"))
    assert received(connection, options="LIMIT 4 NOWAIT") == [1, 6, 3, 8]
    assert received(connection, options="LIMIT 9 NOWAIT") == [4, 5]
    run(connection, "ACK m WHERE id = 1")
    assert received(connection, options="LIMIT 9 WAIT 20") == [7], "the other group's turn"
    ((_, *first), (_, *second)) = rows(connection, "SHOW GROUPS FROM m")
    assert (first[2], second[2]) == (3, 3)


def test_a_group_whose_semaphores_are_full_hides_nobody(connection, stream) -> None:
    run(connection, GROUPED)
    run(connection, "CREATE SEMAPHORE a CAPACITY 1")
    insert_for(connection, *[("noisy", "a")] * 300, ("noisy", None), ("quiet", "a"), ("quiet", None))
    consumer = stream("m")
    eventually(lambda: {301, 303} <= set(ids(consumer)))
    assert len(ids(consumer)) == 3
    for _ in range(3):
        count = len(ids(consumer))
        run(connection, f"ACK m WHERE id = {next(key for key in reversed(ids(consumer)) if key not in (301, 303))}")
        eventually(lambda count=count: len(ids(consumer)) == count + 1)  # type: ignore[misc]
    assert 302 in ids(consumer), "the quiet tenant has its turn"


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("CREATE QUEUE n (body TEXT) SEMAPHORES = (needs)", "semaphores=needs names a column that the table"),
        ("CREATE QUEUE n (needs INT) SEMAPHORES = (needs)", "it has to be CHAR or VARCHAR"),
        ("CREATE QUEUE n (needs CHAR(9)) SEMAPHORES = (needs) GROUP_BY = (needs)", "name the same column"),
        ("CREATE QUEUE n (needs CHAR(9), t INT) SEMAPHORES = (needs) GROUP_BY = (t) GROUP_LIMIT = 2", "GROUP_LIMIT"),
        ("CREATE QUEUE n (needs CHAR(9), t INT) SEMAPHORES = (needs) GROUP_BY = (t) GROUP_RATE = 2", "GROUP_RATE"),
        (
            "CREATE QUEUE n (needs CHAR(9), t INT) SEMAPHORES = (needs) GROUP_BY = (t) GROUP_ORDER = STRICT",
            "GROUP_ORDER",
        ),
        ("ALTER QUEUE m SEMAPHORES = (body)", "it has to be CHAR or VARCHAR"),
        ("ALTER QUEUE m GROUP_BY = (needs)", "name the same column"),
        ("CREATE SEMAPHORE a CAPACITY 0", "a whole number from 1"),
        ("CREATE SEMAPHORE a", "CAPACITY was expected"),
        ("CREATE SEMAPHORE `a,b` CAPACITY 1", "cannot be the name of a semaphore"),
        ("CREATE SEMAPHORE there CAPACITY 1", "exists: ALTER SEMAPHORE"),
        ("ALTER SEMAPHORE nowhere CAPACITY 1", "There is no semaphore"),
        ("DROP SEMAPHORE nowhere", "There is no semaphore"),
        ("STREAM id FROM m LIMIT 1 FOR UPDATE", "FOR UPDATE"),
    ],
)
def test_what_is_not_possible_is_refused_with_the_reason(connection, statement: str, error: str) -> None:
    make(connection, "m", there=1)
    run(connection, "BEGIN" if statement.startswith("STREAM") else "DO 0")
    assert error in refused(connection, statement)


def test_semaphores_are_created_altered_and_dropped(connection) -> None:
    run(connection, "DROP SEMAPHORE IF EXISTS a")
    run(connection, "CREATE SEMAPHORE a CAPACITY 2")
    run(connection, "CREATE SEMAPHORE IF NOT EXISTS a CAPACITY 3")
    assert rows(connection, "SHOW SEMAPHORES") == [("a", None, 2, 0, 0)]
    run(connection, "ALTER SEMAPHORE a CAPACITY = 5")
    run(connection, "CREATE SEMAPHORE `ä b` CAPACITY 7")
    assert rows(connection, "SHOW SEMAPHORES") == [("a", None, 5, 0, 0), ("ä b", None, 7, 0, 0)]
    assert rows(connection, "SHOW SEMAPHORES LIKE '%b'") == [("ä b", None, 7, 0, 0)]
    run(connection, "DROP SEMAPHORE a")
    assert rows(connection, "SHOW SEMAPHORES LIKE 'a'") == []


def test_a_semaphore_is_committed_without_autocommit_and_refused_in_a_transaction(connection, proxy, database) -> None:
    run(connection, "SET autocommit = 0")
    run(connection, "CREATE SEMAPHORE a CAPACITY 2")
    with proxy.connect(database=database) as other:
        assert rows(other, "SHOW SEMAPHORES") == [("a", None, 2, 0, 0)]
    run(connection, "INSERT INTO ackstream_semaphores VALUES ('b', 1)")
    assert "cannot run inside a transaction" in refused(connection, "ALTER SEMAPHORE a CAPACITY 3")
    run(connection, "ROLLBACK")


def test_show_semaphores_counts_by_queue_and_shows_those_that_do_not_exist(connection) -> None:
    make(connection, "m", "n", a=2, b=1)
    insert(connection, "a", "a, b", "a", "nowhere", None)
    insert(connection, "b", queue="n")
    assert received(connection, options="LIMIT 3 NOWAIT") == [1, 2, 5]
    assert rows(connection, "SHOW SEMAPHORES") == [
        ("a", "m", 2, 2, 1),
        ("b", "m", 1, 1, 0),
        ("b", "n", 1, 0, 1),
        ("nowhere", "m", None, 0, 1),
    ]
    assert "the semaphore nowhere, which does not exist" in str(problem(connection))


def test_a_client_sees_what_it_may_read(connection, proxy, database, server) -> None:
    make(connection, "m", "n", a=2)
    insert(connection, "a")
    insert(connection, "a", queue="n")
    with connect(server) as root, user(root, database) as name:
        run(root, f"GRANT SELECT ON {database}.ackstream_semaphores TO {name}@localhost")
        run(root, f"GRANT SELECT ON {database}.n TO {name}@localhost")
        with proxy.connect(database=database, user=name) as client:
            assert rows(client, "SHOW SEMAPHORES") == [("a", "n", 2, 0, 1)]
            assert "denied" in refused(client, "CREATE SEMAPHORE b CAPACITY 1")
            assert "denied" in refused(client, "DROP SEMAPHORE a")


# Deliveries.


@pytest.fixture
def stream(consume, proxy, database) -> Callable[[str], Consumer]:
    """Opens an endless stream."""
    return lambda queue: consume(proxy.connect(database=database), f"STREAM id FROM {queue} PREFETCH 100")


def ids(consumer: Consumer) -> list[int]:
    return [int(row[0]) for row in consumer.received]


def test_a_place_that_is_free_is_taken_at_once(connection, stream) -> None:
    make(connection, "m", a=1)
    insert(connection, "a", "a", "a", None)
    consumer = stream("m")
    eventually(lambda: ids(consumer) == [1, 4], what="one holder, and one that needs nothing")
    run(connection, "ACK m WHERE id = 1")
    eventually(lambda: ids(consumer) == [1, 4, 2], what="the next one")
    run(connection, "UPDATE m SET time_next = time_next + 3600000000000 WHERE id = 2")
    eventually(lambda: ids(consumer) == [1, 4, 2, 3], what="the one behind it")


def test_a_full_semaphore_hides_nobody_however_many_wait_for_it(connection, stream) -> None:
    make(connection, "m", a=1, b=1)
    insert(connection, *["a"] * 6_000)
    insert(connection, "b", "a,b", None)
    consumer = stream("m")
    eventually(lambda: {6_001, 6_003} <= set(ids(consumer)), what="those that wait for nothing")
    assert len(set(ids(consumer)) - {6_001, 6_003}) == 1


def test_the_most_urgent_of_those_that_wait_is_next(connection, stream) -> None:
    make(connection, "m", a=1, b=1)
    insert(connection, "a,b", priority=5)
    insert(connection, "a", priority=7)
    insert(connection, "b,a", priority=6)
    consumer = stream("m")
    eventually(lambda: ids(consumer) == [1], what="the first")
    run(connection, "ACK m WHERE id = 1")
    eventually(lambda: ids(consumer)[1:] == [3], what="the more urgent one")


def test_a_place_that_another_queue_frees_is_taken_at_once(connection, stream) -> None:
    make(connection, "m", "n", a=1)
    insert(connection, "a")
    assert received(connection) == [1]
    insert(connection, "a", queue="n")
    consumer = stream("n")
    shown = [("a", "m", 1, 1, 0), ("a", "n", 1, 0, 1)]
    eventually(lambda: rows(connection, "SHOW SEMAPHORES") == shown, what="it waits")
    assert ids(consumer) == []
    run(connection, "NACK m WHERE id = 1 DELAY 3600")
    eventually(lambda: ids(consumer) == [1], what="the other queue's message")


def test_a_new_semaphore_and_a_greater_capacity_deliver_what_waits(connection, stream) -> None:
    make(connection, "m")
    insert(connection, "a", "a", "a")
    consumer = stream("m")
    eventually(lambda: "does not exist" in str(problem(connection)), what="the problem is shown")
    run(connection, "CREATE SEMAPHORE a CAPACITY 1")
    eventually(lambda: ids(consumer) == [1], what="one")
    run(connection, "ALTER SEMAPHORE a CAPACITY 3")
    eventually(lambda: ids(consumer) == [1, 2, 3], what="all")


# Several proxies.


def test_three_proxies_of_which_one_is_killed_never_exceed_a_capacity(
    connection, database, server: EmbeddedServer, tmp_path: Path
) -> None:
    make(connection, "m", "n", a=2, b=1)
    insert(connection, *["a", "b", "a,b", "b,a"] * 15)
    insert(connection, *["a,b", "a"] * 10, queue="n")
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(running_proxy(server, tmp_path / f"{number}.log")) for number in range(3)]
        pool = stack.enter_context(ThreadPoolExecutor(7))
        observer = pool.submit(most_holders, server, database, over)
        stack.callback(over.set)
        for proxy in proxies:
            for queue in ("m", "n"):
                pool.submit(work_off, proxy.connect(database=database), queue, over)
        eventually(lambda: left(connection) < 70, timeout_s=60, what="some are acknowledged")
        proxies[-1].kill()
        eventually(lambda: left(connection) == 0, timeout_s=60, what="all are acknowledged")
        over.set()
        most = observer.result()
    assert most["a"] <= 2
    assert most["b"] <= 1


def left(connection: Connection[Any]) -> int:
    """Unacknowledged messages of both queues."""
    ((count,),) = rows(
        connection,
        "SELECT COUNT(time_next) FROM (SELECT time_next FROM m UNION ALL SELECT time_next FROM n) AS both_of_them",
    )
    return int(count)


def work_off(client: Connection[Any], queue: str, over: threading.Event) -> None:
    """A consumer, until its proxy is gone or all is over."""
    with contextlib.suppress(pymysql.MySQLError), client:
        while not over.is_set():
            for (key,) in rows(client, f"STREAM id FROM {queue} LIMIT 2 WAIT 1"):
                run(client, f"ACK {queue} WHERE id = {key}")


def most_holders(server: EmbeddedServer, database: str, over: threading.Event) -> dict[str, int]:
    """The greatest number of holders of each semaphore that was seen."""
    most = {"a": 0, "b": 0}
    held = "SELECT COUNT(*) FROM {} WHERE time_acked IS NULL AND lease = time_next AND FIND_IN_SET('{}', needs)"
    counts = ", ".join(f"({held.format('m', name)}) + ({held.format('n', name)})" for name in most)
    with connect(server, database=database) as direct:
        while not over.is_set():
            (found,) = rows(direct, f"SELECT {counts}")
            most = {name: max(most[name], int(count)) for name, count in zip(most, found, strict=True)}
    return most
