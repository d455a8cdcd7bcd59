"""The steps of a claim that keeps the limits of its queue over all proxies, and its choice.

Which messages are in flight follows from the rows: those that are unacknowledged and whose lease
column equals time_next and is not past. A claim takes a lock that all claims with the same limit
take, counts, claims no more than there are places, commits, and releases the lock. So each claim
counts what those before it have committed. The isolation level is READ COMMITTED: a statement shows
everything that was committed before it began.

The lock is a user-level lock of the server. It ends with its connection, as the transaction does.
Both stores carry out these steps in this order, and the tests play any other work of any proxy
between two of them.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.dispatch.semaphore_places import needs_of
from engine.model import Claimed, Entry, Group, GroupLeft, Holder, Key, SemaphoreLeft, Wanted


class Step(enum.Enum):
    """One statement of such a claim."""

    TAKE_LOCK = enum.auto()
    """Wait for the lock of the limit, for a short time. Without it nothing is claimed."""
    BEGIN = enum.auto()
    COUNT = enum.auto()
    """Count the messages in flight, and read who holds the semaphores that are needed."""
    LOCK_ROWS = enum.auto()
    """Lock the rows that can be claimed."""
    COUNT_GROUPS = enum.auto()
    """Count the messages in flight of the message groups of these rows, which cannot change any more."""
    CHECK_BATCHES = enum.auto()
    """Find the follow-ups among them whose batches are not done. Behind LOCK_ROWS: what a statement
    shows was committed before it began, and a part is committed with its follow-up, or before."""
    WRITE = enum.auto()
    COMMIT = enum.auto()
    RELEASE_LOCK = enum.auto()


FIRST_PACKET: Sequence[Step] = (
    Step.TAKE_LOCK,
    Step.BEGIN,
    Step.COUNT,
    Step.LOCK_ROWS,
    Step.COUNT_GROUPS,
    Step.CHECK_BATCHES,
)
SECOND_PACKET: Sequence[Step] = (Step.WRITE, Step.COMMIT, Step.RELEASE_LOCK)
"""What is written follows from the results of the first packet."""


@dataclass(slots=True)
class GroupCounts:
    """The messages in flight of the message groups of a claim, as the server has counted them.

    A group is what the server treats as one: it has a number. A message without a number may not be
    claimed.
    """

    most: int
    """How many messages of a group may be in flight."""
    numbers: dict[Key, int] = field(default_factory=dict)
    """The number of the group of each message of the claim."""
    held: dict[int, int] = field(default_factory=dict)
    """How many messages of each group are in flight."""
    holders: dict[int, dict[Key, int]] = field(default_factory=dict)
    """The messages in flight of groups that may be full, and the ends of their leases."""

    heads: dict[Key, Entry] | None = None
    """The first unacknowledged message of the group of each message; None: any may be next."""

    def take(self, key: Key) -> bool:
        """Take a place for this message, if its group has one and it is next. Returns whether it may be
        claimed."""
        number = self.numbers.get(key)
        if number is None or self.held[number] >= self.most:
            return False
        if self.heads is not None and (key not in self.heads or self.heads[key].key != key):
            return False
        self.held[number] += 1
        return True

    def left(self, entries: Iterable[Entry]) -> tuple[GroupLeft, ...]:
        """What is left of the groups of these messages, behind the claim."""
        found: dict[Group, GroupLeft] = {}
        for entry in entries:
            number = self.numbers.get(entry.key)
            if entry.group is None or number is None:
                continue
            head = None if self.heads is None else self.heads.get(entry.key)
            if self.held[number] >= self.most:
                found[entry.group] = GroupLeft(entry.group, self.holders.get(number, {}))
            elif head is not None:
                found[entry.group] = GroupLeft(entry.group, {}, head._replace(group=entry.group))
        return tuple(found.values())


@dataclass(slots=True)
class SemaphoreCounts:
    """The semaphores that the messages of a claim need, as the server has shown them under their locks."""

    locked: frozenset[str]
    """Those whose locks this claim holds. A message that needs another one may not be claimed."""
    busy: frozenset[str] = frozenset()
    """Those whose locks other claims had all the time."""
    capacities: dict[str, int] = field(default_factory=dict)
    """Those that exist, with the number of their places."""
    holders: dict[str, dict[Holder, int]] = field(default_factory=dict)
    """The messages in flight of all queues that hold each of them, and the ends of their leases."""
    needs: dict[Key, frozenset[str]] = field(default_factory=dict)
    """What each message of the claim needs."""
    taken: Counter[str] = field(default_factory=Counter)
    """How many places of each the claim takes."""
    problem: str | None = None
    """Why nothing has a place, whatever the capacities are."""

    def take(self, key: Key) -> bool:
        """Take a place of each semaphore that this message needs, if all of them have one. Returns
        whether it may be claimed."""
        needs = self.needs.get(key, frozenset())
        if not all(self._has_place(name) for name in needs):
            return False
        self.taken.update(needs)
        return True

    def left(self, claims: Iterable[Claimed]) -> tuple[SemaphoreLeft, ...]:
        """What is left of them behind these claims."""
        for claim in claims:
            for name in self.needs.get(claim.key, ()):
                self.holders.setdefault(name, {})[None, claim.key] = claim.deadline_ns
        found = (SemaphoreLeft(name, self.capacities.get(name), self._holders_if_full(name)) for name in self.locked)
        return (*found, *(SemaphoreLeft(name, None, {}, busy=True) for name in self.busy))

    def _holders_if_full(self, name: str) -> Mapping[Holder, int]:
        holders = self.holders.get(name, {})
        return holders if len(holders) >= self.capacities.get(name, 0) else {}

    def _has_place(self, name: str) -> bool:
        held = len(self.holders.get(name, ())) + self.taken[name]
        return name in self.locked and held < self.capacities.get(name, 0)


def unchanged(found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]) -> dict[Key, Entry]:
    """Those of the locked messages that need the same semaphores as when they were scanned. The locks of
    the claim are those of these; the other messages have to be scanned again."""
    return {key: entry for key, entry in found.items() if needs_of(entry.group) == needs_of(wanted[key].group)}


def choose(
    wanted: Collection[Wanted],
    found: Mapping[Key, Entry],
    now_ns: int,
    end_ns: Callable[[int], int],
    places: int | None,
    groups: GroupCounts | SemaphoreCounts | None = None,
) -> tuple[tuple[Claimed, ...], tuple[Key, ...]]:
    """The messages that a claim takes, and those that it leaves out for want of places.

    Takes those of the locked rows (`found`) that still have the wanted epoch, the first `places` of
    them in the order of `wanted` (None: all), and of these the ones that have a place in `groups`.
    `end_ns`: the end of a lease as it is written.
    """
    possible = [
        Claimed(want.key, entry.epoch + 1, end_ns(now_ns + want.wait_ns), entry.priority, entry.due_ns, entry.group)
        for want in wanted
        if (entry := found.get(want.key)) and want.epoch == entry.epoch
    ]
    count = len(possible) if places is None else max(0, places)
    if groups is None:
        return tuple(possible[:count]), tuple(claim.key for claim in possible[count:])
    taken: list[Claimed] = []
    left_out: list[Key] = []
    for claim in possible:
        if len(taken) < count and groups.take(claim.key):
            taken.append(claim)
        else:
            left_out.append(claim.key)
    return tuple(taken), tuple(left_out)
