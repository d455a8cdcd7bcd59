"""A server whose owner has set for everybody whatever a session can be set to: queues work there as anywhere.

The engine's sessions decide for themselves (`session` in engine/store/queries.sql). Clients keep what the server gives
them; here they only switch back what would refuse an INSERT.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import rows, run
from tests.support.servers import FLAVOUR_OF, ServerName, connect, server_or_skip
from tests.support.waiting import eventually

OF_BOTH: Final = {
    "autocommit": "0",
    "big_tables": "1",
    "binlog_row_image": "'MINIMAL'",
    "character_set_server": "'latin1'",
    "completion_type": "'RELEASE'",
    "default_storage_engine": "'MyISAM'",
    "default_week_format": "7",
    "div_precision_increment": "0",
    "eq_range_index_dive_limit": "1",
    "foreign_key_checks": "0",
    "group_concat_max_len": "4",
    "init_connect": "'SET timestamp = 1000000000, time_zone = ''-09:00'', sql_mode = ''ANSI'''",
    "innodb_lock_wait_timeout": "1",
    "lc_time_names": "'de_DE'",
    "lock_wait_timeout": "1",
    "low_priority_updates": "1",
    "max_join_size": "1",
    "max_length_for_sort_data": "4",
    "max_sort_length": "64",
    "sql_auto_is_null": "1",
    "sql_buffer_result": "1",
    "sql_mode": "'ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH'",
    "sql_quote_show_create": "0",
    "sql_safe_updates": "1",
    "sql_select_limit": "1",
    "time_zone": "'+05:45'",
    "unique_checks": "0",
}
OF: Final[dict[Flavour, dict[str, str]]] = {
    "mysql": {
        "default_collation_for_utf8mb4": "utf8mb4_general_ci",
        "explain_format": "'JSON'",
        "max_execution_time": "100000",
        "optimizer_switch": "'index_merge=off,mrr_cost_based=off,derived_merge=off,semijoin=off,firstmatch=off'",
        "transaction_isolation": "'SERIALIZABLE'",
        "transaction_read_only": "1",
        "windowing_use_high_precision": "0",
    },
    "mariadb": {
        "check_constraint_checks": "0",
        "idle_write_transaction_timeout": "1",
        "in_predicate_conversion_threshold": "2",
        "join_cache_level": "8",
        "max_statement_time": "100",
        "old_mode": "'NO_DUP_KEY_WARNINGS_WITH_IGNORE'",
        "optimizer_switch": "'index_merge=off,mrr=on,mrr_cost_based=off,derived_merge=off,semijoin=off,firstmatch=off'",
        "query_cache_size": "1048576",
        "query_cache_type": "1",
        "sql_if_exists": "1",
        "system_versioning_asof": "'2001-01-01 00:00:00'",
        "tx_isolation": "'SERIALIZABLE'",
        "tx_read_only": "1",
        "use_stat_tables": "'NEVER'",
    },
}

PRIVILEGES: Final = "SELECT, INSERT, UPDATE, DELETE, TRIGGER ON *.*"
"""Without CONNECTION ADMIN, whose holders are spared `init_connect`."""


@pytest.fixture(scope="module")
def hostile_server(server_name: ServerName) -> Iterator[EmbeddedServer]:
    """A server with all of these settings, and an account for the engine."""
    with server_or_skip(server_name) as server, connect(server) as root:
        run(root, "CREATE USER engine@localhost")
        run(root, f"GRANT {PRIVILEGES} TO engine@localhost")
        run(root, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO engine@localhost")
        run(root, "CREATE DATABASE shop CHARACTER SET utf8mb4")
        for name, value in {**OF_BOTH, **OF[FLAVOUR_OF[server_name]]}.items():
            run(root, f"SET GLOBAL {name} = {value}")
        yield server


@pytest.fixture(scope="module")
def proxy(hostile_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with running_proxy(hostile_server, tmp_path_factory.mktemp("hostile") / "log", account="engine") as proxy:
        yield proxy


@pytest.fixture
def client(proxy: RunningProxy, flavour: Flavour) -> Iterator[Connection[Any]]:
    """A client in a session as the server gives it, except that it may write, and that its transactions end."""
    writable = f"{'transaction' if flavour == 'mysql' else 'tx'}_read_only = 0"
    with proxy.connect(database="shop") as client:
        run(client, f"SET {writable}, autocommit = 1, completion_type = 0")
        yield client


@pytest.fixture
def root(hostile_server: EmbeddedServer) -> Iterator[Connection[Any]]:
    """The server's administrator, at the server itself, who may read any number of rows."""
    with connect(hostile_server, database="shop", init_command="SET sql_big_selects = 1, autocommit = 1") as root:
        yield root


