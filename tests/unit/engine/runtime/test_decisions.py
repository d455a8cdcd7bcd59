"""How often a table decides what to do next: once for all that clients do in one turn of the event loop. A decision
takes the time of a tenth of a message, whatever it is about."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Cause, Claim, Lock
from engine.dispatch.instant import Instant
from engine.queue_table import QueueTable
from engine.runtime import table_runner
from engine.runtime.executor import EngineSettings
from engine.runtime.store_effects import StoreEffects
from engine.runtime.table_runner import CLAIMS_IN_ONE_TURN, LockAnswer
from engine.service import Engine
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import FORMAT, POLICY, TABLE, queue_table

CLIENTS = 20


@dataclass
class Client:
    """A stream's sink, and the session that locks for it."""

    rows: list[bytes] = field(default_factory=list)
    offers: list[tuple[Lock, LockAnswer]] = field(default_factory=list)
    ended: bool = False

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        self.rows += rows

    def end(self, _cause: Cause, _text: str) -> None:
        self.ended = True

    def lock(self, lock: Lock, answer: LockAnswer) -> None:
        self.offers.append((lock, answer))


DECISION = "decision"


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the events that the dispatcher was handed at once, each followed by DECISION if it decided then."""
    taken: list[list[str]] = []
    recorded, decided = Dispatcher.recorded, Dispatcher.together

    def note_recorded(self: Dispatcher, now: Instant, events: Sequence[Any]) -> Effects:
        taken.append([event.func.__name__ for event in events])
        return recorded(self, now, events)

    def note_decision(self: Dispatcher, now: Instant, events: Sequence[Any]) -> Effects:
        effects = decided(self, now, events)
        taken[-1].append(DECISION)
        return effects

    monkeypatch.setattr(Dispatcher, "recorded", note_recorded)
    monkeypatch.setattr(Dispatcher, "together", note_decision)
    return taken


@asynccontextmanager
async def running(messages: int) -> AsyncIterator[tuple[Engine, QueueTable]]:
    store = MemoryStore(now_ns=10**18)
    store.add_table(queue_table(replace(POLICY, batch_size=1_000, cache_size=1_000), id_grows=True))
    for key in range(1, messages + 1):
        store.put(TABLE, Row(key, payload=str(key).encode()))
    engine = Engine(store, EngineSettings())
    await engine.start()
    try:
        yield engine, await engine.queue(TABLE)
    finally:
        await engine.close()


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop go on until the condition is met. Threads work meanwhile, on a busy machine for many
    turns of the loop."""
    async with asyncio.timeout(100):
        for _ in itertools.count():
            if condition():
                return
            await asyncio.sleep(0)


def test_the_work_of_many_clients_in_one_turn_is_one_decision(together: list[list[str]]) -> None:
    """They begin streams, lock messages, acknowledge them, and commit."""

    async def play() -> None:
        async with running(CLIENTS) as (engine, queue):
            clients = [Client() for _ in range(CLIENTS)]
            for holder, client in enumerate(clients, 1):
                engine.subscribe(
                    queue, client, holder=holder, row_format=FORMAT, limit=1, first_wait_ns=10**10, locker=client.lock
                )
            await until(lambda: all(client.offers for client in clients))
            assert together == [["subscribe"] * CLIENTS, [DECISION]]
            for client in clients:
                lock, answer = client.offers.pop()
                answer(set(lock.keys))
            await until(lambda: all(client.ended for client in clients))
            assert together[2:] == [["lock_done"] * CLIENTS]  # All streams have ended by that.
            for holder, key in enumerate(range(1, CLIENTS + 1), 1):
                engine.acknowledged(TABLE, [key], certain=True, holder=holder)
                engine.transaction_ended(holder, failed=False)
            await until(lambda: len(together) > 3)
            assert together[3:] == [["settled", *["transaction_ended"] * CLIENTS, DECISION]]

    asyncio.run(play())


