"""A server that goes away and comes back: one log line for each change, and the result of /health."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest

from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store.connection import StoreConnection
from engine.store.pool import Pool
from engine.store.port import StoreError, Timed
from engine.store.reach import FULL, PAUSE_MAX_S, PAUSE_MIN_S, Reach
from engine.store.server_states import EXHAUSTED_KEPT_S, ServerStates
from proxy.server import admin
from proxy.server.admin import Probe
from tests.support.memory_store import MemoryStore
from tests.support.waiting import eventually

REFUSED = StoreError("Connection refused (2003)", code=2003)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "engine.store.server_states")
    return caplog


def test_each_change_is_one_log_line_however_many_attempts_there_are(log: pytest.LogCaptureFixture) -> None:
    reach = Reach()
    reach.reached()
    reasons = []
    for happens in [partial(reach.failed, REFUSED)] * 20 + [reach.reached] * 20:
        happens()
        reasons.append(reach.states.unreachable.reason)
    assert reasons == ["Connection refused (2003)"] * 20 + [None] * 20
    assert [record.levelname for record in log.records] == ["WARNING", "INFO"]
    assert "Connection refused (2003)" in log.messages[0]
    assert log.messages[1].startswith("the server takes connections again, after ")


def test_refused_connections_are_one_state_until_none_was_refused_for_a_while(log: pytest.LogCaptureFixture) -> None:
    clock = Time()
    reach = Reach(clock)
    reach.reached()
    for _ in range(20):  # A full server takes one connection, and refuses the next.
        reach.failed(StoreError("Too many connections", code=1040))
        reach.reached()
        reach.states.exhausted.end()
        clock.now_s += EXHAUSTED_KEPT_S / 2
    assert (reach.states.exhausted.reason, reach.states.unreachable.reason) == (FULL, None)
    assert [record.levelname for record in log.records] == ["WARNING"]
    assert FULL in log.messages[0]
    clock.now_s += EXHAUSTED_KEPT_S
    reach.states.exhausted.end()
    assert list(reach.states.reasons()) == []
    assert [record.levelname for record in log.records] == ["WARNING", "INFO"]


def test_a_server_that_was_never_reached_is_not_logged_here(log: pytest.LogCaptureFixture) -> None:
    reach = Reach()
    reach.failed(REFUSED)
    assert reach.states.unreachable.reason is not None
    reach.reached()
    assert log.messages == []


def test_the_pool_reports_each_attempt_to_open_a_connection() -> None:
    def refuse() -> StoreConnection:
        raise REFUSED

    reach = Reach()
    with pytest.raises(StoreError):
        Pool(refuse, 1, reach).connection().__enter__()
    assert reach.states.unreachable.reason == "Connection refused (2003)"


class Time:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def attempts_of(reach: Reach, clock: Time, seconds: float, callers: int) -> list[float]:
    """When the server was tried, while so many callers need a connection every 10 ms and none is accepted."""
    tried: list[float] = []

    def refuse() -> StoreConnection:
        tried.append(clock.now_s)
        raise REFUSED

    pool, until_s = Pool(refuse, 8, reach), clock.now_s + seconds
    while clock.now_s < until_s:
        for _ in range(callers):
            try:
                pool.connection().__enter__()
            except StoreError as error:
                assert error.code == REFUSED.code  # noqa: PT017 - 10,000 times, and pytest.raises takes a millisecond
        clock.now_s += 0.01
    return tried


def test_a_server_that_is_away_for_a_minute_is_tried_about_twice_a_second_whatever_is_asked(
    log: pytest.LogCaptureFixture,
) -> None:
    clock = Time()
    reach = Reach(clock, lambda: 0.5)
    reach.reached()
    tried = attempts_of(reach, clock, 60, callers=5)
    assert 60 / PAUSE_MAX_S <= len(tried) <= 2 * 60 / PAUSE_MAX_S
    assert tried[1] < 2 * PAUSE_MIN_S + 0.01  # A short interruption costs little time.
    reach.reached()
    assert [record.levelname for record in log.records] == ["WARNING", "INFO"]
    assert log.messages[1].endswith("after 60.0 s")


def test_two_proxies_do_not_keep_step() -> None:
    tried = []
    for chance in (0.1, 0.9):
        clock = Time()
        reach = Reach(clock, partial(float, chance))
        reach.reached()
        tried.append({round(at_s, 2) for at_s in attempts_of(reach, clock, 20, callers=1)})
    assert len(tried[0] & tried[1]) < len(tried[0]) / 4


def test_another_server_is_tried_at_once() -> None:
    clock = Time()
    reach = Reach(clock, lambda: 0.0)
    reach.reached()
    attempts_of(reach, clock, 10, callers=1)
    with pytest.raises(StoreError):
        reach.check()
    reach.server_changed()
    reach.check()


def test_a_server_that_takes_a_clients_connection_is_tried_at_once() -> None:
    clock = Time()
    reach = Reach(clock, lambda: 0.0)
    reach.reached()
    attempts_of(reach, clock, 10, callers=1)
    reach.answered()
    reach.check()
    with pytest.raises(StoreError):
        reach.check()  # One caller tries.


def test_calls_during_the_attempt_wait_for_its_outcome() -> None:
    """The client whose connection ended the pause is not answered with the error from before."""
    reach, begun, go_on = Reach(), threading.Event(), threading.Event()
    opened: list[StoreConnection] = []

    def open_late() -> StoreConnection:
        begun.set()
        assert go_on.wait(10)
        opened.append(Mock(stale=lambda: False, broken=False))
        return opened[-1]

    def use() -> None:
        with pool.connection():
            pass

    reach.reached()
    reach.failed(REFUSED)
    reach.answered()
    pool = Pool(open_late, 8, reach)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(use)
        assert begun.wait(10)
        second = threads.submit(use)
        eventually(lambda: second.running() and pool._changed._waiters)  # type: ignore[attr-defined]
        go_on.set()
        first.result(10)
        second.result(10)


class Probed(MemoryStore):
    """A store that counts its reads and holds them until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.down = self.read_only = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def read(self, text: str) -> Timed[Sequence[Sequence[str | None]]]:
        self.reads += 1
        assert self.may_answer.wait(20)
        if self.down:
            raise REFUSED
        return Timed([["1" if self.read_only else "0"]], self.now_ns)


