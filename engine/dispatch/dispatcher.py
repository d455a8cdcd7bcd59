"""The dispatcher of one table: events and the time go in, effects come out.

It uses no socket, no clock and no SQL. Every public method that returns effects is an event: it
takes the time (`Instant`), changes the state, and returns effects (engine.dispatch.effects). The
table runner carries them out, and the answer to each is another event. Every possible order of
events is therefore a sequence of calls, and tests play thousands of them.

The life of a message: a *scan* brings its key into the read-ahead buffer. When the message is due
and a stream has credit, a *claim* takes it in the database for the wait of this delivery. A
committed claim is a *lease*: it is given to a subscriber, its row is *fetched* (with the claim, if
all subscribers have one row format) and *sent*. The
lease ends by an acknowledgement (`settled`, or found by a *lookup*), by a *release*, or at its
deadline; after the deadline the next scan finds the row due again.

A stream FOR UPDATE claims nothing: the messages picked for it become leases at once, its client's
session locks their rows in the client's transaction (`Lock`), and the leases end with that
transaction (`transaction_ended`). See engine.dispatch.locks.

Safety comes from the database: a claim takes only rows that are unacknowledged, due, and of the
epoch that was scanned. A stale buffer costs a wasted key and never a wrong delivery. Liveness comes
from the rows: each contains the time at which it is due again, whatever was lost on the way (an
answer, a process, a connection).

Three questions are decided by three parts: what to hand out next (`ScanScheduler`), how much
(`Capacity`), and to whom (`FilterGroups`, with the `Subscribers` of each). `Leases` records what is
in flight, `LeaseVerification` what others may have done to it. `Releases`, `DeadLetters` and
`Purges` are maintenance, which goes on without streams.

`_advance` is the one place that decides what to do next; events only record. No event takes time
that grows with the number of subscribers, except a change of the batch size and the end of all
streams.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.capacity import Capacity
from engine.dispatch.claims import ClaimAttempt, ClaimsUnderWay
from engine.dispatch.effects import Cause, Deliver, Effect, End
from engine.dispatch.fetches import FetchesUnderWay
from engine.dispatch.filter_groups import FilterGroup, FilterGroups, TooManyFilterGroups
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseEvent, Leases
from engine.dispatch.limits import Limits
from engine.dispatch.locks import LocksUnderWay
from engine.dispatch.maintenance import DeadLetters, Purges, Releases
from engine.dispatch.redelivery import wait_ns
from engine.dispatch.scans import ScanScheduler
from engine.dispatch.subscribers import Subscriber, Subscription
from engine.dispatch.verification import NOTHING_BEFORE, LeaseVerification
from engine.model import Claimed, Entry, FetchResult, Key, OnDisconnect, Policy, Return, ScanResult

Effects = list[Effect]


class Dispatcher:
    """Which subscriber of one table gets which message, and when."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        self._policy = policy
        self._limits = limits
        self._jitter = jitter
        numbers = count(1)  # Of statements and leases: the later one has the greater number.
        self._numbers = numbers
        self._groups = FilterGroups(limits.filter_groups_max, limits.scan_min, policy.batch_size)
        self._leases = Leases()
        self._claims = ClaimsUnderWay(policy, jitter, numbers)
        self._capacity = Capacity(policy, limits, self._leases, self._claims, now)
        self._scans = ScanScheduler(self._groups, policy, limits, numbers)
        self._fetches = FetchesUnderWay(self._groups, limits.fetch_max, numbers)
        self._locks = LocksUnderWay(self._groups, numbers)
        self._verification = LeaseVerification(self._leases, limits)
        self._releases = Releases(limits)
        self._dead_letters = DeadLetters(policy, limits)
        self._purges = Purges(policy, limits, now)
        self._failure_pause = ExponentialBackoff(limits.failure_pause_min_ns, limits.failure_pause_max_ns)
        self._now = now
        """The time of the last decisions. Whatever came due after it is still to be decided."""
        self._draining = False
        self._locks_first = False
        """Whether streams that lock have the first choice next, and not those that claim."""

    def __repr__(self) -> str:
        return (
            f"<Dispatcher subscribers={len(self.subscribers)} ready={self.ready} groups={len(self._groups)}"
            f" claims={len(self._claims)} in_flight={len(self._leases)} releasing={len(self._releases)}>"
        )

    # State for callers.

    @property
    def in_flight(self) -> int:
        """How many messages are claimed and their deliveries not over."""
        return len(self._leases)

    @property
    def ready(self) -> int:
        """How many keys that were read ahead are due."""
        return self._scans.ready

    @property
    def subscribers(self) -> Mapping[int, Subscriber]:
        """The running streams by id; for reading."""
        return self._groups.subscribers

    @property
    def settled_down(self) -> bool:
        """Whether no statement is under way and nothing waits for its release: a drained dispatcher
        may be dropped then."""
        delivery = len(self._claims) or len(self._fetches) or self._scans.under_way or self._verification.under_way
        maintenance = len(self._releases) or self._dead_letters.under_way or self._purges.under_way
        return not (delivery or maintenance)

    @property
    def wake_at_ns(self) -> int | None:
        """When to call `tick` if no other event comes before (monotonic); None: not at all. Read it
        again after each event, because the server's clock may have been set."""
        now = self._now
        times = [self._releases.release_ns]
        if (deadline_ns := self._leases.next_deadline_ns) is not None:
            times.append(now.until(deadline_ns))
        if not self._draining:
            times += [self._purges.purge_ns, *self._dead_letters.wake_times(now), *self._scan_times(now)]
            times += [group.subscribers.next_first_wait_end_ns() for group in self._groups]
            if self._verification.has_suspects or self._acknowledgements_needed():
                times.append(self._verification.pause_until_ns)
        return min([at_ns for at_ns in times if at_ns is not None and at_ns > now.mono_ns], default=None)

    def _scan_times(self, now: Instant) -> list[int | None]:
        """When the next scan or claim may start."""
        times: list[int | None] = [self._scans.rescan_ns] if self.subscribers else []
        groups = self._groups_with_demand()
        for group in groups:
            times += self._scans.wake_times(group, now)
            if group.scans.buffer.ready:
                times.append(self._capacity.next_token_ns)
        if self._dead_letters.scanned_for:
            times.append(self._scans.dead_scan_ns(now))
        if groups or self._dead_letters.due_count or self._dead_letters.scanned_for:
            times.append(self._failure_pause.until_ns)
        return times

    def has_locked(self, holder: int) -> bool:
        """Whether a client connection has locked messages that it has not acknowledged."""
        return self._leases.has_locked(holder)

    # Events: clients.

    def subscribe(self, now: Instant, spec: Subscription) -> Effects:
        """A client opened a stream."""
        if self._draining:
            return [End(spec.id, Cause.DRAINING)]
        try:
            self._groups.add_subscription(spec, now)
        except TooManyFilterGroups as error:
            return [End(spec.id, Cause.UNUSABLE, str(error))]
        return self._advance(now)

    def unsubscribe(self, now: Instant, subscriber_id: int) -> Effects:
        """A client ended its stream. The client's connection keeps the messages that were sent."""
        if subscriber := self.subscribers.get(subscriber_id):
            self._remove(subscriber)
            self._give_back(list(subscriber.unsent.values()))
        return self._advance(now)

    def disconnected(self, now: Instant, holder: int) -> Effects:
        """A client's connection is gone. Its messages are released; with `on_disconnect=keep`,
        those that were sent stay leased until their deadlines. Deliveries of messages that it had
        locked have failed: they are due again at once, or after the wait of a delivery."""
        for subscriber in self._groups.streams_of(holder):
            self._remove(subscriber)
        for lease in self._leases.locked_by(holder):
            self._count_failure(lease, wait=self._policy.on_disconnect is OnDisconnect.KEEP)
        self._give_back(self._releasable(self._leases.held_by(holder)))
        return self._advance(now)

    def transaction_ended(self, now: Instant, holder: int, *, failed: bool = False) -> Effects:
        """The transaction of a client has ended, and with it the locks on its messages. Those that
        it has not acknowledged are free again. `failed`: it was certainly rolled back, so their
        deliveries count as failed, and they are due after the wait of a delivery."""
        for lease in self._leases.locked_by(holder):
            if failed:
                self._count_failure(lease, wait=True)
                continue
            suspect = lease.is_suspect  # Then it is being looked up.
            self._end_lease(lease)
            if not suspect:
                self._scans.unlocked(lease.expired_entry, now)
        return self._advance(now)

    def client_paused(self, now: Instant, subscriber_id: int) -> Effects:
        """A client stopped reading: it is sent nothing more for now."""
        self._groups.set_paused(subscriber_id, paused=True)
        return self._advance(now)

    def client_resumed(self, now: Instant, subscriber_id: int) -> Effects:
        """A client reads again."""
        self._groups.set_paused(subscriber_id, paused=False)
        return self._advance(now)

    def end_all(self, now: Instant, cause: Cause, text: str = "") -> Effects:
        """The proxy stops, or the table cannot serve as a queue any more: end every stream, give
        every message back, start nothing new."""
        self._draining = True
        effects: Effects = [self._end(subscriber, cause, text) for subscriber in list(self.subscribers.values())]
        for lease in [lease for lease in self._leases if lease.locked]:
            self._end_lease(lease)  # Its client's transaction goes on, and may acknowledge it.
        self._give_back(self._releasable(self._leases))
        return effects + self._advance(now)

    # Events: the table.

    def woken(self, now: Instant, *, anywhere: bool = False) -> Effects:
        """A transaction that wrote to the table was committed. `anywhere`: it may have done more
        than insert rows at the end."""
        self._scans.request_scans(anywhere=anywhere)
        if anywhere:
            self._verification.end_pause()  # It may have been an acknowledgement.
        return self._advance(now)

    def inserted(self, now: Instant, keys: Sequence[Key]) -> Effects:
        """A transaction that only inserted rows was committed, probably rows of these keys: they
        follow from the server's answer. If no other message can be due, they are claimed without a
        scan. A wrong key costs a claim that misses it, and then a scan."""
        self._end_expired(now)
        self._scans.promote_due(now)
        if not self._may_claim_unscanned(now, keys):
            return self.woken(now)
        main = self._groups.main
        self._scans.inserted_unscanned(main, now)
        self._capacity.use(len(keys))
        picked = {key: (main, Entry(key, 0, 0, 0)) for key in keys}
        return [self._claims.start_claim(picked, now, unscanned=True), *self._advance(now)]

    def settled(self, now: Instant, keys: Iterable[Key]) -> Effects:
        """These messages were certainly acknowledged or deleted."""
        keys = tuple(keys)
        self._claims.report_changes(keys)
        self._verification.outcome_known(keys)
        for key in keys:
            if (lease := self._leases.get(key)) and not lease.awaits_lock:
                self._end_lease(lease)
        self._scans.forget(keys)
        self._dead_letters.forget(keys)
        return self._advance(now)

    def suspected(self, now: Instant, keys: Iterable[Key] | None, *, extended: bool = False) -> Effects:
        """These messages (None: any) may have been acknowledged, given back or otherwise changed.
        They are looked up at once. `extended`: their holders may also have been given more time."""
        keys = None if keys is None else tuple(keys)
        self._claims.report_changes(keys)
        if keys is None:
            self._verification.suspect_any(extended=extended)
        else:
            unleased = bool(self.subscribers) or self._dead_letters.configured
            if not self._verification.suspect_keys(keys, extended=extended, unleased=unleased):
                self._scans.request_scans(anywhere=True)
        return self._advance(now)

    def changes_logged(
        self,
        now: Instant,
        seen: Sequence[Entry] = (),
        over: Sequence[Key] = (),
        before: Mapping[Key, tuple[int, int]] = NOTHING_BEFORE,
    ) -> Effects:
        """The binary log shows how these messages are now (`seen`) and which were acknowledged or
        deleted (`over`). With neither, any message may have changed. `before`: the epoch and the
        time_next that a changed row showed before.

        Changes must come in the order of the log. Our own claims and releases may be among them.
        """
        if not seen and not over:
            self._scans.changed_anywhere(now)
            return self.suspected(now, None)
        for entry in seen:
            if lease := self._leases.get(entry.key):
                self._verification.lease_logged(lease, entry, before.get(entry.key))
            elif self._is_taken(entry.key) or self._releases.is_under_way(entry.key):
                self._claims.entry_logged(entry, before.get(entry.key))
            elif not self._dead_letters.add_if_dead(entry, now):
                self._dead_letters.forget((entry.key,))
                self._scans.entry_logged(entry, now, before.get(entry.key))
        self._scans.stop_awaiting(over)
        return self.settled(now, [key for key in over if self._verification.end_logged(key, before.get(key))])

    def policy_changed(self, now: Instant, policy: Policy) -> Effects:
        """The table's comment has changed."""
        if policy.batch_size != self._policy.batch_size:
            self._groups.resize(policy.batch_size)
        self._policy = policy
        self._claims.set_policy(policy)
        self._capacity.set_policy(policy, now)
        self._scans.set_policy(policy)
        self._dead_letters.set_policy(policy)
        self._purges.set_policy(policy, now)
        return self._advance(now)

    def tick(self, now: Instant) -> Effects:
        """Time passed, or the server's clock was set."""
        return self._advance(now)

    # Events: answers of the database.

    def scan_done(self, now: Instant, scan_id: int, result: ScanResult) -> Effects:
        """A scan came back."""
        self._failure_pause.reset()
        if self._dead_letters.configured:
            for entry in result.entries:
                if not (self._is_taken(entry.key) or self._leases.get(entry.key)):
                    self._dead_letters.add_if_dead(entry, now)
        self._scans.scan_answered(now, scan_id, result, self._is_taken, self._leases.is_outdated)
        return self._advance(now)

    def scan_failed(self, now: Instant, scan_id: int, text: str, *, lasting: bool = False) -> Effects:
        """A scan failed. `lasting`: every scan fails until the table is changed, so the streams of
        its group end. Bounded streams whose first wait is over end in any case."""
        group = self._scans.scan_failed(now, scan_id)
        self._failure_pause.lengthen(now.mono_ns)
        effects: Effects = []
        for subscriber in list(group.subscribers):
            until_ns = subscriber.first_wait_until_ns
            waited = until_ns is not None and until_ns <= now.mono_ns and not subscriber.unsent
            if lasting or waited:
                effects.append(self._end(subscriber, Cause.UNUSABLE, text))
        return effects + self._advance(now)

    def claim_done(
        self, now: Instant, claim_id: int, claims: Sequence[Claimed], rows: FetchResult | None = None
    ) -> Effects:
        """A claim of these messages was committed. `rows`: their rows, if they were read behind it."""
        attempt = self._claims.record_answer(claim_id, claims, rows)
        self._capacity.claim_took(now.mono_ns - attempt.started_ns)
        effects: Effects = []
        for attempt, answer in self._claims.take_answers():
            self._start_leases(now, attempt, answer)
            effects += self._send_claimed_rows(now, attempt, answer)
        return effects + self._advance(now)

    def claim_failed(self, now: Instant, claim_id: int) -> Effects:
        """A claim failed, or its answer was lost. If it was committed, its rows come due again when
        their waits end."""
        attempt = self._claims.get(claim_id)
        for _, entry in attempt.picked.values():
            self._scans.rescan_place(entry)
        self._scans.request_scans(anywhere=attempt.unscanned)
        self._failure_pause.lengthen(now.mono_ns)
        return self.claim_done(now, claim_id, ())

    def fetch_done(self, now: Instant, fetch_id: int, result: FetchResult) -> Effects:
        """Rows were read. Those whose leases still stand are sent; a message that is in no part of
        the result is over."""
        return self._send_rows(now, fetch_id, result) + self._advance(now)

    def fetch_failed(self, now: Instant, fetch_id: int, text: str = "", *, lasting: bool = False) -> Effects:
        """Rows could not be read: their claims are given back. `lasting`: their streams end."""
        remaining = self._fetches.finish_fetch(fetch_id)
        self._give_back([lease for lease, _ in remaining])
        self._failure_pause.lengthen(now.mono_ns)
        over = {subscriber.spec.id: subscriber for _, subscriber in remaining if lasting}
        effects: Effects = [self._end(subscriber, Cause.UNUSABLE, text) for subscriber in over.values()]
        return effects + self._advance(now)

    def lock_done(self, now: Instant, lock_id: int, locked: Collection[Key]) -> Effects:
        """A subscriber's session has locked these of the messages that it was offered, and passed
        their rows on. The others are locked by somebody else, changed or gone."""
        if lock := self._locks.finish_lock(lock_id):
            missed = [lease for lease in lock.leases if lease.key not in locked]
            for lease in missed:
                self._end_lease(lease)
            self._capacity.return_unused(len(missed))
            sent = [lease for lease in lock.leases if lease.key in locked]
            for lease in sent:
                if lease.is_suspect:
                    lease.apply(LeaseEvent.VERIFY)  # By the lock itself.
            lock.group.subscribers.rows_sent(lock.subscriber, sent)
            self._scans.claim_answered(lock.group, locked, [lease.expired_entry for lease in missed], now)
        return self._advance(now)

    def lookup_done(self, now: Instant, found: Mapping[Key, Entry]) -> Effects:
        """A lookup came back: the rows that were found, by key."""
        for lease, entry in self._verification.lookup_answered(now, found, self._now.server_ns):
            if lease is not None and lease.awaits_lock:
                continue
            if lease is not None:
                self._end_lease(lease)
            if entry is None or self._is_taken(entry.key) or self._dead_letters.add_if_dead(entry, now):
                continue
            if lease is not None:
                self._scans.found_after_lease(entry, now)
            else:
                self._scans.found_unleased(entry, now)
        return self._advance(now)

    def lookup_failed(self, now: Instant) -> Effects:
        """A lookup failed; its messages stay suspect."""
        self._verification.lookup_failed(now)
        return self._advance(now)

    def release_done(self, now: Instant) -> Effects:
        """The release was carried out: its messages may be claimed again, or are dead."""
        returns = self._releases.release_answered()
        for claim in returns:
            if claim.failed_wait_ns is not None:
                self._failure_counted(now, claim, claim.failed_wait_ns)
            elif claim.sent and claim.key not in self._dead_letters:
                self._dead_letters.add_if_dead(Entry(claim.key, claim.epoch, claim.priority, now.server_ns), now)
        self._scans.rescan_returned(returns)
        return self._advance(now)

    def release_failed(self, now: Instant) -> Effects:
        """A release failed, or its answer was lost."""
        self._scans.rescan_returned(self._releases.release_failed(now))
        return self._advance(now)

    def purge_done(self, now: Instant, deleted: int) -> Effects:
        """So many old acknowledged rows were deleted."""
        self._purges.purge_answered(now, deleted)
        return self._advance(now)

    def purge_failed(self, now: Instant) -> Effects:
        """A purge failed. It is not urgent: the next one comes after the usual pause."""
        return self.purge_done(now, 0)

    def move_done(self, now: Instant, moved: Iterable[Key]) -> Effects:
        """These dead messages were moved. The others are locked, changed, or cannot be moved."""
        others = self._dead_letters.move_answered(now, set(moved))
        self._scans.retry_later(others, now)
        self._scans.request_scans()
        if self._dead_letters.configured:
            self._verification.request_lookup(entry.key for entry in others)
        return self._advance(now)

    def move_failed(self, now: Instant) -> Effects:
        """A move failed, or its answer was lost. Messages still in the table are found again."""
        self._failure_pause.lengthen(now.mono_ns)
        return self.move_done(now, ())

    # Decisions.

    def _advance(self, now: Instant) -> Effects:
        """Do everything that follows from the state and the time."""
        if now.server_ns < self._now.server_ns - self._limits.clock_step_ns:
            self._scans.clock_stepped_back()
        self._now = now
        self._end_expired(now)
        self._scans.promote_due(now)
        effects = self._releases.start_release(now)
        effects += self._end_finished(now)
        if not self._draining:
            if now.mono_ns >= self._failure_pause.until_ns:
                effects += self._start_claim(now)
                effects += self._dead_letters.start_move(now)
                effects += self._start_scans(now)
            effects += self._fetches.start_fetches()
            effects += self._locks.start_locks(
                now, self._policy.max_attempts if self._dead_letters.configured else None
            )
            effects += self._verification.start_lookup(now, self._acknowledgements_needed)
            effects += self._purges.start_purge(now)
        return effects

    def _end_expired(self, now: Instant) -> None:
        """End the leases whose deadlines are past."""
        for lease in self._leases.expired(now.server_ns):
            self._end_lease(lease)
            self._dead_letters.add_if_dead(lease.expired_entry, now)
            self._scans.rescan_place(lease.expired_entry)
            self._scans.request_scans()

    def _end_finished(self, now: Instant) -> Effects:
        """End the streams with their LIMIT reached, and the bounded ones with no message left."""
        effects: Effects = []
        closed = not self._capacity.is_open
        for group in self._groups:
            finished = group.finished_streams(now, closed=closed)
            effects += [self._end(subscriber, Cause.COMPLETE) for subscriber in finished]
        return effects

    def _start_claim(self, now: Instant) -> Effects:
        """Claim the most urgent ready messages, as many as credit and capacity allow, and make
        leases of those for streams that lock. Neither kind of stream always chooses first."""
        self._locks_first = not self._locks_first
        if self._locks_first:
            self._start_locked_leases(now)
        picked = self._pick(now, locks=False)
        effects: Effects = [self._claims.start_claim(picked, now)] if picked else []
        if not self._locks_first:
            self._start_locked_leases(now)
        return effects

    def _start_locked_leases(self, now: Instant) -> None:
        """Give messages to streams that lock them. No claim precedes it."""
        by_group: dict[FilterGroup, list[Lease]] = {}
        for group, entry in self._pick(now, locks=True).values():
            if before := self._leases.get(entry.key):
                self._end_lease(before)
            lease = Lease.locking(entry, next(self._numbers))
            self._leases.add_lease(lease)
            by_group.setdefault(group, []).append(lease)
        for group, leases in by_group.items():
            self._distribute(group, leases)

    def _pick(self, now: Instant, *, locks: bool) -> dict[Key, tuple[FilterGroup, Entry]]:
        """Take the most urgent ready messages for the groups that lock, or for those that claim."""
        demand = [
            (group, min(group.credit, self._scans.available(group, now)) if group.locks is locks else 0)
            for group in self._groups
        ]
        wanted = sum(messages for _, messages in demand)
        most = (self._capacity.lock_size if locks else self._capacity.claim_size)(wanted, now)
        picked: dict[Key, tuple[FilterGroup, Entry]] = {}
        for group, entry in self._scans.take_entries(demand, most) if most else ():
            if not self._dead_letters.add_if_dead(entry, now) and entry.key not in self._dead_letters:
                picked[entry.key] = group, entry
        self._capacity.use(len(picked))
        return picked

    def _start_scans(self, now: Instant) -> Effects:
        """Scan for the groups with demand, and for dead messages."""
        groups, find_dead = self._groups_with_demand(), self._dead_letters.scanned_for
        unavailable = self._claims.messages + self._dead_letters.due_count + self._leases.locked
        return self._scans.start_scans(groups, now, unavailable, find_dead=find_dead)

    # Parts of decisions.

    def _is_taken(self, key: Key) -> bool:
        """Whether a message is being claimed, or is about to be moved as dead, or its failed
        delivery is still to be counted."""
        return key in self._dead_letters or key in self._claims or self._releases.counts_failure(key)

    def _may_claim_unscanned(self, now: Instant, keys: Sequence[Key]) -> bool:
        """Whether all these messages can be claimed at once, and no other message or stream comes
        first."""
        main, count = self._groups.main, len(keys)
        if self._draining or now.mono_ns < self._failure_pause.until_ns or self._groups.with_credit() != [main]:
            return False
        if main.credit < count or self._capacity.claim_size(count, now) != count:
            return False
        known = (self._is_taken(key) or self._leases.get(key) or self._releases.is_under_way(key) for key in keys)
        return self._scans.has_nothing_due(main, now) and not any(known)

    def _groups_with_demand(self) -> list[FilterGroup]:
        """The groups in which a stream could be given a message now."""
        return self._groups.with_credit() if self._capacity.is_open else []

    def _acknowledgements_needed(self) -> bool:
        """Whether messages are in flight, and a stream gets no more before some are
        acknowledged."""
        return len(self._leases) > 0 and self._groups.need_acknowledgements(full=self._capacity.free <= 0)

    def _start_leases(self, now: Instant, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> None:
        """Turn committed claims into leases, in the order of delivery, and distribute them."""
        taken = {claim.key for claim in claims}
        by_group: dict[FilterGroup, list[Lease]] = {}
        self._capacity.return_unused(len(attempt.picked.keys() - taken))
        for group, missed in attempt.missed_by_group(taken).items():
            by_group[group] = []
            if attempt.unscanned and missed:
                self._scans.request_scans()
            self._scans.claim_answered(group, taken, () if attempt.unscanned else missed, now)
        for claim in sorted(claims, key=lambda claim: (claim.priority, claim.due_ns, claim.key)):
            if before := self._leases.get(claim.key):
                self._end_lease(before)
            lease = Lease.of(claim, next(self._numbers))
            self._leases.add_lease(lease)
            by_group[attempt.picked[lease.key][0]].append(lease)
        for group, leases in by_group.items():
            self._distribute(group, leases)

    def _send_claimed_rows(self, now: Instant, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> Effects:
        """Send the rows that were read behind a claim. Those of messages that others may have changed
        since are fetched again, and those behind them."""
        for entry, before in attempt.logged.values():
            if lease := self._leases.get(entry.key):
                self._verification.lease_logged(lease, entry, before)
        if attempt.rows is None or attempt.row_format is None or attempt.all_reported:
            return []
        fetch_id = self._fetches.start_behind_claim(attempt.row_format, {claim.key for claim in claims})
        unread = attempt.rows.unread | attempt.reported
        return self._send_rows(now, fetch_id, replace(attempt.rows, unread=unread))

    def _send_rows(self, now: Instant, fetch_id: int, result: FetchResult) -> Effects:
        """Send the rows of a fetch whose leases still stand, and end the leases of messages that are
        over."""
        self._end_expired(now)
        rows_to_send: dict[Subscriber, list[Lease]] = {}
        stopped: set[int] = set()
        for lease, subscriber in self._fetches.finish_fetch(fetch_id):
            if lease.key in result.unread or subscriber.spec.id in stopped:
                stopped.add(subscriber.spec.id)  # Rows behind an unread one wait for it, in their order.
                lease.apply(LeaseEvent.UNREAD)
            elif lease.is_suspect or lease.key in result.changed:
                lease.apply(LeaseEvent.UNREAD)
                self._verification.suspect(lease)
            elif lease.key in result.rows:
                rows_to_send.setdefault(subscriber, []).append(lease)
            else:
                self._end_lease(lease)
        effects: Effects = []
        for subscriber, leases in rows_to_send.items():
            self._groups.members_with(subscriber).rows_sent(subscriber, leases)
            effects.append(Deliver(subscriber.spec.id, tuple(result.rows[lease.key] for lease in leases)))
        return effects

    def _distribute(self, group: FilterGroup, leases: Sequence[Lease]) -> None:
        """Give leases to the subscribers of a group; release those beyond their credit."""
        given_out, left = group.subscribers.distribute(leases)
        for lease, subscriber in given_out:
            self._leases.assign(lease, subscriber.spec.holder, subscriber.spec.id)
        self._give_back(left)

    def _releasable(self, leases: Iterable[Lease]) -> list[Lease]:
        """Those of the leases of vanished or ended clients that the policy does not keep."""
        keep = self._policy.on_disconnect is OnDisconnect.KEEP
        return [lease for lease in leases if not (keep and lease.is_sent)]

    def _give_back(self, leases: Sequence[Lease]) -> None:
        """End leases, and release their claims. Messages that were not locked yet are free."""
        for lease in leases:
            if lease.locked:
                self._capacity.return_unused(1)
                self._end_lease(lease)
                self._scans.unlocked(lease.expired_entry, self._now)
                continue
            if lease.is_sent:
                self._dead_letters.add_if_dead(lease.expired_entry, self._now)  # Should the release fail.
            else:
                self._capacity.return_unused(1)
            self._releases.add_release(lease.returned())
            self._end_lease(lease)

    def _end_lease(self, lease: Lease) -> None:
        """The delivery is over, for whatever reason: free its credit."""
        self._leases.end(lease)
        self._verification.lease_ended(lease)
        if lease.subscriber is not None and (subscriber := self.subscribers.get(lease.subscriber)):
            self._groups.members_with(subscriber).lease_ended(subscriber, lease)

    def _count_failure(self, lease: Lease, *, wait: bool) -> None:
        """End the lease of a locked message, whose lock is gone, and count the delivery as failed.
        The message is due after the wait of a delivery (`wait`) or at once."""
        duration_ns = wait_ns(self._policy, lease.epoch, self._jitter()) if wait else 0
        if self._dead_letters.is_dead(Entry(lease.key, lease.epoch + 1, lease.priority, lease.due_ns)):
            duration_ns = 0
        self._releases.add_release(lease.failed(duration_ns))
        self._end_lease(lease)

    def _failure_counted(self, now: Instant, claim: Return, waits_ns: int) -> None:
        """A failed delivery was counted in the row, if nobody has changed or locked it since."""
        entry = Entry(claim.key, claim.epoch + 1, claim.priority, now.server_ns + waits_ns)
        if not self._dead_letters.add_if_dead(entry, now):
            self._scans.found_unleased(entry, now)

    def _remove(self, subscriber: Subscriber) -> None:
        """End a stream. The caller gives its unsent leases back."""
        self._locks.stream_ended(subscriber)
        self._groups.remove_subscription(subscriber)

    def _end(self, subscriber: Subscriber, cause: Cause, text: str = "") -> End:
        """End a stream from this side; its unsent messages are released."""
        self._remove(subscriber)
        self._give_back(list(subscriber.unsent.values()))
        return End(subscriber.spec.id, cause, text)