def test_many_acknowledgements_in_one_turn_are_handed_over_in_several_and_the_end_of_their_transaction_behind_them(
    together: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes some microseconds, and one statement may acknowledge ten thousand."""
    monkeypatch.setattr(table_runner, "SETTLED_IN_ONE_TURN", 3)

    async def play() -> None:
        async with running(8) as (engine, queue):
            client = Client()
            engine.subscribe(
                queue, client, holder=1, row_format=FORMAT, limit=8, first_wait_ns=10**10, locker=client.lock
            )
            await until(lambda: client.offers)
            lock, answer = client.offers.pop()
            answer(set(lock.keys))
            await until(lambda: client.ended)
            together.clear()
            engine.acknowledged(TABLE, range(1, 9), certain=True, holder=1)
            engine.transaction_ended(1, failed=False)
            await until(lambda: any("transaction_ended" in events for events in together))
            handed_over = [[event for event in events if event != DECISION] for events in together]
            assert [events for events in handed_over if events] == [
                ["settled"],
                ["settled"],
                ["settled", "transaction_ended"],
            ]

    asyncio.run(play())


def test_commits_on_a_queue_without_streams_are_one_decision_in_a_while(together: list[list[str]]) -> None:
    """Nobody waits for their messages, and a decision for each would take half as long as relaying it."""

    async def play() -> None:
        async with running(0) as (engine, queue):
            engine.written(TABLE.name)  # The first one wakes all queues: it may have a trigger.
            await until(lambda: together)
            together.clear()
            for _ in range(CLIENTS):
                engine.written(TABLE.name, inserted=True)
                await asyncio.sleep(0)
            assert together == []
            await until(lambda: together)
            assert together == [["woken"], [DECISION]]
            together.clear()
            engine.written(TABLE.name)
            engine.subscribe(queue, Client(), holder=1, row_format=FORMAT)
            await asyncio.sleep(0)
            assert together == [["subscribe", "woken"], [DECISION]]

    asyncio.run(play())


def test_an_offer_to_a_stream_that_has_just_ended_is_answered() -> None:
    """Else its message would count as being locked, and nobody would get it."""

    async def play() -> None:
        async with running(2) as (engine, queue):
            second = Client()

            class First(Client):
                def lock(self, lock: Lock, answer: LockAnswer) -> None:
                    super().lock(lock, answer)
                    handles[1].cancel()

            first = First()
            handles = [
                engine.subscribe(
                    queue, client, holder=holder, row_format=FORMAT, limit=1, first_wait_ns=10**10, locker=client.lock
                )
                for holder, client in ((1, first), (2, second))
            ]
            await until(lambda: first.offers)
            (lock, answer) = first.offers.pop()
            answer(set(lock.keys))
            await until(lambda: first.ended)
            assert not second.offers
            assert not engine.holds(2)
            third = Client()
            engine.subscribe(
                queue, third, holder=3, row_format=FORMAT, limit=1, first_wait_ns=10**10, locker=third.lock
            )
            await until(lambda: third.offers)

    asyncio.run(play())


@pytest.mark.parametrize("messages", [1, 9 * CLAIMS_IN_ONE_TURN])
def test_rows_of_a_claim_are_sent_before_the_next_decision(together: list[list[str]], messages: int) -> None:
    class Noting(Client):
        def deliver(self, rows: tuple[bytes, ...]) -> None:
            super().deliver(rows)
            together.append(["rows"])

    async def play() -> None:
        async with running(messages) as (engine, queue):
            client = Noting()
            engine.subscribe(queue, client, holder=1, row_format=FORMAT)
            await until(lambda: len(client.rows) == messages)
            await until(lambda: together[-1] == [DECISION])
            at = together.index(["claim_done"])
            assert together[at + 1] == ["rows"]

    asyncio.run(play())


@pytest.mark.parametrize("locks", [False, True])
def test_an_inserted_message_is_claimed_or_offered_before_the_next_decision(
    together: list[list[str]], monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    class Noting(Client):
        def lock(self, lock: Lock, answer: LockAnswer) -> None:
            super().lock(lock, answer)
            together.append(["begun"])

    def begin(self: StoreEffects, queue: QueueTable, claim: Claim) -> None:
        together.append(["begun"])

    async def play() -> None:
        async with running(0) as (engine, queue):
            client = Noting()
            options: dict[str, Any] = {"first_wait_ns": 10**10, "locker": client.lock} if locks else {}
            engine.subscribe(queue, client, holder=1, row_format=FORMAT, **options)
            await until(lambda: engine.counters.scans)
            engine.written(TABLE.name)  # The first one wakes all queues: it may have a trigger.
            await until(lambda: engine.counters.scans > 1 and all(idle.settled_down for _, idle in engine.runners()))
            together.clear()
            for at in (1, 2):  # In two turns, one directly after the other.
                engine.written(TABLE.name, inserted=True, ids=range(at, at + 1))
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert together[:3] == [["inserted"], ["begun"], ["inserted", DECISION]]

    monkeypatch.setattr(StoreEffects, "begin", begin)
    asyncio.run(play())
