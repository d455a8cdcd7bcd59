"""What the proxy costs those who do not use its queues: direct, through it, through MySQL Router and through HAProxy.

One client (load.c) and one MySQL server for all, on this machine, where client, relay and server share the processors:
what a relay takes, the others lack. Each figure of a relay is measured beside one of the direct way, by turns before
and after it, and their ratio is taken; the table has the medians. So other work on the machine disturbs the figures,
and the ratios less. What the relays' processes take in CPU is what the kernel says.

`make bench-wire` runs it: about five minutes. `--rounds` and `--seconds` make it shorter, `--tls` encrypts.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.relays import Way, ackstream, haproxy, router
from proxy.embedded import EmbeddedServer
from tests.support.servers import connect, running_server

HERE = Path(__file__).parent
SEVERAL = 64
IDLE = 1_000
POINTS, ROWS = 10_000, 1_000_000
READS = 5
"""Large results a round: each is short."""

SETUP = (
    "CREATE DATABASE bench",
    "USE bench",
    f"SET SESSION cte_max_recursion_depth = {ROWS}",
    "CREATE TABLE million (id INT NOT NULL PRIMARY KEY, c CHAR(36) NOT NULL) CHARACTER SET latin1",
    f"INSERT INTO million WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
    " SELECT i, UUID() FROM n",
    "CREATE TABLE points (id INT NOT NULL PRIMARY KEY, c CHAR(120) NOT NULL) CHARACTER SET latin1",
    f"INSERT INTO points SELECT id, REPEAT(c, 3) FROM million WHERE id <= {POINTS}",
)


class Load:
    """The client: connections through one way, which do what they are told."""

    def __init__(self, program: Path, way: Way, connections: int, *, tls: bool) -> None:
        command = [str(program), "127.0.0.1", str(way.port), "root", str(connections), *(["tls"] if tls else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._answer()

    def order(self, text: str) -> list[float]:
        """Have it do something; the figures that it answers with."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        return [float(word) for word in self._answer().split()]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the load has ended: see above")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # Its end is that of its input.


