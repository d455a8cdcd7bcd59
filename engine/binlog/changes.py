"""Turns logged row changes into change sets: the last state of each changed message of each table.

A change set is never trusted: each claim is checked in the database. So change sets can be merged,
and only the last state of a message counts. If there are too many rows, or a row cannot be read for
certain, the table's changes become *unknown*: any of its messages may have changed. So memory is
bounded, and no change is lost.

The engine's own changes are not among them (engine.binlog.event_filter). Each change therefore
comes with the delivery that its row showed *before*: it shows whether the change was made before or
after a claim of the engine's.

The acknowledgements of its own clients, what other proxies claim, and the acknowledgements of what
these hold, are left out where they do not matter here (`scope.ChangeFilter`). Otherwise each proxy would
spend the same time on every message.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from engine.binlog.row_image import ABSENT, ColumnType, Field, RowReader, Value, is_signed, key_reader
from engine.binlog.scope import ACKED_AT, DUE_AT, EPOCH_AT, QUEUE_COLUMNS, Row, Scope
from engine.model import Delivery, Entry, Group, Key, TableId
from engine.store.queries import LOWEST_PRIORITY


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of one table.

    Without `seen` and `over` they are unknown: any message may have changed.
    """

    table: TableId
    seen: tuple[Entry, ...] = ()
    """Unacknowledged messages, as they now are."""
    over: tuple[Key, ...] = ()
    """Ids of messages that were acknowledged or deleted."""
    before: Mapping[Key, Delivery] = field(default_factory=dict)
    """The deliveries that rows showed before they were changed, as far as they are known."""


class RowChange(NamedTuple):
    """The last state of a message (None: it was acknowledged or deleted), and the latest delivery
    that its row showed before a change (None: it was inserted, or that is not known)."""

    entry: Entry | None
    before: Delivery | None = None

    def after(self, earlier: RowChange) -> RowChange:
        """This change, after an earlier one of the same message."""
        if earlier.before is None or (self.before is not None and self.before.epoch >= earlier.before.epoch):
            return self
        return RowChange(self.entry, earlier.before)


class UnreadableRowError(Exception):
    """The binary log does not contain enough of a row to determine its message's state."""


class Change(enum.Enum):
    """The kind of a row's change."""

    INSERT = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()


