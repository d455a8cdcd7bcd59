"""Two runs of one batch at the same time: its messages are in the queue once, and one run says that it added them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, Outcome, enqueue
from pipeline.enqueue.command import said
from pipeline.enqueue.direct import Direct
from pipeline.enqueue.load import Settings
from pipeline.enqueue.staged import Staged
from tests.pipeline.test_abandon import held_before, staging_tables
from tests.support.queues import rows, run

pytestmark = pytest.mark.either_server

SETTINGS = Settings(slice_rows=300, look_s=0.05)


@pytest.fixture(params=["streaming", "atomic"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def orders(spark: SparkSession, connection: Any) -> DataFrame:
    """Data for an empty queue."""
    run(connection, "CREATE QUEUE m (payload VARCHAR(100))")
    return spark.range(1000).select(f.format_string("order %d", "id").alias("payload"))


def messages(connection: Any) -> tuple[int, ...]:
    return rows(connection, "SELECT COUNT(*), COUNT(DISTINCT payload) FROM m")[0]


@pytest.mark.parametrize("server_name", ["mysql"], indirect=True)  # the steps are the same on each
@pytest.mark.parametrize("step", ["prepare", "write", "finish"])
def test_a_run_that_is_overtaken_adds_nothing_and_says_so(
    endpoint: Endpoint,
    connection: Any,
    orders: DataFrame,
    mode: Mode,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when all that the other one has added was consumed and purged meanwhile."""
    outcomes: list[Outcome] = []

    def job() -> None:
        outcomes.append(enqueue(orders, endpoint, "m", batch="b", mode=mode, settings=SETTINGS))

    with held_before(monkeypatch, step, job, Direct if mode == "streaming" else Staged) as end:
        job()
        purged = step != "write"  # What a task is given to write it writes, unless the slice is in the queue.
        if purged:
            run(connection, "DELETE FROM m")
        assert end() is None
    assert [(outcome.added, outcome.beside) for outcome in outcomes] == [(True, False), (False, True)]
    assert said(outcomes[1]).endswith(f"1,000 messages in {endpoint.database}.m, ended by another run of it")
    assert messages(connection) == ((0, 0) if purged else (1000, 1000))
    assert staging_tables(connection) == []
    assert rows(connection, "SELECT COUNT(*) FROM ackstream_slices") == [(0,)]


def test_of_runs_that_begin_together_one_says_that_it_added_the_batch(
    endpoint: Endpoint, connection: Any, orders: DataFrame, mode: Mode
) -> None:
    outcomes: list[Outcome] = []
    together = threading.Barrier(2)

    def job() -> None:
        together.wait()
        outcomes.append(enqueue(orders, endpoint, "m", batch="b", mode=mode, settings=SETTINGS))

    runs = [threading.Thread(target=job) for _ in range(2)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join(120)
    assert sorted((outcome.added, outcome.messages) for outcome in outcomes) == [(False, 1000), (True, 1000)]
    assert messages(connection) == (1000, 1000)
    assert staging_tables(connection) == []
