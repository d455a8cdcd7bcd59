"""Reads information_schema on a connection, and turns it into the catalog's table facts.

A returned name can have another spelling than the requested one: MariaDB compares names in
information_schema without case, and a server with lower_case_table_names has its own spelling. An
exact match is preferred. Another spelling counts only if the server treats both as the same table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from engine.catalog.directives import is_marked
from engine.catalog.own_tables import OWN_TABLES
from engine.catalog.verdict import Column, Index, IndexColumn, TableFacts
from engine.model import TableId
from engine.packets import Result, text_values
from engine.quoting import text_literal
from engine.store.connection import StoreConnection
from engine.store.partition_plan import Partition, is_by_time
from engine.store.port import Listing, Timed
from engine.store.queries import statement

Row = tuple[str, ...]

CHECK: Row = ("CHECK", "")
"""What the statement `catalog_extras` returns of a table with CHECK constraints."""

TRIGGER: Row = ("TRIGGER", "")
"""And of one with triggers."""


def listing(connection: StoreConnection, rights: str) -> Timed[Listing]:
    """Every marked table with its stamp, and all views and tables with triggers.

    `rights` identifies the account's privileges. When it changes, so does every stamp. What has the name
    of a table of ackstream's own in a database is in the stamps of its queues.
    """
    now, tables, triggers = connection.run([statement(name) for name in ("now", "catalog_listing", "catalog_triggers")])
    with_triggers = {TableId(*row) for row in _rows(triggers)}
    views_and_triggers = {table.name for table in with_triggers}
    marked: dict[TableId, _Stamp] = {}
    own: dict[TableId, _Stamp] = {}
    for db, name, kind, comment, engine, changed, settled in _rows(tables):
        table, stamp = TableId(db, name), _Stamp(comment, engine, changed, settled == "1")
        if kind.upper() == "VIEW":
            views_and_triggers.add(name)
            if name in OWN_TABLES:
                own[table] = _Stamp("", kind, "0", settled=True)
        elif is_marked(comment):
            marked[table] = stamp
        elif name in OWN_TABLES:
            stamp.engine += " with triggers" if table in with_triggers else ""
            own[table] = stamp
    if any(not stamp.changed for stamp in (*marked.values(), *own.values())):
        _read_times(connection, marked | own)
    beside: dict[str, list[str | None]] = {}
    for table, stamp in own.items():
        beside.setdefault(table.db, []).append(stamp.stamp(table.name))
    stamps = {table: stamp.stamp(rights, beside.get(table.db, ())) for table, stamp in marked.items()}
    return Timed(Listing(stamps, frozenset(name.casefold() for name in views_and_triggers)), now_ns(now))


@dataclass(slots=True)
class _Stamp:
    """The values that change when a table is altered."""

    comment: str
    engine: str
    changed: str
    settled: bool
    """Whether the last change is so old that another one would set another time."""

    def stamp(self, rights: str, beside: Sequence[str | None] = ()) -> str | None:
        """`beside`: the stamps of ackstream's own tables in its database."""
        if not self.settled or None in beside:
            return None
        return f"{self.changed} {rights} {self.engine} {self.comment} {sorted(filter(None, beside))}"


def _read_times(connection: StoreConnection, marked: Mapping[TableId, _Stamp]) -> None:
    (times,) = connection.run([statement("catalog_times", tables=_names_condition(marked))])
    for db, name, changed, settled in _rows(times):
        if stamp := marked.get(TableId(db, name)):
            stamp.changed, stamp.settled = changed, settled == "1"


def table_facts(connection: StoreConnection, table: TableId) -> Timed[TableFacts | None]:
    """The facts of one table, read in one packet. None if there is no such table."""
    found = facts_of(connection, [table])
    return Timed(found.value.get(table), found.now_ns)


def facts_of(connection: StoreConnection, tables: Sequence[TableId]) -> Timed[Mapping[TableId, TableFacts]]:
    """The facts of the existing ones of these tables, by the requested names, read in one
    packet."""
    names = ("table", "columns", "indexes", "extras")
    words = {
        "tables": _names_condition(tables),
        "constraints": _names_condition(tables, "constraint_schema"),
        "triggers": _names_condition(tables, "event_object_schema", "event_object_table"),
    }
    now, found, *parts = connection.run(
        [statement("now"), *(statement(f"catalog_{name}", **words) for name in names)],
    )
    rows = list(_rows(found))
    columns, indexes, extras = map(_by_table, parts)
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
                any(is_by_time(*rest) for rest in extras.get((db, name), ())),
                int(lower_case_table_names or 0),
                CHECK in extras.get((db, name), ()),
                TRIGGER in extras.get((db, name), ()),
            )
    return Timed(facts, now_ns(now))


def _names_condition(tables: Collection[TableId], schema: str = "table_schema", name: str = "table_name") -> str:
    """A condition on information_schema for these tables. `schema`, `name`: the columns with the database and
    the table.

    It may also select a table with the database of one and the name of another. With listed names,
    both servers open no other tables.
    """
    dbs = ", ".join(text_literal(db) for db in sorted({table.db for table in tables}))
    names = ", ".join(text_literal(one) for one in sorted({table.name for table in tables}))
    if not tables:
        return "FALSE"
    if len(tables) == 1:
        return f"{schema} = {dbs} AND {name} = {names}"
    return f"{schema} IN ({dbs}) AND {name} IN ({names})"


def _by_table(result: Result) -> Mapping[Row, list[Row]]:
    """The rows without their first two columns, by these: database and table."""
    found: dict[Row, list[Row]] = {}
    for row in _rows(result):
        found.setdefault(row[:2], []).append(row[2:])
    return found


def partitions(connection: StoreConnection, table: TableId) -> Timed[list[Partition]]:
    """The partitions of a table that keeps acknowledged rows by time, in their order."""
    names = {"db": text_literal(table.db), "name": text_literal(table.name)}
    now, found = connection.run([statement("now"), statement("retention_partitions", **names)])
    bounds = {name: below for *owner, name, below in _rows(found) if owner == [table.db, table.name]}
    read = [Partition(name, None if below == "MAXVALUE" else int(below)) for name, below in bounds.items()]
    return Timed(read, now_ns(now))


def now_ns(result: Result) -> int:
    """The server's clock in the result of the statement `now`."""
    (value,) = text_values(result.rows[0])
    assert value is not None
    return int(value)


def _same_table(table: TableId, rows: Sequence[Row]) -> Row | None:
    """The row of the table in another spelling, if the server treats both as the same table."""
    for row in rows:
        if row[-1] != "0" and [word.lower() for word in row[:2]] == [table.db.lower(), table.name.lower()]:
            return row
    return None


def _column(row: Sequence[str]) -> Column:
    name, data_type, nullable, length_chars, extra, full_type, *more = row
    return Column(name, data_type.lower(), nullable == "YES", int(length_chars), extra, full_type.lower(), *more)


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
