"""Calls of a slow function, shared by concurrent callers.

A result must not be older than the call. So a caller that comes while a run is under way waits for
the next run, together with all others that come meanwhile. Any number of concurrent callers costs
two runs for each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedRuns(Generic[K, T]):
    """Runs `run` at most once at a time for each key."""

    def __init__(self, run: Callable[[K], Awaitable[T]]) -> None:
        self._run = run
        self._running: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}

    async def __call__(self, key: K) -> T:
        """Return, or raise, the outcome of a run that began after this call."""
        task = self._next.get(key)
        if task is None:
            before = self._running.get(key)
            task = asyncio.get_running_loop().create_task(self._after(before, key))
            task.add_done_callback(_seen)
            if before is None:
                self._running[key] = task
            else:
                self._next[key] = task
        return await asyncio.shield(task)  # Cancelling one caller leaves the run to the others.

    async def close(self) -> None:
        """Cancel all runs, and return when they have ended."""
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _after(self, before: asyncio.Task[T] | None, key: K) -> T:
        if before is not None:
            await asyncio.wait([before])
            self._running[key] = self._next.pop(key)
        try:
            return await self._run(key)
        finally:
            if key not in self._next:
                self._running.pop(key, None)


def _seen(task: asyncio.Task[T]) -> None:
    """Retrieve the exception: asyncio would log it if all callers were cancelled."""
    if not task.cancelled():
        task.exception()
