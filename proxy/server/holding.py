"""Why messages of a queue are not delivered by this proxy, though they are due.

A consumer need not have a stream open: a worker that polls (`STREAM … LIMIT 1 WAIT 20`) has none while it
works. It is a consumer as long as it holds a message, or has polled within the last minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from engine.dispatch.dispatcher import Dispatcher
from engine.model import NS_PER_S

CONSUMER_NS = 60 * NS_PER_S
"""So long after its last stream ended, a queue has a consumer: longer than a poll waits, and a worker pauses
after an error."""

STALLED_NS = 5 * NS_PER_S
"""Claims that have failed for so long hold the queue back."""

Test = Callable[[Dispatcher], bool]
"""Whether a reason holds."""


def _paused(dispatcher: Dispatcher) -> bool:
    return dispatcher.parts.policy.paused


def _no_consumer(dispatcher: Dispatcher) -> bool:
    """Nobody needs to read a dead-letter table."""
    parts = dispatcher.parts
    ended_ns = parts.groups.stream_ended_ns
    lately = ended_ns is not None and parts.now.mono_ns < ended_ns + CONSUMER_NS
    return not (dispatcher.subscribers or dispatcher.in_flight or lately or parts.policy.dead_letter_of)


def _limit(dispatcher: Dispatcher) -> bool:
    parts = dispatcher.parts
    return bool(dispatcher.subscribers) and not parts.policy.paused and not parts.capacity.is_open


def _only_parked(dispatcher: Dispatcher) -> bool:
    """Only messages of groups without a place are ready."""
    held = any(group.scans.buffer.due and not group.scans.buffer.ready for group in dispatcher.parts.groups)
    return bool(dispatcher.subscribers) and held


def _group_limit(dispatcher: Dispatcher) -> bool:
    policy = dispatcher.parts.policy
    return policy.group_limit is not None and not policy.group_strict and _only_parked(dispatcher)


def _group_rate(dispatcher: Dispatcher) -> bool:
    return len(dispatcher.parts.places.rates) > 0 and _only_parked(dispatcher)


def _group_order(dispatcher: Dispatcher) -> bool:
    return dispatcher.parts.policy.group_strict and _only_parked(dispatcher)


def _batch(dispatcher: Dispatcher) -> bool:
    return bool(dispatcher.subscribers) and dispatcher.parts.follow_ups.hold_back


def _semaphores(dispatcher: Dispatcher) -> bool:
    return dispatcher.parts.policy.semaphores is not None and _only_parked(dispatcher)


def _rate(dispatcher: Dispatcher) -> bool:
    next_ns = dispatcher.parts.capacity.next_token_ns
    return bool(dispatcher.subscribers) and next_ns is not None and next_ns > dispatcher.parts.now.mono_ns


def _refused(dispatcher: Dispatcher) -> bool:
    return len(dispatcher.parts.refusals) > 0


def _claims_fail(dispatcher: Dispatcher) -> bool:
    parts = dispatcher.parts
    since_ns = parts.claims.failing_since_ns
    return since_ns is not None and parts.now.mono_ns >= since_ns + STALLED_NS


def _consumers_full(dispatcher: Dispatcher) -> bool:
    return bool(dispatcher.subscribers) and not dispatcher.parts.groups.with_credit()


STALLED = "server_stalls"


REASONS: Mapping[str, tuple[Test, str]] = MappingProxyType(
    {
        "paused": (_paused, "the queue is paused: RESUME QUEUE"),
        "no_consumer": (_no_consumer, "no stream has read it within the last minute"),
        "limit": (_limit, "as many are in flight as max_in_flight or vt_cache_size allows"),
        "group_limit": (_group_limit, "each group that has messages has as many in flight as group_limit allows"),
        "group_rate": (_group_rate, "each group that has messages has used up its group_rate, or has no place"),
        "group_order": (_group_order, "each group that has messages waits for its first one"),
        "batch": (_batch, "follow-ups wait for the parts of their batches"),
        "semaphores": (_semaphores, "each message needs a semaphore that is full or does not exist"),
        "rate": (_rate, "max_rate allows the next one later"),
        "refused": (_refused, "the server refuses claims of messages, which are passed over: see Problem or the log"),
        STALLED: (_claims_fail, "the server does not answer, or refuses all claims: a lock, a full disk? See the log"),
        "consumers_full": (_consumers_full, "each stream has as many as it may hold, or does not read"),
    }
)
"""Each reason with its test and its text for people. A new kind of limit adds its reason here."""


def reasons(dispatcher: Dispatcher, leased: int = 0, *, is_stalled: bool = False) -> tuple[str, ...]:
    """The reasons that hold now. Whether a message is due is not part of them.

    `leased`: the messages in flight at any proxy, by the last count in the database. Who holds one is a
    consumer, whichever proxy it has. `is_stalled`: the server does not answer a statement on the queue.
    """
    found = {name for name, (holds, _) in REASONS.items() if holds(dispatcher)}
    found -= {"no_consumer"} if leased else set()
    found |= {STALLED} if is_stalled else set()
    return tuple(name for name in REASONS if name in found)
