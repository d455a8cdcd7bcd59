"""The locks under way: the messages that were offered to streams FOR UPDATE, which their clients'
own sessions lock.

A stream FOR UPDATE claims nothing. Its lease begins when the message is picked, and its row is
unchanged: same epoch, same time_next. The subscriber's session reads and locks the rows by id
within its client's transaction, and passes them to the client as they come. The row lock is then
the claim, on every proxy. The session answers which keys it has locked; the others are locked by
somebody else, changed or gone, and are tried again later, as messages that a claim missed.

A lock is kept until it is answered, also if its stream ends before: the transaction may hold the
messages. Only the end of the client's connection ends it without an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.dispatch.effects import Effect, Lock
from engine.dispatch.filter_groups import FilterGroup, FilterGroups
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseEvent, LeaseState
from engine.dispatch.subscribers import Subscriber


@dataclass(frozen=True, slots=True)
class LockUnderWay:
    """A lock that a session has not answered: the stream, its group, and the leases offered."""

    group: FilterGroup
    subscriber: Subscriber
    leases: tuple[Lease, ...]
    started_ns: int
    """When it was started (monotonic)."""


class LocksUnderWay:
    """The locks that were started and not answered: at most one for each stream."""

    def __init__(self, groups: FilterGroups, numbers: Iterator[int]) -> None:
        self._groups = groups
        self._numbers = numbers
        self._by_id: dict[int, LockUnderWay] = {}
        self._of_holder: dict[int, set[int]] = {}

    def start_locks(self, now: Instant, epoch_below: int | None) -> list[Effect]:
        """Offer the unsent leases of the locking groups to their streams. `epoch_below`: messages
        of this epoch are dead."""
        effects: list[Effect] = []
        for group in self._groups:
            for subscriber in group.subscribers.to_fetch() if group.locks else ():
                leases = tuple(lease for lease in subscriber.unsent.values() if lease.state is LeaseState.CLAIMED)
                if leases:
                    effects.append(self._start_lock(group, subscriber, leases, now, epoch_below))
        return effects

    def finish_lock(self, lock_id: int) -> LockUnderWay | None:
        """A lock was answered. Returns it; None if its client is gone. Its stream may have ended."""
        lock = self._by_id.pop(lock_id, None)
        if lock is not None:
            holder = lock.subscriber.spec.holder
            self._of_holder[holder].discard(lock_id)
            if not self._of_holder[holder]:
                del self._of_holder[holder]
            if self.is_running(lock.subscriber):
                lock.group.subscribers.set_fetching(lock.subscriber, fetching=False)
        return lock

    def is_running(self, subscriber: Subscriber) -> bool:
        """Whether this stream has not ended."""
        return self._groups.subscribers.get(subscriber.spec.id) is subscriber

    def client_gone(self, holder: int) -> None:
        """A client's connection is gone: its locks are not answered any more."""
        for lock_id in self._of_holder.pop(holder, ()):
            del self._by_id[lock_id]

    def _start_lock(
        self,
        group: FilterGroup,
        subscriber: Subscriber,
        leases: tuple[Lease, ...],
        now: Instant,
        epoch_below: int | None,
    ) -> Lock:
        for lease in leases:
            lease.apply(LeaseEvent.FETCH)
        lock_id = next(self._numbers)
        self._by_id[lock_id] = LockUnderWay(group, subscriber, leases, now.mono_ns)
        self._of_holder.setdefault(subscriber.spec.holder, set()).add(lock_id)
        group.subscribers.set_fetching(subscriber, fetching=True)
        keys, unscanned = tuple(lease.key for lease in leases), any(lease.unscanned for lease in leases)
        return Lock(lock_id, subscriber.spec.id, keys, now.server_ns, epoch_below, unscanned)
