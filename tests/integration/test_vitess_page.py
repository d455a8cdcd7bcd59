"""Statements of Vitess's page on messaging that no other test shows.

docs/vitess.md goes through that page sentence by sentence.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from engine.store.queries import partition_clause
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, directives, enqueue, rows, run
from tests.support.waiting import eventually
from tests.support.writing import NOW_NS

pytestmark = pytest.mark.either_server

S = 1_000_000_000
VITESS_TABLE = """
    CREATE TABLE my_message (
        id BIGINT NOT NULL, priority TINYINT NOT NULL DEFAULT '50', epoch BIGINT NOT NULL DEFAULT '0',
        time_next BIGINT DEFAULT 0, time_acked BIGINT DEFAULT NULL, tenant_id BIGINT, message JSON,
        PRIMARY KEY (id), INDEX poller_idx (time_acked, priority, time_next DESC)
    ) COMMENT 'vitess_message,vt_min_backoff=30,vt_max_backoff=3600,vt_ack_wait=30,vt_purge_after=86400,\
vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30'
"""
"""The table on that page: columns, index and directives."""

MIB = 1 << 20


@pytest.fixture
def connection(proxy: RunningProxy, database: str) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def wait_s(connection: Connection[Any]) -> float:
    """Return the seconds until the next delivery of the only message."""
    return float(rows(connection, f"SELECT (time_next - {NOW_NS}) / 1e9 FROM m")[0][0])


def test_its_table_and_its_statements_work_as_they_stand_there(connection, proxy, database, consume) -> None:
    run(connection, VITESS_TABLE)
    stream = consume(proxy.connect(database=database), "stream * from my_message")
    run(connection, """insert into my_message(id, message) values(1, '{"message": "hello world"}')""")
    future = rows(connection, f"SELECT {NOW_NS} + {S // 2}")[0][0]
    run(
        connection,
        f"""insert into my_message(id, message, time_next) values(2, '{{"message": "hello world"}}', {future})""",
    )
    eventually(lambda: len(stream.received) == 2)
    assert [row[:2] for row in stream.received] == [(1, None), (2, None)]
    assert rows(connection, f"SELECT {NOW_NS} >= {future}") == [(1,)]
    acked = f"update my_message set time_acked = {NOW_NS}, time_next = null where id in (1) and time_acked is null"
    assert run(connection, acked) == 1
    assert run(connection, acked) == 0
    changed = "update my_message set priority = 10, time_next = 0, epoch = 0 where id in (1, 2) and time_acked is null"
    assert run(connection, changed) == 1
    eventually(lambda: [row[0] for row in stream.received] == [1, 2, 2])


def test_chronic_failures_put_off_to_the_far_future_can_be_called_back_by_its_statement(connection) -> None:
    create_queue(connection, "m", vt_ack_wait="100", vt_max_backoff="100000000")
    enqueue(connection, "m", ["a"])
    run(connection, "UPDATE m SET epoch = 15")
    assert rows(connection, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 16)]
    assert wait_s(connection) > 3_000_000
    run(connection, "UPDATE m SET priority = -1, time_next = 0, epoch = 0 WHERE id IN (1) AND time_acked IS NULL")
    assert rows(connection, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 1)]
    assert 90 < wait_s(connection) <= 100, "the backing off has begun anew"


def test_its_setting_for_streams_is_the_servers_to_refuse(connection) -> None:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, "SET WORKLOAD=OLAP")
    assert error.value.args[0] == 1193


def test_without_bounds_the_wait_is_at_least_the_first_and_has_no_greatest(connection) -> None:
    create_queue(connection, "m", vt_ack_wait="10")
    enqueue(connection, "m", ["a"])
    for epoch, least_s in ((0, 10), (1, 20), (10, 10 * 2**10), (20, 10 * 2**20)):
        run(connection, f"UPDATE m SET epoch = {epoch}, time_next = 0")
        assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
        assert least_s - 5 < wait_s(connection) <= least_s * 1.33


def test_indexes_and_foreign_keys_of_the_applications_own_do_no_harm(connection) -> None:
    run(connection, "CREATE TABLE tenants (id BIGINT PRIMARY KEY)")
    run(connection, "INSERT INTO tenants VALUES (7)")
    create_queue(
        connection,
        "m",
        "tenant_id BIGINT, payload VARCHAR(20) UNIQUE, KEY (tenant_id, payload), FOREIGN KEY (tenant_id) REFERENCES"
        " tenants (id) ON DELETE CASCADE",
    )
    run(connection, "CREATE TABLE details (m_id BIGINT, FOREIGN KEY (m_id) REFERENCES m (id))")
    run(connection, "INSERT INTO m (tenant_id, payload) VALUES (7, 'a'), (7, 'b')")
    run(connection, "INSERT INTO details VALUES (1)")
    assert rows(connection, "STREAM payload FROM m LIMIT 2 WAIT 10") == [("a",), ("b",)]
    assert run(connection, "ACK FROM m WHERE id IN (1, 2)") == 2
    run(connection, "DELETE FROM details")
    run(connection, "DELETE FROM tenants")
    assert rows(connection, "SELECT * FROM m") == []


def test_a_table_that_cannot_be_a_queue_is_still_a_table(connection) -> None:
    create_queue(connection, "m")
    run(connection, "ALTER TABLE m COMMENT 'vitess_message,vt_ack_wait=30'")
    with pytest.raises(pymysql.MySQLError, match="vt_batch_size is missing"):
        rows(connection, "STREAM * FROM m")
    enqueue(connection, "m", ["a"])
    assert run(connection, "UPDATE m SET payload = 'b'") == 1
    assert rows(connection, "SELECT payload FROM m") == [("b",)]
    run(connection, f"ALTER TABLE m COMMENT '{directives()}'")
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("b",)]


def test_while_nobody_keeps_up_new_messages_are_accepted_and_none_is_forgotten(
    connection, proxy, database, consume
) -> None:
    create_queue(connection, "m", vt_cache_size="10")
    stream = consume(proxy.connect(database=database), "STREAM id FROM m")
    for number in range(50):
        enqueue(connection, "m", [f"{number}-{part}" for part in range(20)])
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(1000,)]
    acked = 0
    while acked < 1000:
        eventually(lambda: len(stream.received) > acked)  # noqa: B023
        seen = stream.received[acked:]
        assert len(seen) <= 10
        assert run(connection, f"ACK FROM m WHERE id IN ({', '.join(str(number) for (number,) in seen)})") == len(seen)
        acked += len(seen)
    assert sorted(stream.received) == [(number,) for number in range(1, 1001)]


def test_several_subscribers_are_given_their_shares_in_turn(connection, proxy, database, consume) -> None:
    create_queue(connection, "m", vt_batch_size="5")
    streams = [consume(proxy.connect(database=database), "STREAM id FROM m") for _ in range(3)]
    for number in range(1, 4):  # Until each of them reads.
        enqueue(connection, "m", [str(number)])
        eventually(lambda: sum(len(stream.received) for stream in streams) == number)  # noqa: B023
    enqueue(connection, "m", map(str, range(300)))
    eventually(lambda: sum(len(stream.received) for stream in streams) == 303)
    shares = Counter({number: len(stream.received) for number, stream in enumerate(streams)})
    assert min(shares.values()) >= 50, shares


def test_acknowledged_messages_stay_and_can_be_counted(connection) -> None:
    create_queue(connection, "m", "tenant INT", vt_purge_after="3600")
    run(connection, "INSERT INTO m (tenant) VALUES (1), (1), (2)")
    assert len(rows(connection, "STREAM id FROM m LIMIT 3 WAIT 10")) == 3
    assert run(connection, "ACK FROM m WHERE id <= 3") == 3
    counted = "SELECT tenant, COUNT(*), MAX(epoch), MIN(time_acked) > 0 FROM m GROUP BY tenant ORDER BY tenant"
    assert rows(connection, counted) == [(1, 2, 1, 1), (2, 1, 1, 1)]


def test_a_transaction_of_many_large_messages_costs_the_proxy_no_memory(server, database, tmp_path: Path) -> None:
    def peak_bytes() -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{proxy.pid}/status").read_text())
        assert found
        return int(found[1]) * 1024

    with running_proxy(server, tmp_path / "log") as proxy, proxy.connect(database=database) as connection:
        create_queue(connection, "m", "payload MEDIUMTEXT")
        before = peak_bytes()
        run(connection, "BEGIN")
        for _ in range(100):
            enqueue(connection, "m", ["x" * MIB])
        assert rows(connection, "STREAM id FROM m NOWAIT") == []
        run(connection, "COMMIT")
        received = 0
        while received < 100:
            found = rows(connection, "STREAM id, payload FROM m LIMIT 10 WAIT 10")
            assert all(len(payload) == MIB for _, payload in found)
            received += len(found)
        assert peak_bytes() - before < 40 * MIB


def test_partitions_of_old_acknowledged_messages_are_dropped_whole(connection, proxy, database) -> None:
    def dropped(name: str) -> bool:
        ((now_ns,),) = rows(connection, f"SELECT {NOW_NS}")
        run(
            connection,
            f"CREATE TABLE {name} (id BIGINT NOT NULL AUTO_INCREMENT, priority INT NOT NULL DEFAULT 0, epoch BIGINT NOT"
            " NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT, payload TEXT, UNIQUE KEY (id, time_acked),"
            f" KEY (time_acked, priority, time_next, id)) COMMENT '{directives(vt_purge_after='3600')}'"
            f" {partition_clause(now_ns - 20 * S, 2 * S, 12)}",
        )
        old = f"p{now_ns - 16 * S}"
        run(connection, f"INSERT INTO {name} (time_next, time_acked, payload) VALUES (NULL, {now_ns - 17 * S}, 'old')")
        enqueue(connection, name, ["live"])
        assert rows(connection, f"SELECT payload FROM {name} PARTITION ({old})") == [("old",)]
        run(connection, f"ALTER TABLE {name} COMMENT '{directives(vt_purge_after='5')}'")
        with contextlib.suppress(AssertionError):
            logged = re.compile(rf"queue {database}\.{name}: dropped the partitions .*{old}")
            eventually(lambda: logged.search(proxy.output), timeout_s=6)
        listed = "SELECT partition_name FROM information_schema.partitions WHERE table_schema = %s AND table_name = %s"
        return (old,) not in rows(connection, listed, [database, name])

    # An attempt is postponed for a minute if anybody uses the table, even to read the catalog.
    name = next(name for name in ("m", "n", "o", "p", "q") if dropped(name))
    assert rows(connection, f"SELECT payload FROM {name}") == [("live",)]
    assert rows(connection, f"STREAM payload FROM {name} LIMIT 1 WAIT 10") == [("live",)]
