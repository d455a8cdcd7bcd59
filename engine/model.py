"""The nouns of the engine: tables, policies, index entries, leases, row formats.

Everything here is a value: frozen, comparable, without behaviour that needs a clock or a socket.
All times are nanoseconds since 1970 on the *server's* clock (`…_ns`), as they stand in the
table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

NS_PER_S = 1_000_000_000

Key = int | Decimal | str | bytes
"""A message's id as the engine holds it: a number for numeric columns, bytes for binary ones,
else text."""


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table's full name, in the server's spelling."""

    db: str
    name: str

    def __str__(self) -> str:
        return f"{self.db}.{self.name}"


class OnDisconnect(enum.Enum):
    """What becomes of a vanished subscriber's unacknowledged messages."""

    RELEASE = "release"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Policy:
    """The directives of a table's comment, checked, durations in nanoseconds (docs/tables.md
    lists them)."""

    ack_wait_ns: int
    purge_after_ns: int
    batch_size: int
    cache_size: int
    poller_interval_ns: int
    min_backoff_ns: int
    max_backoff_ns: int | None = None
    message_columns: tuple[str, ...] | None = None
    max_in_flight: int | None = None
    on_disconnect: OnDisconnect = OnDisconnect.RELEASE
    max_attempts: int = 0
    """Deliveries until a message is dead; 0: it never is."""
    dead_letter: str | None = None
    """Where dead messages go: a table's name, with or without its database."""
    dead_letter_of: tuple[tuple[str | None, str], ...] = ()
    """The tables whose dead messages may come here: databases (None: this table's) and names."""
    max_rate: float | None = None
    """Deliveries a second."""
    paused: bool = False
    """Whether nothing is delivered, by any proxy."""


class IdKind(enum.Enum):
    """How a message id is read from the server and written back as a literal."""

    INTEGER = enum.auto()
    """Also YEAR and BIT."""
    DECIMAL = enum.auto()
    FLOAT = enum.auto()
    """FLOAT and DOUBLE: the text of its double precision value."""
    TEXT = enum.auto()
    BINARY = enum.auto()
    TIMESTAMP = enum.auto()
    """The one type whose text depends on the session's time zone: seconds since 1970, as text."""
    OTHER = enum.auto()
    """DATETIME, UUID, ENUM …: read as text, written as a quoted literal."""


@dataclass(frozen=True, slots=True)
class QueueTable:
    """A message table that is fit for use: where it is, what its comment asks for, how to reach
    its rows."""

    id: TableId
    policy: Policy
    id_kind: IdKind
    id_index: str
    """The index on `id`, by which all claims go. Unique, but where the table is partitioned by
    time."""
    scan_index: str | None
    """The index on (time_acked, priority, time_next), or None: then scans sort the whole table."""
    scan_descending: bool
    """Whether time_next descends in it, as in Vitess's own tables."""
    scan_ties_by_id: bool
    """Whether entries of one priority and time stand in the order of `id` in it."""
    columns: tuple[str, ...]
    """Every column in the table's order, invisible ones included."""
    default_columns: tuple[str, ...]
    """What `*` means."""
    advice: tuple[str, ...] = ()
    """What works and could be better, for the log."""
    warnings: tuple[str, ...] = ()
    """What somebody asked for and does not get, each with what to do: for the log, and for SHOW
    QUEUES' `Problem`."""
    id_pad_chars: int = 0
    """The length of a CHAR id, to which sql_mode PAD_CHAR_TO_FULL_LENGTH pads it; 0 for other
    types."""
    id_grows: bool = False
    """Whether the server gives out ascending ids (AUTO_INCREMENT), so that what is new has a
    greater one."""
    kept_by_partition: bool = False
    """Whether it is partitioned by time_acked, so that whole partitions can be dropped in place
    of deletes."""
    folds_names: bool = False
    """Whether its server takes names of tables for the same that differ in case alone."""

    @property
    def dead_letter(self) -> TableId | None:
        """Where dead messages go, if they go anywhere."""
        if not self.policy.max_attempts or self.policy.dead_letter is None:
            return None
        db, _, name = self.policy.dead_letter.rpartition(".")
        return TableId(db or self.id.db, name)

    def takes_dead_letters_of(self, source: TableId) -> bool:
        """Whether its comment names that table, in the server's spelling, as one whose dead
        messages may come here."""
        named = {TableId(db or self.id.db, name) for db, name in self.policy.dead_letter_of}
        if self.folds_names:
            return _folded(source) in map(_folded, named)
        return source in named


