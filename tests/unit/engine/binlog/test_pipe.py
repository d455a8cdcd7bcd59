"""Change sets are handed over in parts, so that a large one does not hold up the event loop."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from engine.binlog.pipe import ChangeBatch

KEYS = st.lists(st.integers(0, 50), max_size=12, unique=True)
TABLES = st.lists(st.tuples(KEYS, KEYS), max_size=4)


def batch_of(tables: list[tuple[list[int], list[int]]]) -> ChangeBatch:
    return ChangeBatch(
        tuple(
            ("db", f"t{number}", tuple((key, 0) for key in seen), tuple(over), dict.fromkeys(over, (1, 1)))
            for number, (seen, over) in enumerate(tables)
        ),
        schema_changed=True,
    )


@given(tables=TABLES, most=st.integers(1, 10))
def test_the_parts_have_all_changes_in_their_order(tables: list[tuple[list[int], list[int]]], most: int) -> None:
    batch = batch_of(tables)
    parts = list(batch.parts(most))
    changes = [change for part in parts for change in part.tables]
    for (db, name, seen, over, before), (_, of_table) in zip(
        batch.tables, groupby(changes, lambda change: change[1]), strict=True
    ):
        found = list(of_table)
        assert [entry for change in found for entry in change[2]] == [*seen]
        assert [key for change in found for key in change[3]] == [*over]
        assert all((change[0], change[1], change[4]) == (db, name, before) for change in found)
    assert [part.schema_changed for part in parts] == [True] + [False] * (len(parts) - 1)


@given(tables=TABLES, most=st.integers(1, 10))
def test_a_part_has_no_more_messages_than_allowed(tables: list[tuple[list[int], list[int]]], most: int) -> None:
    for part in batch_of(tables).parts(most):
        assert sum(len(seen) + len(over) for _, _, seen, over, _ in part.tables) <= most


@given(tables=TABLES, most=st.integers(1, 10))
def test_unknown_changes_stay_unknown_and_known_ones_known(
    tables: list[tuple[list[int], list[int]]], most: int
) -> None:
    """A table without messages stands for a change of any of them."""
    unknown = [name for _, name, seen, over, _ in batch_of(tables).tables if not seen and not over]
    found = [
        name for part in batch_of(tables).parts(most) for _, name, seen, over, _ in part.tables if not seen and not over
    ]
    assert found == unknown


def test_changes_of_everything_are_one_part() -> None:
    batch = ChangeBatch(everything=True)
    assert list(batch.parts(1)) == [batch]
