"""The real servers that tests run on: private to one pytest process, started when first asked for.

A server is an `EmbeddedServer` on a copy of a template: an initialised data directory, made once
for each server version and kept in the cache directory, because MySQL takes seconds to make one.
MySQL 9.x comes from an unpacked Debian system in the same cache (`scripts/prepare mysql` puts it
there); its programs are run by that system's own dynamic loader, so they need neither root nor a
chroot and see this machine's files.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import Binary, EmbeddedServer, EmbeddedServerError, Flavour, find_server
from tests.support.certificates import certificates

OLDEST_TESTED_MYSQL = (9,)
FLAVOURS: tuple[Flavour, ...] = ("mysql", "mariadb")
LEFT_OUT: dict[Flavour, str] = {
    "mysql": "MySQL 9.x left out",
    "mariadb": "MariaDB left out",
}

SMALL = (
    "--secure-file-priv=",
    "--local-infile=ON",
    "--max-connections=500",
    "--innodb-buffer-pool-size=128M",
    "--performance-schema=OFF",
    "--sync-binlog=0",
)
NOT_DURABLE = ("--innodb-flush-log-at-trx-commit=0",)
SMALL_LOG: dict[Flavour, str] = {
    "mysql": "--innodb-redo-log-capacity=64M",
    "mariadb": "--innodb-log-file-size=32M",
}

LASTING_PORTS = 10_000
"""The ports below those of outgoing connections among which `lasting_port` chooses."""


class ServerMissingError(Exception):
    """This machine has no server of the flavour; the text says why."""


def cache_dir() -> Path:
    """Where templates and the MySQL system are kept between runs."""
    if own := os.environ.get("ACKSTREAM_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ackstream"


def _mysql_root() -> Path:
    return cache_dir() / "mysql-sid"


def foreign_command(root: Path, program: str, *libraries: str) -> tuple[str, ...]:
    """The command that runs a program of another Linux system, unpacked at `root`, in place. `libraries`: folders."""
    loader = next(root.glob("lib*/ld-linux*.so.*"))
    folders = ":".join(map(str, (loader.resolve().parent, *(root / folder for folder in libraries))))
    return (str(loader), "--library-path", folders, str(root / program))


@functools.cache
def server_binary(flavour: Flavour) -> Binary:
    """The server program of a flavour. Raises ServerMissingError."""
    if flavour == "mysql":
        return _mysql_binary()
    try:
        return find_server(flavour)
    except EmbeddedServerError as missing:
        raise ServerMissingError("not installed; run `make test`") from missing


def _mysql_binary() -> Binary:
    if (_mysql_root() / "usr/sbin/mysqld").exists():
        return Binary.of_command(foreign_command(_mysql_root(), "usr/sbin/mysqld"))
    with contextlib.suppress(EmbeddedServerError):
        if (found := find_server("mysql")).version >= OLDEST_TESTED_MYSQL:
            return found
    if shutil.which("apt-get") is None:
        raise ServerMissingError("it is fetched from Debian, and this system has no apt-get")
    if os.geteuid() != 0 and shutil.which("sudo") is None:
        raise ServerMissingError("fetching it needs root")
    raise ServerMissingError("not fetched yet; run `make test`")


def client_program(flavour: Flavour) -> list[str]:
    """The command of the flavour's own command line client, to be followed by its options."""
    root = _mysql_root()
    if flavour == "mysql" and (root / "usr/bin/mysql").exists():
        return [*foreign_command(root, "usr/bin/mysql"), "--no-defaults"]
    name = "mariadb" if flavour == "mariadb" else "mysql"
    path = shutil.which(name)
    if path is None:
        raise ServerMissingError(f"no `{name}` command line client on this machine")
    return [path, "--no-defaults"]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _template(binary: Binary) -> Path:
    """An initialised data directory for this very server version, made when it is not there."""
    template = cache_dir() / "templates" / str(binary).replace(" ", "-")
    with _locked(template.with_name(f"{template.name}.lock")):
        if not (template / "server.txt").exists():
            server = EmbeddedServer(template, binary, [*SMALL, SMALL_LOG[binary.flavour]])
            server.start()
            server.stop(timeout_s=30)
            # It names one server among several that replicate; a copy is another server.
            (template / "data" / "auto.cnf").unlink(missing_ok=True)
    return template


def new_server(
    flavour: Flavour, data_dir: Path, *, durable: bool = False, options: Sequence[str] = ()
) -> EmbeddedServer:
    """A server that is not started yet, its data a copy of the template.

    `durable` writes through to the disk at each commit; without it a killed *server* forgets the
    last second (a killed proxy makes no difference). Raises ServerMissingError.
    """
    shutil.copytree(_template(server_binary(flavour)), data_dir)
    return server_on(flavour, data_dir, durable=durable, options=options)


def server_on(flavour: Flavour, data_dir: Path, *, durable: bool, options: Sequence[str]) -> EmbeddedServer:
    """A server that is not started yet, on data that exist. Raises ServerMissingError."""
    durability = () if durable else NOT_DURABLE
    tls = certificates()
    security = (f"--ssl-ca={tls.ca}", f"--ssl-cert={tls.certificate}", f"--ssl-key={tls.key}")
    fixed = [*SMALL, SMALL_LOG[flavour], *security, *durability, *options]
    return EmbeddedServer(data_dir, server_binary(flavour), fixed)


@contextlib.contextmanager
def running_server(flavour: Flavour, *, durable: bool = False, options: Sequence[str] = ()) -> Iterator[EmbeddedServer]:
    """A started `new_server`, gone with its data afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"ackstream-{flavour}-") as directory:
        data_dir = Path(directory) / "server"
        with new_server(flavour, data_dir, durable=durable, options=options) as server:
            yield server
            server.kill()  # an orderly end takes longer, for data that nobody wants


class ServerPool:
    """One running server per flavour, started at the first request."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: dict[Flavour, EmbeddedServer] = {}

    def get(self, flavour: Flavour) -> EmbeddedServer:
        """The server of this flavour; skips the test when the machine has none."""
        if flavour not in self._running:
            self._running[flavour] = self._stack.enter_context(server_or_skip(flavour))
        return self._running[flavour]

    def close(self) -> None:
        """Stop them all."""
        self._stack.close()


def binary_or_skip(flavour: Flavour) -> Binary:
    """`server_binary`, or a skipped test where the machine has none."""
    try:
        return server_binary(flavour)
    except ServerMissingError as missing:
        pytest.skip(f"{LEFT_OUT[flavour]}: {missing}")


@contextlib.contextmanager
def server_or_skip(flavour: Flavour, *, durable: bool = False) -> Iterator[EmbeddedServer]:
    """`running_server`, or a skipped test where the machine has no such server."""
    binary_or_skip(flavour)
    with running_server(flavour, durable=durable) as server:
        yield server


def connect(server: EmbeddedServer, **options: Any) -> Connection[Any]:
    """A PyMySQL connection to the server itself, as root, autocommit, unless told else."""
    defaults = {"host": server.host, "port": server.port, "user": "root", "autocommit": True, "ssl_disabled": True}
    return pymysql.connect(**{**defaults, **options})


def lasting_port() -> int:
    """A free port below those that the system gives to outgoing connections.

    What restarts on such a port finds it free. On another one, a connection that began meanwhile may have
    it, for as long as that lasts.
    """
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(least - LASTING_PORTS, least), LASTING_PORTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((EmbeddedServer.host, port))
            return port
    raise AssertionError(f"none of the {LASTING_PORTS} ports below {least} is free")
