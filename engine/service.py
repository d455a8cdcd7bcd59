"""The engine as its users see it: queues are looked up, subscribed to, and told what was committed.

Which tables are queues is kept by engine.runtime.queues. Each queue has a runner
(engine.runtime.table_runner). Threads, the clock and tasks are in engine.runtime.executor.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.limits import Limits
from engine.dispatch.subscribers import Subscription
from engine.keys import certain as certain_key
from engine.keys import key_of
from engine.model import ANYTHING, BrokenTable, Entry, Key, QueueTable, RowFormat, Selection, TableId
from engine.runtime.executor import Counters, EngineSettings, StoreExecutor
from engine.runtime.indirect_writes import IndirectWrites, WakeAll
from engine.runtime.queues import Listener, Queues, UnusableQueue
from engine.runtime.table_runner import Sink, TableRunner, no_queue_text
from engine.store.port import Origin, Store


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a subscription stands."""

    table: TableId
    in_flight: int
    """Messages given to it that are not over."""
    credit: int
    """How many more it could be given now."""


class StreamHandle:
    """A running subscription, for its client."""

    def __init__(self, runner: TableRunner, subscriber: int, holder: int) -> None:
        self._runner, self._subscriber, self._holder = runner, subscriber, holder

    @property
    def standing(self) -> Standing | None:
        """Where it stands; None when it has ended."""
        subscriber = self._runner.dispatcher.subscribers.get(self._subscriber)
        if subscriber is None:
            return None
        queue = self._runner.queue
        return Standing(queue.id, subscriber.held, subscriber.credit(queue.policy.batch_size))

    def pause(self) -> None:
        """The client reads too slowly: deliver nothing for now."""
        self._runner.handle(self._runner.dispatcher.client_paused, self._subscriber)

    def resume(self) -> None:
        """The client reads again."""
        self._runner.handle(self._runner.dispatcher.client_resumed, self._subscriber)

    def revoke(self) -> None:
        """End it because its client may not have the messages any more: the sink is told nothing,
        and what the client's connection holds of this table is given back, as if it were gone."""
        self._runner.unsubscribe(self._subscriber)
        self._runner.handle(self._runner.dispatcher.disconnected, self._holder)

    def cancel(self) -> None:
        """End it: nothing is delivered any more, and the sink is told nothing."""
        self._runner.unsubscribe(self._subscriber)


