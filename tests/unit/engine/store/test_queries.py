"""The engine's statements come from one file, and no value can end its literal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model import Key, TableId
from engine.queue_table import IdKind
from engine.quoting import qualified, quoted, text_literal
from engine.store import queries
from engine.store.queries import FORMS, TableStatements, Text, parse, statement, statements_of, templates
from tests.support.stores import MemorySubject
from tests.support.table_names import names_without_hint

TABLE = MemorySubject().table
FILE = resources.files("engine.store").joinpath("queries.sql").read_text("utf-8")


def parts() -> Iterator[str]:
    return (part for part in FILE.split("\n\n") if part.startswith("-- name:"))


def test_each_statement_has_a_name_of_its_own_and_a_description() -> None:
    names = [name for name, _ in parse(FILE)]
    assert len(names) == len(set(names)) == FILE.count("-- name:")
    for part in parts():
        assert re.match(r"-- name: \w+\n-- \w.*\n(-- .*\n)*[A-Z]", part), part


def test_each_statement_on_a_table_names_ackstream_in_the_process_list() -> None:
    for name, template in templates().items():
        if "$table" in template.template or "information_schema" in template.template:
            assert "/* ackstream " in template.template, name


def test_each_order_by_with_a_limit_is_total() -> None:
    exempt = {"purge_find"}  # Which of the rows of one instant go first does not matter, and their order costs a sort.
    for name, template in templates().items():
        order = re.search(r"ORDER BY (.*)\nLIMIT", template.template)
        if order and name not in exempt:
            assert re.search(r"\b(id|group_hash)( DESC)?$|\$scan_order$|\$arrival_order$", order[1]), name


@pytest.mark.parametrize("name", sorted(templates()))
def test_each_name_of_a_table_has_an_index_hint_so_that_the_server_refuses_a_view(name: str) -> None:
    text = templates()[name].template
    without = names_without_hint(text)
    if text.startswith("ALTER"):
        assert without == ["TABLE"]  # It refuses views by itself.
    elif text.startswith("INSERT"):
        assert without == ["INTO"]  # It takes no hint. Its description names the statement that has one.
        (part,) = (part for part in parts() if part.startswith(f"-- name: {name}\n"))
        assert re.search(r"behind (the one that reads|\w+_\w+)", part)
    else:
        assert without == []


def test_a_word_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError):
        statement("scan_priority", table="t")


def test_words_may_be_replaced_in_two_steps_and_no_value_has_words() -> None:
    text = Text("SELECT $id FROM $table\nWHERE id IN ($ids)")
    assert Text("'$$[*]' $$ids $ids$$").substitute({"ids": 5}) == "'$[*]' $ids 5$"
    bound = text.bound({"table": "`$ids`", "id": "$id", "absent": "?"})
    assert bound.substitute({"ids": "$table"}) == "SELECT $id FROM `$ids`\nWHERE id IN ($table)"
    assert bound.bound({"ids": 5}).substitute({}) == bound.substitute({"ids": 5})
    with pytest.raises(KeyError):
        bound.substitute({"table": "t"})


def test_the_statements_of_a_table_are_those_of_its_present_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "KEPT_MAX", 3)
    for number in range(10):
        table = replace(TABLE, id=TableId("shop", f"t{number}"))
        assert f"`shop`.`t{number}`" in statements_of(table)("lookup", ids="1")
        assert statements_of(table) is statements_of(table)
        assert len(queries._kept) <= 3


@pytest.mark.parametrize(("name", "text"), [("a", "`a`"), ("a`b", "`a``b`"), ("a.b", "`a.b`"), ("é; --", "`é; --`")])
def test_an_identifier_is_quoted(name: str, text: str) -> None:
    assert quoted(name) == text
    assert qualified(TableId(name, "t")) == f"{text}.`t`"


@given(st.text())
def test_a_string_is_written_in_hexadecimal(text: str) -> None:
    literal = text_literal(text)
    found = re.fullmatch(r"_utf8mb4 x'((?:[0-9a-f]{2})*)'", literal)
    assert found
    assert bytes.fromhex(found[1]).decode() == text


@pytest.mark.parametrize(
    ("kind", "read", "key", "literal"),
    [
        (IdKind.INTEGER, b"18446744073709551615", 18446744073709551615, "18446744073709551615"),
        (IdKind.INTEGER, b"-7", -7, "-7"),
        (IdKind.INTEGER, b"0000", 0, "0"),
        (IdKind.DECIMAL, b"-0.50", Decimal("-0.50"), "-0.50"),
        (IdKind.DECIMAL, b"100000000000000000000", Decimal(10**20), "100000000000000000000"),
        (IdKind.FLOAT, b"0.1", "0.1", "0.1"),
        (IdKind.FLOAT, b"1e300", "1e300", "1e+300"),
        (IdKind.FLOAT, b"-1.797693134862316e308", "-1.797693134862316e308", "-1.7976931348623157e+308"),
        (IdKind.TEXT, "é'".encode(), "é'", "_utf8mb4 x'c3a927'"),
        (IdKind.BINARY, b"\x00\xff'", b"\x00\xff'", "x'00ff27'"),
        (IdKind.BINARY, b"", b"", "x''"),
        (IdKind.TIMESTAMP, b"1704103200.500000", "1704103200.500000", "TIMESTAMP(FROM_UNIXTIME(1704103200.500000))"),
        (IdKind.OTHER, b"2024-01-01", "2024-01-01", "_utf8mb4 x'323032342d30312d3031'"),
    ],
)
def test_an_id_is_read_as_a_key_and_written_as_a_literal(kind: IdKind, read: bytes, key: Key, literal: str) -> None:
    sql = TableStatements(replace(TABLE, id_kind=kind))
    assert sql.key(read) == key
    assert sql.ids([key]) == literal


def test_each_kind_of_id_has_its_form() -> None:
    assert set(FORMS) == set(IdKind)


def test_one_value_for_all_rows_needs_no_cases() -> None:
    sql = TableStatements(TABLE)
    assert sql.by_id({1: 50, 2: 50}) == "50"
    assert sql.by_id({1: 50, 2: 60}) == "CASE id WHEN 1 THEN 50 WHEN 2 THEN 60 END"


@pytest.mark.parametrize(
    ("descending", "by_id", "order"),
    [
        (False, True, "ORDER BY time_next, id\n"),
        (True, True, "ORDER BY time_next, id DESC\n"),
        (False, False, "ORDER BY time_next\n"),
        (True, False, "ORDER BY time_next\n"),
    ],
)
def test_a_scan_is_ordered_as_its_index(order: str, *, descending: bool, by_id: bool) -> None:
    table = replace(TABLE, scan_descending=descending, scan_ties_by_id=by_id)
    assert order in TableStatements(table)("scan_priority", priority=1, limit=10)
