"""`spark.readStream.format("ackstream")`: messages as micro-batches."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

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


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Begin a query that calls a function with each batch; what still runs at the end of the test is stopped."""
    queries: list[StreamingQuery] = []

    def start(frame: DataFrame, work: Callable[[DataFrame, int], None], name: str = "q") -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / name))
        queries.append(writer.start())
        return queries[-1]

    yield start
    for query in queries:
        if query.exception():
            logging.getLogger(__name__).warning("%s", query.exception())  # in the report of a test that waited in vain
        query.stop()


def acknowledged(connection: Any) -> int:
    return int(rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NOT NULL")[0][0])


def test_the_last_messages_are_acknowledged_without_waiting_for_more(
    source: Callable[..., DataFrame], begin: Callable[..., StreamingQuery], connection: Any
) -> None:
    create_queue(connection, "m")
    received: list[str] = []
    begin(source(), lambda batch, _: received.extend(row.payload for row in batch.collect()))
    enqueue(connection, "m", ["first"])
    eventually(lambda: acknowledged(connection) == 1, timeout_s=400)
    enqueue(connection, "m", ["second"])
    eventually(lambda: acknowledged(connection) == 2, timeout_s=400)
    assert received == ["first", "second"]


def test_in_strict_order_a_batch_has_one_message_of_each_group(
    source: Callable[..., DataFrame], connection: Any, begin: Callable[..., StreamingQuery]
) -> None:
    run(connection, "CREATE QUEUE m (tenant INT) GROUP_BY = (tenant) GROUP_ORDER = STRICT ACK_WAIT = 600")
    run(connection, "INSERT INTO m (tenant) VALUES (1), (2), (1), (2), (1), (2)")
    batches: list[list[tuple[int, int]]] = []
    begin(source(), lambda batch, _: batches.append([(row.tenant, row.id) for row in batch.collect()]))
    eventually(lambda: acknowledged(connection) == 6, timeout_s=400)
    assert all(len(dict(batch)) == len(batch) for batch in batches)
    received = [row for batch in batches for row in batch]
    assert [number for tenant, number in received if tenant == 1] == [1, 3, 5]
    assert [number for tenant, number in received if tenant == 2] == [2, 4, 6]


def test_a_batch_has_no_more_messages_than_their_semaphores_have_places(
    source: Callable[..., DataFrame], connection: Any, begin: Callable[..., StreamingQuery]
) -> None:
    """Which are one batch's until it is acknowledged, and then the next one's."""
    run(connection, "CREATE SEMAPHORE mail CAPACITY 3")
    run(connection, "CREATE QUEUE m (needs VARCHAR(40)) SEMAPHORES = (needs) ACK_WAIT = 600")
    run(connection, "INSERT INTO m (needs) VALUES ('mail'), ('mail'), (NULL), ('mail'), ('mail'), ('mail'), ('mail')")
    batches: list[list[str | None]] = []
    begin(source(), lambda batch, _: batches.append([row.needs for row in batch.collect()]))
    eventually(lambda: acknowledged(connection) == 7, timeout_s=400)
    assert sum(map(len, batches)) == 7
    assert max(batch.count("mail") for batch in batches) == 3


def test_a_follow_up_comes_behind_its_batch_and_a_group_has_its_limit(
    source: Callable[..., DataFrame], connection: Any, begin: Callable[..., StreamingQuery]
) -> None:
    run(connection, "CREATE QUEUE m (tenant INT NOT NULL) GROUP_BY = (tenant) GROUP_LIMIT = 2 BATCHES ACK_WAIT = 600")
    run(connection, "INSERT INTO m (tenant, after_batch) VALUES (2, 7)")
    run(connection, "INSERT INTO m (tenant, batch) VALUES (1, 7), (1, 7), (1, 7), (1, 7), (1, 7)")
    batches: list[list[int]] = []
    begin(source(), lambda batch, _: batches.append([row.tenant for row in batch.collect()]))
    eventually(lambda: acknowledged(connection) == 6, timeout_s=400)
    assert max(batch.count(1) for batch in batches) == 2
    assert [tenant for batch in batches for tenant in batch] == [1] * 5 + [2]
    assert batches[-1] == [2]


def test_only_messages_that_meet_the_condition_are_taken(
    source: Callable[..., DataFrame], connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", [f"{word} {number}" for number in range(50) for word in ("tea", "bread")])
    frame = source(where="payload LIKE 'tea%' OR id = 2", columns="payload, epoch")
    (batch,) = take_all(frame, tmp_path / "checkpoint").values()
    assert batch == sorted([("bread 0", 1), *((f"tea {number}", 1) for number in range(50))])
    assert acknowledged(connection) == 51


def test_a_failed_batch_is_released_at_once(
    source: Callable[..., DataFrame], begin: Callable[..., StreamingQuery], connection: Any
) -> None:
    create_queue(connection, "m", vt_ack_wait="3600")
    enqueue(connection, "m", ["a", "b"])

    def fail(batch: DataFrame, _: int) -> None:
        assert batch.count() == 2
        raise ZeroDivisionError

    query = begin(source(), fail)
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        query.awaitTermination(100)
    released = [rows(connection, "STREAM payload, epoch FROM m LIMIT 1 WAIT 20") for _ in range(2)]  # By two tasks.
    assert sorted(released) == [[("a", 2)], [("b", 2)]]


def test_a_failed_batch_runs_again_without_what_somebody_else_has_and_without_anything_new(
    source: Callable[..., DataFrame], begin: Callable[..., StreamingQuery], endpoint: Endpoint, connection: Any
) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) ACK_WAIT = 3600")
    enqueue(connection, "m", ["a", "b", "c"])
    with pytest.raises(StreamingQueryException):
        begin(source(), lambda *_: 1 / 0).awaitTermination(100)
    with endpoint.connect() as other:
        eventually(lambda: rows(other, "STREAM payload FROM m WHERE payload = 'b' NOWAIT"), timeout_s=400)
        enqueue(connection, "m", ["d"])
        batches: dict[int, list[str]] = {}

        def take(batch: DataFrame, number: int) -> None:
            # They were released, and are held again.
            assert rows(other, "STREAM payload FROM m WHERE payload IN ('a', 'c') NOWAIT") == []
            batches[number] = sorted(row.payload for row in batch.collect())

        begin(source(), take)
        eventually(lambda: acknowledged(connection) == 3, timeout_s=400)
        assert batches == {0: ["a", "c"], 1: ["d"]}
        assert run(other, "ACK FROM m WHERE payload = 'b' AND epoch = 2") == 1


def test_a_batch_longer_than_its_messages_wait_keeps_them(
    source: Callable[..., DataFrame], begin: Callable[..., StreamingQuery], endpoint: Endpoint, connection: Any
) -> None:
    create_queue(connection, "m", vt_ack_wait="2", vt_poller_interval="1")
    enqueue(connection, "m", [f"{number}" for number in range(100)])
    began, go_on = threading.Event(), threading.Event()
    received: list[int] = []

    def work_long(batch: DataFrame, _: int) -> None:
        began.set()
        assert go_on.wait(60)
        received.extend(row.epoch for row in batch.collect())

    begin(source(holdSeconds=3), work_long)
    assert began.wait(100)
    with endpoint.connect() as other:
        assert rows(other, "STREAM * FROM m LIMIT 1 WAIT 8") == []
    go_on.set()
    eventually(lambda: acknowledged(connection) == 100, timeout_s=30)
    assert received == [1] * 100


def test_two_queries_share_a_queue(
    source: Callable[..., DataFrame], begin: Callable[..., StreamingQuery], connection: Any
) -> None:
    create_queue(connection, "m")
    numbers = itertools.count()
    received: dict[str, list[str]] = {"one": [], "two": []}

    def both_receive() -> bool:
        """The queries do not start at the same time, so messages come until both have had some."""
        assert all(query.isActive for query in queries)
        enqueue(connection, "m", [f"{next(numbers)}"])
        return all(received.values())

    queries: list[StreamingQuery] = []
    for name, mine in received.items():

        def take(batch: DataFrame, _: int, mine: list[str] = mine) -> None:
            mine.extend(row.payload for row in batch.collect())

        queries.append(begin(source(maxMessagesPerBatch=250), take, name))
    eventually(both_receive, timeout_s=200)
    sent = next(numbers)
    eventually(lambda: acknowledged(connection) == sent, timeout_s=200)
    assert sorted(map(int, received["one"] + received["two"])) == list(range(sent))


def test_a_killed_worker_costs_a_task_and_no_message(
    source: Callable[..., DataFrame], connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", [f"{number}" for number in range(4_000)])

    @f.udf("string", useArrow=False)
    def die_once(payload: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and int(payload) % 1_000 == 500:
            # The process that reads is a sibling, and dies first.
            this, parent = os.getpid(), os.getppid()
            for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                if int(child) != this:
                    os.kill(int(child), signal.SIGKILL)
            os.kill(this, signal.SIGKILL)
        return payload

    frame = source(numPartitions=2).select(die_once("payload").alias("payload"), "epoch")
    (batch,) = take_all(frame, tmp_path / "checkpoint").values()
    assert sorted(int(payload) for payload, _ in batch) == list(range(4_000))
    assert {epoch for _, epoch in batch} == {1}
    assert acknowledged(connection) == 4_000


def test_a_query_outlives_the_proxy(
    spark: SparkSession, begin: Callable[..., StreamingQuery], private_proxy: RunningProxy
) -> None:
    register(spark)
    with private_proxy.connect() as connection:
        run(connection, "CREATE DATABASE d")
        run(connection, "USE d")
        create_queue(connection, "m")
        enqueue(connection, "m", [f"{number}" for number in range(1_000)])
    url = f"mysql://root@{private_proxy.host}:{private_proxy.port}/d"
    frame = spark.readStream.format("ackstream").options(url=url, table="m", maxMessagesPerBatch=200).load()
    received: set[str] = set()

    def take(batch: DataFrame, number: int) -> None:
        if number in {1, 3}:
            private_proxy.kill()
            private_proxy.start()
        received.update(row.payload for row in batch.collect())

    query = begin(frame, take)
    eventually(lambda: len(received) == 1_000 or not query.isActive, timeout_s=200)
    with private_proxy.connect(database="d") as connection:
        eventually(lambda: acknowledged(connection) == 1_000, timeout_s=400)


def test_a_query_that_cannot_work_says_why_at_once(source: Callable[..., DataFrame], connection: Any) -> None:
    create_queue(connection, "m")
    with pytest.raises(AnalysisException) as caught:
        source(maxMessagesPerBatch="1e3", conections="4")
    assert "maxMessagesPerBatch: must be a whole number from 1 to 1,000,000, and is '1e3'" in str(caught.value)
    assert "conections: there is no such option" in str(caught.value)
