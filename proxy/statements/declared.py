"""Whether the table that a CREATE QUEUE declares could be a queue.

Only the declarations that decide this are read: the types of the queue's own columns, whether they
can be NULL or are computed, the keys, the storage engine. The server has no way to check a table
before it is created, so this module predicts what the server makes of the declarations. If the
prediction is wrong, the catalog's check of the created table finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from engine.catalog.delays import delay_problem
from engine.catalog.directives import parse_comment, split_comment
from engine.catalog.verdict import Column, Index, IndexColumn, TableFacts, evaluate
from engine.queue_table import BrokenTable, Policy
from proxy.statements.tables import table_id
from sqlrewrite.definitions import OWN_COLUMNS, Definition, Extras, Kind, declares, missing, nullable_id
from sqlrewrite.names import quote
from sqlrewrite.queue_statements import CreateQueue

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
"""The key that is added if none on id is declared. In a table partitioned by time it also has
time_acked, which makes no difference here."""


def problems_of(statement: CreateQueue, comment: str, storage_engine: str) -> tuple[str, ...]:
    """Why the table could not be a queue; empty if it could."""
    by_time = statement.by_partition or statement.by_time
    lease = _lease_column(comment)
    extras = extras_of(split_comment(comment)[0])
    _, added = missing(statement.definitions, by_time=by_time, lease=lease, extras=extras)
    facts = TableFacts(
        table_id(statement.table),
        comment,
        storage_engine,
        list(_columns(statement, lease, extras, id_is_added_as_key=any("PRIMARY" in key for key in added))),
        [
            *_indexes(statement),
            *([_ID_KEY] if any("KEY (id" in key for key in added) else ()),
            *(_index("key", columns) for columns in extras.indexes()),
        ],
        by_time,
    )
    verdict = evaluate(facts)
    types = {column.name.casefold(): column.data_type for column in facts.columns}
    delay_by = extras.delay_by or ""
    delay = delay_problem(delay_by, types.get(delay_by.casefold(), ""))
    return (*(verdict.problems if isinstance(verdict, BrokenTable) else ()), *([delay] if delay else ()))


def _lease_column(comment: str) -> str | None:
    policy = parse_comment(comment)
    return policy.lease if isinstance(policy, Policy) else None


def extras_of(values: Mapping[str, str]) -> Extras:
    """The further columns that directives name."""
    return Extras(*(values.get(key) for key in ("reason", "delay_by", "batch_by", "after_batch")))


def _columns(
    statement: CreateQueue, lease: str | None, extras: Extras, *, id_is_added_as_key: bool
) -> Iterator[Column]:
    declared = [definition for definition in statement.definitions if definition.kind is Kind.COLUMN]
    primary = {
        name for definition in statement.definitions if definition.kind is Kind.PRIMARY for name in definition.columns
    }
    if id_is_added_as_key or (statement.by_partition and nullable_id(statement.tokens, statement.definitions)):
        primary |= {"id"}  # Or declared NOT NULL, which is the same here.
    for name, text in OWN_COLUMNS.items():
        if name not in {column.name for column in declared}:
            yield Column(name, text.split()[1].lower(), "NOT NULL" not in text and name not in primary, 0, "")
    if lease is not None and not declares(statement.definitions, lease):
        yield Column(lease, "bigint", nullable=True, length_chars=0, extra="INVISIBLE")
    for name, text in extras.definitions().items():
        if not declares(statement.definitions, name):
            data_type = text.removeprefix(quote(name)).split("(")[0].split()[0].lower()
            yield Column(name, data_type, nullable=True, length_chars=0, extra="INVISIBLE")
    for column in declared:
        words = _words(statement, column)
        written = words[0] if words else ""
        not_null = ("NOT", "NULL") in pairwise(words) or written == "SERIAL"
        nullable = not (not_null or column.primary or column.name in primary)
        computed = "VIRTUAL GENERATED" if {"AS", "GENERATED"} & set(words) else ""
        name = statement.tokens.name_of(column.tokens[0])
        yield Column(name, _INTEGERS.get(written, written.lower()), nullable, 0, computed)


def _words(statement: CreateQueue, column: Definition) -> list[str]:
    """The words that follow a column's name, without those in parentheses."""
    name, *rest = column.tokens
    return [statement.tokens.word_of(token) for token in rest if token.depth == name.depth]


def _indexes(statement: CreateQueue) -> Iterator[Index]:
    for definition in statement.definitions:
        if definition.kind is Kind.COLUMN and (definition.primary or definition.unique):
            part = IndexColumn(definition.name, descending=False, whole=True)
            yield Index("PRIMARY" if definition.primary else definition.name, unique=True, columns=(part,))
        elif definition.kind in (Kind.PRIMARY, Kind.UNIQUE, Kind.KEY):
            name = "PRIMARY" if definition.kind is Kind.PRIMARY else "key"
            yield _index(name, definition.columns, unique=definition.kind is not Kind.KEY)


def _index(name: str, columns: Sequence[str], *, unique: bool = False) -> Index:
    parts = tuple(IndexColumn(column, descending=False, whole=bool(column)) for column in columns)
    return Index(name, unique=unique, columns=parts)
