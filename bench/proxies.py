"""Several proxies in front of one server: what a drain costs with 1, 2 and 4 of them.

    .venv/bin/python -m bench.proxies [--seconds N] [--messages N] [--consumers N] [--work-ms N]
                                      [--where CONDITION] [--server mysql|mariadb] [--proxies N]

The consumers, as many in each case, have endless streams. They begin when the backlog is there, and
acknowledge a hundred messages at a time, after their work on these (`--work-ms`, 0). With `--where`
their streams have this condition, on `id` and `payload`, which selects all messages. The numbers of
proxies take turns, round after round, until the time is over. Printed for each number, as medians of
the rounds: messages a second, and that rate beside the rate with one proxy in the same round; keys
that scans returned, keys that claims did not get, scans, claims and statements of the server (all for
each message); the CPU time of the proxies and of the server for each message; in the last round, the
statements a second when all is drained. The counts say more than the rate: proxies, consumers and
server share the machine. With some work the consumers decide the rate, if they get messages in time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from statistics import median
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from bench.processes import cpu_s, family
from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.servers import new_server

COUNTS = (1, 2, 4)
ACK_BATCH = 100
IDLE_S = 5.0
SETTLE_S = 2.5
"""Proxies see each other within two seconds."""
PAYLOAD = "x" * 120
COUNTED = ("scanned_total", "claimed_total", "claimed_in_vain_total", "scans_total", "claims_total")


def connect(port: int, database: str | None = "bench") -> Any:
    return pymysql.connect(
        host="127.0.0.1", port=port, user="root", autocommit=True, database=database, ssl_disabled=True
    )


Received = ctypes.Array[ctypes.c_longlong]
"""How many messages each consumer has received, in memory that all processes share. Reading a proxy's
metrics instead would cost it more than the drain, many times a second."""


def consume(port: int, received: Received, number: int, work_s: float = 0.0, where: str = "") -> None:
    """Consumer `number`, in a process of its own, until it is killed. `work_s`: for each ACK_BATCH messages.
    `where`: the condition of its stream."""
    stream, acks = connect(port), connect(port)
    cursor = SSCursor(stream)
    cursor.execute(f"STREAM id, payload FROM m WHERE {where}" if where else "STREAM id, payload FROM m")
    ids: list[str] = []
    with acks.cursor() as acknowledge:
        while (row := cursor.fetchone()) is not None:
            ids.append(str(row[0]))
            received[number] += 1
            if len(ids) == ACK_BATCH:
                time.sleep(work_s)
                acknowledge.execute(f"ACK FROM m WHERE id IN ({','.join(ids)})")
                ids.clear()


@contextlib.contextmanager
def consumers(
    ports: Sequence[int], count: int, work: Callable[[int, Received, int], None] = consume
) -> Iterator[Received]:
    """So many consumers, evenly over these ports, gone afterwards. Yields what they have received."""
    received: Received = RawArray(ctypes.c_longlong, count)
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                work(ports[number % len(ports)], received, number)
            os._exit(0)
        pids.append(pid)
    try:
        yield received
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def metric(proxy: RunningProxy, name: str) -> float:
    with contextlib.suppress(StopIteration):
        return proxy.metric(name)
    return 0.0  # A revision without it.


def counts(proxies: Sequence[RunningProxy]) -> dict[str, float]:
    return {name: sum(metric(proxy, name) for proxy in proxies) for name in COUNTED}


def cpu(proxies: Sequence[RunningProxy]) -> float:
    return sum(cpu_s(pid) for proxy in proxies for pid in family(proxy.pid))


def statements(root: Any) -> int:
    with root.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Queries'")
        return int(cursor.fetchone()[1])


def drain(
    server: EmbeddedServer, folder: Path, number: int, chosen: argparse.Namespace, *, idle: bool
) -> dict[str, float]:
    """Drain a backlog through so many proxies. Returns what is printed; with `idle`, also the
    statements when it is drained."""
    messages, workers = chosen.messages, chosen.consumers
    work = partial(consume, work_s=chosen.work_ms / 1e3, where=chosen.where)
    root = connect(server.port, None)
    with contextlib.ExitStack() as stack:
        with root.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS bench")
            cursor.execute("CREATE DATABASE bench")
        root.select_db("bench")
        options = ("--log-level", "info")
        proxies = [
            stack.enter_context(running_proxy(server, folder / f"{number}-{at}.log", options, forked=False))
            for at in range(number)
        ]
        with connect(proxies[0].port) as client, client.cursor() as cursor:
            cursor.execute("CREATE QUEUE m (payload VARCHAR(200)) ACK_WAIT = 600 BATCH_SIZE = 200")
        time.sleep(SETTLE_S)
        root.begin()
        with root.cursor() as cursor:
            for _ in range(0, messages, 1_000):
                cursor.executemany("INSERT INTO m (payload) VALUES (%s)", [(PAYLOAD,)] * 1_000)
        root.commit()
        time.sleep(1)  # The binary log has been read.
        before, cpu_before, server_before = counts(proxies), cpu(proxies), cpu_s(server.pid)
        run_before = statements(root)
        began = time.monotonic()
        received = stack.enter_context(consumers([proxy.port for proxy in proxies], workers, work))
        while sum(received) < messages:
            time.sleep(0.02)
        took = time.monotonic() - began
        after = counts(proxies)
        used, served = cpu(proxies) - cpu_before, cpu_s(server.pid) - server_before
        run = statements(root) - run_before
        idle_rate = idle_statements(root) if idle else None
    done = {name: (after[name] - before[name]) / messages for name in COUNTED}
    shown = {
        "messages/s": messages / took,
        "scanned": done["scanned_total"],
        "in vain": done["claimed_in_vain_total"],
        "scans": done["scans_total"],
        "claims": done["claims_total"],
        "statements": run / messages,
        "proxies, µs": 1e6 * used / messages,
        "server, µs": 1e6 * served / messages,
    }
    return shown if idle_rate is None else shown | {"idle statements/s": idle_rate}


def idle_statements(root: Any) -> float:
    """Statements a second while nothing is to be done."""
    time.sleep(SETTLE_S)
    before = statements(root)
    time.sleep(IDLE_S)
    return (statements(root) - before - 1) / IDLE_S


def measure(flavour: Flavour, chosen: argparse.Namespace, until_s: float) -> None:
    """Run rounds on one kind of server until that time, and print their medians."""
    numbers = chosen.proxies or COUNTS
    found: dict[int, list[dict[str, float]]] = {number: [] for number in numbers}
    with tempfile.TemporaryDirectory() as folder:
        server = new_server(flavour, Path(folder) / "server", durable=True)
        server.start()
        try:
            last, longest_s = False, 0.0
            while not last:
                began_s = time.monotonic()
                last = began_s + 2 * longest_s + len(numbers) * (SETTLE_S + IDLE_S) > until_s and longest_s > 0
                for number in numbers:
                    line = drain(server, Path(folder), number, chosen, idle=last)
                    found[number].append(line)
                    print(f"{flavour}, {number}: {line['messages/s']:,.0f} messages/s", flush=True)
                longest_s = max(longest_s, time.monotonic() - began_s)
        finally:
            server.stop(timeout_s=30)
    rounds = len(found[numbers[0]])
    print(f"\n{flavour}: medians of {rounds} rounds, {chosen.messages} messages, {chosen.consumers} consumers")
    for number, lines in found.items():
        beside_one = [
            line["messages/s"] / one["messages/s"] for line, one in zip(lines, found[numbers[0]], strict=True)
        ]
        table = {"of the first": median(beside_one)}
        table |= {name: median(line[name] for line in lines if name in line) for name in lines[-1]}
        cells = "  ".join(f"{name} {value:,.{0 if value >= 100 else 3}f}" for name, value in table.items())
        print(f"{flavour} {number} proxies: {cells}", flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="A drain through several proxies")
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--consumers", type=int, default=8)
    parser.add_argument("--work-ms", type=float, default=0.0, help=f"of a consumer, for {ACK_BATCH} messages")
    parser.add_argument("--where", default="", help="the condition of the streams, which all messages fulfil")
    parser.add_argument("--seconds", type=float, default=330, help="for all servers together")
    parser.add_argument("--server", choices=["mysql", "mariadb"], action="append")
    parser.add_argument("--proxies", type=int, action="append")
    chosen = parser.parse_args()
    flavours: list[Flavour] = chosen.server or ["mysql", "mariadb"]
    for flavour in flavours:
        measure(flavour, chosen, time.monotonic() + chosen.seconds / len(flavours))


if __name__ == "__main__":
    main()
