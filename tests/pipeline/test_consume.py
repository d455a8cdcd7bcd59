"""`spark.readStream.format("ackstream")`: messages as micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from tests.support.queues import create_queue, enqueue, rows

Batches = dict[int, list[tuple[Any, ...]]]


@pytest.fixture
def source(spark: SparkSession, endpoint: Endpoint) -> Callable[..., DataFrame]:
    """A stream of the queue m with these options."""
    register(spark)
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    return lambda **options: spark.readStream.format("ackstream").options(url=url, table="m", **options).load()


def take_all(frame: DataFrame, checkpoint: Path) -> Batches:
    """What is there, by batches, with each batch's rows sorted."""
    batches: Batches = {}

    def take(batch: DataFrame, number: int) -> None:
        batches[number] = sorted(tuple(row) for row in batch.collect())

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination(60)
    return batches


def test_all_that_is_there_comes_in_batches_and_is_acknowledged(
    source: Callable[..., DataFrame], connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", [f"p{number}" for number in range(2_500)])
    batches = take_all(source(maxMessagesPerBatch=1_000), tmp_path / "checkpoint")
    assert [len(batches[number]) for number in sorted(batches)] == [1_000, 1_000, 500]
    received = sorted(row for batch in batches.values() for row in batch)
    assert received == [(number + 1, f"p{number}", 1) for number in range(2_500)]
    assert rows(connection, "SELECT COUNT(*), SUM(epoch) FROM m WHERE time_acked IS NOT NULL") == [(2_500, 2_500)]
