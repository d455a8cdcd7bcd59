"""What a Spark session is and can: whether it has a JVM, and how many tasks it runs at once."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from ..errors import PipelineError


def is_classic(spark: Any) -> bool:
    """Whether a session has the JVM in its reach. One of Spark Connect does not."""
    return hasattr(spark, "_jsparkSession")


def require_classic(spark: Any, name: str) -> None:
    """Raise PipelineError for a session of Spark Connect."""
    if not is_classic(spark):
        raise PipelineError(
            f"{name} needs a classic Spark session, with its JVM, and this is one of Spark Connect: run it by"
            ' spark-submit; format("ackstream") works here'
        )


def can_exceed(spark: SparkSession, tasks: int) -> bool:
    """Whether this session can run more tasks than that at the same time, now or when it has
    grown."""
    growing = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    return growing or spark.sparkContext.defaultParallelism > tasks
