"""Entries are decoded from row packets: those of integer ids all at once, the others value by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.model import Entry, IdKind, Key
from engine.packets import NULL_MARK
from engine.store.connection import Result
from engine.store.queries import TableStatements
from engine.store.scan import entries_of
from tests.support.play import queue_table

GREATEST_UNSIGNED = 2**64 - 1
LEAST = -(2**63)
GREATEST = 2**63 - 1


def row(*values: object) -> bytes:
    texts = [None if value is None else str(value).encode() for value in values]
    return b"".join(bytes([NULL_MARK]) if text is None else bytes([len(text)]) + text for text in texts)


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
