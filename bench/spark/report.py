"""`ackstream-report` over a million retained rows, beside the same columns simply read by Spark's JDBC reader.

Three ways, one after another each round: the plain read, in equal ranges of ids, whose rows go nowhere; the report's
own reading, which cuts the table by the data and keeps what it read; and the whole report, by a column of a thousand
values, with its Parquet and its page. Spark, the proxy and the server share this machine's cores. `make bench-pipeline`
runs it; `ROWS` is its argument. Trust the ratios. Writes bench/results/spark-report.md.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from bench.spark._stage import compared, jdbc, publish, rows_asked_for, stage
from bench.spark.archive import PARTITIONS, acknowledged
from bench.spark.consume import ROUNDS, WARM_UP
from pipeline.common.table import describe
from pipeline.endpoint import Endpoint
from pipeline.report import report
from pipeline.report.history import Named, Queue, Reading, read

ROWS = 1_000_000
BY = "user_id"
COLUMNS = f"epoch, time_next, time_acked, CAST({BY} AS CHAR) AS value"


def plain(spark: SparkSession, endpoint: Endpoint) -> int:
    """By Spark alone."""
    with endpoint.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT MAX(id), COUNT(*) FROM m")
        greatest, rows = cursor.fetchone()
    options = {
        **jdbc(endpoint, f"(SELECT id, {COLUMNS} FROM m) AS seen"),
        "partitionColumn": "id",
        "lowerBound": "0",
        "upperBound": str(greatest),
        "numPartitions": str(PARTITIONS),
        "fetchsize": "10000",
    }
    spark.read.format("jdbc").options(**options).load().write.format("noop").mode("overwrite").save()
    return int(rows)


def reading(spark: SparkSession, endpoint: Endpoint) -> int:
    """The report's part that reads."""
    table = endpoint.run(lambda connection: describe(connection, "bench", "m"))
    history = read(spark, endpoint, [Queue(table)], Named(by=(BY,)), Reading())
    rows = history.rows.count()
    history.drop()
    return rows


def whole(spark: SparkSession, endpoint: Endpoint) -> int:
    """All of it."""
    made = report(spark, endpoint, ["m"], by=[BY])
    with tempfile.TemporaryDirectory(prefix="ackstream-bench-") as folder:
        made.write(folder)
        (row,) = made.frames["volumes"].where("by IS NULL").collect()
    made.close()
    return int(row["acknowledged"])


WAYS: dict[str, Callable[[SparkSession, Endpoint], int]] = {
    "plain JDBC read": plain,
    "the report's reading": reading,
    "ackstream-report": whole,
}


def main() -> None:
    rows = rows_asked_for(ROWS)
    load = os.getloadavg()[0]
    with stage() as on:
        spark, endpoint = on.spark, on.proxy
        rates: dict[str, list[float]] = {name: [] for name in WAYS}
        for turn in range(ROUNDS + 1):
            count = rows if turn else min(rows, WARM_UP)
            if turn < 2:  # Nothing here changes them.
                acknowledged(endpoint, count)
            for name, work in WAYS.items():
                began = time.monotonic()
                assert work(spark, endpoint) == count
                rate = count / (time.monotonic() - began)
                if turn:
                    rates[name].append(rate)
                    print(f"round {turn}: {name}: {rate:,.0f} messages/s", flush=True)
    publish("report", f"Reporting on {rows:,} messages", compared(rates, "plain JDBC read"), load)


if __name__ == "__main__":
    main()
