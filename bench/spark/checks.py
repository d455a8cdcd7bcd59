"""What the rules take of the reading before anything is written, in CPU, which a busy machine changes least.

The same files are read with the rules and without them by turns, for two tables: one of two columns, as in the programs
beside this one, and one of eight with JSON and a unique key. `ROWS` is the argument (300,000). `make bench-pipeline`
runs it. Writes bench/results/spark-checks.md.
"""

from __future__ import annotations

import os
import statistics
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.processes import cpu_s, family
from bench.spark import enqueue
from bench.spark._stage import publish, rows_asked_for, stage
from pipeline.common.table import located
from pipeline.enqueue import checking
from pipeline.enqueue.cut import by_files, file_octets
from pipeline.enqueue.fingerprint import Sums
from pipeline.enqueue.load import Settings
from pipeline.enqueue.mapping import mapped

ROWS = 300_000
ROUNDS = 5

CREATE_WIDE = (
    "CREATE QUEUE {} (order_id BIGINT NOT NULL UNIQUE, user_id INT NOT NULL, kind ENUM('a', 'b') NOT NULL,"
    " amount DECIMAL(10,2) NOT NULL, created DATETIME(6) NOT NULL, note VARCHAR(100), doc JSON, weight FLOAT)"
)


def wide(spark: SparkSession, path: str, rows: int) -> DataFrame:
    """Messages of eight columns, in files."""
    values = (
        "id AS order_id",
        "CAST(id % 1000 AS INT) AS user_id",
        "IF(id % 2 = 0, 'a', 'b') AS kind",
        "CAST(id % 100000 / 100 AS DECIMAL(10,2)) AS amount",
        "timestamp_seconds(1383451200 + id) AS created",
        "concat('note ', id) AS note",
        "to_json(struct(id AS n, sha2(CAST(id AS STRING), 256) AS item)) AS doc",
        "CAST(id % 1000 AS FLOAT) AS weight",
    )
    spark.range(rows).select([f.expr(value) for value in values]).write.parquet(path)
    return spark.read.parquet(path)


def cpu_of_all_s() -> float:
    """Of this process, of Spark, and of the server and the proxy, which have nothing to do."""
    return sum(cpu_s(pid) for pid in family(os.getpid()))


def main() -> None:
    rows = rows_asked_for(ROWS)
    load = os.getloadavg()[0]
    settings = Settings()
    lines = ["| messages | with the rules: CPU, s | without | keys: CPU, s |", "|---|---|---|---|"]
    with stage() as on, tempfile.TemporaryDirectory(prefix="ackstream-bench-") as directory:
        for name, make, create in (
            ("two columns", enqueue.data, enqueue.CREATE),
            ("eight columns, JSON, a unique key", wide, CREATE_WIDE),
        ):
            frame = make(on.spark, f"{directory}/{name}", rows)
            with on.proxy.connect() as connection, connection.cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS m")
                cursor.execute(create.format("m"))
            endpoint, table = located(on.proxy, "m")
            spent: dict[str, list[float]] = {"with": [], "without": [], "keys": []}
            for turn in range(ROUNDS + 1):
                for way, seconds in spent.items():
                    fitting, _ = mapped(frame, table, None)
                    cut = by_files(fitting, file_octets(settings.slice_rows, settings.slice_octets), Sums())
                    assert cut is not None
                    began = cpu_of_all_s()
                    if way == "keys":
                        checking.duplicates(fitting, table, endpoint)
                    else:
                        checking.read(cut, fitting, table, "all" if way == "with" else "off")
                    if turn:
                        seconds.append(cpu_of_all_s() - began)
            lines.append("| {} | {:.2f} | {:.2f} | {:.2f} |".format(name, *map(statistics.median, spent.values())))
    publish("checks", f"Checking {rows:,} messages, medians of {ROUNDS} rounds", lines, load)


if __name__ == "__main__":
    main()
