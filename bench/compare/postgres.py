"""Queues in PostgreSQL: pgmq, graphile-worker and pg-boss.

The server has its own settings, durable at each commit, and as much memory as the other databases.
pgmq's SQL functions are called by pgbench, a client in C. The two others are libraries for Node.js;
workers.mjs runs their workers.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.model import PAYLOAD_BYTES, Case, Drained, Latencies, MissingError
from bench.compare.root import ROOT, folder_in_root, in_root, output, outside, server_in_root
from bench.processes import HOST, ProgramFailedError, free_port
from tests.support.waiting import eventually

DURABILITY = "fsync at each commit: synchronous_commit=on"
OPTIONS = ("shared_buffers=1GB", "max_wal_size=4GB", "max_connections=200")
LIBRARIES = Path("/opt/compare")
WORKERS = Path(__file__).with_name("workers.mjs")
USER = "postgres"
WARM_UP = 5


class Postgres:
    """A running server."""

    def __init__(self, port: int, pid: int, programs: Path, folder: Path) -> None:
        self.port = port
        self.folder = folder
        self.processes: Mapping[str, int] = {"server": pid}
        self._programs = programs

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/postgres"

    def program(self, name: str, *arguments: str) -> list[str]:
        """Return the command of a program of PostgreSQL, as its user."""
        return in_root(str(self._programs / name), *arguments, user=USER)

    def sql(self, text: str) -> str:
        """Run statements; return the output of psql."""
        return output(*self.program("psql", "-d", self.url, "-qAt", "-v", "ON_ERROR_STOP=1", "-c", text))


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A new server. Raises MissingError."""
    found = sorted(ROOT.glob("usr/lib/postgresql/*/bin"))
    programs = Path("/") / found[-1].relative_to(ROOT) if found else Path("/usr/lib/postgresql/bin")
    port = free_port()
    with folder_in_root(USER) as folder:
        data = str(folder / "data")
        output(*in_root(str(programs / "initdb"), "-D", data, "-A", "trust", "-E", "UTF8", user=USER))
        options = [f"-c{option}" for option in (*OPTIONS, f"unix_socket_directories={folder}")]
        command = [str(programs / "postgres"), "-D", data, "-h", HOST, "-p", str(port), *options]
        with server_in_root(folder, port, command, USER) as pid:
            server = Postgres(port, pid, programs, folder)
            ready = server.program("pg_isready", "-q", "-d", server.url)
            eventually(lambda: not subprocess.run(ready, check=False).returncode, timeout_s=30, what="PostgreSQL")
            yield server
            output(*server.program("pg_ctl", "stop", "-D", data, "-m", "immediate"))


