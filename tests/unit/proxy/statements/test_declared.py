"""What a CREATE QUEUE declares is judged as the server would make it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.catalog.directives import OPTIONS
from proxy.statements.declared import problems_of
from sqlrewrite.queue_statements import CreateQueue
from sqlrewrite.queues import parse_queue_statement
from tests.support.queues import directives


def problems(definitions: str, engine: str = "InnoDB", **changed: str) -> str:
    statement = parse_queue_statement(f"CREATE QUEUE q {definitions}".encode(), OPTIONS)
    assert isinstance(statement, CreateQueue)
    statement = replace(statement, table=replace(statement.table, db="shop"))
    return "; ".join(problems_of(statement, directives(**changed), statement.engine or engine))


@pytest.mark.parametrize(
    "definitions",
    [
        "",
        "()",
        "(a INT, b TEXT)",
        "(id BINARY(16), note TEXT)",
        "(id VARCHAR(9) UNIQUE, a INT, PRIMARY KEY (a, id))",
        "(id SERIAL)",
        "(priority SMALLINT UNSIGNED, epoch INT8, time_next BIGINT(20) UNSIGNED NULL, time_acked bigint)",
        "(`priority` /* lower first */ BOOLEAN DEFAULT (1 + 1), Epoch BigInt COMMENT 'AS')",
        "(priority INTEGER AS (a + 1) STORED, a MIDDLEINT)",
        "(id INT, a INT) PARTITION BY HASH (id) PARTITIONS 3",
        "(id INT, a INT) RETENTION BY PARTITION",
        "(id INT NOT NULL, KEY (id, a), a INT) PARTITION BY RANGE (time_acked) (PARTITION p VALUES LESS THAN MAXVALUE)",
        "(a INT, PRIMARY KEY (id, a), UNIQUE (id)) ENGINE = 'innodb' ROW_FORMAT = DYNAMIC",
    ],
)
def test_what_can_be_a_queue_is_no_problem(definitions: str) -> None:
    assert problems(definitions) == ""


@pytest.mark.parametrize(
    ("definitions", "problem"),
    [
        ("(priority VARCHAR(9))", "column priority is VARCHAR"),
        ("(epoch INT)", "column epoch is INT"),
        ("(time_next DATETIME)", "column time_next is DATETIME"),
        ("(time_acked BIGINT NOT NULL)", "column time_acked is NOT NULL"),
        ("(PRIMARY KEY (id, time_acked))", "column time_acked is NOT NULL"),
        ("(epoch BIGINT GENERATED ALWAYS AS (1))", "column epoch is generated"),
        ("(id INT NULL) RETENTION BY PARTITION", "column id may be NULL"),
        ("(id INT) PARTITION BY RANGE (time_acked) (PARTITION p VALUES LESS THAN MAXVALUE)", "column id may be NULL"),
        ("(a INT) ENGINE = MyISAM", "only InnoDB"),
        ("(a INT) ENGINE `Aria` MAX_RATE 5", "only InnoDB"),
    ],
)
def test_what_could_be_no_queue_is_refused_with_the_reason(definitions: str, problem: str) -> None:
    assert problem in problems(definitions)


def test_the_servers_own_storage_engine_counts_where_none_is_named() -> None:
    assert "MyISAM" in problems("(a INT)", engine="MyISAM")
    assert problems("(a INT) ENGINE = InnoDB", engine="MyISAM") == ""


def test_columns_are_named_as_they_are_written() -> None:
    assert problems("(`Größe` INT)", vt_message_cols="id|größe") == ""
    assert "'b', which the table does not have" in problems("(a INT)", vt_message_cols="id|b")
