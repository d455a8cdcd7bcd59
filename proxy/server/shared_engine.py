"""The engine of one of several workers.

It notifies the other workers of what its clients did, as far as the binary log does not show them,
and uses of each queue's limits only what the parent allows (proxy.server.allowances).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from engine.model import Return, TableId
from engine.queue_table import Policy, QueueTable
from engine.runtime.executor import EngineSettings
from engine.runtime.gathered_acks import AckResult
from engine.runtime.table_runner import TableRunner
from engine.service import NO_IDS, Engine
from engine.store.mysql import MySQLStore
from engine.store.port import Origin, Store, StoreError, Timed
from proxy.server import messages
from proxy.server.allowances import RATE_UNITS, Kind, Limited
from proxy.server.messages import CommitNotice

CHECK_S = 0.1
"""How often demand and use are compared with what the parent knows, while queues with limits have
streams."""

DEMAND_LASTS_S = 1.0
"""After the last stream of a queue. A client that runs one bounded STREAM after the other keeps its
worker's allowance."""

OBTAIN_S = 0.5
"""How long a STREAM waits for an allowance before it begins without one, as if the limit were
reached."""


def _limits(policy: Policy) -> dict[Kind, int]:
    """The limits of a queue that the parent divides, in units. Others are kept by the database."""
    limits = {}
    if policy.max_in_flight is not None and not policy.counted:
        limits[Kind.IN_FLIGHT] = policy.max_in_flight
    if policy.max_rate is not None and not policy.paced:
        limits[Kind.RATE] = RATE_UNITS
    return limits


class LimitedQueues:
    """The queues that have limits, and how many units of each this worker may use."""

    def __init__(
        self,
        runners: Callable[[TableId], TableRunner | None],
        send: Callable[[object], None],
        part_of: Callable[[int], int],
    ) -> None:
        """`part_of`: this worker's part of a total."""
        self._runners, self._send, self._part_of = runners, send, part_of
        self._queues: dict[TableId, QueueTable] = {}
        """As they are described."""
        self._units: dict[Limited, int] = {}
        self._used: dict[Limited, int] = {}
        """The use that the parent knows of."""
        self._demanded_s: dict[TableId, float] = {}
        """When a queue last had a stream or messages in flight."""
        self._demand: dict[Limited, int] = {}
        """The demand that the parent knows of."""
        self._allowed = asyncio.Event()
        """Set, and replaced, with each order."""
        self._timer: asyncio.TimerHandle | None = None

    def limited(self, queue: QueueTable) -> QueueTable:
        """The queue with the limits that this worker has to keep."""
        limits = _limits(queue.policy)
        policy = replace(queue.policy, cache_size=max(1, self._part_of(queue.policy.cache_size)))
        if not limits:
            self._queues.pop(queue.id, None)
            return replace(queue, policy=policy)
        self._queues[queue.id] = queue
        units = {kind: self._units.get((queue.id, kind), 0) for kind in limits}
        if 0 in units.values():
            policy = replace(policy, paused=True)
        if (messages_max := units.get(Kind.IN_FLIGHT)) is not None:
            policy = replace(policy, max_in_flight=max(1, messages_max))
        if policy.max_rate is not None and not policy.paced:
            policy = replace(policy, max_rate=policy.max_rate * max(1, units[Kind.RATE]) / RATE_UNITS)
        return replace(queue, policy=policy)

    def lost(self, table: TableId) -> None:
        """The table is no queue any more."""
        self._queues.pop(table, None)

    def is_allowed(self, table: TableId) -> bool:
        """Whether messages of this table may be delivered."""
        queue = self._queues.get(table)
        return queue is None or all(self._units.get((table, kind)) for kind in _limits(queue.policy))

    async def obtain(self, table: TableId) -> None:
        """Demand an allowance for a stream that begins, and wait for it for OBTAIN_S at most."""
        if self.is_allowed(table):
            return
        self._demanded_s[table] = asyncio.get_running_loop().time()
        self.check()
        try:
            async with asyncio.timeout(OBTAIN_S):
                while not self.is_allowed(table):
                    await self._allowed.wait()
        except TimeoutError:
            pass

    def follow(self, limited: Limited, units: int) -> None:
        """Take an order of the parent."""
        self._units[limited] = units
        table, _ = limited
        queue, runner = self._queues.get(table), self._runners(table)
        if queue is not None and runner is not None:
            runner.queue = self.limited(queue)
            runner.handle(runner.dispatcher.policy_changed, runner.queue.policy)
        self._report_use(limited)
        allowed, self._allowed = self._allowed, asyncio.Event()
        allowed.set()
        self._arm()

    def check(self) -> None:
        """Report the present demand and use if they have changed."""
        now_s = asyncio.get_running_loop().time()
        demand: dict[Limited, int] = {}
        for table, queue in self._queues.items():
            runner = self._runners(table)
            if runner is not None and (runner.dispatcher.subscribers or runner.dispatcher.taken):
                self._demanded_s[table] = now_s
            if now_s < self._demanded_s.get(table, -DEMAND_LASTS_S) + DEMAND_LASTS_S:
                demand.update({(table, kind): units for kind, units in _limits(queue.policy).items()})
            else:
                self._demanded_s.pop(table, None)
        if demand != self._demand:
            self._demand = demand
            self._send(messages.Demand(demand))
        for limited, units in list(self._units.items()):
            if self._used[limited] > units:
                self._report_use(limited)
            elif not units and limited not in demand:
                del self._units[limited], self._used[limited]
        self._arm()

    def _report_use(self, limited: Limited) -> None:
        units = self._units[limited]
        table, kind = limited
        runner = self._runners(table)
        taken = runner.dispatcher.taken if runner is not None and kind is Kind.IN_FLIGHT else 0
        used = max(units, taken)
        self._used[limited] = used
        self._send(messages.Uses(limited, units, used))

    def _arm(self) -> None:
        if self._timer is None and (self._demand or self._units):
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.check()