class Pgmq:
    """pgmq: `read` makes messages invisible for a while, `delete` finishes them."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.processes = server.processes
        script = LIBRARIES / "pgmq/pgmq/sql/pgmq.sql"
        output(*server.program("psql", "-d", server.url, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script)))
        server.sql("SELECT pgmq.create('queue')")
        number = (outside(script).with_name("pgmq.sql.version")).read_text().strip()
        self.version = f"pgmq {number}, PostgreSQL {server.sql('SHOW server_version').split()[0]}"

    def fill(self, messages: int) -> None:
        self._server.sql(
            f"""SELECT count(*) FROM (SELECT pgmq.send_batch('queue', array_agg(body)) FROM
            (SELECT i % 1000 AS part, jsonb_build_object('payload', repeat('x', {PAYLOAD_BYTES})) AS body
             FROM generate_series(1, {messages}) AS i) AS bodies GROUP BY part) AS sent"""
        )
        self._server.sql("VACUUM ANALYZE")

    def drain(self, case: Case, messages: int) -> Drained:
        # A read near the end of the queue may return less than it asks for.
        self.fill(2 * case.batch * case.consumers)
        before = self._length()
        script = self._server.folder / "drain.sql"
        outside(script).write_text(
            f"SELECT array_agg(msg_id) AS ids, array_agg(message) AS bodies"
            f" FROM pgmq.read('queue', 30, {case.batch}) \\gset\n"
            "SELECT count(*) FROM pgmq.delete('queue', :ids::bigint[]);\n"
        )
        clients = ["-c", str(case.consumers), "-j", "2", "-t", str(messages // case.batch // case.consumers)]
        cpu_before_s = children_cpu_s()
        text = output(
            *self._server.program(
                "pgbench", "-n", *clients, "-M", "prepared", "-f", str(script), "-d", self._server.url
            )
        )
        cpu_s = children_cpu_s() - cpu_before_s
        tps = next(float(line.split()[2]) for line in text.splitlines() if line.startswith("tps = "))
        finished = before - self._length()
        self._server.sql("SELECT pgmq.purge_queue('queue')")
        return Drained(finished, messages / case.batch / tps, cpu_s)

    def _length(self) -> int:
        return int(self._server.sql("SELECT count(*) FROM pgmq.q_queue"))

    def latencies(self, samples: int) -> Mapping[str, Latencies]:
        return {}


class NodeQueue:
    """A queue of a Node.js library."""

    def __init__(self, server: Postgres, library: str, version: str, *, notified: bool) -> None:
        self._server = server
        self._library = library
        self._notified = notified
        self.processes = server.processes
        self.version = f"{version}, PostgreSQL {server.sql('SHOW server_version').split()[0]}"
        shutil.copy(WORKERS, outside(LIBRARIES))
        self._ordered("fill", 0)

    def fill(self, messages: int) -> None:
        self._ordered("fill", messages)
        self._server.sql("VACUUM ANALYZE")

    def drain(self, case: Case, messages: int) -> Drained:
        seconds, cpu_s = self._ordered("drain", "batched" if case.batch > 1 else "single", messages)[0]
        return Drained(messages, seconds, cpu_s)

    def latencies(self, samples: int) -> Mapping[str, Latencies]:
        if not self._notified:
            return {}
        lines = self._ordered("latency", samples + WARM_UP)[WARM_UP:]
        return {"": Latencies([delivery for delivery, _ in lines], [enqueue for _, enqueue in lines])}

    def _ordered(self, *order: str | int) -> list[list[float]]:
        """Run workers.mjs with this order; return the numbers of its lines."""
        words = (str(LIBRARIES / WORKERS.name), self._library, self._server.url, *map(str, order))
        command = in_root("/usr/bin/node", *words, user=USER)
        done = subprocess.run(command, check=False, input="begin\n", stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise ProgramFailedError("the workers failed: see above")
        return [[float(word) for word in line.split()] for line in done.stdout.splitlines() if line != "ready"]


def children_cpu_s() -> float:
    """Return the CPU seconds of this process's ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, slots=True)
class PgmqCompetitor:
    """pgmq without the extension: its SQL file makes the functions."""

    name: str = "pgmq"
    durability: str = DURABILITY
    cases: Sequence[Case] = (Case("8 × read 100, delete", 8, 100), Case("8 × read 1, delete", 8, 1))

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Pgmq]:
        require_library("pgmq")
        with running_postgres() as server:
            yield Pgmq(server)


@dataclass(frozen=True, slots=True)
class NodeCompetitor:
    """A library of npm. `notified`: whether waiting workers are woken, so that latency is more than a poll."""

    name: str
    library: str
    cases: Sequence[Case]
    notified: bool
    durability: str = DURABILITY

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[NodeQueue]:
        package = require_library(f"node_modules/{self.name}") / "package.json"
        version = next(line.split('"')[3] for line in package.read_text().splitlines() if '"version"' in line)
        with running_postgres() as server:
            yield NodeQueue(server, self.library, f"{self.name} {version}", notified=self.notified)


def require_library(place: str) -> Path:
    """Return the folder of a library. Raises MissingError where it was not installed."""
    folder = outside(LIBRARIES / place)
    if not folder.exists():
        raise MissingError("not installed: `scripts/prepare competitors` does it")
    return folder


POSTGRES_QUEUES = (
    PgmqCompetitor(),
    NodeCompetitor(
        "graphile-worker",
        "graphile",
        (Case("24 jobs at once, local queue of 500", 24, 500), Case("8 jobs at once", 8, 1)),
        notified=True,
    ),
    NodeCompetitor("pg-boss", "pgBoss", (Case("4 × batches of 100", 4, 100),), notified=False),
)
