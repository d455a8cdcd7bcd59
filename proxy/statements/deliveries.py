"""Messages in flight, one row each: SHOW DELIVERIES, and the pages of the admin port.

For SHOW DELIVERIES, the rows are read on the client's own session, with its rights. The lease column shows what is in
flight at any proxy, and at which. Which client holds a message is known to its own proxy alone. Of
a queue without a lease column, only the messages that this proxy holds are shown.

No more than READ_MAX rows of a queue are read: those that are due next, or, where the lease column
has an index, those in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from string import Template
from typing import TYPE_CHECKING

from engine.dispatch.leases import Lease
from engine.model import NS_PER_S, SLOTS, Key, TableId
from engine.queue_table import QueueTable
from engine.quoting import qualified, quoted
from engine.service import Engine
from engine.store.queries import FORMS, TableStatements
from proxy.session.internal_queries import Refused, from_hex, rows, server_time_ns
from proxy.session.queries import sql
from proxy.statements.depth import ClientCounting, Counting, priorities
from proxy.statements.results import COUNT, NAME, SECONDS, WORDS, ResultColumn, ResultSet
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
    ResultColumn("Id", "VARCHAR(1000) CHARACTER SET utf8mb4"),
    ResultColumn("Epoch", "BIGINT"),
    ResultColumn("Queue", WORDS),
    ResultColumn("Since", SECONDS, "NOW() - INTERVAL ROUND({}) SECOND"),
    ResultColumn("Until", SECONDS, "NOW() + INTERVAL ROUND({}) SECOND"),
    ResultColumn("Proxy", COUNT),
    ResultColumn("Connection", COUNT),
    ResultColumn("User", NAME),
    ResultColumn("Host", WORDS),
    ResultColumn("Program", WORDS),
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
    user: str | None
    """As which it logged in."""
    host: str | None
    program: str | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A message in flight at any proxy; None: it is not known here."""

    key: Key
    epoch: int
    since_s: float | None
    until_s: float | None
    """None: it has no deadline, because a transaction locks it."""
    slot: int | None
    """Of the proxy."""
    holder: HeldDelivery | None


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
    """Reads what is in flight: all of it, with what this proxy knows of it."""

    def __init__(self, engine: Engine, sessions: Callable[[], Iterable[ClientSession]]) -> None:
        self._engine = engine
        self._sessions = sessions

    def own(self, table: TableId | None = None, of_each: int = HELD_MAX) -> Iterator[HeldDelivery]:
        """What is in flight at this proxy, of one queue or of all, the first ones of each: those that were
        claimed first. HELD_MAX of all."""
        sessions = {session.number: session for session in self._sessions()}
        runners = [(queue, dispatcher) for queue, dispatcher in self._engine.runners() if table in {None, queue.id}]
        left = HELD_MAX
        for queue, dispatcher in runners:
            leases = list(islice(dispatcher.parts.leases, min(of_each, left)))
            left -= len(leases)
            for lease in leases:
                yield self._held_by(queue, lease, None if lease.holder is None else sessions.get(lease.holder))

    def _held_by(self, queue: QueueTable, lease: Lease, session: ClientSession | None) -> HeldDelivery:
        age_s = (time.monotonic_ns() - lease.sent_ns) / NS_PER_S if lease.sent_ns else None
        place = queue.id, lease.key, lease.epoch, lease.locked, age_s, self._engine.roster.slot
        if session is None:
            return HeldDelivery(*place, None, None, None, None)
        user = session.info.response.username if session.info else None
        return HeldDelivery(*place, session.connection_id, user, *peer_of(session))

    async def of_queue(self, queue: QueueTable, counting: Counting, limit: int) -> list[InFlight]:
        """The messages of a queue in flight, the earliest deadline first. Raises what `counting` raises."""
        held = self._held(queue.id, limit).get(queue.id, {})
        reading = _Reading(counting, queue, await counting.now_ns(), limit)
        return await reading.in_flight(held)

    async def show(self, session: ClientSession, table: TableName | None, limit: int | None) -> ResultSet:
        """The messages in flight, of one queue or of all that the client may read."""
        limit = limit or LIMIT_DEFAULT
        visible = await rows(session, sql("visible_connections", limit=CONNECTIONS_MAX))
        users = {int(number or 0): from_hex(user) for number, user in visible}
        now_ns = await server_time_ns(session)
        held = self._held(None if table is None else table_id(table))
        shown: list[list[object]] = []
        for queue in await self._queues(session, table):
            reading = _Reading(ClientCounting(session), queue, now_ns, limit - len(shown))
            try:
                found = await reading.in_flight(held.get(queue.id, {}))
            except Refused:
                if table is not None:
                    raise
                continue  # The client may not read it.
            shown += [_shown(queue, one, users) for one in found]
            if len(shown) >= limit:
                break
        return ResultSet(DELIVERY_COLUMNS, shown)

    def _held(self, table: TableId | None, of_each: int = HELD_MAX) -> Mapping[TableId, Mapping[Key, HeldDelivery]]:
        found: dict[TableId, dict[Key, HeldDelivery]] = {}
        for delivery in self.own(table, of_each):
            found.setdefault(delivery.table, {})[delivery.key] = delivery
        return found

    async def _queues(self, session: ClientSession, table: TableName | None) -> Sequence[QueueTable]:
        if table is not None:
            await marked_comment(session, table)
            return [await refused_as_client(session, table, self._engine.queue(table_id(table)))]
        found = [await self._engine.inspect(name) for name in await visible_tables(session, None, None)]
        return [queue for queue in found if isinstance(queue, QueueTable)]


