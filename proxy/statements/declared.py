"""What a CREATE QUEUE declares, judged as the table that it would make.

Only what decides whether a table can be a queue is read: the types of the queue's own columns, whether they can be NULL
or are computed, the keys, the storage engine. A table cannot be judged first and made then by the server; so this is
what the server will make of the words, and where it turns out otherwise the catalog judges the table itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from engine.catalog.verdict import Column, Index, IndexColumn, TableFacts, judge
from engine.model import BrokenTable
from proxy.statements.tables import table_id
from sqlrewrite.definitions import OWN_COLUMNS, Definition, Kind, missing, nullable_id
from sqlrewrite.queues import CreateQueue

_INTEGERS: Final[Mapping[str, str]] = {
    "BOOL": "tinyint",
    "BOOLEAN": "tinyint",
    "INT1": "tinyint",
    "INT2": "smallint",
    "INT3": "mediumint",
    "MIDDLEINT": "mediumint",
    "INT4": "int",
    "INTEGER": "int",
    "INT8": "bigint",
    "SERIAL": "bigint",
}
"""Integer types by their other names."""

_ID_KEY: Final = Index("id", unique=True, columns=(IndexColumn("id", descending=False, whole=True),))
"""What is added where no key of that kind is declared. Where a table is partitioned by time, it has time_acked as well,
which makes no difference here."""


def problems_of(statement: CreateQueue, comment: str, storage_engine: str) -> tuple[str, ...]:
    """Why the table would be no queue, if it would not."""
    by_time = statement.by_partition or statement.by_time
    _, added = missing(statement.definitions, by_time=by_time)
    facts = TableFacts(
        table_id(statement.table),
        comment,
        storage_engine,
        list(_columns(statement, id_is_added_as_key=any("PRIMARY" in key for key in added))),
        [*_indexes(statement), *([_ID_KEY] if any("KEY (id" in key for key in added) else ())],
        by_time,
    )
    judged = judge(facts)
    return judged.problems if isinstance(judged, BrokenTable) else ()


def _columns(statement: CreateQueue, *, id_is_added_as_key: bool) -> Iterator[Column]:
    declared = [each for each in statement.definitions if each.kind is Kind.COLUMN]
    primary = {name for each in statement.definitions if each.kind is Kind.PRIMARY for name in each.columns}
    if id_is_added_as_key or (statement.by_partition and nullable_id(statement.tokens, statement.definitions)):
        primary |= {"id"}  # Or declared NOT NULL, which is the same here.
    for name, text in OWN_COLUMNS.items():
        if name not in {each.name for each in declared}:
            yield Column(name, text.split()[1].lower(), "NOT NULL" not in text and name not in primary, 0, "")
    for each in declared:
        words = _words(statement, each)
        written = words[0] if words else ""
        not_null = ("NOT", "NULL") in pairwise(words) or written == "SERIAL"
        nullable = not (not_null or each.primary or each.name in primary)
        computed = "VIRTUAL GENERATED" if {"AS", "GENERATED"} & set(words) else ""
        name = statement.tokens.name_of(each.tokens[0])
        yield Column(name, _INTEGERS.get(written, written.lower()), nullable, 0, computed)


def _words(statement: CreateQueue, column: Definition) -> list[str]:
    """What follows a column's name, without what stands in parentheses."""
    name, *rest = column.tokens
    return [statement.tokens.word_of(token) for token in rest if token.depth == name.depth]


def _indexes(statement: CreateQueue) -> Iterator[Index]:
    for each in statement.definitions:
        if each.kind is Kind.COLUMN and (each.primary or each.unique):
            column = IndexColumn(each.name, descending=False, whole=True)
            yield Index("PRIMARY" if each.primary else each.name, unique=True, columns=(column,))
        elif each.kind in (Kind.PRIMARY, Kind.UNIQUE, Kind.KEY):
            parts = tuple(IndexColumn(name, descending=False, whole=bool(name)) for name in each.columns)
            name = "PRIMARY" if each.kind is Kind.PRIMARY else "key"
            yield Index(name, unique=each.kind is not Kind.KEY, columns=parts)