class Layout:
    """The layout of one message table's rows in the binary log, as of one table map."""

    def __init__(
        self, columns: Sequence[ColumnType], fields: Sequence[Field | None], scope: Scope | None = None
    ) -> None:
        """The table's columns in their order: from information_schema, and from the binary log.
        `scope`: without one all changes are read, and no group.

        Raises UnreadableRowError if the two differ: the table was changed in between, or has a type
        unknown here.
        """
        known = [field for field in fields if field is not None]
        positions = {column.name.lower(): at for at, column in enumerate(columns)}
        if len(known) < len(fields) or len(fields) != len(columns) or not positions.keys() >= {*QUEUE_COLUMNS}:
            raise UnreadableRowError(f"{len(known)} of {len(columns)} columns can be read in the binary log")
        scope = scope or Scope()
        names, left_out = [*QUEUE_COLUMNS], scope.left_out
        column = None if left_out is None or left_out.column is None else left_out.column.lower()
        if column in positions:
            names.append(column)
        elif left_out is not None:
            left_out = replace(left_out, column=None)
        self._left_out = left_out
        wanted = [positions[name] for name in names]
        numbers = {at: signed for at in wanted if (signed := is_signed(columns[at])) is not None}
        if len({*wanted[1:]} - numbers.keys()):
            raise UnreadableRowError("a column of the queue's format has no integers")
        identity = columns[wanted[0]]
        self._read_key = None if wanted[0] in numbers else key_reader(known[wanted[0]], identity)
        if wanted[0] not in numbers and self._read_key is None:
            raise UnreadableRowError(f"an id of type {identity.declared} can be read by the server alone")
        group = [at for name in scope.group_columns if (at := positions.get(name.lower())) is not None]
        readers = [reader for at in group if (reader := _value_reader(known[at], columns[at])) is not None]
        self._group_at, self._group_readers = len(wanted), readers if len(readers) == len(scope.group_columns) else []
        if self._group_readers:
            wanted += group
            numbers |= {at: signed for at in group if (signed := is_signed(columns[at])) is not None}
        self._reader = RowReader(known, wanted, numbers)

    def changes(self, change: Change, present: Sequence[int], data: bytes) -> list[tuple[Key, RowChange]]:
        """The changes of messages in an event's rows.

        `present` has the columns of each image of a row, a bit for each column. Raises
        UnreadableRowError, UnicodeDecodeError, IndexError for rows that cannot be read.
        """
        if change is Change.UPDATE:
            return self._updates(present, data)
        found: list[tuple[Key, RowChange]] = []
        read, at = self._reader.row, 0
        while at < len(data):
            row, at = read(data, at, present[0])
            if change is Change.INSERT:
                key = self._key(row[0])
                found.append((key, RowChange(self._entry(key, row))))
            elif row[ACKED_AT] is None or row[ACKED_AT] is ABSENT:  # Otherwise it was acknowledged before.
                found.append((self._key(row[0]), RowChange(None, _delivery(row))))
        return found

    def _updates(self, present: Sequence[int], data: bytes) -> list[tuple[Key, RowChange]]:
        found: list[tuple[Key, RowChange]] = []
        read, left_out, at, first = self._reader.row, self._left_out, 0, True
        while at < len(data):
            before, at = read(data, at, present[0])
            after, at = read(data, at, present[1])
            if left_out is None:
                self._add_update(found, before, after)
            elif first and (left_out.is_claim(before, after) or left_out.is_own_ack(before, after)):
                break
            elif not left_out.is_foreign_ack(before, after):
                self._add_update(found, before, after)
            first = False
        return found

    def _add_update(self, found: list[tuple[Key, RowChange]], before: Row, after: Row) -> None:
        if ABSENT in after:  # Columns that the image leaves out were not changed.
            after = tuple(old if new is ABSENT else new for old, new in zip(before, after, strict=True))
        delivery = _delivery(before)
        key = self._key(after[0])
        if after[0] != before[0]:
            found.append((self._key(before[0]), RowChange(None, delivery)))
        elif isinstance(before[ACKED_AT], int) and isinstance(after[ACKED_AT], int):
            return  # It was acknowledged before.
        entry = self._entry(key, after)
        if entry is not None and delivery is None:
            raise UnreadableRowError("not the whole row before its change")
        found.append((key, RowChange(entry, delivery)))

    def _key(self, value: Value) -> Key:
        if isinstance(value, int):
            return value
        if not isinstance(value, bytes) or self._read_key is None:
            raise UnreadableRowError("no id")
        return self._read_key(value)

    def _entry(self, key: Key, row: Row) -> Entry | None:
        """The message as it now is; None if it is acknowledged."""
        priority, epoch, due_ns, acked = row[1 : ACKED_AT + 1]
        if acked is ABSENT:
            raise UnreadableRowError("no time_acked")
        if acked is not None:
            return None
        if priority is ABSENT or epoch is ABSENT or due_ns is ABSENT:
            raise UnreadableRowError("not the whole row")
        group = self._group(row[self._group_at :]) if self._group_readers else None
        return Entry(key, epoch or 0, LOWEST_PRIORITY if priority is None else priority, due_ns or 0, group)

    def _group(self, values: Row) -> Group | None:
        """The message group of these values; None: the image leaves one out, or it is not of its column's
        character set."""
        if ABSENT in values:
            return None
        pairs = zip(self._group_readers, values, strict=True)
        try:
            return tuple([None if value is None else read(value) for read, value in pairs])
        except UnicodeDecodeError:
            return None


def _value_reader(field: Field, column: ColumnType) -> Callable[[Any], Key] | None:
    """A function from a `Value` of this column to what the engine reads by SQL; None: as in `key_reader`."""
    return _as_it_is if is_signed(column) is not None else key_reader(field, column)


def _as_it_is(value: Any) -> Key:
    return cast("Key", value)


def _delivery(row: Row) -> Delivery | None:
    """The delivery that a row showed; None if the image leaves it out."""
    epoch, until_ns = row[EPOCH_AT], row[DUE_AT]
    if epoch is ABSENT or until_ns is ABSENT:
        return None
    return Delivery(epoch or 0, until_ns or 0)


