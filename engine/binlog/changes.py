"""Turns logged row changes into change sets: the last state of each changed message of each table.

A change set is never trusted: each claim is checked in the database. So change sets can be merged,
and only the last state of a message counts. If there are too many rows, or a row cannot be read for
certain, the table's changes become *unknown*: any of its messages may have changed. So memory is
bounded, and no change is lost.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.binlog.row_image import ABSENT, ColumnType, Field, Raw, RowReader, integer_of, key_reader
from engine.model import Entry, Key, TableId
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

    def changes(self, change: Change, present: Sequence[int], data: bytes) -> Iterator[tuple[Key, Entry | None]]:
        """Yield the new state of each message in an event's rows. None: it was acknowledged or
        deleted.

        `present` has the columns of each image of a row, a bit for each column. Raises
        UnreadableRowError, UnicodeDecodeError, IndexError for rows that cannot be read.
        """
        at = 0
        while at < len(data):
            first, at = self._reader.row(data, at, present[0])
            if change is Change.INSERT:
                yield self._key_of(first), self._entry(first)
            elif change is Change.DELETE:
                if first[-1] is None or first[-1] is ABSENT:  # Otherwise it was acknowledged before.
                    yield self._key_of(first), None
            else:
                second, at = self._reader.row(data, at, present[1])
                yield from self._update(first, second)

    def _update(self, before: list[Raw], after: list[Raw]) -> Iterator[tuple[Key, Entry | None]]:
        # Columns that the image leaves out were not changed.
        after = [old if new is ABSENT else new for old, new in zip(before, after, strict=True)]
        if after[0] != before[0]:
            yield self._key_of(before), None
        elif isinstance(before[-1], bytes) and isinstance(after[-1], bytes):
            return
        yield self._key_of(after), self._entry(after)

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
    tables: dict[TableId, dict[Key, Entry | None] | None] = field(default_factory=dict)
    """For each table the states by key (None: acknowledged or deleted), or None: its changes are
    unknown."""
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

    def add_row(self, table: TableId, key: Key, entry: Entry | None) -> None:
        """Set a message's state. None: it was acknowledged or deleted."""
        if self.is_unknown(table):
            return
        if self.rows >= self.rows_max:
            self.add_unknown(table)
            return
        rows = self.tables.setdefault(table, {})
        assert rows is not None
        self.rows += key not in rows
        rows[key] = entry

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
                for key, entry in rows.items():
                    self.add_row(table, key, entry)

    def by_table(self) -> list[TableChanges]:
        """The changes in the engine's form."""
        return [
            TableChanges(
                table,
                tuple(entry for entry in (rows or {}).values() if entry is not None),
                tuple(key for key, entry in (rows or {}).items() if entry is None),
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


Sink = Callable[[ChangeSet], None]


class Transactions:
    """Takes rows and statements in the order of the binary log.

    A complete transaction goes to `sink`.
    """

    def __init__(self, rows_max: int, sink: Sink) -> None:
        self._rows_max, self._sink = rows_max, sink
        self.pending = ChangeSet(rows_max)
        """The changes of the transaction that is being read."""

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
        pending, self.pending = self.pending, ChangeSet(self._rows_max)
        if pending:
            self._sink(pending)

    def rolled_back(self) -> None:
        """The transaction was rolled back, or only prepared."""
        self.pending = ChangeSet(self._rows_max)
