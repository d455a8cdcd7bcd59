"""Which semaphores have a place for one more message in flight.

A message needs the semaphores that its column names. This is the last value of its message group, so
a group is what waits. A claim shows who holds the full ones of the semaphores that its
messages need (`SemaphoreLeft`). A holder is remembered until its delivery is over, in whichever queue,
or until its lease ends. All is forgotten at the next poll, and a claim then shows it again. So a full
semaphore causes no claim before it may have a place.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import MappingProxyType

from engine.dispatch.group_hint import GroupHint
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.model import Entry, Group, Holder, Key, LimitsLeft, TableId
from engine.queue_table import Policy

KNOWN_MAX = 1_024
"""Semaphores of which the holders are remembered: those that were found last. Others are tried."""


@lru_cache(maxsize=4_096)
def names_in(text: str) -> frozenset[str]:
    """The names of semaphores in a text, which are separated by commas."""
    return frozenset(name for part in text.split(",") if (name := part.strip(" ")))


def needs_of(group: Group | None) -> frozenset[str]:
    """The semaphores that the messages of a group need, in a queue with semaphores."""
    return names_in(value) if group and isinstance(value := group[-1], str) else frozenset()


@dataclass(slots=True)
class _Known:
    """A semaphore as the last claim has found it, and its holders without those that are over."""

    capacity: int | None
    holders: dict[Holder, int]
    ends: list[tuple[int, Holder]]
    """The ends of their leases as a heap, with entries of holders that are over."""
    until_ns: int
    """When it is forgotten (server's clock)."""


class SemaphorePlaces(GroupHint):
    """The places of the semaphores that one table needs. Reports groups that may have a place again."""

    reasons = MappingProxyType({"semaphores": "each message needs a semaphore that is full or does not exist"})

    def __init__(self, policy: Policy, note_unused: Callable[[Group], None], leases: Leases) -> None:
        super().__init__(policy, note_unused, leases)
        self._known: dict[str, _Known] = {}
        self._held: dict[Holder, set[str]] = {}
        """The semaphores of each holder."""
        self._waiting: dict[str, set[Group]] = {}
        """The groups that lack a place of a semaphore, since it was last reported."""
        self._taken: Counter[str] = Counter()
        """Places of messages that were taken in this round."""

    @property
    def limited(self) -> bool:
        """Whether messages need semaphores."""
        return self._policy.semaphores is not None

    # Picking.

    def has_place(self, group: Group, key: Key, here: int, taken: int) -> bool:
        """Whether a message of this group may be in flight. A semaphore of which nothing is known may
        have one."""
        lacking = [name for name in needs_of(group) if self._lacks(name)]
        for name in lacking:
            self._waiting.setdefault(name, set()).add(group)
        return not lacking

    def note_taken(self, group: Group) -> None:
        """Its semaphores have a place less in this round."""
        self._taken.update(needs_of(group))

    def end_round(self) -> None:
        """What was taken is claimed, or was not handed out."""
        taken, self._taken = self._taken, Counter()
        for name in taken:
            self._requeue(name)

    # Claims.

    def claim_answered(self, now: Instant, left: LimitsLeft, over: Collection[Holder] | None) -> None:
        """Remember who holds these semaphores."""
        for found in left.semaphores:
            self._forget(found.name)
            if over is None:
                continue
            until_ns = now.server_ns + self._policy.poller_interval_ns
            holders = {
                holder: end_ns
                for holder, end_ns in found.holders.items()
                if holder not in over and end_ns > now.server_ns
            }
            ends = [(end_ns, holder) for holder, end_ns in holders.items()]
            ends.sort(key=lambda end: end[0])
            self._known[found.name] = _Known(found.capacity, holders, ends, until_ns)
            for holder in holders:
                self._held.setdefault(holder, set()).add(found.name)
        for name in [*islice(self._known, max(0, len(self._known) - KNOWN_MAX))]:
            self._forget(name)

    # Reports.

    def delivery_over(self, key: Key, table: TableId | None = None) -> None:
        """The message holds no semaphores any more."""
        holder = table, key
        for name in self._held.pop(holder, ()):
            del self._known[name].holders[holder]
            self._requeue(name)

    def rows_shown(self, entries: Iterable[Entry]) -> None:
        """Forget those that are not in flight here and show another time than the end of their lease."""
        for entry in (entry for entry in entries if self._leases.get(entry.key) is None) if self._held else ():
            names = self._held.get((None, entry.key), ())
            if any(self._known[name].holders[None, entry.key] != entry.due_ns for name in names):
                self.delivery_over(entry.key)

    def any_over(self) -> None:
        """Forget all. Semaphores may also have been changed."""
        for name in [*self._known]:
            self._forget(name)

    def forget_ended(self, now: Instant) -> None:
        """Forget the holders whose leases have ended, and what was found too long ago. Only of
        semaphores that messages wait for."""
        for name in [*self._waiting]:
            known = self._known.get(name)
            if known is None or known.until_ns <= now.server_ns:
                self._forget(name)
                continue
            while known.ends and known.ends[0][0] <= now.server_ns:
                self._end_of(heapq.heappop(known.ends)[1])

    def _end_of(self, holder: Holder) -> None:
        self.delivery_over(holder[1], holder[0])

    def next_ns(self, now: Instant) -> int | None:
        """When the time alone may free a place that is waited for (monotonic); None: never."""
        times: list[int] = []
        for name in self._waiting:
            if (known := self._known.get(name)) is not None:
                while known.ends and known.ends[0][1] not in known.holders:
                    heapq.heappop(known.ends)
                times += [known.until_ns, *(end_ns for end_ns, _ in known.ends[:1])]
        return now.until(min(times)) if times else None

    def _lacks(self, name: str) -> bool:
        known = self._known.get(name)
        return known is not None and len(known.holders) + self._taken[name] >= (known.capacity or 0)

    def _forget(self, name: str) -> None:
        if (known := self._known.pop(name, None)) is not None:
            for holder in known.holders:
                names = self._held[holder]
                names.discard(name)
                if not names:
                    del self._held[holder]
        self._requeue(name)

    def _requeue(self, name: str) -> None:
        for group in self._waiting.pop(name, ()):
            self._note_unused(group)
