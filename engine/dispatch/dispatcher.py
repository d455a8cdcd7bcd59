"""The dispatcher of one table: events and the time go in, effects come out.

It knows no socket, no clock and no SQL. Every public method is an event: it takes the time
(`Instant`), changes the state, and returns effects (engine.dispatch.effects) that the table runner
carries out, each of which comes back as another event. So each possible order of events is a
sequence of calls, and tests play thousands of them.

The life of a message: a *scan* brings its key into the read-ahead buffer. When it is due and
somebody has credit, a *claim* takes it in the database for the length of this delivery's wait. Once
that is committed, the claim is a *lease*, given to a subscriber, *fetched* and *sent*. It ends by
an acknowledgement (`settled`, or found by a *lookup*), by being given back (*release*), or by its
deadline, after which the next scan finds the row due again.

What makes it safe is in the database: a claim takes only rows that are unacknowledged, due and of
the epoch that was scanned, so a stale buffer costs a wasted key and never a wrong delivery. What
makes it live: whatever is lost on the way (an answer, a process, a connection), the row itself says
when it is due again.

Each part has its own state: who subscribes and has credit (`Subscribers`, one a filter group),
which leases are out and in which state (`Leases`), what there is to hand out and when to scan for
it (`ScanScheduler`), what others may have done to what is in flight (`LeaseVerification`), and what
is done whoever streams (`Releases`, `DeadLetters`, `Purges`).

`_advance` is the one place that decides what to do next; events only record. No event takes time
that grows with the number of subscribers, but one that changes the batch size or ends all streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.claims import ClaimAttempt, ClaimsUnderWay
from engine.dispatch.effects import Cause, Claim, Deliver, Effect, End
from engine.dispatch.fetches import FetchesUnderWay
from engine.dispatch.filter_groups import FilterGroup, FilterGroups, TooManyFilterGroups
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseEvent, Leases
from engine.dispatch.limits import Limits
from engine.dispatch.maintenance import DeadLetters, Purges, Releases
from engine.dispatch.redelivery import wait_ns
from engine.dispatch.scans import ScanScheduler
from engine.dispatch.subscribers import Subscriber, Subscription
from engine.dispatch.token_bucket import TokenBucket
from engine.dispatch.verification import LeaseVerification
from engine.model import (
    Claimed,
    Entry,
    FetchResult,
    Key,
    OnDisconnect,
    Policy,
    Return,
    ScanResult,
    Wanted,
)

Effects = list[Effect]


class Dispatcher:
    """Who gets which message of one table, and when."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        self._policy = policy
        self._limits = limits
        self._jitter = jitter
        self._subscribers: dict[int, Subscriber] = {}
        self._streams_of: dict[int, set[int]] = {}
        """The subscribers of each holder."""
        self._groups = FilterGroups(limits.filter_groups_max, limits.scan_min, policy.batch_size)
        self._leases = Leases()
        self._bucket = TokenBucket(policy.max_rate, now.mono_ns)
        self._numbers = count(1)
        """Of all that is asked of the database, and of leases: what has the greater number is
        later."""
        self._scans = ScanScheduler(self._groups, policy, limits, self._numbers)
        self._verification = LeaseVerification(self._leases, limits)
        self._claims = ClaimsUnderWay()
        self._fetches = FetchesUnderWay(limits.fetch_max, self._numbers)
        self._releases = Releases(limits)
        self._dead_letters = DeadLetters(policy, limits)
        self._purges = Purges(limits, now)
        self._failure_pause = ExponentialBackoff(limits.failure_pause_min_ns, limits.failure_pause_max_ns)
        self._now = now
        """The time of the last decisions: what came due after it is still to be decided."""
        self._draining = False

    def __repr__(self) -> str:
        return (
            f"<Dispatcher subscribers={len(self._subscribers)} ready={self.ready} groups={len(self._groups)}"
            f" claims={len(self._claims)} in_flight={len(self._leases)}"
            f" releasing={len(self._releases)}>"
        )

    # What others may see.

    @property
    def in_flight(self) -> int:
        """Messages claimed and not over."""
        return len(self._leases)

    @property
    def ready(self) -> int:
        """Keys read ahead that are due."""
        return self._scans.ready

    @property
    def subscribers(self) -> Mapping[int, Subscriber]:
        """By id; for reading."""
        return self._subscribers

    @property
    def settled_down(self) -> bool:
        """Whether nothing is under way or waiting to be given back: a drained dispatcher may be
        dropped."""
        asked = len(self._claims) or len(self._fetches) or self._scans.under_way or self._verification.under_way
        maintenance = len(self._releases) or self._dead_letters.under_way or self._purges.under_way
        return not (asked or maintenance)

    @property
    def wake_at_ns(self) -> int | None:
        """When to call `tick` if nothing else happens before (monotonic). As the server's clock may
        be set, it is to be read again after each event."""
        now = self._now
        times = [self._releases.release_ns]
        if (deadline_ns := self._leases.next_deadline_ns) is not None:
            times.append(now.until(deadline_ns))
        if not self._draining:
            times.append(self._purges.purge_ns)
            times += self._dead_letter_times()
            if self._verification.has_suspects:
                times.append(self._verification.pause_until_ns)
            if self._subscribers:
                times += self._delivery_times()
        return min([at_ns for at_ns in times if at_ns is not None and at_ns > now.mono_ns], default=None)

    def _dead_letter_times(self) -> list[int | None]:
        times: list[int | None] = []
        if (due_ns := self._dead_letters.next_due_ns) is not None:
            times.append(self._now.until(due_ns))
        if self._dead_letters.due_count:
            times += [self._dead_letters.move_ns, self._failure_pause.until_ns]
        if self._dead_letters.scanned_for:
            times += [self._dead_scan_ns, self._failure_pause.until_ns]
        return times

    def _delivery_times(self) -> list[int | None]:
        times: list[int | None] = [self._scans.rescan_ns]
        times += [group.subscribers.next_first_wait_end_ns() for group in self._groups]
        for group in self._with_demand():
            times += self._scans.wake_times(group, self._now)
            times.append(self._failure_pause.until_ns)
            if group.scans.buffer.ready:
                times.append(self._bucket.ready_ns())
        if self._starved():
            times.append(self._verification.pause_until_ns)
        return times

    # Events: clients.

    def subscribe(self, now: Instant, spec: Subscription) -> Effects:
        """A client opened a stream."""
        if self._draining:
            return [End(spec.id, Cause.DRAINING)]
        try:
            group = self._groups.group(spec.selection)
        except TooManyFilterGroups:
            text = f"the streams of this table have {self._limits.filter_groups_max} different conditions already"
            return [End(spec.id, Cause.UNUSABLE, text)]
        subscriber = Subscriber(
            spec,
            since_scan=group.scans.started + 1,
            first_wait_until_ns=None if spec.first_wait_ns is None else now.mono_ns + spec.first_wait_ns,
            remaining=spec.limit,
        )
        self._subscribers[spec.id] = subscriber
        self._streams_of.setdefault(spec.holder, set()).add(spec.id)
        group.subscribers.add_stream(subscriber)
        return self._advance(now)

    def unsubscribe(self, now: Instant, subscriber_id: int) -> Effects:
        """A stream was ended by its client; what it was sent stays with the client's connection."""
        if subscriber := self._subscribers.get(subscriber_id):
            self._forget(subscriber)
            self._give_back(list(subscriber.unsent.values()))
        return self._advance(now)

    def disconnected(self, now: Instant, holder: int) -> Effects:
        """A client is gone: all that it holds is released, or kept until its deadline, as the
        policy says."""
        for number in sorted(self._streams_of.get(holder, ())):
            self._forget(self._subscribers[number])
        keep = self._policy.on_disconnect is OnDisconnect.KEEP
        self._give_back([lease for lease in self._leases.held_by(holder) if not (keep and lease.is_sent)])
        return self._advance(now)

    def client_paused(self, now: Instant, subscriber_id: int) -> Effects:
        """A client stopped reading: send it nothing more for now."""
        if subscriber := self._subscribers.get(subscriber_id):
            self._group_of(subscriber).subscribers.set_paused(subscriber, paused=True)
        return self._advance(now)

    def client_resumed(self, now: Instant, subscriber_id: int) -> Effects:
        """A client reads again."""
        if subscriber := self._subscribers.get(subscriber_id):
            self._group_of(subscriber).subscribers.set_paused(subscriber, paused=False)
        return self._advance(now)

    def end_all(self, now: Instant, cause: Cause, text: str = "") -> Effects:
        """The proxy is stopping, or the table cannot serve as a queue any more: end every stream, give everything
        back, begin nothing."""
        self._draining = True
        effects: Effects = [self._end(subscriber, cause, text) for subscriber in list(self._subscribers.values())]
        keep = self._policy.on_disconnect is OnDisconnect.KEEP
        self._give_back([lease for lease in list(self._leases) if not (keep and lease.is_sent)])
        return effects + self._advance(now)

    # Events: the table.

    def woken(self, now: Instant, *, anywhere: bool = False) -> Effects:
        """Somebody committed something that touched the table; `anywhere`: not just new rows at its
        end."""
        self._scans.request_scans(anywhere=anywhere)
        if anywhere:
            self._verification.end_pause()  # It may have been an acknowledgement.
        return self._advance(now)

    def settled(self, now: Instant, keys: Iterable[Key]) -> Effects:
        """These were acknowledged, or are gone, for certain."""
        keys = tuple(keys)
        self._verification.outcome_known(keys)
        for key in keys:
            if lease := self._leases.get(key):
                self._end_lease(lease)
        self._scans.forget(keys)
        self._dead_letters.forget(keys)
        return self._advance(now)

    def suspected(self, now: Instant, keys: Iterable[Key] | None, *, extended: bool = False) -> Effects:
        """These (None: any) may have been acknowledged, given back or otherwise changed: worth a
        lookup at once. `extended`: or their holder may have been given more time."""
        if keys is None:
            self._verification.suspect_any(extended=extended)
        else:
            strangers = bool(self._subscribers) or self._dead_letters.configured
            if not self._verification.suspect_keys(keys, extended=extended, strangers=strangers):
                self._scans.request_scans(anywhere=True)
        return self._advance(now)

    def changes_logged(self, now: Instant, seen: Sequence[Entry] = (), over: Sequence[Key] = ()) -> Effects:
        """The server's log shows what messages became, or, with none named, that any may have
        changed.

        The order is that of the log: each later change is reported later. Our own claims and
        releases are in it too.
        """
        if not seen and not over:
            self._scans.changed_anywhere(now)
            return self.suspected(now, None)
        for entry in seen:
            if lease := self._leases.get(entry.key):
                self._verification.lease_logged(lease, entry)
            elif self._is_taken(entry.key) or self._releases.is_under_way(entry.key):
                pass
            elif self._is_dead(entry):
                self._dead_letters.add_dead(entry, now)
            else:
                self._dead_letters.forget((entry.key,))
                self._scans.entry_logged(entry, now)
        self._scans.stop_awaiting(over)
        return self.settled(now, [key for key in over if self._verification.end_logged(key)])

    def policy_changed(self, now: Instant, policy: Policy) -> Effects:
        """The table's comment changed."""
        if policy.batch_size != self._policy.batch_size:
            self._groups.resize(policy.batch_size)
        self._policy = policy
        self._bucket.set_rate(policy.max_rate, now.mono_ns)
        self._scans.set_policy(policy)
        self._dead_letters.set_policy(policy)
        self._purges.set_policy(now, policy)
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
                if self._is_dead(entry) and not (self._is_taken(entry.key) or self._leases.get(entry.key)):
                    self._dead_letters.add_dead(entry, now)
        self._scans.scan_answered(now, scan_id, result, self._is_taken, self._is_outdated)
        return self._advance(now)

    def scan_failed(self, now: Instant, scan_id: int, text: str, *, lasting: bool = False) -> Effects:
        """A scan could not be made; `lasting`: and cannot be before somebody changes the table."""
        group = self._scans.scan_failed(now, scan_id)
        self._failure_pause.lengthen(now.mono_ns)
        effects: Effects = []
        for subscriber in list(group.subscribers):
            until_ns = subscriber.first_wait_until_ns
            waited = until_ns is not None and until_ns <= now.mono_ns and not subscriber.unsent
            if lasting or waited:
                effects.append(self._end(subscriber, Cause.UNUSABLE, text))
        return effects + self._advance(now)

    def claim_done(self, now: Instant, claim_id: int, claims: Sequence[Claimed]) -> Effects:
        """A claim is committed, with these rows."""
        attempt = self._claims.record_answer(claim_id, claims)
        self._bucket.set_claim_duration(now.mono_ns - attempt.started_ns)
        for attempt, answer in self._claims.take_answers():
            self._start_leases(now, attempt.picked, answer)
        return self._advance(now)

    def claim_failed(self, now: Instant, claim_id: int) -> Effects:
        """A claim failed, or its answer was lost. If it was committed all the same, its rows come
        due again by themselves."""
        for _, entry in self._claims.get(claim_id).picked.values():
            self._scans.rescan_place(entry)
        self._scans.request_scans()
        self._failure_pause.lengthen(now.mono_ns)
        return self.claim_done(now, claim_id, ())

    def fetch_done(self, now: Instant, fetch_id: int, result: FetchResult) -> Effects:
        """Rows came: send those whose lease still stands; those in no part of the result are
        over."""
        self._end_expired(now)
        parcels: dict[Subscriber, list[Lease]] = {}
        stopped: set[int] = set()
        for lease, subscriber in self._end_fetch(fetch_id):
            if lease.key in result.unread or subscriber.spec.id in stopped:
                stopped.add(subscriber.spec.id)  # Rows behind an unread one wait for it, in their order.
                lease.apply(LeaseEvent.UNREAD)
            elif lease.is_suspect or lease.key in result.changed:
                lease.apply(LeaseEvent.UNREAD)
                self._verification.suspect(lease)
            elif lease.key in result.rows:
                parcels.setdefault(subscriber, []).append(lease)
            else:
                self._end_lease(lease)
        effects: Effects = []
        for subscriber, leases in parcels.items():
            self._group_of(subscriber).subscribers.rows_sent(subscriber, leases)
            effects.append(Deliver(subscriber.spec.id, tuple(result.rows[lease.key] for lease in leases)))
        return effects + self._advance(now)

    def fetch_failed(self, now: Instant, fetch_id: int, text: str = "", *, lasting: bool = False) -> Effects:
        """Rows could not be read: their claims are given back; `lasting`: and their streams cannot
        go on."""
        standing = self._end_fetch(fetch_id)
        self._give_back([lease for lease, _ in standing])
        self._failure_pause.lengthen(now.mono_ns)
        over = {subscriber.spec.id: subscriber for _, subscriber in standing if lasting}
        effects: Effects = [self._end(subscriber, Cause.UNUSABLE, text) for subscriber in over.values()]
        return effects + self._advance(now)

    def lookup_done(self, now: Instant, found: Mapping[Key, Entry]) -> Effects:
        """What became of the leases that were looked up."""
        for lease, entry in self._verification.lookup_answered(now, found, self._now.server_ns):
            if lease is not None:
                self._end_lease(lease)
            if entry is None or self._is_taken(entry.key):
                continue
            if self._is_dead(entry):
                self._dead_letters.add_dead(entry, now)
            elif lease is not None:
                self._scans.found_after_lease(entry, now)
            else:
                self._scans.found_unleased(entry, now)
        return self._advance(now)

    def lookup_failed(self, now: Instant) -> Effects:
        """The lookup could not be made; what was suspect still is."""
        self._verification.lookup_failed(now)
        return self._advance(now)

    def release_done(self, now: Instant) -> Effects:
        """What was given back is anybody's now, or dead."""
        returns = self._releases.release_answered()
        for claim in returns:
            due = Entry(claim.key, claim.epoch, claim.priority, now.server_ns)
            if claim.sent and self._is_dead(due) and claim.key not in self._dead_letters:
                self._dead_letters.add_dead(due, now)
        self._rescan_places_of(returns)
        return self._advance(now)

    def release_failed(self, now: Instant) -> Effects:
        """Giving back failed, or its answer was lost."""
        self._rescan_places_of(self._releases.release_failed(now))
        return self._advance(now)

    def purge_done(self, now: Instant, deleted: int) -> Effects:
        """Old acknowledged rows are gone; a full batch means that there are more."""
        self._purges.purge_answered(now, self._policy, deleted)
        return self._advance(now)

    def purge_failed(self, now: Instant) -> Effects:
        """The purge could not be made; it can wait."""
        return self.purge_done(now, 0)

    def move_done(self, now: Instant, moved: Iterable[Key]) -> Effects:
        """Dead messages were moved; the others are locked by somebody, changed, or left alone for a
        while."""
        others = self._dead_letters.move_answered(now, set(moved))
        self._scans.retry_later(others, now)
        self._scans.request_scans()
        if self._dead_letters.configured:
            self._verification.request_lookup(entry.key for entry in others)
        return self._advance(now)

    def move_failed(self, now: Instant) -> Effects:
        """They could not be moved, or the answer was lost: whatever is still there is found
        again."""
        self._failure_pause.lengthen(now.mono_ns)
        return self.move_done(now, ())

    # Decisions.

    def _advance(self, now: Instant) -> Effects:
        """Everything that follows from the state as it is now."""
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
            effects += self._fetches.start_fetches(self._groups)
            effects += self._verification.start_lookup(now, self._starved)
            effects += self._purges.start_purge(now, self._policy)
        return effects

    def _end_expired(self, now: Instant) -> None:
        for lease in self._leases.expired(now.server_ns):
            self._end_lease(lease)
            entry = Entry(lease.key, lease.epoch, lease.priority, lease.deadline_ns)
            if self._is_dead(entry):
                self._dead_letters.add_dead(entry, now)
            self._scans.rescan_place(entry)
            self._scans.request_scans()

    def _end_finished(self, now: Instant) -> Effects:
        """End the streams that have had all that they asked for, or, bounded, all that there is to
        have now."""
        effects: Effects = []
        full = self._policy.paused or self._capacity() <= 0
        for group in self._groups:
            group.subscribers.end_first_waits(now.mono_ns)
            if group.reserved:
                nothing_to_give, completed = False, 0
            elif full:
                nothing_to_give, completed = True, group.scans.started + 1
            else:
                nothing_to_give, completed = group.scans.is_exhausted, group.scans.completed
            over = group.subscribers.finished_streams(nothing_to_give=nothing_to_give, completed=completed)
            effects += [self._end(subscriber, Cause.COMPLETE) for subscriber in over]
        return effects

    def _start_claim(self, now: Instant) -> Effects:
        demand = [(group, min(group.credit, self._scans.available(group, now))) for group in self._groups]
        most = self._claimable(sum(wanted for _, wanted in demand), now)
        if most <= 0 or len(self._claims) >= self._limits.claims_max:
            return []
        if len(self._claims) and most < self._policy.batch_size:
            return []  # Credit comes in drops while a claim is under way: gather it into one statement.
        picked: dict[Key, tuple[FilterGroup, Entry]] = {}
        for group, entry in self._scans.take_entries(demand, most):
            if self._is_dead(entry):
                self._dead_letters.add_dead(entry, now)
            elif entry.key not in self._dead_letters:
                picked[entry.key] = group, entry
        if not picked:
            return []
        self._bucket.spend(len(picked))
        claim_id = next(self._numbers)
        self._claims.add_attempt(claim_id, ClaimAttempt(picked, now.mono_ns))
        wanted = [
            Wanted(entry.key, entry.epoch, wait_ns(self._policy, entry.epoch, self._jitter()), group.selection)
            for group, entry in picked.values()
        ]
        return [Claim(claim_id, tuple(wanted))]

    def _claimable(self, wanted: int, now: Instant) -> int:
        if not wanted or self._policy.paused:
            return 0
        allowance = self._bucket.allowance(now.mono_ns)
        most = min(wanted, self._capacity(), self._limits.claim_max)
        return most if allowance is None else min(most, allowance)

    def _start_scans(self, now: Instant) -> Effects:
        groups, main = self._with_demand(), self._groups.main
        if self._dead_letters.scanned_for and now.mono_ns >= self._dead_scan_ns and main not in groups:
            groups.append(main)
        return (
            self._scans.start_scans(groups, now, self._claims.messages + self._dead_letters.due_count) if groups else []
        )

    # Parts of decisions.

    @property
    def _dead_scan_ns(self) -> int:
        """When to scan for dead messages though nobody streams (monotonic): when nobody has for a
        while."""
        main = self._groups.main
        if not main.scans.started:
            return self._now.mono_ns
        return max(self._scans.full_scan_ns(main), main.scans.full_begun_ns + self._limits.dead_scan_ns)

    def _is_taken(self, key: Key) -> bool:
        """Whether a message is being claimed, or is dead."""
        return key in self._dead_letters or key in self._claims

    def _capacity(self) -> int:
        """How many more messages the table may have in flight."""
        most = self._policy.cache_size
        if self._policy.max_in_flight is not None:
            most = min(most, self._policy.max_in_flight)
        return most - len(self._leases) - self._claims.messages

    def _with_demand(self) -> list[FilterGroup]:
        """The groups in which somebody could be given a message."""
        if self._policy.paused or self._draining or self._capacity() <= 0:
            return []
        return [group for group in self._groups if group.subscribers.credit > 0]

    def _starved(self) -> bool:
        """Whether somebody waits for acknowledgements."""
        if not len(self._leases):
            return False
        full = self._capacity() <= 0
        return any(group.subscribers.any_starved or (full and group.subscribers.any_reading) for group in self._groups)

    def _is_dead(self, entry: Entry) -> bool:
        return self._dead_letters.is_dead(entry)

    def _is_outdated(self, entry: Entry, scan_id: int) -> bool:
        """Whether a scan shows a row as it was before our own claim of it, and not as somebody made
        it since."""
        lease = self._leases.get(entry.key)
        return lease is not None and entry.epoch < lease.epoch and scan_id < lease.known_since

    def _start_leases(
        self, now: Instant, picked: Mapping[Key, tuple[FilterGroup, Entry]], claims: Sequence[Claimed]
    ) -> None:
        """Make leases of committed claims, and deal them out."""
        taken = {claim.key for claim in claims}
        by_group: dict[FilterGroup, list[Lease]] = {}
        for group, _ in picked.values():
            by_group.setdefault(group, [])
        missed = [(group, entry) for group, entry in picked.values() if entry.key not in taken]
        self._bucket.spend(-len(missed))
        for group in by_group:
            self._scans.retry_later([entry for of, entry in missed if of is group], now, group)
            self._scans.claim_succeeded(group, taken)
        for claim in sorted(claims, key=lambda claim: (claim.priority, claim.due_ns, claim.key)):
            if before := self._leases.get(claim.key):
                self._end_lease(before)
            lease = Lease.of(claim, next(self._numbers))
            self._leases.add_lease(lease)
            by_group[picked[lease.key][0]].append(lease)
        for group, leases in by_group.items():
            self._distribute(group, leases)

    def _distribute(self, group: FilterGroup, leases: Sequence[Lease]) -> None:
        given_out, left = group.subscribers.distribute(leases)
        for lease, subscriber in given_out:
            self._leases.assign(lease, subscriber.spec.holder, subscriber.spec.id)
        self._give_back(left)

    def _end_fetch(self, fetch_id: int) -> list[tuple[Lease, Subscriber]]:
        """The leases of a fetch that still stand and are still to be sent, with their
        subscribers."""
        standing, served = self._fetches.finish_fetch(fetch_id, self._subscribers)
        for subscriber in served:
            self._group_of(subscriber).subscribers.set_fetching(subscriber, fetching=False)
        return standing

    def _give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            last = Entry(lease.key, lease.epoch, lease.priority, lease.deadline_ns)
            if not lease.is_sent:
                self._bucket.spend(-1)
            elif self._is_dead(last):
                self._dead_letters.add_dead(last, self._now)  # Should giving it back fail, it is due then.
            self._releases.add_release(lease.returned())
            self._end_lease(lease)

    def _rescan_places_of(self, returns: Iterable[Return]) -> None:
        """Claims may have been given back: unsent messages stand at their old places."""
        for claim in returns:
            if not claim.sent:
                self._scans.rescan_place(claim.entry)
        self._scans.request_scans()

    def _end_lease(self, lease: Lease) -> None:
        self._leases.end(lease)
        self._verification.lease_ended(lease)
        if lease.subscriber is not None and (subscriber := self._subscribers.get(lease.subscriber)):
            self._group_of(subscriber).subscribers.lease_ended(subscriber, lease)

    def _group_of(self, subscriber: Subscriber) -> FilterGroup:
        group = self._groups.get(subscriber.spec.selection)
        assert group is not None, "a group with subscribers is not forgotten"
        return group

    def _forget(self, subscriber: Subscriber) -> None:
        del self._subscribers[subscriber.spec.id]
        streams = self._streams_of[subscriber.spec.holder]
        streams.discard(subscriber.spec.id)
        if not streams:
            del self._streams_of[subscriber.spec.holder]
        self._group_of(subscriber).subscribers.remove_stream(subscriber)

    def _end(self, subscriber: Subscriber, cause: Cause, text: str = "") -> End:
        self._forget(subscriber)
        self._give_back(list(subscriber.unsent.values()))
        return End(subscriber.spec.id, cause, text)
