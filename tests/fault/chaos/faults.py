"""Carrying out faults: each has a beginning and an end. `Site` is what they act on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pymysql
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.fault.chaos.schedule import Fault
from tests.fault.chaos.workload import DATABASE
from tests.support.clocks import ShiftedClock
from tests.support.failover import client_of
from tests.support.proxies import RunningProxy
from tests.support.replicas import catch_up, committed, promote
from tests.support.servers import connect

Undo = Callable[[], None]


class FormerPrimary(NamedTuple):
    """A server that was the primary, and what it had committed some time after the last proxy had changed."""

    server: EmbeddedServer
    committed: str


class Site(Protocol):
    """Servers, proxies, relays and clients of a run."""

    server: EmbeddedServer
    replica: EmbeddedServer | None
    former: FormerPrimary | None
    proxies: list[RunningProxy]
    server_clock: ShiftedClock
    proxy_clock: ShiftedClock
    server_shift_s: float

    def relay(self, leg: str, **order: Any) -> None:
        """Give the relays an order."""

    def client(self, draw: random.Random) -> tuple[int, subprocess.Popen[bytes]]:
        """One of the workload's processes."""

    def start_proxy(self, number: int) -> None:
        """Start a proxy that has ended."""

    def start_server(self) -> None:
        """Start the server that has ended."""

    def client_ends(self, number: int) -> None:
        """Write down that this process is about to be killed."""

    def start_client(self, number: int) -> None:
        """Start a process in the place of one that has ended."""


def begin(site: Site, fault: Fault) -> Undo:
    """Let it begin; returns what ends it. A fault that the server itself makes impossible does nothing."""
    with contextlib.suppress(pymysql.MySQLError):
        return FAULTS[fault.what](site, fault)
    return _nothing


def _nothing() -> None:
    pass


