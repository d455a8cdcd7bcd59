"""The engine's interface, on the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Cause
from engine.dispatch.instant import Instant
from engine.model import Entry, Group, Key, TableId
from engine.queue_table import BrokenTable, QueueTable
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store.port import Described, StoreError, Timed
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import FORMAT, POLICY, TABLE, queue_table

NOW_NS = 10**18
OTHER = TableId("test", "other")


@dataclass
class Basket:
    """A sink that keeps its calls. It is filled by this many rows."""

    wanted: int = 1
    rows: list[bytes] = field(default_factory=list)
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        self.rows += rows
        if len(self.rows) >= self.wanted:
            self.filled.set()

    def end(self, cause: Cause, text: str) -> None:
        raise AssertionError((cause, text))


class OneTableIsIll(MemoryStore):
    """A store that cannot describe one of its tables."""

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        if table == OTHER:
            raise StoreError("the table is being altered", code=1205)
        return super().describe(table)

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, Described]]:
        if OTHER in tables:
            raise StoreError("a table is being altered", code=1205)
        return super().describe_all(tables)


def test_an_acknowledgement_frees_its_message_at_once_even_with_id_zero() -> None:
    async def play() -> None:
        store = MemoryStore(now_ns=NOW_NS)
        store.add_table(queue_table())
        store.put(TABLE, Row(0, payload=b"zero"))
        engine = Engine(store, EngineSettings())
        await engine.start()
        basket = Basket()
        engine.subscribe(await engine.queue(TABLE), basket, holder=1, row_format=FORMAT)
        await asyncio.wait_for(basket.filled.wait(), 10)
        ((_, dispatcher),) = engine.runners()
        assert dispatcher.in_flight == 1
        engine.acknowledged(TABLE, [b"0"], certain=True, holder=1)
        await asyncio.sleep(0)  # One turn of the event loop.
        assert dispatcher.in_flight == 0
        await engine.close()

    asyncio.run(play())


def test_acknowledgements_and_wakeups_in_one_turn_of_the_event_loop_are_one_event_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[tuple[str, object]] = []
    settled, woken, tick = Dispatcher.settled, Dispatcher.woken, Dispatcher.tick

    def note_settled(self: Dispatcher, now: Instant, keys: Iterable[Key]) -> Effects:
        events.append(("settled", tuple(keys := list(keys))))
        return settled(self, now, keys)

    def note_woken(self: Dispatcher, now: Instant, *, anywhere: bool = False) -> Effects:
        events.append(("woken", anywhere))
        return woken(self, now, anywhere=anywhere)

    def note_paused(self: Dispatcher, now: Instant, subscriber_id: int) -> Effects:
        events.append(("client_paused", subscriber_id))
        return tick(self, now)

    async def play() -> None:
        store = MemoryStore(now_ns=NOW_NS)
        store.add_table(queue_table())
        for number in range(1, 5):
            store.put(TABLE, Row(number, payload=b"x"))
        engine = Engine(store, EngineSettings())
        await engine.start()
        basket = Basket(wanted=4)
        handle = engine.subscribe(await engine.queue(TABLE), basket, holder=1, row_format=FORMAT)
        await asyncio.wait_for(basket.filled.wait(), 10)
        monkeypatch.setattr(Dispatcher, "settled", note_settled)
        monkeypatch.setattr(Dispatcher, "woken", note_woken)
        monkeypatch.setattr(Dispatcher, "client_paused", note_paused)
        for key in (b"1", b"2", b"3"):
            engine.acknowledged(TABLE, [key], certain=True, holder=1)
            engine.written(TABLE.name, inserted=key != b"2")
        assert events == []
        await asyncio.sleep(0)
        assert events == [("settled", (1, 2, 3)), ("woken", True)]
        # An event of another kind comes after what was noted before it.
        events.clear()
        engine.acknowledged(TABLE, [b"4"], certain=True, holder=1)
        handle.pause()
        assert [name for name, _ in events] == ["settled", "client_paused"]
        await asyncio.sleep(0)
        assert len(events) == 2
        await engine.close()

    asyncio.run(play())


def test_a_logged_message_group_of_other_group_columns_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The binary log may still be read for the columns that the queue had before it was altered."""
    seen: list[Entry] = []

    def note(self: Dispatcher, now: Instant, entries: Sequence[Entry] = (), *_: object) -> Effects:
        seen.extend(entries)
        return []

    async def play() -> None:
        store = MemoryStore(now_ns=NOW_NS)
        store.add_table(queue_table(replace(POLICY, group_by=("tenant", "region"))))
        engine = Engine(store, EngineSettings())
        await engine.start()
        engine.subscribe(await engine.queue(TABLE), Basket(), holder=1, row_format=FORMAT)
        groups: list[Group | None] = [(1, None), (1,), ("1", 2), (b"1", 2), (1, 2, 3), None]
        engine.changes_logged(TABLE, [Entry(key, 0, 0, 0, group) for key, group in enumerate(groups)])
        await engine.close()

    monkeypatch.setattr(Dispatcher, "changes_logged", note)
    asyncio.run(play())
    assert [entry.group for entry in seen] == [(1, None), None, None, None, None, None]


def test_a_table_that_cannot_be_described_affects_no_other() -> None:
    async def play() -> None:
        store = OneTableIsIll(now_ns=NOW_NS)
        store.add_table(replace(queue_table(), id=OTHER))
        store.add_table(queue_table())
        engine = Engine(store, EngineSettings())
        await engine.start()
        assert [queue.id for queue, _ in engine.runners()] == [TABLE]
        await engine.close()

    asyncio.run(play())
