"""The transactions that claim messages, each on a connection with its `context`.

`ClaimTransaction` takes any messages, in two packets: it locks their rows, chooses here what the limits of the
queue allow, writes, commits, and reads the rows. `ClaimOfOne` takes one message in one packet, where
nothing has to be chosen between the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from engine.model import (
    ANYTHING,
    Claimed,
    ClaimResult,
    Delivery,
    Entry,
    FetchResult,
    Key,
    LimitsLeft,
    RowFormat,
    Selection,
    Wanted,
    end_with_slot,
)
from engine.packets import Result
from engine.queue_table import IdKind, QueueTable
from engine.store.batches import Batches, set_aside
from engine.store.begun import OnePacket
from engine.store.claim_plan import choose
from engine.store.connection import OWN_CONTEXT, Begun, SessionContext, StoreConnection
from engine.store.fetch import RowFetch, SentBehind
from engine.store.information_schema import now_ns
from engine.store.limits.claim import ClaimLimits
from engine.store.port import StoreError, Timed
from engine.store.queries import TableStatements, statement, statements_of
from engine.store.scan import context_of, entries_of

WAITED_S: Final = 0.5
"""Half of the time for which a locked table is waited for. MariaDB has one error for that and for a locked
row, which is not waited for."""

SHORT_KEY_MAX: Final = 64
SHORT_COLUMNS_MAX: Final = 1_000
"""Characters of a key, and of the names of all columns, of a packet that has less than 10 kB."""

FetchOf = Callable[[Mapping[Key, Delivery]], RowFetch]
"""Makes the fetch of the rows of these deliveries."""


class ClaimTransaction:
    """A claim of messages, and the reading of their rows behind its commit."""

    def __init__(
        self,
        table: QueueTable,
        wanted: Mapping[Key, Wanted],
        slot: int,
        limits: ClaimLimits,
        batches: Batches,
        fetch_of: FetchOf | None,
    ) -> None:
        """`fetch_of`: None if no rows are to be read."""
        self.fetch: RowFetch | None = None
        """What has read the rows."""
        self._table, self._wanted, self._slot = table, wanted, slot
        self._limits, self._batches, self._fetch_of = limits, batches, fetch_of
        self._sql = statements_of(table)
        (self.context, self._first), *self._others = _locks(table, wanted.values()).items()
        (self._others[-1][1] if self._others else self._first).extend(limits.of_rows)

    def run(self, connection: StoreConnection) -> Timed[ClaimResult]:
        """Carry it out. Raises StoreError, and Unprepared if something has to be made first."""
        now_at, found = self._lock(connection)
        waiting: frozenset[Key] = frozenset()
        if self._table.after_batch:
            waiting = self._batches.waiting(connection, self._table, found)
            found = {key: entry for key, entry in found.items() if key not in waiting}
        claims, left = self._choose(found, now_at)
        rows = self._write(connection, claims, waiting)
        return Timed(ClaimResult(claims, rows, left, tuple(waiting)), now_at)

    def _lock(self, connection: StoreConnection) -> tuple[int, dict[Key, Entry]]:
        """The server's time, and the rows that can be claimed, locked."""
        limits = self._limits
        parts = [*limits.before, statement("begin")], limits.locks, [statement("now")], limits.counts, self._first
        results = iter(connection.run([text for part in parts for text in part], self.context))
        _, of_limits, (now,), counted, locked = (list(islice(results, len(part))) for part in parts)
        now_at = now_ns(now)
        limits.read(of_limits, counted, now_at)
        for other_context, locks in self._others:
            locked += connection.run(locks, other_context)
        rows = len(locked) - len(limits.of_rows)
        found = {entry.key: entry for entry in entries_of(self._sql, *locked[:rows])}
        limits.read_rows(locked[rows:], found, now_at)
        return now_at, found

    def _choose(self, found: Mapping[Key, Entry], now_at: int) -> tuple[tuple[Claimed, ...], LimitsLeft | None]:
        """Which of the locked messages are claimed, and what is left of the limits behind that."""
        limits = self._limits
        end_ns = partial(end_with_slot, slot=self._slot) if self._table.lease_column is not None else int
        possible = limits.possible(found, self._wanted)
        claims, left_out = choose(self._wanted.values(), possible, now_at, end_ns, limits.choices)
        return claims, limits.left(left_out, found)

    def _write(
        self, connection: StoreConnection, claims: Sequence[Claimed], waiting: Collection[Key]
    ) -> FetchResult | None:
        deadlines_ns = {claim.key: claim.deadline_ns for claim in claims}
        writes = [*self._sql.updates("claim_update", deadlines_ns), *set_aside(self._sql, waiting)]
        writes += [*self._limits.writes(), statement("commit")]
        if self._fetch_of is None or not claims:
            connection.run(writes)
            return None
        self.fetch = self._fetch_of({claim.key: claim.delivery for claim in claims})
        return self.fetch.read_behind(connection, self.fetch.send_behind(connection, writes))


