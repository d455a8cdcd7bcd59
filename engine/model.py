"""The values of the engine: ids, index entries, scans, claims, row formats.

Every class here is frozen and comparable, and needs no clock and no socket. All times are
nanoseconds since 1970 on the *server's* clock (`…_ns`), as in the table.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

NS_PER_S = 1_000_000_000

SLOTS = 1_000
"""The slots of proxies in lease columns are below this, and 0 for none: the nanoseconds of a lease's
end behind its last whole microsecond."""

SLOT_LOCK = "ackstream/"
"""The name of the lock that a proxy holds while it lives, without the slot."""

WAITING_NS = 9_000_000_000_000_000_000
"""The time_next of a follow-up that waits for its batch: in the year 2255, behind all other times."""

Key = int | Decimal | str | bytes
"""A message's id in the engine: a number for numeric columns, bytes for binary ones, else text."""

Group = tuple[Key | None, ...]
"""A message group: the values of the queue's group columns, in the form of ids. NULL is a value of its
own. Values that a collation treats as equal are different groups here, and one group to the server."""


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table's full name, in the server's spelling."""

    db: str
    name: str

    def __str__(self) -> str:
        return f"{self.db}.{self.name}"


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The format of one subscriber's rows. Subscribers with equal formats share a fetch.

    `charset` is the client's character_set_results (None: no conversion), `time_zone` its
    @@time_zone, `pad_char` whether its sql_mode pads CHAR values. All three change the bytes of
    a row.
    """

    columns: tuple[str, ...]
    binary: bool
    charset: str | None = "utf8mb4"
    time_zone: str = "SYSTEM"
    pad_char: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages of a table that a stream selects.

    `condition` is SQL over the table's columns. It means the same in every session, except for
    times, which are in `time_zone`; None: all messages. `partitions` are names; empty: all
    partitions.
    """

    condition: str | None = None
    partitions: tuple[str, ...] = ()
    time_zone: str = "+00:00"

    def __str__(self) -> str:
        partitions = f"PARTITION ({', '.join(self.partitions)}) " if self.partitions else ""
        return f"{partitions}{self.condition or 'all'}"


ANYTHING = Selection()
"""The selection of a STREAM without WHERE and PARTITION."""


def end_with_slot(end_ns: int, slot: int) -> int:
    """The end of a lease in a table with a lease column, which carries the slot of the proxy."""
    return end_ns - end_ns % SLOTS + slot


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` parts of a queue's messages: those that this proxy takes first, while others
    take the other parts. The hash of its id decides to which part a message belongs."""

    number: int
    count: int

    def turn(self, key: Key) -> int:
        """How many proxies take this message before this one: 0 for a message of this share."""
        return (self.number - id_hash(key)) % self.count


@dataclass(frozen=True, slots=True)
class Portion:
    """The messages that a scan reads: those of a share, and up to `others` due ones of the other shares."""

    share: Share
    others: int = 0


def id_hash(key: Key) -> int:
    """A hash of an id. The server computes the same one (TableStatements.of_share): CRC32 of
    the bytes that it returns for the id."""
    return zlib.crc32(key if isinstance(key, bytes) else str(key).encode())


class Entry(NamedTuple):
    """One unacknowledged row as in the scan index, without row data. A tuple: a scan makes
    thousands."""

    key: Key
    epoch: int
    priority: int
    due_ns: int
    group: Group | None = None
    """Its message group; None: it was not read, or the queue has no groups."""

    def is_at_least(self, other: Entry, before: tuple[int, int] | None = None) -> bool:
        """Whether this is the same state of a message as `other`, or a later one. `before`: the
        epoch and time_next that the row showed before it was changed to `other`."""
        if (self.epoch, self.due_ns) == (other.epoch, other.due_ns):
            return True
        return self.epoch > max(other.epoch, before[0] if before else 0)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order of one priority. Rows of time 0 are behind it up to `zero_id` (None:
    none are), other rows up to `time_ns`."""

    zero_id: int | None
    time_ns: int


@dataclass(frozen=True, slots=True)
class Range:
    """The part of the table that a scan for a condition reads: of each priority the rows after its
    position (all rows without one), up to those that come due at `until_ns`."""

    after: Mapping[int, Position]
    until_ns: int


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of one scan: the due rows in the order of delivery, then the rows due next, by
    time.

    `more`: more rows are due. `horizon_ns`: rows that come due from this time on may be missing
    (None: no row is missing), apart from less urgent ones that `more` stands for. Scans of a
    range also return `reached`, how far they have read each priority, and `greatest_id` (None:
    ids do not grow). `others`, `others_more`: those of the other shares, as `entries` and `more` are
    those of the own share.
    """

    entries: tuple[Entry, ...]
    more: bool
    horizon_ns: int | None
    reached: Mapping[int, Position] = field(default_factory=dict)
    greatest_id: int | None = None
    others: tuple[Entry, ...] = ()
    others_more: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether none of the messages that a scan reads is unacknowledged, if it reads from the front."""
        return not (self.entries or self.more or self.others or self.others_more) and self.horizon_ns is None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The part of a group scan that reads the messages that came due last, up to `limit` of each kind:
    those without a time, with ids after `after_id`, where ids ascend; and those that came due after
    `after_ns`, up to `until_ns`."""

    after_ns: int
    after_id: int
    until_ns: int
    limit: int


