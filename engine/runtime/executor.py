"""The store executor: store calls on threads, the server's clock, and background tasks.

The store blocks, so each call runs on a thread, with a connection of its own. Some are begun without a
thread (`begin`). Each result comes back to the event loop's thread. All of the engine's state
is used on that thread, so it needs no locks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from engine.dispatch.measures import Durations
from engine.model import TableId
from engine.queue_table import QueueTable
from engine.runtime.begun_calls import BegunCalls
from engine.runtime.call_threads import CallThreads
from engine.runtime.lasting_calls import LastingCalls, UnderWay
from engine.runtime.polls import Polls
from engine.runtime.server_clock import ServerClock
from engine.runtime.slow_tables import SlowTables
from engine.store.port import Answer, BegunCall, Store, StoreError, Timed

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

LOG_INTERVAL_S = 10.0
"""Between two log lines about failures with one number."""

STALLS_LOG_INTERVAL_S = 60.0
"""Between two log lines about calls on one table that the server does not answer."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The bounds of everything around the dispatchers."""

    threads: int = 8
    """Concurrent store calls, over all tables. Each has a connection of its own to the server."""
    lasts_s: float = 0.9
    """A call that takes so long makes its table a slow one, and is replaced by another thread: nearly the time for
    which a locked table is waited for. On a busy machine most calls take half a second now and then: with less,
    all tables were slow ones at the same time."""
    replaced_max: int = 16
    """Calls that are replaced at the same time at most, each by a thread and a connection. They are on tables that
    are not known as slow yet, one or two for each."""
    stalled_s: float = 5.0
    """A call that takes so long is logged, and is what a queue waits for on the page and in the metrics."""
    slow_share: float = 0.5
    """The share of the calls that may be on slow tables. At least one."""
    slow_kept_s: float = 10.0
    """A table counts as slow for so long after a call on it has taken long. A dispatcher tries again
    after 5 s at the latest."""
    fetch_budget_bytes: int = 4 << 20
    """Row data held for one fetch. A single row may exceed it."""
    catalog_interval_s: float = 10.0
    """The longest time until a table that was created or altered outside the proxy is noticed."""
    indirect_scans_per_s: float = 100.0
    """Scans after indirect writes (a procedure, a trigger, a view), over all tables with streams. A
    single such table is scanned at most every 10 ms."""
    catalog_pause_s: float = 0.25
    """Least pause between two refreshes of the catalog. The first one comes at once. A program that
    creates tables all day causes at most four a second."""
    catalog_share: float = 0.05
    """The share of the time that refreshes of the catalog may take: one takes a second with 100,000
    tables. One that takes longer is repeated after `catalog_interval_s` at the latest."""
    roster_interval_s: float = 1.0
    """Between two checks of the proxies on the server, one statement each, while this one is alone. A
    proxy that comes is noticed within it, and so is a broken connection of this one."""
    roster_with_others_s: float = 0.5
    """Between two checks while there are other proxies: one that goes is noticed within it."""
    roster_again_s: float = 0.1
    """Between a change and the next check: usually others change too, for example when consumers start."""
    roster_without_locks_s: float = 60.0
    """Between two checks if the server has no user-level locks."""
    roster_streams_kept_s: float = 5.0
    """A queue counts as streamed for so long after its last stream: consumers that poll open one
    after the other."""
    former_locks_s: float = 60.0
    """While there are other proxies: for so long after the streams of a queue have begun here, clients of others
    may have locked messages of it with STREAM … FOR UPDATE before. Later, only if another proxy has streamed it
    since."""
    idle_followed_s: float = 60.0
    """The binary log's changes of a queue are used for so long after its last stream and its last
    message in flight here: a change of the set costs the reader a message with all of it, and the
    next stream an additional scan."""
    catalog_tables_max: int = 10_000
    """Tables remembered as no queues until the catalog's next refresh, and other spellings of
    queues. With more, all are forgotten and described again when needed."""


