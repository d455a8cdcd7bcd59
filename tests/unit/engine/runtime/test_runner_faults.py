"""A fault of ours stays within its table: it is logged and counted, and the table continues from the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Cause
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.model import TableId
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import FORMAT, TABLE, queue_table

OTHER = TableId("test", "other")
QUICK = Limits(failure_pause_min_ns=1_000_000, failure_pause_max_ns=4_000_000)


@dataclass
class Client:
    """A sink that keeps its calls."""

    rows: list[bytes] = field(default_factory=list)
    ended: Cause | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        self.rows += rows
        self.changed.set()

    def end(self, cause: Cause, text: str) -> None:
        self.ended = cause
        self.changed.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.rows) < count:
                self.changed.clear()
                await self.changed.wait()

    async def is_ended(self) -> None:
        async with asyncio.timeout(10):
            while self.ended is None:
                self.changed.clear()
                await self.changed.wait()


class BrokenClient(Client):
    """A sink that raises at each delivery."""

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        raise RuntimeError("a fault in the session")


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Engine, MemoryStore]]:
    store = MemoryStore(now_ns=10**18)
    for table in (TABLE, OTHER):
        store.add_table(replace(queue_table(), id=table))
    engine = Engine(store, EngineSettings(), QUICK)
    await engine.start()
    try:
        yield engine, store
    finally:
        await engine.close()


async def streaming(engine: Engine, table: TableId, client: Client, holder: int, **options: Any) -> None:
    engine.subscribe(await engine.queue(table), client, holder=holder, row_format=FORMAT, **options)


def enqueue(engine: Engine, store: MemoryStore, table: TableId, key: int) -> None:
    store.put(table, Row(key, payload=str(key).encode()))
    engine.written(table.name)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The number of commits at which the dispatcher will fail."""
    left = {"faults": 0}
    woken = Dispatcher.woken

    def failing(self: Dispatcher, now: Instant, *, anywhere: bool = False) -> Effects:
        if left["faults"]:
            left["faults"] -= 1
            raise RuntimeError("a fault in the dispatcher")
        return woken(self, now, anywhere=anywhere)

    monkeypatch.setattr(Dispatcher, "woken", failing)
    return left


