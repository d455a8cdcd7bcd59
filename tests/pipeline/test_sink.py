"""`df.writeStream` and `df.write` to `format("ackstream")`."""

from __future__ import annotations

import datetime as dt
import os
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.errors
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, StructField, StructType

from pipeline.common.table import describe
from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from pipeline.enqueue import enqueue
from pipeline.enqueue.abandon import abandon, listed
from pipeline.errors import AbandonedError, PipelineError
from pipeline.source.options import Common
from pipeline.source.sink import Sink, Written
from tests.support.queues import create_queue, rows, run

pytestmark = pytest.mark.either_server


@pytest.fixture
def place(spark: SparkSession, endpoint: Endpoint) -> dict[str, str]:
    """Options that say where the queue m is."""
    register(spark)
    return {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    """A stream of numbers from files, one batch a file; called with numbers it adds a file."""
    directory = tmp_path / "files"
    directory.mkdir()

    def stream(*numbers: int) -> DataFrame:
        if numbers:
            count = len(list(directory.iterdir()))
            text = "\n".join(map(str, numbers))
            (tmp_path / "file").write_text(text)
            (tmp_path / "file").rename(directory / f"{count}.csv")
        return spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", 1).csv(str(directory))

    return stream


def write(frame: DataFrame, place: dict[str, str], checkpoint: Path) -> None:
    """Run it until all that is there has been written."""
    query = frame.writeStream.format("ackstream").options(**place).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination(50)


def staged(connection: Any) -> list[int]:
    """How many rows wait in each staging table."""
    tables = rows(connection, "SHOW TABLES LIKE 'ackstream\\_staging\\_%'")
    return [rows(connection, f"SELECT COUNT(*) FROM {name}")[0][0] for (name,) in tables]


def test_a_stream_becomes_messages_and_nothing_is_left_behind(
    files: Callable[..., DataFrame], place: dict[str, str], connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m", "n BIGINT")
    files(*range(3_000))
    files(*range(3_000, 3_010))
    write(files(), place, tmp_path / "checkpoint")
    write(files(7), place, tmp_path / "checkpoint")
    assert rows(connection, "SELECT n FROM m ORDER BY id") == [(number,) for number in [*range(3_010), 7]]
    assert [n for (n,) in rows(connection, "STREAM n FROM m LIMIT 3 WAIT 5")] == [0, 1, 2]
    assert staged(connection) == []
    assert rows(connection, "SELECT mode, slices, messages FROM ackstream_batches") == [("query", 3, 3_011)]


def test_a_batch_that_runs_again_adds_nothing(
    files: Callable[..., DataFrame], place: dict[str, str], connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m", "n BIGINT")
    files(*range(500))
    write(files(*range(500, 1_000)), place, tmp_path / "checkpoint")
    # As after a crash between the sink's commit and Spark's: Spark does not know that the batch was written.
    (tmp_path / "checkpoint/commits/1").unlink()
    (tmp_path / "checkpoint/commits/.1.crc").unlink()
    write(files(*range(1_000, 1_500)), place, tmp_path / "checkpoint")
    assert rows(connection, "SELECT n FROM m ORDER BY n") == [(number,) for number in range(1_500)]
    assert staged(connection) == []


def test_a_batch_that_fails_leaves_no_message_and_comes_wholly_when_it_is_repeated(
    files: Callable[..., DataFrame], place: dict[str, str], connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m", "n BIGINT, UNIQUE KEY unique_n (n)")
    files(*range(1_500))
    with pytest.raises(pyspark.errors.StreamingQueryException, match="Duplicate entry"):
        write(files(*range(1_000, 2_001)), place, tmp_path / "checkpoint")
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(1_500,)]
    run(connection, "ALTER TABLE m DROP KEY unique_n")
    write(files(), place, tmp_path / "checkpoint")
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT n) FROM m") == [(2_501, 2_001)]


def test_tasks_that_are_killed_in_the_middle_stage_again(
    spark: SparkSession, place: dict[str, str], connection: Any
) -> None:
    create_queue(connection, "m", "n BIGINT")

    @f.udf("bigint", useArrow=False)
    def die_once(number: int) -> int:
        context = TaskContext.get()
        assert context is not None
        if number % 4_000 == 3_500 and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    frame = spark.range(0, 8_000, 1, 2).select(die_once("id").alias("n"))
    frame.write.format("ackstream").options(**place).mode("append").save()
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT n) FROM m") == [(8_000, 8_000)]
    assert staged(connection) == []
    assert rows(connection, "SELECT * FROM ackstream_batches") == []


def test_values_of_every_type_arrive_exactly(spark: SparkSession, place: dict[str, str], connection: Any) -> None:
    columns = (
        "t TINYINT, u BIGINT UNSIGNED, d DECIMAL(38,10), f FLOAT, g DOUBLE, a DATE, ntz DATETIME(6),"
        " ts TIMESTAMP(6) NULL, s TEXT, b BLOB, j JSON, time_of_day TIME(3), ok BOOLEAN"
    )
    create_queue(connection, "m", columns)
    instant = dt.datetime(2026, 3, 8, 6, 31, 0, 123456, dt.UTC)
    values = {
        "t": -128,
        "u": Decimal(2**64 - 1),
        "d": Decimal("-1234567890123456789012345678.0123456789"),
        "f": 0.10000000149011612,
        "g": -1.7976931348623157e308,
        "a": dt.date(9999, 12, 31),
        "ntz": dt.datetime(1000, 1, 1, 2, 3, 4, 5),  # noqa: DTZ001
        "ts": instant,
        "s": "naïve 🚀 'x' \\ %s \0",
        "b": b"\0'\xff\\",
        "j": '{"a": [1, null]}',
        "time_of_day": "-838:59:58.500",
        "ok": True,
    }
    schema = (
        "t TINYINT, u DECIMAL(20,0), d DECIMAL(38,10), f FLOAT, g DOUBLE, a DATE, ntz TIMESTAMP_NTZ, ts TIMESTAMP,"
        " s STRING, b BINARY, j STRING, time_of_day STRING, ok BOOLEAN"
    )
    frame = spark.createDataFrame([tuple(values.values()), tuple(None for _ in values)], schema)
    frame.write.format("ackstream").options(**place).mode("append").save()
    stored, nothing = rows(connection, f"SELECT {', '.join(values)} FROM m ORDER BY t IS NULL")
    assert set(nothing) == {None}
    expected = {
        **values,
        "u": 2**64 - 1,
        "f": 0.1,
        "ts": instant.replace(tzinfo=None),
        "time_of_day": -dt.timedelta(hours=838, minutes=59, seconds=58, milliseconds=500),
        "ok": 1,
    }
    for name, got in zip(expected, stored, strict=True):
        assert got == expected[name] or (name == "j" and "".join(got.split()) == '{"a":[1,null]}'), (name, got)


def test_rows_can_say_when_and_how_urgently_they_are_due(
    spark: SparkSession, place: dict[str, str], connection: Any
) -> None:
    create_queue(connection, "m")
    frame = spark.range(3).select(
        f.col("id").cast("string").alias("payload"),
        (2 - f.col("id")).alias("priority"),
        f.when(f.col("id") == 0, f.lit(9_000_000_000_000_000_000)).otherwise(f.lit(0)).alias("time_next"),
    )
    frame.write.format("ackstream").options(**place).mode("append").save()
    assert rows(connection, "STREAM payload FROM m LIMIT 3 WAIT 5") == [("2",), ("1",)]


def test_from_queue_to_queue_each_message_once(
    spark: SparkSession, place: dict[str, str], connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    create_queue(connection, "done")
    values = ", ".join(f"('p{number}')" for number in range(2_500))
    run(connection, f"INSERT INTO m (payload) VALUES {values}")
    stream = spark.readStream.format("ackstream").options(**place, maxMessagesPerBatch=1_000).load()
    out = stream.select("payload").writeStream.format("ackstream").options(**{**place, "table": "done"})
    out.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(50)
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT payload) FROM done") == [(2_500, 2_500)]


def test_a_publication_whose_answer_was_lost_is_asked_again(endpoint: Endpoint, connection: Any) -> None:
    create_queue(connection, "m", "n BIGINT")
    where = Common(endpoint, str(endpoint.database), "m")
    sink = Sink(where, describe(connection, where.database, "m"), ("n",))
    written = sink.stage(iter([pa.record_batch({"n": list(range(1_500))})]), "q", 4)
    assert written == Written("q", 4, written.attempt, 1_500)
    for _ in range(2):
        sink.publish([written])
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(1_500,)]
    sink.publish([sink.stage(iter([pa.record_batch({"n": [1]})]), "q", 5)])
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(1_501,)]


