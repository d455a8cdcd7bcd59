"""Another server becomes the primary: each queue goes on from what its rows show there."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from engine.model import Return
from engine.queue_table import QueueTable
from engine.service import Engine, StreamHandle
from engine.store.port import StoreError, Timed
from tests.support.memory_store import MemoryStore
from tests.support.play import FORMAT, TABLE
from tests.unit.engine.runtime.test_runner_faults import Client, enqueue, running


async def stream_of(engine: Engine, client: Client, holder: int) -> StreamHandle:
    return engine.subscribe(await engine.queue(TABLE), client, holder=holder, row_format=FORMAT)


def test_a_stream_goes_on_and_finds_what_is_there() -> None:
    async def play() -> None:
        async with running() as (engine, store):
            client = Client()
            await stream_of(engine, client, holder=1)
            enqueue(engine, store, TABLE, 1)
            await client.has(1)
            engine.server_changed()
            enqueue(engine, store, TABLE, 2)
            await client.has(2)
            assert store.rows[TABLE][1].epoch == 1, "a message in flight stays with its client"

    asyncio.run(play())


def test_what_a_client_of_the_server_before_held_is_released_if_the_row_shows_its_claim() -> None:
    async def play() -> None:
        async with running() as (engine, store):
            lost, other = Client(), Client()
            handle = await stream_of(engine, lost, holder=1)
            for key in (1, 2):
                enqueue(engine, store, TABLE, key)
            await lost.has(2)
            store.put(TABLE, replace(store.rows[TABLE][2], epoch=0))  # Replication has lost this claim.
            handle.cancel()
            engine.disconnected(1)
            engine.server_changed()
            await stream_of(engine, other, holder=2)
            await other.has(1)
            assert (store.rows[TABLE][1].epoch, store.rows[TABLE][2].epoch) == (2, 0)

    asyncio.run(play())


def test_a_release_that_the_server_before_did_not_answer_is_made_on_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, dies = threading.Event(), threading.Event()
    release = MemoryStore.release

    def hanging(self: MemoryStore, table: QueueTable, returns: tuple[Return, ...]) -> Timed[int]:
        monkeypatch.setattr(MemoryStore, "release", release)
        begun.set()
        dies.wait(10)
        raise StoreError("the connection broke", code=2013)

    async def play() -> None:
        async with running() as (engine, store):
            lost, other = Client(), Client()
            handle = await stream_of(engine, lost, holder=1)
            enqueue(engine, store, TABLE, 1)
            await lost.has(1)
            monkeypatch.setattr(MemoryStore, "release", hanging)
            handle.cancel()
            engine.disconnected(1)
            await asyncio.to_thread(begun.wait, 10)
            engine.server_changed()
            await stream_of(engine, other, holder=2)
            await other.has(1)
            dies.set()

    asyncio.run(play())
