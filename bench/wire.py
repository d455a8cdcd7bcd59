"""What the proxy costs clients without queues, beside direct, MySQL Router and HAProxy.

One client (load.c) and one MySQL server serve all, on this machine. Client, relay and server share
the processors, so the others lack what a relay takes. Each figure of a relay is measured together
with one of the direct way, alternately before and after it, and the ratio is taken; the table has
the medians. So other work on the machine disturbs the figures, and the ratios less. The CPU time of
the relays' processes is the kernel's account.

The client ignores the rows, and a point SELECT costs the server very little: this is the worst
case. On two processors, which the direct way alone keeps busy, a relay that takes half as long for
a statement as client and server together reduces the rate to two thirds. INSERTs, each committed to
the disk, are measured as well.

`make bench-wire` runs it, in about eight minutes. `--rounds` and `--seconds` make it shorter.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.relays import Way, ackstream, haproxy, router
from proxy.embedded.server import EmbeddedServer
from tests.support.servers import connect, running_server

HERE = Path(__file__).parent
SEVERAL = 64
IDLE = 1_000
POINTS, ROWS = 10_000, 1_000_000
READS = 4
"""Large results per round: each takes little time."""
POINT, POINTS_AT_ONCE, INSERTS_AT_ONCE = "points 1", f"points {SEVERAL}", f"inserts {SEVERAL}"

SETUP = (
    "CREATE DATABASE bench",
    "USE bench",
    f"SET SESSION cte_max_recursion_depth = {ROWS}",
    "CREATE TABLE alike (id INT NOT NULL PRIMARY KEY, c CHAR(36) NOT NULL) CHARACTER SET latin1",
    f"""INSERT INTO alike WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
        SELECT i, UUID() FROM n""",
    "CREATE TABLE differing (id INT NOT NULL PRIMARY KEY, c VARCHAR(72) NOT NULL) CHARACTER SET latin1",
    "INSERT INTO differing SELECT id, LEFT(REPEAT(c, 2), CRC32(c) % 73) FROM alike",
    "CREATE TABLE points (id INT NOT NULL PRIMARY KEY, c CHAR(120) NOT NULL) CHARACTER SET latin1",
    f"INSERT INTO points SELECT id, REPEAT(c, 3) FROM alike WHERE id <= {POINTS}",
    "CREATE TABLE sink (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL)",
)


class Load:
    """The client: connections to one port, and the orders that they carry out."""

    def __init__(self, program: Path, port: int, connections: int) -> None:
        command = [str(program), "127.0.0.1", str(port), "root", str(connections)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._answer()

    def order(self, text: str) -> list[float]:
        """Send an order; return the figures of its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        return [float(word) for word in self._answer().split()]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the load program ended: see above")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # It ends with its input.


