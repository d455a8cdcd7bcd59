"""The store on MySQL and MariaDB: each method one transaction, or one read, in as few round trips as there can be.

Why the statements look as they do stands beside them, in queries.sql. What is decided here: how several of them share
a packet, what is compared on this side of the wire, and what is remembered between calls. That is little, and only to
be quick: the priorities a table had, the size of its rows, how far it was purged. When a memory is wrong, the answer
takes a round trip more and is the same.

Transactions of the engine that lose against another one (1213, 1205) are tried again; they never are a client's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random

from engine.catalog.privileges import Grants
from engine.catalog.verdict import judge
from engine.model import (
    ANYTHING,
    BrokenTable,
    Claimed,
    Delivery,
    Entry,
    FetchResult,
    Key,
    MoveResult,
    QueueTable,
    Range,
    Return,
    RowFormat,
    ScanResult,
    Selection,
    TableId,
    Wanted,
)
from engine.packets import text_values
from engine.store.connection import OWN_CONTEXT, BackendAddress, ConnectionLimits, SessionContext, StoreConnection
from engine.store.dead_letter import DeadLetterMove
from engine.store.fetch import Fetch
from engine.store.information_schema import facts_of, listing, now_ns, table_facts
from engine.store.partitions import Retention
from engine.store.pool import Pool
from engine.store.port import Listing, Origin, StoreError, Timed
from engine.store.privileges import read_grants, with_rights
from engine.store.pymysql_adapter import ER
from engine.store.queries import START_OF_TIME_NS, TableStatements, statement
from engine.store.reach import Reach
from engine.store.recent import Recent
from engine.store.scan import IndexScan, RangeScan, ScanRequest, context_of, entries_of, keys_of, scan_slowly

T = TypeVar("T")

SERVERS_MAX = 64
"""Servers that are told apart; there is one, or a few behind one name."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The store's own bounds, each with its reason."""

    connections: int = 8
    """As many as the shell has threads: more would idle, fewer would make threads wait."""
    attempts: int = 4
    """Of a transaction that lost against another one: the next attempt nearly always wins."""
    attempt_pause_s: float = 0.05
    """Between them at most, drawn at random: longer than a transaction of ours, shorter than anybody notices."""
    locked_pauses_s: tuple[float, ...] = (0.02, 0.1, 0.5)
    """Before that is tried again which somebody has locked: claims to be released (a vanished consumer's transaction is
    rolled back by then; what is still locked is being worked on, and comes due at the end of its wait), and partitions
    to be made or dropped (it may have been our own look at the table)."""
    priorities_ahead: int = 8
    """Priorities read in one packet of a scan, if the last scan saw as many: most tables have fewer."""
    priorities_known: int = 256
    """Priorities remembered for that: a table with more is read as if they were new."""
    cases: int = 64
    """Rows with a value each in one UPDATE: the server compares every row with every case."""
    partition_busy_pause_s: float = 60.0
    """Before partitions are tried again that somebody's transaction keeps, after shorter pauses: on MySQL each attempt
    holds up the table's statements for a second."""
    partition_refused_pause_s: float = 3600.0
    """Before they are tried again after a refusal: somebody has to change a privilege, or the table."""
    describe_again_max: int = 4
    """At a table that seems broken, until two looks in a row are the same: each is several questions, and a DROP or an
    ALTER between two of them shows a table that never was."""
    tables_remembered: int = 1_000
    """Tables of which something is remembered between calls, those that were used last: programs that make and drop
    tables all day must not fill the memory."""
    rows_unknown: int = 32
    """Rows asked for first while it is not known how large a table's rows are."""


