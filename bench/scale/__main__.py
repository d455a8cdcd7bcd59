"""`make bench-scale`: ten million messages in a thousand queues, two thousand streams, several proxies.

    .venv/bin/python -m bench.scale [--rows N] [--queues N] [--streams N] [--proxies N …]
        [--servers NAME …] [--seconds S] [--results FOLDER] [--page NAME]

Nine tenths of the rows are in one queue, the others are spread over the small ones (bench.scale.rows).
For each number of proxies: all streams are opened on the small queues and drain what is due there;
then nothing happens; then single messages are inserted; at last eight streams through each proxy
drain the large queue, while other clients run single SELECTs.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare.compiling import LIBMARIADB, compiled
from bench.compare.machine import machine
from bench.compare.model import PAYLOAD_BYTES, MissingError
from bench.compare.mysql import REDO_LOG, SERVER_OPTIONS, SOURCE, TITLES, running_queue_server
from bench.compare.report import table
from bench.scale.rows import SMALL_SHARE, load, refill, small_rows
from bench.scale.stages import CONNECTIONS_MAX, Plan, Setting, proxies
from proxy.embedded.server import Flavour
from tests.support.servers import FLAVOURS

RESULTS = Path(__file__).parents[1] / "results"
ROWS, QUEUES, STREAMS = 10_000_000, 1_000, 2_000
RATE = 10_000.0
"""Messages a second that are expected of the first drain of the large queue."""
SERVER = (f"--max-connections={CONNECTIONS_MAX}", "--table-open-cache=10000", "--open-files-limit=65536")

Column = Mapping[str, float]


def measure(flavour: Flavour, plan: Plan, rows: int, counts: Sequence[int], columns: dict[str, Column]) -> None:
    """Measure one server with these numbers of proxies; add a column for each. Raises MissingError."""
    with tempfile.TemporaryDirectory(prefix="ackstream-scale-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        compiled(SOURCE, folder, LIBMARIADB)
        compiled("scale/streams.c", folder, LIBMARIADB)
        with running_queue_server(flavour, folder, SERVER) as server:
            took_s = load(server.port, rows, plan.queues)
            print(f"{flavour}: {rows:,} rows in {plan.queues + 1:,} queues, loaded in {took_s:.0f} s", flush=True)
            due = small_rows(rows, plan.queues) // 4
            rate = RATE
            for turn, count in enumerate(counts):
                if turn:
                    refill(server.port, plan.queues, due)
                print(f"{flavour}, proxies: {count}", flush=True)
                began_s = time.monotonic()
                with proxies(server, folder / f"proxies-{turn}", count) as running:
                    setting = Setting(server, folder, plan, running)
                    setting.figures.add("proxies ready after, s", time.monotonic() - began_s)
                    rate = setting.run(due * plan.queues, rate)
                    columns[f"{TITLES[flavour]}, {count} × proxy"] = setting.figures.values


def shown(value: float) -> str:
    """Return a figure with about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def page(columns: Mapping[str, Column], conditions: Sequence[str]) -> str:
    """Return the page."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    lines = [(name, *(shown(column[name]) for column in columns.values())) for name in names]
    return "\n".join(
        (
            "# Many queues\n",
            "`make bench-scale` wrote this page. Each figure was measured once.\n",
            "".join(f"- {condition}\n" for condition in conditions),
            table(("what", *columns), lines),
        )
    )


def conditions(plan: Plan, rows: int, load_before: float) -> list[str]:
    """Return the circumstances of the run, a line each."""
    return [
        *machine(load_before),
        f"{rows:,} rows with payloads of {PAYLOAD_BYTES} bytes: a quarter each due, scheduled, acknowledged, failed",
        f"{100 * SMALL_SHARE:.0f} % of the rows in {plan.queues:,} small queues, the others in one large queue",
        f"{plan.streams:,} streams on the small queues",
        "client, proxies and server share the cores",
        f"MySQL: {' '.join((*SERVER_OPTIONS, REDO_LOG['mysql']))}",
        f"MariaDB: {' '.join((*SERVER_OPTIONS, REDO_LOG['mariadb']))}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure many queues, streams and proxies")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--queues", type=int, default=QUEUES, help="small queues")
    parser.add_argument("--streams", type=int, default=STREAMS, help="on the small queues")
    parser.add_argument("--proxies", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument("--servers", nargs="+", choices=FLAVOURS, default=FLAVOURS)
    parser.add_argument("--seconds", type=float, default=15.0, help="the aim for each drain of the large queue")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--page", default="scale.md", metavar="NAME", help="of the results in that folder")
    arguments = parser.parse_args()
    plan = Plan(arguments.queues, arguments.streams, arguments.seconds)
    load_before = os.getloadavg()[0]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    arguments.results.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Column] = {}
    for flavour in arguments.servers:
        try:
            measure(flavour, plan, arguments.rows, arguments.proxies, columns)
        except MissingError as missing:
            print(f"{flavour} is left out: {missing}", flush=True)
    text = page(columns, conditions(plan, arguments.rows, load_before))
    (arguments.results / arguments.page).write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