@dataclass(slots=True)
class Figures:
    """One way: its figures in every round, and their ratios to the direct way's figures."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def value(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str) -> float:
        return statistics.median(self.ratios[name])


Measured = dict[str, float]
Measure = Callable[[Way, Load, str, float], Measured]


def work(way: Way, load: Load, what: str, seconds: float) -> Measured:
    """Measure small statements, one after another on each connection."""
    before_s = way.cpu_s()
    statements, took_s, p50_us, p99_us = load.order(f"{what} {seconds}")
    cpu_us = 1e6 * (way.cpu_s() - before_s) / statements
    figures = {"rate": statements / took_s, "p50": p50_us, "p99": p99_us, "cpu": cpu_us}
    return {f"{what} {name}": figure for name, figure in figures.items()}


def read(way: Way, load: Load, what: str, _seconds: float) -> Measured:
    """Measure one large result."""
    before_s = way.cpu_s()
    rows, took_s = load.order(what)
    assert rows == ROWS
    return {f"{what} rate": rows / took_s, f"{what} cpu": way.cpu_s() - before_s}


@dataclass(slots=True)
class Bench:
    """The ways, each with its client; the first is the direct one."""

    loads: Sequence[tuple[Way, Load]]
    figures: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))

    def round(self, measure: Measure, what: str, seconds: float, number: int) -> None:
        """Measure each relay together with the direct way."""
        direct, *relays = self.loads
        for relay in relays:
            pair = (direct, relay) if number % 2 else (relay, direct)
            seen = {way.name: measure(way, load, what, seconds) for way, load in pair}
            bare, relayed = seen[direct[0].name], seen[relay[0].name]
            for name, figure in relayed.items():
                self.figures[direct[0].name].values[name].append(bare[name])
                self.figures[relay[0].name].values[name].append(figure)
                if bare[name]:
                    self.figures[relay[0].name].ratios[name].append(figure / bare[name])


def measure_idle(program: Path, way: Way, figures: Figures) -> None:
    """Measure the memory of idle connections."""
    before, _ = way.resident_bytes()
    with Load(program, way.port, IDLE):
        after, beside = way.resident_bytes()
    for name, size in {"idle": after, "idle growth": after - before, "idle beside": beside}.items():
        figures.values[name].append(size / 1e6)


TABLE = (
    # Text, figure, format, and whether direct has the figure: then the ratio is printed in brackets.
    ("a point SELECT, 1 connection: p50, µs", f"{POINT} p50", ".0f", True),
    ("p99, µs", f"{POINT} p99", ".0f", True),
    ("CPU of the relay, µs", f"{POINT} cpu", ".1f", False),
    (f"point SELECTs, {SEVERAL} connections: a second", f"{POINTS_AT_ONCE} rate", ",.0f", True),
    ("p99, µs", f"{POINTS_AT_ONCE} p99", ",.0f", True),
    ("CPU of the relay for one, µs", f"{POINTS_AT_ONCE} cpu", ".1f", False),
    (f"INSERTs, {SEVERAL} connections: a second", f"{INSERTS_AT_ONCE} rate", ",.0f", True),
    ("CPU of the relay for one, all of its processes, µs", f"{INSERTS_AT_ONCE} cpu", ".1f", False),
    ("a million rows of one length: rows/s", "rows alike rate", ",.0f", True),
    ("CPU of the relay, s", "rows alike cpu", ".2f", False),
    ("a million rows of different lengths: rows/s", "rows differing rate", ",.0f", True),
    ("CPU of the relay, s", "rows differing cpu", ".2f", False),
    (f"{IDLE:,} idle connections: memory of the relay, MB", "idle", ".0f", False),
    ("of that for the connections, MB", "idle growth", ".0f", False),
    ("of other processes beside it, MB", "idle beside", ".0f", False),
)


def print_table(figures: dict[str, Figures]) -> None:
    direct, *relays = figures
    print(f"\n| median (of direct) | {' | '.join(figures)} |\n|---|{'---|' * len(figures)}")
    for what, name, form, compared in TABLE:
        cells = [f"{figures[direct].value(name):{form}}" if compared else ""]
        for relay in relays:
            ratio = f" ({figures[relay].ratio(name):.2f})" if compared else ""
            cells.append(f"{figures[relay].value(name):{form}}{ratio}")
        print(f"| {what} | {' | '.join(cells)} |")


def print_targets(proxy: Figures, routers: Figures) -> None:
    def cpu(what: str) -> float:
        return proxy.value(f"{what} cpu") / routers.value(f"{what} cpu")

    several = f"at {SEVERAL} connections, of direct: at least 0.7"
    print()
    for what, seen, met in (
        ("CPU of a point SELECT, 1 connection, of MySQL Router's: at most 1", r := cpu(POINT), r <= 1),
        (f"CPU of a point SELECT, {SEVERAL} connections, the same", r := cpu(POINTS_AT_ONCE), r <= 1),
        ("p50 of 1 connection, of direct: at most 2.5", r := proxy.ratio(f"{POINT} p50"), r <= 2.5),
        (f"point SELECTs {several}", r := proxy.ratio(f"{POINTS_AT_ONCE} rate"), r >= 0.7),
        (f"INSERTs {several}", r := proxy.ratio(f"{INSERTS_AT_ONCE} rate"), r >= 0.7),
        ("a million rows of one length, of direct: at least 0.95", r := proxy.ratio("rows alike rate"), r >= 0.95),
        ("a million rows of different lengths, the same", r := proxy.ratio("rows differing rate"), r >= 0.95),
        (f"memory of the proxy, {IDLE:,} idle connections, MB: under 100", r := proxy.value("idle"), r < 100),
    ):
        print(f"{'met   ' if met else 'MISSED'} {what}: {seen:.2f}")


def build(folder: Path) -> Path:
    program = folder / "load"
    command = f"cc -O2 -pthread {HERE / 'load.c'} -o {program} $(pkg-config --cflags --libs libmariadb)"
    subprocess.run(["/bin/sh", "-c", command], check=True)
    return program


@contextlib.contextmanager
def ways(server: EmbeddedServer, folder: Path) -> Iterator[list[Way]]:
    with (
        ackstream(server, folder / "ackstream") as proxy,
        router(server, folder / "router") as routers,
        haproxy(server, folder / "haproxy") as haproxys,
    ):
        yield [Way("direct", server.port), proxy, routers, haproxys]


def run(server: EmbeddedServer, folder: Path, arguments: argparse.Namespace) -> dict[str, Figures]:
    program = build(folder)
    with connect(server) as connection, connection.cursor() as cursor:
        for statement in SETUP:
            cursor.execute(statement)
    with ways(server, folder) as all_ways:
        with contextlib.ExitStack() as stack:
            bench = Bench([(way, stack.enter_context(Load(program, way.port, SEVERAL))) for way in all_ways])
            for number in range(arguments.rounds):
                for what in (POINT, POINTS_AT_ONCE):
                    bench.round(work, what, arguments.seconds, number)
                for reads in range(READS):
                    bench.round(read, "rows alike", 0, reads)
                    bench.round(read, "rows differing", 0, reads)
                print(f"round {number + 1} of {arguments.rounds}", flush=True)
            for number in range(
                arguments.rounds
            ):  # After the rest: the reader of the binary log may read on for a while.
                bench.round(work, INSERTS_AT_ONCE, arguments.seconds, number)
        for way in all_ways[1:]:
            measure_idle(program, way, bench.figures[way.name])
    return bench.figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of small statements")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ackstream-wire-") as folder,
        running_server("mysql", durable=True, options=["--max-connections=3000", "--sync-binlog=1"]) as server,
    ):
        figures = run(server, Path(folder), arguments)
    # Debian's Python needs a sixth less CPU than one built without optimizations.
    print(f"\nPython {sys.version} of {sys.base_prefix}; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print_table(figures)
    print_targets(figures["ackstream"], figures["MySQL Router"])


if __name__ == "__main__":
    main()
