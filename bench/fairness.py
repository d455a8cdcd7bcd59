"""How long quiet tenants wait beside a noisy one, how evenly tenants share, and what shuffle sharding does.

    .venv/bin/python bench/fairness.py [--messages N] [--seconds N] [--rounds N] [--server mysql|mariadb]

Measured through a proxy, for each server:

* 100 quiet tenants add a message a second each, to an empty queue, and to one with so many due messages
  of one tenant at the front: from before the INSERT until a consumer has the row, and the INSERT alone,
  median and 99th percentile of all rounds. Beside it what priorities do instead: the same backlog in a
  queue without groups, whose quiet messages are more urgent than all of it. The three are measured in
  turn.
* Twenty tenants with a backlog, one block behind the other: Jain's index (1: even) of the messages that
  each got.
* Four such tenants, and the work of one takes ten times as long: Jain's index of the time for which each
  has consumers. It is counted in two ways: from the row to the answer of the ACK, and with the wait for
  the row. A message is in flight during a part of that wait, while it is claimed, and the wait is as long
  for short work as for long work.

Beside it two models of the same arrivals and consumers, without any database: message groups (the group
with the fewest messages in flight, then the longest since its turn), and shuffle sharding as it is
usually built: each tenant hashed onto k of N queues, the shortest of them taken by an INSERT, one
rotation over all queues by the consumers.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

from pymysql.cursors import SSCursor

from bench.compare.mysql import REDO_LOG, SERVER_OPTIONS
from bench.proxies import connect
from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import running_proxy
from tests.support.servers import new_server

CONSUMERS = 8
WORK_S = 0.005
"""One message takes a consumer so long."""
SETTLING_S = 10
"""Before a measurement. The server writes the backlog to disk, and the proxy reads it in the binary log."""
FILLED = 10_000
FILL = """
INSERT INTO m (tenant, sent, priority)
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT %s, 0, %s FROM n AS a JOIN n AS b
"""
"""So many messages of one tenant with this priority."""
QUIET = 100
BACKLOGS = 20
BACKLOGS_OF_SLOW = 4
"""Fewer than the consumers: a tenant cannot hold less than one."""
FIRST = 1_000
"""The first of the tenants with a backlog. Its work may be slow."""
SLOW = 10
"""The work of the slow tenant takes so many times as long."""
SHARDS, CHOICES = 64, 6
SEED = 14
NOISY = -1


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 if all shares are equal, 1 / n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def summary(latencies_s: Sequence[float]) -> str:
    """Median and 99th percentile in ms."""
    return f"p50 {1e3 * median(latencies_s):8.1f} ms, p99 {1e3 * quantiles(latencies_s, n=100)[98]:8.1f} ms"


def print_jain(name: str, what: str, shares: Sequence[float]) -> None:
    """Jain's index of what these tenants with a backlog have."""
    print(f"{name}: {len(shares)} backlogs, Jain's index of {what}: {jain(shares):.4f}", flush=True)


def _of_all(shares: Counter[int], tenants: int) -> list[int]:
    """The shares of so many tenants with a backlog. Some may have none."""
    return [shares[FIRST + number] for number in range(tenants)]


def slow_work_s(tenant: int) -> float:
    """The time of a message, where the work of one tenant is slow."""
    return WORK_S * (SLOW if tenant == FIRST else 1)


# Models.


class Schedule(Protocol):
    """Which message a free consumer takes."""

    def add(self, tenant: int, arrived_s: float) -> None:
        """A message arrives."""

    def take(self) -> tuple[int, float] | None:
        """The next message: its tenant and when it arrived. None: there is none."""

    def done(self, tenant: int) -> None:
        """The work on a message of this tenant is over."""


