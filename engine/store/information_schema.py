"""What information_schema says about tables, read on a connection and made into the catalog's facts.

A name can come back in another spelling than it was asked for: MariaDB compares names in information_schema without
regard to case, and a server with lower_case_table_names has one spelling of its own. An exact match goes first;
another spelling counts only where the server itself does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from engine.catalog.directives import is_marked
from engine.catalog.verdict import Column, Index, IndexColumn, TableFacts
from engine.model import TableId
from engine.packets import text_values
from engine.quoting import text_literal
from engine.store.connection import Result, StoreConnection
from engine.store.partition_plan import Partition, is_by_time
from engine.store.port import Listing, Timed
from engine.store.queries import statement

Row = tuple[str, ...]


def listing(connection: StoreConnection, rights: str) -> Timed[Listing]:
    """See Store.discover. `rights` stands for the account's privileges: with others, each table has another stamp."""
    now, tables, triggers = connection.run([statement(name) for name in ("now", "catalog_listing", "catalog_triggers")])
    marked: dict[TableId, _TableStamp] = {}
    views_and_triggers = {name for (name,) in _rows(triggers)}
    for db, name, kind, comment, engine, changed, settled in _rows(tables):
        if kind.upper() == "VIEW":
            views_and_triggers.add(name)
        elif is_marked(comment):
            marked[TableId(db, name)] = _TableStamp(comment, engine, changed, settled == "1")
    if any(not signs.changed for signs in marked.values()):
        _read_times(connection, marked)
    stamps = {table: signs.stamp(rights) for table, signs in marked.items()}
    return Timed(Listing(stamps, frozenset(name.casefold() for name in views_and_triggers)), now_ns(now))


@dataclass(slots=True)
class _TableStamp:
    """By what it is told that a table is as it was."""

    comment: str
    engine: str
    changed: str
    settled: bool
    """Whether it was changed so long ago that another change would show another time."""

    def stamp(self, rights: str) -> str | None:
        return f"{self.changed} {rights} {self.engine} {self.comment}" if self.settled else None


def _read_times(connection: StoreConnection, marked: Mapping[TableId, _TableStamp]) -> None:
    (times,) = connection.run([statement("catalog_times", tables=_names_condition(marked))])
    for db, name, changed, settled in _rows(times):
        if signs := marked.get(TableId(db, name)):
            signs.changed, signs.settled = changed, settled == "1"


def table_facts(connection: StoreConnection, table: TableId) -> Timed[TableFacts | None]:
    """All about one table, in one packet; None when there is none of that name."""
    found = facts_of(connection, [table])
    return Timed(found.value.get(table), found.now_ns)


def facts_of(connection: StoreConnection, tables: Sequence[TableId]) -> Timed[Mapping[TableId, TableFacts]]:
    """All about these tables, in one packet, by the names asked for. Those that are not there are left out."""
    names = ("table", "columns", "indexes", "partitioning")
    condition = _names_condition(tables)
    now, found, *parts = connection.run(
        [statement("now"), *(statement(f"catalog_{name}", tables=condition) for name in names)]
    )
    rows = list(_rows(found))
    columns, indexes, partitioning = map(_by_table, parts)
    facts: dict[TableId, TableFacts] = {}
    exact = {row[:2]: row for row in rows}
    for table in tables:
        row = exact.get((table.db, table.name)) or _same_table(table, rows)
        if row is not None:
            db, name, comment, engine, lower_case_table_names = row
            facts[table] = TableFacts(
                TableId(db, name),
                comment,
                engine,
                [_column(rest) for rest in columns.get((db, name), ())],
                list(_indexes(indexes.get((db, name), ()))),
                any(is_by_time(*rest) for rest in partitioning.get((db, name), ())),
                lower_case_table_names != "0",
            )
    return Timed(facts, now_ns(now))


def _names_condition(tables: Collection[TableId]) -> str:
    """The condition on information_schema that finds these tables, and perhaps others that have the database of one and
    the name of another. Both servers look up names that are listed, and open nothing else."""
    dbs = ", ".join(text_literal(db) for db in sorted({table.db for table in tables}))
    names = ", ".join(text_literal(name) for name in sorted({table.name for table in tables}))
    if not tables:
        return "FALSE"
    if len(tables) == 1:
        return f"table_schema = {dbs} AND table_name = {names}"
    return f"table_schema IN ({dbs}) AND table_name IN ({names})"


def _by_table(result: Result) -> Mapping[Row, list[Row]]:
    """The rest of each row, by the database and the table that it begins with."""
    found: dict[Row, list[Row]] = {}
    for row in _rows(result):
        found.setdefault(row[:2], []).append(row[2:])
    return found


def partitions(connection: StoreConnection, table: TableId) -> Timed[list[Partition]]:
    """The partitions of a table that keeps acknowledged rows by time, in their order."""
    names = {"db": text_literal(table.db), "name": text_literal(table.name)}
    now, found = connection.run([statement("now"), statement("retention_partitions", **names)])
    bounds = {name: below for *whose, name, below in _rows(found) if whose == [table.db, table.name]}
    read = [Partition(name, None if below == "MAXVALUE" else int(below)) for name, below in bounds.items()]
    return Timed(read, now_ns(now))


def now_ns(result: Result) -> int:
    """The clock, in the answer to `now`."""
    (value,) = text_values(result.rows[0])
    assert value is not None
    return int(value)


def _same_table(table: TableId, rows: Sequence[Row]) -> Row | None:
    """The table in another spelling, where the server does not tell spellings apart."""
    for row in rows:
        if row[-1] != "0" and [word.lower() for word in row[:2]] == [table.db.lower(), table.name.lower()]:
            return row
    return None


def _column(row: Sequence[str]) -> Column:
    name, data_type, nullable, length_chars, extra, full_type = row
    return Column(name, data_type.lower(), nullable == "YES", int(length_chars), extra, full_type.lower())


def _indexes(rows: Sequence[Row]) -> Iterator[Index]:
    """The indexes that can order rows and that a statement can be forced to use."""
    for name, group in groupby(rows, key=lambda row: row[0]):
        columns = list(group)
        _, _, not_unique, kind, _, _, hidden = columns[0]
        if kind == "BTREE" and hidden == "0":
            parts = tuple(
                IndexColumn(column, order == "D", bool(column) and prefix == "0")
                for _, column, _, _, order, prefix, _ in columns
            )
            yield Index(name, not_unique == "0", parts)


def _rows(result: Result) -> Iterator[Row]:
    for row in result.rows:
        yield tuple((value or b"").decode() for value in text_values(row))
