"""The claims that are out: who holds which delivery, until when.

A lease begins when its claim is committed and ends when the message is acknowledged, given back, looked up
and found changed, or when its deadline passes. The database enforces leases (time_next = deadline); this
is the proxy's own account of them, kept to know everybody's credit and to release what a vanished client held.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from engine.model import Claimed, Delivery, Key, Return


@dataclass(slots=True, eq=False)
class Lease:
    """One committed claim. `holder` is the client connection, `subscriber` the stream that it was given to."""

    key: Key
    epoch: int
    deadline_ns: int
    priority: int
    due_ns: int
    holder: int | None = None
    subscriber: int | None = None
    sent: bool = False
    since: int = 0
    """Whatever was asked of the database under a greater number shows its claim, or what was made of it later."""
    extended: bool = False
    """Whether its holder may have asked for more time."""
    doubted: bool = False
    """Whether somebody may have changed the message: it is not sent before a lookup has shown that it was not."""

    logged: bool = False
    """Whether the server's log has shown the claim: what it told before is older, what it tells then is younger."""

    @classmethod
    def of(cls, claim: Claimed) -> Lease:
        """The lease that a claim begins."""
        return cls(claim.key, claim.epoch, claim.deadline_ns, claim.priority, claim.due_ns)

    @property
    def delivery(self) -> Delivery:
        """What its row shows while the lease stands."""
        return Delivery(self.epoch, self.deadline_ns)

    def returned(self) -> Return:
        """What giving it back takes."""
        return Return(self.key, self.epoch, self.deadline_ns, self.due_ns, self.sent, self.priority)


class Leases:
    """All leases of one table, by key, by holder, and by deadline."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Lease] = {}
        self._by_holder: dict[int, dict[Key, Lease]] = {}
        self._deadlines: list[tuple[int, Key, int]] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._by_key.values())

    def get(self, key: Key) -> Lease | None:
        """The lease of that message."""
        return self._by_key.get(key)

    def add(self, lease: Lease) -> None:
        """Begin a lease; there must be none of that key."""
        assert lease.key not in self._by_key, lease
        self._by_key[lease.key] = lease
        heapq.heappush(self._deadlines, (lease.deadline_ns, lease.key, lease.epoch))

    def hold(self, lease: Lease, holder: int, subscriber: int) -> None:
        """Give a lease to a stream of a connection."""
        lease.holder, lease.subscriber = holder, subscriber
        self._by_holder.setdefault(holder, {})[lease.key] = lease

    def remove(self, lease: Lease) -> None:
        """End a lease."""
        del self._by_key[lease.key]
        if lease.holder is not None:
            held = self._by_holder[lease.holder]
            del held[lease.key]
            if not held:
                del self._by_holder[lease.holder]
        if len(self._deadlines) > 2 * len(self._by_key) + 64:
            self._deadlines = [(each.deadline_ns, each.key, each.epoch) for each in self]
            heapq.heapify(self._deadlines)

    def held_by(self, holder: int) -> list[Lease]:
        """What a connection holds, oldest first."""
        return list(self._by_holder.get(holder, {}).values())

    def postpone(self, lease: Lease, deadline_ns: int) -> None:
        """Put a lease at the end of the order of iteration, with the deadline that it has now."""
        self._by_key[lease.key] = self._by_key.pop(lease.key)
        if lease.deadline_ns != deadline_ns:
            lease.deadline_ns = deadline_ns
            heapq.heappush(self._deadlines, (deadline_ns, lease.key, lease.epoch))

    def expired(self, now_ns: int) -> list[Lease]:
        """The leases whose deadline has passed; they are still to be removed."""
        if not self._deadlines or self._deadlines[0][0] > now_ns:
            return []
        # By key: a message given back unsent and claimed again at the same instant has one deadline twice.
        over: dict[Key, Lease] = {}
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            if lease := self._top():
                over[lease.key] = lease
            heapq.heappop(self._deadlines)
        return list(over.values())

    @property
    def next_deadline_ns(self) -> int | None:
        """When the next lease ends by itself."""
        while self._deadlines and self._top() is None:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _top(self) -> Lease | None:
        """The lease that the first deadline is about, unless that lease is over."""
        deadline_ns, key, epoch = self._deadlines[0]
        lease = self._by_key.get(key)
        current = lease is not None and (lease.epoch, lease.deadline_ns) == (epoch, deadline_ns)
        return lease if current else None
