"""An account that owns a database, and puts views in the places of tables there, reaches nothing that is closed to it.

The engine's account is root, and the views and their functions take the rights of whoever uses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

OPTIONS = "ACK_WAIT = 0.1, MAX_ATTEMPTS = 1, DEAD_LETTER = m_dead, PURGE_AFTER = 0, POLLER_INTERVAL = 1"
MADE = (
    f"CREATE QUEUE m (tenant INT) GROUP_BY = (tenant), GROUP_RATE = 1000, MAX_RATE = 1000, {OPTIONS}",
    "CREATE QUEUE s (needs VARCHAR(600)) SEMAPHORES = (needs)",
    "CREATE SEMAPHORE printer CAPACITY 1",
)
SAID = (
    "STREAM * FROM m LIMIT 1 NOWAIT",
    "STREAM * FROM s LIMIT 1 NOWAIT",
    "STREAM * FROM m LIMIT 1 NOWAIT FOR UPDATE",
    "ACK m WHERE id = 1",
    "NACK m WHERE id = 2",
    "EXTEND m WHERE id = 3 BY 5",
    "INSERT INTO m (tenant) VALUES (1)",
    "INSERT INTO s (needs) VALUES ('printer')",
    "SHOW FULL QUEUES",
    "SHOW CREATE QUEUE m",
    "SHOW GROUPS FROM m",
    "SHOW DELIVERIES FROM m",
    "SHOW SEMAPHORES",
    "PURGE QUEUE m",
    "REDRIVE QUEUE m_dead TO m",
    "ALTER QUEUE m MAX_RATE = 900",
    "CREATE SEMAPHORE scanner CAPACITY 1",
    "STREAM * FROM m LIMIT 1 WAIT 1",
    "STREAM * FROM s LIMIT 1 WAIT 1",
)


@dataclass
class Tenant:
    """An account with a database of its own, and another database, where it may read one table."""

    root: Connection[Any]
    own: Connection[Any]
    """Its session at the proxy."""
    database: str
    other: str

    def put_view(self, name: str) -> None:
        """Put a view of the other database's table in the place of a table."""
        columns = rows(self.own, f"SHOW COLUMNS FROM {name}")
        shown = ", ".join(f"{'name' if 'char' in column[1] else 'balance'} AS `{column[0]}`" for column in columns)
        with connect_again(self.own) as own:
            run(own, f"RENAME TABLE {name} TO {name}_before")
            run(own, f"CREATE SQL SECURITY INVOKER VIEW {name} AS SELECT {shown} FROM {self.other}.t WHERE seen() = 1")

    def put_back(self, name: str) -> None:
        """Put the table itself back."""
        run(self.own, f"DROP VIEW {name}")
        run(self.own, f"RENAME TABLE {name}_before TO {name}")


def connect_again(connection: Any) -> Connection[Any]:
    """Another session of the same account."""
    return pymysql.connect(
        host=connection.host, port=connection.port, user=connection.user, database=connection.db, autocommit=True
    )


@pytest.fixture
def tenant(server: EmbeddedServer, proxy: RunningProxy, database: str) -> Iterator[Tenant]:
    user, other = f"u_{database}", f"{database}_other"
    with connect(server) as root:
        run(root, "SET GLOBAL log_bin_trust_function_creators = 1")
        run(root, f"CREATE DATABASE {other}")
        run(root, f"CREATE TABLE {other}.t (name VARCHAR(64) PRIMARY KEY, balance BIGINT)")
        run(root, f"CREATE TABLE {other}.seen (n INT)")
        run(root, f"INSERT INTO {other}.t VALUES ('m', 5), ('printer', 7)")
        run(root, f"CREATE USER {user}@localhost")
        run(root, f"GRANT ALL ON {database}.* TO {user}@localhost")
        run(root, f"GRANT SELECT ON {other}.t TO {user}@localhost")
        with proxy.connect(user=user, database=database) as own:
            for statement in MADE:
                run(own, statement)
            run(
                own,
                "CREATE FUNCTION seen() RETURNS INT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER"
                f" BEGIN INSERT INTO {other}.seen VALUES (1); RETURN 1; END",
            )
            eventually(lambda: all(row[-1] is None for row in rows(own, "SHOW FULL QUEUES")))
            yield Tenant(root, own, database, other)
        run(root, f"DROP USER {user}@localhost")
        run(root, f"DROP DATABASE {other}")


@pytest.mark.parametrize("name", ["m", "m_dead", "ackstream_limits", "ackstream_group_rates", "ackstream_semaphores"])
def test_a_view_in_the_place_of_a_table_reaches_nothing_of_others(tenant: Tenant, name: str) -> None:
    run(tenant.own, "INSERT INTO m (tenant) VALUES (1), (2), (3)")
    run(tenant.own, "INSERT INTO s (needs) VALUES ('printer'), ('printer')")
    tenant.put_view(name)
    for statement in SAID:
        with contextlib.suppress(pymysql.MySQLError):
            rows(tenant.own, statement)
    tenant.put_back(name)
    assert rows(tenant.root, f"SELECT name, balance FROM {tenant.other}.t ORDER BY name") == [("m", 5), ("printer", 7)]
    assert rows(tenant.root, f"SELECT * FROM {tenant.other}.seen") == []


def test_what_is_a_view_no_longer_is_used_again(tenant: Tenant) -> None:
    tenant.put_view("ackstream_semaphores")
    eventually(lambda: "it is a view" in str(rows(tenant.own, "SHOW FULL QUEUES LIKE 's'")[0][-1]), timeout_s=30)
    tenant.put_back("ackstream_semaphores")
    run(tenant.own, "INSERT INTO s (needs) VALUES ('printer')")
    assert len(rows(tenant.own, "STREAM id FROM s LIMIT 1 WAIT 20")) == 1


@pytest.mark.parametrize("name", ["m", "ackstream_limits", "ackstream_group_rates", "ackstream_semaphores"])
def test_a_trigger_has_the_rights_of_its_owner_and_not_those_of_the_engine(tenant: Tenant, name: str) -> None:
    with connect_again(tenant.own) as own:
        for event in ("INSERT", "UPDATE"):
            body = f"BEFORE {event} ON {name} FOR EACH ROW SET @seen = seen()"
            run(own, f"CREATE TRIGGER {event.lower()}_{name} {body}")
    with contextlib.suppress(pymysql.MySQLError):
        run(tenant.own, "INSERT INTO m (tenant) VALUES (1)")
    for statement in SAID:
        with contextlib.suppress(pymysql.MySQLError):
            rows(tenant.own, statement)
    assert rows(tenant.root, f"SELECT * FROM {tenant.other}.seen") == []
