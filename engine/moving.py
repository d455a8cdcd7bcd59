"""Whether rows can be moved from one message table to another, whole: every value kept, exactly.

The server copies them (INSERT … SELECT under a strict sql_mode) and refuses most of what would be lost. What it does
without a word is told here beforehand, by the types: rounding of times and decimals, padding of binary strings. So
columns have to be of the same type, but for the families in which the server itself refuses what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.catalog import INTEGERS, OWN_COLUMNS, Column, TableFacts, judge
from engine.model import BrokenTable, QueueTable, TableId

_TEXTS = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})
_BLOBS = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_FAMILIES = (
    (INTEGERS, INTEGERS),
    (_TEXTS | {"char"}, _TEXTS),
    (frozenset({"char"}), frozenset({"char"})),
    (_BLOBS | {"binary"}, _BLOBS),
)
"""From any type of the first to any of the second: what does not fit is an error or at least a warning there."""

NAMES_MOST = 10
"""Columns named in one problem: a table can have 4,096."""


def columns_to_move(facts: TableFacts) -> tuple[str, ...]:
    """What has to be copied of a row: all that is not computed, but for the two times that it gets anew."""
    return tuple(each.name for each in facts.columns if not each.generated and each.name.lower() not in OWN_COLUMNS[2:])


def obstacles(source: TableFacts, name: TableId, target: TableFacts | None) -> tuple[str, ...]:
    """All that keeps rows of `source` from moving to the table `name`, each with what to do; nothing if they can."""
    if target is None:
        return (f"{name} does not exist, or the engine's account may not see it: create it as a message table",)
    if target.id == source.id:
        return (f"{name} is the table itself: name another one",)
    match judge(target):
        case None:
            return (f"{name} is no message table: its COMMENT does not hold the word vitess_message",)
        case BrokenTable() as broken:
            return (str(broken),)
        case QueueTable():
            return tuple(_column_obstacles(source, target))


def _column_obstacles(source: TableFacts, target: TableFacts) -> Iterable[str]:
    there = {each.name.lower(): each for each in target.columns}
    pairs = [(each, there.get(each.name.lower())) for each in source.columns if not each.generated]
    if missing := [each.name for each, other in pairs if other is None]:
        yield f"{target.id} lacks {_columns(missing)}: add what {source.id} has"
    if computed := [other.name for _, other in pairs if other and other.generated]:
        yield f"{target.id} computes {_columns(computed)}, where {source.id} stores a value: make it an ordinary column"
    if unlike := [
        f"{each.name} ({other.full_type} for {each.full_type})"
        for each, other in pairs
        if other and not _fits(each, other)
    ]:
        yield f"{target.id} has another type for {_columns(unlike)}: give it that of {source.id}"


def _fits(column: Column, other: Column) -> bool:
    if column.full_type == other.full_type:
        return True
    return any(column.data_type in given and other.data_type in taken for given, taken in _FAMILIES)


def _columns(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MOST
    listed = ", ".join(names[:NAMES_MOST]) + (f" and {more} more" if more > 0 else "")
    return f"column {listed}" if len(names) == 1 else f"columns {listed}"
