"""Runs one table: its dispatcher and the dispatcher's effects.

An event is handed to the dispatcher and returns effects. Effects that need the store run as tasks
(`StoreEffects`), and their results are the next events. A timer is set for the dispatcher's next wake-up time.

A fault in ackstream stays within the table. An exception in the dispatcher is logged and counted. After
a pause that grows with each fault in a row, a new dispatcher begins with the same streams and reads
its state from the database. Messages that were in flight come due again when their wait is over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Cause, Claim, Deliver, Effect, End, Lock, Release
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.measures import Measures
from engine.dispatch.problems import Kind
from engine.dispatch.subscribers import Subscription
from engine.model import NS_PER_S, Claimed, Entry, Key, Return, Share, TableId
from engine.queue_table import QueueTable
from engine.runtime.executor import StoreExecutor
from engine.runtime.store_effects import BegunClaim, StoreEffect, StoreEffects

log = logging.getLogger(__name__)

FAULTS_FORGOTTEN_NS = 60 * NS_PER_S
"""After this time without a fault, the pause after the next one is the shortest again."""

REARM_S = 0.001
"""The wake-up time is computed once for all events of this time. A time that has come meanwhile is
noticed so much later."""

UNSTREAMED_S = 0.1
"""Commits of this time are one event, if the queue has no streams here: a decision for each would cost half
of what relaying it does."""

SETTLED_IN_ONE_TURN = 1_000
"""Acknowledged messages that are handed to the dispatcher in one turn of the event loop: it takes 3 µs for each,
and one statement may acknowledge ten thousand."""

CLAIMS_IN_ONE_TURN = 100
"""If a claim took more messages, the next decision waits for the next turn of the event loop: handing
out a thousand messages takes 6 ms, and picking the next ones another 4. It also waits behind a claim of one
message, whose client waits for it, while usually no other is ready. Behind any other claim the next one
begins in the same turn, which gives eight consumers that poll 100 messages each a tenth more."""


class Sink(Protocol):
    """Receives a subscriber's messages. Both methods return at once."""

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        """Take row payloads in the subscriber's format. Their claims are committed."""

    def end(self, cause: Cause, text: str) -> None:
        """The stream has ended. No other call follows."""


class LockAnswer(Protocol):
    """Is called once; also if the stream has ended, or the session has failed. Only the end of its client's
    connection may come instead."""

    def __call__(self, locked: AbstractSet[Key], read: Sequence[Entry] = ()) -> None:
        """The session has locked the messages of these keys, and its client was sent their rows. `read`: what
        their rows show, if the lock is `unscanned`."""


Locker = Callable[[Lock, LockAnswer], None]
"""Has the session of a stream FOR UPDATE lock messages. Returns at once."""


@dataclass(slots=True)
class _Noted:
    """What clients' statements did in this turn of the event loop."""

    begun: list[Subscription] = field(default_factory=list)
    """Streams that have begun."""
    locked: list[tuple[int, AbstractSet[Key], Sequence[Entry]]] = field(default_factory=list)
    """Locks that were answered, with the keys of each, and the rows that it has read."""
    settled: list[Key] = field(default_factory=list)
    ended: list[tuple[int, bool]] = field(default_factory=list)
    """Transactions that had messages locked: the holder, and whether it was certainly rolled back."""
    woken: bool = False
    anywhere: bool = False
    inserted: list[Key] = field(default_factory=list)
    """The keys of rows that were inserted, as far as they are known."""


@dataclass(slots=True)
class _Stream:
    """The state of a running stream, as a new dispatcher needs it."""

    spec: Subscription
    sink: Sink
    locker: Locker | None
    first_wait_until_ns: int | None
    given: int = 0

    def rest(self, mono_ns: int) -> Subscription:
        """The rest of the subscription at this monotonic time."""
        limit, first_wait_ns = self.spec.limit, None
        if limit is not None:
            limit -= self.given
        if self.first_wait_until_ns is not None:
            first_wait_ns = 0 if self.given else max(0, self.first_wait_until_ns - mono_ns)
        return replace(self.spec, limit=limit, first_wait_ns=first_wait_ns)


