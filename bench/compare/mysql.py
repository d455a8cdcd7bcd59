"""Queues in MySQL and MariaDB: by the proxy, and by hand on the same server.

Both use one table and one client in C (consumers.c). By hand, the proxy does not run.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from bench.compare.compiling import LIBMARIADB, compiled
from bench.compare.model import PAYLOAD_BYTES, Case, Drained, Latencies, MissingError
from bench.processes import HOST, ProgramFailedError, family
from demo.ackstream import DIRECTIVES
from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import running_proxy
from tests.support.servers import ServerMissingError, connect, new_server
from tests.support.waiting import eventually

SOURCE = "compare/consumers.c"
ROWS_AN_INSERT = 1_000
DISCARDED = 5
"""The first samples of the latency: the stream may open after the INSERT."""

SERVER_OPTIONS = ("--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=1G")
REDO_LOG: Mapping[Flavour, str] = {
    "mysql": "--innodb-redo-log-capacity=1G",
    "mariadb": "--innodb-log-file-size=1G",
}
DURABILITY = "fsync at each commit: sync_binlog=1, innodb_flush_log_at_trx_commit=1"
FLOOR = "known ids"
TITLES: Mapping[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}

CREATE = f"""
CREATE TABLE queue (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL DEFAULT 0,
  epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT DEFAULT NULL,
  payload VARCHAR(200), KEY due (time_acked, priority, time_next, id))
