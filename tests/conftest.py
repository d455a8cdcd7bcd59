"""Fixtures that all tests share: real servers, and a database of its own for each test.

Tests that ask for `server` run once on MySQL 9.x and once on MariaDB, 10.11 or 11.8, which is drawn for
each file (tests/support/sampling.py). The servers belong to the pytest process (each xdist worker has its
own) and end with it, however it ends.
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
from tests.support.cpu import cpu_limit
from tests.support.gate import Gate
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import Consumer
from tests.support.sampling import SEED, examples, taken
from tests.support.servers import (
    FLAVOUR_OF,
    LEFT_OUT,
    SERVERS,
    ServerMissingError,
    ServerName,
    ServerPool,
    connect,
    server_binary,
    server_or_skip,
)

# Without Spark those tests cannot even be imported; make test-pipeline brings it.
collect_ignore = [] if importlib.util.find_spec("pyspark") else ["pipeline"]

# How long an example takes is the machine's affair, and how busy it is.
hypothesis.settings.register_profile(
    "ackstream", max_examples=examples(40), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("ackstream")

DATABASE_NUMBERS = itertools.count(1)

COMPUTING = ("tests/unit/", "tests/property/")
"""Tests that compute and wait for nobody. A busy machine must not fail them, so their limit is CPU time."""
FILLING = ("tests/plans/",)
"""Tests that fill tables with 200,000 rows first, for which a busy machine takes its time."""
FILLED_S = 300
CPU_S = examples(120)
WALL_S = examples(900)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for all that is random; failed tests are named as they fail."""
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)
    if not hasattr(config, "workerinput"):  # A process of pytest-xdist prints nothing.
        config.pluginmanager.register(FailuresAtOnce(config.pluginmanager))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run does not take, and give those that compute their limits."""
    kept = taken(items, [name for name in SERVERS if "***" not in _server_line(name)])
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        if path.startswith(FILLING):
            item.add_marker(pytest.mark.timeout(FILLED_S))
        if path.startswith(COMPUTING):
            item.add_marker(pytest.mark.timeout(WALL_S))
            if not item.get_closest_marker("cpu"):
                item.add_marker(pytest.mark.cpu(CPU_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End a test that has used more CPU time than its mark `cpu(seconds)` allows."""
    mark = item.get_closest_marker("cpu")
    with cpu_limit(mark.args[0]) if mark else contextlib.nullcontext():
        return (yield)


class FailuresAtOnce:
    """Prints the name of a test and the first line of its error as soon as it fails."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._plugins.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash else str(report.longrepr)
            reporter.write_line(f"\n*** failed: {report.nodeid}: {reason.strip().splitlines()[0][:300]}", red=True)


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    """The running servers of this pytest process."""
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session", params=SERVERS)
def server_name(request: pytest.FixtureRequest) -> ServerName:
    """Each server in turn."""
    chosen: ServerName = request.param
    return chosen


@pytest.fixture(scope="session")
def flavour(server_name: ServerName) -> Flavour:
    """What the server's SQL is like."""
    return FLAVOUR_OF[server_name]


@pytest.fixture(scope="session")
def server(server_pool: ServerPool, server_name: ServerName) -> EmbeddedServer:
    """The shared server of this name: use `database`, and leave its settings as they are."""
    return server_pool.get(server_name)


@pytest.fixture
def private_server(server_name: ServerName) -> Iterator[EmbeddedServer]:
    """A durable server that belongs to one test, which may kill it or change its settings."""
    with server_or_skip(server_name, durable=True) as server:
        yield server


@pytest.fixture(scope="session")
def proxy(
    server: EmbeddedServer, server_name: ServerName, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """The shared proxy in front of the shared server: do not kill it."""
    with running_proxy(server, tmp_path_factory.mktemp(f"proxy-{server_name}") / "log") as proxy:
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
    for consumer in consumers:
        consumer.vanish()


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
    """Which servers this run tests, the missing ones with the reason, and the seed of what it draws."""
    return [*map(_server_line, SERVERS), f"seed: {SEED} (repeat with TESTS_SEED={SEED})"]


def _server_line(name: ServerName) -> str:
    try:
        return f"{name}: {server_binary(name)}"
    except ServerMissingError as missing:
        return f"{name}: *** {LEFT_OUT[name]}: {missing} ***"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seed if anything failed; one loud line for a server that was left out, with the number of tests not run."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"*** the seed of this run: TESTS_SEED={SEED} ***", red=True, bold=True)
    reasons = Counter(
        report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.items():
        text = reason.removeprefix("Skipped: ")
        if text.startswith(tuple(LEFT_OUT.values())):
            terminalreporter.write_line(f"*** {text}: {count} tests not run ***", red=True, bold=True)


@pytest.fixture(scope="module")
def gate(server: EmbeddedServer) -> Iterator[Gate]:
    """A relay in front of the server that withholds answers when a test asks it to."""
    with Gate(server) as gate:
        yield gate


@pytest.fixture(scope="module")
def gated_proxy(server: EmbeddedServer, gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy that reaches the server through the gate."""
    gated: Any = gate
    with running_proxy(gated, tmp_path_factory.mktemp("gated") / "log") as proxy:
        yield proxy
