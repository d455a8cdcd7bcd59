"""The store in memory, for tests: the port on dicts, with a clock and locks that tests control.

It behaves as the real servers do (tests/contract runs one suite on all of them). So the dispatcher
and the table runner can be tested with every order of events, without a server.
"""

from __future__ import annotations

import bisect
import enum
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, TypeVar

from engine.catalog.own_tables import LIMITS_TABLE
from engine.dispatch.burst import burst_of
from engine.dispatch.semaphore_places import needs_of
from engine.model import (
    ANYTHING,
    SLOTS,
    WAITING_NS,
    BatchCheck,
    BatchesChecked,
    Changed,
    Claimed,
    ClaimResult,
    Delivery,
    Entry,
    FetchResult,
    Group,
    GroupScan,
    GroupScanResult,
    Key,
    LimitsLeft,
    MoveResult,
    Portion,
    Range,
    Return,
    RowFormat,
    ScanResult,
    Selection,
    TableId,
    Wanted,
    end_with_slot,
)
from engine.queue_table import BrokenTable, Policy, QueueTable
from engine.store.acks import Ack, shares
from engine.store.claim_plan import FIRST_PACKET, SECOND_PACKET, Step, choose
from engine.store.limits.claim import left_behind
from engine.store.limits.group_limit import GroupCounts
from engine.store.limits.group_order import GroupOrder, checks, runs_of
from engine.store.limits.group_rate import GroupPaces
from engine.store.limits.in_flight import InFlightCount
from engine.store.limits.limit import Choice
from engine.store.limits.of_queue import Rate
from engine.store.limits.pace import Pace
from engine.store.limits.semaphores import SemaphoreCounts, unchanged
from engine.store.port import (
    LOCK_WAIT_TIMEOUT,
    AckResult,
    AckUnknownError,
    Described,
    Listing,
    Origin,
    Roster,
    StoreError,
    Timed,
)
from engine.store.rotation import Rotation
from engine.store.scan_result import ScanAssembly, is_behind, with_others

T = TypeVar("T")

LimitRow = TableId | tuple[str, str]
"""A row that claims lock: that of a queue, or of a semaphore, by its database and name."""


def group_order(group: Group | None) -> tuple[tuple[bool, Key], ...]:
    """The place of a group in the group index: NULL first."""
    return tuple((value is not None, 0 if value is None else value) for value in group or ())


@dataclass(frozen=True, slots=True)
class Row:
    """A message as the table holds it.

    `time_next_ns` None with `time_acked_ns` None counts as due since 1970.
    """

    key: Key
    priority: int = 0
    epoch: int = 0
    time_next_ns: int | None = 0
    time_acked_ns: int | None = None
    lease_ns: int | None = None
    payload: bytes = b""
    group: Group = ()
    """The values of the group columns, in a table with groups."""
    batch: Key | None = None
    """The batch that it is a part of."""
    after_batch: Key | None = None
    """The batch that it waits for."""

    @property
    def entry(self) -> Entry:
        """The row as the scan index shows it."""
        return Entry(self.key, self.epoch, self.priority, self.time_next_ns or 0, self.group or None)

    def is_in_flight(self, now_ns: int) -> bool:
        """Whether its lease column shows that it is in flight at this time."""
        lease_ns = self.lease_ns
        return self.time_acked_ns is None and lease_ns is not None and now_ns < lease_ns == self.time_next_ns


class Failure(enum.Enum):
    """The kinds of failures of a call."""

    NOT_DONE = enum.auto()
    ANSWER_LOST = enum.auto()
    """The call was executed, and its result was lost."""


