"""An engine whose account lacks a privilege: who is told, what is said, and how it recovers. Through a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually


@pytest.fixture
def root(server: EmbeddedServer, database: str) -> Iterator[Connection[Any]]:
    """The server's administrator, at the server itself."""
    with connect(server, database=database) as connection:
        yield connection


@pytest.fixture
def account(root: Connection[Any], database: str) -> Iterator[str]:
    """An account for the engine, without any privilege."""
    name = f"e_{database}"
    run(root, f"CREATE USER {name}@localhost")
    yield name
    run(root, f"DROP USER {name}@localhost")


@pytest.fixture
def proxy(server: EmbeddedServer, account: str, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy with that account, which reads the catalog five times a second."""
    config = tmp_path / "ackstream.toml"
    config.write_text("catalog_interval_s = 0.2\n")
    with running_proxy(server, tmp_path / "log", ["--config", str(config)], account) as proxy:
        yield proxy


def refused(client: Connection[Any], statement: str) -> str:
    """What is said of a statement that is refused by the proxy."""
    with pytest.raises(pymysql.MySQLError) as caught:
        rows(client, statement)
    code, text = caught.value.args
    assert code == 1105, text
    return str(text)


def problem(client: Connection[Any], queue: str = "m") -> object:
    with client.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"SHOW FULL QUEUES LIKE '{queue}'")
        (found,) = cursor.fetchall()
    return found["Problem"]


def served(client: Connection[Any]) -> bool:
    try:
        return rows(client, "STREAM payload FROM m LIMIT 1 WAIT 5") == [("a",)]
    except pymysql.MySQLError:
        return False


@pytest.mark.parametrize(("lacking", "scope"), [("SELECT", "m"), ("UPDATE", "m"), ("DELETE", "*")])
def test_each_privilege_that_is_missing_is_named_as_a_grant_and_given_is_enough(
    root: Connection[Any], proxy: RunningProxy, account: str, database: str, lacking: str, scope: str
) -> None:
    create_queue(root, "m")
    enqueue(root, "m", ["a", "b"])
    others = ", ".join({"SELECT", "UPDATE", "DELETE"} - {lacking})
    run(root, f"GRANT {others} ON {database}.{scope} TO {account}@localhost")
    grant = f"GRANT {lacking} ON `{database}`.`m` TO `{account}`@`localhost`"
    with proxy.connect(database=database) as client:
        eventually(lambda: grant in str(problem(client)))
        assert grant in refused(client, "STREAM * FROM m NOWAIT")
        assert run(client, "ACK FROM m WHERE id = 2") == 1  # That takes the client's privileges alone.
        eventually(lambda: grant in proxy.output)
        run(root, grant)
        eventually(lambda: served(client))
        assert problem(client) is None
    assert proxy.output.count(grant) == 1


def test_privileges_that_are_taken_away_end_running_streams_with_what_to_grant(
    root: Connection[Any], proxy: RunningProxy, account: str, database: str, consume: Any
) -> None:
    create_queue(root, "m")
    run(root, f"GRANT SELECT, UPDATE, DELETE ON {database}.m TO {account}@localhost")
    with proxy.connect(database=database) as client:
        eventually(lambda: problem(client) is None)
        stream = consume(proxy.connect(database=database), "STREAM payload FROM m")
        enqueue(client, "m", ["a"])
        eventually(lambda: stream.received == [("a",)])
        run(root, f"REVOKE UPDATE ON {database}.m FROM {account}@localhost")
        enqueue(client, "m", ["b"])
        grant = f"GRANT UPDATE ON `{database}`.`m` TO `{account}`@`localhost`"
        eventually(lambda: stream.error is not None)
        assert stream.error.args[0] == 1105
        assert grant in stream.error.args[1]
        assert run(client, "ACK FROM m WHERE id = 1") == 1


def test_privileges_on_all_tables_count_at_once_although_old_sessions_do_not_have_them(
    root: Connection[Any], proxy: RunningProxy, account: str, database: str
) -> None:
    create_queue(root, "m")
    enqueue(root, "m", ["a"])
    run(root, f"GRANT SELECT ON {database}.m TO {account}@localhost")
    with proxy.connect(database=database) as client:
        eventually(lambda: "UPDATE, DELETE ON" in str(problem(client)))
        run(root, f"GRANT SELECT, UPDATE, DELETE ON *.* TO {account}@localhost")
        eventually(lambda: served(client))


def test_privileges_that_mysql_does_not_add_up_are_asked_for_in_one_place(
    root: Connection[Any], proxy: RunningProxy, account: str, database: str, flavour: str
) -> None:
    create_queue(root, "m")
    enqueue(root, "m", ["a"])
    run(root, f"GRANT UPDATE, DELETE ON {database}.* TO {account}@localhost")
    run(root, f"GRANT SELECT ON {database}.m TO {account}@localhost")
    with proxy.connect(database=database) as client:
        if flavour == "mysql":
            grant = f"GRANT SELECT, UPDATE, DELETE ON `{database}`.* TO `{account}`@`localhost`"
            eventually(lambda: grant in str(problem(client)))
            run(root, grant)
        eventually(lambda: served(client))


def test_a_privilege_that_a_partial_revoke_takes_away_is_asked_for(
    root: Connection[Any], proxy: RunningProxy, account: str, database: str, flavour: str
) -> None:
    if flavour != "mysql":
        pytest.skip("MariaDB has no partial revokes")
    create_queue(root, "m")
    enqueue(root, "m", ["a"])
    run(root, "SET GLOBAL partial_revokes = ON")
    try:
        run(root, f"GRANT SELECT, UPDATE, DELETE ON *.* TO {account}@localhost")
        run(root, f"REVOKE UPDATE ON {database}.* FROM {account}@localhost")
        with proxy.connect(database=database) as client:
            grant = f"GRANT UPDATE ON `{database}`.`m` TO `{account}`@`localhost`"
            eventually(lambda: str(problem(client)).endswith(grant))
            run(root, grant)
            eventually(lambda: served(client))
    finally:
        run(root, f"REVOKE ALL, GRANT OPTION FROM {account}@localhost")
        run(root, "SET GLOBAL partial_revokes = OFF")


def test_rights_on_single_columns_do(root: Connection[Any], proxy: RunningProxy, account: str, database: str) -> None:
    create_queue(root, "m")
    enqueue(root, "m", ["a"])
    columns = "id, payload, priority, epoch, time_next, time_acked"
    run(
        root,
        f"GRANT SELECT ({columns}), UPDATE (epoch, time_next), DELETE ON {database}.m TO {account}@localhost",
    )
    with proxy.connect(database=database) as client:
        eventually(lambda: served(client))


def test_a_queue_that_the_account_may_not_see_says_so(
    root: Connection[Any], proxy: RunningProxy, account: str, database: str
) -> None:
    create_queue(root, "m")
    with proxy.connect(database=database) as client:
        grant = f"GRANT SELECT, UPDATE, DELETE ON `{database}`.`m` TO `{account}`@`localhost`"
        assert grant in refused(client, "STREAM * FROM m NOWAIT")


def test_a_dead_letter_table_where_the_account_may_not_insert_is_a_problem_of_its_queue(
    root: Connection[Any], proxy: RunningProxy, account: str, database: str
) -> None:
    create_queue(root, "m", max_attempts="3", dead_letter="graves")
    create_queue(root, "graves", dead_letter_of="m")
    run(root, f"GRANT SELECT, UPDATE, DELETE ON {database}.m TO {account}@localhost")
    run(root, f"GRANT SELECT, UPDATE, DELETE ON {database}.graves TO {account}@localhost")
    with proxy.connect(database=database) as client:
        grant = f"GRANT INSERT ON `{database}`.`graves` TO `{account}`@`localhost`"
        eventually(lambda: grant in str(problem(client)))
        enqueue(client, "m", ["a"])
        assert served(client)
        run(root, grant)
        eventually(lambda: problem(client) is None)


def test_what_the_account_may_not_do_anywhere_is_said_once_at_the_start(
    root: Connection[Any], proxy: RunningProxy, account: str
) -> None:
    assert "may not end what vanished clients leave running: GRANT CONNECTION" in proxy.output
    eventually(lambda: proxy.metric("catalog_refreshes_total") >= 3)
    assert proxy.output.count("what vanished clients leave running") == 1
