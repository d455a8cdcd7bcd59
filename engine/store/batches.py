"""Batches in the database: whether they are done, and the follow-ups that wait for them.

How a follow-up fires exactly once, as soon as its batch is done:

- Safety is the claim's. It locks the follow-up, and a statement behind that (READ COMMITTED: it shows
  everything committed before) searches for an unacknowledged part, by one entry of the index of each
  queue with parts. Which queues these are is read then and there, from the comments of the database's
  tables. So a part that was inserted with its follow-up is never missed, in whichever queue.
- A follow-up whose batch is open is set aside by the same claim: its time_next becomes WAITING_NS. It
  is behind all other messages, and no scan of what is due reads it. There is no other state. An
  application may set another time_next; the next claim sets the message aside again.
- When a part was acknowledged or deleted, each proxy checks the follow-ups of its batch. A follow-up
  whose batch is done becomes due: it *fires*. That is a hint, too. Its claim checks again.
- Two last ACKs that commit at once need not see each other: a check comes after both, and any check
  that begins after the last commit finds the batch done. A proxy that dies between changes nothing,
  since a rotation through all follow-ups, in steps of bounded size, finds what reports have missed.
- First firing: epoch 0. A message that was delivered once is not held again by parts that come later.

Alternatives: a counter of open parts in a row of its own (every ACK of a batch would wait for that
row, and plain UPDATE and DELETE would bypass it); triggers (their owner's rights, and one on each
queue); a column in the scan index (each claim and ACK of any message would change one more entry);
leaving waiting follow-ups in their places (each scan would read past them).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

from engine.catalog.batches import batch_column
from engine.catalog.directives import parse_comment
from engine.catalog.verdict import TableFacts, evaluate
from engine.model import WAITING_NS, BatchCheck, BatchesChecked, Entry, FollowUpPlace, Key, TableId
from engine.packets import Result, text_values
from engine.queue_table import BatchColumn, BrokenTable, IdKind, Policy, QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.refused import named
from engine.store.connection import StoreConnection
from engine.store.information_schema import facts_of, now_ns
from engine.store.port import StoreError, Timed, in_parts
from engine.store.queries import FORMS, TableStatements, statement
from engine.store.unprepared import UnknownQueues

DESCRIPTION_KEPT_S = 30.0
"""How long the description of a queue with parts is used while its comment is the same. A type or an
index that changed meanwhile makes a statement fail, and it is described again."""

Rightful = Callable[[StoreConnection, QueueTable | BrokenTable], QueueTable | BrokenTable]
"""The table, or its problem if the engine's account lacks a privilege on it."""


@dataclass(frozen=True, slots=True)
class PartTable:
    """A table whose unacknowledged rows are parts."""

    table: QueueTable
    batch: BatchColumn


@dataclass(frozen=True, slots=True)
class BatchParts:
    """All of a database; with a `problem`, there may be parts that cannot be read."""

    tables: Mapping[TableId, PartTable] = field(default_factory=dict)
    problem: str | None = None


@dataclass(slots=True)
class _Described:
    comments: Mapping[TableId, str]
    parts: BatchParts
    until_s: float


