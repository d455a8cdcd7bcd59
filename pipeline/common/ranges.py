"""Where a table is cut so that tasks read it side by side: decided from the data, without reading it.

Ids that are integers are cut by halving: the server is asked how many rows it expects in a range (`EXPLAIN`, two dives
into the key, however large the range), and what is expected to be too much is halved. So it does not matter whether ids
have gaps of billions; nothing is sorted, and a table of a billion rows costs some ten thousand such questions.
Other ids are cut by walking the key, which the server does in its order: it reads the whole index once.

Ranges are (after, until], from the least to the greatest id there is at the beginning: later rows are in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pipeline.common.statements import Id, Statements
from pipeline.errors import PipelineError

Ask = Callable[[str], Sequence[Sequence[Any]]]
"""Rows of a statement, their values as text."""

PIECES_MIN: Final = 16
"""Equal ranges to begin with: statistics that lag behind a great load must not leave one huge range."""


@dataclass(frozen=True, slots=True)
class Range:
    """The ids behind `after`, up to and with `until`; None is no bound."""

    after: Id | None
    until: Id | None


def condition(statements: Statements, ids: Range) -> str:
    """The rows of a range."""
    return " AND ".join(statements.within(ids.after, ids.until)) or "TRUE"


def even(after: int, until: int, pieces: int) -> list[tuple[int, int]]:
    """The numbers behind `after`, up to and with `until`, in so many parts of about the same width."""
    width = until - after
    return list(pairwise(after + width * number // pieces for number in range(pieces + 1)))


def cut(statements: Statements, ask: Ask, rows: int) -> list[Range]:
    """Ranges of about so many rows each; none if there are no rows. Raises PipelineError."""
    if statements.table.key_on_id is None:
        raise PipelineError(
            f"{statements.table.quoted} has no unique key that begins with id, by which it could be read in parts"
        )
    ((least, greatest),) = ask(statements.ends())
    if least is None:
        return []
    if statements.whole_ids:
        return list(_joined(_halved(statements, ask, int(least) - 1, int(greatest), rows), rows))
    return [Range(*bounds) for bounds in pairwise(_walked(statements, ask, statements.id_of(greatest), rows))]


def _halved(statements: Statements, ask: Ask, after: int, until: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Ranges in their order, each with the number of rows that is expected."""
    open_ranges = even(after, until, min(PIECES_MIN, until - after))[::-1]
    while open_ranges:
        low, high = open_ranges.pop()
        expected = min(_expected(statements, ask, Range(low, high)), high - low)
        if expected <= rows:
            yield low, high, expected
        else:
            middle = (low + high) // 2
            open_ranges += [(middle, high), (low, middle)]


def _joined(pieces: Iterator[tuple[int, int, int]], rows: int) -> Iterator[Range]:
    """Neighbours put together as long as they are not too much: most of an id's range may be empty."""
    first, last, total = next(pieces)
    for low, high, expected in pieces:
        if total + expected > rows:
            yield Range(first, last)
            first, total = low, 0
        last, total = high, total + expected
    yield Range(first, last)


def _expected(statements: Statements, ask: Ask, ids: Range) -> int:
    # COUNT, because MySQL makes no estimate for the one key of a plain SELECT. FORMAT, because the two servers'
    # defaults differ; `rows` stands two before the end in MySQL (`filtered`, `Extra` follow) and one in MariaDB.
    count = f"SELECT COUNT(*) FROM {statements.along_key} WHERE {condition(statements, ids)}"
    (plan,) = ask(f"EXPLAIN FORMAT=TRADITIONAL {count}")
    expected = plan[-3] if len(plan) == _MYSQL_COLUMNS else plan[-2]
    return int(expected or 0)


_MYSQL_COLUMNS: Final = 12


def _walked(statements: Statements, ask: Ask, greatest: Id, rows: int) -> Iterator[Id | None]:
    """Every so many rows an id, in the key's order."""
    after: Id | None = None
    yield after
    while after != greatest:
        where = condition(statements, Range(after, greatest))
        found = ask(f"SELECT id FROM {statements.along_key} WHERE {where} ORDER BY id LIMIT 1 OFFSET {rows - 1}")
        after = statements.id_of(found[0][0]) if found else greatest
        yield after
