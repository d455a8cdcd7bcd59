"""Polls of several queues: one statement shows which of them have unacknowledged messages.

Queues that were empty are polled at the same times (`ScanScheduler.full_scan_ns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from engine.model import TableId
from engine.queue_table import QueueTable
from engine.refused import InParts
from engine.store.port import StoreError

GATHER_S: Final = 0.01
"""Polls of this time are one statement. Each queue has a timer of its own."""
POLLED_MAX: Final = 200
"""Queues in one statement: its text has 30 kB then."""

_Waiting = tuple[QueueTable, asyncio.Future[bool]]


class Polls:
    """The polls that wait for their statement. Its methods are called on the event loop's thread."""

    def __init__(
        self,
        unacknowledged: Callable[[Sequence[QueueTable]], Awaitable[frozenset[TableId]]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`unacknowledged` returns those of the queues that have unacknowledged messages. `spawn` runs a
        background task."""
        self._unacknowledged = unacknowledged
        self._spawn = spawn
        self._waiting: list[_Waiting] = []

    async def is_empty(self, queue: QueueTable) -> bool:
        """Whether the queue has no unacknowledged message. Raises what `unacknowledged` raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        if not self._waiting:
            loop.call_later(GATHER_S, self._begin)
        self._waiting.append((queue, answer))
        return await answer

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), POLLED_MAX):
            self._spawn(self._poll(waiting[at : at + POLLED_MAX]))

    async def _poll(self, polled: Sequence[_Waiting]) -> None:
        """Poll these queues together. If one of them is the reason of an error, the others are polled without it."""
        parts, left = InParts(range(len(polled))), dict(enumerate(polled))
        error: Exception = StoreError("not polled, because so many other polls have failed")
        while part := parts.next():
            queues = [polled[at][0] for at in part]
            try:
                found = await self._unacknowledged(queues)
            except Exception as raised:  # noqa: BLE001  # The queue takes note of it, and is scanned.
                error = raised
                if not (isinstance(raised, StoreError) and (raised.refused or raised.lasting or raised.waited)):
                    break
                if len(part) == 1:
                    _answer(left.pop(part[0]), outcome=raised)
                parts.refused(str(raised))
            else:
                parts.done()
                for at in part:
                    _answer(left.pop(at), outcome=polled[at][0].id not in found)
        for waiting in left.values():
            _answer(waiting, outcome=error)


def _answer(waiting: _Waiting, *, outcome: bool | Exception) -> None:
    _, answer = waiting
    if answer.done():  # Its queue is gone.
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
