"""`--processes N`: so many whole proxies on one port, and a supervisor that replaces one that ends or hangs."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from proxy.server.processes import HUNG_S
from tests.support import insides
from tests.support.prepared import ForkedProxy
from tests.support.proxies import READY, RunningProxy, proxies_of
from tests.support.queues import Consumer, create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

Serve = Callable[..., RunningProxy]


@pytest.fixture
def serve(server: EmbeddedServer, tmp_path: Path) -> Iterator[Serve]:
    """Begin so many proxies on one port, with these settings."""
    with proxies_of(tmp_path) as start:

        def begin(count: int = 2, *options: str, server: Any = server, **settings: str) -> RunningProxy:
            return start(server, "--processes", str(count), *options, **settings)

        yield begin


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?counted=no", timeout=5) as answer:
        (found,) = re.findall(rf"^ackstream_{name} (\S+)", answer.read().decode(), re.MULTILINE)
    return float(found)


def process_of(port: int) -> int:
    """The process that listens on an admin port; 0: none does."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{at[9]}]" for at in lines if at[1].endswith(f":{port:04X}") and at[3] == "0A"}
    found = (process for process in Path("/proc").iterdir() if process.name.isdigit())
    return next((int(process.name) for process in found if descriptors(process) & sockets), 0)


def descriptors(process: Path) -> set[str]:
    try:
        return {str(entry.readlink()) for entry in (process / "fd").iterdir()}
    except OSError:  # It has ended.
        return set()