class Batches:
    """The batches of all databases. Safe for any number of threads: what it remembers only saves time,
    and is compared with the present comments at each use."""

    def __init__(self, rightful: Rightful) -> None:
        self._rightful = rightful
        self._described: dict[str, _Described] = {}

    def waiting(self, connection: StoreConnection, table: QueueTable, found: Mapping[Key, Entry]) -> frozenset[Key]:
        """Those of the locked messages that are follow-ups whose batches are open. Their time_next is
        still to be set. Raises UnknownQueues."""
        keys = [entry.key for entry in found.values() if entry.epoch == 0]
        if table.after_batch is None or not keys:
            return frozenset()
        sql = TableStatements(table)
        nothing_known = _waits(table, sql, keys, "'1'")
        (follow_ups,) = connection.run([nothing_known])
        keys = [key for key, _ in _flags(sql, follow_ups)]
        if not keys:
            return frozenset()
        comments = self._comments(connection, table.id.db)
        if (parts := self._known(table.id.db, comments)) is None:
            db = table.id.db
            raise UnknownQueues(f"the queues of {db} with batches", lambda to: self.describe(to, db, comments))
        with self._forgotten_on_error(table.id.db):
            (states,) = connection.run([_waits(table, sql, keys, is_open(table.after_batch, parts))])
        return frozenset(key for key, open_ in _flags(sql, states) if open_)

    def parts(self, connection: StoreConnection, db: str) -> BatchParts:
        """The tables with parts in a database, now. `connection` has no transaction."""
        comments = self._comments(connection, db)
        parts = self._known(db, comments)
        return self.describe(connection, db, comments) if parts is None else parts

    def describe(self, connection: StoreConnection, db: str, comments: Mapping[TableId, str]) -> BatchParts:
        """Describe the queues with these comments. `connection` has no transaction."""
        parts = self._describe(connection, comments)
        self._described[db] = _Described(comments, parts, time.monotonic() + DESCRIPTION_KEPT_S)
        return parts

    @staticmethod
    def _comments(connection: StoreConnection, db: str) -> Mapping[TableId, str]:
        (found,) = connection.run([statement("batch_tables", db=text_literal(db))])
        return {
            TableId(db, (name or b"").decode()): (comment or b"").decode()
            for name, comment in map(text_values, found.rows)
        }

    def _known(self, db: str, comments: Mapping[TableId, str]) -> BatchParts | None:
        """The parts that are remembered for these comments. With a problem, they are for one use: the next one
        looks again."""
        known = self._described.get(db)
        if known is None or known.comments != comments or time.monotonic() > known.until_s:
            return None
        if known.parts.problem is not None:
            self._described.pop(db, None)
        return known.parts

    def check(self, connection: StoreConnection, table: QueueTable, check: BatchCheck) -> Timed[BatchesChecked]:
        """Carry out a check: fire what is done, and set aside what is due and waits."""
        parts = self.parts(connection, table.id.db)
        with self._forgotten_on_error(table.id.db):
            return Check(connection, table, parts, check).run()

    def _describe(self, connection: StoreConnection, comments: Mapping[TableId, str]) -> BatchParts:
        policies = {table: parse_comment(comment) for table, comment in comments.items()}
        policies = {
            table: policy
            for table, policy in policies.items()
            if policy is not None and (not isinstance(policy, Policy) or policy.batch_by is not None)
        }
        holding = {
            table: TableId(policy.dead_letter[0] or table.db, policy.dead_letter[1])
            for table, policy in policies.items()
            if isinstance(policy, Policy) and policy.dead_parts_hold and policy.max_attempts and policy.dead_letter
        }
        facts = facts_of(connection, [*{*policies, *holding.values()}]).value if policies else {}
        tables: dict[TableId, PartTable] = {}
        problems: list[str] = []
        for table, policy in policies.items():
            if table not in facts:
                continue  # It was dropped a moment ago.
            found = self._part_table(connection, facts[table], policy.batch_by if isinstance(policy, Policy) else None)
            if isinstance(found, str):
                problems.append(found)
                continue
            tables[table] = found
            letters = holding.get(table)
            if letters is not None and letters in facts:
                dead = self._part_table(connection, facts[letters], found.batch.name)
                if isinstance(dead, str):
                    problems.append(f"{table} has batch_on_dead=hold, and {dead}")
                else:
                    tables[letters] = dead
        return BatchParts(tables, "; ".join(problems) or None)

    def _part_table(self, connection: StoreConnection, facts: TableFacts, name: str | None) -> PartTable | str:
        """A table with parts, whose batch is in the column `name`; or why it cannot be read."""
        found = evaluate(facts)
        if found is not None:
            found = self._rightful(connection, found)
        if not isinstance(found, QueueTable):
            return str(found or f"{facts.id} is no message table any more")
        batch = batch_column(name, facts)
        if batch is None:
            return f"{facts.id} has no column {name} with an index on ({name}, time_acked)"
        return PartTable(found, batch)

    def _forgotten_on_error(self, db: str) -> _ForgottenOnError:
        return _ForgottenOnError(self._described, db)


class _ForgottenOnError:
    """After an error of the server, what was described is read again."""

    def __init__(self, described: dict[str, _Described], db: str) -> None:
        self._described, self._db = described, db

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            self._described.pop(self._db, None)


