"""Enqueueing from Spark: both modes through the proxy, beside Spark's own JDBC writer straight to the server.

The same files and the same table for all three, and for Spark's writer its driver's best option
(`rewriteBatchedStatements`); each round does them one after another, each time another one first. Ours reads the data
once more than Spark's writer, to check it before anything is written; the page also has the rates without that time.
Each batch can be run again without harm. `make bench-pipeline` runs it; `ROWS` is its argument (a million). Of more
there are three rounds. The modes are its other arguments (both). Trust the ratios. Writes
bench/results/spark-enqueue.md, with other rows spark-enqueue-ROWS.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.spark._stage import compared, jdbc, publish, rows_asked_for, stage
from pipeline.common.progress import Progress
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, enqueue

ROWS = 1_000_000
ROUNDS = 5
FEW_ROUNDS = 3
WARM_UP = 50_000
SPARKS = "Spark's own JDBC writer, directly to the server"

CREATE = "CREATE QUEUE {} (user_id INT NOT NULL, payload VARCHAR(200) NOT NULL)"


def data(spark: SparkSession, path: str, rows: int) -> DataFrame:
    """Messages of about 100 bytes, in files."""
    payload = f.concat(
        f.lit('{"item": "'), f.sha2(f.col("id").cast("string"), 256), f.lit('", "n": '), "id", f.lit("}")
    )
    spark.range(rows).select((f.col("id") % 1000).cast("int").alias("user_id"), payload.alias("payload")).write.parquet(
        path
    )
    return spark.read.parquet(path)


class Clock:
    """How long the work took, and how long it wrote: from the end of its first phase on, in which ours checks."""

    def __init__(self) -> None:
        self._began = self._wrote = time.monotonic()
        self._checks = False

    def note(self, progress: Progress) -> None:
        """Take notice of a phase."""
        if progress.phase == "checking":
            self._checks = True
        elif self._checks:
            self._checks, self._wrote = False, time.monotonic()

    def rates(self, rows: int) -> tuple[float, float]:
        """Rows a second until now: of the whole work, and of writing."""
        now = time.monotonic()
        return rows / (now - self._began), rows / (now - self._wrote)


def timed(endpoint: Endpoint, rows: int, work: Callable[[Clock], object]) -> tuple[float, float]:
    """Rows a second into an empty queue: of the whole work, and of writing alone."""
    with endpoint.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS m")
        cursor.execute(CREATE.format("m"))
    clock = Clock()
    work(clock)
    rates = clock.rates(rows)
    with endpoint.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM m")
        assert cursor.fetchone() == (rows,)
    return rates


def main() -> None:
    rows = rows_asked_for(ROWS)
    load = os.getloadavg()[0]
    with stage() as on, tempfile.TemporaryDirectory(prefix="ackstream-bench-") as directory:
        spark, proxy, server = on.spark, on.proxy, on.server
        names = [SPARKS, *(sys.argv[2:] or get_args(Mode))]
        rates: dict[str, list[float]] = {name: [] for name in names}
        few = min(rows, WARM_UP)
        frames = {count: data(spark, f"{directory}/{count}", count) for count in {few, rows}}
        for turn in range((ROUNDS if rows <= ROWS else FEW_ROUNDS) + 1):
            count = rows if turn else few
            frame = frames[count]
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                rate, writing = timed(proxy, count, way(name, frame, proxy, server, f"{turn}"))
                if turn:
                    rates[name].append(rate)
                    print(f"round {turn}: {name}: {rate:,.0f} messages/s", flush=True)
                if turn and name != SPARKS:
                    rates.setdefault(f"{name}, without the time to check", []).append(writing)
    publish(
        "enqueue" if rows == ROWS else f"enqueue-{rows}",
        f"Enqueueing {rows:,} messages of 100 bytes",
        compared(rates, SPARKS),
        load,
    )


def way(name: str, frame: DataFrame, proxy: Endpoint, server: Endpoint, turn: str) -> Callable[[Clock], object]:
    """One of the three."""
    modes: dict[str, Mode] = {"streaming": "streaming", "atomic": "atomic"}
    if name in modes:
        return lambda clock: enqueue(frame, proxy, "m", batch=f"{name} {turn}", mode=modes[name], report=clock.note)
    return lambda _: frame.write.format("jdbc").options(**jdbc(server, "m")).mode("append").save()


if __name__ == "__main__":
    main()
