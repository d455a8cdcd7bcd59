"""Turns logged row changes into change sets: the last state of each changed message of each table.

A change set is never trusted: each claim is checked in the database. So change sets can be merged,
and only the last state of a message counts. If there are too many rows, or a row cannot be read for
certain, the table's changes become *unknown*: any of its messages may have changed. So memory is
bounded, and no change is lost.

The engine's own changes are not among them (engine.binlog.event_filter). Each change therefore
comes with the delivery that its row showed *before*: it shows whether the change was made before or
after a claim of the engine's.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.binlog.row_image import ABSENT, ColumnType, Field, Raw, RowReader, integer_of, key_reader
from engine.model import Delivery, Entry, Key, TableId
from engine.store.queries import LOWEST_PRIORITY

QUEUE_COLUMNS = ("id", "priority", "epoch", "time_next", "time_acked")


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

    def __init__(self, columns: Sequence[ColumnType], fields: Sequence[Field | None]) -> None:
        """The table's columns in their order: from information_schema, and from the binary log.

        Raises UnreadableRowError if the two differ: the table was changed in between, or has a type
        unknown here.
        """
        known = [field for field in fields if field is not None]
        positions = {column.name.lower(): at for at, column in enumerate(columns)}
        if len(known) < len(fields) or len(fields) != len(columns) or not positions.keys() >= {*QUEUE_COLUMNS}:
            raise UnreadableRowError(f"{len(known)} of {len(columns)} columns can be read in the binary log")
        wanted = [positions[name] for name in QUEUE_COLUMNS]
        read_key = key_reader(known[wanted[0]], columns[wanted[0]])
        if read_key is None:
            raise UnreadableRowError(f"an id of type {columns[wanted[0]].declared} can be read by the server alone")
        self._key = read_key
        self._signed = [not {"unsigned", "zerofill"} & {*columns[at].declared.split()} for at in wanted]
        self._reader = RowReader(known, wanted)

    def changes(self, change: Change, present: Sequence[int], data: bytes) -> Iterator[tuple[Key, RowChange]]:
        """Yield the changes of messages in an event's rows.

        `present` has the columns of each image of a row, a bit for each column. Raises
        UnreadableRowError, UnicodeDecodeError, IndexError for rows that cannot be read.
        """
        at = 0
        while at < len(data):
            first, at = self._reader.row(data, at, present[0])
            if change is Change.INSERT:
                yield self._key_of(first), RowChange(self._entry(first))
            elif change is Change.DELETE:
                if first[-1] is None or first[-1] is ABSENT:  # Otherwise it was acknowledged before.
                    yield self._key_of(first), RowChange(None, self._delivery(first))
            else:
                second, at = self._reader.row(data, at, present[1])
                yield from self._update(first, second)

    def _update(self, before: list[Raw], after: list[Raw]) -> Iterator[tuple[Key, RowChange]]:
        # Columns that the image leaves out were not changed.
        after = [old if new is ABSENT else new for old, new in zip(before, after, strict=True)]
        delivery = self._delivery(before)
        if after[0] != before[0]:
            yield self._key_of(before), RowChange(None, delivery)
        elif isinstance(before[-1], bytes) and isinstance(after[-1], bytes):
            return
        entry = self._entry(after)
        if entry is not None and delivery is None:
            raise UnreadableRowError("not the whole row before its change")
        yield self._key_of(after), RowChange(entry, delivery)

    def _delivery(self, row: list[Raw]) -> Delivery | None:
        """The delivery that a row showed; None if the image leaves it out."""
        _, _, epoch, until_ns, _ = row
        if epoch is ABSENT or until_ns is ABSENT:
            return None
        return Delivery(self._number(epoch, self._signed[2]) or 0, self._number(until_ns, self._signed[3]) or 0)

    def _key_of(self, row: list[Raw]) -> Key:
        if not isinstance(row[0], bytes):
            raise UnreadableRowError("no id")
        return self._key(row[0])

    def _entry(self, row: list[Raw]) -> Entry | None:
        acked = row[-1]
        if acked is ABSENT:
            raise UnreadableRowError("no time_acked")
        if acked is not None:
            return None
        _, priority, epoch, due_ns, _ = (
            self._number(raw, signed) for raw, signed in zip((None, *row[1:]), self._signed, strict=True)
        )
        return Entry(self._key_of(row), epoch or 0, LOWEST_PRIORITY if priority is None else priority, due_ns or 0)

    @staticmethod
    def _number(raw: Raw, signed: bool) -> int | None:  # noqa: FBT001  # from zip
        if raw is ABSENT:
            raise UnreadableRowError("not the whole row")
        return None if raw is None else integer_of(raw, signed=signed)


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

    def add_row(self, table: TableId, key: Key, change: RowChange) -> None:
        """Add a change of a message."""
        if self.is_unknown(table):
            return
        if self.rows >= self.rows_max:
            self.add_unknown(table)
            return
        rows = self.tables.setdefault(table, {})
        assert rows is not None
        if (earlier := rows.get(key)) is None:
            self.rows += 1
            rows[key] = change
        else:
            rows[key] = change.after(earlier)

    def add_unknown(self, table: TableId) -> None:
        """Any message of the table may have changed."""
        self.rows -= len(self.tables.get(table) or ())
        self.tables[table] = None

    def copy(self) -> ChangeSet:
        """Another change set with the same changes."""
        tables = {table: None if rows is None else dict(rows) for table, rows in self.tables.items()}
        return ChangeSet(self.rows_max, tables, self.everything, self.schema_changed, self.rows)

    def add(self, later: ChangeSet) -> None:
        """Merge a later change set."""
        self.everything |= later.everything
        self.schema_changed |= later.schema_changed
        for table, rows in later.tables.items():
            if rows is None:
                self.add_unknown(table)
            else:
                for key, change in rows.items():
                    self.add_row(table, key, change)

    def by_table(self) -> list[TableChanges]:
        """The changes in the engine's form."""
        return [
            TableChanges(
                table,
                tuple(change.entry for change in (rows or {}).values() if change.entry is not None),
                tuple(key for key, change in (rows or {}).items() if change.entry is None),
                {key: change.before for key, change in (rows or {}).items() if change.before is not None},
            )
            for table, rows in self.tables.items()
        ]


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


Sink = Callable[[ChangeSet, ChangeSet], None]
"""Takes the changes of a transaction: those for all consumers, and those for all but its owner."""


class Transactions:
    """Takes rows and statements in the order of the binary log.

    A complete transaction goes to `sink`.
    """

    def __init__(self, rows_max: int, sink: Sink) -> None:
        self._rows_max, self._sink = rows_max, sink
        self.pending = ChangeSet(rows_max)
        """The changes of the transaction that is being read."""
        self.pending_for_others = ChangeSet(rows_max)
        """Those that its owner knows of. Empty where there is one consumer."""

    def __bool__(self) -> bool:
        """Whether the transaction that is being read has changes to report."""
        return bool(self.pending) or bool(self.pending_for_others)

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
        changes, for_others = self.pending, self.pending_for_others
        if changes or for_others:
            self.rolled_back()
            self._sink(changes, for_others)

    def rolled_back(self) -> None:
        """The transaction was rolled back, or only prepared."""
        self.pending = ChangeSet(self._rows_max)
        self.pending_for_others = ChangeSet(self._rows_max)