class Check:
    """One check of the follow-ups of a queue."""

    def __init__(self, connection: StoreConnection, table: QueueTable, parts: BatchParts, check: BatchCheck) -> None:
        assert table.after_batch is not None
        self._connection = connection
        self._column = table.after_batch
        self._parts = parts
        self._check = check
        self._sql = TableStatements(table)
        self._words = {
            **_words(table.after_batch),
            "is_open": is_open(table.after_batch, parts),
            "batch_value": _value(table.after_batch),
        }
        self._unseen: list[tuple[TableId, tuple[Key, ...]]] = []
        self._again = False
        self._refused: dict[Key, str] = {}
        """The follow-ups that the server refuses to change."""

    def run(self) -> Timed[BatchesChecked]:
        """Read, then change what follows."""
        (now,) = self._connection.run([statement("now")])
        now_at = now_ns(now)
        asked_for = [*self._of_keys(), *self._of_batches(self._batches_of_parts())]
        rotated = self._rotation()
        found = {follow_up.key: follow_up for follow_up in (*asked_for, *rotated)}.values()
        done = [one.key for one in found if one.due_ns == WAITING_NS and not one.is_open]
        early = [one.key for one in found if one.is_open and one.epoch == 0 and one.due_ns <= now_at]
        fired, aside = self._move(done, early, now_at)
        self._again = self._again or len(fired) + len(self._refused) < len(done)
        waiting = sum(one.due_ns == WAITING_NS or (one.is_open and one.epoch == 0) for one in rotated)
        cut = len(rotated) >= self._check.limit
        seen = BatchesChecked(
            fired,
            aside,
            waiting,
            rotated[-1].place if cut else None,
            tuple(self._unseen),
            self._again,
            self._parts.problem or (named(self._refused) if self._refused else None),
        )
        return Timed(seen, now_at)

    def _batches_of_parts(self) -> set[Key]:
        """The batches of the parts that were reported, as values of the follow-ups' column."""
        batches: set[Key] = set()
        for table, keys in self._check.parts:
            part = self._parts.tables.get(table)
            if part is None:
                self._again = True
                continue
            sql = TableStatements(part.table)
            words = {"batch_value": _value(part.batch)}
            (found,) = self._connection.run(sql.for_ids("batch_of_parts", keys, **words))
            hidden: list[Key] = []
            rows = [text_values(row) for row in found.rows]
            for raw, batch, unacknowledged in rows:
                assert raw is not None
                if unacknowledged == b"1":
                    hidden.append(sql.key(raw))
                elif batch is not None:
                    batches.add(converted(FORMS[part.batch.kind].parse(batch), self._column.kind))
            self._again = self._again or len(rows) < len(keys)  # Deleted ones do not show their batch.
            self._unseen += [(table, tuple(hidden))] if hidden else []
        return batches

    def _of_keys(self) -> list[_FollowUp]:
        texts = self._sql.for_ids("batch_by_ids", self._check.keys, **self._words)
        return self._read(*self._connection.run(texts)) if texts else []

    def _of_batches(self, batches: Collection[Key]) -> list[_FollowUp]:
        if not batches:
            return []
        literals = ", ".join(map(FORMS[self._column.kind].literal, batches))
        text = self._sql("batch_follow_ups", batches=literals, limit=self._check.limit, **self._words)
        found = self._read(*self._connection.run([text]))
        self._again = self._again or len(found) >= self._check.limit
        return found

    def _rotation(self) -> list[_FollowUp]:
        if not self._check.rotate:
            return []
        behind = _behind(self._sql, self._column, self._check.after)
        text = self._sql("batch_rotation", behind=behind, limit=self._check.limit, **self._words)
        return self._read(*self._connection.run([text]))

    def _read(self, result: Result) -> list[_FollowUp]:
        found = []
        for raw, batch, epoch, due_ns, open_ in map(text_values, result.rows):
            assert raw is not None
            assert batch is not None
            place = FORMS[self._column.kind].parse(batch), self._sql.key(raw)
            found.append(_FollowUp(place, int(epoch or 0), int(due_ns or 0), open_ == b"1"))
        return found

    def _move(self, done: Sequence[Key], early: Sequence[Key], now_at: int) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """Let follow-ups be due, and others wait, unless somebody has changed or locked them. Returns
        both."""
        if not done and not early:
            return (), ()
        sql = self._sql
        locks = [
            *sql.for_ids("batch_lock_waiting", done, waiting_ns=WAITING_NS),
            *sql.for_ids("batch_lock_due", early),
        ]
        _, *locked = self._connection.run([statement("begin"), *locks])
        keys = [[sql.key(raw) for (raw,) in map(text_values, result.rows) if raw is not None] for result in locked]
        fired = keys.pop(0) if done else []
        aside = keys.pop(0) if early else []
        fired = self._set_time(fired, now_at)
        aside = self._set_time(aside, WAITING_NS)
        self._connection.run([statement("commit")])
        return tuple(fired), tuple(aside)

    def _set_time(self, keys: Sequence[Key], time_ns: int) -> list[Key]:
        """Let locked follow-ups be due at this time. Returns those that the server has not refused."""

        def write(part: Sequence[Key]) -> Sequence[Key]:
            self._connection.run(self._sql.for_ids("batch_set_time", part, time_next=time_ns))
            return part

        done, refused = in_parts(keys, write)
        self._refused |= refused
        return [key for part in done for key in part]