@dataclass(slots=True)
class Figures:
    """Of one way: each figure of every round, and those that are ratios to the direct one measured beside it."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def value(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str) -> float:
        return statistics.median(self.ratios[name])


Measured = dict[str, float]


def look_up(way: Way, load: Load, connections: int, seconds: float) -> Measured:
    """Point SELECTs, one after another on each connection."""
    before_s = way.cpu_s()
    statements, took_s, p50_us, p99_us = load.order(f"points {connections} {seconds}")
    cpu_us = 1e6 * (way.cpu_s() - before_s) / statements
    figures = {"rate": statements / took_s, "p50": p50_us, "p99": p99_us, "cpu": cpu_us}
    return {f"{name} {connections}": figure for name, figure in figures.items()}


def read_rows(way: Way, load: Load) -> Measured:
    """The large result, once."""
    before_s = way.cpu_s()
    rows, took_s = load.order("rows")
    assert rows == ROWS
    return {"rows/s": rows / took_s, "rows s": took_s, "rows cpu": way.cpu_s() - before_s}


@dataclass(slots=True)
class Bench:
    """The ways, each with its load; the first is the direct one."""

    loads: Sequence[tuple[Way, Load]]
    figures: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))

    def round(self, measure: Callable[[Way, Load], Measured], number: int) -> None:
        """Measure each relay, and the direct way beside it."""
        direct, *relays = self.loads
        for relay in relays:
            pair = (direct, relay) if number % 2 else (relay, direct)
            seen = {way.name: measure(way, load) for way, load in pair}
            bare, relayed = seen[direct[0].name], seen[relay[0].name]
            for name, figure in relayed.items():
                self.figures[direct[0].name].values[name].append(bare[name])
                self.figures[relay[0].name].values[name].append(figure)
                if bare[name]:
                    self.figures[relay[0].name].ratios[name].append(figure / bare[name])


def measure_idle(program: Path, way: Way, figures: Figures, *, tls: bool) -> None:
    """What connections take that do nothing."""
    before = way.resident_bytes()
    with Load(program, way, IDLE, tls=tls):
        after = way.resident_bytes()
    figures.values["idle"].append(after / 1e6)
    figures.values["idle growth"].append((after - before) / 1e6)


TABLE = (
    # what, the figure, how it is written, whether direct has it; its ratio to direct's
    (f"{SEVERAL} connections: statements/s", f"rate {SEVERAL}", ",.0f", True),
    (f"{SEVERAL} connections: p99, µs", f"p99 {SEVERAL}", ",.0f", True),
    (f"{SEVERAL} connections: CPU of the relay, µs a statement", f"cpu {SEVERAL}", ".1f", False),
    ("1 connection: statements/s", "rate 1", ",.0f", True),
    ("1 connection: p50, µs", "p50 1", ".0f", True),
    ("1 connection: p99, µs", "p99 1", ".0f", True),
    ("1 connection: CPU of the relay, µs a statement", "cpu 1", ".1f", False),
    ("a million rows: rows/s", "rows/s", ",.0f", True),
    ("a million rows: CPU of the relay, s", "rows cpu", ".2f", False),
    (f"{IDLE:,} idle connections: memory of the relay, MB", "idle", ".0f", False),
    ("of that for the connections, MB", "idle growth", ".0f", False),
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


def print_targets(ours: Figures, routers: Figures) -> None:
    print()
    for what, seen, met in (
        *(
            (
                f"CPU a statement at {number} connection{'s'[: number - 1]}, of MySQL Router's: at most 1",
                ours.value(f"cpu {number}") / routers.value(f"cpu {number}"),
                ours.value(f"cpu {number}") <= routers.value(f"cpu {number}"),
            )
            for number in (1, SEVERAL)
        ),
        (f"rate at {SEVERAL} connections, of direct: at least 0.7", r := ours.ratio(f"rate {SEVERAL}"), r >= 0.7),
        ("p50 of 1 connection, of direct: at most 2.5", r := ours.ratio("p50 1"), r <= 2.5),
        ("rate of a million rows, of direct: at least 0.95", r := ours.ratio("rows/s"), r >= 0.95),
        (f"{IDLE:,} idle connections, all of the proxy: under 100 MB", r := ours.value("idle"), r < 100),
    ):
        print(f"{'met   ' if met else 'MISSED'} {what}: {seen:.2f}")


def build(folder: Path) -> Path:
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libmariadb"], capture_output=True, text=True, check=True
    )
    program = folder / "load"
    subprocess.run(
        ["cc", "-O2", "-pthread", str(HERE / "load.c"), "-o", str(program), *flags.stdout.split()], check=True
    )
    return program


@contextlib.contextmanager
def ways(server: EmbeddedServer, folder: Path) -> Iterator[list[Way]]:
    with (
        ackstream(server, folder / "ackstream") as ours,
        router(server, folder / "router") as routers,
        haproxy(server, folder / "haproxy") as haproxys,
    ):
        yield [Way("direct", server.port), ours, routers, haproxys]


def run(server: EmbeddedServer, folder: Path, arguments: argparse.Namespace) -> dict[str, Figures]:
    program = build(folder)
    with connect(server) as connection, connection.cursor() as cursor:
        for statement in SETUP:
            cursor.execute(statement)
    with ways(server, folder) as all_ways:
        with contextlib.ExitStack() as stack:
            loads = [(way, stack.enter_context(Load(program, way, SEVERAL, tls=arguments.tls))) for way in all_ways]
            bench = Bench(loads)
            for number in range(arguments.rounds):
                for connections in (1, SEVERAL):
                    bench.round(
                        lambda way, load, count=connections: look_up(way, load, count, arguments.seconds), number
                    )
                for read in range(READS):
                    bench.round(read_rows, read)
                print(f"round {number + 1} of {arguments.rounds}", flush=True)
        for way in all_ways[1:]:
            measure_idle(program, way, bench.figures[way.name], tls=arguments.tls)
    return bench.figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of point SELECTs")
    parser.add_argument("--tls", action="store_true", help="between client and relay, and relay and server")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ackstream-wire-") as folder,
        running_server("mysql", options=["--max-connections=3000"]) as server,
    ):
        figures = run(server, Path(folder), arguments)
    print_table(figures)
    print_targets(figures["ackstream"], figures["MySQL Router"])


if __name__ == "__main__":
    main()
