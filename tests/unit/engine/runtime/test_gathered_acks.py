"""ACKs of several clients in one transaction: which go together, what their clients get, and who waits for what."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from engine.model import Key
from engine.queue_table import QueueTable
from engine.runtime import gathered_acks
from engine.runtime.executor import EngineSettings, StoreExecutor
from engine.runtime.gathered_acks import GatheredAcks, Reports
from engine.store.acks import Ack
from engine.store.port import AckResult, AckUnknownError, Origin, StoreError, Timed
from tests.support.memory_store import Failure, MemoryStore, Row
from tests.support.play import queue_table

HERE = Origin(("127.0.0.1", 3306), "here")
THERE = replace(HERE, name="there")
QUEUE = queue_table()


Story = Callable[..., Coroutine[Any, Any, None]]


def on_a_loop(story: Story) -> Callable[..., None]:
    """The story as a test."""

    @functools.wraps(story)
    def test(*values: Any, **named: Any) -> None:
        asyncio.run(story(*values, **named))

    return test


async def all_of(*acks: Awaitable[int | None]) -> list[int | None]:
    return list(await asyncio.gather(*acks))


class BegunBatch:
    """A batch whose result has to be waited for on a thread."""

    waits, fileno, patience_s = True, -1, 60.0

    def __init__(self, finish: Callable[[], Timed[Sequence[AckResult]]]) -> None:
        self.finish = finish


@dataclass
class Store(MemoryStore):
    """Keeps its batches. While `gate` is not set, they wait."""

    batches: list[list[Key]] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    errors: deque[Exception] = field(default_factory=deque)
    begins: ClassVar[bool]
    """Whether it begins each batch before a thread waits for the result."""

    def begin_acks(self, *batch: Any) -> Any:
        return BegunBatch(functools.partial(self.acknowledge_all, *batch)) if self.begins else None

    def acknowledge_all(self, table: QueueTable, acks: Sequence[Ack], origin: Origin) -> Timed[Sequence[AckResult]]:
        self.batches.append([key for ack in acks for key in ack.keys])
        self.begun.set()
        assert self.gate.wait(10)
        if self.errors:
            raise self.errors.popleft()
        return super().acknowledge_all(table, acks, origin)


@dataclass
class Running:
    store: Store
    gathered: GatheredAcks
    executor: StoreExecutor
    settled: list[Key]
    suspected: list[Key]

    def ack(self, *keys: int, origin: Origin = HERE) -> asyncio.Future[int | None]:
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def result(result: AckResult) -> None:
            if answer.done():
                return  # The test has cancelled it, as a client that leaves.
            if isinstance(result, AckUnknownError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        if not self.gathered.carry_out(QUEUE, Ack(keys), origin, result):
            answer.set_result(None)
        return answer

    async def under_way(self, *keys: int) -> list[asyncio.Future[int | None]]:
        """A batch that the store has begun."""
        tasks = [self.ack(key) for key in keys]
        assert await asyncio.to_thread(self.store.begun.wait, 10)
        return tasks


@pytest.fixture(autouse=True, params=["called", "begun"])
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "begins", request.param == "begun", raising=False)
    monkeypatch.setattr(gathered_acks, "PATIENCE_S", 10.0)


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    store = Store(now_ns=10**18)
    store.add_table(QUEUE)
    for key in range(1, 10):
        store.put(QUEUE.id, Row(key))
    executor = StoreExecutor(store, EngineSettings())
    settled: list[Key] = []
    suspected: list[Key] = []
    yield Running(
        store, GatheredAcks(executor, Reports(settled.extend, suspected.extend)), executor, settled, suspected
    )
    store.gate.set()
    await executor.close()


@on_a_loop
async def test_an_ack_that_comes_alone_is_a_batch_of_its_own() -> None:
    async with running() as run:
        run.store.gate.set()
        assert await run.ack(1) == 1
        assert run.store.batches == [[1]]


@on_a_loop
async def test_acks_of_one_turn_of_the_loop_are_one_transaction() -> None:
    async with running() as run:
        run.store.gate.set()
        assert await all_of(*(run.ack(key) for key in (1, 2, 1, 77)), run.ack(3, 4)) == [1, 1, 0, 0, 2]
        assert run.store.batches == [[1, 2, 1, 77, 3, 4]]
        assert run.settled == [1, 2, 3, 4]


@on_a_loop
async def test_an_ack_of_many_messages_waits_for_no_other() -> None:
    async with running() as run:
        first = await run.under_way(1, 2)
        many = run.ack(*range(3, 4 + gathered_acks.FEW))
        await asyncio.sleep(0)
        run.store.gate.set()
        assert await all_of(*first, many) == [1, 1, 7]
        assert len(run.store.batches) == 2


@on_a_loop
async def test_of_an_ack_that_has_acknowledged_some_of_its_messages_each_is_looked_up() -> None:
    async with running() as run:
        run.store.gate.set()
        assert await run.ack(1, 77) == 1
        assert (run.settled, run.suspected) == ([], [1, 77])


@on_a_loop
async def test_acks_that_come_while_a_batch_is_under_way_are_the_next_batch() -> None:
    async with running() as run:
        first = await run.under_way(1, 2)
        later = [run.ack(key) for key in (3, 4, 5)]
        await asyncio.sleep(0)
        run.store.gate.set()
        assert await all_of(*first, *later) == [1] * 5
        assert run.store.batches == [[1, 2], [3, 4, 5]]


@on_a_loop
async def test_clients_of_another_server_are_not_mixed_in() -> None:
    async with running() as run:
        run.store.gate.set()
        assert await all_of(run.ack(1), run.ack(2, origin=THERE), run.ack(3)) == [1, 1, 1]
        assert run.store.batches == [[1, 3], [2]]


@on_a_loop
async def test_a_client_that_leaves_withdraws_nothing() -> None:
    async with running() as run:
        one, other = await run.under_way(1, 2)
        one.cancel()
        run.store.gate.set()
        assert await other == 1
        assert run.settled == [1, 2]


@on_a_loop
async def test_what_waits_behind_a_slow_batch_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered_acks, "PATIENCE_S", 0.0)
    async with running() as run:
        first = await run.under_way(1, 2)
        assert await all_of(run.ack(3), run.ack(4)) == [None, None]
        run.store.gate.set()
        assert await all_of(*first) == [1, 1]


@on_a_loop
async def test_more_than_a_batch_holds_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered_acks, "ACKS_MAX", 3)
    async with running() as run:
        run.store.gate.set()
        assert await all_of(*(run.ack(key) for key in range(1, 6))) == [1, 1, 1, None, None]


@on_a_loop
async def test_a_batch_that_certainly_did_nothing_is_repeated_by_the_clients() -> None:
    async with running() as run:
        run.store.gate.set()
        run.store.errors.append(StoreError("deadlock", code=1213))
        assert await all_of(run.ack(1), run.ack(2)) == [None, None]
        assert await all_of(run.ack(3), run.ack(4)) == [None, None]  # For a while.
        assert run.store.batches == [[1, 2]]
        assert run.settled == run.suspected == []


@pytest.mark.parametrize("committed", [False, True])
@on_a_loop
async def test_a_commit_whose_answer_is_lost_is_an_error_for_each_client_and_its_leases_are_verified(
    *, committed: bool
) -> None:
    async with running() as run:
        run.store.gate.set()
        run.store.failures.append(Failure.ANSWER_LOST if committed else Failure.NOT_DONE)
        if committed:
            results = await asyncio.gather(run.ack(1), run.ack(2), return_exceptions=True)
            assert [type(result) for result in results] == [AckUnknownError] * 2
            assert run.suspected == [1, 2]
        else:
            assert await all_of(run.ack(1), run.ack(2)) == [None, None]
        assert run.settled == []


@on_a_loop
async def test_clients_of_an_engine_that_stops_are_not_told_that_their_acks_are_done() -> None:
    async with running() as run:
        first = await run.under_way(1, 2)
        waiting = [run.ack(3), run.ack(4)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(run.executor.close())
        results = await asyncio.gather(*first, *waiting, return_exceptions=True)
        assert [type(result) for result in results[:2]] == [AckUnknownError] * 2
        assert results[2:] == [None, None]
        run.store.gate.set()
        await closing
