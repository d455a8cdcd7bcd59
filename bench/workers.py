"""What several workers cost and give: one queue is drained, and another client runs short statements.

    .venv/bin/python bench/workers.py [ROUNDS]

For each server, with one, two and four workers in turn: messages a second; µs of CPU a message of
the proxy's processes and of the server; and the ms that the other client's SELECT took through the
proxy, median and 99th percentile. The consumers are in C. A machine with few cores shows what workers
cost. What they give shows where cores are idle.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench.compare.compiling import LIBMARIADB, compiled
from bench.compare.model import MissingError
from bench.compare.mysql import SOURCE, WATCHED, MySQLQueue, running_queue_server
from bench.processes import cpu_s, family
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.servers import FLAVOURS

WORKERS = (1, 2, 4)
MESSAGES = 20_000
ROUNDS = 2
THROUGH = "through the proxy"


def measured(server: EmbeddedServer, client: Path, folder: Path, workers: int) -> tuple[float, ...]:
    """One drain with so many workers: its figures."""
    with running_proxy(server, folder / "log", ["--workers", str(workers)], forked=False) as proxy:
        queue = MySQLQueue(server, client, proxy.port, {})
        queue.fill(MESSAGES)
        processes = list(family(proxy.pid)), list(family(server.pid))
        before_s = [sum(map(cpu_s, pids)) for pids in processes]
        drained = queue.drain(WATCHED, MESSAGES)
        used_s = [sum(map(cpu_s, pids)) - before for pids, before in zip(processes, before_s, strict=True)]
    samples_ms = drained.bystanders_ms[THROUGH]
    percentiles = statistics.quantiles(samples_ms, n=100)
    return (
        MESSAGES / drained.seconds,
        *(1e6 * used / MESSAGES for used in used_s),
        statistics.median(samples_ms),
        percentiles[98],
    )


def main() -> None:
    """Measure all, in turn, and print the medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    for flavour in FLAVOURS:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            try:
                client = compiled(SOURCE, folder, LIBMARIADB)
                with running_queue_server(flavour, folder) as server:
                    found = {workers: [measured(server, client, folder, workers)] for workers in WORKERS}
                    for _ in range(rounds - 1):
                        for workers in WORKERS:
                            found[workers].append(measured(server, client, folder, workers))
            except MissingError as missing:
                print(f"{flavour}: left out: {missing}")
                continue
        print(f"{flavour}: messages/s, µs of the proxy and of the server a message, SELECT median and p99 in ms")
        for workers, runs in found.items():
            figures = [statistics.median(figure) for figure in zip(*runs, strict=True)]
            print(f"  {workers} workers" + "".join(f"{figure:10.1f}" for figure in figures))


if __name__ == "__main__":
    main()
