"""The steps of a claim that keeps the limits of its queue over all proxies, and its choice.

Which messages are in flight follows from the rows: those that are unacknowledged and whose lease
column equals time_next and is not past. A claim begins with the lock of a row that all claims with the
same limit lock, counts, claims no more than there are places, and commits, which releases the lock. So
each claim counts what those before it have committed. The isolation level is READ COMMITTED: a statement
shows everything that was committed before it began.

The row of a queue is in `ackstream_limits`, that of a semaphore in `ackstream_semaphores`. To lock one
takes a privilege on it. A lock ends with its transaction, and so with its connection. A claim that waits
in vain fails (1205), as at a table that another session has locked.

Both stores carry out these steps in this order, and the tests play any other work of any proxy
between two of them.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.dispatch.semaphore_places import needs_of
from engine.model import Claimed, Entry, Group, GroupLeft, Holder, Key, SemaphoreLeft, Wanted
from engine.store.claim_order import GroupOrder
from engine.store.pace import Pace


class Step(enum.Enum):
    """One statement of such a claim."""

    BEGIN = enum.auto()
    LOCK_LIMITS = enum.auto()
    """Lock the rows of the limits: wait for a short time, and fail without them."""
    COUNT = enum.auto()
    """Count the messages in flight, and read who holds the semaphores that are needed."""
    LOCK_ROWS = enum.auto()
    """Lock the rows that can be claimed."""
    COUNT_GROUPS = enum.auto()
    """Count the messages in flight of the message groups of these rows, which cannot change any more, read
    what their rates leave, and in strict order which messages are next."""
    CHECK_BATCHES = enum.auto()
    """Find the follow-ups among them whose batches are not done. Behind LOCK_ROWS: what a statement
    shows was committed before it began, and a part is committed with its follow-up, or before."""
    WRITE = enum.auto()
    COMMIT = enum.auto()
    """Also releases all locks."""


FIRST_PACKET: Sequence[Step] = (
    Step.BEGIN,
    Step.LOCK_LIMITS,
    Step.COUNT,
    Step.LOCK_ROWS,
    Step.COUNT_GROUPS,
    Step.CHECK_BATCHES,
)
SECOND_PACKET: Sequence[Step] = (Step.WRITE, Step.COMMIT)
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
    taken: Counter[int] = field(default_factory=Counter)
    """How many messages of each group the claim takes."""

    def has_place(self, key: Key) -> bool:
        """Whether this message's group has a place."""
        number = self.numbers.get(key)
        return number is not None and self.held[number] + self.taken[number] < self.most

    def note_taken(self, key: Key) -> None:
        """The claim takes this message."""
        self.taken[self.numbers[key]] += 1

    def left(self, entry: Entry, group: Group) -> GroupLeft | None:
        """What is left of the group of this message, behind the claim; None: it has a place."""
        number = self.numbers.get(entry.key)
        if number is None or self.held[number] + self.taken[number] < self.most:
            return None
        return GroupLeft(group, self.holders.get(number, {}))


@dataclass(slots=True)
class GroupPaces:
    """What `group_rate` leaves to the message groups of a claim."""

    pace: Pace
    now_ns: int
    groups: dict[Key, Hashable] = field(default_factory=dict)
    """The group of each message of the claim, as the server compares groups. A message without one may not
    be claimed."""
    full_ns: dict[Hashable, int] = field(default_factory=dict)
    """The time that is kept for each group. A group without one has its full rate."""
    taken: Counter[Hashable] = field(default_factory=Counter)
    """How many messages of each the claim takes."""

    def has_place(self, key: Key) -> bool:
        """Whether the rate allows one more message of this message's group."""
        group = self.groups.get(key)
        return group is not None and self.taken[group] < self.pace.allowed(self.full_ns.get(group), self.now_ns)

    def note_taken(self, key: Key) -> None:
        """The claim takes this message."""
        self.taken[self.groups[key]] += 1

    def written(self) -> dict[Hashable, int]:
        """The times to keep behind the claim."""
        return {group: self._after(group) for group, taken in self.taken.items() if taken}

    def until_ns(self, key: Key) -> int | None:
        """When the rate allows the next message of this message's group, behind the claim; None: now."""
        group = self.groups.get(key)
        if group is None:
            return None
        after_ns = self._after(group)
        return None if self.pace.allowed(after_ns, self.now_ns) else self.pace.ready_ns(after_ns)

    def _after(self, group: Hashable) -> int:
        return self.pace.after(self.full_ns.get(group), self.now_ns, self.taken[group])


