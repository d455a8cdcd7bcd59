"""One run: a server, proxies behind relays, processes of the workload, faults; its history goes into a folder.

The harness decides nothing about what is right: it records, and `checker` judges.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import ER

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.fault.chaos import faults as carried_out
from tests.fault.chaos.faults import FormerPrimary
from tests.fault.chaos.history import Writer, now_us, pack
from tests.fault.chaos.plans import CAPACITIES, Plan
from tests.fault.chaos.schedule import Fault, target_of
from tests.fault.chaos.workload import DATABASE, NOW_NS
from tests.support.clocks import ShiftedClock
from tests.support.failover import url
from tests.support.proxies import RunningProxy, environment
from tests.support.replicas import committed, primary_and_replica
from tests.support.servers import FLAVOUR_OF, ServerName, connect, lasting_port, new_server
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]
SERVER_OPTIONS = (
    "--innodb-flush-log-at-trx-commit=2",  # What a killed process has written, the system has.
    "--innodb-buffer-pool-size=1G",  # A run of half an hour has millions of rows.
)
PROXY_OPTIONS = ("--log-level", "info")
UNDO_S = 120.0
"""Longer than a server needs to recover on a machine that is busy otherwise. Without it, a proxy does not start."""
HEALED_S = 60.0
"""A server that was started a moment ago may refuse the first clients."""
REDO_LOG: dict[Flavour, str] = {
    "mysql": "--innodb-redo-log-capacity=1G",
    "mariadb": "--innodb-log-file-size=1G",
}
"""Servers wait with all commits while their redo log is full: with 32 MB and a busy disk, for a minute."""
SAMPLE_ROWS = 2000
"""Counted of a queue at most: with a million waiting, a full count would be most of the server's work."""
EPOCH_MAX = 2**63 - 1
"""Of a message that no claim can count further."""
OLD_ROWS = 100
"""Of a queue with rows that cannot be purged."""
LONG_S = 180.0
"""A run that lasts so long has rows that the server refuses to claim and to purge: it sees old rows purged, once a
minute."""
IDLE_S = 20.0
"""After so long without any progress a run is given up."""