class TableRunner:
    """One table's dispatcher, and the execution of its effects."""

    def __init__(
        self,
        executor: StoreExecutor,
        queue: QueueTable,
        limits: Limits,
        on_distrust: Callable[[], None],
        on_moved: Callable[[TableId], None],
        on_over: Callable[[Collection[Key] | None], None],
        on_released: Callable[[Collection[Key]], None],
        may_have_trigger: Callable[[], bool],
    ) -> None:
        """`on_distrust` is called when an error shows that the table differs from its description.

        `on_moved` is called with a dead-letter table after dead messages were moved into it. `on_over` is
        called with messages (None: any) that were acknowledged or deleted, or may have been. `on_released`
        is called with messages that were given back. `may_have_trigger`: whether the table may have one.
        """
        self.queue = queue
        self.measures = Measures()
        self.measures.problems.on_report = self._report
        self.settled_down = asyncio.Event()
        self._executor = executor
        self._store_effects = StoreEffects(
            executor, self.measures, on_distrust, on_moved, on_over, on_released, may_have_trigger
        )
        self._limits = limits
        self._on_over = on_over
        self._streams: dict[int, _Stream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None
        self._rearming: asyncio.TimerHandle | None = None
        """Set: the wake-up time is computed again soon."""
        self._noted = _Noted()
        self._note_timer: asyncio.Handle | None = None
        self._noted_soon = False
        """Whether what was noted is handed over in the next turn of the event loop."""
        self._undecided = False
        """Whether the dispatcher has recorded an event since its last decision."""
        self._effects: deque[Effect] = deque()
        self._performing = False
        self._share: Share | None = None
        self._ending: tuple[Cause, str] | None = None
        """Set: all streams end with this, and none begins any more."""
        self._retired = False
        self._faults = ExponentialBackoff(limits.failure_pause_min_ns, limits.failure_pause_max_ns)
        self._fault_ns = 0
        self._slot = 0
        self._suspended = False
        """A fault has stopped the dispatcher, and the next one has not begun."""
        self.dispatcher = self._new_dispatcher()
        self.handle(self.dispatcher.tick)

    def _report(self, kind: Kind, text: str) -> None:
        log.error("queue %s: %s", self.queue.id, text, extra={"event": kind.value, "queue": str(self.queue.id)})

    def _new_dispatcher(self) -> Dispatcher:
        now = self._executor.clock.now()
        return Dispatcher(self.queue.policy, self._limits, random.random, now, self.measures)

    # Events.

    def handle(self, event: Callable[..., Effects], *args: Any) -> None:
        """Hand an event to the dispatcher, and execute the effects. Never raises.

        A sink may cause another event meanwhile. The effects of that one are queued behind the
        others. Acknowledgements and wake-ups that were noted before come first.
        """
        if self._note_timer is not None:
            self._handle_noted()
        self._handle(event, *args)

    def settled(self, keys: Iterable[Key]) -> None:
        """These messages were certainly acknowledged or deleted.

        The dispatcher gets all that are noted in one turn of the event loop as one event, up to
        SETTLED_IN_ONE_TURN, before the next event of another kind. With many clients that acknowledge
        one message each, it then decides once for several of them.
        """
        self._noted.settled += keys
        self._note()

    def suspected(self, keys: Iterable[Key]) -> None:
        """These messages may have been acknowledged."""
        keys = list(keys)
        self.handle(self.dispatcher.suspected, keys)
        self._on_over(keys)

    def transaction_ended(self, holder: int, *, failed: bool) -> None:
        """The transaction of a connection has ended, as in Dispatcher.transaction_ended. It comes
        behind the acknowledgements of the same turn, which usually have ended all its leases."""
        self._noted.ended.append((holder, failed))
        self._note()

    def woken(self, *, anywhere: bool) -> None:
        """A transaction that wrote to the table was committed; `anywhere` as in Dispatcher.woken.

        Wake-ups in one turn of the event loop are one event, and without streams those of UNSTREAMED_S.
        """
        self._noted.woken = True
        self._noted.anywhere |= anywhere
        self._note(soon=bool(self._streams))

    def inserted(self, ids: range) -> None:
        """As `woken`, if it probably inserted rows of these ids and changed nothing else."""
        if len(ids) + len(self._noted.inserted) > self.queue.policy.batch_size:
            self.woken(anywhere=False)
        else:
            self._noted.inserted += ids
            self._note(soon=bool(self._streams))

    def _note(self, *, soon: bool = True) -> None:
        """Hand what was noted to the dispatcher in the next turn of the event loop, or within UNSTREAMED_S."""
        if self._note_timer is not None:
            if self._noted_soon or not soon:
                return
            self._note_timer.cancel()
        loop, self._noted_soon = asyncio.get_running_loop(), soon
        later = loop.call_soon if soon else partial(loop.call_later, UNSTREAMED_S)
        self._note_timer = later(self._handle_noted)

    def _handle_noted(self) -> None:
        """Hand what was noted to the dispatcher, in an order in which one connection can have caused it."""
        if self._note_timer is not None:
            self._note_timer.cancel()
        noted, self._noted, self._note_timer = self._noted, _Noted(), None
        if more := len(noted.settled) > SETTLED_IN_ONE_TURN:
            first, rest = noted.settled[:SETTLED_IN_ONE_TURN], noted.settled[SETTLED_IN_ONE_TURN:]
            noted, self._noted = _Noted(locked=noted.locked, settled=first), replace(noted, locked=[], settled=rest)
        undecided, self._undecided = self._undecided, False
        dispatcher = self.dispatcher
        events = [
            partial(dispatcher.lock_done, lock_id=number, locked=keys, read=read) for number, keys, read in noted.locked
        ]
        if noted.settled:
            events.append(partial(dispatcher.settled, keys=noted.settled))
        events += [
            partial(dispatcher.transaction_ended, holder=holder, failed=failed) for holder, failed in noted.ended
        ]
        events += [partial(dispatcher.subscribe, spec=spec) for spec in noted.begun]
        if noted.woken:
            events.append(partial(dispatcher.woken, anywhere=noted.anywhere))
        elif noted.inserted:
            events.append(partial(dispatcher.inserted, keys=noted.inserted))
        if undecided:
            self._handle(dispatcher.together, events)
        else:
            self._record(events)
        if noted.settled:
            self._on_over(noted.settled)
        if more:
            self._note()

    def _record(self, events: Sequence[Callable[[Instant], Effects]]) -> None:
        """Hand events to the dispatcher. What follows from them alone is done at once: rows of a claim are sent,
        inserted messages are claimed or offered, streams with their LIMIT end. If that is something, the
        decision what to do then comes in the next turn of the event loop: it takes longer, and clients do not
        wait for it. What was noted before comes first."""
        if self._note_timer is not None:
            self._handle_noted()
        if self._handle(self.dispatcher.recorded, events):
            self._undecided = True
            self._note()
        else:
            self._handle(self.dispatcher.together, ())

    def _handle(self, event: Callable[..., Effects], *args: Any) -> bool:
        """Returns whether the event has effects."""
        if self._suspended:
            return False  # The next dispatcher reads its state from the database.
        try:
            effects = event(self._executor.clock.now(), *args)
            self._effects.extend(effects)
            if self._performing:
                return bool(effects)
            self._performing = True
            try:
                while self._effects:
                    self._perform(self._effects.popleft())
            finally:
                self._performing = False
            if not self._suspended:
                self._rearm_soon()
        except Exception as error:  # noqa: BLE001  # A fault in ackstream: it is logged there.
            self._fault(error)
            return False
        return bool(effects)

    def subscribe(self, spec: Subscription, sink: Sink, locker: Locker | None = None) -> None:
        """Begin a stream that delivers to `sink`, or has its messages locked by `locker`."""
        until_ns = None if spec.first_wait_ns is None else self._executor.clock.now().mono_ns + spec.first_wait_ns
        self._streams[spec.id] = _Stream(spec, sink, locker, until_ns)
        self._noted.begun.append(spec)
        self._note()

    def unsubscribe(self, subscriber: int) -> None:
        """End a stream on its client's side, unless it is over. Its sink is not called any more."""
        if self._streams.pop(subscriber, None) is not None:
            self.handle(self.dispatcher.unsubscribe, subscriber)

    def reconfigure(self, queue: QueueTable) -> None:
        """Take the table's new description."""
        before, self.queue = self.queue, queue
        if before.policy != queue.policy:
            log.info(
                "queue %s: its policy changed",
                queue.id,
                extra={"event": "queue.policy_changed", "queue": str(queue.id)},
            )
            self.handle(self.dispatcher.policy_changed, queue.policy)

    def set_slot(self, slot: int) -> None:
        """This proxy has this slot on the server, as in Dispatcher.slot_given."""
        if slot != self._slot:
            self._slot = slot
            self.handle(self.dispatcher.slot_given, slot)

    def set_share(self, share: Share | None) -> None:
        """This proxy takes the messages of this share first; None: all messages."""
        if share != self._share:
            self._share = share
            log.info(
                "queue %s: %s",
                self.queue.id,
                share or "all messages are this proxy's",
                extra={"event": "queue.share_changed", "queue": str(self.queue.id)},
            )
            self.handle(self.dispatcher.share_changed, share)

    def server_changed(self) -> None:
        """Another server is used: go on with a new dispatcher, and the same streams. Results that
        are under way are dropped. This proxy has no slot on the server yet. What was to be released
        is released there, if its rows show the claim."""
        self._slot, self._share = 0, None
        unreleased = self.dispatcher.unreleased
        self._forget()
        if self._ending is None:
            self._restart()
            self.handle(self.dispatcher.handed_over, unreleased)
        else:
            self._end_streams(*self._ending)

    def drain(self) -> None:
        """The proxy is stopping: end the streams and release what is in flight, then set
        `settled_down`."""
        self._end_all(Cause.DRAINING, "")

    def retire(self, text: str) -> None:
        """The table is not a queue any more: end its streams with this text."""
        self._retired = True
        self._end_all(Cause.UNUSABLE, text)

    def _end_all(self, cause: Cause, text: str) -> None:
        self._ending = cause, text
        if not self._suspended:
            self.handle(partial(self.dispatcher.end_all, cause=cause, text=text))
        else:
            self._cancel_timer()
            self._end_streams(cause, text)

    def disarm(self) -> None:
        """The engine stops: no event comes from here any more."""
        self._cancel_timer()
        if self._note_timer is not None:
            self._note_timer.cancel()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._rearming is not None:
            self._rearming.cancel()
        self._timer = self._armed_ns = self._rearming = None

    def _tick(self) -> None:
        self._timer = self._armed_ns = None
        self.handle(self.dispatcher.tick)

    def _rearm_soon(self) -> None:
        if self.dispatcher.settled_down:
            self.settled_down.set()
        else:
            self.settled_down.clear()
        if self._rearming is None:
            self._rearming = asyncio.get_running_loop().call_later(REARM_S, self._rearm)

    def _rearm(self) -> None:
        self._rearming = None
        try:
            wake_at_ns = None if self._retired else self.dispatcher.wake_at_ns
        except Exception as error:  # noqa: BLE001  # A fault in ackstream: it is logged there.
            self._fault(error)
            return
        if wake_at_ns == self._armed_ns:
            return
        self._cancel_timer()
        if wake_at_ns is not None:
            delay_s = max(0.0, (wake_at_ns - self._executor.clock.now().mono_ns) / NS_PER_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)
            self._armed_ns = wake_at_ns

    # Faults of ours.

    def _fault(self, error: Exception) -> None:
        """The dispatcher raised an exception: replace it after a pause."""
        self._executor.counters.dispatcher_restarts += 1
        mono_ns = self._executor.clock.now().mono_ns
        if mono_ns - self._fault_ns > FAULTS_FORGOTTEN_NS:
            self._faults.reset()
        self._faults.lengthen(mono_ns)
        self._fault_ns = mono_ns
        pause_s = self._faults.last_ns / NS_PER_S
        text = "the dispatcher of %s failed; another one begins in %.1f s"
        log.error(
            text,
            self.queue.id,
            pause_s,
            exc_info=error,
            extra={"event": "dispatcher.fault", "queue": str(self.queue.id)},
        )
        self._forget()
        if self._ending is None:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._restart)
        else:
            self._end_streams(*self._ending)

    def _forget(self) -> None:
        """Replace the dispatcher."""
        self._suspended = True
        self._effects.clear()
        self._noted = _Noted()
        self.dispatcher = self._new_dispatcher()  # Only to be read. It gets no events yet.
        self._cancel_timer()

    def _restart(self) -> None:
        self._timer = None
        self._suspended = False
        self._noted.begun.clear()  # They are among the streams below.
        self.dispatcher = self._new_dispatcher()
        self.handle(self.dispatcher.slot_given, self._slot)
        mono_ns = self._executor.clock.now().mono_ns
        self.handle(self.dispatcher.share_changed, self._share)
        for stream in list(self._streams.values()):
            self.handle(self.dispatcher.subscribe, stream.rest(mono_ns))
        self.handle(self.dispatcher.tick)

    def _end_streams(self, cause: Cause, text: str) -> None:
        for subscriber in list(self._streams):
            self._end(subscriber, cause, text)
        self.settled_down.set()

    # Effects.

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Deliver(subscriber, rows):
                self._executor.counters.delivered += len(rows)
                self.measures.delivered += len(rows)
                self._deliver(subscriber, rows)
            case End(subscriber, cause, text):
                self._end(subscriber, cause, text)
            case Lock(subscriber=subscriber):
                self._lock(subscriber, effect)
            case _:
                name = f"{type(effect).__name__} {self.queue.id}"
                begun = self._store_effects.begin(self.queue, effect) if isinstance(effect, Claim) else None
                self._executor.spawn(self._run_in_store(self.dispatcher, effect, begun), name)

    def _deliver(self, subscriber: int, rows: tuple[bytes, ...]) -> None:
        if (stream := self._streams.get(subscriber)) is None:
            return
        stream.given += len(rows)
        try:
            stream.sink.deliver(rows)
        except Exception:  # A fault in ackstream that concerns one client.
            log.exception(
                "a stream of %s failed", self.queue.id, extra={"event": "stream.fault", "queue": str(self.queue.id)}
            )
            self._end(subscriber, Cause.UNUSABLE, "internal error: see the proxy's log")
            self.handle(self.dispatcher.disconnected, stream.spec.holder)

    def _lock(self, subscriber: int, lock: Lock) -> None:
        stream = self._streams.get(subscriber)
        answer = partial(self._locked, self.dispatcher, stream, lock.lock_id)
        if stream is None or stream.locker is None:
            answer(frozenset())  # It has ended meanwhile.
        else:
            stream.locker(lock, answer)

    def _locked(
        self,
        dispatcher: Dispatcher,
        stream: _Stream | None,
        lock_id: int,
        locked: AbstractSet[Key],
        read: Sequence[Entry] = (),
    ) -> None:
        if stream is not None:
            stream.given += len(locked)
        self._executor.counters.delivered += len(locked)
        self.measures.delivered += len(locked)
        if dispatcher is self.dispatcher:
            self._noted.locked.append((lock_id, locked, read))
            self._note()

    def _end(self, subscriber: int, cause: Cause, text: str) -> None:
        if (stream := self._streams.pop(subscriber, None)) is None:
            return
        try:
            stream.sink.end(cause, text)
        except Exception:
            log.exception(
                "a stream of %s could not be ended",
                self.queue.id,
                extra={"event": "stream.fault", "queue": str(self.queue.id)},
            )

    async def _run_in_store(self, dispatcher: Dispatcher, effect: StoreEffect, begun: BegunClaim | None) -> None:
        """Execute an effect in the store, and hand its outcome to the dispatcher unless that was
        replaced."""
        outcome = await self._store_effects.carry_out(self.queue, dispatcher, effect, begun)
        if dispatcher is not self.dispatcher:
            await self._release_claims(outcome.claims)
        elif len(outcome.claims) == 1 or len(outcome.claims) > CLAIMS_IN_ONE_TURN:
            self._record((outcome.event,))
        else:
            self.handle(outcome.event)

    async def _release_claims(self, claims: Sequence[Claimed]) -> None:
        """Release what was claimed for a dispatcher that was replaced."""
        if claims:
            returns = tuple(
                Return(claim.key, claim.epoch, claim.deadline_ns, claim.due_ns, sent=False, priority=claim.priority)
                for claim in claims
            )
            await self._store_effects.carry_out(self.queue, self.dispatcher, Release(returns))
            self.handle(partial(self.dispatcher.woken, anywhere=True))