class SharedEngine(Engine):
    """An engine that notifies the other workers of what clients did here.

    What the binary log shows them anyway is not sent while it is followed, except the ids of inserted
    messages: they are claimed up to two milliseconds earlier.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        notify: Callable[[CommitNotice], None],
        send: Callable[[object], None],
        part_of: Callable[[int], int],
        *,
        others_stream: bool = True,
    ) -> None:
        """`notify` sends a notice to the other workers, `send` a message to the parent. `part_of`:
        this worker's part of a total. `others_stream`: whether other workers have streams. If not,
        only changes of the schema are sent."""
        super().__init__(store, settings)
        self.log_followed = False
        self.limits = LimitedQueues(self._runners.get, send, part_of)
        self._notify, self._others_stream = notify, others_stream

    # Limits.

    async def queue(self, table: TableId, *, text: bytes | None = None, fresh: bool = False) -> QueueTable:
        """As Engine's, once the worker has an allowance, or none is free."""
        queue = await super().queue(table, text=text, fresh=fresh)
        await self.limits.obtain(queue.id)
        return queue

    def known_queue(self, table: TableId, text: bytes) -> QueueTable | None:
        """As Engine's. None also without an allowance: `queue` waits for it."""
        queue = super().known_queue(table, text)
        return queue if queue is not None and self.limits.is_allowed(queue.id) else None

    def _queue_found(self, queue: QueueTable) -> None:
        super()._queue_found(self.limits.limited(queue))

    def _queue_lost(self, table: TableId, text: str) -> None:
        self.limits.lost(table)
        super()._queue_lost(table, text)

    # Notices.

    def _notify_unless_logged(self, notice: CommitNotice) -> None:
        if self._others_stream and not self.log_followed:
            self._notify(notice)

    def written(self, name: str | None, *, inserted: bool = False, ids: range = NO_IDS) -> None:
        """As Engine's."""
        super().written(name, inserted=inserted, ids=ids)
        if self._others_stream and (not self.log_followed or (ids and name in self._by_name)):
            self._notify(messages.Written(name, inserted, ids))

    def acknowledged(self, table: TableId, values: Iterable[object] | None, *, certain: bool) -> None:
        """As Engine's."""
        values = None if values is None else list(values)
        super().acknowledged(table, values, certain=certain)
        self._notify_unless_logged(messages.Acknowledged(table, values))

    def gather_ack(
        self, table: TableId, value: object, epoch: int | None, origin: Origin, answer: Callable[[AckResult], object]
    ) -> bool:
        """As Engine's."""

        def acknowledged(result: AckResult) -> None:
            try:
                if isinstance(result, int) and result:
                    self._notify_unless_logged(messages.Acknowledged(table, [value]))
            finally:
                answer(result)

        return super().gather_ack(table, value, epoch, origin, acknowledged)

    def given_back(self, table: TableId, values: Iterable[object] | None) -> None:
        """As Engine's."""
        super().given_back(table, values)
        self._notify_unless_logged(messages.Written(table.name.casefold()))

    def extended(self, table: TableId, values: Iterable[object] | None) -> None:
        """As Engine's."""
        values = None if values is None else list(values)
        super().extended(table, values)
        self._notify_unless_logged(messages.Extended(table, values))

    def schema_changed(self, name: str | None = None) -> None:
        """As Engine's. The catalog of a worker is not used again either, so this is always sent."""
        super().schema_changed(name)
        self._notify(messages.SchemaChanged(name))

    def released(self, table: TableId) -> None:
        """Messages of a table were released here."""
        self._notify_unless_logged(messages.Written(table.name.casefold()))

    def take(self, notice: CommitNotice) -> None:
        """Take a notice of another worker."""
        match notice:
            case messages.Written(name, inserted, ids):
                super().written(name, inserted=inserted, ids=ids)
            case messages.Acknowledged(table, values):
                super().acknowledged(table, values, certain=False)
            case messages.Extended(table, values):
                super().extended(table, values)
            case messages.SchemaChanged(name):
                super().schema_changed(name)
                for runner in self._by_name.get(name or "", ()):
                    self._executor.spawn(self._describe(runner.queue.id), f"describe {runner.queue.id}")

    async def _describe(self, table: TableId) -> None:
        """Describe a queue now. If that fails, the next refresh of the catalog does it."""
        with suppress(StoreError):
            await self.inspect(table, fresh=True)

    def missed(self) -> None:
        """Anything may have changed."""
        super().schema_changed(None)
        self.changes_logged(None)
        super().written(None)


class SharedStore(MySQLStore):
    """A store that reports releases, which other workers' consumers may wait for."""

    on_released: Callable[[TableId], None] = staticmethod(lambda _: None)

    def release(self, table: QueueTable, returns: Sequence[Return]) -> Timed[int]:
        """As MySQLStore's."""
        released = super().release(table, returns)
        self.on_released(table.id)
        return released
