"""What users of Spark expect of a source: short errors, progress, secrets kept, recipes that work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from tests.support.documents import SPARK_PYTHON, blocks_of
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, rows, run, user


@pytest.fixture
def place(spark: SparkSession, endpoint: Endpoint) -> dict[str, str]:
    register(spark)
    return {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}


@pytest.fixture
def source(spark: SparkSession, place: dict[str, str]) -> Callable[..., DataFrame]:
    return lambda **options: spark.readStream.format("ackstream").options(**{**place, **options}).load()


def started(frame: DataFrame, work: Callable[[DataFrame, int], None], checkpoint: Path) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


@pytest.mark.either_server
def test_a_wrong_option_is_told_without_a_traceback(
    spark: SparkSession, place: dict[str, str], connection: Any
) -> None:
    create_queue(connection, "m")
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("ackstream").options(**place, fetchsize="5").load().collect()
    assert "fetchsize: there is no such option here" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    wrong_user = place["url"].replace("root@", "nobody@")
    for changed, complaint in (
        ({"table": "nowhere"}, "there is no table"),
        ({"url": wrong_user}, "refuses the login: Access denied"),
        ({"where": "nothing = 1"}, "the server says: Unknown column 'nothing'"),
    ):
        with pytest.raises(AnalysisException) as caught:
            spark.readStream.format("ackstream").options(**{**place, **changed}).load()
        assert complaint in str(caught.value)
        assert "Traceback" not in str(caught.value)


@pytest.mark.either_server
def test_a_query_that_fails_is_told_without_a_traceback(
    source: Callable[..., DataFrame], connection: Any, tmp_path: Path
) -> None:
    """By Spark's process of the source, as by one of a task."""
    create_queue(connection, "m")
    run(connection, "INSERT INTO m (payload) VALUES ('x')")
    frame = source(where="id + 1 = 2")  # which a SELECT takes, and a STREAM does not
    with pytest.raises(StreamingQueryException, match="PipelineError: the server says: You have an error") as caught:
        started(frame, lambda *_: None, tmp_path / "1").awaitTermination(300)
    assert "Traceback" not in str(caught.value)
    frame = source()
    run(connection, "DROP QUEUE m")
    with pytest.raises(StreamingQueryException, match="PipelineError: there is no table") as caught:
        started(frame, lambda *_: None, tmp_path / "2").awaitTermination(300)
    assert "Traceback" not in str(caught.value)


@pytest.mark.either_server
def test_a_password_is_an_option_that_no_plan_shows(
    spark: SparkSession, proxy: RunningProxy, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    run(connection, "INSERT INTO m (payload) VALUES ('x')")
    register(spark)
    with user(connection, str(endpoint.database), "SELECT", "UPDATE") as name:
        run(connection, f"ALTER USER {name}@localhost IDENTIFIED BY 'very-secret'")
        place = {"url": f"mysql://{name}@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}
        frame = spark.readStream.format("ackstream").options(**place, password="very-secret").load()
        seen: list[str] = []
        query = started(frame, lambda batch, _: seen.append(batch._jdf.queryExecution().toString()), tmp_path)
        query.awaitTermination(60)
        assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NOT NULL") == [(1,)]
        shown = [*seen, str(query.lastProgress), str(query.recentProgress), str(frame._jdf.queryExecution())]
        assert "very-secret" not in "".join(shown)
        assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"very-secret" in file.read_bytes()]


@pytest.mark.either_server
def test_progress_has_the_queues_name_and_how_many_are_ready(
    source: Callable[..., DataFrame], endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    run(connection, "INSERT INTO m (payload) VALUES ('1'), ('2'), ('3')")
    run(connection, "INSERT INTO m (payload, time_next) VALUES ('later', 9000000000000000000)")
    query = started(source(maxMessagesPerBatch=1), lambda *_: None, tmp_path)
    query.awaitTermination(60)
    reported = [source.latestOffset for progress in query.recentProgress for source in progress.sources]
    name = f'"queue": "{endpoint.database}.m"'
    assert f'{{{name}, "ready": 2, "more": false, "paused": false}}' in reported
    assert f'{{{name}, "ready": 0, "more": false, "paused": false}}' in reported


@pytest.mark.either_server
def test_the_recipe_of_effects_that_happen_once(
    source: Callable[..., DataFrame], endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    run(connection, "CREATE QUEUE m (region VARCHAR(20))")
    run(connection, "INSERT INTO m (region) VALUES ('eu'), ('eu'), ('us'), ('eu')")
    run(connection, "CREATE TABLE applied (query VARCHAR(20) PRIMARY KEY, batch BIGINT NOT NULL)")
    run(connection, "CREATE TABLE totals (region VARCHAR(20) PRIMARY KEY, count BIGINT NOT NULL)")
    names: dict[str, Any] = {"target": endpoint}
    (text,) = [block.text for block in blocks_of(SPARK_PYTHON) if "def add_totals" in block.text]
    program, _, _ = text.partition("orders.writeStream")
    exec(program, names)
    frame = source(maxMessagesPerBatch=2)

    def dies_after_its_effect(batch: DataFrame, number: int) -> None:
        names["add_totals"](batch, number)
        raise RuntimeError("the driver dies")

    with pytest.raises(StreamingQueryException):
        started(frame, dies_after_its_effect, tmp_path).awaitTermination(60)
    started(frame, names["add_totals"], tmp_path).awaitTermination(60)
    assert rows(connection, "SELECT region, count FROM totals ORDER BY region") == [("eu", 3), ("us", 1)]


@pytest.mark.either_server
def test_a_schema_that_changes_in_the_middle_of_a_query(
    source: Callable[..., DataFrame], connection: Any, tmp_path: Path
) -> None:
    """A new column is not read; a dropped one ends the query, and loses nothing."""
    create_queue(connection, "m", "item VARCHAR(20), payload VARCHAR(20)")
    run(connection, "INSERT INTO m (item, payload) VALUES ('a', '1'), ('b', '2'), ('c', '3')")
    taken: list[tuple[Any, ...]] = []

    def take(batch: DataFrame, number: int) -> None:
        taken.extend(tuple(row) for row in batch.collect())
        run(connection, ["ALTER TABLE m ADD extra INT", "ALTER TABLE m DROP COLUMN payload"][number])

    frame = source(maxMessagesPerBatch=1)
    with pytest.raises(StreamingQueryException, match="payload"):
        started(frame, take, tmp_path).awaitTermination(120)
    assert [row[1:3] for row in taken] == [("a", "1"), ("b", "2")]
    taken.clear()
    again = source(maxMessagesPerBatch=1)
    assert "extra" in again.columns
    started(again, lambda batch, _: taken.extend(tuple(row) for row in batch.collect()), tmp_path).awaitTermination(120)
    assert [row[1] for row in taken] == ["c"]
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]
