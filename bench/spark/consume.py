"""The streaming source of Spark beside a bare consumer: one STREAM read by PyMySQL, acknowledged by the thousand.

The same queue for both, filled anew each time, everything that is there taken and acknowledged. The bare consumer does
nothing with a row; Spark writes to its own `noop` sink, which reads everything. Claims, rows and acknowledgements of
both go through the proxy; Spark, the proxy and the server share this machine's cores. A query's start and end are
counted, the start of Spark is not. `make bench-pipeline` runs it; `ROWS` is its argument (300,000). Trust the
ratios. Writes bench/results/spark-consume.md.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

from pymysql.cursors import SSCursor
from pyspark.sql import SparkSession

from bench.spark._stage import compared, publish, rows_asked_for, stage
from pipeline.datasource import register
from pipeline.endpoint import Endpoint

ROWS = 300_000
ROUNDS = 3
WARM_UP = 20_000
ACK_BATCH = 1_000
BARE = "a bare STREAM consumer"
FILL_STEP = 10_000

CREATE = """
CREATE QUEUE m (user_id INT NOT NULL, payload VARCHAR(200) NOT NULL)
  batch_size = 1000 cache_size = 250000 ack_wait = 600
"""


def fill(endpoint: Endpoint, rows: int) -> None:
    """Messages of about 100 bytes."""
    with endpoint.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS m")
        cursor.execute(CREATE)
        digits = " CROSS JOIN ".join(
            f"(SELECT 0 n UNION ALL {' UNION ALL '.join(f'SELECT {d}' for d in range(1, 10))}) t{p}" for p in range(4)
        )
        for start in range(0, rows, FILL_STEP):
            number = f"({start} + t0.n + 10 * t1.n + 100 * t2.n + 1000 * t3.n)"
            payload = f"CONCAT('{{\"item\": \"', SHA2({number}, 256), '\", \"n\": ', {number}, '}}')"
            cursor.execute(f"INSERT INTO m (user_id, payload) SELECT {number} % 1000, {payload} FROM {digits}")


def bare(endpoint: Endpoint) -> int:
    """One stream, and a second connection for the acknowledgements."""
    taken = 0
    with endpoint.connect(SSCursor) as connection, endpoint.connect() as other, other.cursor() as acks:
        ids: list[int] = []

        def acknowledge() -> None:
            acks.execute(f"ACK FROM m WHERE id IN ({','.join(map(str, ids))})")
            ids.clear()

        with connection.cursor() as cursor:
            cursor.execute("STREAM *, epoch FROM m NOWAIT")
            for row in cursor:
                ids.append(row[0])
                taken += 1
                if len(ids) == ACK_BATCH:
                    acknowledge()
        if ids:
            acknowledge()
    return taken


def spark_takes(spark: SparkSession, endpoint: Endpoint) -> int:
    """A query that ends when all is done."""
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    with tempfile.TemporaryDirectory(prefix="ackstream-bench-") as checkpoint:
        source = spark.readStream.format("ackstream").options(url=url, table="m", numPartitions=2)
        frame = source.option("maxMessagesPerBatch", 250_000).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def timed(endpoint: Endpoint, rows: int, work: Callable[[], int]) -> float:
    """Messages a second out of a full queue."""
    fill(endpoint, rows)
    began = time.monotonic()
    taken = 0
    while taken < rows:  # A stream ends early where its messages in flight reach the table's bound.
        taken += work()
    took = time.monotonic() - began
    with endpoint.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM m WHERE time_acked IS NULL")
        assert cursor.fetchone() == (0,)
    return rows / took


def main() -> None:
    rows = rows_asked_for(ROWS)
    load = os.getloadavg()[0]
    with stage() as on:
        spark, endpoint = on.spark, on.proxy
        register(spark)
        ways: dict[str, Callable[[], int]] = {
            BARE: lambda: bare(endpoint),
            "Spark's readStream": lambda: spark_takes(spark, endpoint),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(ROUNDS + 1):
            for name, work in ways.items():
                rate = timed(endpoint, rows if turn else min(rows, WARM_UP), work)
                if turn:
                    rates[name].append(rate)
                    print(f"round {turn}: {name}: {rate:,.0f} messages/s", flush=True)
    publish("consume", f"Consuming {rows:,} messages of 100 bytes", compared(rates, BARE), load)


if __name__ == "__main__":
    main()
