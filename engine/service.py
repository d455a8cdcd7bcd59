"""The engine's shell: one dispatcher a table, a store behind it, and the clock and threads that they need.

Everything here runs on the event loop's thread, except the store's calls, which go to a bounded set of threads. A
happening is handed to a table's dispatcher, its effects are carried out, and their answers are the next happenings;
no state is touched anywhere else, so there are no locks.

The catalog part knows which tables are queues. Any statement that may have changed a table makes what is known stale
at once (`schema_changed`), and what is stale is read again before it is used; a periodic look finds what was changed
behind the proxy's back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, assert_never

from engine.clock import ServerClock
from engine.dispatcher import Dispatcher, Effects, Limits
from engine.effects import Cause, Claim, Deliver, Effect, End, Fetch, Lookup, Purge, Release, Scan
from engine.keys import key_of
from engine.model import BrokenTable, QueueTable, RowFormat, TableId
from engine.store import Store, StoreError, Timed
from engine.subscribers import Subscription

log = logging.getLogger(__name__)

T = TypeVar("T")

Asked = Scan | Claim | Fetch | Lookup | Release | Purge
"""The effects that the store carries out."""


class UnusableQueue(Exception):
    """The table cannot be streamed from or acknowledged in; the text says why and what to do."""


class Sink(Protocol):
    """Where a subscriber's messages go. Both methods return at once."""

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        """Row payloads in the subscriber's format, claimed and committed."""

    def end(self, cause: Cause, text: str) -> None:
        """Nothing comes after this."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The shell's own bounds."""

    threads: int = 8
    """Store calls under way at once, over all tables; each has a connection of its own to the server."""
    fetch_budget_bytes: int = 4 << 20
    """Row data held for one fetch; one row may exceed it."""
    catalog_interval_s: float = 10.0
    """How soon a table that was created or altered behind the proxy's back is noticed."""
    catalog_tables_max: int = 10_000
    """Tables remembered as not being queues; beyond that they are forgotten and asked for again."""


@dataclass(slots=True)
class Counters:
    """What happened since the start, over all tables."""

    delivered: int = 0
    redelivered: int = 0
    claims: int = 0
    claimed: int = 0
    scans: int = 0
    scanned: int = 0
    released: int = 0
    purged: int = 0
    store_errors: int = 0


@dataclass(slots=True)
class _Known:
    """What a look at one table said, and in which generation of the schema."""

    found: QueueTable | BrokenTable | None
    generation: int


class StreamHandle:
    """A running subscription, for its client."""

    def __init__(self, runner: _TableRunner, subscriber: int) -> None:
        self._runner, self._subscriber = runner, subscriber

    def pause(self) -> None:
        """The client reads too slowly: deliver nothing for now."""
        self._runner.happen(self._runner.dispatcher.paused, self._subscriber)

    def resume(self) -> None:
        """The client reads again."""
        self._runner.happen(self._runner.dispatcher.resumed, self._subscriber)

    def cancel(self) -> None:
        """End it: nothing is delivered any more, and the sink is told nothing."""
        self._runner.sinks.pop(self._subscriber, None)
        self._runner.happen(self._runner.dispatcher.unsubscribe, self._subscriber)


