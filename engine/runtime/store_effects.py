"""Carries out what the dispatcher of one table wants of the store.

Each effect is one call of the store. Its result, or its failure, is the next event of the dispatcher
that wanted it. Nothing here changes a dispatcher.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import (
    CheckBatches,
    Claim,
    Fetch,
    FindAbandoned,
    Lookup,
    MoveDeadLetters,
    Poll,
    Purge,
    Release,
    Scan,
    ScanGroups,
)
from engine.dispatch.measures import Measures
from engine.dispatch.problems import Kind
from engine.model import BatchCheck, BatchesChecked, Claimed, ClaimResult, Key, RowFormat, TableId, Wanted
from engine.queue_table import QueueTable
from engine.refused import Refusal, named
from engine.runtime.executor import StoreExecutor
from engine.store.port import StoreError

log = logging.getLogger(__name__)

NO_TABLE = frozenset({1049, 1146})
"""The server's errors for a table or database that was dropped."""

OUTDATED = frozenset({1176})
"""The server's error about an index that is gone or has another name by now. Streams go on: they do not name it, and
the next description of the table does without it."""

StoreEffect = (
    Scan | ScanGroups | Poll | Claim | Fetch | Lookup | Release | FindAbandoned | CheckBatches | Purge | MoveDeadLetters
)
"""The effects that the store carries out."""

Event = Callable[..., Effects]
"""A method of a dispatcher with all arguments but the first one, the time."""

BegunClaim = Callable[[], Awaitable[ClaimResult]]
"""What waits for the result of a claim that the server has begun."""


def no_queue_text(table: TableId) -> str:
    """The error text of streams whose table was dropped or is not a queue any more."""
    return f"Table '{table}' is no message table any more"


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """What came of an effect."""

    event: Event
    """Hands it to the dispatcher."""
    claims: Sequence[Claimed] = ()
    """The claims that were committed."""