COMMENT 'vitess_message,{DIRECTIVES}'
"""


@dataclass(frozen=True, slots=True)
class Form:
    """What consumers.c is ordered to do for a case."""

    case: Case
    name: str


def forms(name: str, kind: str, *sizes: tuple[int, int]) -> tuple[Form, ...]:
    """`sizes`: consumers and messages a batch; `name` takes both."""
    return tuple(Form(Case(name.format(*size), *size), kind) for size in sizes)


PROXY_FORMS = (
    *forms("{0} endless streams, ACKs of {1}", "streams", (8, 100)),
    *forms("{0} endless streams, an ACK a message", "streams", (64, 1)),
    *forms("{0} × STREAM … LIMIT {1} NOWAIT, ACK", "bounded", (8, 100), (64, 1)),
    *forms("{0} × STREAM … LIMIT {1} FOR UPDATE, ACK", "locked", (4, 500), (8, 500), (8, 100), (64, 1)),
)
HAND_FORMS = (
    *forms("{0} × SKIP LOCKED, {1} a transaction", "locks", (4, 500), (8, 500), (4, 100), (8, 100), (8, 1), (64, 1)),
)
FLOOR_FORMS = (
    *forms("{0} × claims of 1000, then UPDATEs of {1}", "claimed", (8, 100)),
    *forms("{0} × known ids, {1} a transaction", "told", (4, 500), (8, 500), (8, 100), (64, 1)),
)


FLOOR_OF: Mapping[Case, Case] = {
    proxied.case: floor.case
    for proxied in PROXY_FORMS
    for floor in FLOOR_FORMS
    if proxied.case.batch == floor.case.batch
    and proxied.case.consumers == floor.case.consumers
    and (proxied.name == "locked") == (floor.name == "told")
}
"""For ways to consume by the proxy, the same writes without a queue."""

WAITING: Mapping[str, str] = {
    "an endless stream": "streams",
    "STREAM … LIMIT 1 WAIT 60 FOR UPDATE, in a transaction": "locked",
}
"""The consumers that wait for the messages of which the latency is measured, and their forms."""

WATCHED = next(form.case for form in PROXY_FORMS if form.name == "streams" and form.case.batch > 1)
"""The drain during which other clients are measured."""
READER = b"engine.binlog.reader"
BYSTANDER = "SELECT 1 FROM bystander WHERE id = 1"


class MySQLQueue:
    """A queue in a running server, with consumers that connect to `port`.

    During drains of WATCHED, other clients run a statement again and again: direct, through `port`, and
    through `relaying_port`, where a proxy without streams is, if there is one.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        client: Path,
        port: int,
        processes: Mapping[str, int],
        relaying_port: int | None = None,
    ) -> None:
        self._server = server
        self._client = client
        self._port = port
        self._ways = {"direct": server.port, "through the proxy": port}
        if relaying_port is not None:
            self._ways["through a proxy with streams = off"] = relaying_port
        self._forms = {form.case.name: form.name for form in (*PROXY_FORMS, *HAND_FORMS, *FLOOR_FORMS)}
        self.processes = processes

    @property
    def version(self) -> str:
        return f"{TITLES[self._server.flavour]} {self._server.server_version}"

    def fill(self, messages: int) -> None:
        statement = f"INSERT INTO queue (payload) VALUES (REPEAT('x', {PAYLOAD_BYTES}))"
        with connected(self._port) as connection, connection.cursor() as cursor:
            for sent in range(0, messages, ROWS_AN_INSERT):
                rows = min(ROWS_AN_INSERT, messages - sent)
                cursor.execute(statement + f", (REPEAT('x', {PAYLOAD_BYTES}))" * (rows - 1))

    def drain(self, case: Case, messages: int) -> Drained:
        order = ("drain", self._forms[case.name], case.consumers, case.batch, messages)
        ways = self._ways if case == WATCHED else {}
        with contextlib.ExitStack() as stack:
            samples = {way: stack.enter_context(self._bystander(port)) for way, port in ways.items()}
            count, seconds, cpu_s = self._ordered(*order)[0]
        assert count >= messages, f"{count} of {messages} messages were finished"
        return Drained(int(count), seconds, cpu_s, samples)

    @contextlib.contextmanager
    def _bystander(self, port: int) -> Iterator[list[float]]:
        """Another client, which runs a statement again and again; afterwards, the ms that each took."""
        samples_ms: list[float] = []
        command = [str(self._client), str(port), "bystander", BYSTANDER]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            process.stdin.write("begin\n")
            process.stdin.flush()
            yield samples_ms
            output, _ = process.communicate()
        samples_ms += [float(line) / 1e3 for line in output.splitlines()]

    def latencies(self, samples: int) -> Mapping[str, Latencies]:
        if "proxy" not in self.processes:
            return {}
        return {consumer: self._latencies(form, samples) for consumer, form in WAITING.items()}

    def _latencies(self, form: str, samples: int) -> Latencies:
        lines = self._ordered("latency", form, samples + DISCARDED)[DISCARDED:]
        return Latencies([delivery / 1e3 for delivery, _ in lines], [insert / 1e3 for _, insert in lines])

    def _ordered(self, *order: str | int) -> list[list[float]]:
        """Run the client with this order; return the numbers of its lines."""
        command = [str(self._client), str(self._port), *map(str, order)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            output, _ = process.communicate("begin\n")
        if process.returncode:
            raise ProgramFailedError("the client failed: see above")
        return [[float(word) for word in line.split()] for line in output.splitlines()]


def connected(port: int) -> Any:
    return pymysql.connect(host=HOST, port=port, user="root", autocommit=True, database="bench", ssl_disabled=True)


@contextlib.contextmanager
def running_queue_server(flavour: Flavour, folder: Path, more: Sequence[str] = ()) -> Iterator[EmbeddedServer]:
    """A server with the table, and with `more` options. Raises MissingError."""
    options = (*SERVER_OPTIONS, REDO_LOG[flavour], *more)
    try:
        starting = new_server(flavour, folder / "server", durable=True, options=options)
    except ServerMissingError as missing:
        raise MissingError(str(missing)) from missing
    with starting as server:
        with connect(server) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE bench")
            cursor.execute("USE bench")
            cursor.execute(CREATE)
            cursor.execute("CREATE TABLE bystander (id INT PRIMARY KEY) SELECT 1 AS id")
        yield server
        server.kill()


@contextlib.contextmanager
def running_without_proxy(flavour: Flavour, folder: Path) -> Iterator[MySQLQueue]:
    """A server with the table, to which the consumers connect. Raises MissingError."""
    client = compiled(SOURCE, folder, LIBMARIADB)
    with running_queue_server(flavour, folder) as server:
        yield MySQLQueue(server, client, server.port, {"server": server.pid})


@dataclass(frozen=True, slots=True)
class ByHand:
    """SELECT … FOR UPDATE SKIP LOCKED, then an UPDATE, in one READ COMMITTED transaction, without the proxy."""

    flavour: Flavour
    durability: str = DURABILITY

    @property
    def name(self) -> str:
        return f"by hand, {TITLES[self.flavour]}"

    @property
    def cases(self) -> Sequence[Case]:
        return [form.case for form in HAND_FORMS]

    def running(self, folder: Path) -> contextlib.AbstractContextManager[MySQLQueue]:
        return running_without_proxy(self.flavour, folder)


@dataclass(frozen=True, slots=True)
class Floor:
    """The same writes without a queue: a counter in the client's memory gives each message to one consumer, which
    works with one client alone. It shows what the server can do."""

    flavour: Flavour
    durability: str = DURABILITY

    @property
    def name(self) -> str:
        return f"{FLOOR}, {TITLES[self.flavour]}"

    @property
    def cases(self) -> Sequence[Case]:
        return [form.case for form in FLOOR_FORMS]

    def running(self, folder: Path) -> contextlib.AbstractContextManager[MySQLQueue]:
        return running_without_proxy(self.flavour, folder)


@dataclass(frozen=True, slots=True)
class Ackstream:
    """The proxy, as a process of its own in front of the server, which reads the binary log."""

    flavour: Flavour
    durability: str = DURABILITY

    @property
    def name(self) -> str:
        return f"ackstream, {TITLES[self.flavour]}"

    @property
    def cases(self) -> Sequence[Case]:
        return [form.case for form in PROXY_FORMS]

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[MySQLQueue]:
        client = compiled(SOURCE, folder, LIBMARIADB)
        options = ["--log-level", "warning"]
        with (
            running_queue_server(self.flavour, folder) as server,
            running_proxy(server, folder / "proxy.log", options) as proxy,
            running_proxy(server, folder / "relaying.log", [*options, "--streams", "off"]) as relaying,
        ):
            proxy_pid = proxy.pid

            def log_reader() -> int:
                return next(
                    (pid for pid in family(proxy_pid) if READER in Path(f"/proc/{pid}/cmdline").read_bytes()), 0
                )

            reader = eventually(log_reader, what="the process that reads the binary log")
            processes = {"server": server.pid, "proxy": proxy_pid, "log reader": reader}
            yield MySQLQueue(server, client, proxy.port, processes, relaying.port)