def test_a_stream_continues_after_a_fault_in_its_tables_dispatcher(
    fault: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with running() as (engine, store):
            mine, others = Client(), Client()
            await streaming(engine, TABLE, mine, holder=1)
            await streaming(engine, OTHER, others, holder=2)
            fault["faults"] = 1
            enqueue(engine, store, TABLE, 7)  # Whoever committed it notices nothing.
            enqueue(engine, store, OTHER, 8)
            await others.has(1)
            await mine.has(1)
            assert (mine.rows, others.rows) == ([b"7"], [b"8"])
            assert engine.counters.dispatcher_restarts == 1

    asyncio.run(play())
    (record,) = [record for record in caplog.records if record.exc_info]
    assert str(TABLE) in record.getMessage()


WAKE_AT_NS: Any = Dispatcher.wake_at_ns


def test_the_wake_up_time_is_computed_once_for_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = 0

    def counted(self: Dispatcher) -> Any:
        nonlocal computed
        computed += 1
        return WAKE_AT_NS.fget(self)

    async def play() -> None:
        async with running() as (engine, _):
            queue, last = await engine.queue(TABLE), Client()
            monkeypatch.setattr(Dispatcher, "wake_at_ns", property(counted))
            for holder in range(50):
                engine.subscribe(queue, Client(), holder=holder, row_format=FORMAT, limit=1)
            assert computed == 0
            engine.subscribe(queue, last, holder=50, row_format=FORMAT, first_wait_ns=5_000_000)
            await last.is_ended()
            assert computed

    asyncio.run(play())


def test_a_fault_in_the_wake_up_time_is_one_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = asyncio.Event()

    def failing(self: Dispatcher) -> Any:
        if failed.is_set():
            return WAKE_AT_NS.fget(self)
        failed.set()
        raise RuntimeError("a fault in the wake-up time")

    async def play() -> None:
        async with running() as (engine, store):
            await streaming(engine, TABLE, mine := Client(), holder=1)
            monkeypatch.setattr(Dispatcher, "wake_at_ns", property(failing))
            enqueue(engine, store, TABLE, 1)
            await failed.wait()
            enqueue(engine, store, TABLE, 2)
            await mine.has(2)
            assert engine.counters.dispatcher_restarts == 1

    asyncio.run(play())


def test_faults_in_a_row_cause_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = 4
    scan_done = Dispatcher.scan_done

    def failing(self: Dispatcher, now: Instant, **answer: Any) -> Effects:
        nonlocal faults
        if faults:
            faults -= 1
            raise RuntimeError("a fault that comes back with each scan")
        return scan_done(self, now, **answer)

    async def play() -> None:
        async with running() as (engine, store):
            monkeypatch.setattr(Dispatcher, "scan_done", failing)
            client = Client()
            store.put(TABLE, Row(7, payload=b"7"))
            await streaming(engine, TABLE, client, holder=1)
            await client.has(1)

    asyncio.run(play())
    pauses = [record.args[1] for record in caplog.records if record.exc_info and isinstance(record.args, tuple)]
    assert pauses == [0.001, 0.002, 0.004, 0.004]


def test_a_limit_holds_across_a_fault(fault: dict[str, int]) -> None:
    async def play() -> None:
        async with running() as (engine, store):
            client = Client()
            await streaming(engine, TABLE, client, holder=1, limit=2)
            enqueue(engine, store, TABLE, 1)
            await client.has(1)
            fault["faults"] = 1
            for key in (2, 3):
                enqueue(engine, store, TABLE, key)
            await client.is_ended()
            assert (client.ended, len(client.rows)) == (Cause.COMPLETE, 2)

    asyncio.run(play())


def test_a_stream_that_was_ended_during_the_pause_gets_nothing(fault: dict[str, int]) -> None:
    async def play() -> None:
        async with running() as (engine, store):
            gone, there = Client(), Client()
            queue = await engine.queue(TABLE)
            handle = engine.subscribe(queue, gone, holder=1, row_format=FORMAT)
            fault["faults"] = 1
            enqueue(engine, store, TABLE, 7)
            handle.cancel()
            await streaming(engine, TABLE, there, holder=2)
            await there.has(1)
            assert (gone.rows, there.rows) == ([], [b"7"])

    asyncio.run(play())


def test_a_proxy_can_be_stopped_while_a_dispatcher_has_a_fault(fault: dict[str, int]) -> None:
    async def play() -> None:
        async with running() as (engine, store):
            client = Client()
            await streaming(engine, TABLE, client, holder=1)
            fault["faults"] = 1
            enqueue(engine, store, TABLE, 7)
            async with asyncio.timeout(10):
                await engine.drain()
            assert client.ended is Cause.DRAINING

    asyncio.run(play())


def test_a_stream_whose_sink_fails_ends_and_its_messages_go_to_others() -> None:
    async def play() -> None:
        async with running() as (engine, store):
            broken, whole = BrokenClient(), Client()
            await streaming(engine, TABLE, broken, holder=1)
            enqueue(engine, store, TABLE, 7)
            await broken.is_ended()
            await streaming(engine, TABLE, whole, holder=2)
            await whole.has(1)
            assert broken.ended is Cause.UNUSABLE
            assert engine.counters.dispatcher_restarts == 0

    asyncio.run(play())


def test_a_claim_that_comes_back_after_a_fault_is_released_and_delivered_at_once(
    fault: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other event reports the release: the binary log does not show it."""
    claimed, rescanned, answer = threading.Event(), threading.Event(), threading.Event()
    claim, scan = MemoryStore.claim_and_fetch, MemoryStore.scan

    def slow_claim(self: MemoryStore, *arguments: Any) -> Any:
        claims = claim(self, *arguments)
        claimed.set()
        answer.wait(10)
        return claims

    def noted_scan(self: MemoryStore, *arguments: Any) -> Any:
        result = scan(self, *arguments)
        if claimed.is_set():
            rescanned.set()
        return result

    async def play() -> None:
        async with running() as (engine, store):
            client = Client()
            store.put(TABLE, Row(7, payload=b"7"))
            with monkeypatch.context() as patched:
                patched.setattr(MemoryStore, "claim_and_fetch", slow_claim)
                patched.setattr(MemoryStore, "scan", noted_scan)
                await streaming(engine, TABLE, client, holder=1)
                assert await asyncio.to_thread(claimed.wait, 10)
                fault["faults"] = 1
                engine.written(TABLE.name)
                assert await asyncio.to_thread(rescanned.wait, 10)  # It shows the message in flight.
            answer.set()
            await client.has(1)
            assert engine.counters.released == 1

    asyncio.run(play())