class StoreEffects:
    """The calls of the store for one table."""

    def __init__(
        self,
        executor: StoreExecutor,
        measures: Measures,
        on_distrust: Callable[[], None],
        on_moved: Callable[[TableId], None],
        on_over: Callable[[Collection[Key] | None], None],
        on_released: Callable[[Collection[Key]], None],
        may_have_trigger: Callable[[], bool],
    ) -> None:
        """The callbacks are those of `TableRunner`."""
        self._executor = executor
        self._measures = measures
        self._on_distrust = on_distrust
        self._on_moved = on_moved
        self._on_over = on_over
        self._on_released = on_released
        self._may_have_trigger = may_have_trigger

    def begin(self, queue: QueueTable, claim: Claim) -> BegunClaim | None:
        """Have the server begin a claim now, if that is possible: events that come before its task runs
        then delay it no more."""
        store = self._executor.store
        begin_claim = partial(store.begin_claim, no_triggers=not self._may_have_trigger())
        return self._executor.begin(begin_claim, store.claim_and_fetch, *self._arguments(queue, claim))

    async def carry_out(
        self, queue: QueueTable, dispatcher: Dispatcher, effect: StoreEffect, begun: BegunClaim | None = None
    ) -> EffectOutcome:
        """Call the store for an effect of this dispatcher, or wait for the claim that was begun. Raises
        nothing but CancelledError: an error is an outcome, too."""
        try:
            return await self._call(queue, dispatcher, effect, begun)
        except StoreError as error:
            self._executor.report(f"{type(effect).__name__.lower()} of {queue.id}", error)
            if error.lasting:
                self._on_distrust()
            text = no_queue_text(queue.id) if error.code in NO_TABLE else str(error)
            lasting = error.lasting and error.code not in OUTDATED
            return EffectOutcome(_failure(dispatcher, effect, text, lasting=lasting, refusal=error.refusal))
        except Exception as error:  # A fault in ackstream: without an outcome the dispatcher would wait for ever.
            log.exception(
                "%s of %s failed",
                type(effect).__name__.lower(),
                queue.id,
                extra={"event": "store.fault", "queue": str(queue.id)},
            )
            return EffectOutcome(_failure(dispatcher, effect, str(error), lasting=False))

    async def _call(
        self, queue: QueueTable, dispatcher: Dispatcher, effect: StoreEffect, begun: BegunClaim | None
    ) -> EffectOutcome:
        call, store, counters = self._executor.call, self._executor.store, self._executor.counters
        match effect:
            case Scan(scan_id):
                result = await call(store.scan, queue, effect.limit, effect.selection, effect.part, effect.portion)
                self._note_scan(len(result.entries))
                return EffectOutcome(partial(dispatcher.scan_done, scan_id=scan_id, result=result))
            case ScanGroups(scan_id):
                groups = await call(store.scan_groups, queue, effect.request, effect.portion)
                self._note_scan(len(groups.entries) + len(groups.arrivals))
                return EffectOutcome(partial(dispatcher.group_scan_done, scan_id=scan_id, result=groups))
            case Poll():
                empty = queue.scan_index is not None and await self._executor.polls.is_empty(queue)
                self._note_scan(0)
                return EffectOutcome(partial(dispatcher.polled, empty=empty))
            case Claim():
                return await self._claim(queue, dispatcher, effect, begun)
            case Fetch(fetch_id, row_format, keys):
                began_ns = time.monotonic_ns()
                rows = await call(store.fetch, queue, row_format, keys, self._executor.settings.fetch_budget_bytes)
                counters.fetch_time.add(time.monotonic_ns() - began_ns)
                return EffectOutcome(partial(dispatcher.fetch_done, fetch_id=fetch_id, result=rows))
            case Lookup(keys):
                return EffectOutcome(partial(dispatcher.lookup_done, found=await call(store.lookup, queue, keys)))
            case Release(returns):
                released = await call(store.release, queue, returns)
                counters.released += released.rows
                text = "claims are not given back before their waits are over"
                self._note(Kind.RELEASE, f"{text}: {named(released.refused)}" if released.refused else None)
                self._on_released([claim.key for claim in returns])
                return EffectOutcome(dispatcher.release_done)
            case FindAbandoned(slot, limit):
                found = await call(store.find_abandoned, queue, slot, limit)
                return EffectOutcome(partial(dispatcher.search_done, found=found))
            case CheckBatches(check):
                return EffectOutcome(partial(dispatcher.batches_checked, seen=await self._check_batches(queue, check)))
            case Purge(age_ns, limit):
                purged = await call(store.purge, queue, age_ns, limit)
                counters.purged += purged.rows
                self._measures.purged += purged.rows
                if purged.refused:
                    text = f"the server refuses to delete acknowledged messages: {named(purged.refused)}"
                    self._note(Kind.PURGE, text)
                return EffectOutcome(partial(dispatcher.purge_done, deleted=purged.rows, more=purged.more))
            case MoveDeadLetters(dead):
                return EffectOutcome(partial(dispatcher.move_done, moved=await self._move_dead_letters(queue, dead)))
            case _:
                assert_never(effect)

    def _arguments(
        self, queue: QueueTable, claim: Claim
    ) -> tuple[QueueTable, Sequence[Wanted], RowFormat | None, int, int]:
        return queue, claim.wanted, claim.row_format, self._executor.settings.fetch_budget_bytes, claim.slot

    def _note_scan(self, entries: int) -> None:
        self._executor.counters.scans += 1
        self._executor.counters.scanned += entries

    async def _claim(
        self, queue: QueueTable, dispatcher: Dispatcher, claim: Claim, begun: BegunClaim | None
    ) -> EffectOutcome:
        executor, counters = self._executor, self._executor.counters
        began_ns = time.monotonic_ns()
        call = begun or partial(executor.call, executor.store.claim_and_fetch, *self._arguments(queue, claim))
        claims, rows, left, waiting = await call()
        counters.claim_time.add(time.monotonic_ns() - began_ns)
        counters.claims += 1
        counters.claimed += len(claims)
        left_out = len(waiting) + (len(left.left_out) if left else 0)
        counters.claimed_in_vain += len(claim.wanted) - len(claims) - left_out
        redelivered = sum(claimed.epoch > 1 for claimed in claims)
        counters.redelivered += redelivered
        self._measures.redelivered += redelivered
        if left is not None:
            self._note(Kind.SEMAPHORE, left.problem)
        done = partial(
            dispatcher.claim_done, claim_id=claim.claim_id, claims=claims, rows=rows, left=left, waiting=waiting
        )
        return EffectOutcome(done, claims)

    async def _check_batches(self, queue: QueueTable, check: BatchCheck) -> BatchesChecked:
        """Compare follow-ups with their batches."""
        if queue.after_batch is None:  # The directive was removed a moment ago.
            return BatchesChecked()
        seen = await self._executor.call(self._executor.store.check_batches, queue, check)
        waits = f"follow-ups of {queue.id} wait, whatever their batches: {seen.problem}"
        self._note(Kind.BATCH, waits if seen.problem is not None else None)
        return seen

    async def _move_dead_letters(self, queue: QueueTable, dead: Sequence[Wanted]) -> Sequence[Key]:
        """Move dead messages to their dead-letter table.

        Returns the keys of those that were moved.
        """
        place, counters = queue.dead_letter, self._executor.counters
        if place is None:  # The directive was removed a moment ago.
            return ()
        result = await self._executor.call(self._executor.store.move_dead_letters, queue, dead, place)
        counters.dead_lettered += len(result.moved)
        self._measures.dead_lettered += len(result.moved)
        if result.moved:
            self._on_moved(place)
            self._on_over(result.moved)
        if result.problem is not None:
            counters.dead_letter_failures += 1
            self._note(Kind.DEAD_LETTER, f"dead messages of {queue.id} cannot be moved to {place}: {result.problem}")
        return result.moved

    def _note(self, kind: Kind, text: str | None) -> None:
        self._measures.problems.note(kind, text, self._executor.clock.now().mono_ns)


def _failure(
    dispatcher: Dispatcher, effect: StoreEffect, text: str, *, lasting: bool, refusal: Refusal | None = None
) -> Event:
    """The event of an effect that has failed. `lasting`: it fails until the table is changed. `refusal`: it may
    have failed because of one of its rows."""
    match effect:
        case Scan(scan_id):
            return partial(dispatcher.scan_failed, scan_id=scan_id, text=text, lasting=lasting)
        case ScanGroups(scan_id):
            return partial(dispatcher.group_scan_failed, scan_id=scan_id)
        case Poll():
            return dispatcher.poll_failed
        case Claim(claim_id):
            return partial(dispatcher.claim_failed, claim_id=claim_id, refusal=refusal)
        case Fetch(fetch_id, _, _):
            return partial(dispatcher.fetch_failed, fetch_id=fetch_id, text=text, lasting=lasting, refusal=refusal)
        case Lookup():
            return dispatcher.lookup_failed
        case Release():
            return dispatcher.release_failed
        case FindAbandoned():
            return dispatcher.search_failed
        case CheckBatches():
            return dispatcher.check_failed
        case Purge():
            return dispatcher.purge_failed
        case MoveDeadLetters():
            return dispatcher.move_failed
        case _:
            assert_never(effect)
