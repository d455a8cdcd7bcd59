"""A job for a cluster, as its users submit it: PROGRAM URL DIRECTORY MESSAGES.

It imports nothing of this repository, only what is installed. Rows are enqueued, then consumed by a
streaming query into files, both by executors' Python workers. Each micro-batch leaves a file in
DIRECTORY first. The results are in DIRECTORY/counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ackstream_spark.datasource import register
from ackstream_spark.endpoint import Endpoint
from ackstream_spark.enqueue import enqueue
from pyspark.sql import DataFrame, SparkSession


def main(url: str, directory: Path, messages: int) -> None:
    spark = SparkSession.builder.appName("cluster").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(messages, numPartitions=4).selectExpr("concat('message ', id) AS payload")
    outcome = enqueue(rows, Endpoint.from_url(url), "m", batch="first", mode="streaming")
    register(spark)

    def write(frame: DataFrame, number: int) -> None:
        (directory / f"batch-{number}").touch()
        frame.write.mode("overwrite").parquet(str(directory / "out" / f"batch={number}"))

    stream = spark.readStream.format("ackstream").options(url=url, table="m", maxMessagesPerBatch=1_000).load()
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    consumed = spark.read.parquet(str(directory / "out")).select("id").distinct().count()
    (directory / "counts").write_text(f"{outcome.messages} enqueued, {consumed} consumed")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
