"""The real servers that tests run on: private to one pytest process, started when first asked for.

A server is an `EmbeddedServer` on a copy of a template: an initialised data directory, made once
for each server version and kept in the cache directory, because MySQL takes seconds to make one.
MySQL 9.x and MariaDB 11.8 come from unpacked Debian systems in the same cache (`scripts/prepare mysql
mariadb-11` puts them there); their programs are run by those systems' own dynamic loaders, so they
need neither root nor a chroot and see this machine's files.

A test names the server that it runs on (`ServerName`). How SQL differs is a matter of its flavour:
two of the servers are MariaDB's.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import shlex
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import Binary, EmbeddedServer, EmbeddedServerError, Flavour, find_server
from tests.support.certificates import certificates

OLDEST_TESTED: dict[Flavour, tuple[int, ...]] = {"mysql": (9,), "mariadb": (10,)}
FLAVOURS: tuple[Flavour, ...] = ("mysql", "mariadb")
"""Each is the name of a server, too: MySQL 9.x, and MariaDB in this machine's version."""
ServerName = Literal["mysql", "mariadb", "mariadb-11"]
FLAVOUR_OF: dict[ServerName, Flavour] = {"mysql": "mysql", "mariadb": "mariadb", "mariadb-11": "mariadb"}
SERVERS: tuple[ServerName, ...] = tuple(FLAVOUR_OF)
MARIADBS: tuple[ServerName, ...] = tuple(name for name in SERVERS if FLAVOUR_OF[name] == "mariadb")


def server_named(text: str) -> ServerName:
    """The text as the name of a server, which it must be."""
    return next(name for name in SERVERS if name == text)


LEFT_OUT: dict[ServerName, str] = {
    "mysql": "MySQL 9.x left out",
    "mariadb": "MariaDB left out",
    "mariadb-11": "MariaDB 11.8 left out",
}

UNPACKED: dict[ServerName, str] = {"mysql": "mysql-sid", "mariadb-11": "mariadb-trixie"}
"""The folders of the cache into which scripts/prepare unpacks servers that this machine's Debian lacks."""

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
    """This machine has no such server; the text says why."""


