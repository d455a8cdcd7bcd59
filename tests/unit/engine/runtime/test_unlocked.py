"""Which messages a session may try to lock for STREAM … FOR UPDATE."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from engine.model import NS_PER_S, Key, TableId
from engine.queue_table import QueueTable
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store.port import Roster, StoreError, Timed
from tests.support.memory_store import MemoryStore
from tests.support.play import queue_table

QUEUE = replace(queue_table(), id=TableId("shop", "orders"))
KEYS: tuple[Key, ...] = (3, 1, 2)


class LockedElsewhere(MemoryStore):
    """A store in which others have locked message 1, and which counts the calls."""

    error: StoreError | None = None
    calls = 0

    def unlocked(self, table: QueueTable, keys: Sequence[Key]) -> Timed[frozenset[Key]]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return Timed(frozenset(keys) - {1}, self.now_ns)


def play(scene: Callable[[Engine, LockedElsewhere], Awaitable[None]], settings: EngineSettings | None = None) -> None:
    async def played() -> None:
        store = LockedElsewhere(now_ns=1_000_000 * NS_PER_S, tables={QUEUE.id: QUEUE})
        engine = Engine(store, settings or EngineSettings())
        engine.has_streams = False  # The scene says what the roster is.
        await engine.start()
        try:
            await scene(engine, store)
        finally:
            await engine.close()

    asyncio.run(played())


def know(engine: Engine, roster: Roster) -> None:
    engine._roster.found = roster
    engine._on_roster(roster)


def test_a_proxy_alone_sends_no_statement_for_it() -> None:
    async def scene(engine: Engine, store: LockedElsewhere) -> None:
        know(engine, Roster(1))
        assert await engine.unlocked(QUEUE.id, KEYS, unscanned=False) is KEYS
        assert store.calls == 0

    play(scene)


@pytest.mark.parametrize(
    "roster", [Roster(None), Roster(1, frozenset({2})), Roster(1, frozenset({2}), {QUEUE.id: (2,)})]
)
def test_what_others_have_locked_is_left_out_and_the_order_is_kept(roster: Roster) -> None:
    async def scene(engine: Engine, _store: LockedElsewhere) -> None:
        know(engine, roster)
        assert await engine.unlocked(QUEUE.id, KEYS, unscanned=False) == (3, 2)

    play(scene)


def test_others_that_have_not_streamed_the_queue_for_long_hold_nothing_of_it() -> None:
    async def scene(engine: Engine, store: LockedElsewhere) -> None:
        know(engine, Roster(1, frozenset({2})))
        assert await engine.unlocked(QUEUE.id, KEYS, unscanned=False) is KEYS
        know(engine, Roster(1, frozenset({2}), {QUEUE.id: (2,)}))
        know(engine, Roster(1, frozenset({2})))
        assert await engine.unlocked(QUEUE.id, KEYS, unscanned=False) == (3, 2)
        know(engine, Roster(1))
        assert await engine.unlocked(QUEUE.id, KEYS, unscanned=False) is KEYS
        assert store.calls == 1

    play(scene, EngineSettings(former_locks_s=0.0))


def test_nothing_is_tried_while_the_server_does_not_answer() -> None:
    async def scene(engine: Engine, store: LockedElsewhere) -> None:
        know(engine, Roster(1, frozenset({2})))
        store.error = StoreError("gone", code=2013)
        assert await engine.unlocked(QUEUE.id, KEYS, unscanned=False) == ()

    play(scene)


def test_of_messages_that_no_scan_has_shown_it_finds_out_always() -> None:
    async def scene(engine: Engine, store: LockedElsewhere) -> None:
        know(engine, Roster(1))
        assert await engine.unlocked(QUEUE.id, KEYS, unscanned=True) == (3, 2)
        assert store.calls == 1

    play(scene)
