"""What a message table looks like, on either server."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.common.table import Key, describe, split_name
from pipeline.endpoint import Endpoint
from pipeline.errors import PipelineError
from tests.support.queues import run

EVERY_TYPE = {
    "tiny TINYINT": "tinyint",
    "tiny_u TINYINT UNSIGNED": "smallint",
    "small SMALLINT": "smallint",
    "medium_u MEDIUMINT UNSIGNED": "int",
    "plain INT NOT NULL": "int",
    "plain_u INT UNSIGNED": "bigint",
    "big BIGINT": "bigint",
    "big_u BIGINT UNSIGNED": "decimal(20,0)",
    "exact DECIMAL(12,3)": "decimal(12,3)",
    "wide DECIMAL(60,2)": "string",
    "single FLOAT": "float",
    "twice DOUBLE": "double",
    "bits BIT(20)": "bigint",
    "letters VARCHAR(20) NOT NULL DEFAULT 'x'": "string",
    "prose LONGTEXT": "string",
    "choice ENUM('a', 'b')": "string",
    "document JSON": "string",
    "raw BINARY(16)": "binary",
    "blob_ BLOB": "binary",
    "shape POINT": "binary",
    "day DATE": "date",
    "moment DATETIME(6)": "timestamp_ntz",
    "instant TIMESTAMP(3) NULL": "timestamp",
    "duration TIME": "string",
    "y YEAR": "int",
}


def test_every_type_has_a_spark_type_that_holds_all_of_its_values(endpoint: Endpoint, connection: Any) -> None:
    run(connection, f"CREATE TABLE m ({', '.join(EVERY_TYPE)})")
    columns = describe(connection, str(endpoint.database), "m").columns
    assert {column.name: column.spark_type.simpleString() for column in columns} == {
        column.split()[0]: spark_type for column, spark_type in EVERY_TYPE.items()
    }
    assert [column.name for column in columns if not column.nullable] == ["plain", "letters"]


def test_what_an_insert_must_name_is_known(endpoint: Endpoint, connection: Any) -> None:
    run(
        connection,
        "CREATE TABLE m (id INT NOT NULL AUTO_INCREMENT, a INT NOT NULL, b INT NOT NULL DEFAULT 1, c INT,"
        " d INT GENERATED ALWAYS AS (a + 1) STORED, e BIGINT NOT NULL DEFAULT (1 + 1), PRIMARY KEY (id),"
        " UNIQUE KEY u (a, c), UNIQUE KEY part (b, a))",
    )
    table = describe(connection, str(endpoint.database), "m")
    assert [column.name for column in table.columns if column.required] == ["a"]
    assert [column.name for column in table.columns if column.generated] == ["d"]
    assert [column.name for column in table.columns if column.auto_increment] == ["id"]
    assert set(table.unique_keys) == {Key("PRIMARY", ("id",)), Key("u", ("a", "c")), Key("part", ("b", "a"))}
    assert table.by_name["a"].integer_range == (-(2**31), 2**31 - 1)


def test_a_key_over_a_prefix_says_nothing_about_whole_values(endpoint: Endpoint, connection: Any) -> None:
    run(connection, "CREATE TABLE m (a VARCHAR(100), UNIQUE KEY u (a(3)))")
    assert describe(connection, str(endpoint.database), "m").unique_keys == ()


def test_a_queue_made_here_is_known_as_one(endpoint: Endpoint, connection: Any) -> None:
    run(connection, "CREATE QUEUE m (body TEXT)")
    table = describe(connection, str(endpoint.database), "m")
    assert table.is_queue
    assert table.message_columns == ("id", "body")
    run(connection, "CREATE TABLE plain (id INT) COMMENT 'not a vitess_messages table'")
    assert not describe(connection, str(endpoint.database), "plain").is_queue


def test_a_table_that_is_not_there_is_said_to_be_missing(endpoint: Endpoint, connection: Any) -> None:
    with pytest.raises(PipelineError, match=rf"no table `{endpoint.database}`\.`none`"):
        describe(connection, str(endpoint.database), "none")


def test_names_of_tables() -> None:
    assert split_name("d.t") == ("d", "t")
    assert split_name("t", "d") == ("d", "t")
    assert split_name("`my db`.`a``.b`") == ("my db", "a`.b")
    for wrong in ("", "a.b.c", "a b", "a.", ".a", "`a"):
        with pytest.raises(PipelineError):
            split_name(wrong, "d")
    with pytest.raises(PipelineError, match="has no database"):
        split_name("t")
