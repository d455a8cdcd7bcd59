"""What information_schema says about tables, read on a link and made into the catalog's facts.

A name can come back in another spelling than it was asked for: MariaDB compares names in information_schema without
regard to case, and a server with lower_case_table_names has one spelling of its own. An exact match goes first;
another spelling counts only where the server itself does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from engine.catalog import Column, Index, IndexColumn, TableFacts
from engine.comment import is_marked
from engine.link import Link, Result
from engine.model import TableId
from engine.queries import statement, text_literal
from engine.rawrows import text_values
from engine.retention import Partition, is_by_time
from engine.store import Timed

Row = tuple[str, ...]


def marked_tables(link: Link) -> Timed[tuple[tuple[TableId, ...], frozenset[str]]]:
    """Every table whose comment holds the word; the bare names of what carries a write to other tables."""
    names = ("now", "catalog_marked", "catalog_views", "catalog_triggers")
    now, marked, *carriers = link.run([statement(name) for name in names])
    found = (TableId(db, name) for db, name, comment in _rows(marked) if is_marked(comment))
    carrying = frozenset(name.casefold() for result in carriers for (name,) in _rows(result))
    return Timed((tuple(sorted(found)), carrying), now_ns(now))


def table_facts(link: Link, table: TableId) -> Timed[TableFacts | None]:
    """All about one table, in one packet; None when there is none of that name."""
    names = {"db": text_literal(table.db), "name": text_literal(table.name)}
    now, tables, columns, indexes, partitioning = link.run(
        [
            statement("now"),
            *(statement(f"catalog_{name}", **names) for name in ("table", "columns", "indexes", "partitioning")),
        ]
    )
    row = _same_table(table, list(_rows(tables)))
    if row is None:
        return Timed(None, now_ns(now))
    db, name, comment, engine, lower_case_table_names = row
    facts = TableFacts(
        TableId(db, name),
        comment,
        engine,
        [_column(rest) for each_db, each_name, *rest in _rows(columns) if (each_db, each_name) == (db, name)],
        list(_indexes([each for each in _rows(indexes) if each[:2] == (db, name)])),
        any(each[:2] == (db, name) and is_by_time(*each[2:]) for each in _rows(partitioning)),
        lower_case_table_names != "0",
    )
    return Timed(facts, now_ns(now))


def partitions(link: Link, table: TableId) -> Timed[list[Partition]]:
    """The partitions of a table that keeps acknowledged rows by time, in their order."""
    names = {"db": text_literal(table.db), "name": text_literal(table.name)}
    now, found = link.run([statement("now"), statement("retention_partitions", **names)])
    bounds = {name: below for *whose, name, below in _rows(found) if whose == [table.db, table.name]}
    read = [Partition(name, None if below == "MAXVALUE" else int(below)) for name, below in bounds.items()]
    return Timed(read, now_ns(now))


def now_ns(result: Result) -> int:
    """The clock, in the answer to `now`."""
    (value,) = text_values(result.rows[0])
    assert value is not None
    return int(value)


def _same_table(table: TableId, rows: Sequence[Row]) -> Row | None:
    for row in rows:
        if row[:2] == (table.db, table.name):
            return row
    for row in rows:
        if row[-1] != "0" and [each.lower() for each in row[:2]] == [table.db.lower(), table.name.lower()]:
            return row
    return None


def _column(row: Sequence[str]) -> Column:
    name, data_type, nullable, length_chars, extra, full_type = row
    return Column(name, data_type.lower(), nullable == "YES", int(length_chars), extra, full_type.lower())


def _indexes(rows: Sequence[Row]) -> Iterator[Index]:
    """The indexes that can order rows and that a statement can be forced to use."""
    for name, group in groupby(rows, key=lambda row: row[2]):
        columns = list(group)
        _, _, _, _, not_unique, kind, _, _, hidden = columns[0]
        if kind == "BTREE" and hidden == "0":
            parts = tuple(
                IndexColumn(column, order == "D", bool(column) and prefix == "0")
                for _, _, _, column, _, _, order, prefix, _ in columns
            )
            yield Index(name, not_unique == "0", parts)


def _rows(result: Result) -> Iterator[Row]:
    for row in result.rows:
        yield tuple((value or b"").decode() for value in text_values(row))
