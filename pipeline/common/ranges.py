"""Ranges of ids, by which tasks read a table in parallel.

Integer ids are cut by halving. The server estimates how many rows are in a range (`EXPLAIN`, two
dives into the key, however large the range), and a range with too many is halved. So gaps of
billions of ids do not matter, nothing is sorted, and a table of a billion rows takes some ten
thousand such statements. Other ids are cut by walking along the key, which reads the whole index
once.

A range is (after, until]. The ranges cover the least to the greatest id at the beginning, so rows
that are added later may be in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ..errors import PipelineError
from .statements import Id, Statements

Fetch = Callable[[str], Sequence[Sequence[Any]]]
"""Returns the rows of a statement, their values as text."""

PIECES_MIN: Final = 16
"""Equal ranges to begin with. With one range, statistics that are out of date after a large load
could leave it whole."""


@dataclass(frozen=True, slots=True)
class Range:
    """The ids behind `after`, up to and with `until`; None is no bound."""

    after: Id | None
    until: Id | None


def condition(statements: Statements, ids: Range) -> str:
    """The condition for the rows of a range."""
    return " AND ".join(statements.within(ids.after, ids.until)) or "TRUE"


def even(after: int, until: int, pieces: int) -> list[tuple[int, int]]:
    """The numbers behind `after`, up to and with `until`, in so many parts of about the same
    width."""
    width = until - after
    return list(pairwise(after + width * number // pieces for number in range(pieces + 1)))


def cut(statements: Statements, fetch: Fetch, rows: int) -> list[Range]:
    """Ranges of about `rows` rows each; none if the table is empty. Raises PipelineError."""
    if statements.table.key_on_id is None:
        raise PipelineError(
            f"{statements.table.quoted} has no unique key that begins with id, by which it could be read in parts"
        )
    ((least, greatest),) = fetch(statements.ends())
    if least is None:
        return []
    if statements.whole_ids:
        return list(_joined(_halved(statements, fetch, int(least) - 1, int(greatest), rows), rows))
    return [Range(*bounds) for bounds in pairwise(_walked(statements, fetch, statements.id_of(greatest), rows))]


def _halved(statements: Statements, fetch: Fetch, after: int, until: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Ranges in their order, each with its estimated number of rows."""
    open_ranges = even(after, until, min(PIECES_MIN, until - after))[::-1]
    while open_ranges:
        low, high = open_ranges.pop()
        expected = min(_expected(statements, fetch, Range(low, high)), high - low)
        if expected <= rows:
            yield low, high, expected
        else:
            middle = (low + high) // 2
            open_ranges += [(middle, high), (low, middle)]


def _joined(pieces: Iterator[tuple[int, int, int]], rows: int) -> Iterator[Range]:
    """Neighbours joined up to `rows` estimated rows, because most ranges may be almost empty."""
    first, last, total = next(pieces)
    for low, high, expected in pieces:
        if total + expected > rows:
            yield Range(first, last)
            first, total = low, 0
        last, total = high, total + expected
    yield Range(first, last)


def _expected(statements: Statements, fetch: Fetch, ids: Range) -> int:
    # COUNT, because MySQL makes no estimate for the only key of a plain SELECT. FORMAT, because the
    # two servers' defaults differ. In MySQL two columns follow `rows` (`filtered`, `Extra`), in
    # MariaDB one.
    count = f"SELECT COUNT(*) FROM {statements.along_key} WHERE {condition(statements, ids)}"
    (plan,) = fetch(f"EXPLAIN FORMAT=TRADITIONAL {count}")
    expected = plan[-3] if len(plan) == _MYSQL_COLUMNS else plan[-2]
    return int(expected or 0)


_MYSQL_COLUMNS: Final = 12


def _walked(statements: Statements, fetch: Fetch, greatest: Id, rows: int) -> Iterator[Id | None]:
    """An id for every `rows` rows, in the key's order; first None."""
    after: Id | None = None
    yield after
    while after != greatest:
        where = condition(statements, Range(after, greatest))
        found = fetch(f"SELECT id FROM {statements.along_key} WHERE {where} ORDER BY id LIMIT 1 OFFSET {rows - 1}")
        after = statements.id_of(found[0][0]) if found else greatest
        yield after
