"""Reading statements of ours that are long, while the event loop goes on with other sessions.

A short statement is read at once. An ACK, which can have 16 MB, is read in steps, with a turn of the loop between them.
The others are cut into tokens by Python, which takes seconds and a hundred times the text's bytes where the text is as
long as is possible: that is done on a thread, for one statement at a time over all sessions.
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
"""A text of so many bytes has a thousand tokens, which take a few milliseconds."""


class Reading:
    """Reads for all sessions of a proxy."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reading")

    async def whole(self, session: ClientSession, text: bytes, read: Callable[[bytes], T]) -> T:
        """What `read` makes of the text; raises what it raises, and what interrupts the session meanwhile."""
        if len(text) <= AT_ONCE_BYTES_MAX:
            return read(text)
        found = await asyncio.get_running_loop().run_in_executor(self._thread, read, text)
        session.check_interrupted()
        return found

    def close(self) -> None:
        """Read no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


async def in_steps(session: ClientSession, steps: Generator[None, None, T]) -> T:
    """What the generator returns; raises what it raises, and what interrupts the session meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found
        await asyncio.sleep(0)
        session.check_interrupted()
