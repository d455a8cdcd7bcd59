"""What message groups cost: the same messages are drained from a queue without groups and with them.

    .venv/bin/python bench/groups.py [--messages N] [--rounds N] [--server mysql|mariadb]

For each server: messages a second, and µs of CPU a message of the proxy and of the server, without groups
and with 1, 100 and 100,000 groups, all due, the messages of a group one after the other (the worst order:
the front shows few groups). The ratio is that of the CPU of proxy and server together: without groups
by with groups. The variants take turns, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.processes import cpu_s, family
from bench.proxies import PAYLOAD, connect, consumers, counts
from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue
from tests.support.servers import new_server

VARIANTS = (0, 1, 100, 100_000)
"""Groups; 0: the queue has none."""

COLUMNS = "tenant INT, payload VARCHAR(200)"


def drain(server: EmbeddedServer, log: Path, groups: int, messages: int, workers: int) -> tuple[float, float, float]:
    """Drain a backlog. Returns messages a second, and µs of the proxy and of the server a message."""
    root = connect(server.port, None)
    with contextlib.ExitStack() as stack:
        with root.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS bench")
            cursor.execute("CREATE DATABASE bench")
        root.select_db("bench")
        own = f"{COLUMNS}, KEY by_group (time_acked, priority, tenant, time_next, id)" if groups else COLUMNS
        grouped = {"group_by": "tenant"} if groups else {}
        create_queue(root, "m", own, vt_ack_wait="600", vt_batch_size="200", **grouped)
        root.begin()
        with root.cursor() as cursor:
            for first in range(0, messages, 1_000):
                rows = [(at * max(1, groups) // messages, PAYLOAD) for at in range(first, first + 1_000)]
                cursor.executemany("INSERT INTO m (tenant, payload) VALUES (%s, %s)", rows)
        root.commit()
        proxy = stack.enter_context(running_proxy(server, log, ("--log-level", "info"), forked=False))
        before = sum(map(cpu_s, family(proxy.pid))), cpu_s(server.pid)
        began, claimed = time.monotonic(), counts([proxy])["claimed_total"]
        stack.enter_context(consumers([proxy.port], workers))
        while counts([proxy])["claimed_total"] - claimed < messages:
            time.sleep(0.02)
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
    chosen = parser.parse_args()
    flavours: list[Flavour] = chosen.server or ["mysql", "mariadb"]
    for flavour in flavours:
        with tempfile.TemporaryDirectory() as folder:
            server = new_server(flavour, Path(folder) / "server", durable=True)
            server.start()
            found: dict[int, list[tuple[float, float, float]]] = {groups: [] for groups in VARIANTS}
            try:
                for turn in range(chosen.rounds):
                    for groups in VARIANTS:
                        log = Path(folder) / f"{turn}-{groups}.log"
                        found[groups].append(drain(server, log, groups, chosen.messages, chosen.consumers))
            finally:
                server.stop(timeout_s=30)
        without = sum(median(figures) for figures in zip(*(run[1:] for run in found[0]), strict=True))
        for groups, runs in found.items():
            rate, proxy_us, server_us = (median(figures) for figures in zip(*runs, strict=True))
            name = f"{groups:,} groups" if groups else "no groups"
            print(
                f"{flavour} {name:>15}: {rate:8,.0f}/s, proxy {proxy_us:6.1f} µs, server {server_us:6.1f} µs,"
                f" ratio {without / (proxy_us + server_us):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
