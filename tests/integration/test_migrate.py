"""`ackstream migrate`: tables of ackstream's own are made, upgraded, and left alone where they are newer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from string import Template
from typing import Any

import pytest

from engine.catalog.own_tables import LIMITS_TABLE
from engine.model import TableId
from engine.queue_table import QueueTable
from engine.store.connection import StoreConnection
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from proxy.commands import migrate
from proxy.embedded.server import EmbeddedServer
from proxy.session.queries import sql
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

LATER = replace(LIMITS_TABLE, upgrades=("limits_to_2", "limits_to_3"))
"""The table of limits in a version that is made up here."""
UPGRADES = {
    "limits_to_2": "ALTER TABLE $table ADD COLUMN note INT, COMMENT = $comment",
    "limits_to_3": "ALTER TABLE $table ADD COLUMN other INT, COMMENT = $comment",
}
UNVERSIONED = LIMITS_TABLE.comment().removesuffix(" (version 1)")


@pytest.fixture
def client(server: EmbeddedServer, database: str) -> Iterator[Any]:
    with connect(server, database=database) as client:
        yield client


@pytest.fixture
def place(database: str) -> TableId:
    return TableId(database, LIMITS_TABLE.name)


@pytest.fixture
def address(server: EmbeddedServer) -> BackendAddress:
    return BackendAddress(server.host, server.port, "root")


@pytest.fixture
def connection(address: BackendAddress) -> Iterator[StoreConnection]:
    connection = StoreConnection(address, migrate.LIMITS)
    yield connection
    connection.close()


@pytest.fixture
def upgrades(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_up(name: str, **values: object) -> str:
        return Template(UPGRADES[name]).substitute(values) if name in UPGRADES else sql(name, **values)

    monkeypatch.setattr(migrate, "sql", made_up)


def comment(client: Any) -> Any:
    (row,) = rows(client, "SHOW TABLE STATUS LIKE 'ackstream\\_limits'")
    return next(text for text in row if str(text).startswith("ackstream:"))


def columns(client: Any) -> list[str]:
    return [row[0] for row in rows(client, "SHOW COLUMNS FROM ackstream_limits")]


def results(connection: StoreConnection, place: TableId, own: Any, *, check: bool = False) -> list[str]:
    return [step.result for step in migrate.steps(connection, [place], {own.name: own}, check=check)]


def described(address: BackendAddress, database: str) -> QueueTable:
    store = MySQLStore(address)
    try:
        found = store.describe(TableId(database, "m")).value
    finally:
        store.close()
    assert isinstance(found, QueueTable)
    return found


def test_a_table_is_made_once(client: Any, connection: StoreConnection, place: TableId) -> None:
    assert results(connection, place, LIMITS_TABLE, check=True) == ["missing"]
    assert results(connection, place, LIMITS_TABLE) == ["made"]
    assert results(connection, place, LIMITS_TABLE) == ["current"]
    assert comment(client) == f"{UNVERSIONED} (version 1)"


@pytest.mark.usefixtures("upgrades")
def test_a_table_of_an_older_release_is_upgraded_with_what_it_holds(
    client: Any, connection: StoreConnection, place: TableId
) -> None:
    run(client, sql("create_limits", table="ackstream_limits", comment=f"'{UNVERSIONED}'"))
    run(client, "INSERT INTO ackstream_limits (queue, full_ns) VALUES ('m', 7)")
    assert results(connection, place, LATER, check=True) == ["outdated", "outdated"]
    assert columns(client) == ["queue", "full_ns"]
    assert results(connection, place, LATER) == ["upgraded", "upgraded"]
    assert columns(client) == ["queue", "full_ns", "note", "other"]
    assert rows(client, "SELECT queue, full_ns FROM ackstream_limits") == [("m", 7)]
    assert results(connection, place, LATER) == ["current"]


@pytest.mark.usefixtures("upgrades")
def test_an_upgrade_that_was_cut_short_is_continued(client: Any, connection: StoreConnection, place: TableId) -> None:
    run(client, sql("create_limits", table="ackstream_limits", comment=f"'{UNVERSIONED}'"))
    next(migrate.steps(connection, [place], {LATER.name: LATER}, check=False))
    assert columns(client) == ["queue", "full_ns", "note"]
    assert results(connection, place, LATER) == ["upgraded"]


def test_a_newer_table_is_left_alone_and_not_used(
    client: Any, connection: StoreConnection, place: TableId, address: BackendAddress, database: str
) -> None:
    run(client, sql("create_limits", table="ackstream_limits", comment=f"'{LATER.comment()}'"))
    (step,) = migrate.steps(connection, [place], check=False)
    assert (step.result, step.statement) == ("error", "")
    assert step.text.endswith("has version 3, this program uses version 1: use a newer ackstream")
    create_queue(client, "m", max_rate="5")
    found = described(address, database)
    assert found.policy.paused
    assert f"nothing is delivered: {place} has version 3" in "".join(found.warnings)


def test_a_queue_uses_a_table_of_a_release_without_versions(
    client: Any, address: BackendAddress, database: str
) -> None:
    run(client, sql("create_limits", table="ackstream_limits", comment=f"'{UNVERSIONED}'"))
    create_queue(client, "m", max_rate="5")
    assert not described(address, database).policy.paused


def test_a_stranger_with_a_user_level_lock_does_not_stop_it(
    client: Any, server: EmbeddedServer, address: BackendAddress, database: str
) -> None:
    """An earlier release took one."""
    create_queue(client, "m", max_rate="5")
    with connect(server) as stranger:
        rows(stranger, "SELECT GET_LOCK('ackstream/migrate', 10)")
        assert f"{database}.ackstream_limits" in {step.table for step in migrate.migrated(address, check=False)}


def program(server: EmbeddedServer, *options: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "ACKSTREAM_BACKEND": f"mysql://{user}@{server.host}:{server.port}"}
    command = [sys.executable, "-m", "proxy", "migrate", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=variables)


def test_the_program_makes_what_queues_need_and_a_running_proxy_uses_it(
    private_server: EmbeddedServer, private_proxy: RunningProxy
) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
    done = program(private_server)
    assert (done.returncode, done.stdout) == (0, "")
    with private_proxy.connect(database="shop") as client:
        create_queue(client, "m", max_rate="5")
        eventually(lambda: rows(client, "SHOW FULL QUEUES")[0][-1] is not None)
        done = program(private_server, "--check")
        assert done.returncode == 1
        assert done.stdout.startswith("missing   shop.ackstream_limits: version 1\nCREATE TABLE ")
        done = program(private_server, "--json")
        assert (done.returncode, json.loads(done.stdout)["result"]) == (0, "made")
        eventually(lambda: rows(client, "SHOW FULL QUEUES")[0][-1] is None, timeout_s=30)
    done = program(private_server, "--check")
    assert (done.returncode, done.stdout) == (0, "current   shop.ackstream_limits: version 1\n")


def test_the_program_names_what_the_account_lacks_and_leaves_a_read_only_server_alone(
    private_server: EmbeddedServer,
) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
        run(root, "CREATE USER engine@localhost")
        run(root, "GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO engine@localhost")
        root.select_db("shop")
        create_queue(root, "m", max_rate="5")
        done = program(private_server, user="engine")
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("GRANT CREATE and ALTER on it to this account")
        run(root, "SET GLOBAL read_only = 1")
        done = program(private_server)
        assert (done.returncode, done.stderr) == (1, "ackstream: no server can be written to\n")
        assert rows(root, "SHOW TABLES") == [("m",)]
