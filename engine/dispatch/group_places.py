"""Which message groups have a place for one more message in flight (`group_limit`, `group_rate`, semaphores).

A place is held by a message in flight here, which `GroupsInFlight` counts, or *elsewhere*: at another
proxy, or by a claim whose answer was lost. Only a claim shows the latter (`GroupLeft`), with the end
of its lease. It is remembered until that end, until a report or a scan shows that its delivery is
over, or until the next poll. So a group at its limit causes no claim before it may have a place.

The places of semaphores and the rates of groups are kept beside (`SemaphorePlaces`, `GroupRates`).

All this is a hint. Each claim counts again in the database.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from engine.dispatch.group_rates import GroupRates
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.semaphore_places import SemaphorePlaces
from engine.model import Entry, Group, Key, LimitsLeft
from engine.queue_table import Policy

HEAD_NS = 1_000_000_000
"""After this time, a message that has to be delivered first and is due is looked for again. Another
session may have locked it, or another proxy may have it in flight."""


class GroupPlaces:
    """The places of the groups of one table. Reads `leases`, and reports to `in_flight` which groups
    may have a place again."""

    def __init__(self, policy: Policy, in_flight: GroupsInFlight, leases: Leases) -> None:
        self._policy = policy
        self._in_flight = in_flight
        self._leases = leases
        self._claiming = False
        """Whether a claim is under way. Where the database counts, there is one at a time."""
        self._elsewhere: dict[Group, dict[Key, int]] = {}
        """The messages that hold places of full groups elsewhere, and the ends of their leases."""
        self._heads: dict[Group, Key] = {}
        """In strict order: the message that has to be delivered before others, of groups where another one
        was tried."""
        self._groups: dict[Key, set[Group]] = {}
        """The groups of each of these messages: several if the server treats them as equal."""
        self._forgotten_ns: dict[Key, int] = {}
        """When each of them is forgotten at the latest (server's clock)."""
        self._ends: list[tuple[int, Key]] = []
        """These times as a heap, with entries that are not valid any more."""
        self._over: set[Key] = set()
        """Messages whose deliveries have ended since the claim under way was started, which may have
        counted them."""
        self._all_over = False
        """Any delivery elsewhere may have ended since then."""
        self.semaphores = SemaphorePlaces(policy, in_flight.note_unused)
        """The places of the semaphores that messages need."""
        self.rates = GroupRates(policy, in_flight.note_unused)
        """The groups that have used up their rate."""
        self.limited = self._has_limits()
        """Whether groups have a limit or a rate, or need semaphores."""

    @property
    def most(self) -> int | None:
        """How many messages of a group may be in flight; None: any number."""
        return self._policy.group_most

    @property
    def strict(self) -> bool:
        """Whether the messages of a group are in the order of their ids."""
        return self._policy.group_strict

    def has_place(self, group: Group | None, here: int, key: Key, taken: int = 0) -> bool:
        """Whether this message of a group may be in flight, beside `here` messages of this proxy and
        `taken` ones that were taken in this round."""
        if not self.limited:
            return True
        most = self._policy.group_most
        if group is not None and not self.rates.allows(group, taken):
            return False
        if not self.semaphores.has_place(group):
            return False
        if most is None or group is None:
            return True
        if here + taken + len(self._elsewhere.get(group, ())) >= most:
            return False
        head = self._heads.get(group, key)
        if head == key:
            return True
        # Committed since with a smaller id, so it may be the first now.
        return isinstance(key, int) and isinstance(head, int) and key < head

    # Claims.

    def claim_started(self) -> None:
        """A claim starts. What is reported from now on may be over although it was counted."""
        self._claiming = True
        self._over.clear()
        self._all_over = False
        self.semaphores.claim_started()

    def claim_answered(self, now: Instant, found: LimitsLeft | None) -> None:
        """A claim was answered, and has found these groups and semaphores; None, if it failed."""
        self._claiming = False
        self.semaphores.claim_answered(now, found.semaphores if found else ())
        for left in found.groups if found else ():
            self._forget_group(left.group)
            self.rates.used_up(left.group, left.paced_until_ns, now)
            if self._all_over:
                continue
            for key, end_ns in left.holders.items():
                lease = self._leases.get(key)
                here = lease is not None and lease.group == left.group
                if not here and key not in self._over and end_ns > now.server_ns:
                    self._elsewhere.setdefault(left.group, {})[key] = end_ns
                    self._remember(left.group, key, now, end_ns)
            if left.first is not None and left.first not in self._over:
                self._heads[left.group] = left.first
                due_ns = now.server_ns if left.head is None else left.head.due_ns
                self._remember(left.group, left.first, now, max(due_ns, now.server_ns + HEAD_NS))
        if len(self._ends) > 2 * len(self._forgotten_ns) + 64:
            self._ends = [(at_ns, key) for key, at_ns in self._forgotten_ns.items()]
            heapq.heapify(self._ends)

    # Reports.

    def deliveries_over(self, keys: Iterable[Key]) -> None:
        """The deliveries of these messages are over, or may be."""
        if self.limited:
            for key in keys:
                self.delivery_over(key)

    def delivery_over(self, key: Key) -> None:
        """The delivery of this message is over, or may be."""
        self.semaphores.delivery_over(key)
        if self._policy.group_most is None:
            return
        if self._claiming:
            self._over.add(key)
        self._forgotten_ns.pop(key, None)
        for group in self._groups.pop(key, ()):
            self._remove(group, key)

    def rows_shown(self, entries: Iterable[Entry]) -> None:
        """A scan shows these messages. One with another time than the end of its lease is not in flight any
        more, or was extended."""
        self.semaphores.rows_shown(entry for entry in entries if self._leases.get(entry.key) is None)
        if not self._elsewhere:
            return
        for entry in entries:
            held = (self._elsewhere.get(group, {}) for group in self._groups.get(entry.key, ()))
            if any(keys.get(entry.key, entry.due_ns) != entry.due_ns for keys in held):
                self.delivery_over(entry.key)

    def any_over(self) -> None:
        """Any delivery elsewhere may be over."""
        self._all_over = True
        self.semaphores.any_over()
        for group in [*self._elsewhere, *self._heads]:
            self._forget_group(group)
        self._ends.clear()

    def forget_ended(self, now: Instant) -> None:
        """Forget the messages whose leases have ended, and the groups whose rate allows another message."""
        self.semaphores.forget_ended(now)
        self.rates.forget_ended(now)
        while self._ends and self._ends[0][0] <= now.server_ns:
            at_ns, key = heapq.heappop(self._ends)
            if self._forgotten_ns.get(key) == at_ns:
                self.delivery_over(key)

    @property
    def next_ns(self) -> int | None:
        """When the time alone may free a place (server's clock); None: never."""
        while self._ends and self._forgotten_ns.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        times = (self._ends[0][0] if self._ends else None, self.semaphores.next_ns)
        return min([at_ns for at_ns in times if at_ns is not None], default=None)

    def set_policy(self, policy: Policy) -> None:
        """The table's comment has changed."""
        self._policy = policy
        self.semaphores.set_policy(policy)
        self.rates.set_policy(policy)
        self.limited = self._has_limits()
        self.any_over()

    def _has_limits(self) -> bool:
        return self._policy.group_most is not None or self.rates.limited or self.semaphores.limited

    def _remember(self, group: Group, key: Key, now: Instant, until_ns: int) -> None:
        self._groups.setdefault(key, set()).add(group)
        forgotten_ns = min(until_ns, now.server_ns + self._policy.poller_interval_ns)
        self._forgotten_ns[key] = forgotten_ns
        heapq.heappush(self._ends, (forgotten_ns, key))

    def _remove(self, group: Group, key: Key) -> None:
        if self._heads.get(group) == key:
            del self._heads[group]
        keys = self._elsewhere.get(group, {})
        keys.pop(key, None)
        if not keys:
            self._elsewhere.pop(group, None)
        self._in_flight.note_unused(group)

    def _forget_group(self, group: Group) -> None:
        head = self._heads.pop(group, None)
        for key in self._elsewhere.pop(group, {}).keys() | ({head} if head is not None else set()):
            groups = self._groups[key]
            groups.discard(group)
            if not groups:
                del self._groups[key], self._forgotten_ns[key]
        self._in_flight.note_unused(group)