class Engine:
    """All message tables of one server."""

    def __init__(self, store: Store, settings: EngineSettings, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._executor = StoreExecutor(store, settings)
        self._executor.on_clock_set = self._clock_set
        self._runners: dict[TableId, TableRunner] = {}
        self._by_name: dict[str, list[TableRunner]] = {}
        """The same by their bare names, casefolded: looked into for every statement that writes."""
        self._by_holder: dict[int, set[TableRunner]] = {}
        """The queues that each connection has streamed from: it may hold messages of theirs."""
        self._indirect_writes = IndirectWrites()
        self._wake_all = WakeAll(self._wake_every_table, settings.blind_scans_per_s)
        self._queues = Queues(
            self._executor, self._indirect_writes, Listener(self._queue_found, self._queue_lost, self._wake_all.request)
        )
        self._ids = itertools.count(1)
        self._draining = False
        self.on_queues: Callable[[], None] = lambda: None
        """Called when there is another queue, or one less."""

    @property
    def counters(self) -> Counters:
        """What happened since the start, over all tables."""
        return self._executor.counters

    # Life.

    async def start(self) -> None:
        """Learn the server's clock and its queues; raises StoreError when the server cannot be
        asked."""
        await self._queues.start()

    async def drain(self) -> None:
        """End all streams, give back what is not acknowledged, and return when that is done."""
        self._draining = True
        for runner in self._runners.values():
            runner.drain()
        await asyncio.gather(*(runner.settled_down.wait() for runner in self._runners.values()))

    async def close(self) -> None:
        """Stop at once; what was handed out and not released comes due again by itself."""
        self._draining = True
        self._wake_all.cancel()
        for runner in self._runners.values():
            runner.disarm()
        await self._queues.close()
        await self._executor.close()

    # What clients do.

    async def queue(self, table: TableId, *, text: bytes | None = None, fresh: bool = False) -> QueueTable:
        """See Queues."""
        return await self._queues.queue(table, text=text, fresh=fresh)

    async def to_settle(self, table: TableId) -> TableId:
        """See Queues."""
        return await self._queues.to_settle(table)

    async def inspect(self, table: TableId, *, fresh: bool = False) -> QueueTable | BrokenTable | None:
        """See Queues."""
        return await self._queues.inspect(table, fresh=fresh)

    def subscribe(
        self,
        queue: QueueTable,
        sink: Sink,
        *,
        holder: int,
        row_format: RowFormat,
        limit: int | None = None,
        prefetch: int | None = None,
        first_wait_ns: int | None = None,
        selection: Selection = ANYTHING,
    ) -> StreamHandle:
        """Begin to deliver messages to `sink`, on behalf of the connection `holder`; its first row
        cannot come before this returns. Raises UnusableQueue when the table ceased to be a queue
        since it was looked at."""
        runner = self._runners.get(queue.id)
        if runner is None:
            raise UnusableQueue(no_queue_text(queue.id))
        subscriber = next(self._ids)
        self._by_holder.setdefault(holder, set()).add(runner)
        spec = Subscription(subscriber, holder, row_format, limit, prefetch, first_wait_ns, selection)
        runner.subscribe(spec, sink)
        return StreamHandle(runner, subscriber, holder)

    async def ping(self) -> None:
        """Ask the server something trivial; raises StoreError. It takes as long as the server
        takes."""
        await self._executor.call(self._executor.store.ping)

    async def kill(self, connection_id: int, origin: Origin) -> bool:
        """End a client's connection to the server and what it is doing; False, with nothing done,
        when the engine is not connected to that very server. Raises StoreError."""
        return await self._executor.call(self._executor.store.kill, connection_id, origin)

    def disconnected(self, holder: int) -> None:
        """A client connection is gone."""
        for runner in self._by_holder.pop(holder, ()):
            runner.handle(runner.dispatcher.disconnected, holder)

    def acknowledged(self, table: TableId, values: Iterable[object] | None, *, certain: bool) -> None:
        """Messages with these ids (None: unknown ones) were acknowledged, or, not `certain`, may
        have been. Numbers are int or Decimal, strings bytes.

        `certain`: a committed UPDATE of this very table, by these ids and nothing that stands for
        others as well, has changed as many rows. Whether the ids do that depends on their type, and
        is looked at here.
        """
        if runner := self._runners.get(table):
            name = table.name.casefold()
            values = None if values is None else list(values)
            keys = _keys(runner, values)
            if (
                keys is not None
                and certain
                and not self._indirect_writes.may_have_trigger(name)
                and _certain(runner, values or ())
            ):
                runner.handle(runner.dispatcher.settled, keys)
            else:
                runner.handle(runner.dispatcher.suspected, keys)
            self._note_indirect_write(name)

    def given_back(self, table: TableId, values: Iterable[object] | None) -> None:
        """Messages with these ids (None: unknown ones) may have been given back."""
        self.acknowledged(table, values, certain=False)

    def extended(self, table: TableId, values: Iterable[object] | None) -> None:
        """The holders of messages with these ids (None: of unknown ones) may have been given more
        time."""
        if runner := self._runners.get(table):
            runner.handle(partial(runner.dispatcher.suspected, extended=True), _keys(runner, values))
            self._note_indirect_write(table.name.casefold())

    def written(self, name: str | None, *, inserted: bool = False) -> None:
        """Something was committed that touched a table of this bare name (None: any table);
        `inserted`: rows that are new, by a transaction that was not open for long, and nothing
        else."""
        if name is None:
            self._wake_all.request()
            return
        for runner in tuple(self._by_name.get(name, ())):
            runner.handle(partial(runner.dispatcher.woken, anywhere=not inserted))
        self._note_indirect_write(name)

    def _note_indirect_write(self, name: str) -> None:
        if self._indirect_writes.written(name):
            self._wake_all.request()

    def _wake_every_table(self) -> int:
        runners = list(self._runners.values())
        for runner in runners:
            runner.handle(partial(runner.dispatcher.woken, anywhere=True))
        return sum(bool(runner.dispatcher.subscribers) for runner in runners)

    def changes_logged(self, table: TableId | None, seen: Sequence[Entry] = (), over: Sequence[Key] = ()) -> None:
        """The server's log tells what messages of a table became; none named: any of it (None: of
        any table) may have changed."""
        if table is not None:
            runner = self._runners.get(table)
            runners = [] if runner is None else [runner]
        else:
            runners = list(self._runners.values())
        for runner in runners:
            runner.handle(runner.dispatcher.changes_logged, seen, over)

    def _clock_set(self) -> None:
        for runner in list(self._runners.values()):
            runner.handle(runner.dispatcher.tick)

    def _on_dead_letters_moved(self, table: TableId) -> None:
        self.written(table.name.casefold())

    def schema_changed(self, name: str | None = None) -> None:
        """See Queues."""
        self._queues.schema_changed(name)

    def schema_logged(self) -> None:
        """The server's log tells that some table was created, altered or dropped."""
        self._queues.refresh_soon()

    def runners(self) -> Iterable[tuple[QueueTable, Dispatcher]]:
        """All queues and their dispatchers, for reading."""
        return [(each.queue, each.dispatcher) for each in self._runners.values()]

    # The catalog's news.

    def _queue_found(self, queue: QueueTable) -> None:
        if runner := self._runners.get(queue.id):
            runner.reconfigure(queue)
            return
        on_distrust = partial(self._queues.distrust, queue.id)
        runner = TableRunner(self._executor, queue, self._limits, on_distrust, self._on_dead_letters_moved)
        self._runners[queue.id] = runner
        self._by_name.setdefault(queue.id.name.casefold(), []).append(runner)
        self.on_queues()
        if self._draining:
            runner.drain()

    def _queue_lost(self, table: TableId, text: str) -> None:
        runner = self._runners.pop(table)
        name = table.name.casefold()
        self._by_name[name].remove(runner)
        if not self._by_name[name]:
            del self._by_name[name]
        self.on_queues()
        runner.retire(text)


def _keys(runner: TableRunner, values: Iterable[object] | None) -> list[Key] | None:
    """The keys, None when they are not known, as when one of the values cannot be understood."""
    if values is None:
        return None
    kind = runner.queue.id_kind
    keys: list[Key] = []
    for value in values:
        key = key_of(kind, value)
        if key is None:
            return None
        keys.append(key)
    return keys


def _certain(runner: TableRunner, values: Iterable[object]) -> bool:
    kind = runner.queue.id_kind
    return all(certain_key(kind, value) for value in values)
