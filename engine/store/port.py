"""The port between the engine and a database.

Each method is one transaction or one read. It may be called from any thread. All but those that
begin a call block. Each result includes the server's clock at the time of the statement, because the
engine never uses its own clock for due times. `MySQLStore` is the real implementation, `MemoryStore` the one for tests.
One suite, tests/contract, tests both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from engine.model import (
    ANYTHING,
    BatchCheck,
    BatchesChecked,
    Changed,
    Claimed,
    ClaimResult,
    Delivery,
    Entry,
    FetchResult,
    GroupScan,
    GroupScanResult,
    Key,
    MoveResult,
    Portion,
    Range,
    Return,
    RowFormat,
    ScanResult,
    Selection,
    Share,
    TableId,
    Wanted,
)
from engine.queue_table import BrokenTable, Policy, QueueTable
from engine.refused import InParts, Refusal
from engine.store.acks import Ack

R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Answer(Generic[T_co]):
    """A result."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Timed(Answer[T_co]):
    """A result, and the server's clock when it was made."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Roster:
    """What a proxy knows of the others on its server. A hint, up to a few seconds old."""

    slot: int | None
    """This proxy's number among them; None: it has none, and the others do not know of it."""
    others: frozenset[int] = frozenset()
    """The slots of the other proxies."""
    partners: Mapping[TableId, tuple[int, ...]] = field(default_factory=dict)
    """The slots of the others that have streams on a queue, in ascending order."""

    def share_of(self, queue: TableId) -> Share | None:
        """The share of a queue on which this proxy has streams; None: all of it."""
        if self.slot is None or not (partners := self.partners.get(queue)):
            return None
        return Share(sorted([self.slot, *partners]).index(self.slot), len(partners) + 1)


UNREACHABLE = frozenset({1040, 1053, 2002, 2003, 2006, 2013})
"""Errors of a server that is full, stopping or absent, or whose connection broke. They may pass
without a change of a table or an account."""


LOCK_WAIT_TIMEOUT = 1205

ROLLED_BACK = frozenset({1020, 1213})
"""Errors with which the server has rolled the whole transaction back in favour of another one: a row
has changed since this one began to read (MariaDB's innodb_snapshot_isolation; not under READ
COMMITTED, which the engine's are), and a deadlock."""

TIMED_OUT = frozenset({1969, 3024})
"""Errors of a statement that took longer than the server's limit for it, MariaDB's and MySQL's."""

NOT_OF_A_ROW = UNREACHABLE | frozenset(
    {
        *(*ROLLED_BACK, LOCK_WAIT_TIMEOUT, 3572),  # Another transaction has locked or changed the row.
        *(3, 28, 1021, 1026, 1030, 1114),  # The disk is full, or fails.
        *(1037, 1038, 1041, 1135),  # The memory is used up.
        *(1036, 1290, 1792, 1836),  # The server or the table is read-only.
        *(1598, 1665, 1666),  # The binary log cannot have the statement.
        *(1317, 1927, 1094),  # Somebody has killed the statement or the connection.
    }
)
"""Errors about the server, the table or other transactions: another row would be refused as well, or the same
one will not be. Whatever else the server says may be about one row."""


ROW_IS_REFERENCED = 1451
REFERRED_TO = f"another table refers to it by a foreign key ({ROW_IS_REFERENCED})"
"""Without the name of that table, as the server tells those who may not see it."""


