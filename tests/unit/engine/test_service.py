"""The engine's interface, on the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.dispatch.effects import Cause
from engine.model import BrokenTable, QueueTable, TableId
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store.memory import MemoryStore, Row
from engine.store.port import StoreError, Timed
from tests.support.play import FORMAT, TABLE, queue_table

NOW_NS = 10**18
OTHER = TableId("test", "other")


@dataclass
class Basket:
    """A sink that keeps its calls."""

    rows: list[bytes] = field(default_factory=list)
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        self.rows += rows
        self.filled.set()

    def end(self, cause: Cause, text: str) -> None:
        raise AssertionError((cause, text))


class OneTableIsIll(MemoryStore):
    """A store that cannot describe one of its tables."""

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        if table == OTHER:
            raise StoreError("the table is being altered", code=1205)
        return super().describe(table)

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, QueueTable | BrokenTable]]:
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
        engine.acknowledged(TABLE, [b"0"], certain=True)
        assert dispatcher.in_flight == 0
        await engine.close()

    asyncio.run(play())


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
