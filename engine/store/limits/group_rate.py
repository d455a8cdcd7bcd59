"""The rate of each message group over all proxies (`group_rate`): a token bucket for each group, kept as
one time in the table `ackstream_group_rates`, as `pace` describes.

A claim holds the lock of its queue. Behind its locking read it reads the times of the groups of its
messages, and it writes those of the groups that it takes messages of in its own transaction. So a
claim whose answer is lost, or whose proxy dies, has used up the rate if and only if it was committed.

A group is a digest of its values, computed by the server. For text it is the digest of what the
collation compares, so equal values are one group. A group without a row has its full rate, so rows
whose time is past are deleted (`IdleRates`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

from engine.dispatch.burst import burst_of
from engine.model import NS_PER_S, Claimed, Entry, Key, TableId, Wanted
from engine.packets import Result, text_values
from engine.queue_table import GroupColumn, IdKind, QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.store.connection import StoreConnection
from engine.store.limits.limit import Choice, Left, Limit
from engine.store.limits.pace import Pace
from engine.store.queries import FORMS, statement
from engine.store.recent import Recent

IDLE_NS = 60 * NS_PER_S
"""How long a group has had its full rate when its row is deleted: more than steps of a server's clock."""

_TEXT = "WEIGHT_STRING(IF(CONCAT($column, ' ') = $column, RTRIM($column), $column))"
"""What the collation of a text compares. Many collations ignore spaces at its end."""


def group_hash(columns: Sequence[GroupColumn]) -> str:
    """The digest of a row's message group, as an expression. Its words come from the row alone, so it is
    the same in each session."""
    parts = (f"COALESCE(HEX({_compared(column)}), '-')" for column in columns)
    return f"UNHEX(SHA2(CONCAT_WS(',', {', '.join(parts)}), 256))"


def _compared(column: GroupColumn) -> str:
    form = _TEXT if column.kind is IdKind.TEXT else FORMS[column.kind].expression
    return Template(form).substitute(column=quoted(column.name))


def read_rates(table: QueueTable, groups: Collection[str]) -> str:
    """The statement that reads the times of these groups (digests in hexadecimal)."""
    return statement("group_rates_of", groups=", ".join(f"x'{group}'" for group in groups), **_words(table))


@dataclass(slots=True)
class GroupPaces(Choice):
    """What `group_rate` leaves to the message groups of a claim."""

    pace: Pace
    now_ns: int
    groups: dict[Key, Hashable] = field(default_factory=dict)
    """The group of each message of the claim, as the server compares groups. A message without one may not
    be claimed."""
    full_ns: dict[Hashable, int] = field(default_factory=dict)
    """The time that is kept for each group. A group without one has its full rate."""
    taken: Counter[Hashable] = field(default_factory=Counter)
    """How many messages of each the claim takes."""

    def has_place(self, key: Key) -> bool:
        group = self.groups.get(key)
        return group is not None and self.taken[group] < self.pace.allowed(self.full_ns.get(group), self.now_ns)

    def note_taken(self, claim: Claimed) -> None:
        self.taken[self.groups[claim.key]] += 1

    def leave(self, left: Left) -> None:
        for entry in left.found.values():
            if entry.group is not None and (until_ns := self._until_ns(entry.key)) is not None:
                left.paced_groups[entry.group] = until_ns

    def written(self) -> dict[Hashable, int]:
        """The times to keep behind the claim."""
        return {group: self._after(group) for group, taken in self.taken.items() if taken}

    def _until_ns(self, key: Key) -> int | None:
        """When the rate allows the next message of this message's group, behind the claim; None: now."""
        group = self.groups.get(key)
        if group is None:
            return None
        after_ns = self._after(group)
        return None if self.pace.allowed(after_ns, self.now_ns) else self.pace.ready_ns(after_ns)

    def _after(self, group: Hashable) -> int:
        return self.pace.after(self.full_ns.get(group), self.now_ns, self.taken[group])


class GroupRateLimit(Limit):
    """Reads and writes the times of the groups of one claim."""

    choice: GroupPaces | None = None

    def __init__(self, table: QueueTable, claim_s: float) -> None:
        super().__init__(table, claim_s)
        self._pace = Pace(table.policy.group_rate or 0.0, burst_of(claim_s))
        self._words = _words(table)
        self._hash = group_hash(table.group_columns)

    def of_rows(self, wanted: Mapping[Key, Wanted]) -> Sequence[str]:
        return self._sql.for_ids("group_rates_read", wanted, group_hash=self._hash, **self._words)

    def read_rows(self, results: Sequence[Result], found: Mapping[Key, Entry], now_ns: int) -> None:
        self.choice = paces = GroupPaces(self._pace, now_ns)
        for row in (row for result in results for row in result.rows):
            raw, group, full_ns = text_values(row)
            digest = (group or b"").decode("ascii")
            paces.groups[self._sql.key(raw or b"")] = digest
            if full_ns is not None:
                paces.full_ns[digest] = int(full_ns)

    def writes(self) -> Sequence[str]:
        written = {} if self.choice is None else self.choice.written()
        queue = self._words["queue"]
        rows = [f"({queue}, x'{group}', {full_ns})" for group, full_ns in sorted(written.items(), key=str)]
        return [statement("group_rates_write", rates=self._words["rates"], rows=", ".join(rows))] if rows else []


class IdleRates:
    """Deletes the rows of groups that have had their full rate for a while: a part of them at a time, in
    the order of the primary key."""

    def __init__(self, remembered: int) -> None:
        self._behind: Recent[TableId, str] = Recent(remembered)

    def delete(self, connection: StoreConnection, table: QueueTable, now_ns: int, limit: int) -> int:
        """Read up to `limit` rows behind those that were read last, and delete the idle ones. Returns how
        many these were."""
        words, before_ns = _words(table), now_ns - IDLE_NS
        behind = self._behind.get(table.id, "")
        (found,) = connection.run([statement("group_rates_behind", behind=f"x'{behind}'", limit=limit, **words)])
        rows = [((group or b"").decode("ascii"), int(full_ns or 0)) for group, full_ns in map(text_values, found.rows)]
        self._behind.put(table.id, rows[-1][0] if len(rows) == limit else "")
        idle = ", ".join(f"x'{group}'" for group, full_ns in rows if full_ns < before_ns)
        if not idle:
            return 0
        (deleted,) = connection.run([statement("group_rates_delete", groups=idle, before_ns=before_ns, **words)])
        return deleted.affected


def _words(table: QueueTable) -> dict[str, str]:
    return {"rates": qualified(table.group_rates), "queue": text_literal(table.id.name)}