def cache_dir() -> Path:
    """Where templates and the MySQL system are kept between runs."""
    if own := os.environ.get("ACKSTREAM_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ackstream"


def unpacked(name: ServerName) -> Path | None:
    """The root of the Debian system that the server was unpacked with; None where it is this machine's own."""
    folder = UNPACKED.get(name)
    root = cache_dir() / folder if folder else None
    return root if root and root.exists() else None


def foreign_command(root: Path, program: str, *libraries: str) -> tuple[str, ...]:
    """The command that runs a program of another Linux system, unpacked at `root`, in place. `libraries`: folders."""
    loader = next(root.glob("lib*/ld-linux*.so.*"))
    folders = ":".join(map(str, (loader.resolve().parent, *(root / folder for folder in libraries))))
    return (str(loader), "--library-path", folders, str(root / program))


@functools.cache
def server_binary(name: ServerName) -> Binary:
    """The program of a server. Raises ServerMissingError."""
    if root := unpacked(name):
        if FLAVOUR_OF[name] == "mysql":
            return Binary.of_command(foreign_command(root, "usr/sbin/mysqld"))
        return Binary.of_command([str(_prefix(root) / "sbin/mariadbd")])
    with contextlib.suppress(EmbeddedServerError):
        if name != "mariadb-11" and (found := find_server(FLAVOUR_OF[name])).version >= OLDEST_TESTED[found.flavour]:
            return found
    raise _not_unpacked() if name in UNPACKED else ServerMissingError("not installed; run `make test`")


def _not_unpacked() -> ServerMissingError:
    if shutil.which("apt-get") is None:
        return ServerMissingError("it is fetched from Debian, and this system has no apt-get")
    if os.geteuid() != 0 and shutil.which("sudo") is None:
        return ServerMissingError("fetching it needs root")
    return ServerMissingError("not fetched yet; run `make test`")


def _prefix(root: Path) -> Path:
    """A folder laid out like /usr of the MariaDB system at `root`, made when it is not there, whose programs run here.

    MariaDB's installer is a script that starts other programs by their paths below its prefix. Here each of these
    is a script that does as `foreign_command` says.
    """
    prefix = root.with_name(f"{root.name}-prefix")
    with _locked(prefix.with_name(f"{prefix.name}.lock")):
        if not prefix.exists():
            draft = Path(tempfile.mkdtemp(dir=prefix.parent))
            for program in ("sbin/mariadbd", "bin/my_print_defaults"):
                script = draft / program
                script.parent.mkdir()
                script.write_text(f'#!/bin/sh\nexec {shlex.join(foreign_command(root, f"usr/{program}"))} "$@"\n')
                script.chmod(0o755)
            for shared in ("bin/mariadb-install-db", "lib", "share"):
                (draft / shared).symlink_to(root / "usr" / shared)
            draft.rename(prefix)
    return prefix


def client_program(name: ServerName) -> list[str]:
    """The command of the server's own command line client, to be followed by its options."""
    if FLAVOUR_OF[name] == "mysql":
        return [*_own_program(name, "mysql"), "--no-defaults"]
    # By default MariaDB 11's warns that it verifies no certificate where the account has no password.
    quiet = ["--disable-ssl-verify-server-cert"] if name == "mariadb-11" else []
    return [*_own_program(name, "mariadb"), "--no-defaults", *quiet]


def dump_program(name: ServerName) -> list[str]:
    """The same of its program for dumps."""
    if FLAVOUR_OF[name] == "mysql":
        return [*_own_program(name, "mysqldump"), "--no-defaults", "--set-gtid-purged=OFF"]
    return [*_own_program(name, "mariadb-dump"), "--no-defaults"]


def _own_program(name: ServerName, program: str) -> Sequence[str]:
    """The command of a program that comes with the server. Raises ServerMissingError."""
    if root := unpacked(name):
        return foreign_command(root, f"usr/bin/{program}")
    path = shutil.which(program)
    if path is None:
        raise ServerMissingError(f"no `{program}` on this machine")
    return [path]


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
    name: ServerName, data_dir: Path, *, durable: bool = False, options: Sequence[str] = ()
) -> EmbeddedServer:
    """A server that is not started yet, its data a copy of the template.

    `durable` writes through to the disk at each commit; without it a killed *server* forgets the
    last second (a killed proxy makes no difference). Raises ServerMissingError.
    """
    shutil.copytree(_template(server_binary(name)), data_dir)
    return server_on(name, data_dir, durable=durable, options=options)


def server_on(name: ServerName, data_dir: Path, *, durable: bool, options: Sequence[str]) -> EmbeddedServer:
    """A server that is not started yet, on data that exist. Raises ServerMissingError."""
    durability = () if durable else NOT_DURABLE
    tls = certificates()
    security = (f"--ssl-ca={tls.ca}", f"--ssl-cert={tls.certificate}", f"--ssl-key={tls.key}")
    fixed = [*SMALL, SMALL_LOG[FLAVOUR_OF[name]], *security, *durability, *options]
    return EmbeddedServer(data_dir, server_binary(name), fixed)


@contextlib.contextmanager
def running_server(name: ServerName, *, durable: bool = False, options: Sequence[str] = ()) -> Iterator[EmbeddedServer]:
    """A started `new_server`, gone with its data afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"ackstream-{name}-") as directory:
        data_dir = Path(directory) / "server"
        with new_server(name, data_dir, durable=durable, options=options) as server:
            yield server
            server.kill()  # an orderly end takes longer, for data that nobody wants


class ServerPool:
    """The running server of each name, started at the first request."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: dict[ServerName, EmbeddedServer] = {}

    def get(self, name: ServerName) -> EmbeddedServer:
        """The server of this name; skips the test when the machine has none."""
        if name not in self._running:
            self._running[name] = self._stack.enter_context(server_or_skip(name))
        return self._running[name]

    def close(self) -> None:
        """Stop them all."""
        self._stack.close()


def binary_or_skip(name: ServerName) -> Binary:
    """`server_binary`, or a skipped test where the machine has none."""
    try:
        return server_binary(name)
    except ServerMissingError as missing:
        pytest.skip(f"{LEFT_OUT[name]}: {missing}")


@contextlib.contextmanager
def server_or_skip(name: ServerName, *, durable: bool = False) -> Iterator[EmbeddedServer]:
    """`running_server`, or a skipped test where the machine has no such server."""
    binary_or_skip(name)
    with running_server(name, durable=durable) as server:
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
