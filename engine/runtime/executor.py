"""What the engine's parts share of the outside world: the store on threads, the server's clock, and
tasks.

The store blocks, so its calls go to threads, each with a connection of its own; its answers come
back to the event loop's thread, where all of the engine's state lives, so there are no locks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.runtime.server_clock import ServerClock
from engine.store.port import Store, StoreError, Timed

log = logging.getLogger(__name__)

T = TypeVar("T")

LOG_INTERVAL_S = 10.0
"""Between two log lines about failures with one number."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The bounds of what runs around the dispatchers."""

    threads: int = 8
    """Store calls under way at once, over all tables; each has a connection of its own to the
    server."""
    fetch_budget_bytes: int = 4 << 20
    """Row data held for one fetch; one row may exceed it."""
    catalog_interval_s: float = 10.0
    """How soon a table that was created or altered behind the proxy's back is noticed."""
    blind_scans_per_s: float = 100.0
    """Scans for commits of which it is not known what they touched (a procedure, a trigger, a view), over all tables
    that somebody waits for: one such table is looked at 10 ms after the last time at the latest."""
    catalog_pause_s: float = 0.25
    """Between two looks at the catalog at least. The first look comes at once; a program that creates tables all day
    causes four looks a second at most."""
    catalog_share: float = 0.05
    """How much of the time the catalog may be looked at: a look takes a second where there are 100,000 tables."""
    catalog_tables_max: int = 10_000
    """Tables remembered as not being queues until the next look at the catalog, and other spellings of queues; beyond
    that they are forgotten and asked for again."""


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
    dead_lettered: int = 0
    """Dead messages moved to their dead-letter tables."""
    dead_letter_failures: int = 0
    """Attempts at that which failed; the messages stayed where they were."""
    store_answers: int = 0
    """Calls of the store that the server answered."""
    store_errors: int = 0
    catalog_refreshes: int = 0
    catalog_described: int = 0
    catalog_faults: int = 0
    """Unexpected exceptions while the catalog was read; it was read again."""
    dispatcher_restarts: int = 0
    """Times that a table's dispatcher was started again after a fault of ours."""


class FailureLog:
    """Log lines for calls of the store that fail: one an error number and interval, however many fail.

    Failures to reach the server are left to engine.store.reach.
    """

    def __init__(self) -> None:
        self._quiet_until_s: dict[int, float] = {}
        self._passed_over: dict[int, int] = {}

    def failed(self, what: str, error: StoreError, now_s: float) -> None:
        """A call failed at this monotonic time."""
        if error.unreachable:
            return
        if now_s < self._quiet_until_s.get(error.code, 0.0):
            self._passed_over[error.code] = self._passed_over.get(error.code, 0) + 1
            return
        self._quiet_until_s[error.code] = now_s + LOG_INTERVAL_S
        more = self._passed_over.pop(error.code, 0)
        log.warning("%s failed: %s%s", what, error, f" ({more} more since the last such line)" if more else "")


class StoreExecutor:
    """The store, the clock, and what runs in the background."""

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self.settings = settings
        self.store = store
        self.counters = Counters()
        self.clock = ServerClock(time.monotonic_ns)
        self.on_clock_set: Callable[[], None] = lambda: None
        """Called when the server's clock turns out to have been set."""
        self._reports = FailureLog()
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="store")
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, method: Callable[..., Timed[T]], *args: Any) -> T:
        """One call of the store on a thread of its own; its answer sets the clock. Raises
        StoreError."""

        def timed() -> tuple[int, int, Timed[T]]:
            called_ns = time.monotonic_ns()
            answer = method(*args)
            return called_ns, time.monotonic_ns(), answer

        try:
            called_ns, answered_ns, answer = await asyncio.get_running_loop().run_in_executor(self._threads, timed)
        except StoreError:
            self.counters.store_errors += 1
            raise
        self.counters.store_answers += 1
        if self.clock.observe(called_ns, answered_ns, answer.now_ns):
            self.on_clock_set()
        return answer.value

    def report(self, what: str, error: StoreError) -> None:
        """Log that a call of the store failed, unless failures of this kind were logged just
        before."""
        self._reports.failed(what, error, time.monotonic())

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run in the background, kept from the garbage collector; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s", task.get_name(), error, exc_info=error)

    async def close(self) -> None:
        """Stop all that runs, and close the store."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.store.close()