@dataclass(frozen=True, slots=True)
class GroupScan:
    """What a group scan reads, all at one priority: the first messages of `named` groups, so many of
    each; arrivals; and with `room`, groups in the order of the group index behind the group `after`
    (None: from the first), up to `quota` messages of each, until it has `room` messages or has read
    `entries_max` entries, in steps of `step_max` at most."""

    priority: int
    named: tuple[tuple[Group, int], ...] = ()
    arrivals: Arrivals | None = None
    after: Group | None = None
    quota: int = 0
    room: int = 0
    step_max: int = 1_000
    entries_max: int = 2_000


@dataclass(frozen=True, slots=True)
class GroupScanResult:
    """The result of a group scan: due entries in no order, the `arrivals` among them apart. An entry may
    be in both.

    `deep`: the groups that may have more due messages than were read. `after`: the group behind which
    the rotation goes on; None: it has passed the last one, or was not part of the scan. `arrivals_cut`:
    a limit has cut the arrivals off. `greatest_id`: the greatest id of arrivals without a time, or where
    these were read from.
    """

    entries: tuple[Entry, ...]
    arrivals: tuple[Entry, ...] = ()
    deep: tuple[Group, ...] = ()
    after: Group | None = None
    arrivals_cut: bool = False
    greatest_id: int = 0


class Wanted(NamedTuple):
    """A row to claim, if it still has this epoch and is still selected, and the wait of its
    delivery."""

    key: Key
    epoch: int
    wait_ns: int
    selection: Selection = ANYTHING
    group: Group | None = None
    """Its message group as it was scanned, in a queue with semaphores or runs (`Policy.group_run`)."""


class Delivery(NamedTuple):
    """A delivery as in its row: the epoch, and the end of its wait (time_next)."""

    epoch: int
    until_ns: int


class Claimed(NamedTuple):
    """A committed claim: the row's new `epoch`, its new time_next (`deadline_ns`) and the one
    before (`due_ns`)."""

    key: Key
    epoch: int
    deadline_ns: int
    priority: int
    due_ns: int
    group: Group | None = None
    """As in `Entry`."""

    @property
    def delivery(self) -> Delivery:
        """What the row shows."""
        return Delivery(self.epoch, self.deadline_ns)


