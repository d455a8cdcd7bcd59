"""Reads long queue statements while the event loop goes on with other sessions.

A short statement is read at once. An ACK of up to 16 MB is read in steps, with a turn of the loop
between them. Other statements are split into tokens in Python. For the longest possible text that
takes seconds and a hundred times its bytes, so it is done on a thread, for one statement at a time
over all sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

T = TypeVar("T")

AT_ONCE_BYTES_MAX: Final = 4_096
"""A text of this length has about a thousand tokens, which take a few milliseconds."""


class LongStatementReader:
    """Reads statements for all sessions of a proxy."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reading")

    async def read(self, session: ClientSession, text: bytes, read: Callable[[bytes], T]) -> T:
        """The result of `read(text)`. Raises what it raises, and the error that interrupts the
        session meanwhile."""
        if len(text) <= AT_ONCE_BYTES_MAX:
            return read(text)
        found = await asyncio.get_running_loop().run_in_executor(self._thread, read, text)
        session.check_interrupted()
        return found

    def close(self) -> None:
        """Read no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


async def in_steps(session: ClientSession, steps: Generator[None, None, T]) -> T:
    """The generator's result. Raises what it raises, and the error that interrupts the session
    meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found
        await asyncio.sleep(0)
        session.check_interrupted()
