"""The store on MySQL and MariaDB: each method is one transaction or one read, in the fewest round
trips.

queries.sql explains each statement. This module decides which statements share a packet, which
values are compared here, and what is remembered between calls: the priorities of a table, the size
of its rows, how far it was purged. These memories only save time. With a wrong one, the result
takes one more round trip and is the same.

Transactions that a deadlock has ended (1213) are tried again. They are the engine's own, never a
client's. One that has waited for a lock in vain (1205) is not: who holds it may hold it for long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random

from engine.catalog.privileges import Grants
from engine.catalog.verdict import evaluate
from engine.model import (
    ANYTHING,
    SLOT_LOCK,
    SLOTS,
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
    TableId,
    Wanted,
)
from engine.packets import Result, text_values
from engine.queue_table import BrokenTable, Policy, QueueTable
from engine.quoting import quoted, text_literal
from engine.store.acknowledging import AckBatch
from engine.store.acks import Ack
from engine.store.batches import Batches
from engine.store.begun import ConnectionCall, OnePacket
from engine.store.claiming import ClaimOfOne, ClaimTransaction, FetchOf
from engine.store.connection import StoreConnection
from engine.store.dead_letter import DeadLetterMove
from engine.store.fetch import RowFetch
from engine.store.group_scan import scan_by_group
from engine.store.information_schema import facts_of, listing, now_ns, table_facts
from engine.store.limits.claim import ClaimLimits, own_limits
from engine.store.limits.group_rate import IdleRates
from engine.store.limits.semaphores import Semaphores, none_exist, shows_no_table
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.own_writes import OwnWrites
from engine.store.partitions import Retention
from engine.store.pool import Pool
from engine.store.port import AckResult, Answer, Described, Listing, Origin, Roster, StoreError, Timed, in_parts
from engine.store.privileges import Rights, read_grants
from engine.store.queries import START_OF_TIME_NS, TableStatements, statement, statements_of
from engine.store.reach import Reach
from engine.store.recent import Recent
from engine.store.roster import Introduction, RosterConnection
from engine.store.route import Route
from engine.store.scan import IndexScan, RangeScan, ScanRequest, context_of, entries_of, keys_of, scan_slowly
from engine.store.scan_result import with_others
from engine.store.unlocked import UnlockedLookup
from engine.store.unprepared import Unprepared

T = TypeVar("T")

SERVERS_MAX = 64
"""Servers that are remembered. There is one, or a few behind one name."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The store's own bounds, each with its reason."""

    connections: int = 8
    """As many as the executor has threads: more would be idle, fewer would make threads wait."""
    attempts: int = 4
    """Attempts at a transaction that deadlocks end. The second one nearly always succeeds."""
    attempt_pause_s: float = 0.05
    """The longest pause between them, drawn at random: longer than a transaction of the engine,
    shorter than anybody notices."""
    preparations_max: int = 4
    """What a claim lacks is made for it at most this often. There are three such things, and other proxies may
    change one again meanwhile."""
    locked_pauses_s: tuple[float, ...] = (0.02, 0.1, 0.5)
    """Pauses before another attempt at locked rows and tables. Claims to be released: a vanished
    consumer's transaction is rolled back by then. Rows that still are locked are in use, and come
    due when their leases end. Partitions to be made or dropped: the engine itself may have been
    reading the table."""
    priorities_ahead: int = 8
    """Priorities read in one packet of a scan, if the last scan found as many. Most tables have
    fewer."""
    priorities_known: int = 256
    """Priorities remembered for each table. Further ones are read as if they were new."""
    partition_busy_pause_s: float = 60.0
    """Longest pause before another attempt at partitions of a table that a transaction uses. On
    MySQL each attempt delays the table's statements by up to a second."""
    partition_refused_pause_s: float = 3600.0
    """Pause after a refusal: somebody has to change a privilege or the table."""
    describe_again_max: int = 4
    """A table that appears broken is described again, at most this often, until two results agree.
    Describing takes several queries, and a DROP or ALTER between them mixes two states."""
    tables_remembered: int = 1_000
    """Tables with values remembered between calls, the last used ones. Programs that make and drop
    tables all day must not fill the memory."""
    proxies_max: int = 32
    """Slots of the roster: proxies on one server that share their queues. A further one takes
    messages of all shares."""
    roster_idle_s: int = 15
    """The server forgets a proxy that has not checked the roster for this time."""
    rows_unknown: int = 32
    """Rows in the first fetch of a table, while the size of its rows is unknown."""


