"""Acknowledgements of one table that are gathered from several clients into one transaction.

While a batch is under way, further ACKs wait and become the next batch, so batches grow with the
load. An ACK that comes alone is not gathered: its client carries it out itself, and waits for
nothing. So is any ACK while a batch takes long, and for a while after one has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from engine.model import Key
from engine.queue_table import QueueTable
from engine.runtime.executor import StoreExecutor
from engine.store.acks import Ack
from engine.store.port import AckUnknownError, Origin, StoreError

ACKS_MAX: Final = 1_000
"""ACKs that wait for the next batch. One has an id and an epoch of 20 digits each, so a batch has
at most 25 kB of ids. Further ACKs are not gathered."""

PATIENCE_S: Final = 0.2
"""A batch takes milliseconds. If one takes longer, the ACKs behind it do not wait for its end: a
lock on the table or a busy engine would delay them all."""

PAUSE_S: Final = 1.0
"""Nothing is gathered for this time after a batch has failed. The cause may last: a privilege on
single columns, another server."""


AckResult = int | AckUnknownError | None
"""The affected rows of an ACK that is committed; None: nothing was done, and its client has to carry it
out."""

BegunAcks = Callable[[], Awaitable[Sequence[int | None]]]
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
    """The ACKs of one table that wait for a batch, and the batch under way."""

    def __init__(self, executor: StoreExecutor, reports: Reports) -> None:
        self._executor = executor
        self._reports = reports
        self._waiting: list[_Waiting] = []
        self._under_way = False
        self._not_before_s = 0.0
        """Nothing is gathered before this time of the loop."""

    def gather(self, queue: QueueTable, ack: Ack, origin: Origin, answer: Callable[[AckResult], object]) -> bool:
        """Carry out an ACK with others. The loop calls `answer` when its result is known.

        Returns False if nothing is gathered now: then `answer` is not called. An ACK cannot be
        withdrawn, as a client that leaves does not withdraw a statement.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s or len(self._waiting) >= ACKS_MAX:
            return False
        self._waiting.append(_Waiting(ack, origin, answer))
        if not self._under_way:
            self._under_way = True
            loop.call_soon(self._begin, queue)  # Behind all that has arrived in this turn of the loop.
        return True

    def _begin(self, queue: QueueTable) -> None:
        """Begin a batch of the ACKs that wait, if there are several for one server."""
        waiting, self._waiting = self._waiting, []
        origin = waiting[0].origin if waiting else None
        batch = [one for one in waiting if one.origin == origin]
        if len(batch) > 1:
            others = [one for one in waiting if one.origin != origin]
            self._executor.spawn(self._run(queue, batch, self._begun(queue, batch)), f"ACKs {queue.id}")
        else:
            others = waiting
            self._under_way = False
        for one in others:
            one.give(None)

    def _begun(self, queue: QueueTable, batch: Sequence[_Waiting]) -> BegunAcks | None:
        """Have the server begin the batch now, if that is possible. A fault in ackstream is the batch's: its
        clients get answers."""
        store = self._executor.store
        acks, origin = [one.ack for one in batch], batch[0].origin
        try:
            return self._executor.begin(store.begin_acks, store.acknowledge_all, queue, acks, origin)
        except Exception as error:  # noqa: BLE001  # `_run` raises it.
            return partial(_failed, error)

    async def _run(self, queue: QueueTable, batch: Sequence[_Waiting], begun: BegunAcks | None) -> None:
        loop = asyncio.get_running_loop()
        patience = loop.call_later(PATIENCE_S, self._pause)
        try:
            results = await self._acknowledged(queue, batch, begun)
        except BaseException:  # The engine stops, and the store may still commit. Or it is a fault in ackstream.
            self._pause()
            results = [AckUnknownError("ackstream has stopped")] * len(batch)
            raise
        finally:
            patience.cancel()
            try:
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
            counts = await call()
        except AckUnknownError as error:
            self._pause()
            self._executor.report(f"acks of {queue.id}", error)
            self._reports.suspected([ack.key for ack in acks])
            return [error] * len(batch)
        except StoreError as error:
            self._pause()
            self._executor.report(f"acks of {queue.id}", error)
            return [None] * len(batch)
        counters.ack_batches += 1
        counters.acks_gathered += len(counts) - counts.count(None)
        self._reports.settled([ack.key for ack, count in zip(acks, counts, strict=True) if count])
        return counts

    def _pause(self) -> None:
        """Gather nothing for a while. Those that wait carry out their ACKs themselves."""
        self._not_before_s = asyncio.get_running_loop().time() + PAUSE_S
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.give(None)


async def _failed(error: Exception) -> Sequence[int | None]:
    raise error