def insert(client: Connection[Any], queue: str, count: int, **values: str) -> None:
    columns = ", ".join(["body", *values])
    row = ", ".join(["'x'", *values.values()])
    run(client, f"INSERT INTO {queue} ({columns}) VALUES {', '.join([f'({row})'] * count)}")


def received(client: Connection[Any], queue: str, count: int, wait: str = "NOWAIT") -> list[int]:
    return [int(row[0]) for row in rows(client, f"STREAM id FROM {queue} LIMIT {count} {wait}")]


def ids(found: list[int]) -> str:
    return ", ".join(map(str, found))


def test_messages_are_delivered_acknowledged_given_back_and_purged(client) -> None:
    run(client, "CREATE QUEUE plain (body TEXT) ENGINE = InnoDB")
    insert(client, "plain", 120)
    got = received(client, "plain", 120, "WAIT 20")
    assert got == list(range(1, 121))
    assert run(client, f"ACK plain WHERE id IN ({ids(got[:100])})") == 100
    assert run(client, "EXTEND plain WHERE id = 101 AND epoch = 1 BY 500") == 1
    assert run(client, f"NACK plain WHERE id IN ({ids(got[110:])})") == 10
    assert received(client, "plain", 10, "WAIT 20") == got[110:]
    assert [row[2:6] for row in rows(client, "SHOW QUEUES LIKE 'plain'")] == [(0, 0, 20, None)]
    assert run(client, "PURGE QUEUE plain") == 100


def test_old_messages_are_purged_except_those_that_a_foreign_key_refers_to(client, root) -> None:
    run(client, "CREATE QUEUE old (body TEXT) PURGE_AFTER = 0 ENGINE = InnoDB")
    run(
        client, "CREATE TABLE of_old (old_id BIGINT UNSIGNED, FOREIGN KEY (old_id) REFERENCES old (id)) ENGINE = InnoDB"
    )
    insert(client, "old", 1)
    run(client, "INSERT INTO of_old VALUES (1)")
    run(client, f"ACK old WHERE id IN ({ids(received(client, 'old', 1, 'WAIT 20'))})")
    run(client, "CREATE QUEUE older (body TEXT) PURGE_AFTER = 0 ENGINE = InnoDB")
    insert(client, "older", 30)
    run(client, f"ACK older WHERE id IN ({ids(received(client, 'older', 30, 'WAIT 20'))})")
    eventually(lambda: rows(root, "SELECT COUNT(*) FROM older") == [(0,)], timeout_s=30)
    assert rows(root, "SELECT COUNT(*) FROM old") == [(1,)]


def test_limits_hold(client) -> None:
    run(client, "CREATE QUEUE few (body TEXT) MAX_IN_FLIGHT = 3 MAX_RATE = 1000 ENGINE = InnoDB")
    insert(client, "few", 10)
    assert received(client, "few", 10, "WAIT 20") == [1, 2, 3]
    assert run(client, "ACK few WHERE id IN (1, 2)") == 2
    assert received(client, "few", 10, "WAIT 20") == [4, 5]


