"""What the engine's parts share of the outside world: the store on threads, the server's clock, and tasks.

The store blocks, so its calls go to threads, each with a connection of its own; its answers come back to the event
loop's thread, where all of the engine's state lives, so there are no locks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.clock import ServerClock
from engine.store import Store, StoreError, Timed

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The shell's own bounds."""

    threads: int = 8
    """Store calls under way at once, over all tables; each has a connection of its own to the server."""
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
    buried: int = 0
    """Dead messages moved to their dead-letter tables."""
    unburied: int = 0
    """Attempts at that which failed; the messages stayed where they were."""
    store_errors: int = 0
    catalog_looks: int = 0
    catalog_described: int = 0
    catalog_faults: int = 0
    """Unexpected exceptions while the catalog was read; it was read again."""


class Shell:
    """The store, the clock, and what runs in the background."""

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self.settings = settings
        self.store = store
        self.counters = Counters()
        self.clock = ServerClock(time.monotonic_ns)
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="store")
        self._tasks: set[asyncio.Task[None]] = set()

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

    async def close(self) -> None:
        """Stop all that runs, and close the store."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.store.close()
