"""The statements by which a claim keeps the limits of its queue over all proxies (claim_plan)."""

from __future__ import annotations

import hashlib
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

LOCK_WAIT_S = 1
"""How long a claim waits for another one with the same limit: hundreds of times what that takes. A
thread of the engine waits meanwhile."""

HOLDER_IDLE_S = 3
"""The server ends a session that holds the lock and sends nothing for this time: its proxy is frozen,
or its machine is gone. Between the two packets of a claim are microseconds."""

_TAKEN = b"1"


class ClaimLimits:
    """The limits of one claim. Without any, all lists of statements are empty."""

    def __init__(
        self, table: QueueTable, sql: TableStatements, claim_s: float, semaphores: ClaimSemaphores | None = None
    ) -> None:
        """`claim_s`: how long the last claim of this queue took. `semaphores`: those that its messages
        need."""
        policy = table.policy
        self._most = policy.max_in_flight if policy.counted else None
        burst_s = BURST_S + min(claim_s, CLAIM_MAX_S)
        self._pace = Pace(policy.max_rate, burst_s) if policy.paced and policy.max_rate is not None else None
        self._strict = policy.group_strict
        self._group_most = policy.group_most if policy.groups_counted and not self._strict else None
        self._runs: Sequence[Sequence[Key]] = ()
        """In strict order: the messages that may be claimed together."""
        group_pace = None if policy.group_rate is None else Pace(policy.group_rate, burst_s)
        self._rates = None if group_pace is None else ClaimGroupRates(table, sql, group_pace)
        self._semaphores = semaphores
        of_queue = (self._most, self._pace, self._group_most, self._rates)
        self._of_queue = self._strict or any(limit is not None for limit in of_queue)
        self.any = self._of_queue or semaphores is not None
        """Whether there is a limit, and the claim holds a lock for it."""
        self._lock = text_literal(lock_name(table)) if self._of_queue else ""
        self._sql = sql
        self._table = table
        self._taken = False
        self._free: int | None = None
        self._free_ns: int | None = None
        self._full_ns: int | None = None
        self.groups: GroupCounts | GroupOrder | None = None
        """The messages in flight of message groups, or their order; None: they are not limited."""
        self.paces: GroupPaces | None = None
        """What the rate leaves to message groups; None: they have no rate."""

    @property
    def before(self) -> list[str]:
        """Before the transaction."""
        if not self.any:
            return []
        take = [statement("limit_take", lock=self._lock, wait_s=LOCK_WAIT_S)] if self._of_queue else []
        of_semaphores = self._semaphores.before if self._semaphores else []
        return [statement("limit_session", idle_s=HOLDER_IDLE_S), *take, *of_semaphores]

    @property
    def within(self) -> list[str]:
        """In the transaction, before the rows are locked."""
        statements = []
        if self._most is not None:
            statements.append(self._sql("limit_count", most=self._most, **self._lease_words))
        if self._pace is not None:
            statements.append(statement("rate_read", **self._rate_words))
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

    @property
    def behind(self) -> list[str]:
        """Behind the commit."""
        if not self.any:
            return []
        release = [statement("limit_release", lock=self._lock)] if self._of_queue else []
        of_semaphores = self._semaphores.behind if self._semaphores else []
        return [*of_semaphores, *release, statement("limit_session", idle_s="DEFAULT")]

    def read(self, before: Sequence[Result], within: Sequence[Result]) -> None:
        """Take the results of `before` and `within`."""
        if self._semaphores is not None:
            of_queue = (self._most is not None) + (self._pace is not None)
            self._semaphores.read(before[-1], within[of_queue:])
            within = within[:of_queue]
        if not self._of_queue:
            return
        (taken,) = text_values(before[1].rows[0])
        self._taken = taken == _TAKEN
        if self._most is not None:
            count, free_ns = text_values(within[0].rows[0])
            self._free = max(0, self._most - int(count or 0))
            self._free_ns = None if free_ns is None else int(free_ns)
        if self._pace is not None and within[-1].rows:
            (full_ns,) = text_values(within[-1].rows[0])
            self._full_ns = int(full_ns or 0)

    def of_rows(
        self, connection: StoreConnection, found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]
    ) -> Mapping[Key, Entry]:
        """Note what the locked rows show. Returns those that may be claimed."""
        if not self._table.policy.semaphores_counted:
            return found
        if self._semaphores is not None:
            self._semaphores.of_rows(connection, found)
        return unchanged(found, wanted)

    @property
    def by_message(self) -> Sequence[GroupCounts | GroupOrder | GroupPaces | SemaphoreCounts]:
        """The limits that do not concern all messages alike."""
        semaphores = None if self._semaphores is None else self._semaphores.counts
        return [limit for limit in (self.groups, self.paces, semaphores) if limit is not None]

    def places(self, now_ns: int) -> int | None:
        """How many messages may be claimed; None: any number."""
        if not self._of_queue:
            return None
        if not self._taken:
            return 0
        paced = None if self._pace is None else self._pace.allowed(self._full_ns, now_ns)
        return min((places for places in (self._free, paced) if places is not None), default=None)

    def writes(self, now_ns: int, claimed: int) -> list[str]:
        """With the claims of so many messages, in the transaction."""
        of_groups = [] if self._rates is None or self.paces is None else self._rates.writes(self.paces)
        if self._pace is None or not claimed:
            return of_groups
        full_ns = self._pace.after(self._full_ns, now_ns, claimed)
        return [statement("rate_write", full_ns=full_ns, **self._rate_words), *of_groups]

    def left(
        self, now_ns: int, claims: Sequence[Claimed], left_out: Sequence[Key], found: Mapping[Key, Entry]
    ) -> LimitsLeft | None:
        """What is left behind these claims; None without a limit. `found`: the rows that were locked."""
        if not self.any:
            return None
        if self._of_queue and not self._taken:
            return LimitsLeft(tuple(left_out), 0)
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
    def _rate_words(self) -> dict[str, str]:
        return {"rates": qualified(self._table.rates), "queue": text_literal(self._table.id.name)}


def lock_name(table: QueueTable) -> str:
    """The name of the lock that each claim of a queue with a limit takes. A name has 64 characters at
    most, and its case does not count."""
    digest = hashlib.sha256(f"{table.id.db}\0{table.id.name}".encode()).hexdigest()
    return f"ackstream-limit/{digest[:40]}"