class MySQLStore:
    """The port on a real server, for any number of threads."""

    def __init__(
        self,
        address: BackendAddress,
        limits: StoreLimits | None = None,
        link_limits: ConnectionLimits | None = None,
        reach: Reach | None = None,
    ) -> None:
        self._limits = limits or StoreLimits()
        timing = link_limits or ConnectionLimits()
        self._pool = Pool(lambda: StoreConnection(address, timing), self._limits.connections, reach)
        remembered = self._limits.tables_remembered
        self._retention = Retention(
            self._limits.locked_pauses_s,
            self._limits.partition_busy_pause_s,
            self._limits.partition_refused_pause_s,
            remembered,
        )
        self._grants: Grants | None = None
        """As they were when the catalog was last read; None: it was not yet."""
        # CommitNotices: whichever thread wrote last is right enough.
        self._priorities: Recent[TableId, Sequence[int]] = Recent(remembered)
        self._row_bytes: Recent[TableId, int] = Recent(remembered)
        self._purged_to_ns: Recent[TableId, int] = Recent(remembered)
        self._servers: set[Origin] = set()
        """Those met so far: more than one behind an address, and a number may be any one's."""

    def close(self) -> None:
        """See Store."""
        self._pool.close()

    def ping(self) -> Timed[None]:
        """See Store."""
        with self._pool.connection() as connection:
            (now,) = connection.run([statement("now")])
        return Timed(None, now_ns(now))

    def kill(self, connection_id: int, origin: Origin) -> Timed[bool]:
        """See Store."""
        with self._pool.connection() as connection:
            now, said = connection.run([statement("now"), statement("server_name")])
            (name,) = text_values(said.rows[0])
            here = Origin(connection.peer, (name or b"").decode())
            if len(self._servers) < SERVERS_MAX:
                self._servers.add(here)
            alone = len([each for each in self._servers if each.address == here.address]) == 1
            same = here == origin if origin.name is not None else here.address == origin.address and alone
            if same:
                connection.run([statement("kill", connection_id=connection_id)])
        return Timed(same, now_ns(now))

    def discover(self) -> Timed[Listing]:
        """See Store."""
        with self._pool.connection() as connection:
            grants = self._read_grants(connection)
            found = listing(connection, grants.stamp)
        rights = replace(found.value, account=grants.account, problems=grants.problems())
        return Timed(rights, found.now_ns)

    def _read_grants(self, connection: StoreConnection) -> Grants:
        before, self._grants = self._grants, read_grants(connection)
        if before is not None and before != self._grants:
            self._pool.renew()
        return self._grants

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        """See Store."""
        found = self._describe_once(table)
        for _ in range(self._limits.describe_again_max):
            before = found.value
            if not isinstance(before, BrokenTable) or (found := self._describe_once(table)).value == before:
                break
        return found

    def _describe_once(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        with self._pool.connection() as connection:
            facts = table_facts(connection, table)
            found = None if facts.value is None else judge(facts.value)
            if found is not None:
                found = with_rights(connection, self._grants or self._read_grants(connection), found)
        return Timed(found, facts.now_ns)

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, QueueTable | BrokenTable]]:
        """See Store."""
        with self._pool.connection() as connection:
            facts = facts_of(connection, tables)
            grants = self._grants or self._read_grants(connection)
            judged = [found for each in facts.value.values() if (found := judge(each)) is not None]
            rightful = {found.id: with_rights(connection, grants, found) for found in judged}
        return Timed(rightful, facts.now_ns)

    def scan(
        self, table: QueueTable, limit: int, selection: Selection = ANYTHING, part: Range | None = None
    ) -> Timed[ScanResult]:
        """See Store."""
        wanted = ScanRequest(table, limit, selection, context_of(selection))
        known, ahead = self._priorities.get(table.id, ()), self._limits.priorities_ahead
        with self._pool.connection(wanted.context) as connection:
            if table.scan_index is None:
                return scan_slowly(connection, wanted)
            scan = IndexScan(connection, wanted, known, ahead)
            if part is not None:
                scan = RangeScan(connection, wanted, known, ahead, part)
            result = scan.run()
        self._priorities.put(table.id, scan.priorities_read[: self._limits.priorities_known])
        return result

    def claim(self, table: QueueTable, wanted: Sequence[Wanted]) -> Timed[tuple[Claimed, ...]]:
        """See Store."""
        return self._winning(partial(self._claim, table, {each.key: each for each in wanted}))

    def fetch(
        self, table: QueueTable, row_format: RowFormat, keys: Mapping[Key, Delivery], budget_bytes: int
    ) -> Timed[FetchResult]:
        """See Store."""
        row_bytes = self._row_bytes.get(table.id, budget_bytes // self._limits.rows_unknown)
        fetch = Fetch(table, row_format, keys, budget_bytes, row_bytes)
        with self._pool.connection(fetch.context) as connection:
            result = fetch.run(connection)
        self._row_bytes.put(table.id, fetch.row_bytes)
        return result

    def lookup(self, table: QueueTable, keys: Sequence[Key]) -> Timed[Mapping[Key, Entry]]:
        """See Store."""
        sql = TableStatements(table)
        with self._pool.connection() as connection:
            now, *found = connection.run([statement("now"), *sql.for_ids("lookup", keys)])
            return Timed({each.key: each for each in entries_of(sql, *found)}, now_ns(now))

    def release(self, table: QueueTable, returns: Sequence[Return]) -> Timed[int]:
        """See Store."""
        count, held, now = self._winning(partial(self._release, table, returns))
        for pause_s in self._limits.locked_pauses_s:
            if not held:
                break
            time.sleep(pause_s)
            more, held, now = self._winning(partial(self._release, table, held))
            count += more
        return Timed(count, now)

    def move_dead_letters(self, table: QueueTable, wanted: Sequence[Wanted], dead_letter: TableId) -> Timed[MoveResult]:
        """See Store."""
        return self._winning(partial(self._move_dead_letters, table, {each.key: each for each in wanted}, dead_letter))

    def purge(self, table: QueueTable, age_ns: int, limit: int) -> Timed[int]:
        """See Store."""
        partitions: Sequence[str] = ()
        if table.kept_by_partition:
            with self._pool.connection() as connection:
                partitions = self._retention.maintain(connection, table, age_ns)
        return self._winning(partial(self._purge, table, age_ns, limit, partitions))

    # One transaction each.

    def _claim(self, table: QueueTable, wanted: Mapping[Key, Wanted]) -> Timed[tuple[Claimed, ...]]:
        sql = TableStatements(table)
        (context, first), *others = _claim_locks(table, wanted.values()).items()
        with self._pool.connection(context) as connection:
            now, _, *locked = connection.run([statement("now"), statement("begin"), *first], context)
            for each_context, locks in others:
                locked += connection.run(locks, each_context)
            now_at = now_ns(now)
            claims = {
                each.key: Claimed(each.key, each.epoch + 1, now_at + want.wait_ns, each.priority, each.due_ns)
                for each in entries_of(sql, *locked)
                if (want := wanted.get(each.key)) and want.epoch == each.epoch
            }
            deadlines_ns = {key: each.deadline_ns for key, each in claims.items()}
            connection.run([*sql.updates("claim_update", deadlines_ns, self._limits.cases), statement("commit")])
        return Timed(tuple(claims.values()), now_at)

    def _release(self, table: QueueTable, returns: Sequence[Return]) -> tuple[int, Sequence[Return], int]:
        """How many were given back, which ones are still ours but locked by somebody, and the time."""
        sql = TableStatements(table)
        with self._pool.connection() as connection:
            now, _, *locked = connection.run(
                [
                    statement("now"),
                    statement("begin"),
                    *sql.for_ids("release_lock", [each.key for each in returns]),
                ]
            )
            now_at = now_ns(now)
            ours = _still_ours(entries_of(sql, *locked), returns)
            unsent_ns = {each.key: each.due_ns for each in ours if not each.sent}
            sent_ns = {each.key: now_at for each in ours if each.sent}
            done = {*unsent_ns, *sent_ns}
            missed = [each for each in returns if each.key not in done]
            answers = connection.run(
                [
                    *sql.updates("release_unsent", unsent_ns, self._limits.cases),
                    *sql.updates("release_sent", sent_ns, self._limits.cases),
                    statement("commit"),
                    *(looking := sql.for_ids("lookup", [each.key for each in missed])),
                ]
            )
        seen = answers[len(answers) - len(looking) :]
        return len(ours), _still_ours(entries_of(sql, *seen), missed), now_at

    def _move_dead_letters(
        self, table: QueueTable, wanted: Mapping[Key, Wanted], dead_letter: TableId
    ) -> Timed[MoveResult]:
        with self._pool.connection() as connection:
            return DeadLetterMove(connection, table, dead_letter, self._limits.cases).run(wanted)

    def _purge(self, table: QueueTable, age_ns: int, limit: int, partitions: Sequence[str]) -> Timed[int]:
        sql = TableStatements(table)
        within, from_ns = sql.within(partitions), self._purged_to_ns.get(table.id, START_OF_TIME_NS)
        find = sql("purge_find", partitions=within, from_ns=from_ns, age_ns=age_ns, limit=limit)
        with self._pool.connection() as connection:
            now, found = connection.run([statement("now"), find])
            now_at = now_ns(now)
            before_ns = now_at - age_ns
            old = [
                (sql.key(raw), int(acked)) for raw, acked in map(text_values, found.rows) if raw is not None and acked
            ]
            # The end of a pass: the next one begins with whatever was locked in this one, or acknowledged back in time.
            self._purged_to_ns.put(table.id, old[-1][1] if len(old) == limit else START_OF_TIME_NS)
            _, *locked = connection.run(
                [
                    statement("begin"),
                    *sql.for_ids("purge_lock", [key for key, _ in old], partitions=within, before_ns=before_ns),
                ]
            )
            keys = keys_of(sql, *locked)
            answers = connection.run(
                [*sql.for_ids("purge_delete", keys, partitions=within, before_ns=before_ns), statement("commit")]
            )
        return Timed(sum(each.affected for each in answers), now_at)

    # How transactions are made.

    def _winning(self, transaction: Callable[[], T]) -> T:
        """Run it, and again when it lost against another one."""
        attempts = Retrying(
            retry=retry_if_exception(_lost_to_another),
            stop=stop_after_attempt(self._limits.attempts),
            wait=wait_random(0, self._limits.attempt_pause_s),
            reraise=True,
        )
        return attempts(transaction)


def _claim_locks(table: QueueTable, wanted: Iterable[Wanted]) -> dict[SessionContext, list[str]]:
    """One statement for each selection; those that need one session's settings can go in one packet."""
    by_selection: dict[Selection, list[Key]] = {}
    for each in wanted:
        by_selection.setdefault(each.selection, []).append(each.key)
    locks: dict[SessionContext, list[str]] = {}
    for selection, keys in by_selection.items():
        sql = TableStatements(table, selection)
        locks.setdefault(context_of(selection), []).append(sql("claim_lock", ids=sql.ids(keys)))
    return locks or {OWN_CONTEXT: []}


def _still_ours(entries: Sequence[Entry], returns: Sequence[Return]) -> list[Return]:
    """Those claims that stand in the rows just as they were made."""
    found = {each.key: each for each in entries}
    return [
        each
        for each in returns
        if (entry := found.get(each.key)) and (entry.epoch, entry.due_ns) == (each.epoch, each.deadline_ns)
    ]


def _lost_to_another(error: BaseException) -> bool:
    return isinstance(error, StoreError) and error.code in {ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT}