class Engine:
    """All message tables of one server."""

    def __init__(self, store: Store, settings: EngineSettings, limits: Limits | None = None) -> None:
        self.settings = settings
        self.counters = Counters()
        self.clock = ServerClock(time.monotonic_ns)
        self._limits = limits or Limits()
        self._store = store
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="store")
        self._runners: dict[TableId, _TableRunner] = {}
        self._known: dict[TableId, _Known] = {}
        self._generation = 0
        self._look_again = asyncio.Event()
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    # Life.

    async def start(self) -> None:
        """Learn the server's clock and its queues; raises StoreError when the server cannot be asked."""
        await self._look_at_all()
        self.spawn(self._watch_catalog(), "catalog")

    async def drain(self) -> None:
        """End all streams, give back what is not acknowledged, and return when that is done."""
        self._draining = True
        for runner in self._runners.values():
            runner.happen(runner.dispatcher.drain)
        await asyncio.gather(*(runner.settled_down.wait() for runner in self._runners.values()))

    async def close(self) -> None:
        """Stop at once; what was handed out and not released comes due again by itself."""
        self._draining = True
        for runner in self._runners.values():
            runner.disarm()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    # What clients do.

    async def queue(self, table: TableId, *, fresh: bool = False) -> QueueTable:
        """The table as a queue, as it is now (`fresh`) or was when nobody had changed it; raises
        UnusableQueue, StoreError."""
        known = self._known.get(table)
        if known is None or known.generation != self._generation or fresh:
            known = await self._look_at(table)
        match known.found:
            case QueueTable() as queue:
                return queue
            case BrokenTable() as broken:
                raise UnusableQueue(str(broken))
            case _:
                raise UnusableQueue(
                    f"Table '{table}' is not a message table: its COMMENT does not hold the word vitess_message"
                )

    def subscribe(
        self,
        queue: QueueTable,
        sink: Sink,
        *,
        holder: int,
        row_format: RowFormat,
        limit: int | None = None,
        prefetch: int | None = None,
        patience_ns: int | None = None,
    ) -> StreamHandle:
        """Begin to deliver messages to `sink`, on behalf of the connection `holder`; its first row cannot come before
        this returns. Raises UnusableQueue when the table ceased to be a queue since it was looked at."""
        runner = self._runners.get(queue.id)
        if runner is None:
            raise UnusableQueue(f"Table '{queue.id}' is no message table any more")
        subscriber = next(self._ids)
        runner.sinks[subscriber] = sink
        spec = Subscription(subscriber, holder, row_format, limit, prefetch, patience_ns)
        runner.happen(runner.dispatcher.subscribe, spec)
        return StreamHandle(runner, subscriber)

    def disconnected(self, holder: int) -> None:
        """A client connection is gone."""
        for runner in list(self._runners.values()):
            runner.happen(runner.dispatcher.disconnected, holder)

    def acknowledged(self, table: TableId, values: Iterable[object] | None, *, certain: bool) -> None:
        """Messages with these ids (None: unknown ones) were acknowledged, or, not `certain`, may have been."""
        runner = self._runners.get(table)
        if runner is None:
            return
        keys = None if values is None else [key for each in values if (key := key_of(runner.queue.id_kind, each))]
        if certain and keys is not None:
            runner.happen(runner.dispatcher.settled, keys)
        else:
            runner.happen(runner.dispatcher.doubted, keys)

    def written(self, name: str | None) -> None:
        """Something was committed that touched a table of this bare name (None: any table)."""
        for runner in list(self._runners.values()):
            if name is None or runner.queue.id.name.casefold() == name:
                runner.happen(runner.dispatcher.woken)

    def schema_changed(self) -> None:
        """Some table may have been created, altered or dropped."""
        self._generation += 1
        self._look_again.set()

    def runners(self) -> Iterable[tuple[QueueTable, Dispatcher]]:
        """All queues and their dispatchers, for reading."""
        return [(each.queue, each.dispatcher) for each in self._runners.values()]

    # The store, off the loop.

    async def call(self, method: Callable[..., Timed[T]], *args: Any) -> T:
        """One call of the store on a thread of its own; its answer sets the clock. Raises StoreError."""

        def timed() -> tuple[int, Timed[T]]:
            answer = method(*args)
            return time.monotonic_ns(), answer

        try:
            received_ns, answer = await asyncio.get_running_loop().run_in_executor(self._threads, timed)
        except StoreError:
            self.counters.store_errors += 1
            raise
        self.clock.observe(received_ns, answer.now_ns)
        return answer.value

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run in the background, kept from the garbage collector; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s", task.get_name(), error, exc_info=error)

    # The catalog.

    async def _look_at(self, table: TableId) -> _Known:
        generation = self._generation
        known = _Known(await self.call(self._store.describe, table), generation)
        if known.found is not None:
            table = known.found.id  # In the server's spelling.
        before = self._known.get(table)
        if before is None or before.generation <= generation:
            self._adopt(table, known)
        return known

    def _adopt(self, table: TableId, known: _Known) -> None:
        if len(self._known) >= self.settings.catalog_tables_max:
            self._known = {each: self._known[each] for each in self._runners if each in self._known}
        before = self._known.get(table)
        self._known[table] = known
        runner = self._runners.get(table)
        match known.found:
            case QueueTable() as queue if runner is None:
                log.info("queue %s: %s", table, "; ".join(_remarks(queue)) or "ready")
                self._runners[table] = _TableRunner(self, self._store, queue, self._limits)
                if self._draining:
                    self._runners[table].happen(self._runners[table].dispatcher.drain)
            case QueueTable() as queue if runner is not None:
                runner.reconfigure(queue)
            case found:
                if isinstance(found, BrokenTable) and (before is None or before.found != found):
                    log.warning("%s", found)
                if runner is not None:
                    del self._runners[table]
                    runner.retire(str(found) if found else f"Table '{table}' is no message table any more")

    async def _look_at_all(self) -> None:
        tables = await self.call(self._store.discover)
        for table in {*tables, *self._runners}:
            await self._look_at(table)

    async def _watch_catalog(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.settings.catalog_interval_s):
                    await self._look_again.wait()
            except TimeoutError:
                pass
            self._look_again.clear()
            try:
                await self._look_at_all()
            except StoreError as error:
                log.warning("cannot look for message tables: %s", error)


