"""Semaphores in the database: who holds them, for the claims of queues whose messages need some.

How a capacity is never exceeded, by whichever queue and proxy:

- A claim locks the row of each semaphore that its messages need, in the order of their names, and so
  reads their capacities. All claims lock them in this order, so they never wait for each other in a
  circle. Behind the locks it reads the holders. The commit releases the locks. A semaphore that does not
  exist has no row and no place.
- What holds a place follows from the rows, as for other limits (`claim_plan`). The holders may be in
  any queue of the database whose comment names a column of needs. Which queues these are is read then
  and there, behind the locks. A queue holds a place only by a claim under the same lock, which was begun
  after its comment was committed. So a queue that another proxy has just created is never missed.
- Descriptions of these queues are remembered. The holders are read in the same packet, from the queues
  that are known. If the comments turn out to be others, the claim is rolled back, the queues are described,
  and it begins again.
- A queue that cannot be counted may hold any place. Then no message that needs something is claimed.

Names are compared byte by byte, whatever the collation of the column is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.catalog.directives import parse_comment
from engine.catalog.verdict import evaluate
from engine.dispatch.semaphore_places import names_in, needs_of
from engine.model import Claimed, ClaimResult, Entry, Holder, Key, LimitsLeft, SemaphoreLeft, TableId, Wanted
from engine.packets import Result, text_values
from engine.queue_table import SEMAPHORES, BrokenTable, Policy, QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.store.connection import StoreConnection
from engine.store.information_schema import facts_of
from engine.store.limits.limit import Choice, Left, Limit, lease_words
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from engine.store.queries import statement, statements_of
from engine.store.unprepared import UnknownQueues

NAMES_MAX = 128
"""Semaphores that one claim locks. Messages that need further ones are left to the next claim."""

SOUGHT_MAX = 16
"""If a claim needs more semaphores, it reads the holders of all, which costs less than to search each row for
so many names."""

DESCRIPTION_KEPT_S = 30.0
"""How long the description of a queue is used while its comment is the same. An index that is gone makes
a statement fail, and it is described again."""

Rightful = Callable[[StoreConnection, QueueTable | BrokenTable], QueueTable | BrokenTable]
"""The table, or its problem if the engine's account lacks a privilege on it."""


@dataclass(frozen=True, slots=True)
class Users:
    """The queues of a database whose messages may need semaphores; with a `problem`, there may be
    holders that cannot be read."""

    comments: Mapping[TableId, str]
    tables: Mapping[TableId, QueueTable]
    problem: str | None
    until_s: float


class Semaphores:
    """The semaphores of all databases. Safe for any number of threads: what it remembers only saves
    time, and is compared with the present comments at each use."""

    def __init__(self, rightful: Rightful) -> None:
        self._rightful = rightful
        self._users: dict[str, Users] = {}

    def of_claim(self, table: QueueTable, wanted: Iterable[Wanted]) -> Sequence[SemaphoreLimit]:
        """That of a claim; none if the messages of the queue need no semaphores."""
        if table.policy.semaphores is None:
            return ()
        return [SemaphoreLimit(self, table, [needs for want in wanted if (needs := needs_of(want.group))])]

    def known(self, db: str) -> Users | None:
        """What is remembered of a database. With a problem, it is for one claim: the next one looks again."""
        users = self._users.get(db)
        if users is not None and users.problem is not None:
            self.forget(db)
        return users if users is not None and time.monotonic() < users.until_s else None

    def forget(self, db: str) -> None:
        """Forget it: a statement has failed."""
        self._users.pop(db, None)

    def describe(self, connection: StoreConnection, db: str, comments: Mapping[TableId, str]) -> None:
        """Describe the queues with these comments. `connection` has no transaction."""
        facts = facts_of(connection, list(comments)).value if comments else {}
        tables: dict[TableId, QueueTable] = {}
        problems: list[str] = []
        for table in comments:
            if table not in facts:
                continue  # It was dropped a moment ago.
            found = evaluate(facts[table])
            if found is not None:
                found = self._rightful(connection, found)
            if isinstance(found, BrokenTable):
                problems.append(str(found))
            elif found is not None and found.policy.semaphores is not None:
                if found.lease_index is not None:
                    tables[table] = found
                else:
                    problems.append(f"{table}: {'; '.join(found.warnings)}")
        until_s = time.monotonic() + DESCRIPTION_KEPT_S
        self._users[db] = Users(comments, tables, "; ".join(problems) or None, until_s)


@dataclass(slots=True)
class SemaphoreCounts(Choice):
    """The semaphores that the messages of a claim need, as the server has shown them under their locks."""

    read: frozenset[str]
    """Those that were read. A message that needs another one may not be claimed."""
    capacities: dict[str, int] = field(default_factory=dict)
    """Those that exist, with the number of their places."""
    holders: dict[str, dict[Holder, int]] = field(default_factory=dict)
    """The messages in flight of all queues that hold each of them, and the ends of their leases."""
    needs: dict[Key, frozenset[str]] = field(default_factory=dict)
    """What each message of the claim needs."""
    taken: Counter[str] = field(default_factory=Counter)
    """How many places of each the claim takes."""
    _claimed: dict[str, dict[Holder, int]] = field(default_factory=dict)
    """The messages that the claim takes, as holders."""
    problem: str | None = None
    """Why nothing has a place, whatever the capacities are."""

    def has_place(self, key: Key) -> bool:
        return all(self._has_place(name) for name in self.needs.get(key, ()))

    def note_taken(self, claim: Claimed) -> None:
        for name in self.needs.get(claim.key, ()):
            self.taken[name] += 1
            self._claimed.setdefault(name, {})[None, claim.key] = claim.deadline_ns

    def leave(self, left: Left) -> None:
        left.semaphores = tuple(
            SemaphoreLeft(name, self.capacities.get(name), self._holders_if_full(name)) for name in self.read
        )
        left.problem = self.problem

    def _holders_if_full(self, name: str) -> Mapping[Holder, int]:
        holders = {**self.holders.get(name, {}), **self._claimed.get(name, {})}
        return holders if len(holders) >= self.capacities.get(name, 0) else {}

    def _has_place(self, name: str) -> bool:
        held = len(self.holders.get(name, ())) + self.taken[name]
        return held < self.capacities.get(name, 0)


