"""How long SHOW QUEUES takes on a queue of ten million messages, too many to be counted.

The queue has ready, scheduled, in-flight and acknowledged messages of three priorities. `--kinds`
chooses the kinds of queues, measured one after another. Loading takes most of the time: some
minutes a queue on two cores. The figures are those of SHOW QUEUES alone, through the proxy, with
its result: the first one, for which the index is not in memory yet, and the best, median and worst
of the others. A SELECT 1 through the proxy is measured beside them: other work on the machine
delays both.

    bench/show_queues.py [--rows N] [--kinds mixed,ready,"in flight",acknowledged] [--port PORT]

`--port` is the port of a running proxy, for another server than the private one. root must log in
there without a password.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from demo.ackstream import ackstream

ROWS = 10_000_000
ROWS_AT_ONCE = 500_000
"""Rows per INSERT: its transaction fits the memory of a small server."""
SAMPLES = 100
WITHIN_MS = 50

NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)"
KINDS = {
    "ready": ("0", "0", f"{NOW} - 600000000000 + n", "NULL"),
    "in flight": ("0", "1", f"{NOW} + 3600000000000 + n", "NULL"),
    "acknowledged": ("0", "1", "NULL", f"{NOW} - 600000000000 + n"),
    "mixed": (
        "n DIV 7 % 3",
        "n % 4 IN (1, 2)",
        f"ELT(1 + n % 4, {NOW} - 600000000000 + n, {NOW} + 3600000000000 + n, NULL, {NOW} + 864000000000000 + n)",
        f"IF(n % 4 = 2, {NOW} - 3600000000000 + n, NULL)",
    ),
}
"""The values of priority, epoch, time_next and time_acked for message number n."""


def load(cursor: Any, kind: str, count: int) -> None:
    """Make a queue `m` with `count` messages."""
    cursor.execute("CREATE QUEUE m (payload VARCHAR(100)) ACK_WAIT = 7200 MAX_BACKOFF = 14400 PAUSED = 1")
    values = ", ".join(KINDS[kind])
    for begin in range(0, count, ROWS_AT_ONCE):
        here = min(ROWS_AT_ONCE, count - begin)
        cursor.execute(
            "INSERT INTO m (priority, epoch, time_next, time_acked, payload)"
            f" SELECT {values}, 'something to do' FROM (SELECT seq + {begin} AS n FROM numbers WHERE seq < {here}) AS s"
        )
    cursor.execute("ANALYZE TABLE m")


def make_numbers(cursor: Any) -> None:
    cursor.execute("CREATE TABLE numbers (seq INT PRIMARY KEY)")
    cursor.execute("INSERT INTO numbers VALUES (0)")
    count = 1
    while count < ROWS_AT_ONCE:
        cursor.execute(f"INSERT INTO numbers SELECT seq + {count} FROM numbers")
        count *= 2


def show_queues(cursor: Any) -> tuple[float, dict[str, Any]]:
    """Return the milliseconds that it takes, and its row."""
    began = time.monotonic()
    cursor.execute("SHOW FULL QUEUES LIKE 'm'")
    (row,) = cursor.fetchall()
    took_s = time.monotonic() - began
    assert row["Problem"] is None, row
    return 1e3 * took_s, row


def select_1(cursor: Any) -> float:
    """Return the milliseconds of a statement that does nothing."""
    began = time.monotonic()
    cursor.execute("SELECT 1")
    cursor.fetchall()
    return 1e3 * (time.monotonic() - began)


def spread(times_ms: list[float]) -> str:
    return f"best {min(times_ms):.1f}, median {statistics.median(times_ms):.1f}, worst {max(times_ms):.1f} ms"


def measure(cursor: Any, kind: str, count: int) -> None:
    began = time.monotonic()
    load(cursor, kind, count)
    loaded_s = time.monotonic() - began
    first, _ = show_queues(cursor)
    samples = [show_queues(cursor) for _ in range(SAMPLES)]
    times = [took_ms for took_ms, _ in samples]
    idle = [select_1(cursor) for _ in range(SAMPLES)]
    row = samples[-1][1]
    counts = ", ".join(f"{name} {row[name]}" for name in ("Ready", "Scheduled", "In_flight", "Acknowledged"))
    verdict = "" if max(times) < WITHIN_MS else f"   above {WITHIN_MS} ms"
    print(
        f"{kind:<13} {count:,} messages, loaded in {loaded_s:.0f} s\n"
        f"{'':<13} SHOW QUEUES: first {first:.1f} ms, then {spread(times)}{verdict}\n"
        f"{'':<13} {counts}; estimated: {row['Estimated'] or 'nothing'}\n"
        f"{'':<13} SELECT 1: {spread(idle)}",
        flush=True,
    )
    cursor.execute("DROP QUEUE m")


@contextlib.contextmanager
def proxy(port: int | None) -> Iterator[int]:
    if port is not None:
        yield port
        return
    with ackstream() as running:
        yield running.port


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--kinds", default="mixed")
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    with (
        proxy(arguments.port) as port,
        pymysql.connect(
            host="127.0.0.1", port=port, user="root", autocommit=True, cursorclass=DictCursor, ssl_disabled=True
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE DATABASE show_queues")
        cursor.execute("USE show_queues")
        cursor.execute("SELECT VERSION() AS version")
        (answer,) = cursor.fetchall()
        print("server", answer["version"])
        make_numbers(cursor)
        for kind in arguments.kinds.split(","):
            measure(cursor, kind, arguments.rows)
        cursor.execute("DROP DATABASE show_queues")


if __name__ == "__main__":
    main()
