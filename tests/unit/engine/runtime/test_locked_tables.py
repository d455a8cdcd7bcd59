"""Tables that other sessions have locked: calls on them leave threads for those on other tables."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from engine.model import TableId
from engine.queue_table import QueueTable
from engine.runtime.executor import EngineSettings, StoreExecutor
from engine.runtime.locked_tables import LockedTables
from engine.store.memory import MemoryStore
from engine.store.port import StoreError, Timed
from tests.support.play import queue_table

THREADS = 8
LOCKED_CALLS = 2
NOW_NS = 10**18


def queue(number: int) -> QueueTable:
    return replace(queue_table(), id=TableId("test", f"m{number}"))


def fails(_queue: QueueTable) -> Timed[None]:
    raise StoreError("Lock wait timeout exceeded", code=1205)


def succeeds(_queue: QueueTable) -> Timed[None]:
    return Timed(None, NOW_NS)


class Gate:
    """A store's method whose calls wait until they are let go."""

    def __init__(self) -> None:
        self.waiting: list[QueueTable] = []
        self._loop = asyncio.get_running_loop()
        self._entered = asyncio.Event()
        self._open = threading.Event()

    def __call__(self, queue: QueueTable) -> Timed[None]:
        self.waiting.append(queue)
        self._loop.call_soon_threadsafe(self._entered.set)
        assert self._open.wait(10)
        return Timed(None, NOW_NS)

    async def reached_by(self, calls: int) -> None:
        while len(self.waiting) < calls:
            self._entered.clear()
            await self._entered.wait()

    def let_go(self) -> None:
        self._open.set()


def play(scene: Callable[[StoreExecutor, Gate], Awaitable[None]]) -> None:
    async def played() -> None:
        gate = Gate()
        executor = StoreExecutor(MemoryStore(now_ns=NOW_NS), EngineSettings(threads=THREADS))
        try:
            async with asyncio.timeout(10):
                await scene(executor, gate)
        finally:
            gate.let_go()
            await executor.close()

    asyncio.run(played())


async def lock(executor: StoreExecutor, *queues: QueueTable) -> None:
    for one in queues:
        with pytest.raises(StoreError):
            await executor.call(fails, one)


def test_calls_on_locked_tables_leave_threads_for_those_on_others() -> None:
    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        locked = [queue(number) for number in range(20)]
        await lock(executor, *locked)
        calls = [asyncio.ensure_future(executor.call(gate, one)) for one in locked]
        await gate.reached_by(LOCKED_CALLS)
        others = [asyncio.ensure_future(executor.call(gate, queue(number))) for number in range(100, 120)]
        await gate.reached_by(THREADS)
        assert len([one for one in gate.waiting if one in locked]) == LOCKED_CALLS
        gate.let_go()
        await asyncio.gather(*calls, *others)
        assert [one for one in gate.waiting if one in locked] == locked

    play(scene)


def test_a_failure_for_another_reason_holds_nothing_back() -> None:
    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        def deadlock(_queue: QueueTable) -> Timed[None]:
            raise StoreError("Deadlock found", code=1213)

        for _ in range(3):
            with pytest.raises(StoreError):
                await executor.call(deadlock, queue(0))
        calls = [asyncio.ensure_future(executor.call(gate, queue(0))) for _ in range(THREADS)]
        await gate.reached_by(THREADS)
        gate.let_go()
        await asyncio.gather(*calls)

    play(scene)


def test_a_call_whose_caller_is_cancelled_gives_its_turn_back() -> None:
    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        await lock(executor, queue(0))
        calls = [asyncio.ensure_future(executor.call(gate, queue(0))) for _ in range(10)]
        await gate.reached_by(LOCKED_CALLS)
        for call in calls:
            call.cancel()
        gate.let_go()
        await executor.call(succeeds, queue(0))

    play(scene)


def test_a_table_counts_as_locked_until_some_time_after_its_last_failure_and_while_calls_wait() -> None:
    async def played() -> None:
        now_s = 100.0
        tables, one = LockedTables(1, 10.0, lambda: now_s), TableId("test", "m")
        assert not tables.contains(one)
        tables.waited(one)
        now_s += 9.9
        assert tables.contains(one)
        async with tables.turn(one):
            now_s += 100
            assert tables.contains(one)
        assert not tables.contains(one)

    asyncio.run(played())
