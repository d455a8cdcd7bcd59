"""Tables that keep the engine waiting: calls on them leave threads for those on other tables."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from engine.model import TableId
from engine.queue_table import QueueTable
from engine.runtime.executor import EngineSettings, StoreExecutor
from engine.runtime.lasting_calls import CLAIM, LastingCalls, UnderWay
from engine.runtime.slow_tables import SlowTables
from engine.store.port import StoreError, Timed
from tests.support.memory_store import MemoryStore
from tests.support.play import queue_table

THREADS = 8
LOCKED_CALLS = 4
NOW_NS = 10**18


def queue(number: int) -> QueueTable:
    return replace(queue_table(), id=TableId("test", f"m{number}"))


def fails(_queue: QueueTable) -> Timed[None]:
    raise StoreError("Lock wait timeout exceeded", code=1205)


def succeeds(_queue: QueueTable) -> Timed[None]:
    return Timed(None, NOW_NS)


def scans(_queue: QueueTable) -> Timed[None]:
    return Timed(None, NOW_NS)


class Gate:
    """A store's method whose calls wait until they are let go."""

    def __init__(self) -> None:
        self.__name__ = "gate"
        self.waiting: list[QueueTable] = []
        self._loop = asyncio.get_running_loop()
        self._entered = asyncio.Event()
        self._passes = threading.Semaphore(0)

    def __call__(self, queue: QueueTable) -> Timed[None]:
        self.waiting.append(queue)
        self._loop.call_soon_threadsafe(self._entered.set)
        assert self._passes.acquire(timeout=10)
        return Timed(None, NOW_NS)

    async def reached_by(self, calls: int) -> None:
        while len(self.waiting) < calls:
            self._entered.clear()
            await self._entered.wait()

    def let_go_of(self, calls: int) -> None:
        self._passes.release(calls)

    def let_go(self) -> None:
        self.let_go_of(1_000)


def play(
    scene: Callable[[StoreExecutor, Gate], Awaitable[None]],
    lasts_s: float = 1_000,
    replaced_max: int = 0,
    stalled_s: float = 1_000,
) -> None:
    """`lasts_s`, `stalled_s`: calls that wait at the gate for so long last, or are stalled."""

    async def played() -> None:
        gate = Gate()
        settings = EngineSettings(THREADS, lasts_s, replaced_max, stalled_s)
        executor = StoreExecutor(MemoryStore(now_ns=NOW_NS), settings)
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


def test_calls_that_last_leave_threads_for_those_on_other_tables() -> None:
    """Whatever they wait for, and before anything is known of their tables."""

    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        slow = [queue(number) for number in range(12)]
        calls = [asyncio.ensure_future(executor.call(gate, one)) for one in slow]
        await gate.reached_by(THREADS)
        for number in range(100, 120):
            await executor.call(succeeds, queue(number))
        await gate.reached_by(len(slow))
        gate.let_go()
        await asyncio.gather(*calls)

    play(scene, lasts_s=0.01, replaced_max=16)


def test_the_calls_that_are_replaced_are_bounded() -> None:
    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        calls = [asyncio.ensure_future(executor.call(gate, queue(number))) for number in range(40)]
        await gate.reached_by(THREADS + 4)
        gate.let_go_of(1)
        await gate.reached_by(THREADS + 5)
        assert len(gate.waiting) == THREADS + 5
        gate.let_go()
        await asyncio.gather(*calls)

    play(scene, lasts_s=0.01, replaced_max=4)


def test_a_table_on_which_a_call_has_lasted_has_one_turn_at_a_time() -> None:
    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        slow = [queue(number) for number in range(2 * LOCKED_CALLS)]
        first = [asyncio.ensure_future(executor.call(gate, one)) for one in slow]
        await gate.reached_by(len(slow))
        while not all(executor._slow.contains(one.id, "gate") for one in slow):  # noqa: ASYNC110  # Nothing signals it.
            await asyncio.sleep(0)
        gate.let_go_of(len(slow))
        await asyncio.gather(*first)
        gate.waiting.clear()
        again = [asyncio.ensure_future(executor.call(gate, one)) for one in slow for _ in range(3)]
        await gate.reached_by(LOCKED_CALLS)
        for number in range(100, 120):
            await executor.call(succeeds, queue(number))
        assert len(gate.waiting) == LOCKED_CALLS
        gate.let_go()
        await asyncio.gather(*again)

    play(scene, lasts_s=0.01, replaced_max=16)


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
        locked = [queue(number) for number in range(LOCKED_CALLS)]
        await lock(executor, *locked)
        calls = [asyncio.ensure_future(executor.call(gate, one)) for one in locked * 3]
        await gate.reached_by(LOCKED_CALLS)
        for call in calls:
            call.cancel()
        gate.let_go()
        await executor.call(succeeds, queue(0))

    play(scene)


def test_a_table_that_stays_locked_has_one_turn_at_a_time() -> None:
    """Tables that were locked for a moment with it have the other turns."""

    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        locked, free = queue(0), queue(1)
        await lock(executor, locked, free)
        calls = [asyncio.ensure_future(executor.call(gate, locked)) for _ in range(10)]
        await gate.reached_by(1)
        await executor.call(succeeds, free)
        assert gate.waiting == [locked]
        gate.let_go()
        await asyncio.gather(*calls)

    play(scene)


