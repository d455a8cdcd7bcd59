"""An upgrade under load: two proxies of the version before behind HAProxy are replaced, one after the other,
and back again. Nothing is lost, and clients see nothing but the end of their connections.

The version before is built from git: the last tag; without tags, the state of `COMMITS` commits ago.
ACKSTREAM_UPGRADE_FROM names another commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
import venv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.haproxy import connected, haproxy
from tests.support.proxies import RunningProxy, environment
from tests.support.queues import rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).parents[2]
COMMITS = 60
CONNECTION_ENDED = {1053, 2006, 2013}
AGE_MAX_S = 3.0
QUEUES = ("m", "paced")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def before() -> str:
    """The commit of the version before."""
    named = os.environ.get("ACKSTREAM_UPGRADE_FROM") or git("describe", "--tags", "--abbrev=0", "HEAD~1")
    commit = git("rev-parse", "--verify", f"{named or f'HEAD~{COMMITS}'}^{{commit}}")
    if not commit:
        pytest.skip("there is no git history to build the version before from")
    return commit


def installed(source: Path, folder: Path) -> list[str]:
    """The program of a wheel that is built from these sources, in an environment of its own."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    python = folder / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True)
    (site,) = (folder / "environment").glob("lib/*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return [str(folder / "environment" / "bin" / "ackstream")]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program of the version before."""
    folder = tmp_path_factory.mktemp("old")
    archive = folder / "source.tar"
    command = ["git", "-C", str(REPOSITORY), "archive", "--output", str(archive), before()]
    subprocess.run(command, check=True)
    with tarfile.open(archive) as sources:
        sources.extractall(folder / "source", filter="data")
    return installed(folder / "source", folder)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program of this version."""
    return installed(REPOSITORY, tmp_path_factory.mktemp("new"))


@pytest.fixture
def proxies(private_server: EmbeddedServer, tmp_path: Path, old: list[str]) -> Iterator[list[RunningProxy]]:
    """Two of the version before."""
    # An unknown variable is a warning, so a version before may lack the setting.
    with environment(ACKSTREAM_DRAIN_WORK_S="20"), contextlib.ExitStack() as stack:
        proxies: list[RunningProxy] = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            proxy = RunningProxy(private_server, tmp_path / name / "log", program=old)
            stack.callback(proxy.stop)
            proxy.start()
            proxies.append(proxy)
        yield proxies


class Client(threading.Thread, ABC):
    """It connects through HAProxy, works until `stop` is set, and connects again when its connection ends, or is
    as old as connections of a pool become."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.errors: list[Exception] = []
        self._port = port

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with connected(self._port, database="shop") as connection:
                    until = time.monotonic() + AGE_MAX_S
                    while not self.stop.is_set() and time.monotonic() < until:
                        self.work(connection)
            except pymysql.MySQLError as error:
                if error.args[0] not in CONNECTION_ENDED:
                    self.errors.append(error)
            except Exception as error:  # noqa: BLE001  # The test reports it.
                self.errors.append(error)
                return

    @abstractmethod
    def work(self, connection: Any) -> None:
        """One piece of work, on a connection of this client."""


class Producer(Client):
    """Enqueues messages with payloads that exist once. `answered`: those whose INSERT was answered."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port)
        self.answered: list[tuple[str, str]] = []
        self._number, self._count = number, 0

    def work(self, connection: Any) -> None:
        queue = QUEUES[self._count % len(QUEUES)]
        payload = f"{self._number}.{self._count}"
        self._count += 1
        run(connection, f"INSERT INTO {queue} (payload) VALUES ('{payload}')")
        self.answered.append((queue, payload))
        self.stop.wait(0.005)


class Worker(Client):
    """Receives and acknowledges. `done`: messages whose ACK was answered with one row; `late`: those that were
    delivered after that."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(port)
        self.done: set[int] = set()
        self.late: list[int] = []
        self.queue = queue

    def work(self, connection: Any) -> None:
        for number, epoch, _ in rows(connection, f"STREAM id, epoch, payload FROM {self.queue} LIMIT 20 WAIT 0.5"):
            if number in self.done:
                self.late.append(number)
            if run(connection, f"ACK {self.queue} WHERE id = {number} AND epoch = {epoch}"):
                self.done.add(number)


def advanced(clients: Sequence[Worker], counts: Sequence[int]) -> bool:
    assert [client.errors for client in clients] == [[]] * len(clients)
    return all(len(client.done) > count + 20 for client, count in zip(clients, counts, strict=True))


def replaced(proxy: RunningProxy, program: list[str]) -> None:
    """Stop a proxy, and start another version on its addresses."""
    proxy._options = ["--admin", f"127.0.0.1:{proxy.admin_port}"]  # HAProxy knows this one.
    assert proxy.terminate() == 0
    proxy.program = program
    proxy.start()


def is_used(proxy: RunningProxy, port: int) -> bool:
    """Whether HAProxy passes clients on to it: a new one goes to the proxy with the fewest."""
    with contextlib.suppress(pymysql.MySQLError), connected(port):
        return proxy.metric("connections") > 0
    return False


def migrated(server: EmbeddedServer, program: list[str]) -> str:
    """Run `ackstream migrate` of the new version; returns what it has done."""
    command = [*program, "migrate", "--backend", f"mysql://root@{server.host}:{server.port}", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (step,) = map(json.loads, done.stdout.splitlines())
    assert step["table"] == "shop.ackstream_limits"
    return str(step["result"])


def migrated_beside_both(server: EmbeddedServer, program: list[str]) -> None:
    """While proxies of both versions run: what is there is left, and what is missing is made."""
    assert migrated(server, program) == "current"
    with connect(server) as root:
        run(root, "DROP TABLE shop.ackstream_limits")
    assert migrated(server, program) == "made"


def test_an_upgrade_under_load_loses_nothing_and_neither_does_the_way_back(
    private_server: EmbeddedServer, proxies: list[RunningProxy], old: list[str], new: list[str], tmp_path: Path
) -> None:
    """The recipe of docs/upgrading.md."""
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
    with haproxy(proxies, tmp_path, tls=False) as port:
        with connected(port, database="shop") as client:
            run(client, "CREATE QUEUE m (payload VARCHAR(64))")
            run(client, "CREATE QUEUE paced (payload VARCHAR(64)) MAX_RATE = 5000")
        assert migrated(private_server, new) in {"made", "current"}  # The old version may make it, too.
        workers = [Worker(port, queue) for queue in QUEUES for _ in range(2)]
        producers = [Producer(port, number) for number in range(2)]
        for thread in (*workers, *producers):
            thread.start()
        for proxy, program in [(proxies[0], new), (proxies[1], new), (proxies[0], old)]:
            eventually(partial(advanced, workers, [len(worker.done) for worker in workers]), timeout_s=40)
            replaced(proxy, program)
            eventually(partial(is_used, proxy, port), timeout_s=40)
            if proxy is proxies[0]:
                migrated_beside_both(private_server, new)
        eventually(partial(advanced, workers, [len(worker.done) for worker in workers]), timeout_s=40)
        for producer in producers:
            producer.stop.set()
            producer.join()
        with connected(port, database="shop") as client:
            for queue in QUEUES:
                unacknowledged = f"SELECT COUNT(*) FROM {queue} WHERE time_acked IS NULL"
                eventually(partial(lambda text: rows(client, text) == [(0,)], unacknowledged), timeout_s=40)
            for worker in workers:
                worker.stop.set()
                worker.join()
            kept = Counter(
                (queue, payload) for queue in QUEUES for (payload,) in rows(client, f"SELECT payload FROM {queue}")
            )
            problems = rows(client, "SHOW FULL QUEUES")
    assert [thread.errors for thread in (*workers, *producers)] == [[]] * 6
    assert set(kept.values()) == {1}
    assert {message for producer in producers for message in producer.answered} <= kept.keys()
    assert [worker.late for worker in workers] == [[]] * 4
    assert [row[-1] for row in problems] == [None, None]
