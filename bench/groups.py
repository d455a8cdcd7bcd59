"""What message groups, their limits, strict order, semaphores and batches cost: the same messages are drained from a
queue without any of it and with it.

    .venv/bin/python -m bench.groups [--messages N] [--rounds N] [--server mysql|mariadb] [--variant NAME]…

For each server: messages a second, and µs of CPU a message of the proxy and of the server. The messages of a
group are one after the other (the worst order: the front shows few groups). The ratio is that of the CPU of
proxy and server together: that of the first variant by that of this one. The first is the queue without groups,
unless `--variant` names others. The variants take turns, so that a busy machine slows all of them. `GROUP_LIMIT`,
`GROUP_RATE` and the capacities of semaphores are high enough to be never reached. The last message of each batch
is its follow-up.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median

from pymysql.cursors import SSCursor

from bench.processes import cpu_s, family
from bench.proxies import ACK_BATCH, PAYLOAD, Received, connect, consumers
from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import running_proxy
from tests.support.servers import new_server


@dataclass(frozen=True, slots=True)
class Variant:
    """A queue: its options, and how many groups, or batches, its messages are of."""

    name: str
    options: str = ""
    groups: int = 1
    batches: bool = False
    semaphores: bool = False
    """Each group of messages needs a semaphore of its own."""


GROUPED = "GROUP_BY = (tenant)"
VARIANTS = (
    Variant("no groups"),
    Variant("1 group", GROUPED),
    Variant("100 groups", GROUPED, 100),
    Variant("10,000 groups", GROUPED, 10_000),
    Variant("100,000 groups", GROUPED, 100_000),
    Variant("GROUP_LIMIT, 100 groups", f"{GROUPED} GROUP_LIMIT = 100000", 100),
    Variant("GROUP_RATE, 100 groups", f"{GROUPED} GROUP_RATE = 100000", 100),
    Variant("strict order, 10,000 groups", f"{GROUPED} GROUP_ORDER = STRICT", 10_000),
    Variant("runs of 10, 1,000 groups", f"{GROUPED} GROUP_ORDER = STRICT GROUP_LIMIT = 10", 1_000),
    Variant("one by one, 1,000 groups", f"{GROUPED} GROUP_ORDER = STRICT", 1_000),
    Variant("1 semaphore", "SEMAPHORES = (needs)", semaphores=True),
    Variant("100 semaphores", "SEMAPHORES = (needs)", 100, semaphores=True),
    Variant("100 groups and semaphores", f"{GROUPED} SEMAPHORES = (needs)", 100, semaphores=True),
    Variant("1,000 batches", "BATCH_BY = (tenant) AFTER_BATCH = (after_batch)", 1_000, batches=True),
)

PAUSE_S = 0.01

POLL_S = 0.02

COLUMNS = "tenant INT, after_batch INT, needs VARCHAR(64), payload VARCHAR(200)"
INSERT = "INSERT INTO m (tenant, after_batch, needs, payload) VALUES (%s, %s, %s, %s)"


def row(variant: Variant, at: int, messages: int) -> tuple[int | None, int | None, str | None, str]:
    """The message at this place."""
    group = at * variant.groups // messages
    if variant.batches and (at + 1) * variant.groups // messages > group:
        return None, group, None, PAYLOAD
    return group, None, f"s{group}" if variant.semaphores else None, PAYLOAD


def consume(port: int, received: Received, number: int) -> None:
    """A consumer that acknowledges what it has after a pause, too: in strict order, others may wait for it."""
    stream, acks = connect(port), connect(port)
    unacknowledged: SimpleQueue[str] = SimpleQueue()

    def acknowledge() -> None:
        with acks.cursor() as cursor:
            while True:
                ids = [unacknowledged.get()]
                with contextlib.suppress(Empty):
                    while len(ids) < ACK_BATCH:
                        ids.append(unacknowledged.get(timeout=PAUSE_S))
                cursor.execute(f"ACK FROM m WHERE id IN ({','.join(ids)})")

    threading.Thread(target=acknowledge, daemon=True).start()
    cursor = SSCursor(stream)
    cursor.execute("STREAM id, payload FROM m")
    while (got := cursor.fetchone()) is not None:
        unacknowledged.put(str(got[0]))
        received[number] += 1


def drain(
    server: EmbeddedServer, log: Path, variant: Variant, messages: int, workers: int
) -> tuple[float, float, float]:
    """Drain a backlog. Returns messages a second, and µs of the proxy and of the server a message."""
    root = connect(server.port, None)
    with contextlib.ExitStack() as stack:
        with root.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS bench")
            cursor.execute("CREATE DATABASE bench")
        root.select_db("bench")
        proxy = stack.enter_context(running_proxy(server, log, ("--log-level", "info"), forked=False))
        with connect(proxy.port) as client, client.cursor() as cursor:
            for number in range(variant.groups if variant.semaphores else 0):
                cursor.execute(f"CREATE SEMAPHORE s{number} CAPACITY 1000000")
            cursor.execute(f"CREATE QUEUE m ({COLUMNS}) ACK_WAIT = 600 BATCH_SIZE = 200 {variant.options}")
        root.begin()
        with root.cursor() as cursor:
            for first in range(0, messages, 1_000):
                places = range(first, min(first + 1_000, messages))
                rows = [row(variant, at, messages) for at in places]
                cursor.executemany(INSERT, rows)
        root.commit()
        before = sum(map(cpu_s, family(proxy.pid))), cpu_s(server.pid)
        began = time.monotonic()
        received = stack.enter_context(consumers([proxy.port], workers, consume))
        while sum(received) < messages:
            time.sleep(POLL_S)
        took = time.monotonic() - began
        used = sum(map(cpu_s, family(proxy.pid))) - before[0], cpu_s(server.pid) - before[1]
    return messages / took, 1e6 * used[0] / messages, 1e6 * used[1] / messages


def main() -> None:
    """Measure all variants by turns, and print the medians."""
    parser = argparse.ArgumentParser(description="A drain with message groups")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=["mysql", "mariadb"], action="append")
    parser.add_argument("--variant", choices=[variant.name for variant in VARIANTS], action="append")
    chosen = parser.parse_args()
    variants = [variant for variant in VARIANTS if chosen.variant is None or variant.name in chosen.variant]
    flavours: list[Flavour] = chosen.server or ["mysql", "mariadb"]
    for flavour in flavours:
        with tempfile.TemporaryDirectory() as folder:
            server = new_server(flavour, Path(folder) / "server", durable=True)
            server.start()
            found: dict[Variant, list[tuple[float, float, float]]] = {variant: [] for variant in variants}
            try:
                for turn in range(chosen.rounds):
                    for number, variant in enumerate(variants):
                        log = Path(folder) / f"{turn}-{number}.log"
                        found[variant].append(drain(server, log, variant, chosen.messages, chosen.consumers))
            finally:
                server.stop(timeout_s=30)
        without = sum(median(figures) for figures in zip(*(run[1:] for run in found[variants[0]]), strict=True))
        for variant, runs in found.items():
            rate, proxy_us, server_us = (median(figures) for figures in zip(*runs, strict=True))
            print(
                f"{flavour} {variant.name:>27}: {rate:8,.0f}/s, proxy {proxy_us:6.1f} µs, server {server_us:6.1f} µs,"
                f" ratio {without / (proxy_us + server_us):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