class MySQLStore:
    """The port on a real server. Safe for any number of threads."""

    def __init__(
        self,
        address: BackendAddress | Route,
        limits: StoreLimits | None = None,
        link_limits: ConnectionLimits | None = None,
        reach: Reach | None = None,
        own_writes: OwnWrites | None = None,
        introduction: Introduction | None = None,
    ) -> None:
        """`introduction`: what the proxy publishes of itself, apart from its start."""
        self._limits = limits or StoreLimits()
        timing, own = link_limits or ConnectionLimits(), own_writes or OwnWrites()
        route = address if isinstance(address, Route) else Route(address)

        def connection() -> StoreConnection:
            return StoreConnection(route.address, timing, own.mark, checks_writable=route.several)

        self._pool = Pool(connection, self._limits.connections, reach, own, route.failed, route.check)
        self._route, self._timing = route, timing
        self._introduction = introduction or Introduction()
        self._roster = RosterConnection(self._roster_connection, self._limits.proxies_max, self._limits.roster_idle_s)
        remembered = self._limits.tables_remembered
        self._retention = Retention(
            self._limits.locked_pauses_s,
            self._limits.partition_busy_pause_s,
            self._limits.partition_refused_pause_s,
            remembered,
        )
        self._grants: Grants | None = None
        """The grants at the catalog's last refresh. None before the first one."""
        # Memories that only save time, so the value of whichever thread wrote last is good enough.
        self._priorities: Recent[TableId, Sequence[int]] = Recent(remembered)
        self._row_bytes: Recent[TableId, int] = Recent(remembered)
        self._claim_s: Recent[TableId, float] = Recent(remembered)
        self._purged_to_ns: Recent[TableId, int] = Recent(remembered)
        self._idle_rates = IdleRates(remembered)
        self._batches = Batches(self._with_rights)
        self._semaphores = Semaphores(self._with_rights)
        self._servers: set[Origin] = set()
        """The servers found so far. With several behind one address, a connection id does not
        identify its server."""

    def close(self) -> None:
        """Close all connections. Later calls raise StoreError."""
        self._pool.close()
        self._roster.close()

    def set_more_connections(self, count: int) -> None:
        """So many connections more may be used from now on."""
        self._pool.set_more(count)

    def server_changed(self) -> None:
        """Another server is the primary: end all connections to the one before. Calls under way
        raise StoreError."""
        self._pool.abandon()
        self._roster.abandon()
        self._grants = None

    def roster(self, queues: Collection[TableId]) -> Timed[Roster]:
        """Announce this proxy's queues, and read what other proxies announce."""
        return self._roster.check(queues)

    def begin_change(self, lock: str) -> Answer[bool]:
        """Begin a change that excludes those with the same lock."""
        return Answer(self._roster.begin_change(lock))

    def end_change(self, lock: str) -> Answer[None]:
        """End it."""
        self._roster.end_change(lock)
        return Answer(None)

    def _roster_connection(self) -> StoreConnection:
        """A connection whose attributes introduce the proxy."""
        if self._introduction.since_ns is None:
            self._introduction = replace(self._introduction, since_ns=self.ping().now_ns)
        return StoreConnection(self._route.address, self._timing, program=self._introduction.program)

    def read(self, text: str) -> Timed[Sequence[Sequence[str | None]]]:
        """The rows of a statement that only reads, whose values are ASCII."""
        with self._pool.connection() as connection:
            now, found = connection.run([statement("now"), text])
        rows = [[None if value is None else value.decode("ascii") for value in text_values(row)] for row in found.rows]
        return Timed(rows, now_ns(now))

    def ping(self) -> Timed[None]:
        """Run a trivial statement on the server."""
        with self._pool.connection() as connection:
            (now,) = connection.run([statement("now")])
        return Timed(None, now_ns(now))

    def kill(self, connection_id: int, origin: Origin) -> Timed[bool]:
        """End a connection and its statement, if this store is connected to its server.

        Returns whether it was.
        """
        with self._pool.connection() as connection:
            now, name = connection.run([statement("now"), statement("server_name")])
            here = self._server_of(connection, name)
            alone = len([server for server in self._servers if server.address == here.address]) == 1
            same = here == origin if origin.name is not None else here.address == origin.address and alone
            if same:
                connection.run([statement("kill", connection_id=connection_id)])
        return Timed(same, now_ns(now))

    def _server_of(self, connection: StoreConnection, name: Result) -> Origin:
        """The server of a connection, from the result of `server_name`."""
        (value,) = text_values(name.rows[0])
        here = Origin(connection.peer, (value or b"").decode())
        if len(self._servers) < SERVERS_MAX:
            self._servers.add(here)
        return here

    def discover(self) -> Timed[Listing]:
        """Read the catalog: every table marked as a queue."""
        with self._pool.connection() as connection:
            grants = self._read_grants(connection)
            found = listing(connection, grants.stamp)
        rights = replace(found.value, account=grants.account, problems=grants.problems())
        return Timed(rights, found.now_ns)

    def _with_rights(self, connection: StoreConnection, found: QueueTable | BrokenTable) -> QueueTable | BrokenTable:
        return self._rights(connection).on(found)

    def _rights(self, connection: StoreConnection) -> Rights:
        return Rights(connection, self._grants or self._read_grants(connection))

    def _read_grants(self, connection: StoreConnection) -> Grants:
        before, self._grants = self._grants, read_grants(connection)
        if before is not None and before != self._grants:
            self._pool.renew()
        return self._grants

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        """The table as a queue, or its problems. None if it does not exist or is not marked."""
        found = self._describe_once(table)
        for _ in range(self._limits.describe_again_max):
            before = found.value
            if not isinstance(before, BrokenTable) or (found := self._describe_once(table)).value == before:
                break
        return found

    def _describe_once(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        with self._pool.connection() as connection:
            facts = table_facts(connection, table)
            found = None if facts.value is None else evaluate(facts.value)
            if found is not None:
                found = self._rights(connection).on(found)
        return Timed(found, facts.now_ns)

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, Described]]:
        """The marked ones of the tables, in the server's spelling."""
        described: dict[TableId, Described] = {}
        with self._pool.connection() as connection:
            facts = facts_of(connection, tables)
            rights = self._rights(connection)
            for found in map(evaluate, facts.value.values()):
                if found is None:
                    continue
                try:
                    described[found.id] = rights.on(found)
                except StoreError as error:
                    if connection.broken:
                        raise
                    described[found.id] = error
        return Timed(described, facts.now_ns)

    def limits_problem(self, queue: TableId, policy: Policy) -> Answer[str | None]:
        """Why the limits of a queue with this policy could not be kept; None if they can."""
        with self._pool.connection() as connection:
            return Answer(self._rights(connection).limits_problem(queue, policy))

    def scan(
        self,
        table: QueueTable,
        limit: int,
        selection: Selection = ANYTHING,
        part: Range | None = None,
        portion: Portion | None = None,
    ) -> Timed[ScanResult]:
        """Up to `limit` due entries, and up to `limit` entries that come due next."""
        share = None if portion is None else portion.share
        request = ScanRequest(table, limit, selection, context_of(selection), share)
        with self._pool.connection(request.context) as connection:
            own = self._scan(connection, request, part)
            if portion is None or not portion.others:
                return own
            others = self._scan(connection, replace(request, limit=portion.others, others=True), part)
        return Timed(with_others(own.value, others.value), own.now_ns)

    def _scan(self, connection: StoreConnection, request: ScanRequest, part: Range | None) -> Timed[ScanResult]:
        table = request.table
        if table.scan_index is None:
            return scan_slowly(connection, request)
        known, ahead = self._priorities.get(table.id, ()), self._limits.priorities_ahead
        scan = IndexScan(connection, request, known, ahead)
        if part is not None:
            scan = RangeScan(connection, request, known, ahead, part)
        result = scan.run()
        if not request.others:
            self._priorities.put(table.id, scan.priorities_read[: self._limits.priorities_known])
        return result

    def scan_groups(
        self, table: QueueTable, request: GroupScan, portion: Portion | None = None
    ) -> Timed[GroupScanResult]:
        """Due messages by message group."""
        with self._pool.connection() as connection:
            return scan_by_group(connection, table, request, portion)

    def claim(self, table: QueueTable, wanted: Sequence[Wanted], slot: int = 0) -> Timed[tuple[Claimed, ...]]:
        """Claim those of `wanted` that are due, unacknowledged, unchanged and not locked."""
        answer = self.claim_and_fetch(table, wanted, None, 0, slot)
        return Timed(answer.value.claims, answer.now_ns)

    def claim_and_fetch(
        self,
        table: QueueTable,
        wanted: Sequence[Wanted],
        row_format: RowFormat | None,
        budget_bytes: int,
        slot: int = 0,
    ) -> Timed[ClaimResult]:
        """Claim, and read the rows behind the commit."""
        fetch_of = None if row_format is None else partial(self._fetch, table, row_format, budget_bytes=budget_bytes)
        if fetch_of is not None and ClaimOfOne.serves(table, wanted):
            with self._pool.connection() as connection:
                result = self._claim_one(table, ClaimOfOne(table, wanted[0], slot, fetch_of), connection)
            if result is not None:
                return result
        return self._claim_any(table, wanted, slot, fetch_of)

    def begin_claim(
        self,
        table: QueueTable,
        wanted: Sequence[Wanted],
        row_format: RowFormat | None,
        budget_bytes: int,
        slot: int = 0,
        *,
        no_triggers: bool = False,
    ) -> ConnectionCall[ClaimResult] | None:
        """Send the packet of a claim of one message, if it is all that is sent and a connection is ready."""
        if (
            row_format is None
            or row_format.binary
            or not (ClaimOfOne.serves(table, wanted) and ClaimOfOne.is_short(wanted[0], row_format))
        ):
            return None
        fetch_of = partial(self._fetch, table, row_format, budget_bytes=budget_bytes)
        reads_before_commit = no_triggers and ClaimOfOne.may_read_before_commit(table, row_format)
        claim = ClaimOfOne(table, wanted[0], slot, fetch_of, reads_before_commit=reads_before_commit)
        if (connection := self._pool.ready(context=claim.context)) is None:
            return None
        return self._begin(connection, claim, partial(self._claim_one, table, claim))

    def _claim_any(
        self, table: QueueTable, wanted: Sequence[Wanted], slot: int, fetch_of: FetchOf | None
    ) -> Timed[ClaimResult]:
        claim = partial(self._claim_prepared, table, wanted, slot, fetch_of)
        try:
            return self._retried(claim)
        except StoreError as error:
            if table.policy.semaphores is None:
                raise
            self._semaphores.forget(table.id.db)
            if shows_no_table(error):
                return Timed(none_exist(wanted), self.ping().now_ns)
            if not error.lasting:
                raise
            # Another queue may have been dropped or altered since it was described.
        return self._retried(claim)

    def _claim_prepared(
        self, table: QueueTable, wanted: Sequence[Wanted], slot: int, fetch_of: FetchOf | None
    ) -> Timed[ClaimResult]:
        """`_claim`, and what it lacks is made before it begins again."""
        for _ in range(self._limits.preparations_max):
            try:
                return self._claim(table, wanted, slot, fetch_of)
            except Unprepared as lack:
                with self._pool.connection() as connection:
                    lack.prepare(connection)
        return self._claim(table, wanted, slot, fetch_of)

    def _fetch(
        self, table: QueueTable, row_format: RowFormat, keys: Mapping[Key, Delivery], budget_bytes: int
    ) -> RowFetch:
        row_bytes = self._row_bytes.get(table.id, budget_bytes // self._limits.rows_unknown)
        return RowFetch(table, row_format, keys, budget_bytes, row_bytes)

    def fetch(
        self, table: QueueTable, row_format: RowFormat, keys: Mapping[Key, Delivery], budget_bytes: int
    ) -> Timed[FetchResult]:
        """The row payloads of those `keys` whose claim is unchanged, within the budget."""
        fetch = self._fetch(table, row_format, keys, budget_bytes)
        with self._pool.connection(fetch.context) as connection:
            result = fetch.run(connection)
        self._row_bytes.put(table.id, fetch.row_bytes)
        return result

    def lookup(self, table: QueueTable, keys: Sequence[Key]) -> Timed[Mapping[Key, Entry]]:
        """The entries of those keys whose rows exist and are unacknowledged."""
        sql = statements_of(table)
        with self._pool.connection() as connection:
            now, *found = connection.run([statement("now"), *sql.for_ids("lookup", keys)])
            return Timed({entry.key: entry for entry in entries_of(sql, *found)}, now_ns(now))

    def unacknowledged(self, tables: Sequence[QueueTable]) -> Timed[frozenset[TableId]]:
        """Those tables that have an unacknowledged row, by one statement."""
        parts = [f"({statements_of(table)('unacknowledged', number=number)})" for number, table in enumerate(tables)]
        with self._pool.connection() as connection:
            now, found = connection.run([statement("now"), " UNION ALL ".join(parts)])
            numbers = (int(number) for row in found.rows if (number := text_values(row)[0]) is not None)
            return Timed(frozenset(tables[number].id for number in numbers), now_ns(now))

    def unlocked(self, table: QueueTable, keys: Sequence[Key]) -> Answer[frozenset[Key]]:
        """Those keys whose rows are unacknowledged and due, and locked by no other transaction just now."""
        if not keys:
            return Answer(frozenset())
        lookup = UnlockedLookup(table, keys)
        with self._pool.connection() as connection:
            return lookup.run(connection)

    def begin_unlocked(self, table: QueueTable, keys: Sequence[Key]) -> ConnectionCall[frozenset[Key]] | None:
        """Send the packet of a lookup, if it is short and a connection is ready."""
        if not keys:
            return None
        lookup = UnlockedLookup(table, keys)
        if not lookup.is_short or (connection := self._pool.ready()) is None:
            return None
        return self._begin(connection, lookup, lookup.run)

    def release(self, table: QueueTable, returns: Sequence[Return]) -> Timed[Changed]:
        """Release claims. Returns the number of rows whose claim still was ours."""
        held: Sequence[Return] = returns
        refused: dict[Key, str] = {}
        count = now = 0
        for pause_s in (0.0, *self._limits.locked_pauses_s):
            time.sleep(pause_s)
            parts, reasons = in_parts(held, lambda part: self._retried(partial(self._release, table, part)))
            refused |= {claim.key: reason for claim, reason in reasons.items()}
            count += sum(released for released, _, _ in parts)
            held = [claim for _, still, _ in parts for claim in still]
            now = max([now, *(now_at for _, _, now_at in parts)])
            if not held:
                break
        return Timed(Changed(count, refused), now or self.ping().now_ns)

    def acknowledge_all(self, table: QueueTable, acks: Sequence[Ack], origin: Origin) -> Timed[Sequence[AckResult]]:
        """Carry out ACKs of clients in one transaction. Returns the affected rows of each."""
        with self._pool.connection() as connection:
            if connection.server is None:
                (name,) = connection.run([statement("server_name")])
                connection.server = self._server_of(connection, name)
            if connection.server != origin:
                raise StoreError("the client is connected to another server than the engine")
            return AckBatch(table, acks).run(connection)

    def begin_acks(
        self, table: QueueTable, acks: Sequence[Ack], origin: Origin
    ) -> ConnectionCall[Sequence[AckResult]] | None:
        """Send the packet of ACKs, if it is short and a connection is ready."""
        batch = AckBatch(table, acks)
        if not batch.is_short or (connection := self._pool.ready(origin)) is None:
            return None
        return self._begin(connection, batch, batch.run)

    def check_batches(self, table: QueueTable, check: BatchCheck) -> Timed[BatchesChecked]:
        """Compare follow-ups with their batches: fire what is done, set aside what waits."""

        def attempt() -> Timed[BatchesChecked]:
            with self._pool.connection() as connection:
                return self._batches.check(connection, table, check)

        return self._retried(attempt)

    def find_abandoned(self, table: QueueTable, slot: int | None, limit: int) -> Timed[tuple[Return, ...]]:
        """Up to `limit` messages in flight at proxies that are gone, as claims to release."""
        sql = statements_of(table)
        if table.lease_column is None:
            return Timed((), self.ping().now_ns)
        of_row = f"{quoted(table.lease_column)} % {SLOTS}"
        gone = f"{of_row} > 0 AND IS_USED_LOCK(CONCAT({text_literal(SLOT_LOCK)}, {of_row})) IS NULL"
        words = {"lease": quoted(table.lease_column), "gone": gone if slot is None else f"{of_row} = {slot}"}
        with self._pool.connection() as connection:
            now, found = connection.run([statement("now"), sql("find_abandoned", limit=limit, **words)])
        claims = (
            Return(entry.key, entry.epoch, entry.due_ns, 0, True, entry.priority) for entry in entries_of(sql, found)
        )
        return Timed(tuple(claims), now_ns(now))

    def move_dead_letters(self, table: QueueTable, wanted: Sequence[Wanted], dead_letter: TableId) -> Timed[MoveResult]:
        """Move dead messages into the message table `dead_letter`, in one transaction."""
        return self._retried(partial(self._move_dead_letters, table, {want.key: want for want in wanted}, dead_letter))

    def purge(self, table: QueueTable, age_ns: int, limit: int) -> Timed[Changed]:
        """Delete up to `limit` rows acknowledged more than `age_ns` ago. Returns their number."""
        partitions: Sequence[str] = ()
        if table.kept_by_partition:
            with self._pool.connection() as connection:
                partitions = self._retention.maintain(connection, table, age_ns)
        purged = self._purge(table, age_ns, limit, partitions)
        if table.policy.group_rate is not None and not table.policy.paused:
            with self._pool.connection() as connection:
                self._idle_rates.delete(connection, table, purged.now_ns, limit)
        return purged

    # One transaction each.

    def _claim(
        self, table: QueueTable, wanted: Sequence[Wanted], slot: int, fetch_of: FetchOf | None
    ) -> Timed[ClaimResult]:
        began_s, by_key = time.monotonic(), {want.key: want for want in wanted}
        of_queue = own_limits(table, self._claim_s.get(table.id, 0.0))
        limits = ClaimLimits([*of_queue, *self._semaphores.of_claim(table, wanted)], by_key)
        claim = ClaimTransaction(table, by_key, slot, limits, self._batches, fetch_of)
        with self._pool.connection(claim.context) as connection:
            result = claim.run(connection)
        if claim.fetch is not None:
            self._row_bytes.put(table.id, claim.fetch.row_bytes)
        self._claim_s.put(table.id, time.monotonic() - began_s)
        return result

    def _begin(
        self, connection: StoreConnection, packet: OnePacket, run: Callable[[StoreConnection], Answer[T] | None]
    ) -> ConnectionCall[T]:
        """Send the packet on a connection that the pool has lent. `run` reads its replies."""
        begun = packet.send(connection)

        def finish() -> Answer[T] | None:
            with self._pool.lent(connection):
                return run(connection)

        return ConnectionCall(connection, begun, finish)

    def _claim_one(
        self, table: QueueTable, claim: ClaimOfOne, connection: StoreConnection
    ) -> Timed[ClaimResult] | None:
        result = claim.run(connection)
        if result is not None and result.value.claims:
            self._row_bytes.put(table.id, claim.fetch.row_bytes)
        return result

    def _release(self, table: QueueTable, returns: Sequence[Return]) -> tuple[int, Sequence[Return], int]:
        """The number of released claims, those that still are ours but locked, and the server's
        time."""
        sql = statements_of(table)
        with self._pool.connection() as connection:
            now, _, *locked = connection.run(
                [
                    statement("now"),
                    statement("begin"),
                    *sql.for_ids("release_lock", [claim.key for claim in returns]),
                ]
            )
            now_at = now_ns(now)
            ours = _still_ours(entries_of(sql, *locked), returns)
            failed_ns = {claim.key: now_at + claim.failed_wait_ns for claim in ours if claim.failed_wait_ns is not None}
            unsent_ns = {claim.key: claim.due_ns for claim in ours if not claim.sent and claim.key not in failed_ns}
            sent_ns = {claim.key: now_at for claim in ours if claim.sent}
            done = {*failed_ns, *unsent_ns, *sent_ns}
            missed = [claim for claim in returns if claim.key not in done]
            answers = connection.run(
                [
                    *sql.updates("count_failure", failed_ns),
                    *sql.updates("release_unsent", unsent_ns),
                    *sql.updates("release_sent", sent_ns),
                    statement("commit"),
                    *(lookups := sql.for_ids("lookup", [claim.key for claim in missed])),
                ]
            )
        seen = answers[len(answers) - len(lookups) :]
        return len(ours), _still_ours(entries_of(sql, *seen), missed), now_at

    def _move_dead_letters(
        self, table: QueueTable, wanted: Mapping[Key, Wanted], dead_letter: TableId
    ) -> Timed[MoveResult]:
        with self._pool.connection() as connection:
            return DeadLetterMove(connection, table, dead_letter).run(wanted)

    def _purge(self, table: QueueTable, age_ns: int, limit: int, partitions: Sequence[str]) -> Timed[Changed]:
        sql = statements_of(table)
        within, from_ns = sql.within(partitions), self._purged_to_ns.get(table.id, START_OF_TIME_NS)
        find = sql("purge_find", partitions=within, from_ns=from_ns, age_ns=age_ns, limit=limit)
        with self._pool.connection() as connection:
            now, found = connection.run([statement("now"), find])
        now_at = now_ns(now)
        old = [(sql.key(raw), int(acked)) for raw, acked in map(text_values, found.rows) if raw is not None and acked]
        # A short batch ends a pass. The next pass begins with rows that were locked in this
        # one, or acknowledged with an earlier time.
        more = len(old) == limit
        self._purged_to_ns.put(table.id, old[-1][1] if more else START_OF_TIME_NS)
        words = {"partitions": within, "before_ns": now_at - age_ns}
        # In another order each time: if so many are refused that the rest is not tried, it is another rest.
        keys = random.sample([key for key, _ in old], len(old))
        deleted, refused = in_parts(keys, lambda part: self._retried(partial(self._delete_acked, sql, part, words)))
        return Timed(Changed(sum(deleted), refused, more), now_at)

    def _delete_acked(self, sql: TableStatements, keys: Sequence[Key], words: Mapping[str, object]) -> int:
        with self._pool.connection() as connection:
            _, *locked = connection.run([statement("begin"), *sql.for_ids("purge_lock", keys, **words)])
            deletes = sql.for_ids("purge_delete", keys_of(sql, *locked), **words)
            answers = connection.run([*deletes, statement("commit")])
        return sum(result.affected for result in answers)

    # Repeated transactions.

    def _retried(self, transaction: Callable[[], T]) -> T:
        """Run a transaction, again if the server has rolled it back."""
        attempts = Retrying(
            retry=retry_if_exception(_was_rolled_back),
            stop=stop_after_attempt(self._limits.attempts),
            wait=wait_random(0, self._limits.attempt_pause_s),
            reraise=True,
        )
        return attempts(transaction)


def _still_ours(entries: Sequence[Entry], returns: Sequence[Return]) -> list[Return]:
    """Those claims whose rows still have their epoch and deadline."""
    found = {entry.key: entry for entry in entries}
    return [
        claim
        for claim in returns
        if (entry := found.get(claim.key)) and (entry.epoch, entry.due_ns) == (claim.epoch, claim.deadline_ns)
    ]


def _was_rolled_back(error: BaseException) -> bool:
    return isinstance(error, StoreError) and error.rolled_back