@dataclass(frozen=True, slots=True)
class Run:
    """What to run. `rate`: messages a second that a share of 1 gets, in each process."""

    server: ServerName
    folder: Path
    seed: int
    seconds: float
    plans: Sequence[Plan]
    faults: Sequence[Fault]
    proxies: int = 3
    processes: int = 2
    batch: int = 100
    rate: float = 60.0
    misbehave: float = 0.15
    replica: bool = False
    """The server has a replica, which becomes the primary by the fault `fail_over`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the proxies' environment: how a test breaks them."""

    @property
    def history(self) -> Path:
        return self.folder / f"history-{self.server}-{self.seed}.jsonl"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy finds its server: at a relay."""

    host: str
    port: int


class Relays:
    """The process of the relays."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.chaos.relay"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def order(self, **order: Any) -> int:
        """Give an order; the port of its leg."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class Harness:
    """A run at work; `carried_out.Site` for its faults."""

    def __init__(self, run: Run, stack: contextlib.ExitStack) -> None:
        self.plan = run
        self.history = Writer(run.history)
        stack.callback(self.history.close)
        self.server_clock, self.proxy_clock = _clock(run.folder / "server"), _clock(run.folder / "proxy")
        self.server_shift_s = 0.0
        self._stack = stack
        self._clients: dict[int, subprocess.Popen[bytes]] = {}
        self._processes: dict[int, int] = {}
        self._started: Counter[int] = Counter()
        self._process_numbers = itertools.count(1)
        self._samples = itertools.count()
        self.server: EmbeddedServer
        self.replica: EmbeddedServer | None = None
        self.former: FormerPrimary | None = None
        self.proxies: list[RunningProxy] = []
        self._relays = Relays()
        self._relays_by_proxy: list[int] = []
        self._over = threading.Event()
        """Ends all pauses."""
        self._starting = threading.Lock()  # The environment is the whole process's.
        self._targets = {target_of(fault.what, fault.proxy): threading.Lock() for fault in run.faults}
        """Held during a fault: on a slow machine, one may last longer than its schedule."""
        stack.callback(self._relays.close)
        stack.callback(self._over.set)

    # What faults act on.

    def relay(self, leg: str, **order: Any) -> None:
        self._relays.order(leg=leg, **order)

    def client(self, draw: random.Random) -> tuple[int, subprocess.Popen[bytes]]:
        number = draw.choice(sorted(self._clients))
        return number, self._clients[number]

    def start_proxy(self, number: int) -> None:
        self._notice_faults(number)
        with self._starting, environment(**self.proxy_clock.environment, **self.plan.variables):
            self.proxies[number].start()

    def start_server(self) -> None:
        with self._starting, environment(**self.server_clock.environment):
            self.server.start()

    def client_ends(self, number: int) -> None:
        self.history.write("gone", process=self._processes[number])

    def start_client(self, number: int) -> None:
        """Each process has tokens of its own, so the one in the place of another has another number."""
        run = self.plan
        process = next(self._process_numbers)
        orders = {
            "process": process,
            "place": number,
            "seed": f"{run.seed}/{number}/{self._started[number]}",
            "history": str(run.history),
            "plans": [plan.as_values() for plan in run.plans],
            "routes": [[proxy.port, self._relays_by_proxy[at]] for at, proxy in enumerate(self.proxies)],
            # Who bypasses the proxies would not notice that another server is the primary.
            "server": self.proxies[0].port if run.replica else self.server.port,
            "batch": run.batch,
            "rate": run.rate,
            "misbehave": run.misbehave,
        }
        self._started[number] += 1
        with (run.folder / f"client-{number}.log").open("ab") as log:
            client = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.chaos.workload"],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stderr=log,
            )
        assert client.stdin is not None
        client.stdin.write(json.dumps(orders).encode() + b"\n")
        client.stdin.flush()
        self._clients[number], self._processes[number] = client, process
        self.history.write("process", process=process, place=number, pid=client.pid)

    # The run.

    def start(self) -> None:
        run = self.plan
        options: Sequence[str] = PROXY_OPTIONS
        if run.replica:
            self.server, self.replica = self._stack.enter_context(primary_and_replica(run.server, semi_sync=False))
            options = (*PROXY_OPTIONS, "--backend", url(self.replica))
        else:
            server_options = (*SERVER_OPTIONS, REDO_LOG[FLAVOUR_OF[run.server]])
            self.server = new_server(run.server, run.folder / "server" / "data", options=server_options)
            self.server.port = lasting_port()
            self._stack.callback(self.server.stop, 0)
            self.start_server()
        self._prepare()
        self.history.write("plan", plans=[plan.as_values() for plan in run.plans], proxies=run.proxies, seed=run.seed)
        self.history.write("clock", wall_us=time.time_ns() // 1000)
        for number in range(run.proxies):
            port = self._relays.order(leg=f"server{number}", to=self.server.port)
            log = run.folder / f"proxy-{number}.log"
            proxy = RunningProxy(Place("127.0.0.1", port), log, options, forked=False)  # type: ignore[arg-type]
            proxy.port = lasting_port()
            self._stack.callback(proxy.stop)
            self.proxies.append(proxy)
            self.start_proxy(number)
            self._relays_by_proxy.append(self._relays.order(leg=f"client{number}", to=proxy.port))
        with self.proxies[0].connect(database=DATABASE) as connection, connection.cursor() as cursor:
            for name, (capacity, _) in CAPACITIES.items() if any(plan.needs for plan in run.plans) else ():
                cursor.execute(f"CREATE SEMAPHORE {name} CAPACITY {capacity}")
            for plan in run.plans:
                cursor.execute(plan.create)
                for number in range(plan.refused if run.seconds >= LONG_S else 0):
                    cursor.execute(f"INSERT INTO {plan.name} (token, epoch) VALUES ({-1 - number}, {EPOCH_MAX})")
                if plan.kept and run.seconds >= LONG_S:
                    _add_old_rows(cursor, plan)
                for event in ("INSERT", "UPDATE") if plan.audited else ():
                    cursor.execute(
                        f"CREATE TRIGGER audit_{event} BEFORE {event} ON {plan.name} FOR EACH ROW"
                        " IF EXISTS (SELECT 1 FROM full_now) THEN SIGNAL SQLSTATE 'HY000'"
                        " SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'; END IF"
                    )

    def _prepare(self) -> None:
        with connect(self.server) as root, root.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
            cursor.execute(f"CREATE TABLE {DATABASE}.full_now (answer INT) ENGINE=MEMORY")

    def work(self) -> None:
        """Workload and faults, until the last fault is over."""
        run = self.plan
        for number in range(run.processes):
            self.start_client(number)
        self.history.write("phase", name="run")
        began = time.monotonic()
        threads = [threading.Thread(target=self._carry_out, args=(fault, began)) for fault in run.faults]
        for thread in threads:
            thread.start()
        watching = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(watching,))
        watcher.start()
        self._over.wait(max(0.0, run.seconds - (time.monotonic() - began)))
        for thread in threads:
            thread.join()
        watching.set()
        watcher.join()

    def _carry_out(self, fault: Fault, began: float) -> None:
        self._over.wait(max(0.0, began + fault.at_s - time.monotonic()))
        with self._targets[target_of(fault.what, fault.proxy)]:
            self._carry_out_alone(fault)

    def _carry_out_alone(self, fault: Fault) -> None:
        values: dict[str, Any] = {
            "number": fault.number,
            "what": fault.what,
            "proxy": fault.proxy,
            "values": dict(fault.values),
        }
        self.history.write("fault", **values, phase="begin")
        try:
            undo = carried_out.begin(self, fault)
            self.history.write("fault", **values, phase="begun", shift_us=int(self.server_shift_s * 1e6))
            self._over.wait(fault.lasts_s)
            self._persist(undo)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the run is not as its schedule says
            self.history.write("alarm", text=f"fault {fault} could not be carried out: {failure!r}")
        self.history.write("fault", **values, phase="end")

    def _persist(self, undo: carried_out.Undo) -> None:
        """End a fault, though another one may be in the way for a while."""
        until = time.monotonic() + UNDO_S
        while True:
            try:
                return undo()
            except (pymysql.MySQLError, OSError, AssertionError):
                if time.monotonic() > until:
                    raise
                self._over.wait(1)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(1.0):
            self._sample_memory()

    def _sample_memory(self) -> None:
        """Memory of the proxies."""
        for number, proxy in enumerate(self.proxies):
            with contextlib.suppress(OSError, ValueError):
                pages = int(Path(f"/proc/{proxy.pid}/statm").read_text().split()[1])
                self.history.write("sample", what="memory", proxy=number, bytes=pages * os.sysconf("SC_PAGESIZE"))

    def heal(self) -> None:
        """All faults are over: everything works again, producers stop, consumers acknowledge all that they get."""
        if self.server.wait(0):
            self.history.write("alarm", text=f"the server has ended by itself, see {self.server.error_log}")
            self.start_server()
        for number in range(len(self.proxies)):
            self.relay(f"server{number}", fault="pass")
            self.relay(f"client{number}", fault="pass")
        try:
            eventually(self._repair_queues, timeout_s=HEALED_S)  # The server may have been started a moment ago.
        except AssertionError:
            self.history.write("alarm", text=f"{HEALED_S} s after the last fault, the first proxy serves no client")
        self.history.write("phase", name="healed")
        for client in self._clients.values():
            assert client.stdin is not None
            client.stdin.write(b"heal\n")
            client.stdin.flush()
        self._drain()

    def _repair_queues(self) -> bool:
        """Make the queues that were dropped, resume those that were paused, and end `table_full`. Returns
        whether a client could; another one may be about to drop a queue and make it again."""
        with contextlib.suppress(pymysql.MySQLError):
            with (
                self.proxies[0].connect(database=DATABASE, read_timeout=30) as connection,
                connection.cursor() as cursor,
            ):
                for plan in self.plan.plans:
                    if plan.ddl:
                        cursor.execute(plan.create.replace("CREATE QUEUE ", "CREATE QUEUE IF NOT EXISTS "))
                        cursor.execute(f"RESUME QUEUE {plan.name}")
                cursor.execute("DELETE FROM full_now")  # Of a fault whose answer was lost.
            return True
        return False

    def _drain(self) -> None:
        """Wait until all messages are acknowledged, or until nothing more happens."""
        before, since = None, time.monotonic()
        while True:
            if time.monotonic() - since >= IDLE_S:
                self._write_what_is_in_flight()
                return
            self._sample_memory()
            try:
                waiting = self._sample()
            except pymysql.MySQLError as failure:
                if failure.args[0] == ER.NO_SUCH_TABLE and self._repair_queues():
                    continue  # A client was dropping a queue, to make it again, when all faults were over.
                self.history.write("alarm", text=f"a SELECT fails, though all faults are over: {failure}")
                return
            if not waiting:
                return
            if waiting != before:
                before, since = waiting, time.monotonic()
            self._over.wait(0.5)

    def _write_what_is_in_flight(self) -> None:
        """Beside the history: what each proxy shows of its streams and deliveries when a run is given up."""
        for number, proxy in enumerate(self.proxies):
            with (
                (self.plan.folder / f"stuck-proxy-{number}.txt").open("w") as file,
                contextlib.suppress(pymysql.MySQLError),
                proxy.connect(database=DATABASE, read_timeout=30) as connection,
                connection.cursor() as cursor,
            ):
                for statement in ("SHOW STREAMS", "SHOW DELIVERIES", "SHOW FULL QUEUES"):
                    cursor.execute(statement)
                    names = [column[0] for column in cursor.description]
                    file.writelines(f"{dict(zip(names, row, strict=True))}\n" for row in cursor.fetchall())

    def _sample(self) -> dict[str, tuple[int, int]]:
        """For each queue with messages: how many, and the time_next of the first. It is read through the proxies in
        turn, so a sample takes long where the machine leaves them no time: `checker.progress` counts by samples."""
        found: dict[str, tuple[int, int]] = {}
        proxy = self.proxies[next(self._samples) % len(self.proxies)]
        with proxy.connect(database=DATABASE, read_timeout=30) as reader, reader.cursor() as cursor:
            for plan in self.plan.plans:
                cursor.execute(
                    f"SELECT COUNT(*), COALESCE(SUM(time_next <= {NOW_NS}), 0), COALESCE(MIN(time_next), 0),"
                    f" COALESCE(({NOW_NS} - MIN(time_next)) DIV 1000, 0) FROM (SELECT time_next FROM {plan.name}"
                    " WHERE time_acked IS NULL AND token >= 0 ORDER BY priority, time_next"
                    f" LIMIT {SAMPLE_ROWS}) AS first"
                )
                ((waiting, due, first, oldest),) = cursor.fetchall()
                if waiting:
                    found[plan.name] = waiting, first
                figures = {"waiting": waiting, "due": int(due), "oldest_us": int(oldest)}
                self.history.write("sample", what="queue", queue=plan.name, **figures)
        return found

    def _notice_faults(self, number: int) -> None:
        """A traceback in a proxy's log is a fault of the proxy. The log is kept: a start begins a new one."""
        proxy = self.proxies[number]
        output = proxy.output
        if "Traceback" in output:
            kept = proxy.log.with_suffix(f".{now_us()}")
            kept.write_text(output)
            self.history.write("alarm", text=f"proxy {number} has logged a traceback, see {kept.name}")

    def finish(self) -> None:
        """Stop the workload, and write down the rows."""
        if self.server.wait(0):
            self.start_server()
        for number, client in self._clients.items():
            assert client.stdin is not None
            client.stdin.close()
            if client.wait(30) != 0:
                self.history.write("alarm", text=f"client {number} ended with {client.returncode}")
        self.history.write("phase", name="end")
        for number in range(len(self.proxies)):
            self._notice_faults(number)
        if self.former is not None:
            self.history.write("former", written=committed(self.former.server) != self.former.committed)
        with connect(self.server, database=DATABASE) as root:
            for plan in self.plan.plans:
                _write_rows(self.history, root, plan.name, plan.name)
                if plan.dead_letter:
                    _write_rows(self.history, root, plan.dead_letter, plan.name, dead=True)
                if plan.kept and self.plan.seconds >= LONG_S and (left := _old_rows_left(root, plan)):
                    self.history.write("alarm", text=f"{plan.name}: {left} old rows are not purged beside {plan.kept}")


