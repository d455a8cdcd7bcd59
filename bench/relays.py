"""The relays that bench/wire.py compares: ackstream, MySQL Router and HAProxy, as processes.

Each runs with its own defaults and without TLS. MySQL Router and HAProxy come from Debian's
unstable suite; `scripts/prepare relays` unpacks them into the cache.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proxy.embedded.child_process import ChildProcess
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.servers import cache_dir, foreign_command
from tests.support.waiting import eventually

ROOT = cache_dir() / "relays-sid"
HOST = "127.0.0.1"
TICKS = os.sysconf("SC_CLK_TCK")

HAPROXY = """
global
    maxconn 4000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen mysql
    bind {host}:{port}
    server backing {host}:{server_port}
"""

ROUTER = """
[DEFAULT]
plugin_folder = {root}/usr/lib/mysqlrouter/plugin
logging_folder = {folder}
runtime_folder = {folder}
data_folder = {folder}
max_total_connections = 4000
[logger]
level = WARNING
[routing:mysql]
protocol = classic
bind_address = {host}
bind_port = {port}
destinations = {host}:{server_port}
routing_strategy = first-available
client_ssl_mode = DISABLED
server_ssl_mode = DISABLED
"""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the server: the port for clients, and the relay's process, if there is one."""

    name: str
    port: int
    pid: int | None = None

    def cpu_s(self) -> float:
        """Return the user and system time of its processes so far, in seconds."""
        return sum(_cpu_s(pid) for pid in self._processes())

    def resident_bytes(self) -> tuple[int, int]:
        """Return the resident memory, shared libraries included, of the process with the connections,
        and of its children."""
        first, *others = map(_resident_bytes, self._processes())
        return first, sum(others)

    def _processes(self) -> Iterator[int]:
        if self.pid is not None:
            yield from _family(self.pid)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def _cpu_s(pid: int) -> float:
    # The name, in parentheses, may contain blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@contextlib.contextmanager
def ackstream(server: EmbeddedServer, folder: Path) -> Iterator[Way]:
    folder.mkdir()
    with running_proxy(server, folder / "log", ["--log-level", "warning"]) as proxy:
        yield Way("ackstream", proxy.port, proxy.pid)


@contextlib.contextmanager
def router(server: EmbeddedServer, folder: Path) -> Iterator[Way]:
    folder.mkdir()
    port = _free_port()
    config = folder / "router.conf"
    config.write_text(ROUTER.format(root=ROOT, folder=folder, host=HOST, port=port, server_port=server.port))
    command = foreign_command(ROOT, "usr/bin/mysqlrouter", "usr/lib/mysql-router")
    with _process([*command, "--config", str(config)], folder / "log", port) as pid:
        yield Way("MySQL Router", port, pid)


@contextlib.contextmanager
def haproxy(server: EmbeddedServer, folder: Path) -> Iterator[Way]:
    folder.mkdir()
    port = _free_port()
    config = folder / "haproxy.cfg"
    config.write_text(HAPROXY.format(host=HOST, port=port, server_port=server.port))
    command = foreign_command(ROOT, "usr/sbin/haproxy")
    with _process([*command, "-f", str(config)], folder / "log", port) as pid:
        yield Way("HAProxy", port, pid)


@contextlib.contextmanager
def _process(command: list[str], log: Path, port: int) -> Iterator[int]:
    process = ChildProcess(command, output=log)
    try:
        eventually(
            lambda: _listens(port) or process.returncode is not None, timeout_s=30, what=f"a listener, see {log}"
        )
        if process.returncode is not None:
            raise SystemExit(f"{command[-1]} has ended: {log.read_text()}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