class _Reading:
    """Reads the rows in flight of one queue. Its methods raise what `counting` raises."""

    def __init__(self, counting: Counting, queue: QueueTable, now_ns: int, limit: int) -> None:
        self._counting = counting
        self._queue = queue
        self._now_ns = now_ns
        self._limit = limit
        self._words: Mapping[str, object] = {
            "table": qualified(queue.id),
            "id_index": quoted(queue.id_index),
            "id": f"HEX({Template(FORMS[queue.id_kind].expression).substitute(column='r.id')})",
            "lease": "NULL" if queue.lease_column is None else f"r.{quoted(queue.lease_column)}",
            "now_ns": now_ns,
        }

    async def in_flight(self, held: Mapping[Key, HeldDelivery]) -> list[InFlight]:
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
        return [self._one(row, held.get(row.key)) for row in ordered]

    def _one(self, row: _Row, held: HeldDelivery | None) -> InFlight:
        """A row, with what this proxy holds, if the row shows the same delivery."""
        until_s = (row.until_ns - self._now_ns) / NS_PER_S
        if held is None or held.epoch != row.epoch:
            return InFlight(row.key, row.epoch, None, until_s, row.slot, None)
        return InFlight(row.key, row.epoch, held.age_s, None if held.locked else until_s, held.slot, held)

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
        levels, _ = await priorities(self._counting, index)
        order = "" if queue.scan_descending else "ORDER BY time_next"
        for priority in levels:
            words = {"index": index, "priority": priority, "order": order, "read_max": READ_MAX // len(levels)}
            found += await self._read(sql("deliveries_by_time", limit=self._limit, **words, **self._words))
        return found

    async def _read(self, text: str) -> list[_Row]:
        parse = FORMS[self._queue.id_kind].parse
        return [
            _Row(parse(bytes.fromhex(raw)), int(epoch or 0), int(until or 0), None if lease is None else int(lease))
            for raw, epoch, until, lease in await self._counting.rows(text)
            if raw is not None
        ]


def _shown(queue: QueueTable, one: InFlight, users: Mapping[int, str]) -> list[object]:
    """A row of SHOW DELIVERIES. `users`: of the connections that the client may see."""
    place = [shown_key(one.key), one.epoch, str(queue.id), _rounded(one.since_s), _rounded(one.until_s), one.slot]
    holder = one.holder
    if holder is None or holder.connection_id is None or holder.connection_id not in users:
        return [*place, None, None, None, None]
    return [*place, holder.connection_id, users[holder.connection_id], holder.host, holder.program]


def shown_key(key: Key) -> str:
    """An id for people; a binary one as a literal."""
    return f"0x{key.hex()}" if isinstance(key, bytes) else str(key)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
