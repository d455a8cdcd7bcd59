"""What a worker reports to the others of the rows that its clients have inserted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.model import NS_PER_S, TableId
from engine.runtime.executor import EngineSettings
from engine.service import NO_IDS, Engine
from engine.store.memory import MemoryStore
from proxy.server import messages
from proxy.server.shared_engine import SharedEngine
from tests.support.play import queue_table

QUEUE = replace(queue_table(), id=TableId("shop", "orders"))


def reported(*, followed: bool, name: str | None, ids: range, others_stream: bool = True) -> list[object]:
    """The notices of a worker that knows the queue, after an INSERT."""

    async def insert() -> list[object]:
        notices: list[object] = []
        store = MemoryStore(now_ns=1_000_000 * NS_PER_S, tables={QUEUE.id: QUEUE})
        engine = SharedEngine(
            store,
            EngineSettings(),
            notices.append,
            lambda _: None,
            lambda total: total,
            others_stream=others_stream,
        )
        await engine.start()
        try:
            engine.log_followed = followed
            engine.written(name, inserted=True, ids=ids)
            return notices
        finally:
            await engine.close()

    return asyncio.run(insert())


def test_the_ids_of_inserted_messages_are_reported_though_the_binary_log_shows_them() -> None:
    expected: list[object] = [messages.Written("orders", inserted=True, ids=range(7, 9))]
    assert reported(followed=True, name="orders", ids=range(7, 9)) == expected


@pytest.mark.parametrize(("name", "ids"), [("orders", NO_IDS), ("no_queue", range(7, 9)), (None, NO_IDS)])
def test_other_commits_are_left_to_the_binary_log(name: str | None, ids: range) -> None:
    assert reported(followed=True, name=name, ids=ids) == []
    assert reported(followed=False, name=name, ids=ids) == [messages.Written(name, inserted=True, ids=ids)]


def test_workers_without_streams_get_no_notices_of_rows() -> None:
    for followed in (False, True):
        assert reported(followed=followed, name="orders", ids=range(7, 9), others_stream=False) == []


def test_workers_without_streams_get_changes_of_the_schema() -> None:
    notices: list[object] = []
    store = MemoryStore(now_ns=1_000_000 * NS_PER_S)
    engine = SharedEngine(
        store, EngineSettings(), notices.append, lambda _: None, lambda total: total, others_stream=False
    )
    engine.schema_changed("orders")
    assert notices == [messages.SchemaChanged("orders")]


def test_a_worker_claims_what_another_one_has_inserted_by_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[object, ...]] = []
    monkeypatch.setattr(Engine, "written", lambda _, name, *, inserted, ids: taken.append((name, inserted, ids)))
    store = MemoryStore(now_ns=1_000_000 * NS_PER_S)
    engine = SharedEngine(store, EngineSettings(), lambda _: None, lambda _: None, lambda total: total)
    engine.take(messages.Written("orders", inserted=True, ids=range(7, 9)))
    assert taken == [("orders", True, range(7, 9))]