def test_rows_that_do_not_fit_are_refused_with_all_that_is_wrong(
    spark: SparkSession, place: dict[str, str], connection: Any
) -> None:
    create_queue(connection, "m", "item INT NOT NULL, twice INT AS (item * 2)")
    frame = spark.sql("SELECT 1 AS epoch, 2 AS color, 3 AS twice, array(1) AS priority")
    with pytest.raises(pyspark.errors.AnalysisException) as caught:
        frame.write.format("ackstream").options(**place).mode("append").save()
    text = str(caught.value)
    assert "epoch is the queue's own: drop it" in text
    assert "there is no column color; there are id, priority, epoch" in text
    assert "the server computes twice: drop it" in text
    assert "priority is array<int>: make it text by to_json" in text
    assert "item has no default, and there is no such column" in text
    with pytest.raises(pyspark.errors.AnalysisException, match="a queue is only added to"):
        frame.write.format("ackstream").options(**place).mode("overwrite").save()


def test_a_table_of_sparks_catalog_is_refused_with_what_to_write(spark: SparkSession, place: dict[str, str]) -> None:
    """Where Spark shows it: with all options, `saveAsTable` calls a source as `save` does."""
    writer = spark.range(3).toDF("n").write.format("ackstream").option("url", place["url"])
    with pytest.raises(pyspark.errors.AnalysisException, match=r"table: is missing .*'table', 'shop\.orders'"):
        writer.saveAsTable("t")
    options = ", ".join(f"{name} '{value}'" for name, value in place.items())
    with pytest.raises(pyspark.errors.AnalysisException, match="a queue is no table of Spark's catalog"):
        spark.sql(f"CREATE TABLE t USING ackstream OPTIONS ({options})")
    assert not spark.catalog.tableExists("t")


