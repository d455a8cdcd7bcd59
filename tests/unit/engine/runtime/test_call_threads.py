"""Calls on threads: what callers get, how many threads there are, and what an end leaves undone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from engine.runtime.call_threads import CallThreads


class Gate:
    """A call that waits on its thread until it is let go."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open = threading.Event()
        self.entered = asyncio.Event()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.entered.set)
        assert self._open.wait(10)
        return threading.current_thread().name

    def let_go(self) -> None:
        self._open.set()


def play(steps: Callable[[CallThreads], Any], threads_max: int = 2) -> None:
    async def main() -> None:
        threads = CallThreads(threads_max, "t")
        try:
            async with asyncio.timeout(10):
                await steps(threads)
        finally:
            threads.close()

    asyncio.run(main())


def test_a_caller_gets_what_its_call_returns_or_raises() -> None:
    async def steps(threads: CallThreads) -> None:
        assert await threads.run(lambda: 5) == 5
        with pytest.raises(ValueError, match="missing"):
            await threads.run(lambda: int("missing"))
        assert await threads.run(threading.get_ident) != threading.get_ident()

    play(steps)


def test_threads_begin_when_they_are_needed_and_only_so_many() -> None:
    async def steps(threads: CallThreads) -> None:
        assert [await threads.run(lambda: threading.current_thread().name) for _ in range(3)] == ["t_0"] * 3
        gates = [Gate(asyncio.get_running_loop()) for _ in range(3)]
        calls = [asyncio.ensure_future(threads.run(gate)) for gate in gates]
        await gates[0].entered.wait()
        await gates[1].entered.wait()
        assert not gates[2].entered.is_set()
        for gate in gates:
            gate.let_go()
        assert set(await asyncio.gather(*calls)) == {"t_0", "t_1"}

    play(steps)


def test_a_call_whose_caller_is_cancelled_before_it_begins_is_not_made() -> None:
    async def steps(threads: CallThreads) -> None:
        gate, made = Gate(asyncio.get_running_loop()), list[int]()
        first = asyncio.ensure_future(threads.run(gate))
        await gate.entered.wait()
        second = asyncio.ensure_future(threads.run(lambda: made.append(1)))
        await asyncio.sleep(0)
        second.cancel()
        gate.let_go()
        await first
        await threads.run(lambda: None)
        assert not made

    play(steps, threads_max=1)


def test_a_caller_that_is_cancelled_while_its_call_runs_leaves_the_thread_in_use() -> None:
    async def steps(threads: CallThreads) -> None:
        gate = Gate(asyncio.get_running_loop())
        first = asyncio.ensure_future(threads.run(gate))
        await gate.entered.wait()
        first.cancel()
        gate.let_go()
        assert await threads.run(lambda: 6) == 6

    play(steps, threads_max=1)


def test_a_result_is_not_kept_until_the_next_call() -> None:
    class Result:
        dropped = threading.Event()

        def __del__(self) -> None:
            self.dropped.set()

    async def steps(threads: CallThreads) -> None:
        await threads.run(Result)
        assert await asyncio.to_thread(Result.dropped.wait, 5)

    play(steps)


def test_at_the_end_waiting_callers_are_cancelled_and_the_threads_end() -> None:
    async def main() -> list[threading.Thread]:
        threads, before = CallThreads(1, "t"), set(threading.enumerate())
        gate = Gate(asyncio.get_running_loop())
        calls = [asyncio.ensure_future(threads.run(call)) for call in (gate, lambda: "never")]
        await gate.entered.wait()
        threads.close()
        gate.let_go()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[0] == "t_0"
        assert isinstance(results[1], asyncio.CancelledError)
        return [thread for thread in threading.enumerate() if thread not in before]

    for thread in asyncio.run(main()):
        thread.join(5)
        assert not thread.is_alive()


def test_a_call_that_returns_after_the_loop_ends_its_thread_silently() -> None:
    gate: list[Gate] = []

    async def main() -> list[threading.Thread]:
        before = set(threading.enumerate())
        threads = CallThreads(1, "t")
        gate.append(Gate(asyncio.get_running_loop()))
        call = asyncio.ensure_future(threads.run(gate[0]))
        await gate[0].entered.wait()
        call.cancel()
        return [thread for thread in threading.enumerate() if thread not in before]

    threads = asyncio.run(main())
    gate[0].let_go()
    deadline_s = time.monotonic() + 5
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
        assert not thread.is_alive()


def _note(order: list[str], name: str) -> None:
    order.append(name)


def test_a_call_may_precede_those_that_have_not_begun() -> None:
    async def steps(threads: CallThreads) -> None:
        order: list[str] = []
        gate = Gate(asyncio.get_running_loop())
        calls: list[asyncio.Future[Any]] = [threads.start(gate)]
        await gate.entered.wait()
        calls += [threads.start(partial(_note, order, name)) for name in ("second", "third")]
        calls += [threads.start(partial(_note, order, name), first=True) for name in ("first", "first, too")]
        gate.let_go()
        await asyncio.gather(*calls)
        assert order == ["first", "first, too", "second", "third"]
        assert await threads.start(lambda: 5, first=True) == 5

    play(steps, threads_max=1)


def test_a_call_that_precedes_others_is_not_made_after_the_end() -> None:
    async def steps(threads: CallThreads) -> None:
        made: list[int] = []
        gate = Gate(asyncio.get_running_loop())
        running = threads.start(gate)
        await gate.entered.wait()
        late = threads.start(lambda: made.append(1), first=True)
        threads.close()
        gate.let_go()
        await running
        assert late.cancelled()
        assert made == []

    play(steps, threads_max=1)
