"""Turns logged row changes into change sets: the last state of each changed message of each table.

A change set is never trusted: each claim is checked in the database. So change sets can be merged,
and only the last state of a message counts. If there are too many rows, or a row cannot be read for
certain, the table's changes become *unknown*: any of its messages may have changed. So memory is
bounded, and no change is lost.

The engine's own changes are not among them (engine.binlog.event_filter). Each change therefore
comes with the delivery that its row showed *before*: it shows whether the change was made before or
after a claim of the engine's.

The acknowledgements of its own clients, what other proxies claim, and the acknowledgements of what
these hold, are left out where they do not matter here (`ChangeFilter`). Otherwise each proxy would
spend the same time on every message.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from engine.binlog.row_image import ABSENT, ColumnType, Field, RowReader, Value, is_signed, key_reader
from engine.model import SLOTS, Delivery, Entry, Key, QueueTable, TableId
from engine.store.queries import LOWEST_PRIORITY

QUEUE_COLUMNS = ("id", "priority", "epoch", "time_next", "time_acked")
_EPOCH_AT, _DUE_AT, _ACKED_AT, _LEASE_AT = 2, 3, 4, 5

Row = tuple[Any, ...]
"""The values of QUEUE_COLUMNS, and with a ChangeFilter's lease column of that one, in an image of a row, each a
`Value`. All but the id are integers."""


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Leaves out what a proxy knows or does not need: acknowledgements that its own clients have made
    through it, claims of other proxies, and the acknowledgements of messages that others hold.

    The answer to an acknowledgement has shown the engine what it did. If that answer was lost, its lease ends
    by a lookup or at its deadline, as without the binary log.

    A message that another proxy has claimed is not due here before its wait is over, and a scan finds
    it then. A key that was read ahead and claimed elsewhere costs one key of a claim in vain.
    """

    column: str | None
    """The lease column. A claim writes the new time_next into it again, with the slot of its proxy. None:
    what other proxies do is not left out."""
    slots: frozenset[int]
    """The slots of the proxies that get the changes: what they hold is not left out."""
    own_slot: int = 0
    """The slot that ends the time_acked of acknowledgements through the proxy that gets the changes. 0:
    these are not left out. An application that writes time_acked itself, with nanoseconds, writes these
    three digits once in a thousand times. Then the lease ends as if the answer was lost."""

    def is_claim(self, before: Row, after: Row) -> bool:
        """Whether this change of a row is a claim. All rows of an event are changed by one statement."""
        if self.column is None:
            return False
        lease, epoch = after[_LEASE_AT], before[_EPOCH_AT]
        if not isinstance(lease, int) or not isinstance(epoch, int):
            return False
        claimed = lease % SLOTS != 0 and lease == after[_DUE_AT] and lease != before[_LEASE_AT]
        return claimed and after[_EPOCH_AT] == epoch + 1 and after[_ACKED_AT] is None

    def is_own_ack(self, before: Row, after: Row) -> bool:
        """Whether this change of a row is an acknowledgement through the proxy that gets the changes."""
        acked = after[_ACKED_AT]
        if self.own_slot == 0 or not isinstance(acked, int) or after[0] not in {before[0], ABSENT}:
            return False
        return acked % SLOTS == self.own_slot

    def is_foreign_ack(self, before: Row, after: Row) -> bool:
        """Whether this change of a row acknowledges a message that another proxy holds or held last."""
        if self.column is None:
            return False
        lease = before[_LEASE_AT]
        if not isinstance(lease, int) or not isinstance(after[_ACKED_AT], int):
            return False
        slot = lease % SLOTS
        return slot != 0 and slot not in self.slots and lease == before[_DUE_AT]


def change_filter(
    queue: QueueTable, slots: frozenset[int], own_slot: int = 0, *, divided: bool = True
) -> ChangeFilter | None:
    """The filter for a queue and a proxy that has or had `slots` on the server, and has `own_slot` now (0:
    none). None if every change matters. `divided`: whether proxies divide its messages among themselves.

    Limits, groups, semaphores and batches depend on what is in flight, wherever it is acknowledged. Proxies
    that do not divide the messages read ahead the same ones; so do streams with a condition, which the
    caller knows of.
    """
    if not slots or not queue.stands_alone:
        return None
    column = queue.lease_column if divided and queue.is_shareable else None
    return ChangeFilter(column, slots, own_slot) if column is not None or own_slot else None


def filter_for_all(filters: Iterable[ChangeFilter | None]) -> ChangeFilter | None:
    """One filter for several proxies that get the same changes of a table. With more than one, what the
    clients of each acknowledge is for the others."""
    found = list(filters)
    if len(found) == 1:
        return found[0]
    known = [filter_ for filter_ in found if filter_ is not None]
    columns = {filter_.column for filter_ in known}
    if len(known) < len(found) or len(columns) != 1 or None in columns:
        return None
    return ChangeFilter(columns.pop(), frozenset[int]().union(*(filter_.slots for filter_ in known)))


FollowedTables = Mapping[TableId, ChangeFilter | None]
"""The tables to follow, and what is left out of their changes."""


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
        self, columns: Sequence[ColumnType], fields: Sequence[Field | None], left_out: ChangeFilter | None = None
    ) -> None:
        """The table's columns in their order: from information_schema, and from the binary log.
        `left_out`: leaves out changes.

        Raises UnreadableRowError if the two differ: the table was changed in between, or has a type
        unknown here.
        """
        known = [field for field in fields if field is not None]
        positions = {column.name.lower(): at for at, column in enumerate(columns)}
        if len(known) < len(fields) or len(fields) != len(columns) or not positions.keys() >= {*QUEUE_COLUMNS}:
            raise UnreadableRowError(f"{len(known)} of {len(columns)} columns can be read in the binary log")
        names = [*QUEUE_COLUMNS]
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
                found.append((key, RowChange(_entry(key, row))))
            elif row[_ACKED_AT] is None or row[_ACKED_AT] is ABSENT:  # Otherwise it was acknowledged before.
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
        elif isinstance(before[_ACKED_AT], int) and isinstance(after[_ACKED_AT], int):
            return  # It was acknowledged before.
        entry = _entry(key, after)
        if entry is not None and delivery is None:
            raise UnreadableRowError("not the whole row before its change")
        found.append((key, RowChange(entry, delivery)))

    def _key(self, value: Value) -> Key:
        if isinstance(value, int):
            return value
        if not isinstance(value, bytes) or self._read_key is None:
            raise UnreadableRowError("no id")
        return self._read_key(value)


def _delivery(row: Row) -> Delivery | None:
    """The delivery that a row showed; None if the image leaves it out."""
    epoch, until_ns = row[_EPOCH_AT], row[_DUE_AT]
    if epoch is ABSENT or until_ns is ABSENT:
        return None
    return Delivery(epoch or 0, until_ns or 0)


def _entry(key: Key, row: Row) -> Entry | None:
    """The message as it now is; None if it is acknowledged."""
    priority, epoch, due_ns, acked = row[1 : _ACKED_AT + 1]
    if acked is ABSENT:
        raise UnreadableRowError("no time_acked")
    if acked is not None:
        return None
    if priority is ABSENT or epoch is ABSENT or due_ns is ABSENT:
        raise UnreadableRowError("not the whole row")
    return Entry(key, epoch or 0, LOWEST_PRIORITY if priority is None else priority, due_ns or 0)


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
