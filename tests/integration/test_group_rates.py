"""GROUP_RATE: what CREATE QUEUE and ALTER QUEUE make for it, and what it does through one proxy and through two."""

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

COLUMNS = "tenant VARCHAR(20), body TEXT"
SLOW = f"CREATE QUEUE m ({COLUMNS}) GROUP_BY = (tenant), GROUP_RATE = 0.001"
"""No test takes the thousand seconds until the next message of a group."""
FAST = f"CREATE QUEUE m ({COLUMNS}) GROUP_BY = (tenant), GROUP_RATE = 10"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def insert(connection: Connection[Any], tenant: str | None, messages: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO m (tenant, body) VALUES {', '.join(['(%s, 1)'] * messages)}", [tenant] * messages)


def delivered(connection: Connection[Any]) -> list[str | None]:
    return [tenant for (tenant,) in rows(connection, "STREAM tenant FROM m NOWAIT")]


def problem(connection: Connection[Any]) -> str | None:
    (row,) = rows(connection, "SHOW FULL QUEUES LIKE 'm'")
    return None if row[-1] is None else str(row[-1])


def refused(connection: Connection[Any], statement: str) -> str:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    return str(error.value.args[1])


def test_create_queue_makes_the_table_and_show_create_queue_the_same_queue_again(connection) -> None:
    run(connection, SLOW)
    assert ("ackstream_group_rates",) in rows(connection, "SHOW TABLES")
    assert problem(connection) is None
    ((_, text),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "GROUP_RATE = 0.001" in text
    run(connection, "DROP QUEUE m")
    run(connection, text)
    assert rows(connection, "SHOW CREATE QUEUE m")[0][1] == text


def test_of_each_group_the_rate_is_delivered_and_nobody_is_hidden(connection, proxy, database, consume) -> None:
    run(connection, SLOW)
    insert(connection, "noisy", 3_000)
    insert(connection, "quiet", 2)
    insert(connection, None, 2)
    consumer = consume(proxy.connect(database=database), "STREAM tenant FROM m")
    eventually(lambda: len(consumer.received) == 3)
    insert(connection, "late", 2)
    eventually(lambda: len(consumer.received) == 4)
    assert sorted(str(tenant) for (tenant,) in consumer.received) == ["None", "late", "noisy", "quiet"]


def test_an_acknowledgement_and_a_nack_give_nothing_back(connection) -> None:
    run(connection, SLOW)
    insert(connection, "a", 3)
    ((first,),) = rows(connection, "STREAM id FROM m NOWAIT")
    run(connection, f"NACK m WHERE id = {first}")
    assert delivered(connection) == []
    run(connection, f"ACK m WHERE id = {first}")
    assert delivered(connection) == []


def test_a_group_goes_on_when_its_rate_allows_it(connection, proxy, database, consume) -> None:
    run(connection, FAST)
    insert(connection, "a", 5)
    consumer = consume(proxy.connect(database=database), "STREAM tenant FROM m")
    eventually(lambda: len(consumer.received) == 5)


def test_values_that_the_column_treats_as_equal_share_the_rate(connection) -> None:
    run(connection, SLOW)
    insert(connection, "a", 1)
    insert(connection, "A", 1)
    assert len(delivered(connection)) == 1


def test_alter_queue_gives_a_queue_in_use_a_rate_and_takes_it_back(connection) -> None:
    create_queue(connection, "m", COLUMNS)
    insert(connection, "a", 5)
    run(connection, "ALTER QUEUE m GROUP_BY = (tenant), GROUP_RATE = 0.001")
    assert problem(connection) is None
    assert delivered(connection) == ["a"]
    run(connection, "ALTER QUEUE m GROUP_RATE = NONE")
    assert delivered(connection) == ["a"] * 4


def test_a_limit_and_strict_order_hold_beside_a_rate(connection) -> None:
    run(connection, f"CREATE QUEUE m ({COLUMNS}) GROUP_BY = (tenant), GROUP_RATE = 1000, GROUP_LIMIT = 2")
    insert(connection, "a", 5)
    assert len(rows(connection, "STREAM id FROM m LIMIT 2 WAIT 20")) == 2
    assert delivered(connection) == []
    run(connection, "ALTER QUEUE m GROUP_LIMIT = NONE, GROUP_ORDER = STRICT, GROUP_RATE = 0.001")
    run(connection, "ACK m WHERE TRUE")
    insert(connection, "b", 2)
    assert rows(connection, "STREAM id FROM m NOWAIT") == [(6,)]
    run(connection, "ACK m WHERE id = 6")
    assert delivered(connection) == []


def test_the_directive_alone_delivers_nothing_and_shows_what_to_do(connection) -> None:
    create_queue(connection, "m", COLUMNS, group_by="tenant", group_rate="7")
    insert(connection, "a", 1)
    assert delivered(connection) == []
    found = problem(connection)
    assert found is not None
    found = found[found.index("nothing is delivered") :]
    run(connection, found[found.index("ALTER QUEUE") : found.index(" makes the table")])
    eventually(lambda: delivered(connection) == ["a"])


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE QUEUE m (tenant INT) GROUP_RATE = 2", "GROUP_RATE needs GROUP_BY"),
        ("CREATE QUEUE m (tenant INT) GROUP_BY = (tenant), GROUP_RATE = 0", "GROUP_RATE = '0' is not a number above 0"),
    ],
)
def test_what_cannot_be_a_rate_is_refused(connection, statement: str, problem: str) -> None:
    assert problem in refused(connection, statement)


