"""Locked leases: messages that the clients of streams FOR UPDATE lock in their own transactions.

Nothing is claimed. A picked message becomes a lease at once, and its stream's session is offered to
lock it (`Lock`). The lease ends with the client's transaction. Only a delivery that certainly failed
is written: it is counted in the row, by a `Release`.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from engine.dispatch.deliveries import Deliveries
from engine.dispatch.effects import Cause, Effect
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseEvent
from engine.dispatch.parts import Parts
from engine.dispatch.picking import Picked
from engine.dispatch.redelivery import wait_ns
from engine.model import Entry, Key, Return
from engine.queue_table import OnDisconnect


class LockedLeases:
    """The events of messages that clients lock."""

    def __init__(self, parts: Parts, deliveries: Deliveries) -> None:
        self._parts = parts
        self._deliveries = deliveries

    def start_leases(self, picked: Picked, *, unscanned: bool = False) -> None:
        """Give these messages to streams that lock them. No claim precedes it. `unscanned`: their keys
        follow from an INSERT."""
        parts = self._parts
        by_group: dict[FilterGroup, list[Lease]] = {}
        self._deliveries.end_leases(parts.leases.among(picked))
        for group, entry in picked.values():
            lease = Lease.locking(entry, next(parts.numbers), unscanned=unscanned)
            parts.leases.add_lease(lease)
            by_group.setdefault(group, []).append(lease)
        for group, leases in by_group.items():
            if parts.policy.group_run > 1:  # The comment has changed since the streams began.
                self._deliveries.distribute(group, leases)
                continue
            given_out, left = group.subscribers.distribute_shares(leases, len(leases) + group.scans.buffer.ready)
            self._deliveries.assign(given_out, left)

    def lock_answered(
        self, now: Instant, lock_id: int, locked: AbstractSet[Key], read: Sequence[Entry]
    ) -> list[Effect]:
        """A session has locked these of the messages that it was offered. `read`: their rows, if no scan
        had shown some of them. Ends the stream if its LIMIT is reached."""
        parts = self._parts
        if lock := parts.locks.finish_lock(lock_id):
            leases = [lease for lease in lock.leases if lease.awaits_lock]
            missed = [lease for lease in leases if lease.key not in locked]
            self._deliveries.end_leases(missed)
            sent = [lease for lease in leases if lease.key in locked]
            rows = {entry.key: entry for entry in read}
            for lease in sent:
                if lease.key in rows:
                    lease.row_read(rows[lease.key])
                if lease.is_suspect:
                    lease.apply(LeaseEvent.VERIFY)  # By the lock itself.
            if parts.locks.is_running(lock.subscriber):
                lock.group.subscribers.rows_sent(lock.subscriber, sent)
            else:
                for lease in sent:
                    lease.apply(LeaseEvent.SEND)
            parts.measures.sent(sent, now)
            entries = [lease.expired_entry for lease in missed if not lease.unscanned]
            if len(entries) < len(missed):
                parts.scans.request_scans()
            parts.scans.claim_answered(lock.group, locked, entries, now, len(lock.leases), lock.started_ns)
            if lock.subscriber.limit_reached and parts.locks.is_running(lock.subscriber):
                return [self._deliveries.end_stream(lock.subscriber, Cause.COMPLETE)]
        return []

    def transaction_ended(self, holder: int, *, failed: bool) -> None:
        """The transaction of a client has ended, and with it the locks on its messages. `failed`: it
        was certainly rolled back."""
        end = partial(self._count_failures, wait=True) if failed else self._unlocked
        self._deliveries.end_in_steps(self._parts.leases.locked_by(holder), end)

    def _unlocked(self, leases: Sequence[Lease]) -> None:
        parts = self._parts
        parts.measures.given_back += len(leases)
        free = [lease for lease in leases if not lease.is_suspect]  # The others are being looked up.
        self._deliveries.end_leases(leases)
        for lease in free:
            parts.scans.unlocked(lease.expired_entry, parts.now)

    def client_gone(self, holder: int) -> None:
        """A client's connection is gone, and its transaction with it: its deliveries have failed."""
        self._parts.locks.client_gone(holder)
        keep = self._parts.policy.on_disconnect is OnDisconnect.KEEP
        end = partial(self._count_failures, wait=keep)
        self._deliveries.end_in_steps(self._parts.leases.locked_by(holder), end)

    def end_all(self) -> None:
        """End all locked leases. The clients' transactions go on, and may acknowledge them."""
        self._deliveries.end_leases([lease for lease in self._parts.leases if lease.locked])

    def failure_counted(self, now: Instant, claim: Return, waits_ns: int) -> None:
        """A failed delivery was counted in the row, if nobody has changed or locked it since."""
        entry = Entry(claim.key, claim.epoch + 1, claim.priority, now.server_ns + waits_ns)
        if not self._parts.dead_letters.add_if_dead(entry, now):
            self._parts.scans.found_unleased(entry, now)

    def _count_failures(self, leases: Sequence[Lease], *, wait: bool) -> None:
        """End the leases of messages whose locks are gone, and count the deliveries as failed. The
        messages are due after the wait of a delivery (`wait`) or at once."""
        parts = self._parts
        parts.measures.given_back += len(leases)
        for lease in leases:
            duration_ns = wait_ns(parts.policy, lease.epoch, parts.jitter()) if wait else 0
            if parts.dead_letters.is_dead(Entry(lease.key, lease.epoch + 1, lease.priority, lease.due_ns)):
                duration_ns = 0
            parts.releases.add_release(lease.failed(duration_ns))
        self._deliveries.end_leases(leases)
