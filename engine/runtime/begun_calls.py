"""Calls that the store has begun (`port.BegunCall`), and whose results the event loop waits for.

A thread that waits for a reply has to be woken, and both times it needs the interpreter lock, which the
event loop holds while it is busy. So the loop itself reads what comes. It calls `finish` as soon as that
cannot wait, and leaves it to a thread otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from engine.runtime.call_threads import CallThreads
from engine.store.port import BegunCall

T = TypeVar("T")


class BegunCalls:
    """The calls that are waited for. Its methods are called on the event loop's thread."""

    def __init__(self, threads: CallThreads) -> None:
        self._threads = threads
        self._waiting: dict[BegunCall[Any], asyncio.TimerHandle] = {}

    def start(self, call: BegunCall[Any], finish: Callable[[], T]) -> asyncio.Future[T]:
        """Wait for the replies, then call `finish`, which must call `call.finish` once. The future has what it
        returns or raises. Cancelling the future does not withdraw the call."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if call.waits:
            self._finish(call, finish, answer)
        else:
            loop.add_reader(call.fileno, self._readable, loop, call, finish, answer)
            self._waiting[call] = loop.call_later(call.patience_s, call.abort)
        return answer

    def close(self) -> None:
        """Give up the calls that are waited for. Their connections are lost."""
        for call in list(self._waiting):
            self._forget(asyncio.get_running_loop(), call)
            with suppress(Exception):
                call.finish()

    def _readable(
        self, loop: asyncio.AbstractEventLoop, call: BegunCall[Any], finish: Callable[[], T], answer: asyncio.Future[T]
    ) -> None:
        try:
            arrived = call.arrived()
        except Exception:  # noqa: BLE001  # The replies cannot be followed. `finish` raises it, and the connection ends.
            arrived = call.waits = True
        if arrived:
            self._forget(loop, call)
            self._finish(call, finish, answer)

    def _forget(self, loop: asyncio.AbstractEventLoop, call: BegunCall[Any]) -> None:
        loop.remove_reader(call.fileno)
        self._waiting.pop(call).cancel()

    def _finish(self, call: BegunCall[Any], finish: Callable[[], T], answer: asyncio.Future[T]) -> None:
        if call.waits:
            try:
                self._threads.start_apart(finish).add_done_callback(partial(_pass_on, answer))
                return
            except RuntimeError:
                call.abort()  # So it does not wait.
        try:
            result = finish()
        except BaseException as error:  # noqa: BLE001  # The caller handles it.
            if not answer.done():  # Else the caller was cancelled.
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)


def _pass_on(answer: asyncio.Future[T], finished: asyncio.Future[T]) -> None:
    if answer.done():
        finished.exception()  # It is not logged as forgotten.
    elif (error := finished.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(finished.result())
