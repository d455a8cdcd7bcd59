"""SHOW DELIVERIES: the messages in flight that the client may see, one row each.

The rows are read on the client's own session, with its rights. The lease column shows what is in
flight at any proxy, and at which. Which client holds a message is known to its own proxy alone. Of
a queue without a lease column, only the messages that this proxy holds are shown.

No more than READ_MAX rows of a queue are read: those that are due next, or, where the lease column
has an index, those in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING

from engine.model import NS_PER_S, SLOTS, Key, TableId
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted
from engine.service import Engine
from engine.store.queries import FORMS, TableStatements
from proxy.session.internal_queries import Refused, checked_query, from_hex, raw_rows, rows, server_time_ns
from proxy.session.queries import sql
from proxy.statements.depth import ClientCounting, priorities
from proxy.statements.results import COUNT, NAME, SECONDS, WORDS, Column, Result
from proxy.statements.show import CONNECTIONS_MAX, peer_of, visible_tables
from proxy.statements.tables import marked_comment, refused_as_client, table_id
from sqlrewrite.names import TableName

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

LIMIT_DEFAULT = 1_000
"""Messages that are shown without LIMIT."""

READ_MAX = 5_000
"""Rows of one queue that are read to find those in flight: some milliseconds."""

HELD_MAX = 20_000
"""Deliveries that a statement looks for, 300 bytes each."""

IDS_AT_ONCE = 1_000

DELIVERY_COLUMNS = (
    Column("Id", "VARCHAR(1000) CHARACTER SET utf8mb4"),
    Column("Epoch", "BIGINT"),
    Column("Queue", WORDS),
    Column("Since", SECONDS, "NOW() - INTERVAL ROUND({}) SECOND"),
    Column("Until", SECONDS, "NOW() + INTERVAL ROUND({}) SECOND"),
    Column("Proxy", COUNT),
    Column("Connection", COUNT),
    Column("User", NAME),
    Column("Host", WORDS),
    Column("Program", WORDS),
)


@dataclass(frozen=True, slots=True)
class HeldDelivery:
    """A message in flight at this proxy."""

    table: TableId
    key: Key
    epoch: int
    locked: bool
    """Whether the client's transaction locks it: it has no deadline."""
    age_s: float | None
    """The time since its row was sent; None: it was not sent yet."""
    slot: int | None
    connection_id: int | None
    """The connection that it was given to, with the two below; None: it is given to none yet."""
    host: str | None
    program: str | None


@dataclass(frozen=True, slots=True)
class _Row:
    """The row of a message, as the client's session sees it."""

    key: Key
    epoch: int
    until_ns: int
    """Its time_next."""
    lease_ns: int | None
    """The lease column; None without one, or if it was never claimed."""

    @property
    def slot(self) -> int | None:
        """The slot of the proxy that claimed it, if the row shows it."""
        return None if self.lease_ns is None else self.lease_ns % SLOTS or None


class Deliveries:
    """Carries out SHOW DELIVERIES."""

    def __init__(self, engine: Engine, sessions: Callable[[], Iterable[ClientSession]]) -> None:
        self._engine = engine
        self._sessions = sessions

    def _own(self, table: TableId | None, limit: int = HELD_MAX) -> list[HeldDelivery]:
        """What is in flight at this proxy, of one queue or of all."""
        sessions = {session.number: session for session in self._sessions()}
        slot, now_ns = self._engine.roster.slot, time.monotonic_ns()
        held: list[HeldDelivery] = []
        for queue, dispatcher in self._engine.runners():
            if table not in {None, queue.id}:
                continue
            for lease in dispatcher.parts.leases:
                if len(held) == limit:
                    return held
                session = None if lease.holder is None else sessions.get(lease.holder)
                host, program = (None, None) if session is None else peer_of(session)
                age_s = (now_ns - lease.sent_ns) / NS_PER_S if lease.sent_ns else None
                number = None if session is None else session.connection_id
                held.append(
                    HeldDelivery(queue.id, lease.key, lease.epoch, lease.locked, age_s, slot, number, host, program)
                )
        return held

    async def show(self, session: ClientSession, table: TableName | None, limit: int | None) -> Result:
        """The messages in flight, of one queue or of all that the client may read."""
        limit = limit or LIMIT_DEFAULT
        visible = await rows(session, sql("visible_connections", limit=CONNECTIONS_MAX))
        users = {int(number or 0): from_hex(user) for number, user in visible}
        now_ns = await server_time_ns(session)
        held = self._held(None if table is None else table_id(table))
        shown: list[list[object]] = []
        for queue in await self._queues(session, table):
            reading = _Reading(session, queue, now_ns, limit - len(shown))
            try:
                found = await reading.in_flight(held.get(queue.id, {}))
            except Refused:
                if table is not None:
                    raise
                continue  # The client may not read it.
            shown += [_shown(row, delivery, queue, now_ns, users) for row, delivery in found]
            if len(shown) >= limit:
                break
        return Result(DELIVERY_COLUMNS, shown)

    def _held(self, table: TableId | None) -> Mapping[TableId, Mapping[Key, HeldDelivery]]:
        found: dict[TableId, dict[Key, HeldDelivery]] = {}
        for delivery in self._own(table):
            found.setdefault(delivery.table, {})[delivery.key] = delivery
        return found

    async def _queues(self, session: ClientSession, table: TableName | None) -> Sequence[QueueTable]:
        if table is not None:
            await marked_comment(session, table)
            return [await refused_as_client(session, table, self._engine.queue(table_id(table)))]
        found = [await self._engine.inspect(name) for name in await visible_tables(session, None, None)]
        return [queue for queue in found if isinstance(queue, QueueTable)]


