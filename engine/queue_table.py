"""What a queue is: its table, the columns with a meaning, and the policy of its comment.

Every class here is frozen and comparable, and needs no clock and no socket. Names are in the server's
spelling.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from engine.model import Group, Key, TableId

LIMITS = "ackstream_limits"
"""The table with a row for each queue of its database with a limit of its own: the lock of its claims, and
the state of `max_rate`."""

GROUP_RATES = "ackstream_group_rates"
"""The table with the state of `group_rate` of all queues of its database."""

SEMAPHORES = "ackstream_semaphores"
"""The table with the semaphores of its database."""


class OnDisconnect(enum.Enum):
    """Whether the unacknowledged messages of a vanished client are released or kept until their
    deadlines."""

    RELEASE = "release"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Policy:
    """The directives of a table's comment, checked; durations in nanoseconds (docs/tables.md lists
    them)."""

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
    lease: str | None = None
    """The lease column, as the comment spells it; None: the table has none."""
    reason: str | None = None
    """The column for the reason of a NACK, as the comment spells it; None: the table has none."""
    delay_by: str | None = None
    """The column by which producers delay messages, as the comment spells it; None: there is none."""
    max_attempts: int = 0
    """Deliveries until a message is dead; 0: it never is."""
    dead_letter: tuple[str | None, str] | None = None
    """The dead-letter table: its database (None: this table's) and its name, as the comment spells them."""
    dead_letter_of: tuple[tuple[str | None, str], ...] = ()
    """The tables whose dead messages may come here: databases (None: this table's) and names."""
    max_rate: float | None = None
    """Deliveries a second."""
    max_burst: int = 0
    """Deliveries that the rate allows at once after a pause, besides those of some milliseconds."""
    paused: bool = False
    """Whether nothing is delivered, by any proxy: the comment says so, or a limit cannot be kept."""
    group_by: tuple[str, ...] = ()
    """The columns whose values divide the messages into groups, as the comment spells them; empty: the
    queue has no groups."""
    groups_indexed: bool = False
    """Whether the table has an index by group, so that groups behind the front can be found."""
    group_limit: int | None = None
    """How many messages of a group may be in flight; None: any number."""
    group_strict: bool = False
    """Whether the messages of a group are delivered in the order of their ids, one run at a time."""
    group_rate: float | None = None
    """Deliveries of a group a second; None: any number."""

    @property
    def group_most(self) -> int | None:
        """How many messages of a group may be in flight, for whatever reason; None: any number. In strict
        order, how many runs."""
        return 1 if self.group_strict else self.group_limit

    @property
    def group_run(self) -> int:
        """In strict order, how many messages of a group are a run at most: one stream gets them together, and
        the next ones follow when all of them are over."""
        return self.group_limit or 1 if self.group_strict else 1

    semaphores: str | None = None
    """The column with the semaphores that a message needs, as the comment spells it; None: it needs
    none."""

    @property
    def grouping(self) -> tuple[str, ...]:
        """The columns whose values divide the messages into groups, for whatever reason. Messages of a
        group wait for places together, so what a message needs comes behind the columns of GROUP_BY."""
        return self.group_by if self.semaphores is None else (*self.group_by, self.semaphores)

    @property
    def turn_values(self) -> int | None:
        """How many of the values of a group decide whose turn it is; None: all."""
        return len(self.group_by) if self.group_by and self.semaphores is not None else None

    @property
    def locked_claims(self) -> bool:
        """Whether claims with the same limit wait for each other in the database."""
        limits = (self.max_in_flight, self.max_rate, self.group_most, self.group_rate, self.semaphores)
        return any(limit is not None for limit in limits)

    batch_by: str | None = None
    """The column with the batch that a message is a part of; None: its messages are no parts."""
    after_batch: str | None = None
    """The column with the batch that a follow-up waits for; None: no message waits for a batch."""
    dead_parts_hold: bool = False
    """Whether a part that is a dead letter still counts as unacknowledged."""


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

    @property
    def key_type(self) -> type[Key]:
        """The type of its values in the engine."""
        return _KEY_TYPES.get(self, str)


_KEY_TYPES: Final[Mapping[IdKind, type[Key]]] = MappingProxyType(
    {IdKind.INTEGER: int, IdKind.DECIMAL: Decimal, IdKind.BINARY: bytes}
)


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """A column of the message group, in the table's spelling, and how its values are read."""

    name: str
    kind: IdKind


@dataclass(frozen=True, slots=True)
class BatchColumn:
    """A column with batches, in the table's spelling, how its values are read, and the index by it."""

    name: str
    kind: IdKind
    index: str
    collation: str = ""
    """Of a text column."""


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A column of the application, and an index in which equal values are in the order of ids."""

    name: str
    kind: IdKind
    index: str
    collation: str
    """Of a text column; empty for others."""


@dataclass(frozen=True, slots=True)
class ReasonColumn:
    """The columns of a queue for the reason of a NACK, and its time."""

    text: str
    at: str | None
    chars_max: int
    """How many characters the first one holds."""


@dataclass(frozen=True, slots=True)
class QueueTable:
    """A message table that can be a queue: its name, its policy, and how its rows are reached."""

    id: TableId
    policy: Policy
    id_kind: IdKind
    id_index: str
    """The index on `id` that all claims use. Unique, unless the table is partitioned by time."""
    scan_index: str | None
    """The index on (time_acked, priority, time_next); None: scans sort the whole table."""
    scan_descending: bool
    """Whether time_next descends in it, as in Vitess's own tables."""
    scan_ties_by_id: bool
    """Whether entries of one priority and time are in the order of `id` in it."""
    columns: tuple[str, ...]
    """All columns in the table's order, invisible ones included."""
    default_columns: tuple[str, ...]
    """What `*` means."""
    reason: ReasonColumn | None = None
    """Where the reason of a NACK is kept; None: nowhere."""
    lease_column: str | None = None
    """The column into which a claim writes the new time_next again (`lease_end_ns`), so that a lease
    differs from a message that was scheduled; None: there is none."""
    lease_index: str | None = None
    """The index on (time_acked, lease column, time_next), which shows what is in flight; None: there is
    none."""
    group_columns: tuple[GroupColumn, ...] = ()
    """The columns of the message group; empty: the queue has no groups."""
    order_index: str | None = None
    """The index on (time_acked, group columns, id), which shows the first message of each group; None: there
    is none, or no groups."""
    group_index: str | None = None
    """The index on (time_acked, priority, group columns, time_next, id); None: there is none, or no
    groups."""
    batch: BatchColumn | None = None
    """The column of the batch that a message is a part of, with an index that begins with it and
    time_acked."""
    after_batch: BatchColumn | None = None
    """The column of the batch that a follow-up waits for, with an index on (time_acked, it, id)."""
    indexed: tuple[IndexedColumn, ...] = ()
    """By which messages can be found."""
    advice: tuple[str, ...] = ()
    """Recommendations for a table that works, for the process's log."""
    warnings: tuple[str, ...] = ()
    """A missing index, and parts of the comment without effect, each with the remedy: for the process's log, the
    metrics and `Problem` in SHOW QUEUES."""
    id_pad_chars: int = 0
    """The length of a CHAR id, to which sql_mode PAD_CHAR_TO_FULL_LENGTH pads it; 0 for other
    types."""
    id_grows: bool = False
    """Whether the server assigns ascending ids (AUTO_INCREMENT), so that new messages have greater
    ids."""
    kept_by_partition: bool = False
    """Whether it is partitioned by time_acked, so that partitions are dropped instead of rows
    deleted."""
    lower_case_table_names: int = 0
    """The setting of its server: 0 if names that differ only in case are those of different tables, 1 if
    the server spells all of them in lower case."""
    writes_alike: bool = False
    """Whether an ACK by id, or a claim, does the same in any session, as far as the columns and constraints
    decide it, and the engine's account may carry it out and see triggers."""

    @property
    def limits(self) -> TableId:
        """The table of limits of its database."""
        return TableId(self.id.db, LIMITS)

    @property
    def group_rates(self) -> TableId:
        """The table of the rates of message groups of its database."""
        return TableId(self.id.db, GROUP_RATES)

    @property
    def semaphores(self) -> TableId:
        """The table of semaphores of its database."""
        return TableId(self.id.db, SEMAPHORES)

    @property
    def stands_alone(self) -> bool:
        """Whether no limit, group, semaphore or batch depends on what others do with its messages."""
        policy = self.policy
        options = (policy.max_in_flight, policy.semaphores, policy.batch_by, policy.after_batch)
        return not policy.group_by and all(option is None for option in options)

    @property
    def is_shareable(self) -> bool:
        """Whether several proxies can divide its messages among themselves by a hash of the id. The binary log
        may show numbers with decimals, and times, in other texts than a scan."""
        return self.id_kind not in {IdKind.DECIMAL, IdKind.FLOAT, IdKind.TIMESTAMP}

    def may_have_group(self, group: Group) -> bool:
        """Whether these values have the number and the types of its group columns. Those of a row that was
        read before the table was altered may have others."""
        columns = self.group_columns
        return len(group) == len(columns) and all(
            value is None or isinstance(value, column.kind.key_type)
            for column, value in zip(columns, group, strict=True)
        )

    @property
    def dead_letter(self) -> TableId | None:
        """The table that dead messages are moved to, in the server's spelling; None: no message is ever
        dead."""
        if not self.policy.max_attempts or self.policy.dead_letter is None:
            return None
        db, name = self.policy.dead_letter
        place = TableId(db or self.id.db, name)
        # A server with 2 keeps the spelling of who created the table.
        return _folded(place) if self.lower_case_table_names == 1 else place

    def takes_dead_letters_of(self, source: TableId) -> bool:
        """Whether its comment names `source`, in the server's spelling, as a table whose dead
        messages may be moved here."""
        named = {TableId(db or self.id.db, name) for db, name in self.policy.dead_letter_of}
        if self.lower_case_table_names:
            return _folded(source) in map(_folded, named)
        return source in named


def _folded(table: TableId) -> TableId:
    """The name with ASCII letters in lower case. Which other letters are the same is decided by the
    server: they must be written as in the server's spelling."""
    return TableId(*(part.encode().lower().decode() for part in (table.db, table.name)))


PRIMARY_KEY: Final = "PRIMARY"
"""The name of each primary key."""


@dataclass(frozen=True, slots=True)
class SettleColumns:
    """A table whose messages are settled, in the server's spelling, and its optional columns."""

    table: TableId
    lease: str | None = None
    reason: ReasonColumn | None = None
    by_primary_key: bool = False
    """Whether ids are found by the primary key."""
    ack_mark: int = 0
    """The last three digits of time_acked, which is a time in µs otherwise: the slot of this proxy."""


@dataclass(frozen=True, slots=True)
class BrokenTable:
    """A table whose comment marks it as a message table, and that cannot be a queue, with all
    problems."""

    id: TableId
    problems: tuple[str, ...]
    denied: bool = False
    """Whether the only problem is a privilege that the engine's account lacks. The engine does
    nothing there then, and clients can still acknowledge."""
    unread_parts: bool = False
    """Whether it may have parts of batches that cannot be read. All follow-ups of its database wait then."""

    def __str__(self) -> str:
        return f"{self.id} cannot be used as a queue: " + "; ".join(self.problems)
