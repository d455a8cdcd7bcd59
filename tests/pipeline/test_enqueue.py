"""DataFrames into message tables: what arrives, what is refused, and that nothing arrives twice."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.common.ledger import WITHHELD_NS
from pipeline.common.progress import Progress
from pipeline.common.statements import NOW as NOW_NS
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, Outcome, enqueue
from pipeline.enqueue.load import Settings
from pipeline.errors import JobError, PipelineError, ProblemsError
from tests.support.queues import create_queue, rows, run

pytestmark = pytest.mark.either_server

SMALL_SLICES = Settings(slice_rows=100, look_s=0.05)
MODES: tuple[Mode, ...] = ("streaming", "atomic")

Enqueue = Callable[..., Outcome]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def fill(endpoint: Endpoint, mode: Mode) -> Enqueue:
    """Enqueue in this mode, in slices small enough that there are many."""

    def call(frame: DataFrame, table: str = "m", **options: Any) -> Outcome:
        return enqueue(frame, endpoint, table, **{"batch": "b", "mode": mode, "settings": SMALL_SLICES, **options})

    return call


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    """A thousand messages, every tenth of them twice."""
    return spark.range(1000).select(f.format_string("order %d", f.col("id") % 900).alias("payload"))


def payloads(connection: Any, table: str = "m") -> Counter[str]:
    return Counter(payload for (payload,) in rows(connection, f"SELECT payload FROM {table}"))


QUEUE = "CREATE QUEUE m (payload VARCHAR(100))"

ORDERS = Counter(f"order {number % 900}" for number in range(1000))


def nothing_is_left_over(connection: Any) -> bool:
    tables = {name for (name,) in rows(connection, "SHOW TABLES")}
    return not any(name.startswith("ackstream_staging") for name in tables) and not rows(
        connection, "SELECT 1 FROM ackstream_slices"
    )


def test_every_row_becomes_a_message_that_is_due(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    run(connection, "CREATE QUEUE m (payload VARCHAR(100) NOT NULL)")
    outcome = fill(orders)
    assert (outcome.messages, outcome.added) == (1000, True)
    assert payloads(connection) == ORDERS
    assert rows(
        connection, f"SELECT COUNT(*) FROM m WHERE time_next <= {NOW_NS} AND time_acked IS NULL AND epoch = 0"
    ) == [(1000,)]
    assert nothing_is_left_over(connection)
    assert len(rows(connection, "STREAM id, payload FROM m NOWAIT")) == 1000


def test_the_same_batch_again_adds_nothing(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    run(connection, "CREATE QUEUE m (payload VARCHAR(100))")
    fill(orders)
    run(connection, "ACK m WHERE TRUE")
    outcome = fill(orders.repartition(7))
    assert (outcome.messages, outcome.added) == (1000, False)
    assert payloads(connection) == ORDERS
    assert fill(orders, batch="another").added
    assert payloads(connection) == ORDERS + ORDERS


def test_a_column_without_values_goes_anywhere(fill: Enqueue, connection: Any, spark: SparkSession) -> None:
    """A reader of CSV files takes such a column for text."""
    run(connection, "CREATE QUEUE m (n INT, day DATE, raw BLOB, payload VARCHAR(100))")
    none = "CAST(NULL AS STRING)"
    frame = spark.sql(f"SELECT {none} AS n, {none} AS day, {none} AS raw, 'x' AS payload FROM range(3)")
    fill(frame)
    assert rows(connection, "SELECT n, day, raw, payload FROM m") == [(None, None, None, "x")] * 3
    with pytest.raises(ProblemsError, match=r"STRING does not go into INT.*: cast it"):
        fill(frame.withColumn("n", f.lit("5")), batch="other")


def test_a_batch_of_other_data_needs_another_name(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    run(connection, "CREATE QUEUE m (payload VARCHAR(100))")
    fill(orders)
    with pytest.raises(PipelineError, match=r"batch 'b' was begun with other data \(1,000 messages\)"):
        fill(orders.limit(999))
    assert payloads(connection) == ORDERS


def test_a_batch_of_no_rows(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    run(connection, "CREATE QUEUE m (payload VARCHAR(100))")
    assert fill(orders.where("false")).messages == 0
    assert not fill(orders.where("false")).added
    assert nothing_is_left_over(connection)


def test_ids_of_the_applications_own(fill: Enqueue, connection: Any, spark: SparkSession) -> None:
    run(connection, "CREATE QUEUE m (id VARBINARY(16) NOT NULL PRIMARY KEY, payload VARCHAR(100))")
    frame = spark.range(500).select(f.unhex(f.md5(f.col("id").cast("string"))).alias("id"), f.lit("x").alias("payload"))
    fill(frame)
    fill(frame)
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT id), MAX(time_next) FROM m")[0][:2] == (500, 500)
    assert rows(connection, f"SELECT COUNT(*) FROM m WHERE time_next >= {WITHHELD_NS}") == [(0,)]


def test_every_type_arrives_as_it_was(fill: Enqueue, connection: Any, spark: SparkSession) -> None:
    run(
        connection,
        "CREATE QUEUE m (small TINYINT UNSIGNED, big BIGINT UNSIGNED, exact DECIMAL(20,4), twice DOUBLE, flag BOOLEAN,"
        " words TEXT CHARACTER SET utf8mb4, doc JSON, raw VARBINARY(20), day DATE, instant TIMESTAMP(6) NULL,"
        " utc DATETIME(6), zoneless DATETIME(6), nothing INT)",
    )
    frame = spark.sql(
        """
        SELECT 255S AS small, 18446744073709551615BD AS big, 12345.6789BD AS exact, 0.1D AS twice, true AS flag,
          'naïve 🚀 \\'x\\' \\\\' AS words, '{"a": [1]}' AS doc, X'00FF5C27' AS raw, DATE '2026-03-08' AS day,
          TIMESTAMP '2026-03-08 07:30:00.123456+00:00' AS instant,
          TIMESTAMP '2026-03-08 07:30:00.123456+00:00' AS utc,
          TIMESTAMP_NTZ '2026-03-08 02:30:00.5' AS zoneless, NULL AS nothing
        """
    )
    fill(frame)
    (found,) = rows(
        connection,
        "SELECT small, big, exact, twice, flag, words, doc, raw, day, CAST(instant AS CHAR), CAST(utc AS CHAR),"
        " CAST(zoneless AS CHAR), nothing FROM m",
    )
    found = (*found[:6], json.loads(found[6]), *found[7:])
    assert found == (
        255,
        2**64 - 1,
        Decimal("12345.6789"),
        0.1,
        1,
        "naïve 🚀 'x' \\",
        {"a": [1]},
        b"\x00\xff\x5c\x27",
        dt.date(2026, 3, 8),
        "2026-03-08 07:30:00.123456",
        "2026-03-08 07:30:00.123456",
        "2026-03-08 02:30:00.500000",  # an hour that this JVM's zone skipped
        None,
    )


def test_a_mapping_says_what_goes_where(fill: Enqueue, connection: Any, spark: SparkSession) -> None:
    run(connection, "CREATE QUEUE m (`the user` INT, doc JSON)")
    frame = spark.range(4).withColumn("name", f.lit("n"))
    mapping = {
        "the user": "id * 10",
        "doc": f.to_json(f.struct("id", "name")),
        "priority": "CAST(id % 2 AS INT)",
        "time_next": "TIMESTAMP '2030-01-01 00:00:00+00:00' + make_interval(0, 0, 0, 0, 0, 0, id)",
    }
    fill(frame, mapping=mapping)
    found = rows(connection, "SELECT `the user`, doc, priority, time_next FROM m ORDER BY `the user`")
    new_year = 1_893_456_000_000_000_000
    assert [(user, json.loads(doc)["id"], priority, time) for user, doc, priority, time in found] == [
        (number * 10, number, number % 2, new_year + number * 1_000_000_000) for number in range(4)
    ]


def test_a_spread_is_even_and_begins_now(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    run(connection, "CREATE QUEUE m (payload VARCHAR(100))")
    ((before,),) = rows(connection, f"SELECT {NOW_NS}")
    fill(orders, spread_s=1000.0)
    ((after,),) = rows(connection, f"SELECT {NOW_NS}")
    times = [time for (time,) in rows(connection, "SELECT time_next FROM m ORDER BY time_next")]
    second = 1_000_000_000
    assert before <= times[0]
    assert times[-1] < after + 1000 * second
    per_tenth = Counter((time - times[0]) // (100 * second) for time in times)
    assert all(85 <= per_tenth[tenth] <= 115 for tenth in range(10))


def test_what_neither_the_data_nor_the_table_says_is_filled(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    run(
        connection,
        "CREATE TABLE m (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL, epoch BIGINT NOT NULL,"
        " time_next BIGINT, time_acked BIGINT, payload VARCHAR(100) NOT NULL, strict_ JSON NOT NULL,"
        " KEY next_idx (time_acked, priority, time_next)) COMMENT 'vitess_message,vt_ack_wait=30,vt_purge_after=86400,"
        "vt_batch_size=100,vt_cache_size=10000,vt_poller_interval=30'",
    )
    fill(orders.withColumn("strict_", f.lit("{}")))
    assert rows(connection, "SELECT DISTINCT priority, epoch FROM m") == [(0, 0)]
    assert payloads(connection) == ORDERS


def test_everything_that_is_wrong_is_said_at_once_and_nothing_is_written(
    fill: Enqueue, connection: Any, spark: SparkSession
) -> None:
    run(
        connection,
        "CREATE QUEUE m (user_id DECIMAL(30) NOT NULL, amount DECIMAL(6,2), body TEXT, tags TEXT,"
        " twin DECIMAL(30) AS (user_id) STORED)",
    )
    frame = spark.sql("SELECT 'u' AS user, 1.5D AS amount, array('a') AS tags, 7L AS twin, 1 AS epoch, 1 AS colour")
    with pytest.raises(ProblemsError) as caught:
        fill(frame.drop("user"))
    database = rows(connection, "SELECT DATABASE()")[0][0]
    assert sorted(caught.value.problems) == [
        "amount: DOUBLE does not go into DECIMAL(6,2): cast it",
        f"colour: {database}.m has no such column",
        "epoch: is the queue's own, and counts deliveries and begins at 0",
        "tags: ARRAY<STRING> does not go into TEXT: to_json() makes a text of it",
        "twin: is generated by the table itself",
        "user_id: needs a value (decimal(30,0), NOT NULL, without a default) and gets none",
    ]
    with pytest.raises(ProblemsError, match="user_id: 'nobody' cannot be computed"):
        fill(frame, mapping={"user_id": "nobody", "body": "user"})
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(0,)]
    assert [name for (name,) in rows(connection, "SHOW TABLES")] == ["m"]


def test_values_that_do_not_fit_are_found_before_anything_is_written(
    fill: Enqueue, connection: Any, spark: SparkSession
) -> None:
    run(
        connection,
        "CREATE QUEUE m (id INT NOT NULL PRIMARY KEY, small SMALLINT, name VARCHAR(3) NOT NULL, raw BINARY(2),"
        " price DECIMAL(4,1), code INT, UNIQUE KEY (code))",
    )
    frame = spark.sql(
        """
        SELECT IF(id > 5, 5, id) AS id, 40000 * id AS small, IF(id = 3, NULL, 'ünï') AS name, X'000102' AS raw,
          CAST(1000 * id AS DECIMAL(6,1)) AS price, CAST(IF(id < 4, NULL, id) AS INT) AS code,
          IF(id = 2, NULL, id) AS time_next
        FROM range(8)
        """
    )

    prices = "1000.0 (id 1), 7000.0 (id 5)"
    with pytest.raises(ProblemsError) as caught:
        fill(frame)
    # MariaDB says how wide a number is shown.
    assert sorted(problem.replace("INT(6)", "INT") for problem in caught.value.problems) == [
        "id: must be unique, and the data has more than once: 5",
        "name: 1 of 8 rows have NULL, and the column is NOT NULL, such as id 3",
        f"price: 7 of 8 rows are out of range: DECIMAL(4,1) takes 3 digits before the point, such as {prices}",
        "raw: 8 of 8 rows are longer than the 2 bytes that BINARY(2) takes, such as id 0, id 5",
        "small: 7 of 8 rows are out of range: SMALLINT takes -32,768 to 32,767, such as 40000 (id 1), 280000 (id 5)",
        "time_next: 1 of 8 rows have NULL, and without a time no message is delivered, such as id 2",
    ]
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(0,)]


def test_without_checks_the_server_alone_refuses_what_does_not_fit(
    fill: Enqueue, connection: Any, spark: SparkSession
) -> None:
    run(connection, "CREATE QUEUE m (n TINYINT, x FLOAT)")
    unchecked = replace(SMALL_SLICES, check="off", rounds=1)
    frame = spark.sql("SELECT id AS n, 16777217 AS x FROM range(2)")
    fill(frame, settings=unchecked)
    assert rows(connection, "SELECT n, x = 16777216 FROM m ORDER BY n") == [(0, 1), (1, 1)]
    with pytest.raises(JobError, match="Out of range value for column 'n'"):
        fill(frame.withColumn("n", f.lit(1000)), batch="other", settings=unchecked)
    with pytest.raises(ProblemsError, match="x: 2 of 2 rows would be changed without a word"):
        fill(frame, batch="another")
    with pytest.raises(PipelineError, match="the check is all, sample or off, not 'some'"):
        fill(frame, batch="another", settings=replace(unchecked, check="some"))  # type: ignore[arg-type]


def test_of_a_sample_one_row_of_a_hundred_is_checked(fill: Enqueue, connection: Any, spark: SparkSession) -> None:
    run(connection, "CREATE QUEUE m (payload VARCHAR(10))")
    sampled = replace(SMALL_SLICES, check="sample", rounds=1)
    long = spark.range(0, 1_000, numPartitions=1).select(f.lit("x" * 11).alias("payload"))
    with pytest.raises(ProblemsError, match="payload: 10 of 10 rows are longer"):
        fill(long, settings=sampled)
    some = spark.range(0, 1_000, numPartitions=1).select(
        f.when(f.col("id") % 100 == 7, f.lit("x" * 11)).otherwise("x").alias("payload")
    )
    with pytest.raises(JobError, match="Data too long for column 'payload'"):
        fill(some, batch="other", settings=sampled)


def test_data_that_is_other_at_each_reading_is_refused(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    """Wherever it stands: as the 31st column, too."""
    own = [f"c{number}" for number in range(30)]
    run(connection, f"CREATE QUEUE m ({', '.join(f'{name} INT' for name in own)}, payload VARCHAR(100))")
    mapping = {**dict.fromkeys(own, "1"), "payload": "CAST(current_timestamp() AS STRING)"}
    with pytest.raises(ProblemsError, match=r"not the same at each reading \(current_timestamp\(\)\)"):
        fill(orders, mapping=mapping)
    assert fill(orders, mapping={**mapping, "payload": "'now(please)'"}).added


def test_a_table_that_is_no_queue_is_left_alone(fill: Enqueue, connection: Any, orders: DataFrame) -> None:
    run(connection, "CREATE TABLE m (payload VARCHAR(100))")
    with pytest.raises(PipelineError, match="is no message table"):
        fill(orders)


def test_ids_that_are_taken_already(fill: Enqueue, mode: Mode, connection: Any, spark: SparkSession) -> None:
    create_queue(connection, "m")
    run(connection, "INSERT INTO m (id, payload) VALUES (250, 'there before')")
    frame = spark.range(1, 501).withColumn("payload", f.lit("new"))
    with pytest.raises(JobError, match="Duplicate entry '250'"):
        fill(frame, settings=Settings(slice_rows=100, look_s=0.05, rounds=1))
    if mode == "atomic":
        assert rows(connection, "SELECT payload FROM m") == [("there before",)]
    run(connection, "DELETE FROM m WHERE payload = 'there before'")
    fill(frame)
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT id) FROM m") == [(500, 500)]


def test_progress_is_told(fill: Enqueue, mode: Mode, connection: Any, orders: DataFrame) -> None:
    run(connection, "CREATE QUEUE m (payload VARCHAR(100))")
    told: list[Progress] = []
    fill(orders, report=told.append)
    assert told[0] == Progress("checking", 0, 0)
    assert told[1] == Progress("enqueueing" if mode == "streaming" else "staging", 0, 1000), (
        "before anything is written"
    )
    assert told[-1] == Progress("enqueueing" if mode == "streaming" else "publishing", 1000, 1000)
    assert [progress.done for progress in told] == sorted(progress.done for progress in told) or mode == "atomic"


def test_writers_are_bounded_by_the_connections_of_the_job(
    fill: Enqueue, connection: Any, orders: DataFrame, spark: SparkSession
) -> None:
    """With two cores and two connections, one task writes at a time."""
    run(connection, "CREATE QUEUE m (payload VARCHAR(100))")
    fill(orders, settings=Settings(slice_rows=100, look_s=0.05, max_connections=2))
    assert payloads(connection) == ORDERS
    assert nothing_is_left_over(connection)
