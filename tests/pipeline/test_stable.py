"""Which frames are the same at each reading, as far as their plans tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.enqueue.stable import unstable

UNSTABLE = {
    "rand()": "rand()",
    "1 + randn(7)": "randn(7)",
    "uuid()": "uuid()",
    "java_method('java.lang.Math', 'random')": "java_method('java.lang.Math', 'random')",
    "input_file_name()": "input_file_name()",
    "current_timestamp()": "current_timestamp()",
    "upper(CAST(now() AS STRING))": "now()",
    "current_date() - 1": "current_date()",
    "hour(localtimestamp())": "localtimestamp()",
    "current_time()": "current_time(6)",
    "unix_timestamp()": "current_timestamp()",
    "(SELECT max(id) FROM range(3) WHERE rand() < 2)": "rand()",
    "EXISTS (SELECT now())": "now()",
    "CAST('now' AS TIMESTAMP)": "CAST('now' AS TIMESTAMP)",
    "date(' Today ')": "CAST(' Today ' AS DATE)",
    "to_date('yesterday UTC')": "to_date('yesterday UTC')",
}

STABLE = (
    *("'now(please)'", "'today'", "TIMESTAMP '2026-01-01 00:00:00'", "CAST('2026-01-01' AS DATE)", "date(id)"),
    *("current_user()", "current_database()", "current_timezone()", "version()", "xxhash64(id)", "id AS `rand()`"),
    *(
        "(SELECT max(id) FROM range(3))",
        "CAST(NULL AS TIMESTAMP)",
        "CAST('now' AS BINARY)",
        "transform(array(id), x -> x + 1)",
    ),
)


def test_expressions_that_may_be_other_ones_are_named(spark: SparkSession) -> None:
    found = {text: unstable(spark.range(3).selectExpr(text)) for text in UNSTABLE}
    assert found == {text: (culprit,) for text, culprit in UNSTABLE.items()}


def test_expressions_that_only_look_like_it_are_not(spark: SparkSession) -> None:
    spark_range = spark.range(3).selectExpr("CAST(id AS STRING) AS id")
    assert {text: told for text in STABLE if (told := unstable(spark_range.selectExpr(text)))} == {}


def function() -> Any:
    return f.udf(lambda value: value, "long", useArrow=False)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda frame: frame.where("rand() < 0.5"), id="filtered"),
        pytest.param(lambda frame: frame.orderBy(f.rand()), id="sorted"),
        pytest.param(lambda frame: frame.withColumn("x", f.rand()).cache().drop("x").distinct(), id="below"),
        pytest.param(lambda frame: frame.join(frame.where("now() > '2000-01-01'"), "id"), id="joined"),
        pytest.param(lambda frame: frame.select(function().asNondeterministic()("id")), id="function"),
    ],
)
def test_wherever_they_stand_in_a_plan(spark: SparkSession, change: Callable[[DataFrame], DataFrame]) -> None:
    assert unstable(spark.range(3)) == ()
    assert unstable(change(spark.range(3))) != ()


def test_a_python_function_that_claims_to_be_deterministic_is_believed(spark: SparkSession) -> None:
    assert unstable(spark.range(3).select(function()("id"))) == ()
