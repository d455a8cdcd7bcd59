"""The event loop goes on with sessions while the admin port answers about many queues and streams."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from engine.binlog.supervisor import Following
from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, TableId
from engine.queue_table import QueueTable
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store.opening import BackendAddress
from engine.store.reach import Reach
from engine.store.route import Route
from proxy.server.access import Access
from proxy.server.admin import Admin
from proxy.server.depths import CountedQueue
from proxy.server.inspection import Inspected, Question, QueueDetails
from proxy.server.listener import Proxy
from proxy.server.metrics import ProcessMetrics
from proxy.server.problems import known_problems
from proxy.server.sign_ins import SignIns
from proxy.server.sources import Sources, first_held
from proxy.settings import load
from proxy.statements.deliveries import Deliveries
from proxy.statements.depth import Depth
from proxy.statements.show import RunningStream
from proxy.transport.tls import Tls
from tests.support.memory_store import MemoryStore
from tests.support.play import queue_table

QUEUES = 600
STREAMS = 600
CALLS_MAX = 5_000
"""Of functions, in one callback of the event loop. An HTTP request takes some hundred; the page of six
hundred queues takes some hundred thousand."""

RUN = asyncio.Handle._run.__code__


def queues() -> list[tuple[QueueTable, Dispatcher]]:
    made = []
    for number in range(QUEUES):
        table = replace(queue_table(), id=TableId("shop", f"q{number}"))
        dispatcher = Dispatcher(table.policy, Limits(), lambda: 0.0, Instant(0, 10**18))
        dispatcher.parts.measures.pickup.add(NS_PER_S)
        dispatcher.parts.measures.work.add(NS_PER_S)
        made.append((table, dispatcher))
    return made


@contextlib.asynccontextmanager
async def admin_port(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The admin port of a proxy with QUEUES counted queues, all of which have histograms."""
    engine = Engine(MemoryStore(now_ns=10**18), EngineSettings())
    runners = queues()
    monkeypatch.setattr(engine, "runners", lambda: runners)
    settings = load({"data_dir": path, "tls": False}, None)
    proxy = Proxy(engine, settings, Route(None), Tls.of(settings))
    metrics = ProcessMetrics(proxy, Reach())
    counted = CountedQueue(Depth(ready=3, oldest_ready_s=5.0), 7, counted_s=0.0)
    monkeypatch.setattr(metrics.depths, "_counts", {table.id: counted for table, _ in runners})
    monkeypatch.setattr(metrics.depths, "request", lambda: None)
    streams = [RunningStream(number, runners[0][0].id, ("::1", *[None] * 4, 0, 0, 0, 0)) for number in range(STREAMS)]

    async def well() -> None: ...

    async def inspect(asked: Question) -> Inspected:
        return Inspected(QueueDetails(asked.table, 0))

    problems = partial(known_problems, proxy, Following(), dict)
    held = partial(first_held, Deliveries(engine, lambda: ()))
    sources = Sources(metrics.families, well, well, inspect, lambda: None, lambda: streams, problems, held)
    sign_ins = SignIns(lambda user, password: BackendAddress("127.0.0.1", 1, user, password))
    admin = Admin(sources, Access(""), sign_ins, 4)
    host, port = await admin.start("127.0.0.1", 0)
    try:
        yield f"http://{host}:{port}"
    finally:
        await admin.stop()
        await metrics.stop()


@contextlib.contextmanager
def counted_calls() -> Iterator[list[int]]:
    """The calls of functions in each callback of this thread's event loop."""
    calls = [0]

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is RUN:
            calls.append(0)
        elif event in ("call", "c_call"):
            calls[-1] += 1

    gc.disable()  # It calls functions of its own.
    sys.setprofile(called)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()


def read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        found: bytes = answer.read()
        return found


@pytest.mark.parametrize("path", ["/metrics", "/", "/queue?db=shop&name=q1", "/proxies"])
def test_no_callback_of_the_event_loop_reads_or_shows_all_queues(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> list[int]:
        async with admin_port(tmp_path, monkeypatch) as address:
            await asyncio.to_thread(read, address + path)  # It imports modules.
            with counted_calls() as calls:
                await asyncio.to_thread(read, address + path)
            return calls

    assert max(asyncio.run(ask())) < CALLS_MAX
