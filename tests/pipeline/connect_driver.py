"""A program of Spark Connect, with a server in local mode: PROGRAM URL DIRECTORY.

It writes a batch by its name twice, reads it, moves it through a stream into another queue, and
tries what needs the JVM. What it has seen is in DIRECTORY/seen, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.archive import archive
from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from pipeline.enqueue import enqueue
from pipeline.errors import PipelineError
from pipeline.report import report


def refusal(call: Callable[[], Any]) -> str:
    """The text with which it is refused."""
    try:
        call()
    except PipelineError as error:
        return str(error)
    return ""


def main(url: str, directory: Path) -> None:
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark: Any = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    register(spark)
    place = {"url": url, "table": "m"}
    data = spark.range(500).selectExpr("concat('message ', id) AS payload")
    for _ in range(2):
        data.write.format("ackstream").options(**place).option("batch", "b").mode("append").save()
    seen: dict[str, Any] = {"read": spark.read.format("ackstream").options(**place).load().count()}
    stream = spark.readStream.format("ackstream").options(**place, maxMessagesPerBatch=200).load()
    sink = stream.select("payload").writeStream.format("ackstream").options(**{**place, "table": "done"})
    sink.option("checkpointLocation", str(directory / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination(300)
    endpoint = Endpoint.from_url(url)
    seen["refused"] = [
        refusal(lambda: enqueue(data, endpoint, "m", batch="c")),
        refusal(lambda: report(spark, endpoint, ["m"])),
        refusal(lambda: archive(spark, endpoint, "m", str(directory / "archive"), keep_s=0)),
    ]
    (directory / "seen").write_text(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
