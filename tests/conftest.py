"""Fixtures that all tests share: real servers, and a database of its own for each test.

Tests that ask for `server` run once on MySQL 9.x and once on MariaDB. The servers belong to the
pytest process (each xdist worker has its own) and end with it, however it ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import Consumer
from tests.support.servers import (
    FLAVOURS,
    LEFT_OUT,
    ServerMissingError,
    ServerPool,
    connect,
    server_binary,
    server_or_skip,
)

# Without Spark those tests cannot even be imported; make test-pipeline brings it.
collect_ignore = [] if importlib.util.find_spec("pyspark") else ["pipeline"]

# How long an example takes is the machine's affair, and how busy it is.
hypothesis.settings.register_profile(
    "ackstream", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("ackstream")

DATABASE_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    """The running servers of this pytest process."""
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session", params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Each kind of server in turn."""
    chosen: Flavour = request.param
    return chosen


@pytest.fixture(scope="session")
def server(server_pool: ServerPool, flavour: Flavour) -> EmbeddedServer:
    """The shared server of the flavour: use `database`, and leave its settings as they are."""
    return server_pool.get(flavour)


@pytest.fixture
def private_server(flavour: Flavour) -> Iterator[EmbeddedServer]:
    """A durable server that belongs to one test, which may kill it or change its settings."""
    with server_or_skip(flavour, durable=True) as server:
        yield server


@pytest.fixture(scope="session")
def proxy(server: EmbeddedServer, flavour: Flavour, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """The shared proxy in front of the shared server: do not kill it."""
    with running_proxy(server, tmp_path_factory.mktemp(f"proxy-{flavour}") / "log") as proxy:
        yield proxy


@pytest.fixture
def private_proxy(private_server: EmbeddedServer, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy that belongs to one test, in front of a server that does too."""
    with running_proxy(private_server, tmp_path / "proxy.log") as proxy:
        yield proxy


@pytest.fixture
def consume() -> Iterator[Callable[[Connection[Any], str], Consumer]]:
    """Begin to read a stream in the background; what still runs at the end of the test is cut off."""
    consumers: list[Consumer] = []

    def begin(connection: Connection[Any], statement: str) -> Consumer:
        consumers.append(Consumer(connection, statement))
        return consumers[-1]

    yield begin
    for each in consumers:
        each.vanish()


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[str]:
    """The name of an empty database on `server`, dropped afterwards."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    name = f"test_{worker}_{next(DATABASE_NUMBERS)}"
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield name
    drop_database(server, name)


def drop_database(server: EmbeddedServer, name: str) -> None:
    """Drop it, and whatever transaction a failed test left open in it."""
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [name])
        for (connection_id,) in cursor.fetchall():
            with contextlib.suppress(pymysql.OperationalError):  # It has ended meanwhile.
                cursor.execute(f"KILL {connection_id}")
        cursor.execute("SET SESSION lock_wait_timeout = 10")
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def pytest_report_header() -> list[str]:
    """Which servers this run tests, the missing ones with the reason."""
    return [_server_line(flavour) for flavour in FLAVOURS]


def _server_line(flavour: Flavour) -> str:
    try:
        return f"{flavour}: {server_binary(flavour)}"
    except ServerMissingError as missing:
        return f"{flavour}: *** {LEFT_OUT[flavour]}: {missing} ***"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One loud line for a server that was left out, with the number of tests not run."""
    reasons = Counter(
        report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.items():
        text = reason.removeprefix("Skipped: ")
        if text.startswith(tuple(LEFT_OUT.values())):
            terminalreporter.write_line(f"*** {text}: {count} tests not run ***", red=True, bold=True)