def test_a_method_that_has_succeeded_needs_no_turn() -> None:
    """A table that others may only read, for example: scans pass, and claims wait."""

    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        locked = [queue(number) for number in range(LOCKED_CALLS)]
        await lock(executor, *locked)
        for one in locked:
            await executor.call(scans, one)
        calls = [asyncio.ensure_future(executor.call(gate, one)) for one in locked]
        await gate.reached_by(LOCKED_CALLS)
        late = asyncio.ensure_future(executor.call(succeeds, locked[0]))
        for _ in range(THREADS):
            for one in locked:
                await executor.call(scans, one)
        assert not late.done()
        gate.let_go()
        await asyncio.gather(*calls, late)

    play(scene)


def test_calls_that_wait_for_a_turn_go_on_when_their_method_has_succeeded() -> None:
    """Otherwise each of them would wait for one turn after the other."""

    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        await lock(executor, queue(0))
        first = asyncio.ensure_future(executor.call(scans, queue(0)))
        others = [asyncio.ensure_future(executor.call(gate, queue(0))) for _ in range(THREADS)]
        await first
        await gate.reached_by(1)
        assert len(gate.waiting) == 1
        gate.let_go_of(1)
        await gate.reached_by(THREADS)
        gate.let_go()
        await asyncio.gather(*others)

    play(scene)


def test_a_turn_comes_before_the_calls_that_wait_for_a_thread() -> None:
    """If the threads are busy, each turn would last as long as their backlog, and others wait for it."""

    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        await lock(executor, queue(0))
        others = [asyncio.ensure_future(executor.call(gate, queue(number))) for number in range(1, 3 * THREADS)]
        await gate.reached_by(THREADS)
        locked = asyncio.ensure_future(executor.call(gate, queue(0)))
        await asyncio.sleep(0)
        gate.let_go_of(1)
        await gate.reached_by(THREADS + 1)
        assert gate.waiting[THREADS] == queue(0)
        gate.let_go()
        await asyncio.gather(*others, locked)

    play(scene)


def test_a_method_that_fails_again_needs_a_turn_again() -> None:
    tables, one = SlowTables(1, 10.0, lambda: 100.0), TableId("test", "m")
    tables.waited(one, "claim")
    for method in ("claim", "scan"):
        tables.passed(one, method)
        assert not tables.contains(one, method)
    tables.waited(one, "claim")
    assert tables.contains(one, "claim")
    assert not tables.contains(one, "scan")


def test_a_table_counts_as_locked_until_some_time_after_its_last_failure_and_while_calls_wait() -> None:
    async def played() -> None:
        now_s = 100.0
        tables, one = SlowTables(1, 10.0, lambda: now_s), TableId("test", "m")
        assert not tables.contains(one, "scan")
        tables.waited(one, "scan")
        tables.passed(one, "claim")
        now_s += 9.9
        assert tables.contains(one, "scan")
        async with tables.turn(one, "scan"):
            now_s += 100
            tables.waited(TableId("test", "other"), "scan")
            assert tables.contains(one, "scan")
        assert not tables.contains(one, "scan")
        tables.waited(one, "scan")
        assert tables.contains(one, "claim")

    asyncio.run(played())


def test_calls_that_the_server_does_not_answer_are_named_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Noticing(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.noticed = asyncio.Event()

        def emit(self, record: logging.LogRecord) -> None:
            self.noticed.set()

    async def scene(executor: StoreExecutor, gate: Gate) -> None:
        handler = Noticing()
        logging.getLogger("engine.runtime.executor").addHandler(handler)
        calls = [asyncio.ensure_future(executor.call(gate, queue(0))) for _ in range(2)]
        await gate.reached_by(2)
        await asyncio.wait_for(handler.noticed.wait(), 30)
        logging.getLogger("engine.runtime.executor").removeHandler(handler)
        assert list(executor.stalled_s()) == [queue(0).id]
        gate.let_go()
        await asyncio.gather(*calls)
        assert executor.stalled_s() == {}

    play(scene, lasts_s=0.01, stalled_s=0.02)
    assert [record.getMessage() for record in caplog.records] == [
        "queue test.m0: gate has waited 0 s for the server: a lock, a full disk, a trigger?"
    ]
    assert [record.__dict__["event"] for record in caplog.records] == ["server.stalls"]


def test_claims_that_all_wait_in_vain_are_one_stall_until_one_is_carried_out() -> None:
    """The server ends each after a second: a backup has locked all tables, for example."""

    async def played() -> None:
        stalled: list[UnderWay] = []
        calls = LastingCalls(*(1_000.0, 0, lambda _: None, lambda _: None), stalled_s=5.0, on_stalled=stalled.append)
        table = queue(0).id
        for begun_s_ago in (6.0, 4.0, 1.0):
            for method, kind in ((CLAIM, table), ("lookup", queue(1).id)):  # A lookup waits for its rows alone.
                call = calls.add(kind, method)
                call.begun_s = time.monotonic() - begun_s_ago
                calls.waited(call)
                calls.ended(call)
        assert [call.table for call in stalled] == [table] * 3  # The log has one line a minute of them.
        ((named, waited_s),) = calls.stalled_s().items()
        assert (named, waited_s >= 6.0) == (table, True)
        calls.answered(calls.add(table, CLAIM))
        assert calls.stalled_s() == {}
        calls.close()

    asyncio.run(played())