class StoreError(Exception):
    """The call failed, or its result was lost. Then it is unknown whether the database executed it.

    `code` is MySQL's error number, 0 without one. `lasting`: another attempt fails too until
    somebody changes the table (it was dropped, a column is missing, a privilege is denied).
    `unreachable`: the error is in UNREACHABLE, and not about the statement. `waited`: another session
    held a lock for too long. `rolled_back`: the error is in ROLLED_BACK. `timed_out`: the statement took too
    long. `refused`: the server did nothing, perhaps because of one of the rows.
    """

    def __init__(
        self, message: str, *, code: int = 0, lasting: bool = False, timed_out: bool = False, refused: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.lasting = lasting
        self.unreachable = code in UNREACHABLE
        self.waited = code == LOCK_WAIT_TIMEOUT
        self.rolled_back = code in ROLLED_BACK
        self.timed_out = timed_out or code in TIMED_OUT
        self.refused = refused or (code > 0 and not (lasting or timed_out or code in NOT_OF_A_ROW))

    @property
    def refusal(self) -> Refusal | None:
        """Set: one of the rows may be the reason, so fewer of them may succeed."""
        return Refusal(str(self), lasted=self.timed_out) if self.refused or self.timed_out else None


def in_parts(rows: Sequence[R], do: Callable[[Sequence[R]], T]) -> tuple[list[T], Mapping[R, str]]:
    """Do something to many rows, and pass over those that the server refuses. `do` does it to all rows of a part,
    or raises StoreError and has done nothing.

    Returns the results of the parts, and the rows that were refused, each with the error. Raises any other error:
    what was done before stays done.
    """
    parts, results = InParts(rows), list[T]()
    while part := parts.next():
        try:
            results.append(do(part))
        except StoreError as error:
            if not (error.refused or error.lasting):
                raise
            parts.refused(REFERRED_TO if error.code == ROW_IS_REFERENCED else str(error), each=error.lasting)
        else:
            parts.done()
    return results, parts.reasons


class NoPrimaryError(StoreError):
    """None of several servers is the primary now."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"there is no primary now: {reason}", code=2003)


class AckUnknownError(StoreError):
    """It is not known whether a transaction of ACKs was committed."""


AckResult = int | AckUnknownError | None
"""The affected rows of an ACK that is committed; None: nothing was done."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of reading the whole catalog."""

    marked: Mapping[TableId, str | None]
    """Every table whose comment contains the word vitess_message, with a stamp. While the stamp is
    the same, so is the result of `describe`. None: the table was changed a moment ago, and another
    change might not change the stamp."""
    views_and_triggers: frozenset[str]
    """The bare names, casefolded, of all views and all tables with triggers. A write to one of them
    may reach another table."""
    account: str = ""
    """The engine's account, in the syntax of GRANT."""
    problems: tuple[str, ...] = ()
    """The global privileges that the account lacks, each with the GRANT that gives it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The server that a connection leads to. One name, and one address, can lead to several."""

    address: tuple[str, int]
    """The address of the connection."""
    name: str | None = None
    """The server's result of the statement `server_name`. None: it was not read."""


def may_be_same(one: Origin, other: Origin) -> bool:
    """Whether nothing known distinguishes the two servers."""
    return one.address == other.address and (one.name is None or other.name is None or one.name == other.name)


Described = QueueTable | BrokenTable | StoreError
"""A marked table as a queue, its problems if it cannot be one, or why it cannot be described now."""


class BegunCall(Protocol[T_co]):
    """A call that the server carries out. Nothing of it waits, except `finish` where `waits` is True."""

    fileno: int
    """Something has come for it whenever this file descriptor is readable."""
    patience_s: float
    """After this time without a result the caller aborts it."""
    waits: bool
    """Whether `finish` may wait for the server. Known when `arrived` has returned True, or before."""

    @property
    def finish(self) -> Callable[[], Answer[T_co] | None]:
        """Returns the result; None if the server has refused it, and nothing was done: the usual method has
        to be called. To be called once. Raises StoreError."""

    def arrived(self) -> bool:
        """Read what has come. Returns whether `finish` is to be called."""

    def abort(self) -> None:
        """Make `arrived` return True soon, and `finish` fail at once unless the result is here."""


class Store(Protocol):
    """Everything that the engine does with a database. Each method raises StoreError."""

    def discover(self) -> Timed[Listing]:
        """Read the catalog: every table marked as a queue.

        The number of statements does not depend on theirs.
        """

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        """The table as a queue, or its problems. None if it does not exist or is not marked.

        A table on which the engine's account lacks a privilege is broken, with the GRANT as its
        problem.
        """

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, Described]]:
        """The marked ones of the tables, in the server's spelling.

        The number of statements does not depend on that of the tables. A table that is being
        altered may appear broken. `describe` reads such a table again. A table that cannot be
        described now has its error, and affects no other.
        """

    def limits_problem(self, queue: TableId, policy: Policy) -> Answer[str | None]:
        """Why the limits of a queue with this policy could not be kept over all proxies, apart from its
        indexes; None if they can."""

    def scan(
        self,
        table: QueueTable,
        limit: int,
        selection: Selection = ANYTHING,
        part: Range | None = None,
        portion: Portion | None = None,
    ) -> Timed[ScanResult]:
        """Up to `limit` due entries, and up to `limit` entries that come due next.

        Due entries are ordered by priority (the lowest value first), time and id. A NULL time_next
        counts as due since 1970. `part` is used only with a condition. Rows before the positions
        where it begins may be left out. The result has no messages beyond `portion`. Of those
        of other shares, up to `portion.others` due ones, and as many that come due next, are `others`.
        """

    def scan_groups(
        self, table: QueueTable, request: GroupScan, portion: Portion | None = None
    ) -> Timed[GroupScanResult]:
        """Due messages of one priority by message group. Returns nothing for a table without a group
        index, and for messages whose priority is NULL. `portion`: only its share is read."""

    def claim(self, table: QueueTable, wanted: Sequence[Wanted], slot: int = 0) -> Timed[tuple[Claimed, ...]]:
        """Claim those of `wanted` that are unacknowledged, due by the server's clock, of the given
        epoch and selection, and not locked.

        The claims are committed on return. Messages missing in the result were not claimed. `slot` is
        that of the proxy, for a table with a lease column. With a limit, the first of them that it allows
        in the order of `wanted` are claimed.
        """

    def claim_and_fetch(
        self,
        table: QueueTable,
        wanted: Sequence[Wanted],
        row_format: RowFormat | None,
        budget_bytes: int,
        slot: int = 0,
    ) -> Timed[ClaimResult]:
        """What `claim` does, and then what `fetch` does for its claims, in fewer steps. Without a
        format, no rows are read. The result shows what the limits of the queue leave.

        Rows that do not fit the budget by the size of earlier ones are unread. An error after the
        commit is not raised: the result has no rows then.
        """

    def begin_claim(
        self,
        table: QueueTable,
        wanted: Sequence[Wanted],
        row_format: RowFormat | None,
        budget_bytes: int,
        slot: int = 0,
        *,
        no_triggers: bool = False,
    ) -> BegunCall[ClaimResult] | None:
        """Begin `claim_and_fetch` without waiting for anything. It has a connection until it is finished.
        `no_triggers`: the table is known to have none. None: the claim cannot be begun so, and nothing was
        done. Raises nothing."""

    def fetch(
        self, table: QueueTable, row_format: RowFormat, keys: Mapping[Key, Delivery], budget_bytes: int
    ) -> Timed[FetchResult]:
        """The row payloads of those `keys` that are unacknowledged and still have the epoch and
        lease of their claim.

        Keeps rows until they have `budget_bytes`, and at least one.
        """

    def lookup(self, table: QueueTable, keys: Sequence[Key]) -> Timed[Mapping[Key, Entry]]:
        """The entries of those keys whose rows exist and are unacknowledged."""

    def unacknowledged(self, tables: Sequence[QueueTable]) -> Timed[frozenset[TableId]]:
        """Those tables that have an unacknowledged row. Each has a scan index."""

    def unlocked(self, table: QueueTable, keys: Sequence[Key]) -> Answer[frozenset[Key]]:
        """Those keys whose rows are unacknowledged and due, and locked by no other transaction just now."""

    def begin_unlocked(self, table: QueueTable, keys: Sequence[Key]) -> BegunCall[frozenset[Key]] | None:
        """Begin `unlocked` without waiting for anything, as `begin_claim` does. None: it cannot be begun so,
        and nothing was done. Raises nothing."""

    def release(self, table: QueueTable, returns: Sequence[Return]) -> Timed[Changed]:
        """Release claims, and count failed deliveries of messages that were locked. Returns the
        number of rows that still showed the claim, or the state before the delivery."""

    def acknowledge_all(self, table: QueueTable, acks: Sequence[Ack], origin: Origin) -> Timed[Sequence[AckResult]]:
        """Carry out ACKs of clients, in one transaction if the server refuses none of them. Returns the
        result of each (`shares`). One whose message another transaction has locked is left out (None); so
        are all on a server that is read-only.

        Raises AckUnknownError if it is not known whether they were committed. After any other error
        none was carried out; that includes a store that is not known to be connected to the server
        `origin`.
        """

    def begin_acks(
        self, table: QueueTable, acks: Sequence[Ack], origin: Origin
    ) -> BegunCall[Sequence[AckResult]] | None:
        """Begin `acknowledge_all` without waiting for anything, as `begin_claim` does. None: it cannot be
        begun so, and nothing was done. Raises nothing."""

    def check_batches(self, table: QueueTable, check: BatchCheck) -> Timed[BatchesChecked]:
        """Compare follow-ups with their batches, in a table with a column for these. Those that wait and
        whose batches are done are due from now on. Those that are due, were never delivered, and whose
        batches are open, wait."""

    def find_abandoned(self, table: QueueTable, slot: int | None, limit: int) -> Timed[tuple[Return, ...]]:
        """Up to `limit` messages in flight whose leases carry `slot`, as claims to release; without
        one, a slot whose lock nobody holds. None in a table without a lease column."""

    def move_dead_letters(self, table: QueueTable, wanted: Sequence[Wanted], dead_letter: TableId) -> Timed[MoveResult]:
        """Move those of `wanted` that `claim` would claim into the message table `dead_letter`, in
        one transaction.

        The comment of `dead_letter` must name the table in `dead_letter_of` at that time. There the
        messages are due now and unacknowledged, and otherwise unchanged, with their epoch. They
        replace acknowledged rows with their ids. A message that cannot be moved stays, and is due
        again after its `wait_ns`.
        """

    def set_more_connections(self, count: int) -> None:
        """So many connections more may be used from now on: as many calls last, and keep theirs."""

    def purge(self, table: QueueTable, age_ns: int, limit: int) -> Timed[Changed]:
        """Delete up to `limit` rows acknowledged more than `age_ns` ago. Returns their number.

        In a table partitioned by time, whole partitions of such rows are dropped, which are not
        counted, and new partitions are made.
        """

    def roster(self, queues: Collection[TableId]) -> Timed[Roster]:
        """Announce that this proxy has streams on these queues, and read what other proxies on the
        server announce. Raises StoreError also if the server has no user-level locks."""

    def begin_change(self, lock: str) -> Answer[bool]:
        """Begin a change that excludes those with the same lock, at all proxies with the same account. False:
        one is under way. Raises StoreError also if the server has no user-level locks."""

    def end_change(self, lock: str) -> Answer[None]:
        """End a change that has begun."""

    def read(self, text: str) -> Timed[Sequence[Sequence[str | None]]]:
        """The rows of a statement that only reads, whose values are ASCII: numbers, and text as
        HEX."""

    def ping(self) -> Timed[None]:
        """Run a trivial statement on the server."""

    def kill(self, connection_id: int, origin: Origin) -> Timed[bool]:
        """End a connection and its statement.

        Returns False, and does nothing, unless this store is known to be connected to the server
        that gave the connection its id: on another server the id belongs to another client.
        """

    def close(self) -> None:
        """Close all connections. Later calls raise StoreError."""