@dataclass
class MemoryStore:
    """Tables as dicts of rows. Tests may change every field except `closed`."""

    now_ns: int = 0
    tables: dict[TableId, QueueTable | BrokenTable] = field(default_factory=dict)
    rows: dict[TableId, dict[Key, Row]] = field(default_factory=dict)
    claim_s: float = 0.0
    """How long the last claim took, which a rate allows for."""
    locked: set[Key] = field(default_factory=set)
    """Keys that another session has locked."""
    unclaimable: set[Key] = field(default_factory=set)
    """Keys whose claims the server refuses, for example because a trigger signals."""
    undeletable: set[Key] = field(default_factory=set)
    """Keys whose deletion it refuses, for example because another table refers to them."""
    failures: deque[Failure | None] = field(default_factory=deque)
    """The outcomes of the next calls on rows (None: success). Calls after them succeed."""
    conditions: dict[str, Callable[[Row], bool]] = field(default_factory=dict)
    """The meaning of each selection's condition. Partitions are not simulated."""
    views_and_triggers: frozenset[str] = frozenset()
    """The bare names, casefolded, of views and of tables with triggers."""
    slots_held: set[int] = field(default_factory=set)
    """The slots of the proxies that live."""
    rates: dict[TableId, int] = field(default_factory=dict)
    """The times in the tables of limits."""
    group_rates: dict[tuple[TableId, Hashable], int] = field(default_factory=dict)
    """The same for message groups."""
    limit_locks: dict[LimitRow, MemoryClaim] = field(default_factory=dict)
    """The claims under way that have locked the rows of limits."""
    semaphores: dict[tuple[str, str], int] = field(default_factory=dict)
    """The capacities of semaphores, by database and name."""
    roster_found: Roster = field(default_factory=lambda: Roster(0))
    """The result of `roster`."""
    closed: bool = False

    def add_table(self, table: QueueTable | BrokenTable) -> None:
        """Create a table, empty."""
        self.tables[table.id] = table
        self.rows[table.id] = {}

    def put(self, table: TableId, row: Row) -> None:
        """Insert or replace a row."""
        self.rows[table][row.key] = row

    def acknowledge(self, table: TableId, key: Key) -> bool:
        """Do what an ACK does. Returns whether this call acknowledged the message."""
        row = self.rows[table].get(key)
        if row is None or row.time_acked_ns is not None:
            return False
        self.put(table, replace(row, time_acked_ns=self.now_ns, time_next_ns=None))
        return True

    # The port.

    def discover(self) -> Timed[Listing]:
        """Read the catalog: every table marked as a queue."""
        return self._timed(
            Listing({table: repr(self.tables[table]) for table in sorted(self.tables)}, self.views_and_triggers)
        )

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        """The table as a queue, or its problems. None if it does not exist or is not marked."""
        return self._timed(self.tables.get(table))

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, Described]]:
        """The marked ones of the tables, in the server's spelling."""
        return self._timed({table: self.tables[table] for table in tables if table in self.tables})

    def limits_problem(self, queue: TableId, policy: Policy) -> Timed[str | None]:
        """All limits can be kept."""
        return self._timed(None)

    def scan(
        self,
        table: QueueTable,
        limit: int,
        selection: Selection = ANYTHING,
        part: Range | None = None,
        portion: Portion | None = None,
    ) -> Timed[ScanResult]:
        """Up to `limit` due entries, and up to `limit` entries that come due next."""
        if portion is None:
            return self._timed(self._scan(table, limit, selection, part, lambda _: True))
        share = portion.share
        result = self._scan(table, limit, selection, part, lambda key: share.turn(key) == 0)
        if portion.others:
            others = self._scan(table, portion.others, selection, part, lambda key: share.turn(key) != 0)
            result = with_others(result, others)
        return self._timed(result)

    def _scan(
        self,
        table: QueueTable,
        limit: int,
        selection: Selection,
        part: Range | None,
        is_read: Callable[[Key], bool],
    ) -> ScanResult:
        rows = self.rows_of(table)
        live = [row for row in rows.values() if row.time_acked_ns is None]
        wanted = [row.entry for row in live if self._is_wanted(row, selection) and is_read(row.key)]
        entries = sorted(wanted, key=lambda entry: (entry.priority, entry.due_ns, entry.key))
        if part is not None:
            greatest_id = max((key for key in rows if isinstance(key, int)), default=0) if table.id_grows else None
            assembly = ScanAssembly(limit, self.now_ns, part.until_ns, greatest_id)
            for priority in sorted({row.priority for row in live}):
                after = part.after.get(priority)
                of_it = [entry for entry in entries if entry.priority == priority and is_behind(entry, after)]
                odd = [entry for entry in of_it if entry.due_ns < 0][: assembly.row_limit]
                zero = [entry for entry in of_it if entry.due_ns == 0][: assembly.row_limit]
                timed = [entry for entry in of_it if 0 < entry.due_ns <= part.until_ns][: assembly.row_limit]
                assembly.add_part(priority, odd, zero, timed)
            return assembly.result()
        due = [entry for entry in entries if entry.due_ns <= self.now_ns]
        later = sorted((entry for entry in entries if entry.due_ns > self.now_ns), key=lambda entry: entry.due_ns)
        horizon_ns = later[limit].due_ns if len(later) > limit else None
        return ScanResult((*due[:limit], *later[:limit]), len(due) > limit, horizon_ns)

    def scan_groups(
        self, table: QueueTable, request: GroupScan, portion: Portion | None = None
    ) -> Timed[GroupScanResult]:
        """Due messages of one priority by message group."""
        if table.group_index is None:
            return self._timed(GroupScanResult(()))
        live = [
            row.entry
            for row in self.rows_of(table).values()
            if row.time_acked_ns is None
            and row.priority == request.priority
            and (portion is None or portion.share.turn(row.key) == 0)
        ]
        live.sort(key=lambda entry: (group_order(entry.group), entry.due_ns, entry.key))
        places = [group_order(entry.group) for entry in live]
        found: list[Entry] = []
        deep: list[Group] = []
        for group, limit in request.named:
            first = [entry for entry in live if entry.group == group and entry.due_ns <= self.now_ns][:limit]
            found += first
            deep += [group] if len(first) >= limit else []
        arrivals, cut = self._arrivals(table, request, live)
        ids = [entry.key for entry in arrivals if entry.due_ns == 0 and isinstance(entry.key, int)]
        rotation = Rotation(request, self.now_ns)
        while rotation.goes_on:
            first_behind = 0 if rotation.after is None else bisect.bisect_right(places, group_order(rotation.after))
            rotation.add(live[first_behind : first_behind + rotation.limit])
        greatest_id = max(ids, default=request.arrivals.after_id if request.arrivals else 0)
        result = GroupScanResult(
            (*found, *rotation.entries), arrivals, (*deep, *rotation.deep), rotation.after, cut, greatest_id
        )
        return self._timed(result)

    def _arrivals(self, table: QueueTable, request: GroupScan, live: Sequence[Entry]) -> tuple[tuple[Entry, ...], bool]:
        """The messages that came due last, and whether the limit has cut them off."""
        if (bound := request.arrivals) is None:
            return (), False
        timed = [entry for entry in live if max(0, bound.after_ns) < entry.due_ns <= bound.until_ns]
        zero = [entry for entry in live if entry.due_ns == 0 and int(str(entry.key)) > bound.after_id]
        latest = sorted(timed, key=lambda entry: (entry.due_ns, entry.key), reverse=True)[: bound.limit]
        latest += sorted(zero, key=lambda entry: entry.key, reverse=True)[: bound.limit] if table.id_grows else []
        cut = len(timed) >= bound.limit or (table.id_grows and len(zero) >= bound.limit)
        return tuple(entry for entry in latest if entry.due_ns <= self.now_ns), cut

    def claim(self, table: QueueTable, wanted: Sequence[Wanted], slot: int = 0) -> Timed[tuple[Claimed, ...]]:
        """Claim those of `wanted` that are due, unacknowledged, unchanged and not locked."""
        return self._timed(self._claim(table, wanted, slot).claims)

    def claim_and_fetch(
        self,
        table: QueueTable,
        wanted: Sequence[Wanted],
        row_format: RowFormat | None,
        budget_bytes: int,
        slot: int = 0,
    ) -> Timed[ClaimResult]:
        """Claim those of `wanted` that can be claimed, and read their rows."""
        result = self._timed(self._claim(table, wanted, slot)).value
        with_rows = self._with_rows(table, result.claims, result.limits, row_format, budget_bytes)
        return Timed(with_rows.value._replace(waiting=result.waiting), with_rows.now_ns)

    def begin_acks(self, *_acks: object) -> Any:
        """Nothing can be begun."""

    def begin_claim(self, *_claim: object, no_triggers: bool = False) -> Any:
        """Nothing is gained by beginning it."""

    def begin_unlocked(self, *_lookup: object) -> Any:
        """The same."""

    def _with_rows(
        self,
        table: QueueTable,
        claims: tuple[Claimed, ...],
        left: LimitsLeft | None,
        row_format: RowFormat | None,
        budget_bytes: int,
    ) -> Timed[ClaimResult]:
        if row_format is None:
            return Timed(ClaimResult(claims, None, left), self.now_ns)
        deliveries = {claim.key: claim.delivery for claim in claims}
        rows = self.fetch(table, row_format, deliveries, budget_bytes).value
        return self._timed(ClaimResult(claims, rows, left))

    def _claim(self, table: QueueTable, wanted: Sequence[Wanted], slot: int) -> ClaimResult:
        """All steps of a claim at once."""
        claim = MemoryClaim(self, table, wanted, slot)
        try:
            for step in (*FIRST_PACKET, *SECOND_PACKET):
                claim.do(step)
        except StoreError:
            claim.die()
            raise
        return claim.result

    def fetch(
        self, table: QueueTable, row_format: RowFormat, keys: Mapping[Key, Delivery], budget_bytes: int
    ) -> Timed[FetchResult]:
        """The row payloads of those `keys` whose claim is unchanged, within the budget."""
        rows = self.rows_of(table)
        found: dict[Key, bytes] = {}
        unread: set[Key] = set()
        changed: set[Key] = set()
        for key, delivery in keys.items():
            row = rows.get(key)
            if row is None or row.time_acked_ns is not None or row.epoch != delivery.epoch:
                continue
            if row.entry.due_ns != delivery.until_ns:
                changed.add(key)
            elif found and sum(map(len, found.values())) >= budget_bytes:
                unread.add(key)
            else:
                found[key] = row.payload
        return self._timed(FetchResult(found, frozenset(unread), frozenset(changed)))

    def lookup(self, table: QueueTable, keys: Sequence[Key]) -> Timed[Mapping[Key, Entry]]:
        """The entries of those keys whose rows exist and are unacknowledged."""
        rows = self.rows_of(table)
        live = (row for key in keys if (row := rows.get(key)) is not None and row.time_acked_ns is None)
        return self._timed({row.key: row.entry for row in live})

    def unacknowledged(self, tables: Sequence[QueueTable]) -> Timed[frozenset[TableId]]:
        """Those tables that have an unacknowledged row."""
        live = {table.id for table in tables if any(row.time_acked_ns is None for row in self.rows_of(table).values())}
        return self._timed(frozenset(live))

    def unlocked(self, table: QueueTable, keys: Sequence[Key]) -> Timed[frozenset[Key]]:
        """Those keys whose rows are unacknowledged and due, and locked by no other transaction just now."""
        found = self.lookup(table, keys).value
        due = {key for key, entry in found.items() if entry.due_ns <= self.now_ns}
        return self._timed(frozenset(due - self.locked))

    def release(self, table: QueueTable, returns: Sequence[Return]) -> Timed[Changed]:
        """Release claims. Returns the number of rows whose claim still was ours."""
        rows = self.rows_of(table)
        count = 0
        for claim in returns:
            row = rows.get(claim.key)
            if row is None or row.time_acked_ns is not None:
                continue
            if (row.epoch, row.entry.due_ns) != (claim.epoch, claim.deadline_ns) or claim.key in self.locked:
                continue
            count += 1
            if claim.failed_wait_ns is not None:
                rows[claim.key] = replace(row, epoch=row.epoch + 1, time_next_ns=self.now_ns + claim.failed_wait_ns)
            elif claim.sent:
                rows[claim.key] = replace(row, time_next_ns=self.now_ns)
            else:
                rows[claim.key] = replace(row, epoch=row.epoch - 1, time_next_ns=claim.due_ns)
        return self._timed(Changed(count))

    def acknowledge_all(self, table: QueueTable, acks: Sequence[Ack], origin: Origin) -> Timed[Sequence[AckResult]]:
        """Carry out ACKs of clients in one transaction. Returns the affected rows of each."""
        rows = self.rows_of(table)
        done = [ack for ack in acks if self.locked.isdisjoint(ack.keys)]
        keys = {key for ack in done for key in ack.keys if key in rows}
        live = {key: rows[key].epoch for key in keys if rows[key].time_acked_ns is None}
        shared = shares(done, live)
        for key in shared.keys:
            self.acknowledge(table.id, key)
        counted = iter(shared.counts)
        counts = [next(counted) if self.locked.isdisjoint(ack.keys) else None for ack in acks]
        if self.failures and self.failures[0] is not None:
            self.failures.popleft()
            raise AckUnknownError("the connection to the server broke", code=2013)
        return self._timed(counts)

    def is_open(self, table: QueueTable, batch: Key | None) -> bool:
        """Whether a batch has unacknowledged parts in the database of this table."""
        tables = [found for found in self.tables.values() if isinstance(found, QueueTable) and found.batch is not None]
        names = {found.id for found in tables}
        names |= {found.dead_letter for found in tables if found.policy.dead_parts_hold and found.dead_letter}
        return any(
            row.batch == batch and row.time_acked_ns is None
            for name in names
            if name.db == table.id.db
            for row in self.rows.get(name, {}).values()
        )

    def check_batches(self, table: QueueTable, check: BatchCheck) -> Timed[BatchesChecked]:
        """Fire the follow-ups whose batches are done, and set aside those that are due and wait."""
        rows = self.rows_of(table)
        parts = [self.rows[part].get(key) for part, keys in check.parts for key in keys]
        batches = {part.batch for part in parts if part is not None}
        live = [row for row in rows.values() if row.after_batch is not None and row.time_acked_ns is None]
        live.sort(key=lambda row: (row.after_batch, row.key))
        behind = [row for row in live if check.after is None or (row.after_batch, row.key) > check.after]
        rotated = behind[: check.limit] if check.rotate else []
        fired: list[Key] = []
        aside: list[Key] = []
        for row in live:
            if row.key in self.locked or not (row.key in check.keys or row.after_batch in batches or row in rotated):
                continue
            is_open = self.is_open(table, row.after_batch)
            if row.time_next_ns == WAITING_NS and not is_open:
                fired.append(row.key)
                rows[row.key] = replace(row, time_next_ns=self.now_ns)
            elif is_open and row.epoch == 0 and row.entry.due_ns <= self.now_ns:
                aside.append(row.key)
                rows[row.key] = replace(row, time_next_ns=WAITING_NS)
        locked = any(row.key in self.locked and row.time_next_ns == WAITING_NS for row in live)
        waiting = sum(rows[row.key].time_next_ns == WAITING_NS for row in rotated)
        cut = len(rotated) >= check.limit
        place = (rotated[-1].after_batch or 0, rotated[-1].key) if cut else None
        return self._timed(BatchesChecked(tuple(fired), tuple(aside), waiting, place, again=None in parts or locked))

    def find_abandoned(self, table: QueueTable, slot: int | None, limit: int) -> Timed[tuple[Return, ...]]:
        """Up to `limit` messages in flight at proxies that are gone, as claims to release."""

        def is_wanted(found: int) -> bool:
            return found == slot if slot is not None else found > 0 and found not in self.slots_held

        found = [
            Return(row.key, row.epoch, row.lease_ns, 0, True, row.priority)
            for row in self.rows_of(table).values()
            if table.lease_column is not None
            and row.lease_ns is not None
            and row.is_in_flight(self.now_ns)
            and is_wanted(row.lease_ns % SLOTS)
        ]
        return self._timed(tuple(found[:limit]))

    def move_dead_letters(self, table: QueueTable, wanted: Sequence[Wanted], dead_letter: TableId) -> Timed[MoveResult]:
        """Move dead messages into the message table `dead_letter`, in one transaction."""
        rows, target = self.rows_of(table), self.tables.get(dead_letter)
        missing = set(table.columns) - set(target.columns) if isinstance(target, QueueTable) else set()
        unfit = (
            not isinstance(target, QueueTable)
            or dead_letter == table.id
            or not target.takes_dead_letters_of(table.id)
            or missing
        )
        moved: list[Key] = []
        kept: list[Key] = []
        for dead, row in self.claimable(rows, wanted):
            other = None if unfit else self.rows[dead_letter].get(dead.key)
            if unfit or (other is not None and other.time_acked_ns is None) or dead.key in self.undeletable:
                rows[dead.key] = replace(row, time_next_ns=self.now_ns + dead.wait_ns)
                kept.append(dead.key)
            else:
                self.put(dead_letter, replace(row, time_next_ns=self.now_ns))
                del rows[dead.key]
                moved.append(dead.key)
        problem = f"dead messages {kept} stay in {table.id}: {dead_letter} cannot take them {sorted(missing)}"
        return self._timed(MoveResult(tuple(moved), problem if kept else None))

    def purge(self, table: QueueTable, age_ns: int, limit: int) -> Timed[Changed]:
        """Delete up to `limit` rows acknowledged more than `age_ns` ago. Returns their number."""
        rows = self.rows_of(table)
        acked = sorted(
            (row.time_acked_ns, row.key)
            for row in rows.values()
            if row.time_acked_ns is not None and row.time_acked_ns < self.now_ns - age_ns and row.key not in self.locked
        )
        found = [key for _, key in acked[:limit]]
        refused = {key: "another table refers to it" for key in found if key in self.undeletable}
        for key in found:
            if key not in refused:
                del rows[key]
        return self._timed(Changed(len(found) - len(refused), refused, len(found) == limit))

    def set_more_connections(self, count: int) -> None:
        """There are no connections."""

    def roster(self, queues: Collection[TableId]) -> Timed[Roster]:
        """Return `roster_found`."""
        return Timed(self.roster_found, self.now_ns)

    def begin_change(self, lock: str) -> Timed[bool]:
        """Nobody else changes anything."""
        return self._timed(True)

    def end_change(self, lock: str) -> Timed[None]:
        """Do nothing."""
        return self._timed(None)

    def read(self, text: str) -> Timed[Sequence[Sequence[str | None]]]:
        """There is no SQL in memory."""
        raise StoreError("a store in memory runs no statements")

    def ping(self) -> Timed[None]:
        """Do nothing."""
        return self._timed(None)

    def kill(self, connection_id: int, origin: Origin) -> Timed[bool]:
        """Do nothing. Returns True."""
        return self._timed(True)

    def close(self) -> None:
        """Make later calls raise StoreError."""
        self.closed = True

    def _is_wanted(self, row: Row, selection: Selection) -> bool:
        return selection.condition is None or self.conditions[selection.condition](row)

    def claimable(self, rows: Mapping[Key, Row], wanted: Sequence[Wanted]) -> list[tuple[Wanted, Row]]:
        """Those of `wanted` that can be claimed, by key."""
        return [
            (want, row)
            for want in sorted(wanted, key=lambda want: want.key)
            if (row := rows.get(want.key)) is not None
            and row.time_acked_ns is None
            and self._is_wanted(row, want.selection)
            and row.entry.due_ns <= self.now_ns
            and row.epoch == want.epoch
            and want.key not in self.locked
        ]

    def rows_of(self, table: QueueTable) -> dict[Key, Row]:
        """The rows of a table. Raises StoreError, as the next of `failures` demands."""
        if self.closed:
            raise StoreError("the store is closed")
        if table.id not in self.rows:
            raise StoreError(f"Table '{table.id}' doesn't exist", code=1146, lasting=True)
        if self.failures and self.failures[0] is Failure.NOT_DONE:
            self.failures.popleft()
            raise StoreError("the connection to the server broke", code=2013)
        return self.rows[table.id]

    def _timed(self, value: T) -> Timed[T]:
        if self.failures and self.failures.popleft() is not None:
            raise StoreError("the connection to the server broke", code=2013)
        return Timed(value, self.now_ns)