def is_replaced(proxy: RunningProxy, number: int, before: int) -> bool:
    """Whether another process has the place of one, and serves clients."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_ports[number]}/readyz", timeout=5):
            return process_of(proxy.admin_ports[number]) not in {0, before}
    except OSError:
        return False


@contextlib.contextmanager
def one_of_each(proxy: RunningProxy, database: str) -> Iterator[list[Any]]:
    """A connection to each process, in the order of their admin ports. The kernel chooses, so others are opened too."""
    found: dict[int, Any] = {}
    with contextlib.ExitStack() as opened:
        while len(found) < len(proxy.admin_ports):
            before = {port: metric(port, "connections_accepted_total") for port in proxy.admin_ports}
            connection = proxy.connect(database=database)
            opened.callback(insides.cut, connection)
            (at,) = [port for port, count in before.items() if metric(port, "connections_accepted_total") > count]
            found.setdefault(at, connection)
        yield [found[port] for port in proxy.admin_ports]


def test_all_listen_on_one_port_and_each_has_a_slot_and_an_engine(serve: Serve, database: str) -> None:
    proxy = serve(3)
    assert len({process_of(port) for port in proxy.admin_ports}) == 3
    with one_of_each(proxy, database) as (first, *others):
        create_queue(first, "m")
        enqueue(first, "m", "ab")
        for client in others:
            assert len(rows(client, "STREAM id FROM m LIMIT 1 WAIT 20")) == 1
        eventually(lambda: len([row for row in rows(first, "SHOW PROXIES") if row[0] is not None]) >= 3)
        for client in others:  # Each shows what it has itself.
            assert [row[5] for row in rows(client, "SHOW PROXIES") if row[5] is not None] == [1]


def test_the_admin_ports_are_those_from_the_given_one_on(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        free = one.getsockname()[1]
    proxy = serve(2, "--admin", f"127.0.0.1:{free}")
    assert proxy.admin_ports == [free, free + 1]


def test_one_that_is_killed_takes_nothing_with_it_and_another_has_its_place(
    serve: Serve, database: str, consume: Callable[..., Consumer]
) -> None:
    proxy = serve(2)
    killed = process_of(proxy.admin_ports[0])
    with one_of_each(proxy, database) as streaming, connect(proxy.server, database=database) as direct:
        run(streaming[1], "CREATE QUEUE m (payload TEXT) ACK_WAIT = 10")
        enqueue(direct, "m", "ab")
        of_killed, other = [consume(client, "STREAM id, epoch FROM m PREFETCH 1") for client in streaming]
        eventually(lambda: of_killed.received and other.received)
        eventually(lambda: metric(proxy.admin_ports[1], "binlog_following") == 1)
        os.kill(killed, signal.SIGKILL)
        assert of_killed.ended.wait(10)
        lost, held = of_killed.received[-1][0], other.received[-1][0]
        run(direct, f"UPDATE m SET time_acked = 1, time_next = NULL WHERE id = {held}")
        eventually(lambda: (lost, 2) in other.received, timeout_s=30)
    eventually(lambda: is_replaced(proxy, 0, killed))
    assert f"process 0 (pid {killed}) has ended (killed by SIGKILL); another one starts" in proxy.output


def test_one_that_hangs_is_killed_and_another_has_its_place(serve: Serve) -> None:
    proxy = serve(2)
    hanging = process_of(proxy.admin_ports[1])
    os.kill(hanging, signal.SIGSTOP)
    eventually(lambda: is_replaced(proxy, 1, hanging), timeout_s=HUNG_S + 20)
    assert f"process 1 (pid {hanging}) has ended (killed by SIGKILL: it hung for 10 s)" in proxy.output


def test_a_start_that_fails_is_tried_again_until_it_does_not(serve: Serve) -> None:
    """Without a free file descriptor, and then with an admin port that another program has."""
    proxy = serve(2)
    port = proxy.admin_ports[1]
    killed = process_of(port)
    soft, hard = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (len(descriptors(Path(f"/proc/{proxy.pid}"))), hard))
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: "process 1 could not be started (Too many open files); another one starts" in proxy.output)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: len(re.findall(r"process 1 \(pid \d+\) has ended \(status 2\); another", proxy.output)) > 1)
        assert f"ackstream: --admin 127.0.0.1:{port}: Address already in use" in proxy.output
    eventually(lambda: is_replaced(proxy, 1, killed))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_all(
    serve: Serve, database: str, consume: Callable[..., Consumer], number: signal.Signals
) -> None:
    proxy = serve(2)
    running = [process_of(port) for port in proxy.admin_ports]
    with one_of_each(proxy, database) as streaming, connect(proxy.server, database=database) as direct:
        create_queue(direct, "m", vt_ack_wait="600")
        enqueue(direct, "m", "ab")
        consumers = [consume(client, "STREAM id FROM m PREFETCH 1") for client in streaming]
        eventually(lambda: all(consumer.received for consumer in consumers))
        assert proxy.terminate(number) == 0
        assert all(map(has_ended, running))
        for consumer in consumers:
            assert consumer.ended.wait(10)
            assert isinstance(consumer.error, pymysql.MySQLError)
            assert consumer.error.args[0] == 1053
        released = "SELECT COUNT(*) FROM m WHERE time_next <= 1000000 * UNIX_TIMESTAMP(NOW(6)) * 1000"
        assert rows(direct, released) == [(2,)]


def test_one_that_is_sent_sigterm_drains_alone_and_another_has_its_place(serve: Serve, database: str) -> None:
    proxy = serve(2)
    stopped = process_of(proxy.admin_ports[0])
    with one_of_each(proxy, database) as (of_stopped, of_other):
        os.kill(stopped, signal.SIGTERM)
        eventually(lambda: is_replaced(proxy, 0, stopped))
        with pytest.raises(pymysql.MySQLError):
            rows(of_stopped, "SELECT 1")
        assert rows(of_other, "SELECT 1") == [(1,)]
    assert f"process 0 (pid {stopped}) has ended (status 0)" in proxy.output


def test_when_the_supervisor_is_killed_all_end(serve: Serve) -> None:
    proxy = serve(2)
    running = [process_of(port) for port in proxy.admin_ports]
    proxy.kill()
    eventually(lambda: all(map(has_ended, running)))


def test_a_server_that_cannot_be_reached_is_reported_once_with_the_status_of_a_bad_setting(serve: Serve) -> None:
    class Nowhere:
        host, port = "127.0.0.1", 1

    with pytest.raises(AssertionError) as caught:
        serve(2, server=Nowhere(), backend_wait_s="0")
    assert str(caught.value).count("ackstream: --backend 127.0.0.1:1: ") == 1


def test_there_is_one_private_server_for_all(tmp_path: Path) -> None:
    options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--processes", "2"]
    log = tmp_path / "log"
    process = ForkedProxy(["serve", *options, "--data-dir", str(tmp_path / "data")], output=log)
    try:
        ready = eventually(lambda: READY.search(log.read_text() if log.exists() else ""), timeout_s=60)
        assert ready is not None
        for _ in range(4):
            with pymysql.connect(host="127.0.0.1", port=int(ready[2]), user="root") as client:
                assert rows(client, "SELECT 1") == [(1,)]
        named = {child: Path(f"/proc/{child}/cmdline").read_text() for child in children(process.pid)}
        (server,) = [child for child, name in named.items() if re.search("mysqld|mariadbd", name)]
        assert len(named) == 3
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20)
        assert process.returncode == 0
        assert all(map(has_ended, named)), server
    finally:
        process.kill()
