"""Which tables can take another one's rows, whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.catalog import Column, Index, IndexColumn, TableFacts
from engine.model import TableId
from engine.moving import NAMES_MOST, columns_to_move, obstacles
from tests.support.stores import COMMENT

SHOP, DEAD = TableId("shop", "mail"), TableId("shop", "dead")


def column(name: str, full_type: str = "bigint", extra: str = "") -> Column:
    nullable = name.startswith("time_")
    return Column(name, full_type.partition("(")[0].partition(" ")[0], nullable, 0, extra, full_type)


OWN = [column("id"), column("priority"), column("epoch"), column("time_next"), column("time_acked")]


def facts(table: TableId, *own: Column, comment: str = COMMENT) -> TableFacts:
    primary = Index("PRIMARY", unique=True, columns=(IndexColumn("id", descending=False, whole=True),))
    return TableFacts(table, comment, "InnoDB", [*OWN, *own], [primary])


def told(source: list[Column], target: list[Column]) -> str:
    return "; ".join(obstacles(facts(SHOP, *source), DEAD, facts(DEAD, *target)))


def test_all_that_is_stored_is_moved_but_the_two_times() -> None:
    source = facts(
        SHOP,
        column("Body", "json"),
        column("twice", extra="VIRTUAL GENERATED"),
        column("at", "datetime", extra="DEFAULT_GENERATED"),
        column("secret", extra="INVISIBLE"),
    )
    assert columns_to_move(source) == ("id", "priority", "epoch", "Body", "at", "secret")


def test_a_table_of_the_same_columns_takes_them_in_any_order_and_case_and_with_more_of_its_own() -> None:
    source = [column("Body", "json"), column("tenant", "int"), column("twice", extra="STORED GENERATED")]
    assert told(source, [column("reason", "text"), column("TENANT", "int"), column("body", "json")]) == ""


@pytest.mark.parametrize(
    ("target", "part"),
    [
        (None, "shop.dead does not exist"),
        (facts(SHOP), "shop.dead is the table itself"),
        (facts(DEAD, comment=""), "shop.dead is no message table"),
        (facts(DEAD, comment="vitess_message"), "shop.dead cannot be used as a queue: vt_ack_wait is missing"),
    ],
)
def test_only_another_message_table_will_do(target: TableFacts | None, part: str) -> None:
    (problem,) = obstacles(facts(SHOP), DEAD, target)
    assert problem.startswith(part)


def test_all_that_is_wrong_with_its_columns_is_told_at_once() -> None:
    source = [column("a"), column("b"), column("c", "datetime(6)"), column("d")]
    assert told(source, [column("c", "datetime"), column("d", extra="VIRTUAL GENERATED")]) == (
        "shop.dead lacks columns a, b: add what shop.mail has; "
        "shop.dead computes column d, where shop.mail stores a value: make it an ordinary column; "
        "shop.dead has another type for column c (datetime for datetime(6)): give it that of shop.mail"
    )


def test_of_many_columns_some_are_named() -> None:
    assert f"c{NAMES_MOST - 1} and 2 more" in told([column(f"c{number}") for number in range(NAMES_MOST + 2)], [])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("int", "bigint unsigned"),
        ("bigint", "tinyint"),
        ("varchar(50)", "varchar(10)"),
        ("char(10)", "varchar(10)"),
        ("char(10)", "char(5)"),
        ("text", "varchar(10)"),
        ("binary(16)", "varbinary(16)"),
        ("varbinary(20)", "longblob"),
        ("datetime(6)", "datetime(6)"),
        ("enum('a','b')", "enum('a','b')"),
    ],
)
def test_a_type_whose_values_the_server_takes_whole_or_refuses_is_fine(ours: str, theirs: str) -> None:
    assert told([column("a", ours)], [column("a", theirs)]) == ""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("datetime(6)", "datetime"),
        ("timestamp", "datetime"),
        ("double", "float"),
        ("decimal(20,5)", "decimal(20,2)"),
        ("bigint", "double"),
        ("varchar(10)", "char(10)"),
        ("varbinary(4)", "binary(8)"),
        ("blob", "text"),
        ("enum('a','b')", "enum('b','a')"),
        ("json", "longtext"),
    ],
)
def test_a_type_that_could_change_a_value_without_a_word_is_not(ours: str, theirs: str) -> None:
    assert "has another type for column a" in told([column("a", ours)], [column("a", theirs)])


def test_the_times_and_the_comment_of_the_source_do_not_matter() -> None:
    source = replace(facts(SHOP), comment="vitess_message")
    assert obstacles(source, DEAD, facts(DEAD)) == ()
