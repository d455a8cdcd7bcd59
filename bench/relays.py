"""The relays that bench/wire.py compares: ackstream, MySQL Router and HAProxy, as processes.

Each runs with its own defaults and without TLS. MySQL Router and HAProxy come from Debian's
unstable suite; `scripts/prepare relays` unpacks them into the cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.processes import HOST, cpu_s, family, free_port, listening_process, resident_bytes
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.servers import cache_dir, foreign_command

ROOT = cache_dir() / "relays-sid"

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
        return sum(cpu_s(pid) for pid in self._processes())

    def resident_bytes(self) -> tuple[int, int]:
        """Return the resident memory, shared libraries included, of the process with the connections,
        and of its children."""
        first, *others = map(resident_bytes, self._processes())
        return first, sum(others)

    def _processes(self) -> Iterator[int]:
        if self.pid is not None:
            yield from family(self.pid)


@contextlib.contextmanager
def ackstream(server: EmbeddedServer, folder: Path) -> Iterator[Way]:
    folder.mkdir()
    with running_proxy(server, folder / "log", ["--log-level", "warning"]) as proxy:
        yield Way("ackstream", proxy.port, proxy.pid)


@contextlib.contextmanager
def router(server: EmbeddedServer, folder: Path) -> Iterator[Way]:
    folder.mkdir()
    port = free_port()
    config = folder / "router.conf"
    config.write_text(ROUTER.format(root=ROOT, folder=folder, host=HOST, port=port, server_port=server.port))
    command = foreign_command(ROOT, "usr/bin/mysqlrouter", "usr/lib/mysql-router")
    with listening_process([*command, "--config", str(config)], folder / "log", port) as pid:
        yield Way("MySQL Router", port, pid)


@contextlib.contextmanager
def haproxy(server: EmbeddedServer, folder: Path) -> Iterator[Way]:
    folder.mkdir()
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(HAPROXY.format(host=HOST, port=port, server_port=server.port))
    command = foreign_command(ROOT, "usr/sbin/haproxy")
    with listening_process([*command, "-f", str(config)], folder / "log", port) as pid:
        yield Way("HAProxy", port, pid)
