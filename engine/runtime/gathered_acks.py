"""Acknowledgements of one table that the engine carries out for clients.

ACKs of few messages are gathered from several clients into one transaction. While a batch of them is under
way, further ones wait and become the next batch, so batches grow with the load. An ACK of many messages is
a batch of its own, and waits for no other. If a batch takes long, or has failed, ACKs are left to their
clients for a while, who carry them out in their own sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from engine.model import Key
from engine.queue_table import QueueTable
from engine.runtime.executor import StoreExecutor
from engine.store.acks import Ack
from engine.store.port import AckResult, AckUnknownError, Origin, StoreError

ACKS_MAX: Final = 1_000
"""ACKs that wait for the next batch. Further ones are left to their clients."""

FEW: Final = 16
"""Messages of an ACK that is gathered. The commit that a larger one would save costs less than the wait."""

PATIENCE_S: Final = 0.2
"""A batch takes milliseconds. If one takes longer, the ACKs behind it do not wait for its end: a
lock on the table or a busy engine would delay them all."""

PAUSE_S: Final = 1.0
"""The engine carries out no ACKs of the table for this time after a batch has failed. The cause may last: a
privilege on single columns, another server."""


BegunAcks = Callable[[], Awaitable[Sequence[AckResult]]]
"""Waits for a batch that the server carries out."""


class _Waiting(NamedTuple):
    ack: Ack
    origin: Origin
    answer: Callable[[AckResult], object]

    def give(self, result: AckResult) -> None:
        asyncio.get_running_loop().call_soon(self.answer, result)


@dataclass(frozen=True, slots=True)
class Reports:
    """What is reported of a batch before its clients get their answers. Both return at once."""

    settled: Callable[[Sequence[Key]], None]
    """These messages are acknowledged."""
    suspected: Callable[[Sequence[Key]], None]
    """These messages may be acknowledged."""


class GatheredAcks:
    """The ACKs of one table that wait for a batch, and the batches under way."""

    def __init__(self, executor: StoreExecutor, reports: Reports) -> None:
        self._executor = executor
        self._reports = reports
        self._waiting: list[_Waiting] = []
        self._under_way = False
        """Whether a batch of gathered ACKs is."""
        self._not_before_s = 0.0
        """Nothing is carried out before this time of the loop."""

    def carry_out(self, queue: QueueTable, ack: Ack, origin: Origin, answer: Callable[[AckResult], object]) -> bool:
        """Carry out an ACK. The loop calls `answer` when its result is known.

        Returns False if nothing is carried out now: then `answer` is not called. An ACK cannot be
        withdrawn, as a client that leaves does not withdraw a statement.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s or len(self._waiting) >= ACKS_MAX:
            return False
        one = _Waiting(ack, origin, answer)
        if len(ack.keys) > FEW:
            self._spawn(queue, [one], gathered=False)
            return True
        self._waiting.append(one)
        if not self._under_way:
            self._under_way = True
            loop.call_soon(self._begin, queue)  # Behind all that has arrived in this turn of the loop.
        return True

    def _begin(self, queue: QueueTable) -> None:
        """Begin a batch of the ACKs that wait for the server of the first of them."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            self._under_way = False
            return
        origin = waiting[0].origin
        self._waiting = [one for one in waiting if one.origin != origin]
        self._spawn(queue, [one for one in waiting if one.origin == origin], gathered=True)

    def _spawn(self, queue: QueueTable, batch: Sequence[_Waiting], *, gathered: bool) -> None:
        begun = self._begun(queue, batch)
        self._executor.spawn(self._run(queue, batch, begun, gathered=gathered), f"ACKs {queue.id}")

    def _begun(self, queue: QueueTable, batch: Sequence[_Waiting]) -> BegunAcks | None:
        """Have the server begin the batch now, if that is possible. A fault in ackstream is the batch's: its
        clients get answers."""
        store = self._executor.store
        acks, origin = [one.ack for one in batch], batch[0].origin
        try:
            return self._executor.begin(store.begin_acks, store.acknowledge_all, queue, acks, origin)
        except Exception as error:  # noqa: BLE001  # `_run` raises it.
            return partial(_failed, error)

    async def _run(
        self, queue: QueueTable, batch: Sequence[_Waiting], begun: BegunAcks | None, *, gathered: bool
    ) -> None:
        patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._pause)
        try:
            results = await self._acknowledged(queue, batch, begun)
        except BaseException:  # The engine stops, and the store may still commit. Or it is a fault in ackstream.
            self._pause()
            results = [AckUnknownError("ackstream has stopped")] * len(batch)
            raise
        finally:
            patience.cancel()
            try:
                if gathered:
                    self._begin(queue)  # First: the answers take longer than the server needs for the next batch.
            finally:
                for one, result in zip(batch, results, strict=True):
                    one.give(result)

    async def _acknowledged(
        self, queue: QueueTable, batch: Sequence[_Waiting], begun: BegunAcks | None
    ) -> Sequence[AckResult]:
        acks, store, counters = [one.ack for one in batch], self._executor.store, self._executor.counters
        try:
            call = begun or partial(self._executor.call, store.acknowledge_all, queue, acks, batch[0].origin)
            results = await call()
        except AckUnknownError as error:
            self._pause()
            self._executor.report(f"acks of {queue.id}", error)
            self._reports.suspected(_keys(acks))
            return [error] * len(batch)
        except StoreError as error:
            self._pause()
            self._executor.report(f"acks of {queue.id}", error)
            return [None] * len(batch)
        counters.ack_batches += 1
        counters.acks_gathered += sum(isinstance(result, int) for result in results)
        self._report(acks, results)
        return results

    def _report(self, acks: Sequence[Ack], results: Sequence[AckResult]) -> None:
        """Of an ACK that has acknowledged some of its messages, it is not known which."""
        settled = [ack for ack, result in zip(acks, results, strict=True) if result == len(ack.keys)]
        some = [ack for ack, result in zip(acks, results, strict=True) if result and result != len(ack.keys)]
        self._reports.settled(_keys(settled))
        if some:
            self._reports.suspected(_keys(some))

    def _pause(self) -> None:
        """Carry out nothing for a while. Those that wait carry out their ACKs themselves."""
        self._not_before_s = asyncio.get_running_loop().time() + PAUSE_S
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.give(None)


def _keys(acks: Iterable[Ack]) -> list[Key]:
    return [key for ack in acks for key in ack.keys]


async def _failed(error: Exception) -> Sequence[AckResult]:
    raise error