@dataclass(slots=True)
class Counters:
    """Counts since the start, over all tables."""

    delivered: int = 0
    redelivered: int = 0
    claims: int = 0
    claimed: int = 0
    claimed_in_vain: int = 0
    """Keys of claims whose rows were locked or changed: another proxy was faster, for instance."""
    scans: int = 0
    scanned: int = 0
    ack_batches: int = 0
    """Transactions in which ACKs of several clients were committed."""
    acks_gathered: int = 0
    """ACKs that were carried out in them."""
    released: int = 0
    purged: int = 0
    dead_lettered: int = 0
    """Dead messages moved to their dead-letter tables."""
    dead_letter_failures: int = 0
    """Attempts to move them that failed. The messages stayed in their queue."""
    store_answers: int = 0
    """Store calls that returned a result."""
    store_errors: int = 0
    catalog_refreshes: int = 0
    catalog_described: int = 0
    catalog_faults: int = 0
    """Unexpected exceptions while the catalog was read. It was read again."""
    dispatcher_restarts: int = 0
    """Dispatchers that were replaced after a fault in ackstream."""
    claim_time: Durations = field(default_factory=Durations)
    """Of claims, with the rows that are read in the same call."""
    fetch_time: Durations = field(default_factory=Durations)


class FailureLog:
    """Log lines for failed store calls: one for each error number and LOG_INTERVAL_S.

    Failures to reach the server are logged by engine.store.reach.
    """

    def __init__(self) -> None:
        self._quiet_until_s: dict[int, float] = {}
        self._passed_over: dict[int, int] = {}

    def failed(self, what: str, error: StoreError, now_s: float) -> None:
        """Log a call that failed at this monotonic time, unless the line is due later."""
        if error.unreachable:
            return
        if now_s < self._quiet_until_s.get(error.code, 0.0):
            self._passed_over[error.code] = self._passed_over.get(error.code, 0) + 1
            return
        self._quiet_until_s[error.code] = now_s + LOG_INTERVAL_S
        more = self._passed_over.pop(error.code, 0)
        log.warning(
            "%s failed: %s%s",
            what,
            error,
            f" ({more} more since the last such line)" if more else "",
            extra={"event": "store.failed"},
        )