def test_for_update_is_refused(connection) -> None:
    run(connection, SLOW)
    run(connection, "BEGIN")
    assert "GROUP_RATE" in refused(connection, "STREAM id FROM m LIMIT 1 NOWAIT FOR UPDATE")


def test_show_groups_shows_which_groups_wait_for_their_rate(connection) -> None:
    run(connection, SLOW)
    insert(connection, "a", 2)
    assert delivered(connection) == ["a"]
    insert(connection, "b", 1)
    found = {row[0]: row[5] for row in rows(connection, "SHOW GROUPS FROM m")}
    assert found == {"a": "rate", "b": None}


@pytest.fixture
def two(server: EmbeddedServer, database: str, tmp_path: Path) -> Iterator[Sequence[RunningProxy]]:
    """Two proxies and the queue m, which is polled every hour."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(running_proxy(server, tmp_path / f"{number}.log")) for number in range(2)]
        with running[0].connect(database=database) as connection:
            run(connection, f"{FAST}, ACK_WAIT = 3600, POLLER_INTERVAL = 3600")
        yield running


def test_two_proxies_together_keep_the_rate_of_each_group(two, database) -> None:
    """By the server's clock: each lease ends an hour after its claim."""
    tenants, messages = ("a", "b", "c"), 12
    with two[0].connect(database=database) as connection:
        for tenant in tenants:
            insert(connection, tenant, messages)
    claimed: dict[str, list[int]] = {tenant: [] for tenant in tenants}

    def work(proxy: RunningProxy) -> None:
        with proxy.connect(database=database) as connection:
            while sum(map(len, claimed.values())) < messages * len(tenants):
                got = rows(connection, "STREAM id, tenant, time_next FROM m LIMIT 4 WAIT 1")
                for number, tenant, at_ns in got:
                    run(connection, f"ACK m WHERE id = {number}")
                    claimed[tenant].append(at_ns)

    workers = [threading.Thread(target=work, args=[proxy], daemon=True) for proxy in two for _ in range(2)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(60)
    for times_ns in claimed.values():
        assert len(times_ns) == messages
        duration_s = (max(times_ns) - min(times_ns)) / 1e9
        assert messages - 1 <= duration_s * 10 + 1, "the rate is exceeded"


def test_a_killed_proxy_has_used_up_what_it_delivered(two, database) -> None:
    with two[1].connect(database=database) as other:
        run(other, "ALTER QUEUE m GROUP_RATE = 0.001")
        insert(other, "a", 3)
        with two[0].connect(database=database) as connection:
            eventually(lambda: len(delivered(connection)) == 1)
            two[0].kill()
        insert(other, "b", 1)
        assert rows(other, "STREAM tenant FROM m LIMIT 3 WAIT 20") == [("b",)]
