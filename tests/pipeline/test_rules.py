"""Values that a column does not take, or would change without a word: all found before anything is written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.common.table import describe
from pipeline.endpoint import Endpoint
from pipeline.enqueue import enqueue
from pipeline.enqueue.load import Settings
from pipeline.errors import ProblemsError
from tests.support.queues import rows, run

SETTINGS = Settings(slice_rows=100, look_s=0.05)

# column, type, Spark's type, values that fit and are stored as they are, values that do not: each with what is said
COLUMNS: list[tuple[str, str, str, list[Any], dict[str, str]]] = [
    ("tiny", "TINYINT", "BIGINT", ["-128", "127"], {"128": "takes -128 to 127, such as 128"}),
    ("tinyu", "TINYINT UNSIGNED", "BIGINT", ["0", "255"], {"-1": "out of range", "256": "out of range"}),
    ("med", "MEDIUMINT", "BIGINT", ["-8388608"], {"8388608": "out of range"}),
    ("big", "BIGINT", "DECIMAL(20,0)", ["-9223372036854775808"], {"9223372036854775808": "out of range"}),
    ("bigu", "BIGINT UNSIGNED", "BIGINT", ["9223372036854775807"], {"-1": "out of range"}),
    ("year_", "YEAR", "BIGINT", ["0", "1901", "2155"], {"26": "takes 1901 to 2155, and 0", "2156": "out of range"}),
    ("bits", "BIT(3)", "BIGINT", ["7"], {"8": "BIT(3) takes 0 to 7", "-1": "out of range"}),
    ("price", "DECIMAL(4,1)", "DECIMAL(6,1)", ["999.9", "-999.9"], {"1000.0": "takes 3 digits before the point"}),
    ("priceu", "DECIMAL(4,1) UNSIGNED", "DECIMAL(4,1)", ["0.1"], {"-0.1": "are negative"}),
    ("dbl", "DOUBLE", "DOUBLE", ["0.1", "-1.0E308"], {"NaN": "NaN or infinite", "-Infinity": "NaN or infinite"}),
    ("dbl2", "DOUBLE", "BIGINT", ["9007199254740992"], {"9007199254740993": "cast to DOUBLE if that is meant"}),
    ("flt", "FLOAT", "DOUBLE", ["0.1", "16777216.0"], {"16777217.0": "cast to FLOAT if", "1.0E39": "up to 3.4e38"}),
    ("flt2", "FLOAT", "BIGINT", ["16777216", "-16777218"], {"16777217": "cast to FLOAT if that is meant"}),
    ("words", "VARCHAR(3)", "STRING", ["ünï"], {"abcd": "longer than the 3 characters that VARCHAR(3) takes"}),
    ("tinyt", "TINYTEXT", "STRING", ["ü" * 127], {"ü" * 128: "longer than the 255 bytes"}),
    ("latin", "VARCHAR(9) CHARACTER SET latin1", "STRING", ["naïve €"], {"π": "that latin1 cannot hold"}),
    ("narrow", "VARCHAR(9) CHARACTER SET utf8mb3", "STRING", ["π"], {"🚀": "that utf8mb3 cannot hold"}),
    (
        "kind",
        "ENUM('a','It''s','Ü')",
        "STRING",
        ["a", "It's", "Ü"],
        {"A": "none of the members", "1": "none of", "": ""},
    ),
    ("kinds", "SET('a','b')", "STRING", ["", "a", "a,b"], {"a,c": "none of the members of SET", "a,,b": "none of"}),
    (
        "doc",
        "JSON",
        "STRING",
        ['{"a": 1}', "null"],
        {"{'a': 1}": "no JSON", "{} x": "no JSON", '{"a":1,"a":2}': "twice"},
    ),
    ("day", "DATE", "DATE", ["2026-01-01", "9999-12-31"], {"+10000-01-01": "takes the years 1 to 9999"}),
    ("at0", "DATETIME", "TIMESTAMP_NTZ", ["2026-01-01 23:59:59"], {"2026-01-01 23:59:59.7": "and would be rounded"}),
    ("at3", "DATETIME(3)", "TIMESTAMP_NTZ", ["2026-01-01 23:59:59.7"], {"2026-01-01 23:59:59.7001": "rounded"}),
    (
        *("instant", "TIMESTAMP(6) NULL", "TIMESTAMP", ["1970-01-01 00:00:01Z", "2038-01-19 03:14:07.999999Z"]),
        {"1970-01-01 00:00:00Z": "out of range", "2038-01-19 03:14:08Z": "out of range: TIMESTAMP(6) takes 1970"},
    ),
    (
        *("clock", "TIME(1)", "STRING", ["-838:59:59", "1:02:03.5", "00:01"]),
        {"839:00:00": "no times from", "00:00:00.55": "at most 1 digits", "101112": "as [-]HH:MM:SS", "x": "no times"},
    ),
    ("amount", "INT CHECK (amount > 0 AND amount < 5)", "INT", ["1", "4"], {"5": "do not meet the CHECK"}),
    (
        *("time_next", "", "BIGINT", ["0", "1000", "1767225600000000000"]),
        {
            "-1": "are negative: it counts nanoseconds",
            "1767225600": "look like seconds since 1970: multiply them by 1,000,000,000",
            "1767225600000": "look like milliseconds since 1970: multiply them by 1,000,000",
            "1767225600000000": "look like microseconds since 1970: multiply them by 1,000",
            "7258118400000000000": "in the year 2200 or later",
        },
    ),
]


AS_TEXT = ("tiny", "tinyu", "med", "big", "bigu", "price", "priceu", "words", "latin", "narrow", "kind", "kinds", "day")
"""What the server shows as it was given."""


@pytest.fixture
def queue(connection: Any) -> Any:
    own = ", ".join(f"{name} {kind}" for name, kind, *_ in COLUMNS if kind)
    run(connection, f"CREATE QUEUE m ({own})")
    return connection


def frame(spark: SparkSession, cells: list[dict[str, str]]) -> DataFrame:
    """Rows with these values, and a `time_next` of 0 where there is none."""
    names = [name for name, *_ in COLUMNS]
    texts = spark.createDataFrame(
        [tuple(row.get(name, "0" if name == "time_next" else None) for name in names) for row in cells],
        ", ".join(f"{name} STRING" for name in names),
    )
    return texts.selectExpr(*[f"CAST({name} AS {kind}) AS {name}" for name, _, kind, *_ in COLUMNS])


def test_all_that_does_not_fit_is_in_one_report_with_counts_and_examples(
    endpoint: Endpoint, queue: Any, spark: SparkSession
) -> None:
    """What does not fit by its structure, too."""
    cells = [{name: value} for name, _, _, _, misfits in COLUMNS for value in misfits]
    data = frame(spark, cells).selectExpr("*", "1 AS colour")
    with pytest.raises(ProblemsError) as caught:
        enqueue(data, endpoint, "m", batch="b", settings=SETTINGS)
    problems = caught.value.problems
    unsaid = {
        (name, value, says)
        for name, *_, misfits in COLUMNS
        for value, says in misfits.items()
        if not any(says in problem and f" of {len(cells)} rows " in problem for problem in problems)
    }
    assert unsaid == set(), "\n".join(problems)
    counted: Counter[str] = Counter()
    for problem in problems:
        name, _, said = problem.partition(": ")
        if said[0].isdigit():
            counted[name] += int(said.split()[0])
    wrong = {name: len(misfits) for name, *_, misfits in COLUMNS}
    wrong["m_chk_1" if "m_chk_1" in counted else "amount"] = wrong.pop("amount")
    assert counted == wrong, "\n".join(problems)
    assert any("colour" in problem and "no such column" in problem for problem in problems)
    assert any(problem.endswith("such as 16777217") for problem in problems)
    assert any(problem.endswith("such as 26, 2156") for problem in problems)
    assert rows(queue, "SELECT COUNT(*) FROM m") == [(0,)]


def test_values_that_fit_are_stored_as_they_are(endpoint: Endpoint, queue: Any, spark: SparkSession) -> None:
    """So a rule refuses nothing that the server takes."""
    cells = [{name: value} for name, _, _, fits, _ in COLUMNS for value in fits]
    enqueue(frame(spark, cells), endpoint, "m", batch="b", settings=SETTINGS)
    assert rows(queue, "SELECT COUNT(*) FROM m") == [(len(cells),)]
    stored = {
        name: [text for (text,) in rows(queue, f"SELECT CAST({name} AS CHAR) FROM m WHERE {name} IS NOT NULL")]
        for name in AS_TEXT
    }
    assert {name: sorted(texts) for name, texts in stored.items()} == {
        name: sorted(fits) for name, _, _, fits, _ in COLUMNS if name in AS_TEXT
    }


@pytest.mark.parametrize(
    ("collation", "duplicates"), [("utf8mb4_general_ci", "(1, MULLER) and (1, Müller)"), ("utf8mb4_bin", None)]
)
def test_duplicates_are_what_the_column_s_collation_takes_for_equal(
    endpoint: Endpoint, connection: Any, spark: SparkSession, collation: str, duplicates: str | None
) -> None:
    run(
        connection,
        "CREATE QUEUE m (name VARCHAR(20) CHARACTER SET utf8mb4 COLLATE"
        f" {collation} NOT NULL, region INT NOT NULL, UNIQUE KEY (region, name))",
    )
    data = spark.createDataFrame([("Müller", 1), ("MULLER", 1), ("Müller", 2), ("x", 1)], "name STRING, region INT")
    if duplicates is None:
        assert enqueue(data, endpoint, "m", batch="b", settings=SETTINGS).added
        return
    with pytest.raises(ProblemsError) as caught:
        enqueue(data, endpoint, "m", batch="b", settings=SETTINGS)
    assert caught.value.problems[0].endswith(f"as {collation} sees it, and the data has more than once: {duplicates}")


def test_what_the_server_says_of_members_and_checks(endpoint: Endpoint, connection: Any) -> None:
    run(connection, r"CREATE TABLE t (a ENUM('It''s','B','c,d','e\\f','g''') , b SET('x','Y'), n INT CHECK (n > 1))")
    found = describe(connection, str(endpoint.database), "t")
    assert found.by_name["a"].members == ("It's", "B", "c,d", "e\\f", "g'")
    assert found.by_name["b"].members == ("x", "Y")
    assert [check.clause.strip("()") for check in found.checks] == ["`n` > 1"]
