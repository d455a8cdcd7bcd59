"""A primary and its replica, with global transaction ids, as an operator or a failover tool handles them.

Replication is semi-synchronous where the test wants it so: a commit is answered when the replica has the transaction.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.queues import rows, run
from tests.support.servers import FLAVOUR_OF, ServerName, binary_or_skip, connect, new_server, unpacked
from tests.support.waiting import eventually

ENOUGH_MS = 3_600_000
"""A primary waits so long for its replica before it goes on without."""

READ_ONLY: dict[Flavour, Sequence[str]] = {
    "mysql": ("SET GLOBAL super_read_only = 1",),
    "mariadb": ("SET GLOBAL read_only = 1",),
}
WRITABLE: dict[Flavour, Sequence[str]] = {
    "mysql": ("SET GLOBAL super_read_only = 0", "SET GLOBAL read_only = 0"),
    "mariadb": ("SET GLOBAL read_only = 0",),
}


def _options(name: ServerName, number: int) -> list[str]:
    if FLAVOUR_OF[name] == "mysql":
        root = unpacked(name)
        return [
            f"--server-id={number}",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            *([f"--plugin-dir={root / 'usr/lib/mysql/plugin'}"] if root else []),
            "--plugin-load-add=semisync_source.so",
            "--plugin-load-add=semisync_replica.so",
        ]
    return [f"--server-id={number}", "--log-slave-updates=ON", "--gtid-strict-mode=ON"]


def run_all(server: EmbeddedServer, *statements: str) -> None:
    """Run statements on the server itself."""
    with connect(server) as connection:
        for text in statements:
            run(connection, text)


def set_read_only(server: EmbeddedServer) -> None:
    """As before a planned switchover."""
    run_all(server, *READ_ONLY[server.flavour])


def set_writable(server: EmbeddedServer) -> None:
    run_all(server, *WRITABLE[server.flavour])


def follow(replica: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Replicate from the primary."""
    where = f"_HOST = '{primary.host}', {{0}}_PORT = {primary.port}, {{0}}_USER = 'root', {{0}}_CONNECT_RETRY = 1"
    if replica.flavour == "mysql":
        source = "SOURCE" + where.format("SOURCE") + ", SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
        run_all(replica, f"CHANGE REPLICATION SOURCE TO {source}", "START REPLICA")
    else:
        source = "MASTER" + where.format("MASTER") + ", MASTER_USE_GTID = slave_pos"
        run_all(replica, f"CHANGE MASTER TO {source}", "START SLAVE")


def _status(replica: EmbeddedServer) -> dict[str, Any]:
    with connect(replica) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW REPLICA STATUS")
        (row,) = cursor.fetchall()
        return {column[0].lower(): value for column, value in zip(cursor.description, row, strict=True)}


def _has_applied_all(replica: EmbeddedServer) -> bool:
    status = _status(replica)
    if replica.flavour == "mysql":
        with connect(replica) as connection:
            received = status["retrieved_gtid_set"].replace("\n", "")
            return rows(connection, f"SELECT GTID_SUBSET('{received}', @@GLOBAL.gtid_executed)") == [(1,)]
    state = str(status.get("slave_sql_running_state") or status.get("replica_sql_running_state"))
    return "has read all relay log" in state


def committed(server: EmbeddedServer) -> str:
    """The transactions that the server has committed. Any further one changes it."""
    name = "gtid_executed" if server.flavour == "mysql" else "gtid_binlog_pos"
    with connect(server) as connection:
        ((position,),) = rows(connection, f"SELECT @@GLOBAL.{name}")
    return str(position).replace("\n", "")


def catch_up(replica: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Wait until the replica has all that the primary has committed."""
    wait = "WAIT_FOR_EXECUTED_GTID_SET" if replica.flavour == "mysql" else "MASTER_GTID_WAIT"
    with connect(replica) as other:
        assert rows(other, f"SELECT {wait}('{committed(primary)}', 30)") == [(0,)]


def promote(replica: EmbeddedServer) -> None:
    """Apply what was received, and accept writes."""
    noun = "REPLICA" if replica.flavour == "mysql" else "SLAVE"
    run_all(replica, f"STOP {noun} IO_THREAD")
    eventually(lambda: _has_applied_all(replica), timeout_s=30, what="all that was received is applied")
    run_all(replica, f"STOP {noun}", f"RESET {noun} ALL", *WRITABLE[replica.flavour])


@contextlib.contextmanager
def primary_and_replica(name: ServerName, *, semi_sync: bool = True) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Two durable servers, the second one a replica of the first, and read-only."""
    binary_or_skip(name)
    with tempfile.TemporaryDirectory(prefix=f"ackstream-{name}-pair-") as directory, contextlib.ExitStack() as stack:
        servers = [
            new_server(name, Path(directory) / f"server{number}", durable=True, options=_options(name, number))
            for number in (1, 2)
        ]
        for server in servers:
            stack.callback(server.kill)
            server.start()
        primary, replica = servers
        reset = "RESET BINARY LOGS AND GTIDS" if primary.flavour == "mysql" else "RESET MASTER"
        run_all(primary, reset)
        run_all(replica, reset)
        if primary.flavour == "mariadb":
            run_all(replica, "SET GLOBAL gtid_slave_pos = ''")
        if semi_sync:
            _make_semi_sync(primary, replica)
        follow(replica, primary)
        set_read_only(replica)
        if semi_sync:
            eventually(lambda: _semi_sync_clients(primary) == 1, timeout_s=30, what="the replica is connected")
        yield primary, replica


def _make_semi_sync(primary: EmbeddedServer, replica: EmbeddedServer) -> None:
    source, other = ("source", "replica") if primary.flavour == "mysql" else ("master", "slave")
    run_all(
        primary,
        f"SET GLOBAL rpl_semi_sync_{source}_timeout = {ENOUGH_MS}",
        f"SET GLOBAL rpl_semi_sync_{source}_enabled = 1",
    )
    run_all(replica, f"SET GLOBAL rpl_semi_sync_{other}_enabled = 1")


def _semi_sync_clients(primary: EmbeddedServer) -> int:
    with connect(primary) as connection:
        ((_, count),) = rows(connection, "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%_clients'")
    return int(count)