def _folded(table: TableId) -> TableId:
    """Without regard to the case of ASCII letters. Which other letters are the same, only the
    server knows: those have to be written as it has them."""
    return TableId(*(part.encode().lower().decode() for part in (table.db, table.name)))


@dataclass(frozen=True, slots=True)
class BrokenTable:
    """A table that says it is a message table and cannot be one, with everything that is wrong."""

    id: TableId
    problems: tuple[str, ...]
    denied: bool = False
    """Whether all that is known to be wrong is that the engine's account lacks a privilege: then
    it does nothing there, and clients can still acknowledge."""

    def __str__(self) -> str:
        return f"{self.id} cannot be used as a queue: " + "; ".join(self.problems)


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How one subscriber wants its rows: equal formats share a fetch.

    `charset` is the client's character_set_results (None: no conversion), `time_zone` its
    @@time_zone, `pad_char` whether its sql_mode pads CHAR values; all three change the bytes of
    a row.
    """

    columns: tuple[str, ...]
    binary: bool
    charset: str | None = "utf8mb4"
    time_zone: str = "SYSTEM"
    pad_char: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of a table a stream wants.

    `condition` is SQL over the table's own columns that means the same in every session but for
    its times, which are those of `time_zone`; None: all. `partitions` are names; none: all.
    """

    condition: str | None = None
    partitions: tuple[str, ...] = ()
    time_zone: str = "+00:00"

    def __str__(self) -> str:
        partitions = f"PARTITION ({', '.join(self.partitions)}) " if self.partitions else ""
        return f"{partitions}{self.condition or 'all'}"


ANYTHING = Selection()
"""What a STREAM without WHERE and PARTITION wants."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One unacknowledged row as the scan index shows it. No row data."""

    key: Key
    epoch: int
    priority: int
    due_ns: int


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order of one priority: rows of time 0 are passed up to an id (None: none
    are), others up to a time."""

    zero_id: int | None
    time_ns: int


@dataclass(frozen=True, slots=True)
class Range:
    """What part of the table a scan for a condition reads: of each priority what lies behind its
    position (all of it if it has none), and what comes due until `until_ns`."""

    after: Mapping[int, Position]
    until_ns: int


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What one look at the index found: the due rows in the order of delivery, then those due next,
    by time.

    `more`: due rows beyond these exist. `horizon_ns`: rows that come due from then on may be
    missing (None: none are), those apart that are less urgent than what `more` speaks of.
    `reached` and `greatest_id` are told by scans of a range: up to where they have read each
    priority, and the greatest id there was (None: ids tell nothing).
    """

    entries: tuple[Entry, ...]
    more: bool
    horizon_ns: int | None
    reached: Mapping[int, Position] = field(default_factory=dict)
    greatest_id: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row to claim: only while it still has this epoch and is still selected, and for how long
    if so."""

    key: Key
    epoch: int
    wait_ns: int
    selection: Selection = ANYTHING


class Delivery(NamedTuple):
    """A delivery as its row shows it: the epoch, and in time_next the end of its wait."""

    epoch: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A committed claim: `epoch` as the row now has it, `deadline_ns` = its time_next, `due_ns`
    the one before."""

    key: Key
    epoch: int
    deadline_ns: int
    priority: int
    due_ns: int

    @property
    def delivery(self) -> Delivery:
        """What the row shows."""
        return Delivery(self.epoch, self.deadline_ns)


@dataclass(frozen=True, slots=True)
class Return:
    """A claim to give back, guarded by exactly what the claim wrote.

    An unsent one is restored as it was (epoch − 1, its old time_next), a sent one is due now.
    """

    key: Key
    epoch: int
    deadline_ns: int
    due_ns: int
    sent: bool
    priority: int = 0

    @property
    def entry(self) -> Entry:
        """The row once it has been given back unsent."""
        return Entry(self.key, self.epoch - 1, self.priority, self.due_ns)


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What became of dead messages: those that were moved, and what kept the others where they
    are, in words."""

    moved: tuple[Key, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Row payloads by key. `unread` keys did not fit the byte budget and are to be asked for
    again; those in `changed` show this delivery with another end; a key in none of the three is
    not ours to deliver any more (acknowledged, deleted, or claimed anew meanwhile)."""

    rows: Mapping[Key, bytes]
    unread: frozenset[Key] = field(default_factory=frozenset)
    changed: frozenset[Key] = field(default_factory=frozenset)