def test_concurrent_health_checks_cause_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "PROBE_LASTS_S", 3600.0)

    async def play() -> None:
        store = Probed()
        engine = Engine(store, EngineSettings())
        probe = Probe(engine, ServerStates())
        assert await asyncio.gather(*(probe.reason() for _ in range(50))) == [None] * 50
        assert await probe.reason() is None
        assert store.reads == 1
        await engine.close()

    asyncio.run(play())


def test_each_result_is_soon_outdated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "PROBE_LASTS_S", 0.0)

    async def play() -> None:
        store = Probed()
        engine = Engine(store, EngineSettings())
        probe = Probe(engine, ServerStates())
        assert await probe.reason() is None
        store.down = True
        assert await probe.reason() == "Connection refused (2003)"
        store.down = False
        assert await probe.reason() is None
        await engine.close()

    asyncio.run(play())


def test_a_server_that_answers_other_calls_is_healthy_however_long_the_probe_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "PROBE_WAIT_S", 0.3)

    async def play() -> None:
        store = Probed()
        store.may_answer.clear()
        engine = Engine(store, EngineSettings())
        probe = Probe(engine, ServerStates())
        asked = asyncio.ensure_future(probe.reason())
        while not asked.done():
            await engine._executor.call(store.discover)
        assert await asked is None
        store.may_answer.set()
        await probe.close()
        await engine.close()

    asyncio.run(play())


def test_a_server_that_does_not_answer_delays_nobody_and_gets_no_second_probe_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "PROBE_WAIT_S", 0.01)
    monkeypatch.setattr(admin, "PROBE_LASTS_S", 0.0)

    async def play() -> None:
        store = Probed()
        store.may_answer.clear()
        engine = Engine(store, EngineSettings())
        probe = Probe(engine, ServerStates())
        for _ in range(3):
            assert await probe.reason() == admin.UNANSWERED
        assert store.reads == 1
        store.may_answer.set()
        while await probe.reason() is not None:
            pass
        await probe.close()
        await engine.close()

    asyncio.run(play())


def _has_seen(states: ServerStates, *, read_only: bool) -> bool:
    return (states.read_only.reason is not None) is read_only


def test_a_read_only_server_is_one_log_line_at_each_end_without_anybody_asking(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin, "PROBE_LASTS_S", 0.0)
    monkeypatch.setattr(admin, "WATCH_S", 0.0)

    async def play() -> None:
        store = Probed()
        engine = Engine(store, EngineSettings())
        states = ServerStates()
        probe = Probe(engine, states)
        probe.start()
        for store.read_only in (True, False):
            await asyncio.to_thread(eventually, partial(_has_seen, states, read_only=store.read_only))
            assert await probe.unready() == (admin.READ_ONLY if store.read_only else None)
        await probe.close()
        await engine.close()

    asyncio.run(play())
    events = [getattr(record, "event", "") for record in log.records]
    assert events == ["server.read_only", "server.writable"]