def _add_old_rows(cursor: Any, plan: Plan) -> None:
    """Rows that were acknowledged two days ago. A foreign key refers to the first ones."""
    cursor.execute(
        f"CREATE TABLE {plan.name}_refers (message BIGINT UNSIGNED NOT NULL PRIMARY KEY,"
        f" FOREIGN KEY (message) REFERENCES {plan.name} (id))"
    )
    for number in range(OLD_ROWS):
        row = f"({-1 - number}, 1, {NOW_NS} - {2 * 86_400 * 10**9} + {number})"
        cursor.execute(f"INSERT INTO {plan.name} (token, epoch, time_acked) VALUES {row}")
        if number < plan.kept:
            cursor.execute(f"INSERT INTO {plan.name}_refers VALUES (LAST_INSERT_ID())")


def _old_rows_left(root: Any, plan: Plan) -> int:
    """How many of them are there, of those to which no foreign key refers."""
    with root.cursor() as cursor:
        cursor.execute(
            f"SELECT COUNT(*) FROM {plan.name} WHERE token < 0 AND time_acked IS NOT NULL"
            f" AND id NOT IN (SELECT message FROM {plan.name}_refers)"
        )
        return int(cursor.fetchone()[0])


def _clock(folder: Path) -> ShiftedClock:
    folder.mkdir(parents=True, exist_ok=True)
    return ShiftedClock(folder)


def _write_rows(history: Writer, root: Any, table: str, queue: str, *, dead: bool = False) -> None:
    """What the rows of a table have become, a few thousand at a time."""
    with root.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(f"SELECT token, epoch, time_acked IS NOT NULL FROM {table} WHERE token >= 0")
        while rows := cursor.fetchmany(5000):
            groups: dict[tuple[int, int], list[int]] = defaultdict(list)
            for token, epoch, acked in rows:
                groups[epoch, acked].append(token)
            for (epoch, acked), tokens in groups.items():
                state = "dead" if dead else "acked" if acked else "waiting"
                history.write("final", now_us(), queue=queue, state=state, epoch=epoch, tokens=pack(tokens))


def carry_out(run: Run) -> Path:
    """Carry out a run; the path of its history."""
    run.folder.mkdir(parents=True, exist_ok=True)
    run.history.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        harness = Harness(run, stack)
        harness.start()
        harness.work()
        harness.heal()
        harness.finish()
    return run.history
