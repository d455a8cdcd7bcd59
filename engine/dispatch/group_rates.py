"""Which message groups have used up their rate (`group_rate`), as claims have found it.

A claim returns the time at which the rate allows the next message of a group. Until then the group is
passed over, so it costs no claim. Nothing but the time brings it back: times are kept on the monotonic
clock, so a step of the server's clock delays nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from itertools import count
from types import MappingProxyType

from engine.dispatch.burst import burst_of, most_at_once
from engine.dispatch.group_hint import GroupHint
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.model import NS_PER_S, Group, Holder, Key, LimitsLeft
from engine.queue_table import Policy

KNOWN_MAX = 200_000
"""Groups that are remembered. Further ones are tried."""


class GroupRates(GroupHint):
    """The groups of one table that wait for their rate. Reports those whose wait is over."""

    reasons = MappingProxyType(
        {"group_rate": "each group that has messages has used up its group_rate, or has no place"}
    )

    def __init__(self, policy: Policy, note_unused: Callable[[Group], None], leases: Leases) -> None:
        super().__init__(policy, note_unused, leases)
        self._claim_s = 0.0
        self._until_ns: dict[Group, int] = {}
        """When each of them may be claimed from (monotonic)."""
        self._ends: list[tuple[int, int, Group]] = []
        """These times as a heap, with numbers that decide between equal times, and entries that are not valid
        any more."""
        self._numbers = count()

    def __len__(self) -> int:
        """How many groups wait."""
        return len(self._until_ns)

    @property
    def limited(self) -> bool:
        """Whether groups have a rate."""
        return self._policy.group_rate is not None

    @property
    def reason(self) -> str | None:
        """It holds while a group waits."""
        return "group_rate" if self._until_ns else None

    def has_place(self, group: Group, key: Key, here: int, taken: int) -> bool:
        """Whether the rate of a group allows one more message."""
        return self.may_follow(group, taken)

    def may_follow(self, group: Group, taken: int) -> bool:
        """Whether a message of a group may be claimed, besides `taken` ones that the same claim takes. A
        group of which nothing is known may have its full rate."""
        if group in self._until_ns:
            return False
        return taken < int(most_at_once(self._policy.group_rate or 0, burst_of(self._claim_s)))

    def claim_answered(self, now: Instant, left: LimitsLeft, over: Collection[Holder] | None) -> None:
        """Remember the groups that have to wait."""
        for group, until_ns in left.paced_groups:
            self.used_up(group, until_ns, now)

    def claim_took(self, duration_ns: int) -> None:
        """The last claim was answered so long after its start. The rate allows as many messages at
        once as it does in that time."""
        self._claim_s = duration_ns / NS_PER_S

    def used_up(self, group: Group, until_ns: int, now: Instant) -> None:
        """A claim has found that a group has to wait until a time (server's clock)."""
        self._until_ns.pop(group, None)
        if len(self._until_ns) < KNOWN_MAX:
            at_ns = self._until_ns[group] = now.until(until_ns)
            heapq.heappush(self._ends, (at_ns, next(self._numbers), group))

    def forget_ended(self, now: Instant) -> None:
        """Bring back the groups whose wait is over."""
        while self._ends and self._ends[0][0] <= now.mono_ns:
            at_ns, _, group = heapq.heappop(self._ends)
            if self._until_ns.get(group) == at_ns:
                del self._until_ns[group]
                self._note_unused(group)

    def next_ns(self, now: Instant) -> int | None:
        """When the first wait is over (monotonic); None: no group waits."""
        while self._ends and self._until_ns.get(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def set_policy(self, policy: Policy) -> None:
        """With another rate, all groups are tried again."""
        if policy.group_rate != self._policy.group_rate:
            for group in self._until_ns:
                self._note_unused(group)
            self._until_ns.clear()
            self._ends.clear()
        self._policy = policy