def test_a_boolean_for_a_text_is_refused(place: dict[str, str], endpoint: Endpoint, connection: Any) -> None:
    """The server would store 1 and 0."""
    create_queue(connection, "m", "t TEXT, n TINYINT")
    table = describe(connection, str(endpoint.database), "m")
    where = Common(endpoint, str(endpoint.database), "m")
    truth = {name: StructField(name, BooleanType()) for name in ("t", "n")}
    with pytest.raises(PipelineError, match=r"t is boolean, for a text: cast it to STRING \(true, false\) or to INT"):
        Sink.of(where, table, StructType(list(truth.values())))
    Sink.of(where, table, StructType([truth["n"]]))


# --- a batch that is written by its name ---


def named(frame: DataFrame, place: dict[str, str], batch: str) -> None:
    frame.write.format("ackstream").options(**place).option("batch", batch).mode("append").save()


def test_a_batch_of_this_name_is_written_once(spark: SparkSession, place: dict[str, str], connection: Any) -> None:
    create_queue(connection, "m", "n BIGINT")
    named(spark.range(1_000).toDF("n"), place, "b")
    # The same rows from other partitions.
    named(spark.range(999, -1, -1, 3).toDF("n"), place, "b")
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT n) FROM m") == [(1_000, 1_000)]
    ledger = "SELECT batch, mode, slices, messages, finished IS NULL FROM ackstream_batches"
    assert rows(connection, ledger) == [("b", "write", 1, 1_000, 0)]
    assert staged(connection) == []
    named(spark.range(1_000).toDF("n"), place, "c")
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT n) FROM m") == [(2_000, 1_000)]


