"""A streaming query as a program of its own, which tests kill: PROGRAM URL DIRECTORY LIFE POINT BATCH.

Each batch is written to DIRECTORY/batches/NUMBER.LIFE as a whole. At batch BATCH it ends as kill -9 ends it, at POINT:
`planned` (the batch is in Spark's log, nothing has run), `before` and `after` it is written, `committed` (Spark has it
in its commit log; whether it is acknowledged is a race); `jvm` is as `before`, but the JVM dies without its container.
With `never` it comes to its own end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from pipeline.datasource import register
from tests.pipeline.conftest import session
from tests.support.waiting import eventually


def die() -> None:
    """Driver and JVM at once, as when their container is killed."""
    os.killpg(0, signal.SIGKILL)


def die_when_there(file: Path) -> None:
    """Watch as closely as can be."""

    def watch() -> None:
        eventually(file.exists, timeout_s=600)
        die()

    threading.Thread(target=watch, daemon=True).start()


def main(url: str, directory: Path, life: str, point: str, fatal: int) -> None:
    spark = session("local[2]")
    register(spark)

    def write(frame: DataFrame, number: int) -> None:
        received = sorted(row.id for row in frame.select("id").collect())
        if number == fatal and point == "before":
            die()
        if number == fatal and point == "jvm":
            gateway: Any = spark.sparkContext._gateway
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        batch = directory / "batches" / f"{number}.{life}"
        batch.with_suffix(".part").write_text("\n".join(map(str, received)))
        batch.with_suffix(".part").rename(batch)
        if number == fatal and point == "after":
            die()

    (directory / "batches").mkdir(exist_ok=True)
    checkpoint = directory / "checkpoint"
    logs = {"planned": "offsets", "committed": "commits"}
    if point in logs:
        die_when_there(checkpoint / logs[point] / str(fatal))
    stream = spark.readStream.format("ackstream").options(url=url, table="m", maxMessagesPerBatch=300).load()
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
