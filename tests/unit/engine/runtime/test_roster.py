"""The checks of the roster, which keep the lock that shows that the proxy lives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from engine.runtime.call_threads import CallThreads
from engine.runtime.executor import EngineSettings, StoreExecutor
from engine.runtime.roster import RosterWatch
from engine.store.port import Roster, Timed
from tests.support.memory_store import MemoryStore

NOW_NS = 10**18
SEEN = Roster(3, frozenset({4}))


def waits(entered: Callable[[], object], opened: threading.Event) -> Timed[None]:
    """A store call that lasts until it is let go."""
    entered()
    assert opened.wait(10)
    return Timed(None, NOW_NS)


def played(scene: Callable[[RosterWatch, Callable[[], None]], Coroutine[Any, Any, None]]) -> None:
    """Play a scene while each thread is in a call, which the scene can let go."""

    async def play() -> None:
        loop, entered, opened = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
        executor = StoreExecutor(MemoryStore(now_ns=NOW_NS, roster_found=SEEN), EngineSettings(threads=1))
        call = partial(waits, partial(loop.call_soon_threadsafe, entered.set), opened)
        calling = asyncio.ensure_future(executor.call(call))
        try:
            async with asyncio.timeout(10):
                await entered.wait()
                await scene(RosterWatch(executor, tuple, lambda _: None), opened.set)
                await calling
        finally:
            opened.set()
            await executor.close()

    asyncio.run(play())


def test_a_check_does_not_wait_for_other_calls() -> None:
    async def scene(watch: RosterWatch, let_go: Callable[[], None]) -> None:
        await watch.check()
        assert watch.found == SEEN
        let_go()

    played(scene)


def test_a_check_for_which_the_system_gives_no_thread_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(CallThreads, "start_apart", refuse)

    async def scene(watch: RosterWatch, let_go: Callable[[], None]) -> None:
        checking = asyncio.ensure_future(watch.check())
        let_go()
        await checking
        assert watch.found == SEEN

    played(scene)