@dataclass(frozen=True, slots=True)
class Return:
    """A claim to release, if the row still shows exactly this claim.

    An unsent message is restored (epoch − 1, its old time_next). A sent one is due at once.

    `failed_wait_ns` is set for a message that was locked instead of claimed, so that the row shows
    the state before the delivery. The delivery has failed: it is counted (epoch + 1), and the
    message is due after this wait.
    """

    key: Key
    epoch: int
    deadline_ns: int
    due_ns: int
    sent: bool
    priority: int = 0
    failed_wait_ns: int | None = None

    @property
    def entry(self) -> Entry:
        """The row after its release if it was not sent; of a failed delivery, the row before."""
        epoch = self.epoch if self.failed_wait_ns is not None else self.epoch - 1
        return Entry(self.key, epoch, self.priority, self.due_ns)


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of many rows: how many were changed, and those that the server has refused to change, each with
    its error. `more`: there may be others to change."""

    rows: int
    refused: Mapping[Key, str] = field(default_factory=dict)
    more: bool = False


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What became of dead messages: those that were moved, and what kept the others where they
    are, in words."""

    moved: tuple[Key, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Row payloads by key. `unread` keys exceeded the byte budget and are fetched again.
    `changed` keys show this delivery with another deadline. A key in none of the three may not
    be delivered any more: its message was acknowledged, deleted, or claimed anew."""

    rows: Mapping[Key, bytes]
    unread: frozenset[Key] = field(default_factory=frozenset)
    changed: frozenset[Key] = field(default_factory=frozenset)


class LimitsLeft(NamedTuple):
    """What the limits of a queue leave behind a claim, over all proxies."""

    left_out: tuple[Key, ...]
    """Messages that could have been claimed, and for which there was no place."""
    places: int | None
    """How many more messages may be in flight; None: any number."""
    free_ns: int | None = None
    """When the first wait of a message in flight ends (server's clock), and its place is free at the
    latest; None: unknown."""
    paced_until_ns: int | None = None
    """When `max_rate` allows the next messages (server's clock); None: it is not kept there."""
    groups: tuple[GroupLeft, ...] = ()
    """Of the groups of these messages those that may be full."""
    paced_groups: tuple[tuple[Group, int], ...] = ()
    """Of the groups of these messages those that have used up their `group_rate`, and when it allows the next message
    (server's clock)."""
    semaphores: tuple[SemaphoreLeft, ...] = ()
    """The semaphores that these messages need."""
    problem: str | None = None
    """Why no message that needs semaphores is claimed, in words."""


class GroupLeft(NamedTuple):
    """What a claim has found of a message group whose places it may have used up."""

    group: Group
    holders: Mapping[Key, int]
    """The messages in flight that the claim has counted, apart from its own, and the ends of their
    leases. Where the server treats several values as equal, those of all of them."""
    first: Key | None = None
    """Where groups are in strict order, the message that has to be delivered first, if it was not claimed."""
    head: Entry | None = None
    """The message `first` as the server has shown it, if the claim was not to take it."""


Holder = tuple[TableId | None, Key]
"""A message in flight that holds a semaphore: its table (None: the one that is claimed from) and its id."""


class SemaphoreLeft(NamedTuple):
    """What a claim has found of a semaphore, behind it."""

    name: str
    capacity: int | None
    """None: it does not exist."""
    holders: Mapping[Holder, int]
    """The messages that hold it, and the ends of their leases, if all places are held; else none."""


class ClaimResult(NamedTuple):
    """Committed claims, and their rows if these were read behind the commit; None: they were not, or
    could not be read. `limits`: None for a queue without limits."""

    claims: tuple[Claimed, ...]
    rows: FetchResult | None
    limits: LimitsLeft | None = None
    waiting: tuple[Key, ...] = ()
    """Follow-ups that it has left out, because their batches are not done. Their time_next is
    WAITING_NS."""


FollowUpPlace = tuple[Key, Key]
"""A place in the order of follow-ups: a batch and an id."""


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """Which follow-ups to compare with their batches: those among the messages `keys`; those of the
    batches of `parts`, which were acknowledged or deleted; and with `rotate`, those behind the place
    `after` (None: from the first). Up to `limit` of each."""

    keys: tuple[Key, ...] = ()
    parts: tuple[tuple[TableId, tuple[Key, ...]], ...] = ()
    rotate: bool = False
    after: FollowUpPlace | None = None
    limit: int = 1_000


@dataclass(frozen=True, slots=True)
class BatchesChecked:
    """The result of such a check: `fired` follow-ups are due now, because their batches are done; those
    `set_aside` were due, and wait now.

    `waiting`: how many of those behind `after` wait. `after`: the place where the rotation goes on
    (None: it has passed the last one, or was not part of the check). `unseen`: parts whose
    acknowledgement was not visible yet. `again`: there may be more to fire, which only a rotation
    finds. `problem`: why no batch is done now, in words.
    """

    fired: tuple[Key, ...] = ()
    set_aside: tuple[Key, ...] = ()
    waiting: int = 0
    after: FollowUpPlace | None = None
    unseen: tuple[tuple[TableId, tuple[Key, ...]], ...] = ()
    again: bool = False
    problem: str | None = None
