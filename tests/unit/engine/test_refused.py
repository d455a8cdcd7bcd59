"""Rows that a statement cannot be carried out on, among others: how they are found, and named."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from engine.model import Key
from engine.refused import NOT_TRIED, TRIES_MAX, InParts, PartSize, named

ROWS = range(500)


def tried(parts: InParts[int], bad: Collection[int]) -> tuple[list[int], int]:
    """The rows that are done, and the number of statements, if these rows are refused."""
    done: list[int] = []
    statements = 0
    while part := parts.next():
        statements += 1
        if set(part) & set(bad):
            parts.refused("bad")
        else:
            done += part
            parts.done()
    return done, statements


def test_without_a_refusal_there_is_one_statement() -> None:
    assert tried(InParts(ROWS), ()) == ([*ROWS], 1)


def test_no_rows_are_no_statement() -> None:
    assert tried(InParts([]), ()) == ([], 0)


@pytest.mark.parametrize("bad", [{0}, {499}, {250}, {3, 4, 490}])
def test_all_others_are_done(bad: set[int]) -> None:
    parts = InParts(ROWS)
    done, statements = tried(parts, bad)
    assert done == [row for row in ROWS if row not in bad]
    assert parts.reasons == dict.fromkeys(bad, "bad")
    assert statements <= 20 * len(bad)


def test_where_all_are_refused_the_statements_are_bounded_and_each_row_has_a_reason() -> None:
    parts = InParts(ROWS)
    assert tried(parts, ROWS) == ([], TRIES_MAX)
    assert parts.reasons.keys() == set(ROWS)
    assert set(parts.reasons.values()) == {"bad", NOT_TRIED}


def test_an_error_about_each_row_is_found_out_by_one_statement() -> None:
    parts = InParts(ROWS)
    parts.next()
    parts.refused("no such column", each=True)
    assert not parts.next()
    assert len(parts.reasons) == len(ROWS)


def test_a_part_that_took_too_long_stays_small_for_long() -> None:
    size = PartSize()
    size.refused(10, lasted=True)
    for _ in range(31):
        assert size.most == 5
        size.tried(5)
    size.tried(5)
    assert size.most is None


def test_the_names_are_grouped_by_reason_and_cut() -> None:
    reasons: dict[Key, str] = {1: "a", 2: "b", 3: "a", 4: "a", 5: "a", 6: "a"}
    assert named(reasons) == "a (id 1, 3, 4 and 2 more); b (id 2)"