@dataclass(frozen=True, slots=True)
class _FollowUp:
    place: FollowUpPlace
    epoch: int
    due_ns: int
    is_open: bool

    @property
    def key(self) -> Key:
        return self.place[1]


def set_aside(sql: TableStatements, keys: Collection[Key]) -> list[str]:
    """The statement that lets locked follow-ups wait."""
    return sql.for_ids("batch_set_time", keys, time_next=WAITING_NS)


def is_open(column: BatchColumn, parts: BatchParts) -> str:
    """An expression of a follow-up: '1' if its batch has unacknowledged parts, or may have, else '0'."""
    if parts.problem is not None:
        return "'1'"
    subqueries = [
        statement(
            "batch_part",
            parts=qualified(part.table.id),
            part_index=quoted(part.batch.index),
            part_batch=quoted(part.batch.name),
            batch=_comparable(column, part.batch),
        )
        for part in parts.tables.values()
    ]
    choices = ", ".join([*(f"({subquery})" for subquery in subqueries), "0"])
    return f"CAST(COALESCE({choices}) AS BINARY)"


def _comparable(column: BatchColumn, part: BatchColumn) -> str:
    """The batch of a follow-up as a value of the type of the part's column, so that the comparison uses
    the index of that, and is that of its collation."""
    value = f"follow_up.{quoted(column.name)}"
    if part.kind is IdKind.TEXT:
        charset = part.collation.partition("_")[0]
        return f"CONVERT({value} USING {charset}) COLLATE {part.collation}"
    if part.kind is column.kind:
        return value
    return f"CAST({value} AS {'SIGNED' if part.kind is IdKind.INTEGER else 'BINARY'})"


def converted(batch: Key, kind: IdKind) -> Key:
    """A batch as a value of a column of this kind; 0 for a text that is no number."""
    if kind is IdKind.BINARY and isinstance(batch, bytes):
        return batch
    text = batch.decode("utf-8", "replace") if isinstance(batch, bytes) else str(batch)
    if kind is IdKind.INTEGER:
        return int(text) if text.removeprefix("-").isdecimal() else 0
    return text.encode() if kind is IdKind.BINARY else text


def _behind(sql: TableStatements, column: BatchColumn, place: FollowUpPlace | None) -> str:
    name = quoted(column.name)
    if place is None:
        return f"{name} IS NOT NULL"
    batch = FORMS[column.kind].literal(place[0])
    return f"({name} > {batch} OR ({name} = {batch} AND id > {sql.ids([place[1]])}))"


def _words(column: BatchColumn) -> dict[str, str]:
    return {"after_batch": quoted(column.name), "after_index": quoted(column.index)}


def _value(column: BatchColumn) -> str:
    return Template(FORMS[column.kind].expression).substitute(column=quoted(column.name))


def _waits(table: QueueTable, sql: TableStatements, keys: Collection[Key], open_: str) -> str:
    assert table.after_batch is not None
    return sql("batch_waits", ids=sql.ids(keys), is_open=open_, **_words(table.after_batch))


def _flags(sql: TableStatements, result: Result) -> Iterable[tuple[Key, bool]]:
    for raw, flag in map(text_values, result.rows):
        assert raw is not None
        yield sql.key(raw), flag == b"1"
