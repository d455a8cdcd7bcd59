"""Which semaphores have a place for one more message in flight.

A message needs the semaphores that its column names. This is the last value of its message group, so
a group is what waits. A claim shows who holds the full ones of the semaphores that its
messages need (`SemaphoreLeft`). A holder is remembered until its delivery is over, in whichever queue,
or until its lease ends. All is forgotten at the next poll, and a claim then shows it again. So a full
semaphore causes no claim before it may have a place.

All this is a hint: each claim counts again in the database.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from engine.dispatch.instant import Instant
from engine.model import Entry, Group, Holder, Key, SemaphoreLeft, TableId
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


class SemaphorePlaces:
    """The places of the semaphores that one table needs. Reports groups that may have a place again."""

    def __init__(self, policy: Policy, note_unused: Callable[[Group], None]) -> None:
        self._policy = policy
        self._note_unused = note_unused
        self._known: dict[str, _Known] = {}
        self._held: dict[Holder, set[str]] = {}
        """The semaphores of each holder."""
        self._waiting: dict[str, set[Group]] = {}
        """The groups that lack a place of a semaphore, since it was last reported."""
        self._taken: Counter[str] = Counter()
        """Places of messages that were taken in this round."""
        self._claiming = False
        self._over: set[Holder] = set()
        """Holders that were over since the claim under way was started, which may have counted them."""
        self._all_over = False

    @property
    def limited(self) -> bool:
        """Whether messages need semaphores."""
        return self._policy.semaphores is not None

    # Picking.

    def has_place(self, group: Group | None) -> bool:
        """Whether a message of this group may be in flight. A semaphore of which nothing is known may
        have one."""
        lacking = [name for name in needs_of(group) if self._lacks(name)] if self.limited else ()
        for name in lacking:
            self._waiting.setdefault(name, set()).add(group or ())
        return not lacking

    def note_taken(self, group: Group | None) -> None:
        """A message of this group was taken in this round."""
        if self.limited:
            self._taken.update(needs_of(group))

    def end_round(self) -> None:
        """What was taken is claimed, or was not handed out."""
        taken, self._taken = self._taken, Counter()
        for name in taken:
            self._requeue(name)

    # Claims.

    def claim_started(self) -> None:
        """A claim starts. What is reported from now on may be over although it was counted."""
        self._claiming = True
        self._over.clear()
        self._all_over = False

    def claim_answered(self, now: Instant, found: Iterable[SemaphoreLeft]) -> None:
        """A claim was answered, and has found these semaphores; none, if it failed."""
        self._claiming = False
        for left in found:
            self._forget(left.name)
            if self._all_over:
                continue
            until_ns = now.server_ns + self._policy.poller_interval_ns
            holders = {
                holder: end_ns
                for holder, end_ns in left.holders.items()
                if holder not in self._over and end_ns > now.server_ns
            }
            ends = [(end_ns, holder) for holder, end_ns in holders.items()]
            ends.sort(key=lambda end: end[0])
            self._known[left.name] = _Known(left.capacity, holders, ends, until_ns)
            for holder in holders:
                self._held.setdefault(holder, set()).add(left.name)
        for name in [*islice(self._known, max(0, len(self._known) - KNOWN_MAX))]:
            self._forget(name)

    # Reports.

    def delivery_over(self, key: Key, table: TableId | None = None) -> None:
        """The delivery of a message is over, or may be. `table`: None for this one."""
        if not self.limited:
            return
        holder = table, key
        if self._claiming:
            self._over.add(holder)
        for name in self._held.pop(holder, ()):
            del self._known[name].holders[holder]
            self._requeue(name)

    def rows_shown(self, entries: Iterable[Entry]) -> None:
        """A scan shows these messages. One with another time than the end of its lease is not in flight any
        more, or was extended."""
        for entry in entries if self._held else ():
            names = self._held.get((None, entry.key), ())
            if any(self._known[name].holders[None, entry.key] != entry.due_ns for name in names):
                self.delivery_over(entry.key)

    def any_over(self) -> None:
        """Any delivery may be over, or semaphores were changed."""
        self._all_over = True
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

    @property
    def next_ns(self) -> int | None:
        """When the time alone may free a place that is waited for (server's clock); None: never."""
        times: list[int] = []
        for name in self._waiting:
            if (known := self._known.get(name)) is not None:
                while known.ends and known.ends[0][1] not in known.holders:
                    heapq.heappop(known.ends)
                times += [known.until_ns, *(end_ns for end_ns, _ in known.ends[:1])]
        return min(times, default=None)

    def set_policy(self, policy: Policy) -> None:
        """The table's comment has changed."""
        self._policy = policy
        self.any_over()

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