class SemaphoreLimit(Limit):
    """The semaphores that the messages of one claim need."""

    choice: SemaphoreCounts | None = None

    def __init__(self, memory: Semaphores, table: QueueTable, needs: Sequence[frozenset[str]]) -> None:
        """`needs`: those of each message that needs some, in the order of their claim."""
        super().__init__(table, 0.0)
        self._memory = memory
        names: set[str] = set()
        for more in needs:
            if not names or len(names | more) <= NAMES_MAX:
                names |= more
        self._names = sorted(names)
        self._known = memory.known(table.id.db) if names else None
        self._comments: Mapping[TableId, str] = {}

    @property
    def locks(self) -> Sequence[str]:
        if not self._names:
            return ()
        names = ", ".join(map(text_literal, self._names))
        return [statement("semaphore_lock", semaphores=qualified(self._table.semaphores), names=names)]

    @property
    def counts(self) -> Sequence[str]:
        if not self._names:
            return ()
        comments = statement("semaphore_tables", db=text_literal(self._table.id.db))
        return [comments, *(holders_statement(table, self._names) for table in self._tables.values())]

    def read(self, locked: Sequence[Result], counted: Sequence[Result], now_ns: int) -> None:
        if not self._names:
            return
        self.choice = counts = SemaphoreCounts(frozenset(self._names))
        comments, *holders = counted
        for name, capacity in map(text_values, locked[0].rows):
            counts.capacities[(name or b"").decode()] = int(capacity or 0)
        self._comments = {
            TableId(self._table.id.db, (name or b"").decode()): text
            for name, comment in map(text_values, comments.rows)
            if _uses_semaphores(text := (comment or b"").decode())
        }
        for table, result in zip(self._tables.values(), holders, strict=True):
            self._read_holders(counts, table, result)

    def _read_holders(self, counts: SemaphoreCounts, table: QueueTable, result: Result) -> None:
        sql = statements_of(table)
        place = None if table.id == self._table.id else table.id
        for raw, needs, ends in map(text_values, result.rows):
            for name in names_in((needs or b"").decode()):
                counts.holders.setdefault(name, {})[place, sql.key(raw or b"")] = int(ends or 0)

    def possible(self, found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]) -> Mapping[Key, Entry]:
        """Raises UnknownQueues if other queues than the known ones may have holders."""
        if self.choice is not None:
            self._note_needs(self.choice, found)
        return unchanged(found, wanted)

    def _note_needs(self, counts: SemaphoreCounts, found: Mapping[Key, Entry]) -> None:
        users = self._known
        if users is None or users.comments != self._comments:
            db, comments = self._table.id.db, self._comments
            describe = self._memory.describe
            raise UnknownQueues(f"the queues of {db} with semaphores", lambda to: describe(to, db, comments))
        if users.problem is not None:
            counts.capacities = dict.fromkeys(self._names, 0)
            counts.problem = f"messages of {self._table.id} that need semaphores wait: {users.problem}"
        counts.needs = {key: needs_of(entry.group) for key, entry in found.items()}

    @property
    def _tables(self) -> Mapping[TableId, QueueTable]:
        """The queues that may have holders, as far as they are known."""
        return {**(self._known.tables if self._known is not None else {}), self._table.id: self._table}


def unchanged(found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]) -> dict[Key, Entry]:
    """Those of the locked messages that need the same semaphores as when they were scanned. The claim has
    locked the rows of these; the other messages have to be scanned again."""
    return {key: entry for key, entry in found.items() if needs_of(entry.group) == needs_of(wanted[key].group)}


def holders_statement(table: QueueTable, names: Iterable[str]) -> str:
    """The statement that reads the messages in flight of a queue that hold some of these semaphores. It may
    return others, whose needs contain the text of a name."""
    column = quoted(table.group_columns[-1].name)
    needs = f"CAST(CONVERT({column} USING utf8mb4) AS BINARY)"
    sought = list(names)
    named = " OR ".join(f"LOCATE(x'{name.encode().hex()}', {needs}) > 0" for name in sought)
    named = named if len(sought) <= SOUGHT_MAX else "TRUE"
    return statements_of(table)("semaphore_holders", column=column, needs=needs, named=named, **lease_words(table))


def none_exist(wanted: Iterable[Wanted]) -> ClaimResult:
    """The result of a claim in a database without a table of semaphores."""
    names = sorted({name for want in wanted for name in needs_of(want.group)})
    left_out = tuple(want.key for want in wanted)
    left = LimitsLeft(left_out, None, semaphores=tuple(SemaphoreLeft(name, None, {}) for name in names))
    return ClaimResult((), None, left)


def shows_no_table(error: StoreError) -> bool:
    """Whether a statement has failed because the database has no table of semaphores."""
    return error.code == ER.NO_SUCH_TABLE and SEMAPHORES in str(error)


def _uses_semaphores(comment: str) -> bool:
    policy = parse_comment(comment)
    return policy is not None and (not isinstance(policy, Policy) or policy.semaphores is not None)
