"""Message groups through a proxy: how a queue gets them, who is next, and what else works with them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

FLOOD = 6_000
"""More messages than are read ahead."""

FAIR = "CREATE QUEUE m (tenant VARCHAR(20) CHARACTER SET latin1, body TEXT) GROUP_BY = (tenant)"


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def insert(connection: Connection[Any], tenant: str | None, messages: int, **columns: object) -> None:
    """Insert so many messages of a tenant in one transaction."""
    values = {"tenant": tenant, "body": "x", **columns}
    names, places = ", ".join(values), ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO m ({names}) VALUES ({places})", [tuple(values.values())] * messages)


def work(connection: Connection[Any], batches: int, clause: str = "") -> list[str | None]:
    """The tenants of the messages of so many batches of ten, each acknowledged before the next."""
    tenants: list[str | None] = []
    for _ in range(batches):
        got = rows(connection, f"STREAM id, tenant FROM m {clause} LIMIT 10 WAIT 5")
        run(connection, f"ACK m WHERE id IN ({', '.join(str(number) for number, _ in got)})")
        tenants += [tenant for _, tenant in got]
    return tenants


def index_of(connection: Connection[Any], first: str = "tenant") -> list[tuple[str, ...]]:
    """The columns of the indexes with this column in the third place."""
    found: dict[str, list[str]] = {}
    for name, column in rows(
        connection,
        "SELECT index_name, column_name FROM information_schema.statistics"
        " WHERE table_schema = DATABASE() AND table_name = 'm' ORDER BY index_name, seq_in_index",
    ):
        found.setdefault(name, []).append(column)
    return [tuple(columns) for columns in found.values() if columns[2:3] == [first]]


def refused(connection: Connection[Any], statement: str) -> str:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    return str(error.value.args[1])


# How a queue gets groups.


def test_create_queue_makes_the_index_by_group(connection) -> None:
    run(connection, "CREATE QUEUE m (tenant INT, region CHAR(3), body TEXT) GROUP_BY = (tenant, region)")
    assert index_of(connection) == [("time_acked", "priority", "tenant", "region", "time_next", "id")]


def test_show_create_queue_prints_the_groups_and_no_index(connection) -> None:
    run(connection, "CREATE QUEUE m (`te nant` INT, region CHAR(3)) GROUP_BY = (`te nant`, region)")
    ((_, written),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "GROUP_BY = 'te nant|region'" in written
    assert "KEY" not in written
    table = rows(connection, "SHOW CREATE TABLE m")
    run(connection, "DROP QUEUE m")
    run(connection, written)
    assert rows(connection, "SHOW CREATE TABLE m") == table


def test_alter_queue_makes_a_queue_fair_while_it_is_used(connection, proxy, database, consume) -> None:
    create_queue(connection, "m", "tenant VARCHAR(20), body TEXT")
    consumer = consume(proxy.connect(database=database), "STREAM tenant FROM m")
    insert(connection, "noisy", 1)
    eventually(lambda: consumer.received == [("noisy",)])
    run(connection, "ALTER QUEUE m GROUP_BY = (tenant)")
    assert index_of(connection) == [("time_acked", "priority", "tenant", "time_next", "id")]
    run(connection, "ALTER QUEUE m GROUP_BY = (tenant)")
    assert len(index_of(connection)) == 1
    insert(connection, "quiet", 1)
    eventually(lambda: consumer.received == [("noisy",), ("quiet",)])
    run(connection, "ALTER QUEUE m GROUP_BY = NONE")
    insert(connection, "noisy", 1)
    eventually(lambda: len(consumer.received) == 3)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("GROUP_BY = (nobody)", "group_by names the column 'nobody', which the table does not have"),
        ("GROUP_BY = (priority)", "group_by names the column 'priority', which has another purpose"),
        ("GROUP_BY = (kind)", "group_by names the column 'kind', which is ENUM"),
        ("GROUP_BY = (body)", "group_by names the column 'body', which is TEXT"),
        ("GROUP_BY = (tenant, TENANT)", "is not a list without repetitions"),
    ],
)
def test_columns_that_cannot_be_a_group_are_refused_and_nothing_is_changed(connection, options, problem) -> None:
    columns = "(tenant INT, kind ENUM('a', 'b'), body TEXT)"
    assert problem in refused(connection, f"CREATE QUEUE m {columns} {options}")
    run(connection, f"CREATE QUEUE m {columns}")
    before = rows(connection, "SHOW CREATE TABLE m")
    assert problem in refused(connection, f"ALTER QUEUE m {options}")
    assert rows(connection, "SHOW CREATE TABLE m") == before


def test_a_table_without_the_index_works_and_names_it(connection) -> None:
    create_queue(connection, "m", "tenant VARCHAR(20), body TEXT", group_by="tenant")
    insert(connection, "noisy", 30)
    insert(connection, "quiet", 2)
    assert work(connection, 1).count("quiet") == 2
    ((problem,),) = [row[-1:] for row in rows(connection, "SHOW FULL QUEUES LIKE 'm'")]
    assert "ADD INDEX (time_acked, priority, `tenant`, time_next, id)" in problem


# Who is next.


def test_a_quiet_tenant_does_not_wait_for_the_backlog_of_a_noisy_one(connection) -> None:
    """A scan by group runs beside the claim of a poll, so usually the second poll returns the message. The backlog
    takes 600 polls."""
    run(connection, FAIR)
    insert(connection, "noisy", FLOOD)
    work(connection, 3)
    for tenant in ("quiet", "Zürich", None):
        insert(connection, tenant, 1)
        assert any(tenant in work(connection, 1) for _ in range(60))


def test_tenants_with_a_backlog_share_evenly(connection) -> None:
    run(connection, FAIR)
    tenants = [f"tenant {number}" for number in range(5)]
    for tenant in tenants:
        insert(connection, tenant, FLOOD)
    work(connection, 20)
    turns = Counter(work(connection, 50))
    assert turns.keys() == set(tenants)
    assert max(turns.values()) - min(turns.values()) <= 20


def test_messages_of_one_tenant_stay_in_their_order(connection) -> None:
    run(connection, FAIR)
    insert(connection, "noisy", FLOOD)
    insert(connection, "other", 100)
    numbers = [row[0] for _ in range(30) for row in rows(connection, "STREAM id FROM m LIMIT 10 WAIT 5")]
    for first, last in ((0, FLOOD), (FLOOD, FLOOD + 100)):
        of_tenant = [number for number in numbers if first < number <= last]
        assert of_tenant == list(range(first + 1, first + 1 + len(of_tenant)))


def test_everything_is_delivered_once(connection) -> None:
    run(connection, FAIR)
    for tenant in ("a", "b", None):
        insert(connection, tenant, FLOOD // 3)
    numbers: list[int] = []
    while got := [row[0] for row in rows(connection, "STREAM id FROM m LIMIT 500 NOWAIT")]:
        numbers += got
        run(connection, f"ACK m WHERE id IN ({', '.join(map(str, got))})")
    assert sorted(numbers) == list(range(1, FLOOD + 1))


# With the rest.


def test_prefetch_counts_over_all_groups(connection, proxy, database, consume) -> None:
    run(connection, FAIR)
    for tenant in ("a", "b", "c"):
        insert(connection, tenant, 5)
    consumer = consume(proxy.connect(database=database), "STREAM tenant FROM m PREFETCH 6")
    eventually(lambda: len(consumer.received) == 6)
    assert Counter(consumer.received) == {("a",): 2, ("b",): 2, ("c",): 2}


def test_a_condition_is_fair_among_what_it_selects(connection) -> None:
    run(connection, FAIR)
    insert(connection, "noisy", 30, body="yes")
    insert(connection, "quiet", 30, body="no")
    insert(connection, "other", 30, body="yes")
    assert Counter(work(connection, 4, "WHERE body = 'yes'")) == {"noisy": 20, "other": 20}


def test_a_paused_queue_goes_on_where_it_was(connection) -> None:
    run(connection, FAIR)
    insert(connection, "noisy", 20)
    run(connection, "PAUSE QUEUE m")
    insert(connection, "quiet", 1)
    assert rows(connection, "STREAM id FROM m NOWAIT") == []
    run(connection, "RESUME QUEUE m")
    assert "quiet" in work(connection, 1)


def test_locked_messages_take_turns_as_well(connection) -> None:
    run(connection, FAIR)
    insert(connection, "noisy", 30)
    insert(connection, "quiet", 5)
    run(connection, "BEGIN")
    got = rows(connection, "STREAM tenant FROM m LIMIT 10 NOWAIT FOR UPDATE")
    run(connection, "ROLLBACK")
    assert Counter(got) == {("noisy",): 5, ("quiet",): 5}


def test_dead_messages_of_a_group_are_moved_and_redriven(connection) -> None:
    run(connection, f"{FAIR} ACK_WAIT = 0.1 MAX_ATTEMPTS = 1 DEAD_LETTER = graves")
    insert(connection, "a", 2)
    assert len(rows(connection, "STREAM id FROM m LIMIT 2 WAIT 5")) == 2
    eventually(lambda: rows(connection, "SELECT COUNT(*) FROM graves") == [(2,)])
    assert "GROUP_BY" not in rows(connection, "SHOW CREATE QUEUE graves")[0][1]
    run(connection, "ALTER QUEUE m ACK_WAIT = 30")
    assert run(connection, "REDRIVE QUEUE graves TO m") == 2
    assert sorted(rows(connection, "STREAM id, tenant FROM m LIMIT 2 WAIT 5")) == [(1, "a"), (2, "a")]


def test_acknowledged_rows_may_be_kept_by_partition(connection) -> None:
    run(connection, f"{FAIR} RETENTION BY PARTITION")
    insert(connection, "noisy", FLOOD)
    insert(connection, "quiet", 1)
    assert "quiet" in work(connection, 20)


def test_several_proxies_are_fair_together(private_server: EmbeddedServer, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(connect(private_server))
        run(root, "CREATE DATABASE p")
        proxies = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            proxies.append(stack.enter_context(running_proxy(private_server, folder / "log", check=False)))
        clients = [stack.enter_context(proxy.connect(database="p")) for proxy in proxies]
        run(clients[0], FAIR)
        insert(clients[0], "noisy", FLOOD)
        for _ in range(5):
            for client in clients:
                work(client, 1)
        insert(clients[1], "quiet", 10)
        tenants = [tenant for _ in range(10) for client in clients for tenant in work(client, 1)]
        assert tenants.count("quiet") == 10