class StoreExecutor:
    """The store, the server's clock, and background tasks."""

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self.settings = settings
        self.store = store
        self.counters = Counters()
        self.clock = ServerClock(time.monotonic_ns)
        self.on_clock_set: Callable[[], None] = lambda: None
        """Called when a result shows that the server's clock was set."""
        self._reports = FailureLog()
        self._threads = CallThreads(settings.threads, "store")
        self._begun = BegunCalls(self._threads)
        slow_calls = max(1, int(settings.threads * settings.slow_share))
        self._slow = SlowTables(slow_calls, settings.slow_kept_s, time.monotonic)
        self._lasting = LastingCalls(
            *(settings.lasts_s, settings.replaced_max, self._lasts, self._replace),
            stalled_s=settings.stalled_s,
            on_stalled=self._stalled,
        )
        self._stalls_quiet_until_s: dict[TableId | None, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.polls = Polls(self._poll, lambda call: self.spawn(call, "poll"))

    async def call(self, method: Callable[..., Answer[T]], *args: Any) -> T:
        """Call a method of the store on a thread, and update the clock from its result.

        A method about one queue has it as its first argument. If the table was slow a moment ago, the
        call waits for its turn among those on slow tables. Raises StoreError.
        """
        table = args[0].id if args and isinstance(args[0], QueueTable) else None
        if table is None or not self._slow.contains(table, method.__name__):
            return await self._call(table, method, *args)
        async with self._slow.turn(table, method.__name__):
            return await self._call(table, method, *args, first=True)

    async def _poll(self, queues: Sequence[QueueTable]) -> frozenset[TableId]:
        return await self.call(self.store.unacknowledged, queues)

    async def call_apart(self, method: Callable[..., Answer[T]], *args: Any) -> T:
        """Call a method that is about no queue, on a thread of its own: it does not wait for other calls.
        Only if the system gives no thread, it does."""
        call = self._lasting.add(None)
        timed = partial(_timed, call, method, *args)
        try:
            calling = self._threads.start_apart(timed)
        except RuntimeError:
            calling = self._threads.start(timed)
        return self._observed(await self._outcome(call, calling))

    def begin(
        self,
        method: Callable[..., BegunCall[T] | None],
        called: Callable[..., Answer[T]],
        queue: QueueTable,
        *args: Any,
    ) -> Callable[[], Awaitable[T]] | None:
        """Have the server begin a call of `called` now, without a thread, by `method`, which begins
        it. Returns what waits for the result, as `call` does. None: it has to be
        called."""
        if self._slow.contains(queue.id, called.__name__):
            return None
        begun_ns = time.monotonic_ns()
        begun = method(queue, *args)
        if begun is None:
            return None
        call = self._lasting.add(queue.id, called.__name__)
        call.begin()
        answer = self._begun.start(begun, partial(_finished, begun, begun_ns))
        return partial(self._begun_answer, call, answer, called, queue, *args)

    async def _begun_answer(
        self,
        call: UnderWay,
        calling: asyncio.Future[_Answered[T] | None],
        called: Callable[..., Answer[T]],
        queue: QueueTable,
        *args: Any,
    ) -> T:
        answered = await self._outcome(call, calling)
        return await self.call(called, queue, *args) if answered is None else self._observed(answered)

    async def _call(
        self, table: TableId | None, method: Callable[..., Answer[T]], *args: Any, first: bool = False
    ) -> T:
        call = self._lasting.add(table, method.__name__ if table is not None else "")
        calling = self._threads.start(partial(_timed, call, method, *args), first=first)
        return self._observed(await self._outcome(call, calling))

    async def _outcome(self, call: UnderWay, calling: asyncio.Future[V]) -> V:
        """The outcome of a call. Takes note of an error, and of whether the table is slow."""
        try:
            outcome = await calling
        except StoreError as error:
            self.counters.store_errors += 1
            if error.waited:
                self._lasts(call)
                self._lasting.waited(call)
            raise
        finally:
            self._lasting.ended(call)
            if call.lasts:
                self._lasts(call)
        if call.table is not None and outcome is not None:  # None: it has to be called.
            self._lasting.answered(call)
            if not call.lasts:
                self._slow.passed(call.table, call.method)
        return outcome

    def _lasts(self, call: UnderWay) -> None:
        if call.table is not None:
            self._slow.waited(call.table, call.method)

    def stalled_s(self) -> Mapping[TableId | None, float]:
        """As LastingCalls.stalled_s."""
        return self._lasting.stalled_s()

    def _stalled(self, call: UnderWay) -> None:
        """Log it, once a minute for each table."""
        now_s = time.monotonic()
        quiet = {table: until_s for table, until_s in self._stalls_quiet_until_s.items() if now_s < until_s}
        if call.table not in quiet:
            quiet[call.table] = now_s + STALLS_LOG_INTERVAL_S
            what = "a statement" if call.table is None else f"queue {call.table}: {call.method}"
            text = "%s has waited %.0f s for the server: a lock, a full disk, a trigger?"
            log.warning(text, what, self.settings.stalled_s, extra={"event": "server.stalls"})
        self._stalls_quiet_until_s = quiet

    def _replace(self, calls: int) -> None:
        """So many calls are replaced from now on."""
        self._threads.set_more(calls)
        self.store.set_more_connections(calls)

    def _observed(self, answered: _Answered[T]) -> T:
        """The value of a result. Takes note of the server's clock, if the result has it."""
        called_ns, answered_ns, answer = answered
        self.counters.store_answers += 1
        if isinstance(answer, Timed) and self.clock.observe(called_ns, answered_ns, answer.now_ns):
            self.on_clock_set()
        return answer.value

    def report(self, what: str, error: StoreError) -> None:
        """Log a failed store call, unless one with the same error number was logged just before."""
        self._reports.failed(what, error, time.monotonic())

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task.

        It is kept from the garbage collector, and its failure is logged.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s", task.get_name(), error, exc_info=error, extra={"event": "task.fault"})

    async def close(self) -> None:
        """Cancel all tasks, and close the store."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lasting.close()
        self._threads.close()
        self.store.close()
        self._begun.close()


_Answered = tuple[int, int, Answer[T]]
"""A result, behind the monotonic times between which the server has read its clock."""


def _timed(call: UnderWay, method: Callable[..., Answer[T]], *args: Any) -> _Answered[T]:
    call.begin()
    called_ns = time.monotonic_ns()
    answer = method(*args)
    return called_ns, time.monotonic_ns(), answer


def _finished(call: BegunCall[T], begun_ns: int) -> _Answered[T] | None:
    answer = call.finish()
    return None if answer is None else (begun_ns, time.monotonic_ns(), answer)