class _Reading:
    """Reads the rows in flight of one queue on the client's session. Its methods raise Refused."""

    def __init__(self, session: ClientSession, queue: QueueTable, now_ns: int, limit: int) -> None:
        self._session = session
        self._queue = queue
        self._now_ns = now_ns
        self._limit = limit
        self._words: Mapping[str, object] = {
            "table": qualified(queue.id),
            "id_index": quoted(queue.id_index),
            "id": Template(FORMS[queue.id_kind].expression).substitute(column="r.id"),
            "lease": "NULL" if queue.lease_column is None else f"r.{quoted(queue.lease_column)}",
            "now_ns": now_ns,
        }

    async def in_flight(self, held: Mapping[Key, HeldDelivery]) -> list[tuple[_Row, HeldDelivery | None]]:
        """The messages in flight with what this proxy knows of them, the earliest deadline first."""
        found = {row.key: row for row in await self._leased()}
        unseen = [key for key in held if key not in found][: self._limit]
        for start in range(0, len(unseen), IDS_AT_ONCE):
            keys = unseen[start : start + IDS_AT_ONCE]
            ids = TableStatements(self._queue).ids(keys)
            for row in await self._read(sql("deliveries_by_id", ids=ids, limit=len(keys), **self._words)):
                if self._is_in_flight(row, held[row.key]):
                    found[row.key] = row
        ordered = sorted(found.values(), key=lambda row: row.until_ns)[: self._limit]
        return [(row, _same(held.get(row.key), row)) for row in ordered]

    def _is_in_flight(self, row: _Row, held: HeldDelivery) -> bool:
        """Whether the row shows the delivery that this proxy holds. Another session may have ended it."""
        if held.locked or row.epoch != held.epoch:
            return held.locked and row.epoch == held.epoch
        leased = self._queue.lease_column is None or row.lease_ns == row.until_ns
        return leased and row.until_ns > self._now_ns

    async def _leased(self) -> list[_Row]:
        """The rows that the lease column shows."""
        queue = self._queue
        if queue.lease_column is None:
            return []
        if queue.lease_index is not None:
            words = {"lease_index": quoted(queue.lease_index), "limit": min(self._limit, READ_MAX)}
            return await self._read(sql("deliveries_by_lease", **words, **self._words))
        if queue.scan_index is None:
            return []
        index = f"{qualified(queue.id)} FORCE INDEX ({quoted(queue.scan_index)})"
        found: list[_Row] = []
        levels, _ = await priorities(ClientCounting(self._session), index)
        order = "" if queue.scan_descending else "ORDER BY time_next"
        for priority in levels:
            words = {"index": index, "priority": priority, "order": order, "read_max": READ_MAX // len(levels)}
            found += await self._read(sql("deliveries_by_time", limit=self._limit, **words, **self._words))
        return found

    async def _read(self, text: str) -> list[_Row]:
        answer = await checked_query(self._session, text)
        parse = FORMS[self._queue.id_kind].parse
        return [
            _Row(parse(raw), _number(epoch) or 0, _number(until) or 0, _number(lease))
            for raw, epoch, until, lease in raw_rows(self._session, answer)
            if raw is not None
        ]


def _same(delivery: HeldDelivery | None, row: _Row) -> HeldDelivery | None:
    """What this proxy holds, if the row shows the same delivery."""
    return delivery if delivery is not None and delivery.epoch == row.epoch else None


def _shown(
    row: _Row, delivery: HeldDelivery | None, queue: QueueTable, now_ns: int, users: Mapping[int, str]
) -> list[object]:
    key = f"0x{row.key.hex()}" if isinstance(row.key, bytes) else str(row.key)
    locked = delivery is not None and delivery.locked
    until_s = None if locked else round((row.until_ns - now_ns) / NS_PER_S, 3)
    place = [key, row.epoch, str(queue.id)]
    if delivery is None:
        return [*place, None, until_s, row.slot, None, None, None, None]
    since_s = None if delivery.age_s is None else round(delivery.age_s, 3)
    if delivery.connection_id is None or delivery.connection_id not in users:
        return [*place, since_s, until_s, delivery.slot, None, None, None, None]
    user = users[delivery.connection_id]
    return [*place, since_s, until_s, delivery.slot, delivery.connection_id, user, delivery.host, delivery.program]


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value.replace(b"\0", b""))  # In UCS-2 there are NULs between the digits.
