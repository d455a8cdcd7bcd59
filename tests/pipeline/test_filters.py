"""Filters of Spark that the server evaluates in a batch read: it sends fewer rows, and Spark has the same ones."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThanOrEqual,
    Not,
    StringContains,
)

from pipeline.common.table import describe
from pipeline.datasource import PUSHDOWN, register
from pipeline.endpoint import Endpoint
from pipeline.source.consume import FilteredReader
from pipeline.source.filters import pushed
from pipeline.source.options import SourceOptions
from tests.support.queues import create_queue, run

pytestmark = pytest.mark.either_server

COLUMNS = (
    "n INT, big BIGINT UNSIGNED, price DECIMAL(12,2), ok BOOLEAN, name VARCHAR(20) CHARACTER SET utf8mb4,"
    " old VARCHAR(20) CHARACTER SET latin1, code CHAR(4), day DATE, at DATETIME(6), seen TIMESTAMP(6) NULL,"
    " share DOUBLE, data JSON"
)
ROWS = r"""
(1, 18446744073709551615, 1.50, TRUE, 'tea', 'naïve', 'a', '2026-01-01', '2026-01-01 10:00:00.000001', '2025-11-02 04:00:00', 0.1, '1')
(-2, 9223372036854775808, -1.50, FALSE, 'TEA', 'NAIVE', 'A ', '2026-01-02', '2026-01-01 10:00:00', '2025-11-02 05:00:00', 0.2, '"1"')
(3, 0, 0, NULL, 'tea ', '', '', '0000-00-00', '0000-00-00', NULL, -0.0, '{}')
(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
(5, 7, 100, TRUE, 'it''s \\ %', 'x', 'y_', '9999-12-31', '2026-02-31', '2038-01-19 03:14:07', 1, 'true')
"""  # noqa: E501

CONDITIONS = [
    "n = 1", "n <> 1", "NOT n <=> 1", "n IN (1, 5, NULL)", "n NOT IN (1, 5)", "n > -2 AND n <= 3", "n IS NULL",
    "big = 18446744073709551615", "big > 9223372036854775807", "price = 1.5", "price < 1.505", "price <> 0",
    "ok = 1", "ok <> 1", "name = 'tea'", "name <> 'tea'", "name IN ('TEA', 'x')", "name NOT IN ('tea')", "name > 'a'",
    "name = 'it\\'s \\\\ %'", "name LIKE 'te%'", "name IS NOT NULL", "name <=> NULL", "old = 'naïve'", "old = '🚀'",
    "code = 'a'", "code = 'A'", "day = DATE'2026-01-01'", "day IS NULL", "day IS NOT NULL", "day < DATE'2026-01-02'",
    "NOT day <=> DATE'2026-01-01'", "NOT day <=> NULL", "at > TIMESTAMP_NTZ'2026-01-01 10:00:00'", "at IS NULL",
    "at <> TIMESTAMP_NTZ'2026-01-01 10:00:00'", "seen = TIMESTAMP'2025-11-02 05:00:00Z'", "share = 0.1", "share = 0",
    "seen < TIMESTAMP'2038-01-19 03:14:07Z'", "data = '1'", "n = 1 OR name = 'TEA'", "id BETWEEN 2 AND 4 AND epoch = 0",
]  # fmt: skip


@pytest.fixture
def reading(spark: SparkSession, endpoint: Endpoint, connection: Any) -> Iterator[Callable[..., DataFrame]]:
    """A batch read of the queue m, which has ROWS."""
    create_queue(connection, "m", COLUMNS)
    run(connection, "SET sql_mode = 'ALLOW_INVALID_DATES'")
    names = ["n", "big", "price", "ok", "name", "old", "code", "day", "at", "seen", "share", "data"]
    for row in ROWS.strip().splitlines():
        run(connection, f"INSERT INTO m ({', '.join(names)}) VALUES {row}")
    register(spark)
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    yield lambda **options: spark.read.format("ackstream").options(**{"url": url, "table": "m", **options}).load()
    spark.conf.unset(PUSHDOWN)


def test_a_filter_that_the_server_evaluates_has_the_same_rows(
    spark: SparkSession, reading: Callable[..., DataFrame]
) -> None:
    everything = spark.createDataFrame(reading().collect(), reading().schema).cache()
    wrong = {}
    for condition in CONDITIONS:
        got = sorted(row.id for row in reading().where(condition).collect())
        wanted = sorted(row.id for row in everything.where(condition).collect())
        if got != wanted:
            wrong[condition] = (got, wanted)
    assert wrong == {}


def test_a_plan_shows_the_filters_that_spark_leaves_to_the_server(
    reading: Callable[..., DataFrame], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = reading().where("n = 1 AND name = 'tea'")
    frame.explain()
    plan = capsys.readouterr().out
    # Of texts the server has more, because it compares by a collation. So Spark evaluates this filter again.
    assert re.findall(r"Filter (.*)", re.sub(r"#\d+", "", plan)) == ["(name = tea)"]
    spark.conf.set(PUSHDOWN, "false")
    assert [row.n for row in reading().where("n = 1").collect()] == [1]


def test_a_task_asks_for_what_was_pushed(reading: Callable[..., DataFrame], endpoint: Endpoint) -> None:
    schema = reading().schema
    with endpoint.connect() as connection:
        table = describe(connection, str(endpoint.database), "m")
    reader = FilteredReader(SourceOptions(endpoint, table.database, "m", where="id < 5"), table, schema)
    filters: list[Filter] = [EqualTo(("name",), "tea"), GreaterThan(("n",), 0), StringContains(("name",), "e")]
    assert list(reader.pushFilters(filters)) == [filters[0], filters[2]]
    (part,) = reader.partitions()
    assert "(id < 5) AND (`name` = 'tea') AND (`n` > 0) AND time_acked IS NULL" in part.value[0]
    received = [row["n"] for batch in reader.read(part) for row in batch.to_pylist()]
    assert received in ([1], [1, 3])  # MariaDB's collation ignores the space of 'tea '.


@pytest.mark.parametrize(
    ("given", "condition", "exact"),
    [
        (EqualTo(("n",), 1), "(`n` = 1)", True),
        (EqualTo(("N",), 1), "(`n` = 1)", True),
        (Not(EqualNullSafe(("n",), 1)), "(NOT `n` <=> 1)", True),
        (Not(In(("n",), (1, -2))), "(NOT `n` IN (1, -2))", True),
        (LessThanOrEqual(("price",), Decimal("1E+2")), "(`price` <= 100)", True),
        (IsNull(("n",)), "(`n` IS NULL)", True),
        (IsNotNull(("name",)), "(`name` IS NOT NULL)", True),
        (IsNotNull(("day",)), "(`day` IS NOT NULL)", False),
        (In(("name",), ("a", "it's")), r"(`name` IN ('a', 'it\'s'))", False),
        (EqualTo(("ok",), 1), "(`ok` = 1)", True),
        (GreaterThan(("day",), dt.date(2026, 1, 2)), "(`day` > DATE'2026-01-02')", False),
        (
            EqualTo(("seen",), dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=-5)))),
            "(`seen` = TIMESTAMP'2026-01-02 08:00:00.000000')",
            False,
        ),
        # What the server would find fewer of.
        (Not(EqualTo(("name",), "tea")), None, False),
        (GreaterThan(("name",), "tea"), None, False),
        (IsNull(("day",)), None, False),
        # What it compares in another way.
        (EqualTo(("share",), 0.1), None, False),
        (EqualTo(("data",), "1"), None, False),
        (EqualTo(("n",), None), None, False),
        (In(("n",), (1, None)), None, False),
        (EqualTo(("n", "m"), 1), None, False),
        (EqualTo(("nowhere",), 1), None, False),
        (StringContains(("name",), "e"), None, False),
    ],
    ids=str,
)
def test_what_is_pushed(
    reading: Callable[..., DataFrame],
    connection: Any,
    endpoint: Endpoint,
    given: Filter,
    condition: str | None,
    exact: bool,
) -> None:
    table = describe(connection, str(endpoint.database), "m")
    found = pushed(given, table)
    assert (found and found.condition, found is not None and found.exact) == (condition, exact)