class Groups:
    """Message groups."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[float]] = {}
        self._in_flight: Counter[int] = Counter()
        self._turns: Counter[int] = Counter()
        self._turn = 0

    def add(self, tenant: int, arrived_s: float) -> None:
        self._queues.setdefault(tenant, deque()).append(arrived_s)

    def take(self) -> tuple[int, float] | None:
        waiting = [tenant for tenant, queue in self._queues.items() if queue]
        if not waiting:
            return None
        tenant = min(waiting, key=lambda tenant: (self._in_flight[tenant], self._turns[tenant]))
        self._turn += 1
        self._turns[tenant] = self._turn
        self._in_flight[tenant] += 1
        return tenant, self._queues[tenant].popleft()

    def done(self, tenant: int) -> None:
        self._in_flight[tenant] -= 1


class Shards:
    """Shuffle sharding."""

    def __init__(self) -> None:
        self._queues: list[deque[tuple[int, float]]] = [deque() for _ in range(SHARDS)]
        self._next = 0

    def add(self, tenant: int, arrived_s: float) -> None:
        chosen = random.Random(f"{SEED} {tenant}").sample(range(SHARDS), CHOICES)
        min((self._queues[number] for number in chosen), key=len).append((tenant, arrived_s))

    def take(self) -> tuple[int, float] | None:
        for _ in range(SHARDS):
            queue = self._queues[self._next]
            self._next = (self._next + 1) % SHARDS
            if queue:
                return queue.popleft()
        return None

    def done(self, tenant: int) -> None:
        pass


def simulate(
    schedule: Schedule, arrivals: Sequence[tuple[float, int]], work_s: Callable[[int], float], until_s: float
) -> tuple[list[float], Counter[int], Counter[int]]:
    """Let consumers work until then. Returns the latencies of quiet tenants, the messages of each tenant,
    and the µs of work of each."""
    latencies, messages, held_us = list[float](), Counter[int](), Counter[int]()
    events: list[tuple[float, int, int]] = [(at_s, 1, tenant) for at_s, tenant in arrivals]
    heapq.heapify(events)
    free = CONSUMERS
    while events and events[0][0] < until_s:
        now_s, arrives, tenant = heapq.heappop(events)
        if arrives:
            schedule.add(tenant, now_s)
        else:
            schedule.done(tenant)
            free += 1
        while free and (not events or events[0][0] > now_s) and (taken := schedule.take()) is not None:
            free -= 1
            tenant, arrived_s = taken
            messages[tenant] += 1
            held_us[tenant] += int(1e6 * work_s(tenant))
            if 0 <= tenant < QUIET:
                latencies.append(now_s - arrived_s)
            heapq.heappush(events, (now_s + work_s(tenant), 0, tenant))
    return latencies, messages, held_us


def quiet_arrivals(seconds: float) -> list[tuple[float, int]]:
    """One message a second of each quiet tenant."""
    draw = random.Random(SEED)
    return sorted(
        (first + second, tenant)
        for tenant in range(QUIET)
        for first in [draw.random()]
        for second in range(int(seconds))
    )


def print_models(messages: int, seconds: float) -> None:
    """Both models on the arrivals of the measurements."""
    quiet = quiet_arrivals(seconds)
    flood = [(0.0, NOISY)] * min(messages, int(2 * seconds * CONSUMERS / WORK_S))
    noisy = [(0.0, -1 - number) for _ in range(len(flood) // BACKLOGS) for number in range(BACKLOGS)]

    def backlog(tenants: int) -> list[tuple[float, int]]:
        return [(0.0, FIRST + number) for number in range(tenants) for _ in range(len(flood) // tenants)]

    for name, kind in (("groups", Groups), (f"shuffle sharding, {CHOICES} of {SHARDS}", Shards)):
        for beside, others in (("nothing", []), ("one noisy tenant", flood), (f"{BACKLOGS} noisy tenants", noisy)):
            latencies, _, _ = simulate(kind(), others + quiet, lambda _: WORK_S, seconds)
            print(f"model, {name}: {QUIET} quiet tenants beside {beside}: {summary(latencies)}", flush=True)
        _, even, _ = simulate(kind(), backlog(BACKLOGS), lambda _: WORK_S, seconds)
        _, _, held = simulate(kind(), backlog(BACKLOGS_OF_SLOW), slow_work_s, seconds)
        print_jain(f"model, {name}", "their messages", _of_all(even, BACKLOGS))
        print_jain(f"model, {name}", "the time of consumers, one slow", _of_all(held, BACKLOGS_OF_SLOW))


# Measured.


@dataclass(frozen=True, slots=True)
class Handled:
    """One message at a consumer."""

    at_s: float
    """When its work was done (monotonic, of all processes)."""
    tenant: int
    waited_s: float
    """From before its INSERT until the consumer had the row."""
    worked_us: int
    """From the row in the consumer's hand to the answer of the ACK."""
    held_us: int
    """The same, and the consumer's wait for the row before it."""