def test_a_semaphore_has_as_many_holders_as_places(client) -> None:
    run(client, "CREATE QUEUE lifts (body TEXT, needs VARCHAR(50)) SEMAPHORES = (needs) ENGINE = InnoDB")
    run(client, "CREATE SEMAPHORE lift CAPACITY 50")
    insert(client, "lifts", 60, needs="'lift'")
    assert len(received(client, "lifts", 60, "WAIT 20")) == 50
    assert received(client, "lifts", 60) == []
    assert run(client, "ACK lifts WHERE id <= 5") == 5
    assert len(received(client, "lifts", 60, "WAIT 20")) == 5


def test_groups_have_their_limit_their_order_and_their_rate(client) -> None:
    for name, options in (
        ("limited", "GROUP_LIMIT = 2"),
        ("ordered", "GROUP_ORDER = STRICT"),
        ("paced", "GROUP_RATE = 1"),
    ):
        run(
            client,
            f"CREATE QUEUE {name} (body TEXT, tenant VARCHAR(200)) GROUP_BY = (tenant) {options} ENGINE = InnoDB",
        )
        for tenant in ("ann", "bob"):
            insert(client, name, 4, tenant=f"CONCAT(REPEAT('t', 150), '{tenant}')")
    assert sorted(received(client, "limited", 8, "WAIT 20")) == [1, 2, 5, 6]
    assert sorted(received(client, "ordered", 8, "WAIT 20")) == [1, 5]
    assert sorted(received(client, "paced", 2, "WAIT 20")) == [1, 5]
    assert run(client, "ACK ordered WHERE id = 1") == 1
    assert received(client, "ordered", 8, "WAIT 20") == [2]


def test_dead_messages_are_moved_and_come_back(client, root) -> None:
    run(client, "CREATE QUEUE mail (body TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = mail_dead ENGINE = InnoDB")
    insert(client, "mail", 20)
    got = received(client, "mail", 20, "WAIT 20")
    assert run(client, f"NACK mail WHERE id IN ({ids(got)})") == 20
    eventually(lambda: rows(root, "SELECT COUNT(*) FROM mail_dead") == [(20,)])
    assert run(client, "REDRIVE QUEUE mail_dead TO mail") == 20
    assert len(received(client, "mail", 20, "WAIT 20")) == 20


def test_a_follow_up_comes_when_its_batch_is_done(client) -> None:
    run(client, "CREATE QUEUE steps (body TEXT) BATCHES ENGINE = InnoDB")
    insert(client, "steps", 3, batch="7")
    insert(client, "steps", 1, after_batch="7")
    parts = received(client, "steps", 10, "WAIT 20")
    assert parts == [1, 2, 3]
    assert received(client, "steps", 10) == []
    assert run(client, f"ACK steps WHERE id IN ({ids(parts)})") == 3
    assert received(client, "steps", 10, "WAIT 20") == [4]


def test_the_proxys_own_statements_return_all_that_they_should(client) -> None:
    run(client, "CREATE QUEUE shown (body TEXT, tenant INT) GROUP_BY = (tenant) ENGINE = InnoDB")
    run(client, "CREATE QUEUE shown_too (body TEXT) ENGINE = InnoDB")
    for tenant in range(5):
        insert(client, "shown", 2, tenant=str(tenant))
    assert len(rows(client, "SHOW GROUPS FROM shown")) == 5
    assert len(received(client, "shown", 4, "WAIT 20")) == 4
    assert len(rows(client, "SHOW DELIVERIES FROM shown")) == 4
    assert len(rows(client, "SHOW QUEUES LIKE 'shown%'")) == 2
    ((_, text),) = rows(client, "SHOW CREATE QUEUE shown")
    run(client, "PAUSE QUEUE shown")
    run(client, "RESUME QUEUE shown")
    run(client, "ALTER QUEUE shown MAX_IN_FLIGHT = 100")
    run(client, "DROP QUEUE shown")
    run(client, "DROP QUEUE shown_too")
    run(client, text)
