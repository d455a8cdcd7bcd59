"""The engine's interface for the proxy: finds queues, runs subscriptions, and takes reports of
commits.

engine.runtime.queues keeps the list of queues. Each queue has a runner
(engine.runtime.table_runner). Threads, the clock and tasks are in engine.runtime.executor.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease
from engine.dispatch.limits import Limits
from engine.dispatch.subscribers import Subscription
from engine.dispatch.verification import NOTHING_BEFORE
from engine.keys import all_certain, keys_of
from engine.model import ANYTHING, Entry, Key, RowFormat, Selection, TableId
from engine.queue_table import BrokenTable, IdKind, Policy, QueueTable, SettleColumns
from engine.runtime.executor import Counters, EngineSettings, StoreExecutor
from engine.runtime.follow_up_queues import FollowUpQueues
from engine.runtime.gathered_acks import GatheredAcks, Reports
from engine.runtime.indirect_writes import IndirectWrites, WakeAll
from engine.runtime.queues import Listener, Queues, UnusableQueue
from engine.runtime.roster import RosterWatch
from engine.runtime.semaphore_queues import SemaphoreQueues
from engine.runtime.store_effects import no_queue_text
from engine.runtime.table_runner import Locker, Sink, TableRunner
from engine.store.acks import Ack
from engine.store.port import AckResult, Origin, Roster, Store, StoreError

NO_IDS = range(0)
ACK_KEYS_MAX = 1_000
"""Messages of an ACK that the engine carries out, in some ms of one of its connections. A larger one is carried
out by its client's session."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a subscription."""

    table: TableId
    in_flight: int
    """Messages delivered to it that are not settled and whose leases have not ended."""
    credit: int
    """The number of further messages that may be delivered now."""


class StreamHandle:
    """A running subscription, for its client."""

    def __init__(self, runner: TableRunner, subscriber: int, holder: int) -> None:
        self._runner, self._subscriber, self._holder = runner, subscriber, holder

    @property
    def standing(self) -> Standing | None:
        """Its state. None after its end."""
        dispatcher = self._runner.dispatcher
        subscriber = dispatcher.subscribers.get(self._subscriber)
        if subscriber is None:
            return None
        credit = dispatcher.parts.groups.members_with(subscriber).credit_of(subscriber)
        return Standing(self._runner.queue.id, subscriber.held, credit)

    def pause(self) -> None:
        """The client reads too slowly: deliver nothing for now."""
        self._runner.handle(self._runner.dispatcher.client_paused, self._subscriber)

    def resume(self) -> None:
        """The client reads again."""
        self._runner.handle(self._runner.dispatcher.client_resumed, self._subscriber)

    def revoke(self) -> None:
        """End it because its client lost its rights.

        The sink is not called. The messages of this table that the client's connection holds are
        released, as if the connection had ended.
        """
        self._runner.unsubscribe(self._subscriber)
        self._runner.handle(self._runner.dispatcher.disconnected, self._holder)

    def cancel(self) -> None:
        """End it. Nothing more is delivered, and the sink is not called."""
        self._runner.unsubscribe(self._subscriber)


class Tracer(Protocol):
    """What is reported of messages for tracing. Its methods return at once, and raise nothing."""

    def enqueued(self, table: TableId, ids: range, context: str) -> None:
        """An INSERT with this trace context probably made the messages of these ids. It may not be committed."""

    def delivered(self, queue: QueueTable, leases: Sequence[Lease], now: Instant) -> None:
        """The rows of these leases were passed on."""


