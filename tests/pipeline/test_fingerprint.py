"""By what a batch is known again: no two different sets of rows look alike, and the order of rows does not count."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, enqueue
from pipeline.enqueue.fingerprint import Sums
from pipeline.enqueue.load import Settings
from pipeline.errors import PipelineError
from tests.support.queues import rows, run

SETTINGS = Settings(slice_rows=100, look_s=0.05)
MODES = pytest.mark.parametrize("mode", ["streaming", "atomic"])


def of(spark: SparkSession, types: str, *values: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(values), types)


VALUES = "s STRING, s2 STRING, i INT, i2 INT, n BIGINT, d DOUBLE, e FLOAT, c DECIMAL(38,4), b BINARY"

DIFFERENT: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "where NULL is": ([{"i": 5}], [{"i2": 5}]),
    "pairs": ([{"s": "x"}] * 2, [{"s": "y"}] * 2),
    "how often a row is there": ([{"s": "x"}], [{"s": "x"}] * 3),
    "an empty text and NULL": ([{"s": ""}], [{}]),
    "a text like the mark of NULL": ([{"s": "N;"}], [{}]),
    "where a text ends": ([{"s": "a", "s2": "bc"}], [{"s": "ab", "s2": "c"}]),
    "texts with lengths in them": ([{"s": "a;1:b", "s2": "c"}], [{"s": "a", "s2": "b;1:c"}]),
    "the sign of a DOUBLE's zero": ([{"d": 0.0}], [{"d": -0.0}]),
    "the sign of a FLOAT's zero": ([{"e": 0.0}], [{"e": -0.0}]),
    "NaN and NULL": ([{"d": float("nan")}], [{}]),
    "NaN and infinity": ([{"d": float("nan")}], [{"d": float("inf")}]),
    "the last bit": ([{"d": 0.1}], [{"d": 0.1 + 2**-56}]),
    "the last digit of a DECIMAL": ([{"c": Decimal(f"{10**30}.0001")}], [{"c": Decimal(f"{10**30}.0002")}]),
    "how many bytes": ([{"b": b"\0"}], [{"b": b"\0\0"}]),
    "bytes that are no text": ([{"b": b"\xff"}], [{"b": b"\xfe"}]),
    "signs": ([{"n": -1}], [{"n": 1}]),
    "the order of a map's keys as text": ([{"s": '{"a":1,"b":2}'}], [{"s": '{"b":2,"a":1}'}]),
    "values that change places": ([{"i": 1, "i2": 2}, {"i": 3, "i2": 4}], [{"i": 1, "i2": 4}, {"i": 3, "i2": 2}]),
}


def test_rows_that_differ_have_another_checksum_and_their_order_does_not_count(spark: SparkSession) -> None:
    """All of them in one job: a set of rows for each case and side, and one for each case with its rows turned."""
    schema = f"case STRING, side INT, {VALUES}"
    columns = [declared.split()[0] for declared in VALUES.split(", ")]
    table = [
        (case, side, *map(row.get, columns))
        for case, (one, other) in DIFFERENT.items()
        for side, some in enumerate((one, other, one[::-1]))
        for row in some
    ]
    frame = Sums().words(spark.createDataFrame(table, schema), columns, None)
    found = frame.groupBy("case", "side").agg(*Sums().aggregates()).collect()
    checksums = {(row["case"], row["side"]): Sums().checksum(row) for row in found}
    assert {case for case in DIFFERENT if checksums[case, 0] == checksums[case, 1]} == set()
    assert {case for case in DIFFERENT if checksums[case, 0] != checksums[case, 2]} == set()


@pytest.mark.either_server
@MODES
@pytest.mark.parametrize(
    ("types", "first", "second"),
    [
        ("a INT, b INT, c INT", (1, 5, None), (1, None, 5)),
        ("a INT, b INT, c INT", (1, 1, 1), (2, 2, 2)),
    ],
)
def test_a_batch_whose_rows_have_changed_is_refused(
    endpoint: Endpoint, connection: Any, spark: SparkSession, mode: Mode, types: str, first: Any, second: Any
) -> None:
    """Twice the same row: an exclusive or of hashes would be that of no rows."""
    run(connection, "CREATE QUEUE m (a INT, b INT, c INT)")
    assert enqueue(of(spark, types, first, first), endpoint, "m", batch="b", mode=mode, settings=SETTINGS).added
    with pytest.raises(PipelineError, match="was begun with other data"):
        enqueue(of(spark, types, second, second), endpoint, "m", batch="b", mode=mode, settings=SETTINGS)
    assert rows(connection, "SELECT a, b, c FROM m") == [first, first]
