"""Which message groups have as many messages in flight as they may (`group_limit`), and in strict order, which
message is the first one of its group.

A place is held by a message in flight here, which `GroupsInFlight` counts, or *elsewhere*: at another
proxy, or by a claim whose answer was lost. Only a claim shows the latter (`GroupLeft`), with the end
of its lease. It is remembered until that end, until a report or a scan shows that its delivery is
over, or until the next poll. So a group at its limit causes no claim before it may have a place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from types import MappingProxyType

from engine.dispatch.group_hint import GroupHint
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.model import Entry, Group, GroupLeft, Holder, Key, LimitsLeft, TableId
from engine.queue_table import Policy

HEAD_NS = 1_000_000_000
"""After this time, a message that has to be delivered first and is due is looked for again. Another
session may have locked it, or another proxy may have it in flight."""


class FullGroups(GroupHint):
    """The places of groups that are held elsewhere, and the first messages of groups in strict order."""

    reasons = MappingProxyType(
        {
            "group_limit": "each group that has messages has as many in flight as group_limit allows",
            "group_order": "each group that has messages waits for its first one",
        }
    )

    def __init__(self, policy: Policy, note_unused: Callable[[Group], None], leases: Leases) -> None:
        super().__init__(policy, note_unused, leases)
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

    @property
    def limited(self) -> bool:
        """Whether the messages in flight of a group are limited."""
        return self._policy.group_most is not None

    @property
    def reason(self) -> str:
        """Which of them holds."""
        return "group_order" if self._policy.group_strict else "group_limit"

    def has_place(self, group: Group, key: Key, here: int, taken: int) -> bool:
        """Whether a group has a place, and this message may be its next one."""
        most = self._policy.group_most
        if most is not None and here + taken + len(self._elsewhere.get(group, ())) >= most:
            return False
        head = self._heads.get(group, key)
        if head == key:
            return True
        # Committed since with a smaller id, so it may be the first now.
        return isinstance(key, int) and isinstance(head, int) and key < head

    def claim_answered(self, now: Instant, left: LimitsLeft, over: Collection[Holder] | None) -> None:
        """Remember who holds the places of the groups that the claim has found full, and their first messages."""
        for of_group in left.groups:
            self._forget_group(of_group.group)
            if over is not None:
                self._note_found(now, of_group, over)
        if len(self._ends) > 2 * len(self._forgotten_ns) + 64:
            self._ends = [(at_ns, key) for key, at_ns in self._forgotten_ns.items()]
            heapq.heapify(self._ends)

    def _note_found(self, now: Instant, left: GroupLeft, over: Collection[Holder]) -> None:
        for key, end_ns in left.holders.items():
            lease = self._leases.get(key)
            here = lease is not None and lease.group == left.group
            if not here and (None, key) not in over and end_ns > now.server_ns:
                self._elsewhere.setdefault(left.group, {})[key] = end_ns
                self._remember(left.group, key, now, end_ns)
        if left.first is not None and (None, left.first) not in over:
            self._heads[left.group] = left.first
            due_ns = now.server_ns if left.head is None else left.head.due_ns
            self._remember(left.group, left.first, now, max(due_ns, now.server_ns + HEAD_NS))

    def delivery_over(self, key: Key, table: TableId | None = None) -> None:
        """The message holds no place any more, and is the first one of no group."""
        if table is None:
            self._forgotten_ns.pop(key, None)
            for group in self._groups.pop(key, ()):
                self._remove(group, key)

    def rows_shown(self, entries: Iterable[Entry]) -> None:
        """Forget those that show another time than the end of their lease."""
        if not self._elsewhere:
            return
        for entry in entries:
            held = (self._elsewhere.get(group, {}) for group in self._groups.get(entry.key, ()))
            if any(keys.get(entry.key, entry.due_ns) != entry.due_ns for keys in held):
                self.delivery_over(entry.key)

    def any_over(self) -> None:
        """Forget all."""
        for group in [*self._elsewhere, *self._heads]:
            self._forget_group(group)
        self._ends.clear()

    def forget_ended(self, now: Instant) -> None:
        """Forget the messages whose leases have ended."""
        while self._ends and self._ends[0][0] <= now.server_ns:
            at_ns, key = heapq.heappop(self._ends)
            if self._forgotten_ns.get(key) == at_ns:
                self.delivery_over(key)

    def next_ns(self, now: Instant) -> int | None:
        """When the first lease ends (monotonic); None: no place is held elsewhere."""
        while self._ends and self._forgotten_ns.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return now.until(self._ends[0][0]) if self._ends else None

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
        self._note_unused(group)

    def _forget_group(self, group: Group) -> None:
        head = self._heads.pop(group, None)
        for key in self._elsewhere.pop(group, {}).keys() | ({head} if head is not None else set()):
            groups = self._groups[key]
            groups.discard(group)
            if not groups:
                del self._groups[key], self._forgotten_ns[key]
        self._note_unused(group)