@dataclass(slots=True)
class ChangeSet:
    """The last state of each changed message, for at most `rows_max` messages."""

    rows_max: int
    tables: dict[TableId, dict[Key, RowChange] | None] = field(default_factory=dict)
    """For each table the changes by key, or None: its changes are unknown."""
    everything: bool = False
    """The changes of all tables are unknown."""
    schema_changed: bool = False
    rows: int = 0
    """The number of states."""

    def __bool__(self) -> bool:
        return bool(self.tables) or self.everything or self.schema_changed

    @property
    def has_unknown(self) -> bool:
        """Whether the changes of some table are unknown."""
        return self.everything or None in self.tables.values()

    def is_unknown(self, table: TableId) -> bool:
        """Whether the table's changes are unknown, so more rows would add nothing."""
        return self.everything or self.tables.get(table, ABSENT) is None

    def add_rows(self, table: TableId, changes: Iterable[tuple[Key, RowChange]]) -> None:
        """Add changes of messages, in their order."""
        if self.is_unknown(table):
            return
        rows = self.tables.setdefault(table, {})
        assert rows is not None
        before, room = len(rows), self.rows_max - self.rows
        for key, change in changes:
            if (earlier := rows.get(key)) is not None:
                rows[key] = change.after(earlier)
            elif len(rows) - before < room:
                rows[key] = change
            else:
                self.rows += len(rows) - before
                self.add_unknown(table)
                return
        self.rows += len(rows) - before

    def add_unknown(self, table: TableId) -> None:
        """Any message of the table may have changed."""
        self.rows -= len(self.tables.get(table) or ())
        self.tables[table] = None

    def add(self, later: ChangeSet) -> None:
        """Merge a later change set."""
        self.everything |= later.everything
        self.schema_changed |= later.schema_changed
        for table, rows in later.tables.items():
            if rows is None:
                self.add_unknown(table)
            else:
                self.add_rows(table, rows.items())

    def by_table(self) -> list[TableChanges]:
        """The changes in the engine's form."""
        return [_table_changes(table, rows or {}) for table, rows in self.tables.items()]


def _table_changes(table: TableId, rows: Mapping[Key, RowChange]) -> TableChanges:
    seen, over, before = [], [], {}
    for key, (entry, delivery) in rows.items():
        if entry is None:
            over.append(key)
        else:
            seen.append(entry)
        if delivery is not None:
            before[key] = delivery
    return TableChanges(table, tuple(seen), tuple(over), before)


class StatementEffect(enum.Flag):
    """The effect of a logged statement."""

    NOTHING = 0
    COMMITTED = enum.auto()
    """The transaction's changes are valid."""
    ROLLED_BACK = enum.auto()
    """The transaction's changes are void."""
    SCHEMA = enum.auto()
    """A table was created, altered or dropped."""
    ANYTHING = enum.auto()
    """Any row may have changed."""


_WORD = re.compile(r"(?>(?:\s|/\*(?!M?!).*?\*/|(?:--|#)[^\n]*\n)*)([A-Za-z]*)", re.DOTALL)
_STATEMENTS = {
    **dict.fromkeys(
        ("BEGIN", "SAVEPOINT", "SET", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "FLUSH"), StatementEffect.NOTHING
    ),
    "COMMIT": StatementEffect.COMMITTED,
    **dict.fromkeys(("CREATE", "DROP"), StatementEffect.SCHEMA | StatementEffect.COMMITTED),
    **dict.fromkeys(
        ("ALTER", "RENAME", "TRUNCATE"), StatementEffect.SCHEMA | StatementEffect.ANYTHING | StatementEffect.COMMITTED
    ),
}


def effect_of(statement: str) -> StatementEffect:
    """The effect of a logged statement.

    A session may set binlog_format so that row changes are statements.
    """
    found = _WORD.match(statement)
    word = found[1].upper() if found else ""
    text = statement.upper()
    if word == "XA":  # The rows were logged when it was prepared.
        return (
            StatementEffect.ANYTHING | StatementEffect.COMMITTED
            if "COMMIT" in text.split()[:2]
            else StatementEffect.NOTHING
        )
    if word == "ROLLBACK":
        return StatementEffect.ANYTHING if " TO " in text else StatementEffect.ROLLED_BACK
    meaning = _STATEMENTS.get(word, StatementEffect.ANYTHING)
    if word == "CREATE" and text.endswith(" TRANSACTION"):  # CREATE TABLE … SELECT: its rows follow.
        return meaning & ~StatementEffect.COMMITTED
    return meaning


Sink = Callable[[ChangeSet], None]
"""Takes the changes of a transaction."""


class Transactions:
    """Takes rows and statements in the order of the binary log.

    A complete transaction goes to `sink`.
    """

    def __init__(self, rows_max: int, sink: Sink) -> None:
        self._rows_max, self._sink = rows_max, sink
        self.pending = ChangeSet(rows_max)
        """The changes of the transaction that is being read."""

    def __bool__(self) -> bool:
        """Whether the transaction that is being read has changes to report."""
        return bool(self.pending)

    def statement(self, text: str) -> None:
        """A statement was logged."""
        meaning = effect_of(text)
        self.pending.schema_changed |= StatementEffect.SCHEMA in meaning
        self.pending.everything |= StatementEffect.ANYTHING in meaning
        if StatementEffect.ROLLED_BACK in meaning:
            self.rolled_back()
        if StatementEffect.COMMITTED in meaning:
            self.committed()

    def committed(self) -> None:
        """The transaction is complete."""
        changes = self.pending
        if changes:
            self.rolled_back()
            self._sink(changes)

    def rolled_back(self) -> None:
        """The transaction was rolled back, or only prepared."""
        self.pending = ChangeSet(self._rows_max)
