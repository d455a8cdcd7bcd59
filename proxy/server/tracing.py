"""Tracing: each delivery of a message with a trace context is a span that is linked to it.

The context is the message's column `traceparent`, or came with its INSERT through this proxy, in a
comment or a query attribute. Deliveries are only noted when they happen. Every FLUSH_S, the columns of
those that were noted are read, by one statement for each queue, and the spans are made. All is bounded
and of use for traces alone: what does not fit has no span.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease
from engine.model import NS_PER_S, Key, TableId
from engine.queue_table import QueueTable
from engine.service import Engine
from engine.store.port import StoreError
from engine.store.queries import TableStatements
from proxy.server.otel_adapter import Spans
from proxy.session.internal_queries import from_hex
from proxy.session.queries import sql
from proxy.settings import Settings
from proxy.wire.trace_context import NAME

log = logging.getLogger(__name__)

FLUSH_S = 0.2
"""Short enough that a row is seldom deleted before its context is read."""
NOTED_MAX = 10_000
"""Deliveries between two flushes, which have a span."""
CONTEXTS_MAX = 10_000
"""Contexts of INSERTs that are remembered, the last ones: of messages that wait longer, only the column
shows the context."""
READ_MAX = 1_000
"""Messages whose columns one statement reads."""


class Makes(Protocol):
    """What makes spans (Spans)."""

    def delivery(
        self, name: str, context: str, start_ns: int, end_ns: int, attributes: Mapping[str, str | int | float]
    ) -> None:
        """A delivery between these times."""


class Noted(NamedTuple):
    """A delivery."""

    queue: QueueTable
    key: Key
    attempt: int
    due_ns: int
    sent_ns: int


class Tracing:
    """The engine's tracer."""

    def __init__(self, engine: Engine, spans: Makes) -> None:
        self._engine = engine
        self._spans = spans
        self._noted: list[Noted] = []
        self._contexts: OrderedDict[tuple[TableId, Key], str] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def enqueued(self, table: TableId, ids: range, context: str) -> None:
        """An INSERT with this trace context probably made the messages of these ids."""
        for key in ids[-CONTEXTS_MAX:]:
            self._contexts[table, key] = context
        while len(self._contexts) > CONTEXTS_MAX:
            self._contexts.popitem(last=False)

    def delivered(self, queue: QueueTable, leases: Sequence[Lease], now: Instant) -> None:
        """The rows of these leases were passed on."""
        if NAME not in queue.columns and not self._contexts:
            return
        for lease in leases[: NOTED_MAX - len(self._noted)]:
            # A claim has counted the delivery. A lock has not.
            attempt = lease.epoch + lease.locked
            self._noted.append(Noted(queue, lease.key, attempt, lease.due_ns, now.server_ns))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush_soon)

    def _flush_soon(self) -> None:
        if self._flushing is None or self._flushing.done():
            self._timer = None
            self._flushing = asyncio.ensure_future(self.flush())
        else:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush_soon)

    async def flush(self) -> None:
        """Make the spans of all noted deliveries."""
        noted, self._noted = self._noted, []
        by_queue: dict[TableId, list[Noted]] = {}
        for delivery in noted:
            by_queue.setdefault(delivery.queue.id, []).append(delivery)
        for deliveries in by_queue.values():
            for at in range(0, len(deliveries), READ_MAX):
                await self._make(deliveries[at : at + READ_MAX])

    async def close(self) -> None:
        """Make the spans that are left."""
        self._engine.trace(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await self._flushing
        await self.flush()

    async def _make(self, deliveries: Sequence[Noted]) -> None:
        """Make the spans of deliveries of one queue."""
        queue = deliveries[-1].queue
        found = await self._columns(queue, {delivery.key for delivery in deliveries})
        for delivery in deliveries:
            context = found.get(delivery.key) or self._contexts.get((queue.id, delivery.key))
            if context is not None:
                due_ns = min(delivery.due_ns or delivery.sent_ns, delivery.sent_ns)  # 0 was a default, and is no time.
                self._spans.delivery(
                    f"deliver {queue.id}", context, due_ns, delivery.sent_ns, _attributes(delivery, due_ns)
                )

    async def _columns(self, queue: QueueTable, keys: set[Key]) -> Mapping[Key, str]:
        """The contexts in the columns of messages."""
        if NAME not in queue.columns:
            return {}
        statements = TableStatements(queue)
        words = {**statements.words, "ids": statements.ids(keys), "limit": READ_MAX}
        try:
            rows, _ = await self._engine.read(sql("trace_contexts", **words))
        except StoreError as error:
            log.debug("the contexts of %s cannot be read: %s", queue.id, error, extra={"event": "tracing.not_read"})
            return {}
        return {
            statements.key(number.encode()): from_hex(context)
            for number, context in rows
            if number is not None and context is not None
        }


def _attributes(delivery: Noted, due_ns: int) -> dict[str, str | int | float]:
    """By the semantic conventions of messaging; what they lack is below `messaging.ackstream`."""
    return {
        "messaging.system": "ackstream",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "receive",
        "messaging.destination.name": str(delivery.queue.id),
        "messaging.message.id": str(delivery.key),
        "messaging.ackstream.message.delivery_attempt": delivery.attempt,
        "messaging.ackstream.message.wait_s": (delivery.sent_ns - due_ns) / NS_PER_S,
    }


@contextlib.asynccontextmanager
async def traced(engine: Engine, settings: Settings) -> AsyncIterator[None]:
    """Trace as long as the context, if the settings say so."""
    if not settings.tracing:
        yield
        return
    spans = Spans()
    tracing = Tracing(engine, spans)
    engine.trace(tracing)
    try:
        yield
    finally:
        await tracing.close()
        await asyncio.to_thread(spans.close)
