"""How many tasks Spark can run at once, each of which has a connection."""

from __future__ import annotations

from pyspark.sql import SparkSession


def can_exceed(spark: SparkSession, tasks: int) -> bool:
    """Whether this session can run more tasks than that at the same time, now or when it has
    grown."""
    growing = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    return growing or spark.sparkContext.defaultParallelism > tasks