class StoppedError(Exception):
    """The bench has ended the consumer."""


class Consumers:
    """Clients that each handle one message at a time, in processes of their own."""

    def __init__(self, port: int, work_s: Callable[[int], float]) -> None:
        forking = multiprocessing.get_context("fork")
        self._running: list[tuple[Any, Connection]] = []
        for _ in range(CONSUMERS):
            results, sender = forking.Pipe(duplex=False)
            process = forking.Process(target=_consume, args=(port, work_s, sender), daemon=True)
            process.start()
            sender.close()
            self._running.append((process, results))

    def stop(self) -> list[Handled]:
        """End them. Returns what they have handled."""
        for process, _ in self._running:
            process.terminate()
        handled = [one for _, results in self._running for one in results.recv()]
        for process, _ in self._running:
            process.join()
        return handled


def _consume(port: int, work_s: Callable[[int], float], results: Connection) -> None:
    """Handle messages until SIGTERM, then send what was handled."""
    handled: list[Handled] = []

    def stop(*_: object) -> None:
        raise StoppedError

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(StoppedError):
        stream, acks = connect(port), connect(port)
        cursor = SSCursor(stream)
        cursor.execute("STREAM id, tenant, sent FROM m PREFETCH 1")
        free_s = time.monotonic()
        with acks.cursor() as acknowledge:
            while (row := cursor.fetchone()) is not None:
                number, tenant, sent = row
                waited_s, began_s = time.time() - sent, time.monotonic()
                time.sleep(work_s(tenant))
                acknowledge.execute(f"ACK FROM m WHERE id = {number}")
                now_s = time.monotonic()
                worked_us, held_us = int(1e6 * (now_s - began_s)), int(1e6 * (now_s - free_s))
                handled.append(Handled(now_s, tenant, waited_s, worked_us, held_us))
                free_s = now_s
    results.send(handled)
    os._exit(0)  # A destructor would read the endless result to its end.


@contextlib.contextmanager
def queue(
    server: EmbeddedServer, folder: Path, backlog: Sequence[tuple[int, int]], *, grouped: bool = True
) -> Iterator[int]:
    """A fair queue with so many due messages of each tenant, and a proxy; without groups if not `grouped`,
    and the backlog is less urgent than what comes then. Yields the proxy's port."""
    root = connect(server.port, None)
    for statement in ("DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench"):
        with root.cursor() as cursor:
            cursor.execute(statement)
    with running_proxy(server, folder / f"{time.time_ns()}.log", ("--log-level", "info"), forked=False) as proxy:
        client = connect(proxy.port)
        with client.cursor() as cursor:
            cursor.execute("CREATE QUEUE m (tenant INT, sent DOUBLE)" + (" GROUP_BY = (tenant)" if grouped else ""))
            for tenant, count in backlog:
                client.begin()
                for _ in range(0, count, FILLED):
                    cursor.execute(FILL, (tenant, not grouped))
                client.commit()
        yield proxy.port


@dataclass(slots=True)
class Waits:
    """How long the messages of quiet tenants took, in seconds."""

    to_row: list[float] = field(default_factory=list)
    """From before the INSERT until the consumer had the row."""
    insert: list[float] = field(default_factory=list)
    """Until the INSERT was answered."""


