"""A TIMESTAMP is the same instant on all ways in and out, in any zone and at any turn of its clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, enqueue
from pipeline.errors import PipelineError
from tests.pipeline.conftest import ZONE
from tests.support.queues import rows, run

pytestmark = pytest.mark.either_server

MODES: tuple[Mode, ...] = ("streaming", "atomic")

ZONES = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Australia/Adelaide")

TURNS = (
    "2013-11-03T06:00:00Z",  # New York, back
    "2013-03-10T07:00:00Z",
    "2026-10-25T01:00:00Z",  # Berlin, back
    "2026-03-29T01:00:00Z",
    "2026-04-04T15:00:00Z",  # Lord Howe, back by half an hour
    "2026-10-03T15:30:00Z",
    "2026-04-04T16:30:00Z",  # Adelaide, back
    "2026-10-03T16:30:00Z",
    "1969-10-26T06:00:00Z",  # New York, back
    "2050-10-30T01:00:00Z",  # Berlin, back
)
"""When clocks are turned, in UTC."""

QUEUE = "CREATE QUEUE m (n INT NOT NULL, utc DATETIME(6), instant TIMESTAMP(6) NULL)"

STORED = """
    SELECT n, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', utc), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', instant)
    FROM m ORDER BY n
    """

Instants = list[tuple[int, int, int | None]]


@pytest.fixture
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A zone as that of the session."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", ZONE)


@pytest.fixture
def nights(spark: SparkSession) -> DataFrame:
    """Every quarter of an hour from two hours before each turn to two hours after it, and a microsecond."""
    turns = (int(datetime.fromisoformat(turn).timestamp()) for turn in TURNS)
    micros = [(turn + 900 * quarter) * 1_000_000 + 1 for turn in turns for quarter in range(-8, 9)]
    frame = spark.createDataFrame(list(enumerate(micros)), "n INT, micros LONG")
    utc = f.timestamp_micros("micros")
    taken = f.when(f.col("micros").between(1_000_000, 2_147_483_647_000_000), utc)  # what MySQL's TIMESTAMP takes
    return frame.select("n", utc.alias("utc"), taken.alias("instant"))


def in_micros(frame: DataFrame) -> Instants:
    found = frame.select("n", f.unix_micros("utc"), f.unix_micros("instant")).orderBy("n").collect()
    return [(row[0], row[1], row[2]) for row in found]


@pytest.mark.parametrize(
    ("zone", "mode"), [(zone, MODES[number % 2]) for number, zone in enumerate(ZONES)], indirect=["zone"]
)
def test_enqueue_stores_the_instant(
    zone: str, nights: DataFrame, endpoint: Endpoint, connection: Any, mode: Mode
) -> None:
    run(connection, QUEUE)
    enqueue(nights, endpoint, "m", batch=zone, mode=mode)
    assert rows(connection, STORED) == in_micros(nights)


def test_a_batch_is_the_same_in_every_zone_and_another_one_if_an_instant_differs(
    spark: SparkSession, nights: DataFrame, endpoint: Endpoint, connection: Any
) -> None:
    run(connection, QUEUE)
    try:
        added = []
        for zone in ZONES:
            spark.conf.set("spark.sql.session.timeZone", zone)
            added.append(enqueue(nights, endpoint, "m", batch="b").added)
        assert added == [True, False, False, False]
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        # The clock shows the same hour twice: 05:15 and 06:15 in UTC.
        early, late = (f.timestamp_micros(f.lit(micros)) for micros in (1_383_455_700_000_001, 1_383_459_300_000_001))
        other = nights.withColumn("utc", f.when(f.col("utc") == early, late).otherwise(f.col("utc")))
        with pytest.raises(PipelineError, match="other data"):
            enqueue(other, endpoint, "m", batch="b")
    finally:
        spark.conf.set("spark.sql.session.timeZone", ZONE)


@pytest.mark.parametrize("zone", ["Australia/Adelaide"], indirect=True)
def test_what_the_server_refuses_is_set_aside_with_its_instant(
    zone: str, spark: SparkSession, nights: DataFrame, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    run(connection, QUEUE)
    run(connection, "CREATE TRIGGER no BEFORE INSERT ON m FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
    some = nights.where("n BETWEEN 0 AND 8")
    assert enqueue(some, endpoint, "m", batch=zone, rejects=str(tmp_path)).rejected == 9
    assert in_micros(spark.read.parquet(str(tmp_path))) == in_micros(some)


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe"], indirect=True)
def test_the_sink_stores_the_instant_and_the_source_reads_it(
    zone: str, spark: SparkSession, nights: DataFrame, endpoint: Endpoint, connection: Any
) -> None:
    assert zone
    run(connection, QUEUE.replace("utc DATETIME(6)", "utc TIMESTAMP(6) NULL"))
    register(spark)
    place = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}
    taken = nights.where("instant IS NOT NULL")
    taken.write.format("ackstream").options(**place).mode("append").save()
    assert rows(connection, STORED) == in_micros(taken)
    assert in_micros(spark.read.format("ackstream").options(**place).load()) == in_micros(taken)
