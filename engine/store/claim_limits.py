"""The statements by which a claim keeps the limits of its queue over all proxies (claim_plan)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from engine.dispatch.token_bucket import BURST_S, CLAIM_MAX_S
from engine.model import Claimed, Entry, Key, LimitsLeft, Wanted
from engine.packets import text_values
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.store.claim_order import GroupOrder, checks, runs_of
from engine.store.claim_plan import GroupCounts, GroupPaces, SemaphoreCounts, groups_left, unchanged
from engine.store.connection import Result, StoreConnection
from engine.store.group_rates import ClaimGroupRates
from engine.store.pace import Pace
from engine.store.queries import TableStatements, statement
from engine.store.semaphores import ClaimSemaphores
from engine.store.unprepared import Unprepared

HOLDER_IDLE_S = 3
"""The server ends a session that has locked a limit and sends nothing for this time: its proxy is frozen,
or its machine is gone. Between the two packets of a claim are microseconds."""


class ClaimLimits:
    """The limits of one claim. Without any, all lists of statements are empty."""

    def __init__(
        self, table: QueueTable, sql: TableStatements, claim_s: float, semaphores: ClaimSemaphores | None = None
    ) -> None:
        """`claim_s`: how long the last claim of this queue took. `semaphores`: those that its messages
        need."""
        policy = table.policy
        self._most = policy.max_in_flight
        burst_s = BURST_S + min(claim_s, CLAIM_MAX_S)
        self._pace = None if policy.max_rate is None else Pace(policy.max_rate, burst_s)
        self._strict = policy.group_strict
        self._group_most = None if self._strict else policy.group_limit
        self._runs: Sequence[Sequence[Key]] = ()
        """In strict order: the messages that may be claimed together."""
        group_pace = None if policy.group_rate is None else Pace(policy.group_rate, burst_s)
        self._rates = None if group_pace is None else ClaimGroupRates(table, sql, group_pace)
        self._semaphores = semaphores
        self._of_queue = policy.limited
        self.any = self._of_queue or semaphores is not None
        """Whether there is a limit, and the claim locks a row for it."""
        self._sql = sql
        self._table = table
        self._free: int | None = None
        self._free_ns: int | None = None
        self._full_ns: int | None = None
        self.groups: GroupCounts | GroupOrder | None = None
        """The messages in flight of message groups, or their order; None: they are not limited."""
        self.paces: GroupPaces | None = None
        """What the rate leaves to message groups; None: they have no rate."""

    @property
    def before(self) -> list[str]:
        """Before the transaction. The reset of the session behind it undoes this."""
        return [statement("limit_session", idle_s=HOLDER_IDLE_S)] if self.any else []

    @property
    def locks(self) -> list[str]:
        """First in the transaction: they lock the rows of the limits, the queue's own before those of
        semaphores. A claim that waits for another one of its queue then holds no semaphore that other queues
        need, and no claim that holds a semaphore waits for the row of a queue."""
        of_queue = [statement("limit_lock", **self._row_words)] if self._of_queue else []
        return [*of_queue, *(self._semaphores.locks if self._semaphores else ())]

    @property
    def within(self) -> list[str]:
        """Behind them, before the messages are locked."""
        statements = []
        if self._most is not None:
            statements.append(self._sql("limit_count", most=self._most, **self._lease_words))
        return [*statements, *(self._semaphores.within if self._semaphores else ())]

    def of_groups(self, wanted: Mapping[Key, Wanted]) -> list[str]:
        """In the transaction, behind the statements that lock these rows."""
        statements = [] if self._rates is None else self._rates.reads(wanted)
        if self._group_most is not None:
            statements += self._sql.for_ids("group_count", wanted, most=self._group_most, **self._lease_words)
        if self._strict:
            self._runs = runs_of(wanted.values(), self._table.policy.group_run)
            words = {**self._sql.order_words, **self._lease_words}
            firsts = [run[0] for run in self._runs]
            statements += self._sql.for_ids("group_holders", firsts, count=len(firsts), **words)
            for place, keys in checks(self._runs).items():
                statements += self._sql.for_ids("group_heads", keys, count=len(keys), place=place, **words)
        return statements

    def read_groups(self, results: Sequence[Result], found: Mapping[Key, Entry], now_ns: int) -> None:
        """Take the results of `of_groups`. `found`: the rows that were locked."""
        if self._rates is not None:
            self.paces = self._rates.read(results[:1], now_ns)
            results = results[1:]
        if self._group_most is not None:
            self.groups = self._counts(results[0])
        if self._strict:
            self.groups = order = GroupOrder(self._runs, dict(self._wrong(results[1:])), self._holders(results[0]))
            order.note_locked(found)

    def _counts(self, result: Result) -> GroupCounts:
        groups = GroupCounts(self._group_most or 0)
        for row in result.rows:
            raw, number, held, ends = text_values(row)
            key, of_group = self._sql.key(raw or b""), int(number or 0)
            if ends is None:
                groups.numbers[key], groups.held[of_group] = of_group, int(held or 0)
            else:
                groups.holders.setdefault(of_group, {})[key] = int(ends)
        return groups

    def _holders(self, result: Result) -> dict[Key, dict[Key, int]]:
        """The messages in flight of the groups of these runs, by the first message of each."""
        holders: dict[Key, dict[Key, int]] = {}
        for row in result.rows:
            first, holder, ends = text_values(row)
            holders.setdefault(self._sql.key(first or b""), {})[self._sql.key(holder or b"")] = int(ends or 0)
        return holders

    def _wrong(self, results: Iterable[Result]) -> Iterator[tuple[Key, Entry | None]]:
        """The messages that are not in their place, each with the one that is."""
        for row in (row for result in results for row in result.rows):
            raw, head, *numbers = text_values(row)
            epoch, priority, due_ns = (int(value or 0) for value in numbers)
            entry = None if head is None else Entry(self._sql.key(head), epoch, priority, due_ns)
            yield self._sql.key(raw or b""), entry

    def read(self, locked: Sequence[Result], within: Sequence[Result]) -> None:
        """Take the results of `locks` and `within`. Raises NoLimitRow."""
        if self._semaphores is not None:
            self._semaphores.read(locked[-1], within[self._most is not None :])
        if self._of_queue:
            if not locked[0].rows:
                raise NoLimitRow(self._table)
            (full_ns,) = text_values(locked[0].rows[0])
            self._full_ns = int(full_ns or 0)
        if self._most is not None:
            count, free_ns = text_values(within[0].rows[0])
            self._free = max(0, self._most - int(count or 0))
            self._free_ns = None if free_ns is None else int(free_ns)

    def of_rows(self, found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]) -> Mapping[Key, Entry]:
        """Note what the locked rows show. Returns those that may be claimed. Raises UnknownUsers."""
        if self._table.policy.semaphores is None:
            return found
        if self._semaphores is not None:
            self._semaphores.of_rows(found)
        return unchanged(found, wanted)

    @property
    def by_message(self) -> Sequence[GroupCounts | GroupOrder | GroupPaces | SemaphoreCounts]:
        """The limits that do not concern all messages alike."""
        semaphores = None if self._semaphores is None else self._semaphores.counts
        return [limit for limit in (self.groups, self.paces, semaphores) if limit is not None]

    def places(self, now_ns: int) -> int | None:
        """How many messages may be claimed; None: any number."""
        paced = None if self._pace is None else self._pace.allowed(self._full_ns, now_ns)
        return min((places for places in (self._free, paced) if places is not None), default=None)

    def writes(self, now_ns: int, claimed: int) -> list[str]:
        """With the claims of so many messages, in the transaction."""
        of_groups = [] if self._rates is None or self.paces is None else self._rates.writes(self.paces)
        if self._pace is None or not claimed:
            return of_groups
        full_ns = self._pace.after(self._full_ns, now_ns, claimed)
        return [statement("limit_write", full_ns=full_ns, **self._row_words), *of_groups]

    def left(
        self, now_ns: int, claims: Sequence[Claimed], left_out: Sequence[Key], found: Mapping[Key, Entry]
    ) -> LimitsLeft | None:
        """What is left behind these claims; None without a limit. `found`: the rows that were locked."""
        if not self.any:
            return None
        ends = [claim.deadline_ns for claim in claims] if self._most is not None else []
        ends += [self._free_ns] if self._free_ns is not None else []
        places = None if self._free is None else self._free - len(claims)
        pace = self._pace
        paced = None if pace is None else pace.ready_ns(pace.after(self._full_ns, now_ns, len(claims)))
        groups = groups_left(found.values(), self.groups, self.paces)
        counts = None if self._semaphores is None else self._semaphores.counts
        semaphores, problem = ((), None) if counts is None else (counts.left(claims), counts.problem)
        return LimitsLeft(tuple(left_out), places, min(ends, default=None), paced, groups, semaphores, problem)

    @property
    def _lease_words(self) -> dict[str, str]:
        return {
            "lease": quoted(self._table.lease_column or ""),
            "lease_index": quoted(self._table.lease_index or ""),
        }

    @property
    def _row_words(self) -> dict[str, str]:
        return _row_words(self._table)


class NoLimitRow(Unprepared):
    """The table of limits has no row of the queue yet."""

    def __init__(self, table: QueueTable) -> None:
        super().__init__(f"{table.limits} has no row of {table.id}")
        self._table = table

    def prepare(self, connection: StoreConnection) -> None:
        """Insert the row, unless it is there."""
        steps = ("begin", "limit_lock", "limit_add", "commit")
        connection.run([statement(step, **_row_words(self._table)) for step in steps])


def _row_words(table: QueueTable) -> dict[str, str]:
    return {"limits": qualified(table.limits), "queue": text_literal(table.id.name)}
