"""The rows of the large queue and of the many small ones, made by the server itself.

A quarter of the rows is due, a quarter is scheduled, a quarter is acknowledged, and a quarter has
failed several times and waits. In the index each state is a run of its own, in the order of ids, so
no INSERT splits pages. Nothing of it is written to the binary log, which no proxy reads yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.compare.model import PAYLOAD_BYTES
from bench.compare.mysql import CREATE, connected

CHUNK_ROWS = 250_000
"""Rows of one INSERT."""
LOADERS = 2
"""Connections that load at the same time: more than two cores are not kept busy by more."""
SMALL_SHARE = 0.1
"""The share of the rows that is in the small queues."""
S = 10**9

NUMBERS = """
CREATE TABLE numbers (n INT PRIMARY KEY)
SELECT a.d + 10 * b.d + 100 * c.d AS n FROM {digits} AS a CROSS JOIN {digits} AS b CROSS JOIN {digits} AS c
"""
DIGITS = f"({' UNION ALL '.join(f'SELECT {digit} AS d' for digit in range(10))})"

LOAD = """
INSERT INTO {table} (epoch, time_next, time_acked, payload)
SELECT ELT(1 + state, 0, 0, 1, 5),
  CASE state WHEN 0 THEN 0 WHEN 1 THEN {now_ns} + (3600 + n MOD 86400) * 1000000000
    WHEN 3 THEN {now_ns} + (1800 + n MOD 1800) * 1000000000 END,
  CASE state WHEN 2 THEN {now_ns} - (n MOD 3600) * 1000000000 END,
  REPEAT('x', {payload_bytes})
FROM (SELECT n, n MOD 4 AS state FROM (
  SELECT a.n + 1000 * b.n AS n FROM numbers AS a CROSS JOIN numbers AS b WHERE b.n <= {count} DIV 1000
) AS counted WHERE n < {count}) AS rows_to_make
"""
DUE = """
INSERT INTO {table} (payload) SELECT REPEAT('x', {payload_bytes}) FROM numbers WHERE n < {count}
"""


def small_rows(rows: int, queues: int) -> int:
    """Return how many rows a small queue has: a multiple of 4, at least 4."""
    return max(4, round(rows * SMALL_SHARE / queues / 4) * 4)


def names(queues: int) -> Iterator[str]:
    """Yield the names of the small queues."""
    return (f"q{number}" for number in range(queues))


def load(port: int, rows: int, queues: int) -> float:
    """Make and fill `queue` and the small queues in the database bench. Returns the seconds."""
    began_s = time.monotonic()
    with connected(port) as connection, connection.cursor() as cursor:
        cursor.execute(NUMBERS.format(digits=DIGITS))
        for name in names(queues):
            cursor.execute(CREATE.replace("TABLE queue", f"TABLE {name}"))
    small = small_rows(rows, queues)
    large = max(0, rows - small * queues)
    chunks = [("queue", min(CHUNK_ROWS, large - begun)) for begun in range(0, large, CHUNK_ROWS)]
    now_ns = time.time_ns()
    _run_all(
        port,
        [
            LOAD.format(table=table, count=count, now_ns=now_ns, payload_bytes=PAYLOAD_BYTES)
            for table, count in [*chunks, *((name, small) for name in names(queues))]
        ],
    )
    with connected(port) as connection, connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE queue")
    return time.monotonic() - began_s


def refill(port: int, queues: int, due: int) -> None:
    """Add `due` messages to each small queue: at most 1,000."""
    assert due <= 1_000
    _run_all(port, [DUE.format(table=name, count=due, payload_bytes=PAYLOAD_BYTES) for name in names(queues)])


def _run_all(port: int, statements: Sequence[str]) -> None:
    """Run statements by LOADERS connections, none in the binary log."""

    def work(own: Sequence[str]) -> None:
        connection: Any
        with connected(port) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 0")
            for statement in own:
                cursor.execute(statement)

    with ThreadPoolExecutor(LOADERS) as pool:
        for _ in pool.map(work, [statements[number::LOADERS] for number in range(LOADERS)]):
            pass
