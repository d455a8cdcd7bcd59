"""Two proxies behind HAProxy, with the file of docker/: as processes, without containers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.haproxy import connected, connections, haproxy
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.deploy


@pytest.fixture
def proxies(
    private_server: EmbeddedServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[list[RunningProxy]]:
    (tmp_path / "settings.toml").write_text(f"admin_tls = true\n{getattr(request, 'param', '')}\n")
    options = ["--config", str(tmp_path / "settings.toml")]
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        yield [stack.enter_context(running_proxy(private_server, folder / "log", options)) for folder in folders]


@pytest.fixture
def port(proxies: list[RunningProxy], tmp_path: Path) -> Iterator[int]:
    """The port of HAProxy in front of both."""
    with haproxy(proxies, tmp_path) as port:
        yield port


def consumed(port: int, wanted: int) -> list[int]:
    """The ids of the messages that a worker acknowledges, which connects again whatever happens."""
    found: list[int] = []

    def step() -> bool:
        with contextlib.suppress(pymysql.MySQLError), connected(port, database="shop") as client:
            for number, _ in rows(client, "STREAM * FROM m LIMIT 10 WAIT 1"):
                if run(client, f"ACK m WHERE id = {number}"):
                    found.append(number)
        return len(set(found)) >= wanted

    eventually(step, timeout_s=40)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["drained", "killed"])
def test_messages_go_on_when_one_of_them_ends(
    private_server: EmbeddedServer, proxies: list[RunningProxy], port: int, number: signal.Signals
) -> None:
    with connect(private_server) as root, root.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    with connected(port, database="shop") as client:
        create_queue(client, "m")
        enqueue(client, "m", "a" * 30)
        assert len(rows(client, "STREAM * FROM m LIMIT 5 NOWAIT")) == 5
        proxies[0].terminate(number)
    assert sorted(consumed(port, 30)) == list(range(1, 31))


class Pool(threading.Thread):
    """A pool of one connection through HAProxy that is checked before each use. It enqueues, receives and
    acknowledges, until `stop` is set."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.stop, self.errors = threading.Event(), list[Exception]()
        self.enqueued = self.acknowledged = 0
        self._port = port
        self._connection: Any = None

    def run(self) -> None:
        while not self.stop.wait(0.3):  # Longer than what a draining proxy takes for idle.
            try:
                self._checked()
                self.enqueued += run(self._connection, "INSERT INTO m (payload) VALUES ('x')")
                for number, _ in rows(self._connection, "STREAM * FROM m LIMIT 10 WAIT 0.1"):
                    self.acknowledged += run(self._connection, f"ACK m WHERE id = {number}")
            except pymysql.MySQLError as error:
                self.errors.append(error)

    def _checked(self) -> None:
        with contextlib.suppress(pymysql.MySQLError, AttributeError):
            self._connection.ping(reconnect=False)
            return
        self._connection = connected(self._port, database="shop")


def advanced(pools: list[Pool], before: list[int]) -> bool:
    return all(pool.acknowledged > count for pool, count in zip(pools, before, strict=True))


def is_used(proxy: RunningProxy, port: int) -> bool:
    """Whether HAProxy passes clients on to it: a new one goes to the proxy with the fewest. Those of the pools may all
    have moved to the other proxy, and stay there."""
    with contextlib.suppress(pymysql.MySQLError), connected(port):
        return connections(proxy) > 0
    return False


@pytest.mark.parametrize("proxies", ["drain_work_s = 20"], indirect=True, ids=["drain_work_s"])
def test_clients_see_no_error_in_a_rolling_restart(
    private_server: EmbeddedServer, proxies: list[RunningProxy], port: int
) -> None:
    """The recipe of docs/upgrading.md: one after the other, each when the one before is ready."""
    with connect(private_server) as root, root.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    with connected(port, database="shop") as client:
        create_queue(client, "m")
    pools = [Pool(port) for _ in range(4)]
    for pool in pools:
        pool.start()
    eventually(lambda: all(pool.acknowledged for pool in pools))
    for proxy in proxies:
        proxy._options = [*proxy._options, "--admin", f"127.0.0.1:{proxy.admin_port}"]  # HAProxy knows this one.
        proxy.terminate()
        proxy.start()
        before = [pool.acknowledged for pool in pools]
        eventually(partial(advanced, pools, before), timeout_s=30)
        eventually(partial(is_used, proxy, port), timeout_s=30)
    for pool in pools:
        pool.stop.set()
        pool.join()
    assert [pool.errors for pool in pools] == [[]] * 4
    with connected(port, database="shop") as client:
        assert rows(client, "SELECT COUNT(*), COUNT(time_acked) FROM m") == [
            (sum(pool.enqueued for pool in pools), sum(pool.acknowledged for pool in pools))
        ]


def test_clients_are_divided_among_both(proxies: list[RunningProxy], port: int) -> None:
    clients = [connected(port) for _ in range(4)]
    try:
        assert [connections(proxy) for proxy in proxies] == [2, 2]
    finally:
        for client in clients:
            client.close()
