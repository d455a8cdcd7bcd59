"""What lasts for too long on a queue: when it is said, and how often it is logged."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.measures import BUCKETS_S
from engine.model import NS_PER_S, TableId
from engine.queue_table import QueueTable
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from proxy.server import queue_watch
from proxy.server.depths import CountedQueue
from proxy.server.holding import CONSUMER_S
from proxy.server.queue_watch import JOBS_MIN, OVERDUE_S, QueueWatch, overdue
from proxy.statements.depth import Depth
from tests.support.memory_store import MemoryStore
from tests.support.play import POLICY, TABLE, Stage, queue_table


def holding(*job_s: float) -> Stage:
    """A queue whose jobs took so long, and of which a client has just got message 1."""
    stage = Stage(policy=POLICY)
    for seconds in job_s:
        stage.dispatcher.parts.measures.work.add(round(seconds * NS_PER_S))
    stage.enqueue(1)
    stage.subscribe(1, 1)
    stage.settle()
    assert stage.delivered == {1: [1]}
    return stage


def said(stage: Stage, held_s: float) -> str | None:
    return overdue(stage.dispatcher, stage.mono_ns + round(held_s * NS_PER_S))


def test_a_message_is_overdue_when_it_is_held_for_longer_than_any_job_took() -> None:
    stage = holding(*[0.01] * JOBS_MIN, 200.0)  # One of those between a minute and five.
    assert said(stage, 299.0) is None
    text = said(stage, 301.0)
    assert text is not None
    assert text.startswith("message 1 is held for longer than any job took here before (≤ 5 min)")
    assert said(stage, 400.0) == text  # So it is one line of the log.


def test_short_jobs_are_no_reason_to_say_it_within_half_a_minute() -> None:
    stage = holding(*[0.01] * JOBS_MIN)
    assert said(stage, OVERDUE_S - 1) is None
    assert said(stage, OVERDUE_S + 1) is not None


def test_nothing_is_overdue_while_nobody_knows_how_long_jobs_take() -> None:
    assert said(holding(*[0.01] * (JOBS_MIN - 1)), 3600.0) is None
    assert said(holding(*[0.01] * JOBS_MIN, BUCKETS_S[-1] + 1), 24 * 3600.0) is None


EVENTS = ["queue.no_consumer", "queue.consumed", "queue.other_unit"]


def test_what_the_counts_show_is_one_line_of_the_log_as_long_as_it_lasts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, queue_watch.__name__)
    stage, counts = Stage(policy=POLICY), dict[TableId, CountedQueue]()
    engine = Engine(MemoryStore(now_ns=10**18), EngineSettings())
    found: list[tuple[QueueTable, Dispatcher]] = [(queue_table(), stage.dispatcher)]
    monkeypatch.setattr(engine, "runners", lambda: found)
    monkeypatch.setattr(time, "monotonic_ns", lambda: stage.mono_ns)

    async def play() -> None:
        watch, now_s = QueueWatch(engine, lambda: counts), asyncio.get_running_loop().time()
        for depth, consumed_s in (
            (None, None),  # It is not counted yet.
            (Depth(ready=0), None),
            (Depth(ready=3), now_s),  # Another proxy has a consumer.
            (Depth(ready=3), now_s - CONSUMER_S),
            (Depth(ready=4), None),
            (Depth(ready=0, other_unit=True), None),
            (Depth(other_unit=True), None),
        ):
            counts.clear()
            if depth is not None:
                counts[TABLE] = CountedQueue(depth, None, now_s, consumed_s)
            await watch.look()

    asyncio.run(play())
    assert [record.__dict__["event"] for record in caplog.records] == ["queue.other_unit"]
    caplog.clear()  # Its workers may have been connecting.
    stage.mono_ns += CONSUMER_S * NS_PER_S
    asyncio.run(play())
    assert [record.__dict__["event"] for record in caplog.records] == EVENTS