class ClaimOfOne(OnePacket):
    """A claim of one message, and the reading of its row, in one packet.

    A trigger on the table may SET any variable of the session, so the row is read behind the commit, after
    the session was reset. Without triggers it is read before the commit, and the reset is not waited for:
    that saves an eighth of the time.
    """

    @staticmethod
    def serves(table: QueueTable, wanted: Sequence[Wanted]) -> bool:
        """Whether these messages are one, whose claim depends on no limit, condition or batch."""
        limited = table.policy.locked_claims or table.after_batch is not None
        return len(wanted) == 1 and not limited and wanted[0].selection == ANYTHING

    @staticmethod
    def is_short(want: Wanted, row_format: RowFormat) -> bool:
        """Whether the packet certainly fits into an empty send buffer, which has 16 kB on Linux."""
        short_key = not isinstance(want.key, str | bytes) or len(want.key) <= SHORT_KEY_MAX
        return short_key and sum(map(len, row_format.columns)) <= SHORT_COLUMNS_MAX

    @staticmethod
    def may_read_before_commit(table: QueueTable, row_format: RowFormat) -> bool:
        """Whether the row may be read before the commit, if the table has no triggers: the claim then runs in
        the subscriber's context, and must do the same there as in the engine's own."""
        plain = table.writes_alike and table.id_kind is IdKind.INTEGER and not table.group_columns
        return plain and not row_format.binary

    def __init__(
        self, table: QueueTable, want: Wanted, slot: int, fetch_of: FetchOf, *, reads_before_commit: bool = False
    ) -> None:
        super().__init__()
        self.fetch = fetch_of({want.key: Delivery(want.epoch + 1, 0)})
        self._table, self._want, self._slot = table, want, slot
        self._reads_before_commit = reads_before_commit
        self._sql = statements_of(table)
        self._claims: tuple[Claimed, ...] = ()
        self._now_ns = 0
        self._behind: SentBehind | None = None
        self._sent_s = 0.0

    @property
    def context(self) -> SessionContext:
        """The context that its statements begin in."""
        return self.fetch.context if self._reads_before_commit else OWN_CONTEXT

    def run(self, connection: StoreConnection) -> Timed[ClaimResult] | None:
        """Carry it out. None: the server has refused a statement, and nothing was done. Usually another
        transaction has locked the row. Raises StoreError if the connection broke, or the table was locked."""
        try:
            begun = self.begun(connection)
            if self._behind is not None:
                rows = self.fetch.read_behind(connection, self._behind, self._deliveries)
            else:
                *results, row, commit = connection.results(begun)
                rows = self.fetch.take(row.rows, self._deliveries([*results, commit]))
        except StoreError as error:
            if connection.broken or (error.waited and time.monotonic() - self._sent_s > WAITED_S):
                raise
            return None  # The reset has rolled back.
        return Timed(ClaimResult(self._claims, rows if self._claims else None), self._now_ns)

    def _write(self, connection: StoreConnection) -> Begun:
        self._sent_s = time.monotonic()
        if self._reads_before_commit:
            *statements, commit = self._statements
            return connection.begin([*statements, self.fetch.text, commit], self.context)
        self._behind = self.fetch.send_behind(connection, self._statements)
        return self._behind.begun

    @property
    def _statements(self) -> list[str]:
        sql, want = self._sql, self._want
        ids = sql.ids((want.key,))
        wait_us, rest_ns = divmod(want.wait_ns, 1_000)
        below_us = rest_ns if self._table.lease_column is None else self._slot
        return [
            statement("claim_clock"),
            statement("claim_now"),
            statement("begin"),
            sql("claim_lock_one", ids=ids),
            sql("claim_update_one", ids=ids, epoch=want.epoch, wait_us=wait_us, below_us=below_us),
            statement("commit"),
        ]

    def _deliveries(self, results: Sequence[Result]) -> Mapping[Key, Delivery]:
        _, now, _, locked, update, _ = results
        self._now_ns, want = now_ns(now), self._want
        if update.affected:
            entry = Entry(want.key, want.epoch, 0, self._now_ns)  # It came due between the two statements.
            entry = next(iter(entries_of(self._sql, locked)), entry)
            end_ns = self._now_ns + want.wait_ns
            if self._table.lease_column is not None:
                end_ns = end_with_slot(end_ns, self._slot)
            self._claims = (Claimed(want.key, want.epoch + 1, end_ns, entry.priority, entry.due_ns, entry.group),)
        return {claim.key: claim.delivery for claim in self._claims}


def _locks(table: QueueTable, wanted: Iterable[Wanted]) -> dict[SessionContext, list[str]]:
    """One statement for each selection, by context: statements with the same context can share a
    packet."""
    by_selection: dict[Selection, list[Key]] = {}
    for want in wanted:
        by_selection.setdefault(want.selection, []).append(want.key)
    locks: dict[SessionContext, list[str]] = {}
    for selection, keys in by_selection.items():
        sql = TableStatements(table, selection)
        locks.setdefault(context_of(selection), []).append(sql("claim_lock", ids=sql.ids(keys)))
    return locks or {OWN_CONTEXT: []}
