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

from collections.abc import Collection, Sequence
from string import Template

from engine.model import NS_PER_S, Key, TableId
from engine.packets import text_values
from engine.queue_table import GroupColumn, IdKind, QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.store.claim_plan import GroupPaces
from engine.store.connection import Result, StoreConnection
from engine.store.pace import Pace
from engine.store.queries import FORMS, TableStatements, statement
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


class ClaimGroupRates:
    """The rates of the message groups of one claim."""

    def __init__(self, table: QueueTable, sql: TableStatements, pace: Pace) -> None:
        self._sql = sql
        self._pace = pace
        self._words = _words(table)
        self._hash = group_hash(table.group_columns)

    def reads(self, keys: Collection[Key]) -> list[str]:
        """In the transaction, behind the statements that lock these rows."""
        return self._sql.for_ids("group_rates_read", keys, group_hash=self._hash, **self._words)

    def read(self, results: Sequence[Result], now_ns: int) -> GroupPaces:
        """Take the results of `reads`."""
        paces = GroupPaces(self._pace, now_ns)
        for row in (row for result in results for row in result.rows):
            raw, group, full_ns = text_values(row)
            digest = (group or b"").decode("ascii")
            paces.groups[self._sql.key(raw or b"")] = digest
            if full_ns is not None:
                paces.full_ns[digest] = int(full_ns)
        return paces

    def writes(self, paces: GroupPaces) -> list[str]:
        """With the claims, in the transaction."""
        queue = self._words["queue"]
        rows = [f"({queue}, x'{group}', {full_ns})" for group, full_ns in sorted(paces.written().items())]
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
