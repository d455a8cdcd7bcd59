"""The tables that ackstream itself makes: their versions, and how another table of the name differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.catalog.own_tables import GROUP_RATES_TABLE, LIMITS_TABLE, OWN_TABLES, PREFIX, OwnTable, version_of
from engine.catalog.verdict import Column, Index, IndexColumn, TableFacts
from engine.model import TableId
from engine.queue_table import Policy

POLICY = Policy(1, 1, 1, 1, 1, 1)
LATER = replace(LIMITS_TABLE, upgrades=("limits_to_2", "limits_to_3"))
PLACE = TableId("shop", "t")


def facts_of(own: OwnTable, comment: str | None = None) -> TableFacts:
    """The description of a table as ackstream makes it."""
    columns = [
        Column(column.name, column.data_type, nullable=False, length_chars=column.length_chars, extra="")
        for column in own.columns
    ]
    described = [
        replace(column, collation=own_column.collation) for column, own_column in zip(columns, own.columns, strict=True)
    ]
    key = Index("PRIMARY", unique=True, columns=tuple(IndexColumn(name, False, True) for name in own.key))
    return TableFacts(PLACE, own.comment() if comment is None else comment, "InnoDB", described, [key])


@pytest.mark.parametrize("name", sorted(OWN_TABLES))
def test_the_comment_of_a_table_names_its_version(name: str) -> None:
    own = OWN_TABLES[name]
    assert own.comment().startswith(PREFIX)
    assert version_of(own.comment()) == own.version
    assert own.problem(PLACE, facts_of(own)) is None


def test_a_table_of_a_release_without_versions_has_the_first_one() -> None:
    comment = "ackstream: the locks of the queues"
    assert version_of(comment) == 1
    assert LIMITS_TABLE.problem(PLACE, facts_of(LIMITS_TABLE, comment)) is None


@pytest.mark.parametrize(
    ("version", "end"),
    [
        (1, "this program uses version 3: run ackstream migrate"),
        (4, "this program uses version 3: use a newer ackstream"),
    ],
)
def test_another_version_is_refused_with_the_remedy(version: int, end: str) -> None:
    assert LATER.problem(PLACE, facts_of(LATER, LATER.comment(version))) == f"shop.t has version {version}, {end}"


MADE = facts_of(GROUP_RATES_TABLE)
QUEUE, HASH, FULL = MADE.columns
KEY = MADE.indexes[0]


@pytest.mark.parametrize(
    ("facts", "difference"),
    [
        (None, "it is a view"),
        (replace(MADE, comment="VIEW"), "its comment does not begin with ackstream:"),
        (replace(MADE, engine="MRG_MyISAM"), "its storage engine is MRG_MyISAM"),
        (replace(MADE, columns=[QUEUE, HASH]), "its column full_ns is missing or differs"),
        (replace(MADE, columns=[QUEUE, HASH, replace(FULL, data_type="int")]), "its column full_ns"),
        (replace(MADE, columns=[QUEUE, HASH, replace(FULL, nullable=True)]), "its column full_ns"),
        (replace(MADE, columns=[QUEUE, HASH, replace(FULL, extra="STORED GENERATED")]), "its column full_ns"),
        (replace(MADE, columns=[QUEUE, replace(HASH, length_chars=16), FULL]), "its column group_hash"),
        (replace(MADE, columns=[replace(QUEUE, collation="utf8mb4_general_ci"), HASH, FULL]), "its column queue"),
        (replace(MADE, indexes=[]), "its primary key is not (queue, group_hash)"),
        (replace(MADE, indexes=[replace(KEY, columns=KEY.columns[:1])]), "its primary key is not (queue, group_hash)"),
        (replace(MADE, indexes=[replace(KEY, name="other")]), "its primary key is not (queue, group_hash)"),
        (replace(MADE, has_triggers=True), "it has a trigger"),
    ],
)
def test_a_table_that_differs_is_refused(facts: TableFacts | None, difference: str) -> None:
    problem = GROUP_RATES_TABLE.problem(PLACE, facts)
    assert problem is not None
    assert problem.startswith(f"shop.t is not as ackstream makes it ({difference}")
    assert problem.endswith("): drop it, and run ackstream migrate")


def test_a_column_that_this_program_does_not_use_does_no_harm() -> None:
    later = replace(MADE, columns=[*MADE.columns, replace(FULL, name="note")])
    assert GROUP_RATES_TABLE.problem(PLACE, later) is None


LIMITS = [{"max_rate": 5}, {"max_in_flight": 5}, {"group_limit": 5}, {"group_strict": True}, {"group_rate": 5}]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_queues_with_a_limit_of_their_own_need_the_table_of_limits(limit: dict[str, Any]) -> None:
    assert LIMITS_TABLE.limit(replace(POLICY, **limit)) is not None


@pytest.mark.parametrize("policy", [POLICY, replace(POLICY, semaphores="needs")], ids=["none", "semaphores"])
def test_other_queues_need_none(policy: Policy) -> None:
    assert LIMITS_TABLE.limit(policy) is None