class Engine:
    """All message tables of one server."""

    def __init__(self, store: Store, settings: EngineSettings, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._executor = StoreExecutor(store, settings)
        self._executor.on_clock_set = self._clock_set
        self._runners: dict[TableId, TableRunner] = {}
        self._by_name: dict[str, list[TableRunner]] = {}
        """The runners by their tables' bare names, casefolded. Read for every statement that
        writes."""
        self._by_holder: dict[int, set[TableRunner]] = {}
        """The runners that each connection had a stream of. It may hold their messages."""
        self._indirect_writes = IndirectWrites()
        self._wake_all = WakeAll(self._wake_every_table, settings.indirect_scans_per_s)
        self._queues = Queues(
            self._executor, self._indirect_writes, Listener(self._queue_found, self._queue_lost, self._wake_all.request)
        )
        self._roster = RosterWatch(self._executor, self._streamed_queues, self._on_roster)
        self._other_slots: frozenset[int] = frozenset()
        """The slots of the other proxies, when they could be read last."""
        self.slots: frozenset[int] = frozenset()
        """The slots that this proxy has or had on the server: leases may carry them."""
        self._streamed_elsewhere: frozenset[TableId] = frozenset()
        """The queues that another proxy has streamed since there are others: its clients may hold locks."""
        self._streamed_since_s: dict[TableId, float] = {}
        """Since when queues count as streamed here."""
        self._streamed_until_s: dict[TableId, float] = {}
        """Until when queues without streams still count as streamed."""
        self._followed_until_s: dict[TableId, float] = {}
        """The queues whose changes in the binary log are used, and until when if they are idle."""
        self._ids = itertools.count(1)
        self._gathered: dict[TableId, GatheredAcks] = {}
        self._follow_ups = FollowUpQueues()
        self._sharing = SemaphoreQueues()
        self._draining = False
        self.has_streams = True
        """Whether clients may have streams here. If not, other proxies need not know of this one."""
        self._tracer: Tracer | None = None
        self.on_queues: Callable[[], None] = lambda: None
        """Called when the result of `followed_queues` or `slots` may have changed."""

    @property
    def counters(self) -> Counters:
        """Counts since the start, over all tables."""
        return self._executor.counters

    # Life.

    async def start(self) -> None:
        """Read the server's clock and its queues. Raises StoreError when they cannot be read."""
        await self._queues.start()
        if self.has_streams:
            self._roster.start()

    async def drain(self) -> None:
        """End all streams, and release what is not acknowledged. Returns when that is done."""
        self._draining = True
        for runner in self._runners.values():
            runner.drain()
        await asyncio.gather(*(runner.settled_down.wait() for runner in self._runners.values()))

    async def close(self) -> None:
        """Stop at once. Messages in flight come due again when their leases end."""
        self._draining = True
        self._wake_all.cancel()
        for runner in self._runners.values():
            runner.disarm()
        await self._queues.close()
        await self._executor.close()

    # Requests of clients.

    async def queue(self, table: TableId, *, text: bytes | None = None, fresh: bool = False) -> QueueTable:
        """The table as a queue, described again if `fresh` or if the digest `text` is new
        (Queues.inspect).

        Raises UnusableQueue, StoreError.
        """
        return await self._queues.queue(table, text=text, fresh=fresh)

    def known_queue(self, table: TableId, text: bytes) -> QueueTable | None:
        """The table as a queue if the digest `text` is known (Queues.known_by); else None."""
        return self._queues.known_by(table, text)

    async def to_settle(self, table: TableId) -> SettleColumns:
        """The table in the server's spelling, if its messages can be settled, and the columns that
        settling writes.

        Raises UnusableQueue, StoreError.
        """
        return replace(await self._queues.to_settle(table), ack_mark=self.slot)

    def known_to_settle(self, table: TableId) -> SettleColumns | None:
        """What `to_settle` returns, without waiting; None if the table has to be described."""
        columns = self._queues.known_to_settle(table)
        return None if columns is None else replace(columns, ack_mark=self.slot)

    async def inspect(self, table: TableId, *, fresh: bool = False) -> QueueTable | BrokenTable | None:
        """The table as a queue, or its problems; None if it is not marked.

        `fresh`: described now. Raises StoreError.
        """
        return await self._queues.inspect(table, fresh=fresh)

    def stalled_s(self) -> Mapping[TableId | None, float]:
        """For how long a statement of the engine has waited for the server, by the table that it is about (None:
        by none, or several). Only of statements that have waited for some seconds."""
        return self._executor.stalled_s()

    def broken(self) -> Sequence[BrokenTable]:
        """The tables that are marked as queues and cannot be used as such, as they were last described."""
        return self._queues.broken()

    async def limits_problem(self, table: TableId, policy: Policy) -> str | None:
        """Why the limits of a queue with this policy could not be kept over all proxies, apart from its
        indexes; None if they can. Raises StoreError."""
        return await self._executor.call(self._executor.store.limits_problem, table, policy)

    async def begin_change(self, lock: str) -> bool:
        """Begin a change that excludes those with the same lock, at all proxies with the same account. False:
        one is under way. Raises StoreError."""
        beginning = asyncio.ensure_future(self._executor.call_apart(self._executor.store.begin_change, lock))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:  # The call goes on, and the change may begin.
            beginning.add_done_callback(partial(self._end_abandoned, lock))
            raise

    def _end_abandoned(self, lock: str, beginning: asyncio.Future[bool]) -> None:
        if not beginning.cancelled() and beginning.exception() is None and beginning.result():
            self._executor.spawn(self.end_change(lock), "the end of a change")

    async def end_change(self, lock: str) -> None:
        """End a change that has begun. Raises StoreError; it has ended all the same."""
        await self._executor.call_apart(self._executor.store.end_change, lock)

    async def refresh_catalog(self) -> None:
        """Read the whole catalog now. Raises StoreError."""
        await self._queues.refresh()

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
        locker: Locker | None = None,
    ) -> StreamHandle:
        """Begin to deliver messages to `sink`, held by the connection `holder`.

        With `locker`, nothing is claimed: it is called to lock messages in the client's transaction
        and send their rows, and `sink` is called only for the end. No row is delivered before this
        returns. Raises UnusableQueue if the table is not a queue any more.
        """
        runner = self._runners.get(queue.id)
        if runner is None:
            raise UnusableQueue(no_queue_text(queue.id))
        subscriber = next(self._ids)
        self._by_holder.setdefault(holder, set()).add(runner)
        spec = Subscription(
            subscriber, holder, row_format, limit, prefetch, first_wait_ns, selection, locker is not None
        )
        if queue.id not in self._streamed_until_s:
            self._roster.queue_streamed()
        runner.subscribe(spec, sink, locker)
        if queue.id not in self._followed_until_s:
            self.on_queues()
        return StreamHandle(runner, subscriber, holder)

    async def read(self, text: str) -> tuple[Sequence[Sequence[str | None]], int]:
        """The rows of a statement that only reads, by the engine's account, whose values are ASCII;
        and the server's clock. Raises StoreError."""
        rows = await self._executor.call(self._executor.store.read, text)
        return rows, self._executor.clock.now().server_ns

    async def ping(self) -> None:
        """Run a trivial statement on the server. Raises StoreError."""
        await self._executor.call(self._executor.store.ping)

    async def kill(self, connection_id: int, origin: Origin) -> bool:
        """End a client's connection to the server, and its statement.

        Returns False, and does nothing, if the engine is connected to another server. Raises
        StoreError.
        """
        return await self._executor.call(self._executor.store.kill, connection_id, origin)

    def disconnected(self, holder: int) -> None:
        """A client connection has ended: release the messages that it holds."""
        for runner in self._by_holder.pop(holder, ()):
            runner.handle(runner.dispatcher.disconnected, holder)

    def holds(self, holder: int) -> bool:
        """Whether a client connection has messages in flight."""
        runners = self._by_holder.get(holder, ())
        return any(runner.dispatcher.parts.leases.held_by(holder) for runner in runners)

    def transaction_ended(self, holder: int, *, failed: bool) -> None:
        """The transaction of a connection has ended in which it had messages locked. `failed`: it
        was certainly rolled back. Its acknowledgements are reported before."""
        for runner in self._by_holder.get(holder, ()):
            runner.transaction_ended(holder, failed=failed)

    def acknowledged(
        self, table: TableId, values: Iterable[object] | None, *, certain: bool = False, holder: int | None = None
    ) -> None:
        """Messages with these ids (None: unknown ids) were acknowledged, or may have been unless
        `certain`.

        Numbers are int or Decimal, strings bytes. `certain`: a committed UPDATE of a table of this name,
        by these ids alone, changed as many rows. That is believed of messages that the connection
        `holder` has: only to itself could it show another table of this name. Any others are looked
        up. Whether each id equals one key only depends on the type of the column, and is checked here.
        """
        if runner := self._runners.get(table):
            name = table.name.casefold()
            values = None if values is None else list(values)
            keys = _keys(runner, values)
            if (
                keys is not None
                and certain
                and not self._indirect_writes.may_have_trigger(name)
                and all_certain(runner.queue.id_kind, values or ())
            ):
                held = [lease.key for lease in runner.dispatcher.parts.leases.among(keys) if lease.holder == holder]
                runner.settled(held)
                keys = list(set(keys).difference(held))
            if keys is None or keys:
                runner.handle(runner.dispatcher.suspected, keys)
                self._parts_over(table, keys)
            self._note_indirect_write(name)

    def carry_out_ack(
        self,
        table: TableId,
        values: Sequence[object],
        epoch: int | None,
        origin: Origin,
        answer: Callable[[AckResult], object],
    ) -> bool:
        """Carry out an ACK by ids, outside transactions, on the engine's connection. `epoch`: of a condition
        with one.

        The client's session has shown that it may do this on the server `origin`. The loop calls
        `answer` with the affected rows once they are committed and the dispatcher is notified; with
        AckUnknownError; with None if nothing was done, and the ACK has to run in the client's
        session. Returns False if nothing is carried out: then `answer` is not called.
        """
        runner = self._runners.get(table)
        if runner is None or self._draining or not self.may_carry_out_acks(table) or len(values) > ACK_KEYS_MAX:
            return False
        queue = runner.queue
        keys = keys_of(queue.id_kind, values) if all_certain(queue.id_kind, values) else None
        if not keys:
            return False
        if (gathered := self._gathered.get(table)) is None:
            gathered = self._gathered[table] = GatheredAcks(self._executor, Reports(runner.settled, runner.suspected))
        return gathered.carry_out(queue, Ack(tuple(dict.fromkeys(keys)), epoch), origin, answer)

    def may_carry_out_acks(self, table: TableId) -> bool:
        """Whether an ACK of this queue does the same on the engine's connection as in any session: no trigger
        runs, and no value is computed."""
        runner = self._runners.get(table)
        may_have_trigger = self._indirect_writes.may_have_trigger(table.name.casefold())
        return runner is not None and runner.queue.writes_alike and not may_have_trigger

    def given_back(self, table: TableId, values: Iterable[object] | None) -> None:
        """Messages with these ids (None: unknown ids) may have been given back by their
        consumer."""
        self.acknowledged(table, values, certain=False)

    def extended(self, table: TableId, values: Iterable[object] | None) -> None:
        """The leases of messages with these ids (None: unknown ids) may have been extended."""
        if runner := self._runners.get(table):
            runner.handle(partial(runner.dispatcher.suspected, extended=True), _keys(runner, values))
            self._note_indirect_write(table.name.casefold())

    def trace(self, tracer: Tracer | None) -> None:
        """Report deliveries, and INSERTs with a trace context, to this tracer from now on; None: to nobody."""
        self._tracer = tracer
        for runner in self._runners.values():
            self._trace(runner)

    def _trace(self, runner: TableRunner) -> None:
        if (tracer := self._tracer) is None:
            runner.measures.on_sent = None
        else:
            runner.measures.on_sent = lambda leases, now: tracer.delivered(runner.queue, leases, now)

    async def unlocked(self, table: TableId, keys: tuple[Key, ...], *, unscanned: bool) -> tuple[Key, ...]:
        """Those of the messages that a session may try to lock: all of them, or, if no scan has shown some
        (`unscanned`) or clients of other proxies may have locked some, those that are due and that no other
        transaction has locked just now. None of them if the server does not answer."""
        runner = self._runners.get(table)
        if runner is None or not (unscanned or self._others_may_lock(table)):
            return keys
        store, queue = self._executor.store, runner.queue
        try:
            begun = self._executor.begin(store.begin_unlocked, store.unlocked, queue, keys)
            found = await (self._executor.call(store.unlocked, queue, keys) if begun is None else begun())
        except StoreError as error:
            self._executor.report(f"lookup of {table}", error)
            return ()
        return tuple(key for key in keys if key in found)

    def _others_may_lock(self, table: TableId) -> bool:
        roster = self._roster.found
        if roster.slot is None or table in self._streamed_elsewhere:
            return True
        now_s = asyncio.get_running_loop().time()
        since_s = self._streamed_since_s.get(table, now_s)
        return bool(roster.others) and now_s < since_s + self._executor.settings.former_locks_s

    def traced(self, name: str, ids: range, context: str) -> None:
        """A statement with this trace context inserted rows with these ids into a table of this bare name, as
        the server's answer shows. Of two queues of one name, neither is meant."""
        runners = self._by_name.get(name, ())
        if self._tracer is not None and ids and len(runners) == 1 and runners[0].queue.id_kind is IdKind.INTEGER:
            self._tracer.enqueued(runners[0].queue.id, ids, context)

    def written(self, name: str | None, *, inserted: bool = False, ids: range = NO_IDS) -> None:
        """A commit touched a table of this bare name (None: any table).

        `inserted`: it only inserted rows, in a transaction that was not open for long. `ids`: their
        ids, as far as they follow from the server's answer.
        """
        if name is None:
            self._wake_all.request()
            return
        runners = tuple(self._by_name.get(name, ()))
        for runner in runners:
            if ids and len(runners) == 1 and runner.queue.id_grows and runner.queue.id_kind is IdKind.INTEGER:
                runner.inserted(ids)
            else:
                runner.woken(anywhere=not inserted)
                if not inserted:
                    self._parts_over(runner.queue.id, None)
        self._note_indirect_write(name)

    def _note_indirect_write(self, name: str) -> None:
        if self._indirect_writes.written(name):
            self._wake_all.request()

    def _wake_every_table(self) -> int:
        runners = list(self._runners.values())
        for runner in runners:
            runner.woken(anywhere=True)
        return sum(bool(runner.dispatcher.subscribers) for runner in runners)

    def changes_logged(
        self,
        table: TableId | None,
        seen: Sequence[Entry] = (),
        over: Sequence[Key] = (),
        before: Mapping[Key, tuple[int, int]] = NOTHING_BEFORE,
    ) -> None:
        """The binary log contains changes of a table (None: of any table).

        `seen`: messages as they now are. `over`: ids of messages that are settled or deleted.
        Without both, any message may have changed. `before`: epoch and time_next before a change.
        """
        if table is not None:
            runner = self._runners.get(table)
            runners = [] if runner is None else [runner]
        else:
            runners = list(self._runners.values())
        for runner in runners:
            known = [_with_own_group(entry, runner.queue) for entry in seen]
            runner.handle(runner.dispatcher.changes_logged, known, over, before)
            if over or not seen:
                self._parts_over(runner.queue.id, over or None)
            back = [entry.key for entry in seen if (was := before.get(entry.key)) and entry.epoch <= was[0]]
            if back:
                self._semaphores_freed(runner.queue.id, back)

    def _parts_over(self, table: TableId, keys: Collection[Key] | None) -> None:
        """These messages (None: any) were acknowledged or deleted, or may have been: follow-ups of their
        batches may fire, and their semaphores may have places."""
        self._semaphores_freed(table, keys)
        for follow_ups in self._follow_ups.of_parts(table):
            if runner := self._runners.get(follow_ups):
                runner.handle(runner.dispatcher.parts_over, table, keys)

    def _semaphores_freed(self, table: TableId, keys: Collection[Key] | None) -> None:
        """The deliveries of these messages (None: any) are over, or may be."""
        for other in self._sharing.others(table):
            if runner := self._runners.get(other):
                runner.handle(runner.dispatcher.semaphores_freed, table, keys)

    def semaphores_changed(self, db: str) -> None:
        """Semaphores of a database were created, changed or dropped."""
        for table in self._sharing.of_database(db):
            if runner := self._runners.get(table):
                runner.handle(runner.dispatcher.semaphores_freed, None, None)

    def _clock_set(self) -> None:
        for runner in list(self._runners.values()):
            runner.handle(runner.dispatcher.tick)

    def _on_dead_letters_moved(self, table: TableId) -> None:
        self.written(table.name.casefold())

    def server_changed(self) -> None:
        """Another server is the primary: nothing that was read from the one before holds any more.

        Each queue goes on with a new dispatcher and the same streams. What was in flight comes due
        again when its wait is over, unless the roster shows before that nobody holds it. The store
        uses the other server already.
        """
        self._other_slots = frozenset()
        self._roster.server_changed()
        for runner in list(self._runners.values()):
            runner.server_changed()
        self._queues.server_changed()

    def server_returned(self) -> None:
        """The server can be used again after a time in which none could."""
        self._queues.refresh_soon()
        self.changes_logged(None)
        self._wake_all.request()

    def schema_changed(self, name: str | None = None) -> None:
        """A table of this bare name, casefolded (None: any table), may have been created, altered
        or dropped."""
        self._queues.schema_changed(name)

    def schema_logged(self) -> None:
        """The binary log contains a table that was created, altered or dropped."""
        self._queues.refresh_soon()

    def runners(self) -> Iterable[tuple[QueueTable, Dispatcher]]:
        """All queues and their dispatchers, for reading."""
        return [(runner.queue, runner.dispatcher) for runner in self._runners.values()]

    def followed_queues(self) -> list[QueueTable]:
        """The queues whose changes in the binary log are used. A queue without streams and messages in
        flight here is not among them, unless other queues or dead letters depend on it: whoever
        streams it begins with a scan. A bulk load into it then costs no time here."""
        now_s = asyncio.get_running_loop().time()
        until_s = now_s + self._executor.settings.idle_followed_s
        found = {
            table: until_s if _is_used(runner) else self._followed_until_s.get(table, 0.0)
            for table, runner in self._runners.items()
        }
        self._followed_until_s = {table: until_s for table, until_s in found.items() if until_s > now_s}
        return [self._runners[table].queue for table in self._followed_until_s]

    # Other proxies.

    @property
    def slot(self) -> int:
        """This proxy's slot on the server; 0: it has none."""
        return self._roster.found.slot or 0

    @property
    def roster(self) -> Roster:
        """What is known of the other proxies on the server."""
        return self._roster.found

    def _streamed_queues(self) -> list[TableId]:
        """The queues that this proxy shares with others: those with streams, now or a moment ago."""
        now_s, kept_s = asyncio.get_running_loop().time(), self._executor.settings.roster_streams_kept_s
        for table, runner in self._runners.items():
            if runner.dispatcher.subscribers and runner.queue.is_shareable:
                self._streamed_until_s[table] = now_s + kept_s
        self._streamed_until_s = {
            table: until_s
            for table, until_s in self._streamed_until_s.items()
            if until_s > now_s and table in self._runners
        }
        self._streamed_since_s = {table: self._streamed_since_s.get(table, now_s) for table in self._streamed_until_s}
        return list(self._streamed_until_s)

    def _on_roster(self, roster: Roster) -> None:
        lost = roster.slot is not None and bool(self._other_slots - roster.others)
        if roster.slot is not None:
            self._other_slots = roster.others
            self.slots |= {roster.slot}
            self._streamed_elsewhere |= roster.partners.keys()
            if not roster.others:
                self._streamed_elsewhere = frozenset()
        self.on_queues()
        for table, runner in list(self._runners.items()):
            runner.set_slot(roster.slot or 0)
            runner.set_share(roster.share_of(table) if table in self._streamed_until_s else None)
            if lost:
                runner.handle(runner.dispatcher.proxy_lost)

    # Notifications of the catalog.

    def _queue_found(self, queue: QueueTable) -> None:
        self._follow_ups.queue_found(queue)
        self._sharing.queue_found(queue)
        if runner := self._runners.get(queue.id):
            runner.reconfigure(queue)
            self.on_queues()
            return
        on_over = partial(self._parts_over, queue.id)
        on_released = partial(self._semaphores_freed, queue.id)
        on_distrust = partial(self._queues.distrust, queue.id)
        on_moved = self._on_dead_letters_moved
        may_have_trigger = partial(self._indirect_writes.may_have_trigger, queue.id.name.casefold())
        runner = TableRunner(
            self._executor, queue, self._limits, on_distrust, on_moved, on_over, on_released, may_have_trigger
        )
        runner.set_slot(self._roster.found.slot or 0)
        if self._tracer is not None:
            self._trace(runner)
        self._runners[queue.id] = runner
        self._by_name.setdefault(queue.id.name.casefold(), []).append(runner)
        self.on_queues()
        if self._draining:
            runner.drain()

    def _queue_lost(self, table: TableId, text: str) -> None:
        runner = self._runners.pop(table)
        self._gathered.pop(table, None)
        self._follow_ups.queue_lost(table)
        self._sharing.queue_lost(table)
        self._semaphores_freed(table, None)
        name = table.name.casefold()
        self._by_name[name].remove(runner)
        if not self._by_name[name]:
            del self._by_name[name]
        self.on_queues()
        runner.retire(text)


def _is_used(runner: TableRunner) -> bool:
    """Whether the dispatcher of a queue uses its changes in the binary log."""
    dispatcher, queue = runner.dispatcher, runner.queue
    in_use = bool(dispatcher.subscribers or dispatcher.taken or dispatcher.unreleased)
    return in_use or not queue.stands_alone or queue.dead_letter is not None


def _with_own_group(entry: Entry, queue: QueueTable) -> Entry:
    """The entry, without a message group that was read for other group columns than the queue has now."""
    return entry if entry.group is None or queue.may_have_group(entry.group) else entry._replace(group=None)


def _keys(runner: TableRunner, values: Iterable[object] | None) -> list[Key] | None:
    """The keys of these values. None if the values are unknown or one of them has no key."""
    return None if values is None else keys_of(runner.queue.id_kind, list(values))
