"""Subscribers and their credit: how many more messages each stream may be given, and who is next.

Credit is what bounds everything: the rows on their way to one client (two batches), the deliveries that it has not
acknowledged (PREFETCH), and the rest of its LIMIT. `share` deals claimed messages out like cards: the next one to
whoever has most credit left, and among equals to whoever has waited longest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.leases import Lease
from engine.model import ANYTHING, Key, RowFormat, Selection

BATCHES_UNSENT_MAX = 2
"""Batches on their way to one subscriber: one being sent, one being fetched behind it."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a client asked for. `patience_ns` None: endless; otherwise a bounded stream that ends when nothing is due,
    having waited that long at most for its first message."""

    id: int
    holder: int
    row_format: RowFormat
    limit: int | None = None
    prefetch: int | None = None
    patience_ns: int | None = None
    selection: Selection = ANYTHING


@dataclass(slots=True, eq=False)
class Subscriber:
    """A subscription and where it stands."""

    spec: Subscription
    since_scan: int
    """The number of the first scan that tells this subscriber whether anything is due."""
    patient_until_ns: int | None
    remaining: int | None
    held: int = 0
    """Leases that count against PREFETCH: given to this stream and not over."""
    given: int = 0
    """Messages delivered."""
    served: int = 0
    """When it was last dealt a message, for the round robin."""
    paused: bool = False
    """The client does not read as fast as it is sent to."""
    fetching: bool = False
    unsent: dict[Key, Lease] = field(default_factory=dict)

    def credit(self, batch_size: int) -> int:
        """How many more messages it may be assigned now."""
        if self.paused:
            return 0
        bounds = [BATCHES_UNSENT_MAX * batch_size - len(self.unsent)]
        if self.spec.prefetch is not None:
            bounds.append(self.spec.prefetch - self.held)
        if self.remaining is not None:
            bounds.append(self.remaining)
        return max(0, min(bounds))

    @property
    def starved(self) -> bool:
        """Whether only acknowledgements can give it credit again."""
        return self.spec.prefetch is not None and self.held >= self.spec.prefetch

    @property
    def finished(self) -> bool:
        """Whether its LIMIT is used up and sent."""
        return self.remaining == 0 and not self.unsent

    def assign(self, lease: Lease) -> None:
        """Count a lease in, to be sent."""
        self.held += 1
        self.unsent[lease.key] = lease
        if self.remaining is not None:
            self.remaining -= 1

    def unassign(self, lease: Lease) -> None:
        """Count a lease out: sent ones free their credit, unsent ones also their place under LIMIT."""
        self.held -= 1
        if self.unsent.pop(lease.key, None) is not None and self.remaining is not None:
            self.remaining += 1

    def sent(self, lease: Lease) -> None:
        """The row is on its way."""
        lease.sent = True
        del self.unsent[lease.key]
        self.given += 1


def share(
    subscribers: Iterable[Subscriber], leases: Sequence[Lease], batch_size: int, turn: int
) -> tuple[list[tuple[Lease, Subscriber]], Sequence[Lease]]:
    """Deal out `leases` in order; returns who gets which, and the leases that nobody can take.

    Nobody gets more than a batch of one deal. `turn` is the count of messages dealt before.
    """
    heap = [
        (-credit, each.served, each.spec.id, each)
        for each in subscribers
        if (credit := min(each.credit(batch_size), batch_size)) > 0
    ]
    heapq.heapify(heap)
    dealt: list[tuple[Lease, Subscriber]] = []
    for lease in leases:
        if not heap:
            break
        debit, _, _, subscriber = heap[0]
        turn += 1
        subscriber.served = turn
        dealt.append((lease, subscriber))
        if debit < -1:
            heapq.heapreplace(heap, (debit + 1, turn, subscriber.spec.id, subscriber))
        else:
            heapq.heappop(heap)
    return dealt, leases[len(dealt) :]
