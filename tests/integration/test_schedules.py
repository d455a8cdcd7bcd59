"""When messages go out, and in which order: by time within a priority, also under load."""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.waiting import eventually
from tests.support.writing import NOW_NS

pytestmark = pytest.mark.either_server

S = 1_000_000_000
MS = 1_000_000
ACK_WAIT_NS = 600 * S


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m", "payload TEXT, due BIGINT", vt_ack_wait=str(ACK_WAIT_NS // S))
        yield connection


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Repeat work in the background until the test ends."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def repeat(work: Callable[[], object]) -> None:
        def loop() -> None:
            while not over.is_set():
                work()

        threads.append(threading.Thread(target=loop))
        threads[-1].start()

    yield repeat
    over.set()
    for thread in threads:
        thread.join()


def test_each_message_goes_out_at_its_time_while_the_queue_is_busy(
    connection, proxy, database, consume, background
) -> None:
    def worker() -> Callable[[], None]:
        own = proxy.connect(database=database)

        def work() -> None:
            found = rows(own, "STREAM id FROM m WHERE payload = 'noise' LIMIT 10 WAIT 0.2")
            if found:
                run(own, f"ACK FROM m WHERE id IN ({', '.join(str(number) for (number,) in found)})")

        return work

    noisy = proxy.connect(database=database)
    stream = consume(proxy.connect(database=database), "STREAM id FROM m WHERE payload <> 'noise'")
    due = f"{NOW_NS} + {S} + n * 37 % 100 * {20 * MS}"
    run(
        connection,
        f"INSERT INTO m (id, time_next, due, payload) SELECT n, {due}, {due}, 'scheduled'"
        " FROM (WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 100) SELECT n FROM c) AS n",
    )
    for work in (worker(), worker()):
        background(work)
    background(lambda: enqueue(noisy, "m", ["noise"] * 3))
    for _ in range(50):  # Due when they are written: they show how long a delivery takes on this machine.
        run(connection, f"INSERT INTO m (time_next, due, payload) VALUES ({NOW_NS}, {NOW_NS}, 'at once')")
    eventually(lambda: len(stream.received) == 150, timeout_s=20)
    delivered = rows(connection, "SELECT id, payload, due, time_next FROM m WHERE payload <> 'noise' ORDER BY due")
    late_ns: dict[str, list[int]] = {"scheduled": [], "at once": []}
    for _, payload, due_ns, wait_ends_ns in delivered:
        late_ns[payload].append(wait_ends_ns - ACK_WAIT_NS - due_ns)
    in_order = [number for number, payload, _, _ in delivered if payload == "scheduled"]
    assert [number for (number,) in stream.received if number in in_order] == in_order
    assert min(late_ns["scheduled"]) >= 0
    assert statistics.median(late_ns["scheduled"]) < 2 * statistics.median(late_ns["at once"])
    assert max(late_ns["scheduled"]) < 2 * S


def test_a_backlog_goes_out_by_priority_then_time_whatever_the_order_of_its_ids(connection) -> None:
    dice = random.Random(2)
    wanted = [(priority, dice.randrange(1, S)) for priority in (0, 1, 2) for _ in range(200)]
    with connection.cursor() as cursor:
        shuffled = dice.sample(wanted, len(wanted))
        cursor.executemany("INSERT INTO m (priority, time_next, payload) VALUES (%s, %s, '')", shuffled)
    expected = rows(connection, "SELECT id FROM m ORDER BY priority, time_next, id")
    assert rows(connection, "STREAM id FROM m LIMIT 600 WAIT 10") == expected


def test_an_old_message_is_not_kept_waiting_by_new_ones(connection, proxy, database, background) -> None:
    enqueue(connection, "m", ["old"])
    noisy = proxy.connect(database=database)
    background(lambda: run(noisy, f"INSERT INTO m (time_next, payload) VALUES ({NOW_NS}, 'new')"))
    eventually(lambda: rows(connection, "SELECT COUNT(*) > 50 FROM m") == [(1,)])
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("old",)]


def test_a_failed_message_comes_before_newer_ones_once_its_wait_is_over(connection, proxy, database) -> None:
    enqueue(connection, "m", ["failed"])
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("failed",)]
    assert run(connection, "NACK FROM m WHERE id = 1") == 1
    run(connection, f"INSERT INTO m (time_next, payload) VALUES ({NOW_NS}, 'newer'), ({NOW_NS}, 'newer')")
    assert rows(connection, "STREAM payload FROM m LIMIT 3 WAIT 10") == [("failed",), ("newer",), ("newer",)]


def test_a_message_that_became_more_urgent_goes_before_those_that_were_read_ahead(connection) -> None:
    run(connection, "INSERT INTO m (time_next, payload) VALUES (200, 'b'), (300, 'c'), (400, 'd')")
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("b",)]
    run(connection, "INSERT INTO m (time_next, payload) VALUES (100, 'a')")
    ((seen_ns,),) = rows(connection, f"SELECT {NOW_NS} + 200000000")
    eventually(lambda: rows(connection, f"SELECT {NOW_NS} >= {seen_ns}") == [(1,)])
    assert rows(connection, "STREAM payload FROM m LIMIT 3 WAIT 10") == [("a",), ("c",), ("d",)]


@pytest.mark.parametrize("years", [1, 10, 200])
def test_a_message_may_be_years_ahead_and_costs_nothing_until_then(connection, proxy, years: int) -> None:
    ahead_ns = years * 365 * 86_400 * S
    run(connection, f"INSERT INTO m (time_next, payload) VALUES ({NOW_NS} + {ahead_ns}, 'far')")
    enqueue(connection, "m", ["near"])
    assert rows(connection, "STREAM payload FROM m LIMIT 2 WAIT 0.3") == [("near",)]
    run(connection, f"UPDATE m SET time_next = {NOW_NS} WHERE payload = 'far'")
    assert rows(connection, "STREAM payload FROM m LIMIT 2 WAIT 10") == [("far",)]
