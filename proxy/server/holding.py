"""Why messages of a queue are not delivered by this proxy, though they are due.

A consumer need not have a stream open: a worker that polls (`STREAM … LIMIT 1 WAIT 20`) has none while it
works. It is a consumer as long as it holds a message, and for CONSUMER_S after its poll.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.dispatch.capacity import CAPACITY_REASONS
from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.group_places import HINTS
from engine.model import NS_PER_S

CONSUMER_S = 30
"""So long after its last stream ended, and after it was found, a queue has a consumer: longer than a worker pauses
between two polls or takes to connect again. Whoever is woken by an alert wants to be within a minute."""

STALLED_NS = 5 * NS_PER_S
"""Claims that have failed for so long hold the queue back."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a queue at one moment."""

    dispatcher: Dispatcher
    now_ns: int
    """The monotonic time."""
    is_read_elsewhere: bool = False
    """Whether the last counts in the database show that clients of some proxy consume it."""
    is_stalled: bool = False
    """Whether the server does not answer a statement on it."""

    @property
    def has_consumer(self) -> bool:
        """Whether somebody consumes it. Nobody needs to read a dead-letter table."""
        parts = self.dispatcher.parts
        lately = self.now_ns < parts.groups.stream_ended_ns + CONSUMER_S * NS_PER_S
        here = bool(self.dispatcher.subscribers) or self.dispatcher.in_flight > 0 or lately
        return here or self.is_read_elsewhere or bool(parts.policy.dead_letter_of)


Test = Callable[[Seen], bool]
"""Whether a reason holds."""


def _paused(seen: Seen) -> bool:
    return seen.dispatcher.parts.policy.paused


def _no_consumer(seen: Seen) -> bool:
    return not seen.has_consumer


def _limits(seen: Seen) -> set[str]:
    """The reasons of the limits of the queue. Those of groups hold if only messages of groups without a place are
    ready."""
    parts = seen.dispatcher.parts
    if not seen.dispatcher.subscribers:
        return set()
    found = set(parts.capacity.reasons_at(seen.now_ns))
    if any(group.scans.buffer.due and not group.scans.buffer.ready for group in parts.groups):
        found |= {hint.reason for hint in parts.places.hints if hint.reason is not None}
    return found


def _batch(seen: Seen) -> bool:
    return bool(seen.dispatcher.subscribers) and seen.dispatcher.parts.follow_ups.hold_back


def _refused(seen: Seen) -> bool:
    return len(seen.dispatcher.parts.refusals) > 0


def _server_stalls(seen: Seen) -> bool:
    parts = seen.dispatcher.parts
    since_ns = parts.claims.failing_since_ns
    return seen.is_stalled or (since_ns is not None and seen.now_ns >= since_ns + STALLED_NS)


def _consumers_full(seen: Seen) -> bool:
    return bool(seen.dispatcher.subscribers) and not seen.dispatcher.parts.groups.with_credit()


NO_CONSUMER = "no_consumer"

_TESTS: Mapping[str, tuple[Test, str]] = MappingProxyType(
    {
        "paused": (_paused, "the queue is paused: RESUME QUEUE"),
        NO_CONSUMER: (_no_consumer, f"no stream has read it for {CONSUMER_S} s"),
        "batch": (_batch, "follow-ups wait for the parts of their batches"),
        "refused": (_refused, "the server refuses claims of messages, which are passed over: see Problem or the log"),
        "server_stalls": (
            _server_stalls,
            "the server does not answer, or refuses all claims: a lock, a full disk? See the log",
        ),
        "consumers_full": (_consumers_full, "each stream has as many as it may hold, or does not read"),
    }
)
"""The reasons that are no limits, each with its test and its text for people."""

REASONS: Mapping[str, str] = {
    **{name: text for name, (_, text) in _TESTS.items()},
    **CAPACITY_REASONS,
    **{name: text for kind in HINTS for name, text in kind.reasons.items()},
}
"""All reasons, each with its text for people."""


def reasons(seen: Seen) -> tuple[str, ...]:
    """The reasons that hold now. Whether a message is due is not part of them."""
    found = {name for name, (holds, _) in _TESTS.items() if holds(seen)} | _limits(seen)
    return tuple(name for name in REASONS if name in found)
