"""What a failover costs: a primary is killed under load, many times, and what was lost is counted.

    python -m tests.support.failover_runs [--times N] [KIND ...]

Producers and consumers work through the proxy. The primary is killed, and its replica is promoted as soon as it has
applied what it received (in a cluster nobody promotes). At the end every message is acknowledged on the new primary,
and compared with what the producers and consumers were told.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pymysql

from proxy.embedded.server import EmbeddedServer
from tests.support.galera import galera_cluster
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import rows, run
from tests.support.replicas import primary_and_replica, promote
from tests.support.servers import connect
from tests.support.waiting import eventually

PRODUCERS, CONSUMERS = 4, 4
BEFORE, AFTER = 400, 200
"""Messages that are committed before the primary is killed, and through the next one."""
PATIENCE_S = 120.0


@dataclass
class Result:
    """One run."""

    committed: int = 0
    lost: int = 0
    """Messages whose INSERT was answered with OK, and that the new primary does not have."""
    acks_lost: int = 0
    """Messages that were delivered again after an ACK of theirs was answered with OK."""
    twice: int = 0
    """Messages that were delivered more than once."""
    pause_s: float = 0.0
    """From the kill to the first message that was delivered afterwards."""
    found_s: float = 0.0
    """From the end of the promotion to the first statement that the new primary answered through the proxy."""


@dataclass
class Load:
    """Producers and consumers, and what they were told."""

    proxy: RunningProxy
    committed: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    delivered: list[tuple[str, float]] = field(default_factory=list)
    again_after_ack: set[str] = field(default_factory=set)
    deliveries: dict[str, int] = field(default_factory=dict)
    producing: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self.producing.set()
        for number in range(PRODUCERS):
            threading.Thread(target=self._work, args=(self._produce(number),), daemon=True).start()
        for _ in range(CONSUMERS):
            threading.Thread(target=self._work, args=(self._consume,), daemon=True).start()

    def _work(self, turn: Callable[[Any], None]) -> None:
        """Take turns on one connection after the other."""
        while not self.over.is_set():
            with contextlib.suppress(pymysql.MySQLError, OSError), self.proxy.connect(database="shop") as client:
                while not self.over.is_set():
                    turn(client)
            self.over.wait(0.05)

    def _produce(self, number: int) -> Callable[[Any], None]:
        count = 0

        def turn(client: Any) -> None:
            nonlocal count
            if not self.producing.wait(0.1):
                return
            count += 1
            payload = f"{number}-{count}"
            run(client, f"INSERT INTO m (payload) VALUES ('{payload}')")
            self.committed.add(payload)

        return turn

    def _consume(self, client: Any) -> None:
        found = rows(client, "STREAM id, payload FROM m LIMIT 5 WAIT 1")
        now = time.monotonic()
        with self.lock:
            for _, payload in found:
                self.delivered.append((payload, now))
                self.deliveries[payload] = self.deliveries.get(payload, 0) + 1
                if payload in self.acknowledged:
                    self.again_after_ack.add(payload)
        for identity, payload in found:
            if run(client, f"ACK FROM m WHERE id = {identity}") == 1:
                self.acknowledged.add(payload)


def one_run(servers: list[EmbeddedServer], after_kill: Callable[[], None], folder: Path) -> Result:
    """Kill the first server under load."""
    options = [part for server in servers[1:] for part in ("--backend", f"mysql://root@{server.host}:{server.port}")]
    with running_proxy(servers[0], folder / "log", options) as proxy:
        with proxy.connect() as client:
            run(client, "CREATE DATABASE shop")
            client.select_db("shop")
            run(client, "CREATE QUEUE m (payload VARCHAR(40) NOT NULL) ack_wait = 3600 purge_after = 86400")
        load = Load(proxy)
        load.start()
        try:
            eventually(lambda: len(load.committed) >= BEFORE, timeout_s=PATIENCE_S)
            killed_s = time.monotonic()
            servers[0].kill()
            after_kill()
            promoted_s = time.monotonic()
            eventually(lambda: _answers(proxy, servers[0]), timeout_s=PATIENCE_S)
            found_s = time.monotonic()
            there = len(load.committed)
            eventually(lambda: len(load.committed) >= there + AFTER, timeout_s=PATIENCE_S)
            load.producing.clear()
            eventually(lambda: _open_messages(servers[1]) == 0, timeout_s=PATIENCE_S, what="all are acknowledged")
        finally:
            load.over.set()
        with connect(servers[1], database="shop") as root:
            kept = {payload for (payload,) in rows(root, "SELECT payload FROM m")}
        later = [at for _, at in load.delivered if at > promoted_s]
        return Result(
            len(load.committed),
            len(load.committed - kept),
            len(load.again_after_ack),
            sum(count > 1 for count in load.deliveries.values()),
            later[0] - killed_s,
            found_s - promoted_s,
        )


def _answers(proxy: RunningProxy, killed: EmbeddedServer) -> bool:
    with contextlib.suppress(pymysql.MySQLError, OSError), proxy.connect() as client:
        return rows(client, "SELECT @@port") != [(killed.port,)]
    return False


def _open_messages(server: EmbeddedServer) -> int:
    with connect(server, database="shop") as root:
        return int(rows(root, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL")[0][0])


@contextlib.contextmanager
def _replicated(kind: str) -> Iterator[tuple[list[EmbeddedServer], Callable[[], None]]]:
    flavour, _, how = kind.partition("-")
    assert flavour in {"mysql", "mariadb"}
    with primary_and_replica(flavour, semi_sync=how == "semisync") as (primary, replica):  # type: ignore[arg-type]
        yield [primary, replica], lambda: promote(replica)


@contextlib.contextmanager
def _clustered(_: str) -> Iterator[tuple[list[EmbeddedServer], Callable[[], None]]]:
    with galera_cluster() as members:
        yield members, lambda: None


KINDS = {
    "mysql-semisync": _replicated,
    "mysql-async": _replicated,
    "mariadb-semisync": _replicated,
    "mariadb-async": _replicated,
    "galera": _clustered,
}


def run_kind(kind: str) -> Result:
    """One failover of this kind."""
    with KINDS[kind](kind) as (servers, after_kill), tempfile.TemporaryDirectory(prefix="ackstream-run-") as folder:
        return one_run(servers, after_kill, Path(folder))


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says: how many `times`, and which `kinds`. Without any, it is all kinds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20)
    # argparse compares the default of `*` as a whole with the choices.
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], default=[], metavar=f"{{{','.join(KINDS)}}}")
    found = parser.parse_args(given)
    found.kinds = found.kinds or list(KINDS)
    return found


def main() -> None:
    """Run them, and print a line for each run and a table."""
    asked_for = arguments()
    table = []
    for kind in asked_for.kinds:
        results = []
        for number in range(asked_for.times):
            results.append(run_kind(kind))
            print(f"{kind} {number + 1}: {results[-1]}", flush=True)  # noqa: T201
        pauses = sorted(result.pause_s for result in results)
        table.append(
            f"| {kind} | {len(results)} | {sum(result.committed for result in results):,}"
            f" | {sum(result.lost for result in results)} | {sum(result.acks_lost for result in results)}"
            f" | {sum(result.twice for result in results)}"
            f" | {median(result.found_s for result in results):.1f} ({max(result.found_s for result in results):.1f})"
            f" | {median(pauses):.1f} ({pauses[-1]:.1f}) |"
        )
    print("\n".join(table))  # noqa: T201


if __name__ == "__main__":
    main()