class MemoryClaim:
    """One claim, a step at a time, so that tests can do anything else between two of them."""

    def __init__(self, store: MemoryStore, table: QueueTable, wanted: Sequence[Wanted], slot: int) -> None:
        self.result = ClaimResult((), None)
        self._store, self._table, self._slot = store, table, slot
        self._wanted = {want.key: want for want in wanted}
        self._policy = policy = table.policy
        needs = set() if policy.semaphores is None else {needs for want in wanted for needs in needs_of(want.group)}
        self._names = sorted(needs)
        """The semaphores that its messages need."""
        self._burst_s = burst_of(store.claim_s)
        self._choices: list[Choice] = []
        self._rate: Rate | None = None
        self._paces: GroupPaces | None = None
        self._semaphores: SemaphoreCounts | None = None
        self._capacities: dict[str, int] = {}
        self._now_ns = store.now_ns
        self._locked: dict[Key, Row] = {}
        self._written: dict[Key, Row] = {}
        self._waiting: set[Key] = set()

    @property
    def limit_rows(self) -> list[LimitRow]:
        """The rows of the limits that it has to lock. A semaphore that does not exist has none."""
        named = ((self._table.id.db, name) for name in self._names)
        rows = [place for place in named if place in self._store.semaphores]
        return [*([self._table.id] if LIMITS_TABLE.limit(self._policy) else []), *rows]

    @property
    def waits(self) -> bool:
        """Whether another claim has locked one of them."""
        return any(self._store.limit_locks.get(row, self) is not self for row in self.limit_rows)

    def do(self, step: Step) -> None:
        """Carry out a step. Raises StoreError: 1205 if it waits in vain."""
        rows = self._store.rows_of(self._table)
        match step:
            case Step.LOCK_LIMITS:
                if self.waits:
                    raise StoreError("Lock wait timeout exceeded", code=LOCK_WAIT_TIMEOUT)
                self._store.limit_locks |= dict.fromkeys(self.limit_rows, self)
                self._now_ns = self._store.now_ns
                self._capacities = self._read_capacities()
                if self._policy.max_rate is not None:
                    pace = Pace(self._policy.max_rate, self._burst_s, self._policy.max_burst)
                    self._rate = Rate(pace, self._store.rates.get(self._table.id), self._now_ns)
                    self._choices.append(self._rate)
            case Step.COUNT:
                if self._policy.max_in_flight is not None:
                    self._choices.append(self._count(rows.values(), self._policy.max_in_flight))
                if self._names:
                    self._semaphores = self._count_semaphores()
                    self._choices.append(self._semaphores)
            case Step.LOCK_ROWS:
                self._locked = {want.key: row for want, row in self._store.claimable(rows, [*self._wanted.values()])}
                self._store.locked |= self._locked.keys()
            case Step.COUNT_GROUPS:
                self._choices += self._choices_of_groups(rows)
            case Step.CHECK_BATCHES if self._table.after_batch is not None:
                self._waiting = {
                    key
                    for key, row in self._locked.items()
                    if row.after_batch is not None
                    and row.epoch == 0
                    and self._store.is_open(self._table, row.after_batch)
                }
            case Step.WRITE:
                self._write()
            case Step.COMMIT:
                rows.update(self._written)
                self._write_rates()
                self._unlock()
            case _:
                pass

    def die(self) -> None:
        """Its connection ends: its transaction is rolled back, and its locks are released."""
        self._unlock()

    def _choices_of_groups(self, rows: Mapping[Key, Row]) -> Iterator[Choice]:
        if self._policy.group_rate is not None:
            self._paces = self._read_rates(Pace(self._policy.group_rate, self._burst_s))
            yield self._paces
        if self._policy.group_strict:
            yield self._order(rows)
        elif self._policy.group_limit is not None:
            yield self._count_groups(rows.values(), self._policy.group_limit)

    def _count(self, rows: Collection[Row], most: int) -> InFlightCount:
        ends = sorted(row.time_next_ns or 0 for row in rows if row.is_in_flight(self._store.now_ns))
        return InFlightCount(most, len(ends), min(ends, default=None))

    def _unchanged(self, found: Mapping[Key, Entry]) -> dict[Key, Entry]:
        return unchanged(found, self._wanted)

    def _read_capacities(self) -> dict[str, int]:
        found, db = self._store.semaphores, self._table.id.db
        return {name: found[db, name] for name in self._names if (db, name) in found}

    def _count_semaphores(self) -> SemaphoreCounts:
        counts = SemaphoreCounts(frozenset(self._names), self._capacities)
        for table, row in self._holders():
            for name in needs_of(row.group):
                place = None if table == self._table.id else table
                counts.holders.setdefault(name, {})[place, row.key] = row.time_next_ns or 0
        return counts

    def _holders(self) -> Iterator[tuple[TableId, Row]]:
        """The messages in flight of all queues that share semaphores."""
        for table in self._store.tables.values():
            if not isinstance(table, QueueTable) or table.policy.semaphores is None or table.id.db != self._table.id.db:
                continue
            for row in self._store.rows[table.id].values():
                if row.is_in_flight(self._store.now_ns):
                    yield table.id, row

    def _count_groups(self, rows: Collection[Row], most: int) -> GroupCounts:
        groups, numbers = GroupCounts(most), dict[Group, int]()
        for row in map(self._store.rows_of(self._table).get, self._wanted):
            if row is not None and row.time_acked_ns is None:
                groups.numbers[row.key] = numbers.setdefault(row.group, len(numbers))
                groups.held.setdefault(groups.numbers[row.key], 0)
        for row in rows:
            if row.is_in_flight(self._store.now_ns) and (number := numbers.get(row.group)) is not None:
                groups.held[number] += 1
                groups.holders.setdefault(number, {})[row.key] = row.time_next_ns or 0
        return groups

    def _order(self, rows: Mapping[Key, Row]) -> GroupOrder:
        runs = runs_of(self._wanted.values(), self._table.policy.group_run)
        firsts = {run[0]: rows[run[0]].group for run in runs if run[0] in rows}
        in_flight = {first: self._in_flight(group, rows.values()) for first, group in firsts.items()}
        holders = {first: held for first, held in in_flight.items() if held}
        order = GroupOrder(runs, dict(self._wrong(runs, rows.values())), holders)
        order.note_locked({key: row.entry for key, row in self._locked.items()})
        return order

    def _in_flight(self, group: Group, rows: Collection[Row]) -> dict[Key, int]:
        now_ns = self._store.now_ns
        return {row.key: row.time_next_ns or 0 for row in rows if row.group == group and row.is_in_flight(now_ns)}

    def _write_rates(self) -> None:
        if self._rate is not None and self._rate.taken:
            self._store.rates[self._table.id] = self._rate.written_ns
        for group, full_ns in (self._paces.written() if self._paces is not None else {}).items():
            self._store.group_rates[self._table.id, group] = full_ns

    def _read_rates(self, pace: Pace) -> GroupPaces:
        kept: dict[tuple[TableId, Hashable], int] = self._store.group_rates
        paces = GroupPaces(pace, self._now_ns, {key: row.group for key, row in self._locked.items()})
        places = ((group, (self._table.id, group)) for group in paces.groups.values())
        paces.full_ns = {group: kept[place] for group, place in places if place in kept}
        return paces

    def _wrong(self, runs: Sequence[Sequence[Key]], rows: Collection[Row]) -> Iterator[tuple[Key, Entry | None]]:
        """The messages of runs that are not in the place of their group, each with the one that is."""
        of_key = {row.key: row for row in rows if row.time_acked_ns is None}
        for place, keys in checks(runs).items():
            for key in (key for key in keys if key in of_key):
                group = of_key[key].group
                in_group = sorted((row.entry for row in of_key.values() if row.group == group), key=itemgetter(0))
                if place >= len(in_group):
                    yield key, None
                elif in_group[place].key != key:
                    yield key, in_group[place]

    def _write(self) -> None:
        def end_ns(deadline_ns: int) -> int:
            return deadline_ns if self._table.lease_column is None else end_with_slot(deadline_ns, self._slot)

        found = {key: row.entry for key, row in self._locked.items() if key not in self._waiting}
        if self._policy.semaphores is not None:
            found = self._unchanged(found)
        if self._semaphores is not None:
            self._semaphores.needs = {key: needs_of(entry.group) for key, entry in found.items()}
        self._written |= {key: replace(self._locked[key], time_next_ns=WAITING_NS) for key in self._waiting}
        claims, left_out = choose(self._wanted.values(), found, self._now_ns, end_ns, self._choices)
        for claim in claims:
            lease_ns = None if self._table.lease_column is None else claim.deadline_ns
            self._written[claim.key] = replace(
                self._locked[claim.key], epoch=claim.epoch, time_next_ns=claim.deadline_ns, lease_ns=lease_ns
            )
        if self._written.keys() & self._store.unclaimable:
            raise StoreError("a trigger refuses a row", code=1644)
        left = left_behind(self._choices, left_out, found) if LIMITS_TABLE.limit(self._policy) or self._names else None
        self.result = ClaimResult(claims, None, left, tuple(self._waiting))

    def _unlock(self) -> None:
        self._store.locked -= self._locked.keys()
        self._locked = {}
        self._unlock_limits()

    def _unlock_limits(self) -> None:
        held = self._store.limit_locks
        self._store.limit_locks = {row: claim for row, claim in held.items() if claim is not self}