@pytest.mark.parametrize(
    "other", ["range(999)", "range(1001)", "range(1000) WHERE id > 0 UNION ALL SELECT 7", "(SELECT NULL AS id)"]
)
def test_other_data_under_a_name_that_was_written_is_refused(
    other: str, spark: SparkSession, place: dict[str, str], connection: Any
) -> None:
    create_queue(connection, "m", "n BIGINT")
    named(spark.range(1_000).toDF("n"), place, "b")
    with pytest.raises(Exception, match=r"batch 'b' was written with other data \(1,000 messages\)"):
        named(spark.sql(f"SELECT CAST(id AS BIGINT) AS n FROM {other}"), place, "b")
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(1_000,)]
    assert staged(connection) == []


def test_a_name_of_another_kind_of_batch_is_refused(
    spark: SparkSession, place: dict[str, str], endpoint: Endpoint, connection: Any
) -> None:
    create_queue(connection, "m", "n BIGINT")
    enqueue(spark.range(10).toDF("n"), endpoint, "m", batch="b")
    with pytest.raises(pyspark.errors.PySparkException, match="batch 'b' was begun in mode streaming"):
        named(spark.range(10).toDF("n"), place, "b")
    named(spark.range(10).toDF("n"), place, "w")
    with pytest.raises(PipelineError, match="batch 'w' was begun in mode write"):
        enqueue(spark.range(10).toDF("n"), endpoint, "m", batch="w")


def test_a_write_whose_driver_died_is_written_again_or_abandoned(
    place: dict[str, str], endpoint: Endpoint, connection: Any
) -> None:
    """It died when its tasks had staged everything."""
    create_queue(connection, "m", "n BIGINT")
    where = Common(endpoint, str(endpoint.database), "m")
    sink = Sink(where, describe(connection, where.database, "m"), ("n",))
    data = [pa.record_batch({"n": list(range(1_500))})]
    for name in ("b", "c"):
        sink.writing(name).stage(iter(data), name, 0)
    assert staged(connection) == [1_500, 1_500]
    assert listed(endpoint, "m").strays == ()
    again = sink.writing("b")
    again.publish([again.stage(iter(data), "b", 0)])
    assert "its name is free" in abandon(endpoint, "m", "c")
    assert staged(connection) == []
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT n) FROM m") == [(1_500, 1_500)]


def test_of_two_writes_of_one_batch_one_adds_it_and_an_abandoned_one_adds_nothing(
    place: dict[str, str], endpoint: Endpoint, connection: Any
) -> None:
    create_queue(connection, "m", "n BIGINT")
    where = Common(endpoint, str(endpoint.database), "m")
    sink = Sink(where, describe(connection, where.database, "m"), ("n",))
    jobs = [sink.writing("b"), sink.writing("b")]
    staged_by = [job.stage(iter([pa.record_batch({"n": [1, 2]})]), "b", 0) for job in jobs]
    for _ in range(2):  # the answer to a COMMIT can get lost
        for job, written in zip(jobs, staged_by, strict=True):
            job.publish([written])
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(2,)]
    late = sink.writing("late")
    written = late.stage(iter([pa.record_batch({"n": [3]})]), "late", 0)
    abandon(endpoint, "m", "late")
    with pytest.raises(AbandonedError):
        late.publish([written])
    late.clear()
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(2,)]
    assert staged(connection) == []
