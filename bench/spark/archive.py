"""`ackstream-archive` beside the same data simply read and written to Parquet: by Spark's JDBC reader, and page by page
as the archive reads it.

The archive reads everything twice, reads back what it wrote, and deletes it from the server. Spark, the proxy and the
server share this machine's cores. `make bench-pipeline` runs it; `ROWS` is its argument (200,000). Trust the ratios.
Writes bench/results/spark-archive.md.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from bench.spark._stage import compared, jdbc, publish, rows_asked_for, stage
from bench.spark.consume import FILL_STEP, ROUNDS, WARM_UP, fill
from pipeline.archive import archive
from pipeline.common.connection import LazyConnection
from pipeline.common.pages import Pages, read_pages
from pipeline.common.ranges import cut
from pipeline.common.rows import schema_of, selection
from pipeline.common.statements import Statements, fetching
from pipeline.common.table import located
from pipeline.endpoint import Endpoint

ROWS = 200_000
HOURS_AGO_NS = 2 * 3600 * 10**9
PARTITIONS = 8


def acknowledged(endpoint: Endpoint, rows: int) -> None:
    """A queue of messages that were all acknowledged two hours ago."""
    fill(endpoint, rows)
    with endpoint.connect() as connection, connection.cursor() as cursor:
        for start in range(0, rows * 2, FILL_STEP):  # Ids have gaps.
            acked = f"{time.time_ns() - HOURS_AGO_NS} + id"
            within = f"id > {start} AND id <= {start + FILL_STEP}"
            cursor.execute(f"UPDATE m SET time_acked = {acked}, time_next = NULL, epoch = 1 WHERE {within}")
        cursor.execute("SELECT COUNT(*), COUNT(time_acked) FROM m")
        assert len({rows, *cursor.fetchone()}) == 1


def copied(spark: SparkSession, endpoint: Endpoint, rows: int, folder: str) -> int:
    """By Spark alone, in parallel, and nothing looked at."""
    options = {
        **jdbc(endpoint, "m"),
        "partitionColumn": "id",
        "numPartitions": str(PARTITIONS),
    }
    bounds = {"lowerBound": "0", "upperBound": str(rows), "fetchsize": "10000"}
    spark.read.format("jdbc").options(**options, **bounds).load().write.parquet(f"{folder}/copy")
    return rows


def paged(spark: SparkSession, endpoint: Endpoint, rows: int, folder: str) -> int:
    """Like `copied`, page by page."""
    endpoint, table = located(endpoint, "m")
    statements, connection = Statements(table), LazyConnection(endpoint)
    ranges = cut(statements, lambda statement: connection.run(fetching(statement)), rows // PARTITIONS)
    connection.close()
    schema = schema_of(table, [column.name for column in table.columns])
    pages = Pages(endpoint, statements, selection(table, schema), schema)
    read_pages(spark, pages, [[ids] for ids in ranges], exact=True).write.parquet(f"{folder}/copy")
    return rows


def timed(endpoint: Endpoint, rows: int, work: Callable[[str], int]) -> float:
    """Messages a second."""
    acknowledged(endpoint, rows)
    with tempfile.TemporaryDirectory(prefix="ackstream-bench-") as folder:
        began = time.monotonic()
        assert work(folder) == rows
        return rows / (time.monotonic() - began)


def main() -> None:
    rows = rows_asked_for(ROWS)
    load = os.getloadavg()[0]
    with stage() as on:
        spark, endpoint = on.spark, on.proxy
        rates: dict[str, list[float]] = {"JDBC to Parquet": [], "pages to Parquet": [], "ackstream-archive": []}
        for turn in range(ROUNDS + 1):
            count = rows if turn else min(rows, WARM_UP)
            ways: dict[str, Callable[[str], int]] = {
                "JDBC to Parquet": partial(copied, spark, endpoint, count),
                "pages to Parquet": partial(paged, spark, endpoint, count),
                "ackstream-archive": lambda folder: archive(spark, endpoint, "m", folder).rows,
            }
            for name, work in ways.items():
                rate = timed(endpoint, count, work)
                if turn:
                    rates[name].append(rate)
                    print(f"round {turn}: {name}: {rate:,.0f} messages/s", flush=True)
    publish("archive", f"Archiving {rows:,} messages, verified and purged", compared(rates, "JDBC to Parquet"), load)


if __name__ == "__main__":
    main()
