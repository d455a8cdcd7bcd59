"""What the server's binary log means to queues: changed rows in, what became of which messages out.

A hint and never a source of truth: each claim is checked in the database. So news may be merged (only the last word on
a message counts), and when there is too much of it, or a row cannot be read for certain, a table's news shrinks to
*anything may have changed here*: memory is bounded, and nothing is ever left out.
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
    """The changes of one table: unacknowledged messages as they now are, and ids of messages that are over.

    Neither: anything may have changed.
    """

    table: TableId
    seen: tuple[Entry, ...] = ()
    over: tuple[Key, ...] = ()


class UnreadableRowError(Exception):
    """The log does not hold enough of a row to tell what became of its message."""


class Change(enum.Enum):
    """What was done to a row."""

    INSERT = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()


class Layout:
    """How the rows of one message table stand in the log, as of one table map."""

    def __init__(self, columns: Sequence[ColumnType], fields: Sequence[Field | None]) -> None:
        """The table's columns in their order, as information_schema and as the log has them.

        Raises UnreadableRowError if the two differ: the table was changed in between, or has a type unknown here.
        """
        known = [each for each in fields if each is not None]
        positions = {each.name.lower(): at for at, each in enumerate(columns)}
        if len(known) < len(fields) or len(fields) != len(columns) or not positions.keys() >= {*QUEUE_COLUMNS}:
            raise UnreadableRowError(f"{len(columns)} columns, of which the log has {len(known)} that can be read")
        wanted = [positions[name] for name in QUEUE_COLUMNS]
        read_key = key_reader(known[wanted[0]], columns[wanted[0]])
        if read_key is None:
            raise UnreadableRowError(f"an id of type {columns[wanted[0]].declared} is known to the server alone")
        self._key = read_key
        self._signed = [not {"unsigned", "zerofill"} & {*columns[at].declared.split()} for at in wanted]
        self._reader = RowReader(known, wanted)

    def changes(self, change: Change, present: Sequence[int], data: bytes) -> Iterator[tuple[Key, Entry | None]]:
        """What became of each message in an event's rows; `present` columns are told for each of a row's images.

        Raises UnreadableRowError, UnicodeDecodeError, IndexError when that cannot be told.
        """
        at = 0
        while at < len(data):
            first, at = self._reader.row(data, at, present[0])
            if change is Change.INSERT:
                yield self._key_of(first), self._entry(first)
            elif change is Change.DELETE:
                if first[-1] is None or first[-1] is ABSENT:  # Else it was acknowledged, and over before.
                    yield self._key_of(first), None
            else:
                second, at = self._reader.row(data, at, present[1])
                yield from self._update(first, second)

    def _update(self, before: list[Raw], after: list[Raw]) -> Iterator[tuple[Key, Entry | None]]:
        # What an image leaves out was not changed.
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
            self._number(each, signed) for each, signed in zip((None, *row[1:]), self._signed, strict=True)
        )
        return Entry(self._key_of(row), epoch or 0, LOWEST_PRIORITY if priority is None else priority, due_ns or 0)

    @staticmethod
    def _number(raw: Raw, signed: bool) -> int | None:  # noqa: FBT001  # from zip
        if raw is ABSENT:
            raise UnreadableRowError("not the whole row")
        return None if raw is None else integer_of(raw, signed=signed)


@dataclass(slots=True)
class ChangeSet:
    """The last word on each message, as long as there are at most `rows_max`."""

    rows_max: int
    tables: dict[TableId, dict[Key, Entry | None] | None] = field(default_factory=dict)
    """None: anything may have changed."""
    everything: bool = False
    """Anything may have changed in any table."""
    schema_changed: bool = False
    rows: int = 0
    """How many words there are."""

    def __bool__(self) -> bool:
        return bool(self.tables) or self.everything or self.schema_changed

    @property
    def has_unknown(self) -> bool:
        """Whether it says of some table no more than that anything may have changed."""
        return self.everything or None in self.tables.values()

    def is_unknown(self, table: TableId) -> bool:
        """Whether more rows of that table would add nothing."""
        return self.everything or self.tables.get(table, ABSENT) is None

    def add_row(self, table: TableId, key: Key, entry: Entry | None) -> None:
        """A message became this; None: it is over."""
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
        """Anything may have changed in that table."""
        self.rows -= len(self.tables.get(table) or ())
        self.tables[table] = None

    def add(self, later: ChangeSet) -> None:
        """Take what happened after all this."""
        self.everything |= later.everything
        self.schema_changed |= later.schema_changed
        for table, rows in later.tables.items():
            if rows is None:
                self.add_unknown(table)
            else:
                for key, entry in rows.items():
                    self.add_row(table, key, entry)

    def by_table(self) -> list[TableChanges]:
        """As the engine takes it."""
        return [
            TableChanges(
                table,
                tuple(each for each in (rows or {}).values() if each is not None),
                tuple(key for key, each in (rows or {}).items() if each is None),
            )
            for table, rows in self.tables.items()
        ]


class StatementEffect(enum.Flag):
    """What a statement in the log amounts to."""

    NOTHING = 0
    COMMITTED = enum.auto()
    """What was said before counts now."""
    ROLLED_BACK = enum.auto()
    """What was said before counts for nothing."""
    SCHEMA = enum.auto()
    """A table may be another one."""
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
    """What a logged statement amounts to. Changes of rows come as statements where somebody asked for that."""
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
    if word == "CREATE" and text.endswith(" TRANSACTION"):  # CREATE TABLE … SELECT begins one: its rows follow.
        return meaning & ~StatementEffect.COMMITTED
    return meaning


Sink = Callable[[ChangeSet], None]


class Transactions:
    """Rows and statements in the order of the log; news when a transaction is complete."""

    def __init__(self, rows_max: int, sink: Sink) -> None:
        self._rows_max, self._sink = rows_max, sink
        self.pending = ChangeSet(rows_max)
        """Of the transaction that is being read."""

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
        """It was rolled back, or only prepared."""
        self.pending = ChangeSet(self._rows_max)
