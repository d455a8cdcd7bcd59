"""GROUP_LIMIT, GROUP_ORDER and batches together with the other options and statements of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymysql.connections import Connection

from tests.support.queues import rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

OPTIONS = {"limit": "GROUP_BY = (tenant) GROUP_LIMIT = 1", "order": "GROUP_BY = (tenant) GROUP_ORDER = STRICT"}
"""With both, one message of a tenant is in flight at a time."""

BATCHES = "CREATE QUEUE m (body TEXT) BATCHES"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


@pytest.fixture(params=[*OPTIONS])
def options(request: pytest.FixtureRequest) -> str:
    return OPTIONS[request.param]


def create(connection: Connection[Any], options: str, *tenants: str) -> None:
    """Create the queue m, with a message of each of these tenants."""
    run(connection, f"CREATE QUEUE m (tenant VARCHAR(20), body TEXT) {options}")
    insert(connection, *tenants)


def insert(connection: Connection[Any], *tenants: str) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO m (tenant, body) VALUES (%s, 'x')", [(tenant,) for tenant in tenants])


def take(connection: Connection[Any], clause: str = "NOWAIT") -> list[int]:
    return [row[0] for row in rows(connection, f"STREAM id FROM m {clause}")]


def parts_and_follow_up(connection: Connection[Any]) -> None:
    """Two parts and the message that waits for them, in one transaction."""
    connection.begin()
    run(connection, "INSERT INTO m (body, batch) VALUES ('part', 1), ('part', 1)")
    run(connection, "INSERT INTO m (body, after_batch) VALUES ('last', 1)")
    connection.commit()


# Message groups.


def test_a_condition_selects_among_messages_that_have_a_place(connection, options: str) -> None:
    create(connection, options, "a", "a", "b")
    assert take(connection, "WHERE tenant = 'a' NOWAIT") == [1]
    run(connection, "ACK m WHERE id = 1")
    assert take(connection, "WHERE tenant = 'a' LIMIT 1 WAIT 20") == [2]
    assert take(connection, "WHERE tenant = 'b' NOWAIT") == [3]


def test_prefetch_counts_over_all_groups(connection, options: str, proxy, database, consume) -> None:
    create(connection, options, "a", "a", "b", "c")
    consumer = consume(proxy.connect(database=database), "STREAM id FROM m PREFETCH 2")
    eventually(lambda: consumer.received == [(1,), (3,)])
    run(connection, "ACK m WHERE id = 3")
    eventually(lambda: consumer.received == [(1,), (3,), (4,)])
    run(connection, "ACK m WHERE id = 1")
    eventually(lambda: consumer.received == [(1,), (3,), (4,), (2,)])


def test_a_paused_queue_goes_on_where_it_was(connection, options: str) -> None:
    create(connection, options, "a", "a")
    assert take(connection) == [1]
    run(connection, "PAUSE QUEUE m")
    run(connection, "ACK m WHERE id = 1")
    assert take(connection) == []
    run(connection, "RESUME QUEUE m")
    assert take(connection, "LIMIT 1 WAIT 20") == [2]


def test_a_dead_message_that_is_redriven_is_of_its_group_again(connection, options: str) -> None:
    create(connection, f"{options} MAX_ATTEMPTS = 1 DEAD_LETTER = graves", "a", "a")
    assert take(connection) == [1]
    run(connection, "NACK m WHERE id = 1")
    assert take(connection, "LIMIT 1 WAIT 20") == [2]
    eventually(lambda: run(connection, "REDRIVE QUEUE graves TO m") == 1, what="message 1 was moved to graves")
    assert take(connection) == []
    run(connection, "ACK m WHERE id = 2")
    assert take(connection, "LIMIT 1 WAIT 20") == [1]


def test_acknowledged_rows_may_be_kept_by_partition(connection, options: str) -> None:
    create(connection, f"{options} RETENTION BY PARTITION", "a", "a", "b")
    assert rows(connection, "SHOW FULL QUEUES LIKE 'm'")[0][-1] is None
    assert take(connection) == [1, 3]
    run(connection, "ACK m WHERE id IN (1, 3)")
    assert take(connection, "LIMIT 1 WAIT 20") == [2]


def test_a_follow_up_may_be_of_a_group(connection, options: str) -> None:
    create(connection, f"{options} BATCHES")
    connection.begin()
    run(connection, "INSERT INTO m (tenant, batch) VALUES ('a', 1), ('b', 1)")
    run(connection, "INSERT INTO m (tenant, after_batch) VALUES ('a', 1)")
    connection.commit()
    assert take(connection) == [1, 2]
    run(connection, "ACK m WHERE id IN (1, 2)")
    assert take(connection, "LIMIT 1 WAIT 20") == [3]


def test_in_strict_order_a_follow_up_that_waits_keeps_its_group_waiting(connection) -> None:
    create(connection, f"{OPTIONS['order']} BATCHES")
    connection.begin()
    run(connection, "INSERT INTO m (tenant, after_batch) VALUES ('a', 1)")
    run(connection, "INSERT INTO m (tenant, batch) VALUES ('a', NULL), ('b', 1)")
    connection.commit()
    assert take(connection) == [3]
    run(connection, "ACK m WHERE id = 3")
    assert take(connection, "LIMIT 1 WAIT 20") == [1]
    run(connection, "ACK m WHERE id = 1")
    assert take(connection, "LIMIT 1 WAIT 20") == [2]


# Batches.


def test_a_condition_selects_a_follow_up_once_its_batch_is_done(connection) -> None:
    run(connection, BATCHES)
    parts_and_follow_up(connection)
    assert take(connection, "WHERE body = 'last' NOWAIT") == []
    run(connection, "ACK m WHERE batch = 1")
    assert take(connection, "WHERE body = 'last' LIMIT 1 WAIT 20") == [3]


def test_a_follow_up_that_waits_uses_up_no_prefetch(connection, proxy, database, consume) -> None:
    run(connection, BATCHES)
    parts_and_follow_up(connection)
    run(connection, "INSERT INTO m (body) VALUES ('other')")
    consumer = consume(proxy.connect(database=database), "STREAM id FROM m PREFETCH 3")
    eventually(lambda: sorted(consumer.received) == [(1,), (2,), (4,)])
    run(connection, "ACK m WHERE batch = 1")
    eventually(lambda: consumer.received[3:] == [(3,)])


def test_a_batch_that_is_done_while_the_queue_is_paused_fires_after_that(connection) -> None:
    run(connection, BATCHES)
    parts_and_follow_up(connection)
    assert take(connection) == [1, 2]
    run(connection, "PAUSE QUEUE m")
    run(connection, "ACK m WHERE batch = 1")
    assert take(connection) == []
    run(connection, "RESUME QUEUE m")
    assert take(connection, "LIMIT 1 WAIT 20") == [3]


def test_batches_of_a_queue_whose_acknowledged_rows_are_kept_by_partition(connection) -> None:
    run(connection, f"{BATCHES} RETENTION BY PARTITION")
    assert rows(connection, "SHOW FULL QUEUES LIKE 'm'")[0][-1] is None
    parts_and_follow_up(connection)
    assert take(connection) == [1, 2]
    run(connection, "ACK m WHERE batch = 1")
    assert take(connection, "LIMIT 1 WAIT 20") == [3]
