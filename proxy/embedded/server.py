"""A private database server: the default backend of `ackstream serve`, and what the tests run on.

The server belongs to one `EmbeddedServer` and to one directory. The directory holds everything, and
two locks. `proxy.lock` is held by the program that uses it; a second program fails at once.
`server.lock` is inherited by the server process and therefore ends with it: a proxy that follows a
killed one waits until the old server has ended. A half-made data directory lacks `server.txt`, which
is written last, and is made anew.

A free port can only be guessed, because another program may take it before the server does. A
server that could not start is therefore tried again with another port. It counts as started when a
login over its own socket, in its own directory, returns the expected port.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from engine.store.pymysql_adapter import ER, Connection, OperationalError
from proxy.embedded.child_process import ChildProcess

Flavour = Literal["mysql", "mariadb"]

PROGRAMS = ("mysqld", "mariadbd")
USUAL_PLACES = (
    "/usr/sbin",
    "/usr/libexec",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/local/mysql/bin",
)
OLDEST: dict[Flavour, tuple[int, ...]] = {"mysql": (8, 0), "mariadb": (10, 6)}
PORT_ATTEMPTS = 5
POLL_S = 0.02
# sockaddr_un has 108 bytes, with the closing zero.
SOCKET_PATH_BYTES_MAX = 107
LOG_LINES_SHOWN = 5


class EmbeddedServerError(Exception):
    """The private server cannot be had; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program: the command that runs it (its path comes last), its flavour and version."""

    command: tuple[str, ...]
    flavour: Flavour
    version: tuple[int, ...]

    @property
    def program(self) -> Path:
        """The server program itself."""
        return Path(self.command[-1])

    @property
    def prefix(self) -> Path:
        """The folder below which the server finds its messages, and the programs that belong to it."""
        return self.program.resolve().parent.parent

    @classmethod
    def of_command(cls, command: Sequence[str]) -> Binary:
        """Run `command --version`: a program called mysqld may be MariaDB's."""
        result = subprocess.run([*command, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\bVer (\d+(?:\.\d+)*)(\S*)", result.stdout)
        if found is None:
            output = (result.stdout + result.stderr).strip() or f"exit status {result.returncode}"
            raise EmbeddedServerError(f"{command[-1]} is no usable server: {output}")
        flavour: Flavour = "mariadb" if "mariadb" in found[2].lower() else "mysql"
        return cls(tuple(command), flavour, tuple(int(part) for part in found[1].split(".")))

    def __str__(self) -> str:
        return f"{self.flavour} {_dotted(self.version)}"


def find_server(flavour: Flavour | None = None) -> Binary:
    """The server program of this machine: on PATH or in one of the usual places, new enough.

    Raises EmbeddedServerError when there is none, or none of that flavour.
    """
    search_path = os.pathsep.join([os.environ.get("PATH", ""), *USUAL_PLACES])
    programs = [path for name in PROGRAMS if (path := shutil.which(name, path=search_path))]
    found = [Binary.of_command((program,)) for program in programs]
    for binary in found:
        if binary.version >= OLDEST[binary.flavour] and flavour in {None, binary.flavour}:
            return binary
    seen = ", ".join(f"{binary.program} is {binary}" for binary in found) or "no mysqld or mariadbd"
    wanted = " or ".join(f"{name} {_dotted(OLDEST[name])}" for name in OLDEST if flavour in {None, name})
    raise EmbeddedServerError(
        f"no {wanted}, or later, on this machine ({seen}): install it "
        "(Debian: apt-get install mariadb-server-core mariadb-client-core), or name a server with --backend"
    )


class EmbeddedServer:
    """One private server on 127.0.0.1, its data under `data_dir`, root without a password.

    `host`, `port`, `socket_path`, `server_version` and `pid` hold while it runs; a server that is
    started again keeps its port when it can. `options` go to the server's command line after the
    built-in ones. The methods block: call them from a thread. Not for use by several threads at a
    time, except `abandon`.
    """

    host = "127.0.0.1"

    def __init__(self, data_dir: Path, binary: Binary | None = None, options: Sequence[str] = ()) -> None:
        self.data_dir = data_dir.absolute()
        self.binary = binary or find_server()
        self.port = 0
        self.server_version = ""
        self.socket_path = self.data_dir / "mysqld.sock"
        self._options = tuple(options)
        self._process: ChildProcess | None = None
        self._proxy_lock: int | None = None
        self._socket_dir: Path | None = None
        self._log_start = 0
        self._abandoned = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def flavour(self) -> Flavour:
        """`mysql` or `mariadb`."""
        return self.binary.flavour

    @property
    def version(self) -> tuple[int, ...]:
        """The server's version as numbers, for comparisons."""
        return self.binary.version

    @property
    def error_log(self) -> Path:
        """The server's own log."""
        return self.data_dir / "error.log"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise EmbeddedServerError(f"the server of {self.data_dir} is not running")
        return self._process.pid

    def start(self, timeout_s: float = 60.0) -> None:
        """Make the data directory if it is new, run the server, return once it takes logins.

        Raises EmbeddedServerError: the directory cannot be used, is in use, belongs to another kind of
        server, or the server does not start; nothing is left running then.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._take_directory()
            with self._server_lock(deadline) as lock:
                self._initialise_if_new(lock, deadline)
                self._launch(lock, deadline)
        except OSError as failure:
            self.stop(timeout_s=0)
            raise EmbeddedServerError(
                f"{failure.filename or self.data_dir} cannot be used ({failure.strerror or failure}): "
                "give a --data-dir that can be written, or name a server with --backend"
            ) from failure
        except BaseException:
            self.stop(timeout_s=0)
            raise

    def abandon(self) -> None:
        """End a `start` under way, and any later one, with EmbeddedServerError soon. May be called from any thread."""
        self._abandoned.set()

    def _until(self, deadline: float) -> bool:
        """Wait POLL_S. Returns False after `deadline`. Raises EmbeddedServerError after `abandon`."""
        if self._abandoned.wait(POLL_S):
            raise EmbeddedServerError(f"the start of {self.binary.program} was given up")
        return time.monotonic() < deadline

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has ended, for whatever reason; False when it still runs."""
        return self._process is None or self._process.wait(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Shut the server down, after `timeout_s` with SIGKILL, and release the directory.

        Committed transactions survive either way. Does nothing when it is not running.
        """
        if self._process is not None:
            self._process.terminate()
            if not self._process.wait(timeout_s):
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        if self._proxy_lock is not None:
            os.close(self._proxy_lock)
            self._proxy_lock = None

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); `start` brings it back with the same data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _take_directory(self) -> None:
        if self._proxy_lock is not None:
            return
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir.chmod(0o700)
        for folder in ("files", "tmp"):
            (self.data_dir / folder).mkdir(mode=0o700, exist_ok=True)
        self._log_start = self.error_log.stat().st_size if self.error_log.exists() else 0
        self._proxy_lock = _open_lock(self.data_dir / "proxy.lock")
        if not _try_lock(self._proxy_lock):
            os.close(self._proxy_lock)
            self._proxy_lock = None
            raise EmbeddedServerError(
                f"{self.data_dir} is in use by another running ackstream: "
                "give this one its own --data-dir, or name a server with --backend"
            )

    @contextlib.contextmanager
    def _server_lock(self, deadline: float) -> Iterator[int]:
        lock = _open_lock(self.data_dir / "server.lock")
        try:
            while not _try_lock(lock):
                if not self._until(deadline):
                    raise EmbeddedServerError(
                        f"the earlier server of {self.data_dir} has still not ended: "
                        "see `fuser server.lock` in that directory"
                    )
            yield lock
        finally:
            os.close(lock)  # a server that was started holds it now

    def _initialise_if_new(self, lock: int, deadline: float) -> None:
        stamp = self.data_dir / "server.txt"
        if stamp.exists():
            made_by = stamp.read_text().split()
            if made_by[:1] != [self.flavour]:
                raise EmbeddedServerError(
                    f"{self.data_dir} was made by {' '.join(made_by)}, and this is {self.binary} "
                    f"({self.binary.program}): use the server that made it, or another --data-dir"
                )
            return
        shutil.rmtree(self.data_dir / "data", ignore_errors=True)
        (self.data_dir / "data").mkdir(mode=0o700)
        self._process = self._run(self._initialise_command(), lock)
        while not self._process.wait(0):
            if not self._until(deadline):
                raise EmbeddedServerError(f"making {self.data_dir} takes too long{self._log_tail()}")
        if self._process.returncode != 0:
            raise EmbeddedServerError(f"{self.data_dir} cannot be made{self._log_tail()}")
        _write_durably(stamp, f"{self.binary}\n")

    def _initialise_command(self) -> list[str]:
        if self.flavour == "mysql":
            return [*self.binary.command, *self._place_options(), "--initialize-insecure"]
        return [
            str(_find_install_db(self.binary)),
            *self._place_options(),
            "--force",  # It would look up this machine's name, which need not be known anywhere.
            "--auth-root-authentication-method=normal",
            "--skip-test-db",  # nor the anonymous accounts, which would shadow user@'%'
            "--skip-name-resolve",
        ]

    def _launch(self, lock: int, deadline: float) -> None:
        self._choose_socket()
        for _ in range(PORT_ATTEMPTS):
            self.port = self.port or _free_port()
            self._process = self._run([*self.binary.command, *self._server_options()], lock)
            if self._await_login(deadline):
                return
            self.port = 0
        raise EmbeddedServerError(f"{self.binary.program} does not start{self._log_tail()}")

    def _choose_socket(self) -> None:
        self.socket_path = self.data_dir / "mysqld.sock"
        if len(os.fsencode(self.socket_path)) > SOCKET_PATH_BYTES_MAX:
            self._socket_dir = self._socket_dir or Path(tempfile.mkdtemp(prefix="ackstream-"))
            self.socket_path = self._socket_dir / "mysqld.sock"
        # MySQL refuses to start when the process id in a left-over lock file exists again.
        for stale in (self.socket_path, self.socket_path.with_name("mysqld.sock.lock")):
            stale.unlink(missing_ok=True)

    def _run(self, argv: Sequence[str], lock: int) -> ChildProcess:
        try:
            return ChildProcess(argv, output=self.error_log, keep_fds=[lock])
        except OSError as failure:
            raise EmbeddedServerError(f"{argv[0]} cannot be run: {failure}") from failure

    def _await_login(self, deadline: float) -> bool:
        assert self._process is not None
        while not self._process.wait(0):
            if (seen := self._login()) is not None:
                port, self.server_version = seen
                return port == self.port
            if not self._until(deadline):
                raise EmbeddedServerError(f"{self.binary.program} took no login in time{self._log_tail()}")
        return False

    def _login(self) -> tuple[int, str] | None:
        """The port and version of the server behind our socket; None while it takes no login."""
        # PyMySQL leaves its socket open when the connection is refused, so it is given one.
        with socket.socket(socket.AF_UNIX) as channel:
            try:
                channel.connect(str(self.socket_path))
            except OSError:
                return None
            return self._first_answer(channel)

    def _first_answer(self, channel: socket.socket) -> tuple[int, str] | None:
        connection = Connection(user="root", defer_connect=True)
        try:
            connection.connect(channel)
        except OperationalError as failure:
            if failure.args[0] == ER.ACCESS_DENIED_ERROR:
                raise EmbeddedServerError(
                    f"root of the embedded server in {self.data_dir} has a password, so it cannot "
                    "be the default backend: take the password away, or name it with --backend"
                ) from failure
            return None
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@port, VERSION()")
            port, version = cursor.fetchone() or (0, "")
            return int(port), str(version)

    def _place_options(self) -> list[str]:
        # A starting server deletes all `#sql…` files of its tmpdir, also those of others that run on the default one.
        options = ["--no-defaults", f"--datadir={self.data_dir / 'data'}", f"--tmpdir={self.data_dir / 'tmp'}"]
        options.append(f"--basedir={self.binary.prefix}")
        if os.geteuid() == 0:
            options.append("--user=root")  # Without it the server refuses to run as root.
        return options

    def _server_options(self) -> list[str]:
        mine = "--mysqlx=OFF" if self.flavour == "mysql" else "--log-bin=binlog"
        return [
            *self._place_options(),
            f"--bind-address={self.host}",
            f"--port={self.port}",
            f"--socket={self.socket_path}",
            f"--pid-file={self.data_dir / 'server.pid'}",
            f"--secure-file-priv={self.data_dir / 'files'}",
            "--character-set-server=utf8mb4",
            "--binlog-format=ROW",
            "--server-id=1",
            "--sync-binlog=1",
            "--binlog-expire-logs-seconds=86400",
            "--max-connections=1000",  # each client has one
            mine,
            *self._options,
        ]

    def _log_tail(self) -> str:
        """The last lines of the server's log, as the end of an error text."""
        with self.error_log.open(errors="replace") as log:
            log.seek(self._log_start)
            lines = log.read().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        return "\n  ".join([f", see {self.error_log}", *errors[-LOG_LINES_SHOWN:]])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((EmbeddedServer.host, 0))
        return int(probe.getsockname()[1])


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as failure:
        if failure.errno == errno.EWOULDBLOCK:
            return False
        raise
    return True


def _find_install_db(binary: Binary) -> Path:
    for folder in ("bin", "scripts", "sbin"):
        for name in ("mariadb-install-db", "mysql_install_db"):
            if (path := binary.prefix / folder / name).exists():
                return path
    raise EmbeddedServerError(
        f"{binary.program} has no mariadb-install-db beside it: install MariaDB's whole server package"
    )


def _write_durably(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
