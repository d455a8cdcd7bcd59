"""Blocking calls on threads, for the event loop.

A call costs half of what it costs through ThreadPoolExecutor (30 and 55 µs of CPU time, of which 3
would remain without a thread): there is one future instead of two, and no lock besides the queue's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Call = tuple[asyncio.Future[Any], Callable[[], Any]]


class Mark(Enum):
    """What is in the queue in place of a call."""

    FIRST = auto()
    """A call that precedes the others was added."""
    END = auto()
    """The thread that takes it ends."""


class CallThreads:
    """Up to `threads_max` threads, which begin when they are needed. Its methods are called on the
    event loop's thread."""

    def __init__(self, threads_max: int, name: str) -> None:
        """`name`: of the threads, before their numbers."""
        self._threads_max = threads_max
        self._name = name
        self._more = 0
        self._begun = 0
        self._under_way = 0
        self._calls: SimpleQueue[_Call | Mark] = SimpleQueue()
        self._first: deque[_Call] = deque()
        """Calls that precede those in the queue, where each has a mark: it wakes a thread."""

    async def run(self, function: Callable[[], T]) -> T:
        """Call the function on a thread. Returns what it returns, and raises what it raises.

        If the caller is cancelled before the call has begun, it is not made.
        """
        return await self.start(function)

    def start(self, function: Callable[[], T], *, first: bool = False) -> asyncio.Future[T]:
        """Begin a call of the function on a thread. `first`: it precedes the calls that have not begun."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._begin_threads()
        if first:
            self._first.append((answer, function))
            self._calls.put(Mark.FIRST)
        else:
            self._calls.put((answer, function))
        return answer

    def start_apart(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Begin a call on a thread of its own, which ends with it: the call waits for none of the others.
        Raises RuntimeError if the system gives no thread."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._run, args=(answer, function), name=f"{self._name}_apart", daemon=True).start()
        self._under_way += 1
        return answer

    def set_more(self, threads: int) -> None:
        """There may be so many threads more from now on: as many calls last. Those that are too many then end when
        they have nothing to do."""
        self._more = threads
        self._begin_threads()
        while self._begun > self._threads_max + self._more:
            self._begun -= 1
            self._calls.put(Mark.END)

    def _begin_threads(self) -> None:
        while self._begun < min(self._under_way, self._threads_max + self._more):
            threading.Thread(target=self._work, name=f"{self._name}_{self._begun}", daemon=True).start()
            self._begun += 1

    def close(self) -> None:
        """End the threads when their calls return. Calls that have not begun are not made, and their
        callers are cancelled."""
        with suppress(IndexError):
            while True:
                self._first.popleft()[0].cancel()
        with suppress(Empty):
            while True:
                if not isinstance(call := self._calls.get_nowait(), Mark):
                    call[0].cancel()
        for _ in range(self._begun):
            self._calls.put(Mark.END)

    def _work(self) -> None:
        while (call := self._calls.get()) is not Mark.END:
            if self._first and not self._run_first():
                return
            if call is not Mark.FIRST and not self._run(*call):
                return
            del call  # The next one may come late.

    def _run_first(self) -> bool:
        """Run the calls that precede the others. Returns False if the loop is closed."""
        with suppress(IndexError):
            while True:
                if not self._run(*self._first.popleft()):
                    return False
        return True

    def _run(self, answer: asyncio.Future[Any], function: Callable[[], Any]) -> bool:
        """Returns False if the loop is closed."""
        result, error = None, None
        if not answer.cancelled():
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001  # The caller handles it.
                error = raised
        try:
            answer.get_loop().call_soon_threadsafe(self._answered, answer, result, error)
        except RuntimeError:
            return False
        return True

    def _answered(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._under_way -= 1
        if answer.done():  # The caller was cancelled.
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
