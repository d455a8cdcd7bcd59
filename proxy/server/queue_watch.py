"""What is wrong with a queue although nothing happens there: a message that its client holds for too long, messages
that nobody consumes, and what the counts in the database show. Queues are looked at every WATCH_S."""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import islice

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.leases import Lease
from engine.dispatch.measures import BUCKETS_S, Durations
from engine.dispatch.problems import Kind
from engine.model import NS_PER_S, TableId
from engine.service import Engine
from proxy.server.depths import Counts
from proxy.server.holding import CONSUMER_S, Seen
from proxy.server.markup import duration
from proxy.server.problems import QUEUES_OF_A_STEP, UNIT
from proxy.statements.show import OTHER_UNIT

log = logging.getLogger(__name__)

WATCH_S = 5.0
"""A look at an idle queue takes some microseconds."""

LEASES_READ = 100
"""Messages in flight among which the one that is held longest is found: those that were delivered first, mostly."""

OVERDUE_S = 30.0
"""A message that is held for less is not overdue, however short the jobs of its queue are."""

UNREAD_EVENT = "queue.no_consumer"
READ_TEXT = "it is consumed again, or empty"
UNREAD_TEXT = f"messages are due, and no stream has read it for {CONSUMER_S} s; no proxy has one in flight"

JOBS_MIN = 20
"""Jobs after which it is known how long those of a queue take."""


def longest_held(dispatcher: Dispatcher) -> Lease | None:
    """The message that a client has held for the longest time."""
    sent = [lease for lease in islice(dispatcher.parts.leases, LEASES_READ) if lease.sent_ns > 0]
    return min(sent, key=lambda lease: lease.sent_ns, default=None)


def overdue(dispatcher: Dispatcher, now_ns: int) -> str | None:
    """The problem of a message that has been held for longer than any job took before. `now_ns`: the monotonic
    time. The text stays the same while the message is held."""
    lease, longest_s = longest_held(dispatcher), _longest_job_s(dispatcher.parts.measures.work)
    if lease is None or longest_s is None or now_ns < lease.sent_ns + max(OVERDUE_S, longest_s) * NS_PER_S:
        return None
    return (
        f"message {lease.key!s} is held for longer than any job took here before (≤ {duration(longest_s)}): its worker"
        " hangs? SHOW DELIVERIES names it"
    )


def _longest_job_s(work: Durations) -> float | None:
    """The upper bound of the jobs until now; None: there were few, or some took longer than all bounds."""
    if work.total < JOBS_MIN or work.counts[-1]:
        return None
    return max(bound_s for bound_s, count in zip(BUCKETS_S, work.counts, strict=False) if count)


class QueueWatch:
    """Looks at all queues again and again."""

    def __init__(self, engine: Engine, counts: Counts) -> None:
        self._engine, self._counts = engine, counts
        self._logged: dict[str, set[TableId]] = {UNREAD_EVENT: set(), UNIT: set()}
        """The queues of which the log has said so, by the event."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look every WATCH_S."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="watch of the queues")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            await self.look()

    async def look(self) -> None:
        """Look at each queue once, at QUEUES_OF_A_STEP in a turn of the event loop."""
        known = set[TableId]()
        for number, (queue, dispatcher) in enumerate(self._engine.runners()):
            if number and number % QUEUES_OF_A_STEP == 0:
                await asyncio.sleep(0)
            known.add(queue.id)
            self._look_at(queue.id, dispatcher, time.monotonic_ns())
        self._logged = {event: tables & known for event, tables in self._logged.items()}

    def _look_at(self, table: TableId, dispatcher: Dispatcher, now_ns: int) -> None:
        problems, text = dispatcher.parts.measures.problems, overdue(dispatcher, now_ns)
        if text is not None or Kind.OVERDUE in problems.present(now_ns):
            problems.note(Kind.OVERDUE, text, now_ns)
        counted = self._counts().get(table)
        is_due = counted is not None and counted.depth.ready > 0
        is_read = counted is not None and counted.is_read(asyncio.get_running_loop().time())
        is_unread = is_due and not Seen(dispatcher, now_ns, is_read).has_consumer
        if self._log(table, UNREAD_EVENT, UNREAD_TEXT, holds=is_unread):
            log.info("queue %s: %s", table, READ_TEXT, extra={"event": "queue.consumed", "queue": str(table)})
        self._log(table, UNIT, OTHER_UNIT, holds=counted is not None and counted.depth.other_unit)

    def _log(self, table: TableId, event: str, text: str, *, holds: bool) -> bool:
        """Log what is wrong with a queue, once as long as it `holds`. Returns whether it has just ended."""
        logged = self._logged[event]
        has_ended = table in logged and not holds
        if holds and table not in logged:
            logged.add(table)
            log.warning("queue %s: %s", table, text, extra={"event": event, "queue": str(table)})
        elif has_ended:
            logged.discard(table)
        return has_ended