def _signalled(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _stop(*pids: int) -> Undo:
    for pid in pids:
        _signalled(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in pids:
            _signalled(pid, signal.SIGCONT)

    return go_on


def _children(pid: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(entry.name)


def _is_reader(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"engine.binlog.reader" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _processes(pid: int) -> Iterator[int]:
    """The processes of a proxy, without its reader of the binary log: several, if it has workers."""
    yield pid
    for child in _children(pid):
        if not _is_reader(child):
            yield from _processes(child)


def _kill_proxy(site: Site, fault: Fault) -> Undo:
    site.proxies[fault.proxy].kill()
    return lambda: site.start_proxy(fault.proxy)


def _stop_proxy(site: Site, fault: Fault) -> Undo:
    return _stop(*_processes(site.proxies[fault.proxy].pid))


def _stop_server(site: Site, fault: Fault) -> Undo:
    return _stop(site.server.pid)


def _kill_client(site: Site, fault: Fault) -> Undo:
    number, process = site.client(random.Random(fault.values["seed"]))
    site.client_ends(number)
    process.kill()
    process.wait()
    return lambda: site.start_client(number)


def _stop_client(site: Site, fault: Fault) -> Undo:
    return _stop(site.client(random.Random(fault.values["seed"]))[1].pid)


def _relayed(site: Site, fault: Fault) -> Undo:
    what, _, side = fault.what.partition("_")
    leg = f"{side.rstrip('s')}{fault.proxy}"
    site.relay(leg, fault=what, **fault.values)
    return _nothing if what == "cut" else lambda: site.relay(leg, fault="pass")


def _kill_server(site: Site, fault: Fault) -> Undo:
    site.server.kill()
    return site.start_server


def _restart_server(site: Site, fault: Fault) -> Undo:
    site.server.stop(timeout_s=15)
    return site.start_server


@contextlib.contextmanager
def _root(site: Site, **options: Any) -> Iterator[Connection[Any]]:
    with connect(site.server, read_timeout=30, **options) as connection:
        yield connection


def _run(site: Site, *statements: str) -> None:
    with _root(site) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _setting(on: str, off: str) -> Callable[[Site, Fault], Undo]:
    def setting(site: Site, fault: Fault) -> Undo:
        _run(site, on)
        return lambda: _run(site, off)

    return setting


def _read_only(site: Site, fault: Fault) -> Undo:
    mysql = site.server.flavour == "mysql"
    # It waits for all transactions that have written, and blocks all writes meanwhile. After the harness's timeout, the
    # wait would go on in the server.
    wait = "SET SESSION lock_wait_timeout = 5"
    _run(site, wait, "SET GLOBAL super_read_only = 1" if mysql else "SET GLOBAL read_only = 1")
    return lambda: _run(site, "SET GLOBAL read_only = 0")


def _max_connections(site: Site, fault: Fault) -> Undo:
    """Use up all connections. The one that ends it is kept, because the place for an administrator is
    soon taken, too. If it is lost, another one is tried."""
    kept = connect(site.server, read_timeout=30)
    with kept.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.processlist")
        ((count,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL max_connections = {max(10, count)}")

    def undo() -> None:
        try:
            kept.query("SET GLOBAL max_connections = 500")
        except pymysql.Error:
            _run(site, "SET GLOBAL max_connections = 500")
        finally:
            with contextlib.suppress(pymysql.Error):
                kept.close()

    return undo


def _held(site: Site, seconds: float, *statements: str) -> Undo:
    """A connection that runs the statements and stays as it is until the fault ends."""
    held = connect(site.server, database=DATABASE, autocommit=False, read_timeout=30)
    over = threading.Event()

    def work() -> None:
        with contextlib.suppress(pymysql.MySQLError, OSError), held.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 5, innodb_lock_wait_timeout = 5")
            for statement in statements:
                cursor.execute(statement)
            over.wait(seconds)
            held.rollback()
        with contextlib.suppress(pymysql.MySQLError, OSError):
            held.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join(30)

    return end


def _lock_rows(site: Site, fault: Fault) -> Undo:
    table = fault.values["table"]
    sql = f"SELECT id FROM {table} WHERE time_acked IS NULL ORDER BY priority, time_next LIMIT 50 FOR UPDATE"
    return _held(site, 60, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", sql)


def _lock_table(site: Site, fault: Fault) -> Undo:
    return _held(site, 60, f"LOCK TABLES {fault.values['table']} WRITE")


def _old_view(site: Site, fault: Fault) -> Undo:
    return _held(site, 60, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT COUNT(*) FROM kept")


def _deadlocks(site: Site, fault: Fault) -> Undo:
    """Transactions that lock rows of a queue in descending order, while the engine locks them in ascending order."""
    table, over = fault.values["table"], threading.Event()

    def work() -> None:
        draw = random.Random(fault.values["seed"])
        with contextlib.suppress(pymysql.MySQLError), _root(site, database=DATABASE) as connection:
            while not over.wait(0.05):
                with contextlib.suppress(pymysql.err.OperationalError), connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute(f"SELECT id FROM {table} WHERE time_acked IS NULL ORDER BY id LIMIT 30")
                    for (identity,) in sorted(cursor.fetchall(), reverse=True)[:: draw.randrange(1, 4)]:
                        cursor.execute(f"UPDATE {table} SET kind = kind WHERE id = {identity}")
                        cursor.execute(f"SELECT id FROM {table} WHERE id = {identity} FOR UPDATE")
                    cursor.execute("ROLLBACK")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join(30)

    return end


def _kill_reader(site: Site, fault: Fault) -> Undo:
    """Kill the child that reads the binary log for this proxy."""
    for child in _children(site.proxies[fault.proxy].pid):
        if _is_reader(child):
            _signalled(child, signal.SIGKILL)
    return _nothing


def _kill_connections(site: Site, fault: Fault) -> Undo:
    """KILL a third of all connections, whoever's they are."""
    draw = random.Random(fault.values["seed"])
    with _root(site) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE user = 'root' AND id <> CONNECTION_ID()")
        for (number,) in sorted(cursor.fetchall()):
            if draw.random() < 0.3:
                with contextlib.suppress(pymysql.MySQLError):
                    cursor.execute(f"KILL {number}")
    return _nothing


def _purge_binlog(site: Site, fault: Fault) -> Undo:
    _run(site, "FLUSH BINARY LOGS")
    with _root(site) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        last = cursor.fetchall()[-1][0]
        cursor.execute(f"PURGE BINARY LOGS TO '{last}'")
    return _nothing


def _table_full(site: Site, fault: Fault) -> Undo:
    """From now on each change of the queue `audited` fails with 1114, in a trigger.

    A full disk or tablespace is no fault that can be tested: both servers end themselves when a rollback needs space
    ("[FATAL] Out of tablespace during rollback").
    """
    _run(site, f"INSERT INTO {DATABASE}.full_now VALUES (1)")
    return lambda: _run(site, f"DELETE FROM {DATABASE}.full_now")


def _fail_over(site: Site, fault: Fault) -> Undo:
    """The proxies do not reach the primary, its replica takes over, and they reach both again: both accept writes.

    What the proxies had sent reaches the former primary late, but nothing that they send afterwards may.
    """
    former, replica = site.server, site.replica
    assert replica is not None
    legs = [f"server{number}" for number in range(len(site.proxies))]
    for leg in legs:
        site.relay(leg, fault="stall", up=True, down=True)
    catch_up(replica, former)
    promote(replica)
    site.server, site.replica = replica, None
    for proxy in site.proxies:
        client_of(proxy, replica).close()
    for leg in legs:
        site.relay(leg, fault="pass")

    def end() -> None:
        site.former = FormerPrimary(former, committed(former))

    return end


def _server_clock(site: Site, fault: Fault) -> Undo:
    site.server_shift_s += fault.values["shift_s"]
    site.server_clock.shift(site.server_shift_s)
    return _nothing


def _proxy_clock(site: Site, fault: Fault) -> Undo:
    site.proxy_clock.shift(fault.values["shift_s"])
    return lambda: site.proxy_clock.shift(0)


FAULTS: dict[str, Callable[[Site, Fault], Undo]] = {
    "kill_proxy": _kill_proxy,
    "stop_proxy": _stop_proxy,
    "freeze_proxy": _stop_proxy,
    "kill_client": _kill_client,
    "stop_client": _stop_client,
    **{
        f"{what}_{side}": _relayed
        for what in ("cut", "stall", "delay", "throttle", "split")
        for side in ("clients", "server")
    },
    "refuse_server": _relayed,
    "kill_server": _kill_server,
    "restart_server": _restart_server,
    "stop_server": _stop_server,
    "read_only": _read_only,
    "offline_mode": _setting("SET GLOBAL offline_mode = 1", "SET GLOBAL offline_mode = 0"),
    "max_connections": _max_connections,
    "lock_rows": _lock_rows,
    "lock_table": _lock_table,
    "deadlocks": _deadlocks,
    "old_view": _old_view,
    "kill_reader": _kill_reader,
    "kill_connections": _kill_connections,
    "purge_binlog": _purge_binlog,
    "table_full": _table_full,
    "server_clock": _server_clock,
    "proxy_clock": _proxy_clock,
    "fail_over": _fail_over,
}