def measure_quiet(
    server: EmbeddedServer, folder: Path, messages: int, seconds: float, waits: Waits, *, grouped: bool = True
) -> None:
    """Add the latencies of the quiet tenants beside a backlog of one tenant."""
    with queue(server, folder, [(NOISY, messages)] if messages else [], grouped=grouped) as port:
        consumers = Consumers(port, lambda _: WORK_S)
        time.sleep(SETTLING_S)
        began_s, producer = time.monotonic(), connect(port)
        with producer.cursor() as cursor:
            for at_s, tenant in quiet_arrivals(seconds):
                time.sleep(max(0.0, began_s + at_s - time.monotonic()))
                sent_s = time.time()
                cursor.execute(f"INSERT INTO m (tenant, sent) VALUES ({tenant}, {sent_s!r})")
                waits.insert.append(time.time() - sent_s)
        time.sleep(1)
        waits.to_row += [one.waited_s for one in consumers.stop() if 0 <= one.tenant < QUIET]


def print_quiet(server: EmbeddedServer, folder: Path, name: str, messages: int, seconds: float, rounds: int) -> None:
    """Measure and print how long the messages of quiet tenants take, in so many rounds."""
    waits = {
        "an empty queue": Waits(),
        f"{messages:,} messages": Waits(),
        f"{messages:,} less urgent messages, without groups": Waits(),
    }
    for _ in range(rounds):
        for (beside, found), (count, grouped) in zip(
            waits.items(), ((0, True), (messages, True), (messages, False)), strict=True
        ):
            measure_quiet(server, folder, count, seconds, found, grouped=grouped)
            print(f"  {beside}: {summary(found.to_row)} so far", flush=True)
    for beside, found in waits.items():
        print(f"{name}: {QUIET} quiet tenants beside {beside}: {summary(found.to_row)}", flush=True)
        print(f"{name}:   of this the INSERT: {summary(found.insert)}", flush=True)


def measure_shares(
    server: EmbeddedServer,
    folder: Path,
    backlog: Sequence[tuple[int, int]],
    seconds: float,
    work_s: Callable[[int], float],
) -> list[Handled]:
    """What consumers handle in so many seconds, of tenants with so many due messages each."""
    with queue(server, folder, backlog) as port:
        consumers = Consumers(port, work_s)
        time.sleep(SETTLING_S)
        began_s = time.monotonic()
        time.sleep(seconds)
        return [one for one in consumers.stop() if one.at_s >= began_s]


def print_shares(server: EmbeddedServer, folder: Path, name: str, messages: int, seconds: float) -> None:
    """Measure and print how evenly tenants share, which have so many due messages together."""
    backlogs = [(FIRST + number, messages // BACKLOGS) for number in range(BACKLOGS)]
    counts = Counter(one.tenant for one in measure_shares(server, folder, backlogs, seconds, lambda _: WORK_S))
    print_jain(name, "their messages", _of_all(counts, BACKLOGS))
    backlogs = [(FIRST + number, messages // BACKLOGS_OF_SLOW) for number in range(BACKLOGS_OF_SLOW)]
    worked_us, held_us = Counter[int](), Counter[int]()
    for one in measure_shares(server, folder, backlogs, seconds, slow_work_s):
        worked_us[one.tenant] += one.worked_us
        held_us[one.tenant] += one.held_us
    for what, us in (("row to ACK", worked_us), ("with the wait for the row", held_us)):
        print_jain(name, f"the time of consumers, one slow, {what}", _of_all(us, BACKLOGS_OF_SLOW))


def main() -> None:
    """Print the models, then the measurements."""
    parser = argparse.ArgumentParser(description="Fairness among tenants")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--server", choices=["mysql", "mariadb"], action="append")
    chosen = parser.parse_args()
    print_models(chosen.messages, chosen.seconds)
    flavours: list[Flavour] = chosen.server or ["mysql", "mariadb"]
    for flavour in flavours:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            options = (*SERVER_OPTIONS, REDO_LOG[flavour])
            server = new_server(flavour, folder / "server", durable=True, options=options)
            server.start()
            try:
                print_quiet(server, folder, flavour, chosen.messages, chosen.seconds, chosen.rounds)
                print_shares(server, folder, flavour, chosen.messages, chosen.seconds)
            finally:
                server.stop(timeout_s=30)


if __name__ == "__main__":
    main()
