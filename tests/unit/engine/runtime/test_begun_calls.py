"""Calls that the store has begun, and whose replies the event loop waits for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest

from engine.model import ClaimResult, Wanted
from engine.queue_table import QueueTable
from engine.runtime.executor import EngineSettings, StoreExecutor
from engine.store.port import StoreError, Timed
from tests.support.memory_store import MemoryStore
from tests.support.play import queue_table

NOW_NS = 1_790_000_000 * 10**9
THREADS = 2
CLAIM = (queue_table(), [Wanted(1, 0, 10**9)], None, 1000, 0)
NOTHING = Timed(ClaimResult((), None), NOW_NS)


class Call:
    """A call whose reply has two bytes, of which the second shows whether its end may wait."""

    def __init__(self, *, unsent: bool = False, patience_s: float = 60.0) -> None:
        self.ours, self.servers = socket.socketpair()
        self.fileno, self.patience_s, self.waits = self.ours.fileno(), patience_s, unsent
        self.read = b""
        self.came, self.finished = asyncio.Event(), threading.Event()
        self.finished_on: list[threading.Thread] = []
        self.error: Exception | None = None
        self.refused = False

    def arrived(self) -> bool:
        piece = self.ours.recv(100)
        self.read += piece
        self.came.set()
        self.waits = not piece or self.read.endswith(b"!")
        return not piece or len(self.read) == 2

    def finish(self) -> Timed[ClaimResult] | None:
        self.finished_on.append(threading.current_thread())
        self.finished.set()
        if self.error is not None:
            raise self.error
        return None if self.refused else NOTHING

    def abort(self) -> None:
        self.ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.ours.close()
        self.servers.close()


class BeginningStore(MemoryStore):
    """A store that begins these calls."""

    def __init__(self, *calls: Call) -> None:
        super().__init__(now_ns=NOW_NS)
        self.calls = list(calls)

    def begin_claim(self, *_claim: object, no_triggers: bool = False) -> Call | None:
        return self.calls.pop(0) if self.calls else None

    def claim_and_fetch(self, *_claim: object) -> Timed[ClaimResult]:
        return Timed(ClaimResult((), None, None, (7,)), NOW_NS)


Scene = Callable[[StoreExecutor], Awaitable[None]]


def play(scene: Scene, *calls: Call) -> None:
    async def played() -> None:
        executor = StoreExecutor(BeginningStore(*calls), EngineSettings(threads=THREADS))
        try:
            async with asyncio.timeout(10):
                await scene(executor)
        finally:
            await executor.close()

    try:
        asyncio.run(played())
    finally:
        for call in calls:
            call.close()


def begin(executor: StoreExecutor) -> asyncio.Future[ClaimResult]:
    begun = executor.begin(executor.store.begin_claim, executor.store.claim_and_fetch, *CLAIM)
    assert begun is not None
    return asyncio.ensure_future(begun())


def test_the_loop_reads_what_comes_and_gives_the_result_when_it_is_complete() -> None:
    call = Call()

    async def scene(executor: StoreExecutor) -> None:
        result = begin(executor)
        call.servers.send(b"o")
        await call.came.wait()
        assert not result.done()
        call.servers.send(b"k")
        assert (await result).claims == ()
        assert call.finished_on == [threading.main_thread()]

    play(scene, call)


@pytest.mark.parametrize("reply", [b"o!", None])
def test_what_may_wait_for_the_server_is_finished_on_a_thread_though_all_others_wait_for_it(
    reply: bytes | None,
) -> None:
    """Else the threads could wait for connections that calls without a thread have."""
    call = Call()

    async def scene(executor: StoreExecutor) -> None:
        finished = threading.Event()

        def wait_for_it(_queue: QueueTable) -> Timed[bool]:
            return Timed(finished.wait(10), NOW_NS)

        calls = [asyncio.ensure_future(executor.call(wait_for_it, queue_table())) for _ in range(2 * THREADS)]
        await asyncio.sleep(0)
        result = begin(executor)
        call.servers.send(reply) if reply else call.servers.shutdown(socket.SHUT_RDWR)
        assert (await result).claims == ()
        finished.set()
        assert all(await asyncio.gather(*calls))
        assert call.finished_on != [threading.main_thread()]

    play(scene, call)


def test_one_that_the_server_has_refused_is_called_again_as_usual() -> None:
    call = Call()
    call.refused = True

    async def scene(executor: StoreExecutor) -> None:
        result = begin(executor)
        call.servers.send(b"o!")
        assert (await result).waiting == (7,)

    play(scene, call)


def test_replies_that_cannot_be_followed_are_its_error_and_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call()
    call.error = StoreError("malformed")
    tries = list[None]()

    def fails() -> bool:
        tries.append(None)
        raise IndexError

    monkeypatch.setattr(call, "arrived", fails)

    async def scene(executor: StoreExecutor) -> None:
        result = begin(executor)
        call.servers.send(b"?")
        with pytest.raises(StoreError, match="malformed"):
            await result
        assert len(tries) == 1
        assert call.finished_on != [threading.main_thread()]

    play(scene, call)


def test_without_another_thread_its_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call()
    call.error = StoreError("the connection to the server broke")

    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scene(executor: StoreExecutor) -> None:
        result = begin(executor)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        call.servers.send(b"o!")
        with pytest.raises(StoreError, match="broke"):
            await result
        assert call.ours.recv(1) == b""

    play(scene, call)


def test_one_that_could_not_be_sent_is_finished_on_a_thread_at_once() -> None:
    call = Call(unsent=True)

    async def scene(executor: StoreExecutor) -> None:
        assert (await begin(executor)).claims == ()
        assert call.finished_on != [threading.main_thread()]

    play(scene, call)


@pytest.mark.parametrize("reply", [b"ok", b"o!"])
def test_its_error_is_the_callers(reply: bytes) -> None:
    call = Call()
    call.error = StoreError("no", code=4711)

    async def scene(executor: StoreExecutor) -> None:
        result = begin(executor)
        call.servers.send(reply)
        with pytest.raises(StoreError, match="no"):
            await result
        assert executor.counters.store_errors == 1

    play(scene, call)


def test_one_without_a_reply_is_aborted_after_its_patience() -> None:
    call = Call(patience_s=0.01)
    call.error = StoreError("the connection to the server broke", code=2013)

    async def scene(executor: StoreExecutor) -> None:
        with pytest.raises(StoreError, match="broke"):
            await begin(executor)

    play(scene, call)


@pytest.mark.parametrize("reply", [b"ok", b"o!"])
def test_a_caller_that_leaves_withdraws_nothing(reply: bytes) -> None:
    call = Call()

    async def scene(executor: StoreExecutor) -> None:
        result = begin(executor)
        await asyncio.sleep(0)
        result.cancel()
        call.servers.send(reply)
        assert await asyncio.to_thread(call.finished.wait, 10)

    play(scene, call)


def test_an_executor_that_is_closed_finishes_the_calls_that_it_waits_for() -> None:
    """So their connections are given back, and closed."""
    call = Call()
    call.error = StoreError("the store is closed")

    async def scene(executor: StoreExecutor) -> None:
        result = begin(executor)
        await executor.close()
        result.cancel()

    play(scene, call)
    assert call.finished_on == [threading.main_thread()]


def test_the_servers_clock_is_read_between_the_beginning_of_a_call_and_its_result() -> None:
    call = Call()

    async def scene(executor: StoreExecutor) -> None:
        observed = list[int]()

        def observe(called_ns: int, answered_ns: int, server_ns: int) -> bool:
            observed.extend((called_ns, answered_ns, server_ns))
            return False

        executor.clock.observe = observe  # type: ignore[method-assign]
        before_ns = executor.clock.now().mono_ns
        result = begin(executor)
        after_ns = executor.clock.now().mono_ns
        call.servers.send(b"ok")
        await result
        called_ns, answered_ns, now_ns = observed
        assert before_ns <= called_ns <= after_ns <= answered_ns
        assert now_ns == NOW_NS

    play(scene, call)


def test_nothing_is_begun_on_a_table_that_was_locked_a_moment_ago() -> None:
    call = Call()

    async def scene(executor: StoreExecutor) -> None:
        def fails(_queue: QueueTable) -> Timed[None]:
            raise StoreError("Lock wait timeout exceeded", code=1205)

        with pytest.raises(StoreError):
            await executor.call(fails, CLAIM[0])
        assert executor.begin(executor.store.begin_claim, executor.store.claim_and_fetch, *CLAIM) is None

    play(scene, call)
