"""Claims that the server begins before a thread is woken for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.model import ClaimResult, QueueTable, Wanted
from engine.runtime.executor import EngineSettings, StoreExecutor
from engine.store.memory import MemoryStore
from engine.store.port import StoreError, Timed
from tests.support.play import queue_table

NOW_NS = 1_790_000_000 * 10**9
THREADS = 2
CLAIM = (queue_table(), [Wanted(1, 0, 10**9)], None, 1000, 0)


class BeginningStore(MemoryStore):
    """A store that begins each claim at once."""

    def __init__(self) -> None:
        super().__init__(now_ns=NOW_NS)
        self.begun, self.finished_on = 0, list[int]()
        self.on_finish: Callable[[], None] = lambda: None

    def begin_claim(self, *_claim: object) -> Any:
        self.begun += 1
        return self._finish

    def _finish(self) -> Timed[ClaimResult]:
        self.finished_on.append(threading.get_ident())
        self.on_finish()
        return Timed(ClaimResult((), None), NOW_NS)


def play(scene: Callable[[StoreExecutor, BeginningStore], Awaitable[None]]) -> None:
    async def played() -> None:
        store = BeginningStore()
        executor = StoreExecutor(store, EngineSettings(threads=THREADS))
        try:
            async with asyncio.timeout(10):
                await scene(executor, store)
        finally:
            await executor.close()

    asyncio.run(played())


def test_a_claim_is_begun_at_once_and_its_result_waited_for_on_a_thread() -> None:
    async def scene(executor: StoreExecutor, store: BeginningStore) -> None:
        begun = executor.begin(executor.store.begin_claim, *CLAIM)
        assert begun is not None
        assert store.begun == 1
        assert (await begun()).claims == ()
        assert len(store.finished_on) == 1
        assert store.finished_on[0] != threading.get_ident()

    play(scene)


def test_the_servers_clock_is_read_between_the_beginning_of_a_claim_and_its_result() -> None:
    async def scene(executor: StoreExecutor, _store: BeginningStore) -> None:
        observed = list[int]()

        def observe(called_ns: int, answered_ns: int, server_ns: int) -> bool:
            observed.extend((called_ns, answered_ns, server_ns))
            return False

        executor.clock.observe = observe  # type: ignore[method-assign]
        before_ns = executor.clock.now().mono_ns
        begun = executor.begin(executor.store.begin_claim, *CLAIM)
        after_ns = executor.clock.now().mono_ns
        assert begun is not None
        await begun()
        called_ns, answered_ns, now_ns = observed
        assert before_ns <= called_ns <= after_ns <= answered_ns
        assert now_ns == NOW_NS

    play(scene)


def test_no_claim_is_begun_while_all_threads_have_calls() -> None:
    """One of them may wait for the connection that the claim would use."""

    async def scene(executor: StoreExecutor, store: BeginningStore) -> None:
        release = threading.Event()

        def waits(_queue: QueueTable) -> Timed[bool]:
            return Timed(release.wait(10), NOW_NS)

        calls = [asyncio.ensure_future(executor.call(waits, queue_table())) for _ in range(THREADS)]
        await asyncio.sleep(0)
        assert executor.begin(executor.store.begin_claim, *CLAIM) is None
        release.set()
        assert all(await asyncio.gather(*calls))
        assert executor.begin(executor.store.begin_claim, *CLAIM) is not None
        assert store.begun == 1

    play(scene)


def test_no_claim_of_a_table_that_was_locked_a_moment_ago_is_begun() -> None:
    async def scene(executor: StoreExecutor, store: BeginningStore) -> None:
        def fails(_queue: QueueTable) -> Timed[None]:
            raise StoreError("Lock wait timeout exceeded", code=1205)

        with pytest.raises(StoreError):
            await executor.call(fails, CLAIM[0])
        assert executor.begin(executor.store.begin_claim, *CLAIM) is None
        assert store.begun == 0

    play(scene)


def test_a_begun_claim_has_a_thread_before_calls_that_wait_for_connections() -> None:
    """Otherwise those calls could have all threads, and the claims all connections."""

    async def scene(executor: StoreExecutor, store: BeginningStore) -> None:
        finished = threading.Event()
        store.on_finish = finished.set

        async def scan() -> None:
            await executor.call(lambda _queue: Timed(finished.wait(10), NOW_NS), queue_table())

        scans = [asyncio.ensure_future(scan()) for _ in range(2 * THREADS)]  # They begin in the next turn.
        begun = [executor.begin(executor.store.begin_claim, *CLAIM) for _ in range(2 * THREADS)]
        assert [claim is not None for claim in begun] == [True] * THREADS + [False] * THREADS
        await asyncio.gather(*scans)
        assert len(store.finished_on) == THREADS

    play(scene)
