"""Deliveries: leases from their claim to their end, and whatever each step changes elsewhere.

A committed claim becomes a lease, which is given to a subscriber; its row is sent; it ends, or is
given back. Each step updates credit, capacity, scans, releases and dead letters, here alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from engine.dispatch.claims import ClaimAttempt
from engine.dispatch.effects import Cause, Deliver, Effect, End
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.leases import UNREAD_STATES, Lease, LeaseEvent
from engine.dispatch.parts import Parts
from engine.dispatch.runs import begin_runs
from engine.dispatch.subscribers import Subscriber
from engine.model import Claimed, FetchResult
from engine.queue_table import OnDisconnect

EndLeases = Callable[[Sequence[Lease]], None]


class Deliveries:
    """The leases of one table and their subscribers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ending: deque[tuple[deque[Lease], EndLeases]] = deque()
        """Leases that are over, and how each decision ends the next ones of them."""

    @property
    def are_ending(self) -> bool:
        """Whether leases that are over have not ended yet."""
        return bool(self._ending)

    # Claims.

    def start_leases(self, now: Instant, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> None:
        """Turn committed claims into leases, in the order of delivery, and distribute them. Messages
        that a limit has left out are ready again."""
        parts = self._parts
        taken = {claim.key for claim in claims}
        by_group: dict[FilterGroup, list[Lease]] = {}
        lockable = taken | attempt.left_out | attempt.waiting
        for group, missed in attempt.missed_by_group(lockable).items():
            by_group[group] = []
            if attempt.unscanned and (missed or attempt.left_out):
                parts.scans.request_scans()
            started_ns, tried = attempt.started_ns, attempt.count_for(group)
            if not attempt.unscanned:
                parts.scans.judge_buffer(group, started_ns, missed, tried - len(missed), now)
            again = () if attempt.unscanned else missed
            parts.scans.claim_answered(group, lockable, again, now, tried, started_ns)
        if not attempt.unscanned:
            for group, entry in map(attempt.picked.__getitem__, attempt.left_out):
                if (retry_ns := parts.refusals.retry_ns(entry.key, now)) is not None:
                    parts.scans.retry_later([entry], now, group, at_ns=retry_ns)
                else:
                    parts.scans.left_out(group, entry, now)
        self.end_leases(parts.leases.among(claim.key for claim in claims))
        for claim in self._in_order(attempt, claims):
            lease = Lease.of(claim, next(parts.numbers))
            parts.leases.add_lease(lease)
            by_group[attempt.picked[lease.key][0]].append(lease)
        for group, leases in by_group.items():
            self.distribute(group, leases)

    def _in_order(self, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> list[Claimed]:
        """Claims in the order of delivery: with message groups, that in which they were picked."""
        if self._parts.groups.turns is not None:
            places = {key: at for at, key in enumerate(attempt.picked)}
            return sorted(claims, key=lambda claim: places[claim.key])
        return sorted(claims, key=attrgetter("priority", "due_ns", "key"))

    def distribute(self, group: FilterGroup, leases: Sequence[Lease]) -> None:
        """Give leases to the subscribers of a group; release those beyond their credit."""
        if self._parts.policy.group_run > 1:
            given_out, left = group.subscribers.distribute_runs(begin_runs(leases))
        else:
            given_out, left = group.subscribers.distribute(leases)
        self.assign(given_out, left)

    def assign(self, given_out: Iterable[tuple[Lease, Subscriber]], left: Sequence[Lease]) -> None:
        """These leases were given to subscribers, and for those `left` there was no credit."""
        for lease, subscriber in given_out:
            self._parts.leases.assign(lease, subscriber.spec.holder, subscriber.spec.id)
        self.give_back(left)

    # Rows.

    def send_claimed_rows(self, now: Instant, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> list[Effect]:
        """Send the rows that were read behind a claim. Those of messages that others may have changed
        since are fetched again, and those behind them."""
        parts = self._parts
        for entry, before in attempt.logged.values():
            if lease := parts.leases.get(entry.key):
                parts.verification.lease_logged(lease, entry, before)
        if attempt.rows is None or attempt.row_format is None or attempt.all_reported:
            return []
        fetch_id = parts.fetches.start_behind_claim(attempt.row_format, {claim.key for claim in claims})
        unread = attempt.rows.unread | attempt.reported
        return self.send_rows(now, fetch_id, replace(attempt.rows, unread=unread))

    def send_rows(self, now: Instant, fetch_id: int, result: FetchResult) -> list[Effect]:
        """Send the rows of a fetch whose leases still stand, and end the leases of messages that are
        over. The end of a stream with its LIMIT reached comes with its last row: both are one write."""
        self.end_expired(now)
        rows_to_send: dict[Subscriber, list[Lease]] = {}
        stopped: set[int] = set()
        over: list[Lease] = []
        for lease, subscriber in self._parts.fetches.finish_fetch(fetch_id):
            if lease.key in result.unread or subscriber.spec.id in stopped:
                stopped.add(subscriber.spec.id)  # Rows behind an unread one wait for it, in their order.
                lease.apply(LeaseEvent.UNREAD)
            elif lease.deadline_ns <= now.server_ns and not lease.locked:
                lease.apply(LeaseEvent.UNREAD)  # It ends in the next decision.
            elif lease.is_suspect or lease.key in result.changed:
                lease.apply(LeaseEvent.UNREAD)
                self._parts.verification.suspect(lease)
            elif lease.run is not None and lease.is_behind(UNREAD_STATES):
                lease.apply(LeaseEvent.UNREAD)
            elif lease.key in result.rows:
                rows_to_send.setdefault(subscriber, []).append(lease)
            else:
                over.append(lease)
        self.end_leases(over, settled=True)
        effects: list[Effect] = []
        for subscriber, leases in rows_to_send.items():
            self._parts.groups.members_with(subscriber).rows_sent(subscriber, leases)
            self._parts.measures.sent(leases, now)
            effects.append(Deliver(subscriber.spec.id, tuple(result.rows[lease.key] for lease in leases)))
            if subscriber.limit_reached:
                effects.append(self.end_stream(subscriber, Cause.COMPLETE))
        return effects

    # Ends.

    def end_expired(self, now: Instant) -> None:
        """End the leases whose deadlines are past, and give back what has to come behind a message again."""
        parts = self._parts
        expired = parts.leases.expired(now.server_ns, parts.limits.ends_max)
        parts.more |= len(expired) == parts.limits.ends_max
        parts.measures.waits_over(expired, now)
        self.end_leases(expired)
        for lease in expired:
            parts.dead_letters.add_if_dead(lease.expired_entry, now)
            parts.scans.rescan_place(lease.expired_entry)
            parts.scans.request_scans()
        if parts.runs.broken:
            self.give_back(parts.runs.take_broken())

    def end_leases(self, leases: Sequence[Lease], *, settled: bool = False) -> None:
        """These deliveries are over, for whatever reason: free their credit. `settled`: the messages were
        acknowledged or deleted."""
        if not leases:
            return
        parts = self._parts
        by_subscriber: dict[int | None, list[Lease]] = {}
        for lease in leases:
            parts.leases.end(lease)
            by_subscriber.setdefault(lease.subscriber, []).append(lease)
        if not settled:
            parts.runs.leases_ended_unsettled(leases)
        parts.capacity.places_freed(len(leases))
        parts.places.deliveries_over(lease.key for lease in leases)
        parts.verification.leases_ended(leases)
        for number, ended in by_subscriber.items():
            if number is not None and (subscriber := parts.groups.subscribers.get(number)):
                parts.groups.members_with(subscriber).leases_ended(subscriber, ended)

    def give_back(self, leases: Sequence[Lease]) -> None:
        """End leases, and release their claims. Messages that were not locked yet are free."""
        parts = self._parts
        for lease in leases:
            parts.measures.given_back += lease.is_sent
            if lease.locked:
                continue
            if lease.is_sent:
                parts.dead_letters.add_if_dead(lease.expired_entry, parts.now)  # Should the release fail.
            parts.releases.add_release(lease.returned())
        self.end_leases(leases)
        for lease in leases:
            if lease.unscanned:
                parts.scans.request_scans()
            elif lease.locked:
                parts.scans.unlocked(lease.expired_entry, parts.now)

    def end_in_steps(self, leases: Sequence[Lease], end: EndLeases) -> None:
        """Hand these leases to `end`, which ends them: `ends_max` in each decision."""
        if leases:
            self._ending.append((deque(leases), end))

    def end_more(self) -> None:
        """End some of the leases that events have left. Those that have ended otherwise are left out."""
        room = self._parts.limits.ends_max
        while self._ending and room:
            leases, end = self._ending[0]
            some = [leases.popleft() for _ in range(min(len(leases), room))]
            room -= len(some)
            if not leases:
                self._ending.popleft()
            end([lease for lease in some if self._parts.leases.get(lease.key) is lease])
        self._parts.more |= bool(self._ending)

    def give_back_abandoned(self, leases: Iterable[Lease]) -> None:
        """Give back those of these leases of vanished or ended clients that the policy does not
        keep."""
        keep = self._parts.policy.on_disconnect is OnDisconnect.KEEP
        self.give_back([lease for lease in leases if not (keep and lease.is_sent)])

    # Streams.

    def remove_stream(self, subscriber: Subscriber) -> None:
        """End a stream, and give its unsent leases back. Those that its client's session is locking stay until
        that is answered: the transaction may hold them."""
        self._parts.groups.remove_subscription(subscriber, self._parts.now)
        self.give_back([lease for lease in subscriber.unsent.values() if not lease.awaits_lock])

    def end_stream(self, subscriber: Subscriber, cause: Cause, text: str = "") -> End:
        """End a stream from this side; its unsent messages are released."""
        self.remove_stream(subscriber)
        return End(subscriber.spec.id, cause, text)

    def end_finished(self, now: Instant) -> list[Effect]:
        """End the bounded streams with no message left, and those with their LIMIT reached. Where places are
        limited, a lookup may free one."""
        effects: list[Effect] = []
        parts = self._parts
        closed = not parts.capacity.is_open
        looks = not parts.draining and parts.verification.looks_now(now)
        unsure = looks and (closed or parts.places.limited)
        for group in parts.groups:
            finished = group.finished_streams(now, closed=closed, unsure=unsure)
            effects += [self.end_stream(subscriber, Cause.COMPLETE) for subscriber in finished]
        return effects