def groups_left(
    entries: Iterable[Entry], counts: GroupCounts | GroupOrder | None, paces: GroupPaces | None
) -> tuple[GroupLeft, ...]:
    """What is left of the groups of these messages, behind the claim."""
    found: dict[Group, GroupLeft] = {}
    for entry in entries:
        if entry.group is None:
            continue
        left = None if counts is None else counts.left(entry, entry.group)
        until_ns = None if paces is None else paces.until_ns(entry.key)
        if until_ns is not None:
            left = (left or GroupLeft(entry.group, {}))._replace(paced_until_ns=until_ns)
        if left is not None:
            found[entry.group] = left
    return tuple(found.values())


@dataclass(slots=True)
class SemaphoreCounts:
    """The semaphores that the messages of a claim need, as the server has shown them under their locks."""

    read: frozenset[str]
    """Those that were read. A message that needs another one may not be claimed."""
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

    def has_place(self, key: Key) -> bool:
        """Whether each semaphore that this message needs has a place."""
        return all(self._has_place(name) for name in self.needs.get(key, ()))

    def note_taken(self, key: Key) -> None:
        """The claim takes this message."""
        self.taken.update(self.needs.get(key, ()))

    def left(self, claims: Iterable[Claimed]) -> tuple[SemaphoreLeft, ...]:
        """What is left of them behind these claims."""
        for claim in claims:
            for name in self.needs.get(claim.key, ()):
                self.holders.setdefault(name, {})[None, claim.key] = claim.deadline_ns
        return tuple(SemaphoreLeft(name, self.capacities.get(name), self._holders_if_full(name)) for name in self.read)

    def _holders_if_full(self, name: str) -> Mapping[Holder, int]:
        holders = self.holders.get(name, {})
        return holders if len(holders) >= self.capacities.get(name, 0) else {}

    def _has_place(self, name: str) -> bool:
        held = len(self.holders.get(name, ())) + self.taken[name]
        return held < self.capacities.get(name, 0)


def unchanged(found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]) -> dict[Key, Entry]:
    """Those of the locked messages that need the same semaphores as when they were scanned. The claim has
    locked the rows of these; the other messages have to be scanned again."""
    return {key: entry for key, entry in found.items() if needs_of(entry.group) == needs_of(wanted[key].group)}


def choose(
    wanted: Collection[Wanted],
    found: Mapping[Key, Entry],
    now_ns: int,
    end_ns: Callable[[int], int],
    places: int | None,
    by_message: Sequence[GroupCounts | GroupOrder | GroupPaces | SemaphoreCounts] = (),
) -> tuple[tuple[Claimed, ...], tuple[Key, ...]]:
    """The messages that a claim takes, and those that it leaves out for want of places.

    Takes those of the locked rows (`found`) that still have the wanted epoch, the first `places` of
    them in the order of `wanted` (None: all), and of these the ones that have a place in each of
    `by_message`.
    `end_ns`: the end of a lease as it is written.
    """
    possible = [
        Claimed(want.key, entry.epoch + 1, end_ns(now_ns + want.wait_ns), entry.priority, entry.due_ns, entry.group)
        for want in wanted
        if (entry := found.get(want.key)) and want.epoch == entry.epoch
    ]
    count = len(possible) if places is None else max(0, places)
    if not by_message:
        return tuple(possible[:count]), tuple(claim.key for claim in possible[count:])
    taken: list[Claimed] = []
    left_out: list[Key] = []
    for claim in possible:
        if len(taken) < count and all(limit.has_place(claim.key) for limit in by_message):
            taken.append(claim)
            for limit in by_message:
                limit.note_taken(claim.key)
        else:
            left_out.append(claim.key)
    return tuple(taken), tuple(left_out)