class _TableRunner:
    """One table's dispatcher, and the carrying out of its effects."""

    def __init__(self, engine: Engine, store: Store, queue: QueueTable, limits: Limits) -> None:
        self.queue = queue
        self.sinks: dict[int, Sink] = {}
        self.settled_down = asyncio.Event()
        self._engine = engine
        self._store = store
        self._timer: asyncio.TimerHandle | None = None
        self._effects: deque[Effect] = deque()
        self._performing = False
        self._retired = False
        self.dispatcher = Dispatcher(queue.policy, limits, random.random, engine.clock.now_ns())
        self.happen(self.dispatcher.tick)

    def happen(self, happening: Callable[..., Effects], *args: Any) -> None:
        """Tell the dispatcher, and carry out what follows. A sink may make something happen in turn: that
        waits its turn."""
        self._effects.extend(happening(self._engine.clock.now_ns(), *args))
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._performing = False
        self._rearm()

    def reconfigure(self, queue: QueueTable) -> None:
        """The table was looked at again."""
        before, self.queue = self.queue, queue
        if before.policy != queue.policy:
            log.info("queue %s: its policy changed", queue.id)
            self.happen(self.dispatcher.reconfigure, queue.policy)

    def retire(self, text: str) -> None:
        """The table is no queue any more: end its streams."""
        self._retired = True
        self.happen(self.dispatcher.unusable, text)

    def disarm(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rearm(self) -> None:
        self.disarm()
        if self.dispatcher.settled_down:
            self.settled_down.set()
        else:
            self.settled_down.clear()
        wake_at_ns = None if self._retired else self.dispatcher.wake_at_ns
        if wake_at_ns is not None:
            delay_s = max(0.0, (wake_at_ns - self._engine.clock.now_ns()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.happen, self.dispatcher.tick)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Deliver(subscriber, rows):
                self._engine.counters.delivered += len(rows)
                if sink := self.sinks.get(subscriber):
                    sink.deliver(rows)
            case End(subscriber, cause, text):
                if sink := self.sinks.pop(subscriber, None):
                    sink.end(cause, text)
            case _:
                self._engine.spawn(self._ask(effect), f"{type(effect).__name__} {self.queue.id}")

    async def _ask(self, effect: Asked) -> None:
        """Have the store carry out an effect, and tell the dispatcher how it went."""
        try:
            answer = await self._carry_out(effect)
        except StoreError as error:
            log.warning("%s of %s failed: %s", type(effect).__name__.lower(), self.queue.id, error)
            if error.lasting:
                self._engine.schema_changed()
            self._failed(effect, str(error))
        except Exception as error:  # A fault of ours: it must not leave the dispatcher waiting for ever.
            log.exception("%s of %s failed", type(effect).__name__.lower(), self.queue.id)
            self._failed(effect, str(error))
        else:
            answer()

    async def _carry_out(self, effect: Asked) -> Callable[[], None]:
        """Ask the store; returns what is to happen then."""
        call, store, counters, dispatcher = self._engine.call, self._store, self._engine.counters, self.dispatcher
        match effect:
            case Scan(limit):
                result = await call(store.scan, self.queue, limit)
                counters.scans += 1
                counters.scanned += len(result.entries)
                return partial(self.happen, dispatcher.scanned, result)
            case Claim(claim_id, wanted):
                claims = await call(store.claim, self.queue, wanted)
                counters.claims += 1
                counters.claimed += len(claims)
                counters.redelivered += sum(each.epoch > 1 for each in claims)
                return partial(self.happen, dispatcher.claimed, claim_id, claims)
            case Fetch(fetch_id, row_format, keys):
                budget = self._engine.settings.fetch_budget_bytes
                rows = await call(store.fetch, self.queue, row_format, keys, budget)
                return partial(self.happen, dispatcher.fetched, fetch_id, rows)
            case Lookup(keys):
                return partial(self.happen, dispatcher.looked_up, await call(store.lookup, self.queue, keys))
            case Release(returns):
                counters.released += await call(store.release, self.queue, returns)
                return partial(self.happen, dispatcher.released)
            case Purge(age_ns, limit):
                count = await call(store.purge, self.queue, age_ns, limit)
                counters.purged += count
                return partial(self.happen, dispatcher.purged, count)
            case _:
                assert_never(effect)

    def _failed(self, effect: Asked, text: str) -> None:
        dispatcher = self.dispatcher
        match effect:
            case Scan():
                self.happen(dispatcher.scan_failed, text)
            case Claim(claim_id, _):
                self.happen(dispatcher.claim_failed, claim_id)
            case Fetch(fetch_id, _, _):
                self.happen(dispatcher.fetch_failed, fetch_id)
            case Lookup():
                self.happen(dispatcher.lookup_failed)
            case Release():
                self.happen(dispatcher.release_failed)
            case Purge():
                self.happen(dispatcher.purge_failed)
            case _:
                assert_never(effect)


def _remarks(queue: QueueTable) -> list[str]:
    remarks = list(queue.advice)
    if queue.policy.not_enforced:
        remarks.append(f"not acted on by this version: {', '.join(queue.policy.not_enforced)}")
    return remarks
