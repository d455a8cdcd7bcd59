"""Entries are decoded from row packets: those of integer ids all at once, the others value by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.model import Entry, Group, Key
from engine.packets import NULL_MARK, Result
from engine.queue_table import GroupColumn, IdKind
from engine.store.queries import TableStatements
from engine.store.scan import entries_of
from tests.support.play import queue_table

GREATEST_UNSIGNED = 2**64 - 1
LEAST = -(2**63)
GREATEST = 2**63 - 1


def length(text: bytes) -> bytes:
    size = len(text)
    return bytes([size]) if size < NULL_MARK else b"\xfc" + size.to_bytes(2, "little")


def row(*values: object) -> bytes:
    texts = [None if value is None else str(value).encode() for value in values]
    return b"".join(bytes([NULL_MARK]) if text is None else length(text) + text for text in texts)


def decoded(kind: IdKind, *results: list[bytes]) -> list[Entry]:
    statements = TableStatements(replace(queue_table(), id_kind=kind))
    return entries_of(statements, *map(Result, results))


@pytest.mark.parametrize(
    "fields",
    [(1, 0, 0, 0), (GREATEST_UNSIGNED, 7, -5, GREATEST), (LEAST, GREATEST, LEAST, LEAST), (48, 49, 50, 51)],
)
def test_every_integer_that_a_column_can_contain_is_decoded(fields: tuple[int, int, int, int]) -> None:
    assert decoded(IdKind.INTEGER, [row(*fields)]) == [Entry(*fields)]


def test_the_results_of_several_statements_keep_their_order() -> None:
    assert decoded(IdKind.INTEGER, [row(3, 0, 0, 1), row(1, 0, 0, 2)], [], [row(2, 1, 5, 0)]) == [
        Entry(3, 0, 0, 1),
        Entry(1, 0, 0, 2),
        Entry(2, 1, 5, 0),
    ]


def test_a_row_without_an_id_is_left_out_and_the_others_are_not() -> None:
    assert decoded(IdKind.INTEGER, [row(None, 0, 0, 1), row(2, 0, 0, 2)]) == [Entry(2, 0, 0, 2)]


@pytest.mark.parametrize(
    ("kind", "raw", "key"),
    [(IdKind.TEXT, b"1 2\x013", "1 2\x013"), (IdKind.BINARY, b"\x01\xfb ", b"\x01\xfb "), (IdKind.TEXT, b"", "")],
)
def test_an_id_of_any_bytes_is_decoded(kind: IdKind, raw: bytes, key: Key) -> None:
    assert decoded(kind, [bytes([len(raw)]) + raw + row(1, 2, 3)]) == [Entry(key, 1, 2, 3)]


TENANT, REGION, SHOP = (
    GroupColumn("tenant", IdKind.INTEGER),
    GroupColumn("region", IdKind.TEXT),
    GroupColumn("shop", IdKind.INTEGER),
)


def grouped(columns: tuple[GroupColumn, ...], *results: list[bytes]) -> list[Entry]:
    statements = TableStatements(replace(queue_table(), id_kind=IdKind.INTEGER, group_columns=columns))
    return entries_of(statements, *map(Result, results))


@pytest.mark.parametrize(
    ("columns", "groups"),
    [
        ((TENANT,), [(7,), (-1,), (GREATEST_UNSIGNED,), (7,)]),
        ((TENANT, SHOP), [(7, 1), (7, LEAST), (1, 7)]),
        ((REGION,), [("",), ("\x01 2",), ("7",), ("é" * 20_000,), ("7",)]),
        ((TENANT, REGION), [(7, "north"), (7, None), (None, None)]),
        ((TENANT,), [(7,), (None,)]),
    ],
)
def test_each_entry_has_the_group_of_its_row(columns: tuple[GroupColumn, ...], groups: list[Group]) -> None:
    rows = [row(number, 1, 100, -5, *group) for number, group in enumerate(groups)]
    assert grouped(columns, rows[:1], [], rows[1:]) == [
        Entry(number, 1, 100, -5, group) for number, group in enumerate(groups)
    ]


@pytest.mark.parametrize("columns", [(TENANT,), (REGION,), (TENANT, SHOP)])
def test_the_rows_of_a_statement_that_reads_no_group_have_none(columns: tuple[GroupColumn, ...]) -> None:
    assert grouped(columns, [row(1, 0, 0, 2), row(2, 1, 5, 0)]) == [Entry(1, 0, 0, 2), Entry(2, 1, 5, 0)]


@pytest.mark.parametrize("group", ["n", "n" * 300])
@pytest.mark.parametrize("missing", range(4))
def test_a_row_that_lacks_a_value_is_left_out_whatever_its_group_is(missing: int, group: str) -> None:
    values: list[object] = [1, 0, 0, 2]
    values[missing] = None
    assert grouped((REGION,), [row(*values, group), row(2, 0, 0, 2, "s")]) == [Entry(2, 0, 0, 2, ("s",))]
