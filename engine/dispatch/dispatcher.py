"""The dispatcher of one table: events and the time go in, effects come out.

It uses no socket, no clock and no SQL. Every public method that returns effects is an event: it
takes the time (`Instant`), changes the state, and returns effects (engine.dispatch.effects). The
table runner carries them out, and the answer to each is another event. Every possible order of
events is therefore a sequence of calls, and tests play thousands of them.

The life of a message: a *scan* brings its key into the read-ahead buffer. When the message is due
and a stream has credit, a *claim* takes it in the database for the wait of this delivery. A
committed claim is a *lease*: it is given to a subscriber, its row is *fetched* (with the claim, if
all subscribers have one row format) and *sent*. The lease ends by an acknowledgement (`settled`, or
found by a *lookup*), by a *release*, or at its deadline; after the deadline the next scan finds the
row due again.

A stream FOR UPDATE claims nothing: the messages picked for it become leases at once, its client's
session locks their rows in the client's transaction (`Lock`), and the leases end with that
transaction (`transaction_ended`). See engine.dispatch.locked_leases.

Safety comes from the database: a claim takes only rows that are unacknowledged, due, and of the
epoch that was scanned. A stale buffer costs a wasted key and never a wrong delivery. Liveness comes
from the rows: each contains the time at which it is due again, whatever was lost on the way (an
answer, a process, a connection).

Three questions are decided by three parts: what to hand out next (`ScanScheduler`), how much
(`Capacity`), and to whom (`FilterGroups`, with the `Subscribers` of each). `Leases` records what is
in flight, `LeaseVerification` what others may have done to it. `Releases`, `DeadLetters` and
`Purges` are maintenance, which goes on without streams. `Parts` holds them all. What concerns
several parts at once is in modules of its own: `Picking`, `Deliveries`, `LockedLeases`.

`_advance` is the one place that decides what to do next; events only record. No event takes time
that grows with the number of subscribers, except a change of the batch size and the end of all
streams.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from engine.dispatch.deliveries import Deliveries
from engine.dispatch.effects import Cause, Effect, End
from engine.dispatch.filter_groups import TooManyFilterGroups
from engine.dispatch.instant import Instant
from engine.dispatch.leases import LeaseEvent
from engine.dispatch.limits import Limits
from engine.dispatch.locked_leases import LockedLeases
from engine.dispatch.measures import Measures
from engine.dispatch.parts import Parts
from engine.dispatch.picking import Picked, Picking
from engine.dispatch.subscribers import Subscriber, Subscription
from engine.dispatch.verification import NOTHING_BEFORE
from engine.dispatch.wake_times import next_wake_ns
from engine.model import (
    WAITING_NS,
    BatchesChecked,
    Claimed,
    Entry,
    FetchResult,
    GroupScanResult,
    Key,
    LimitsLeft,
    Return,
    ScanResult,
    Share,
    TableId,
)
from engine.queue_table import Policy
from engine.refused import Refusal

Effects = list[Effect]


class Dispatcher:
    """Which subscriber of one table gets which message, and when."""

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        jitter: Callable[[], float],
        now: Instant,
        measures: Measures | None = None,
    ) -> None:
        """`measures`: what an earlier dispatcher of the table has counted."""
        self.parts = Parts.of_table(policy, limits, jitter, now, measures)
        """The state. Others only read it."""
        self._deliveries = Deliveries(self.parts)
        self._locked = LockedLeases(self.parts, self._deliveries)
        self._picking = Picking(self.parts)
        self._locks_first = False
        """Whether streams that lock have the first choice next, and not those that claim."""
        self._decides_later = False
        """Whether another event follows soon (`recorded`)."""

    def __repr__(self) -> str:
        return (
            f"<Dispatcher subscribers={len(self.subscribers)} ready={self.ready} groups={len(self.parts.groups)}"
            f" claims={len(self.parts.claims)} in_flight={len(self.parts.leases)} releasing={len(self.parts.releases)}>"
        )

    # State for callers.

    @property
    def in_flight(self) -> int:
        """How many messages are claimed and their deliveries not over."""
        return len(self.parts.leases)

    @property
    def ready(self) -> int:
        """How many keys that were read ahead are due."""
        return self.parts.scans.ready

    @property
    def taken(self) -> int:
        """How many messages are in flight or being claimed."""
        return len(self.parts.leases) + self.parts.claims.messages

    @property
    def subscribers(self) -> Mapping[int, Subscriber]:
        """The running streams by id; for reading."""
        return self.parts.groups.subscribers

    @property
    def settled_down(self) -> bool:
        """Whether no statement is under way and nothing waits for its release: a drained dispatcher
        may be dropped then."""
        return self.parts.settled_down and not self._deliveries.are_ending

    @property
    def wake_at_ns(self) -> int | None:
        """When to call `tick` if no other event comes before (monotonic); None: not at all. Read it
        again after each event, because the server's clock may have been set."""
        return next_wake_ns(self.parts)

    def together(self, now: Instant, events: Sequence[Callable[[Instant], Effects]]) -> Effects:
        """Several events of one moment, in this order. What to do next is decided once, behind the last."""
        return self.recorded(now, events) + self._advance(now)

    def recorded(self, now: Instant, events: Sequence[Callable[[Instant], Effects]]) -> Effects:
        """Several events of one moment, in this order. What to do next is decided by the next event, which
        comes soon."""
        self._decides_later = True
        effects: Effects = []
        for event in events:
            effects += event(now)
        self._decides_later = False
        return effects

    # Events: clients.

    def subscribe(self, now: Instant, spec: Subscription) -> Effects:
        """A client opened a stream."""
        if self.parts.draining:
            return [End(spec.id, Cause.DRAINING)]
        try:
            self.parts.groups.add_subscription(spec, now)
        except TooManyFilterGroups as error:
            return [End(spec.id, Cause.UNUSABLE, str(error))]
        if spec.first_wait_ns is not None:
            self.parts.capacity.reopen()  # It may end if no message can be handed out now.
        return self._advance(now)

    def unsubscribe(self, now: Instant, subscriber_id: int) -> Effects:
        """A client ended its stream. The client's connection keeps the messages that were sent."""
        if subscriber := self.subscribers.get(subscriber_id):
            self._deliveries.remove_stream(subscriber)
        return self._advance(now)

    def disconnected(self, now: Instant, holder: int) -> Effects:
        """A client's connection is gone. Its messages are released; with `on_disconnect=keep`,
        those that were sent stay leased until their deadlines. Deliveries of messages that it had
        locked have failed: they are due again at once, or after the wait of a delivery."""
        for subscriber in self.parts.groups.streams_of(holder):
            self._deliveries.remove_stream(subscriber)
        self._locked.client_gone(holder)
        others = [lease for lease in self.parts.leases.held_by(holder) if not (lease.locked and lease.is_sent)]
        self._deliveries.end_in_steps(others, self._deliveries.give_back_abandoned)
        return self._advance(now)

    def handed_over(self, now: Instant, returns: Iterable[Return]) -> Effects:
        """These claims were to be released by the dispatcher before this one (`unreleased`)."""
        for claim in returns:
            self.parts.releases.add_release(claim)
        return self._advance(now)

    @property
    def unreleased(self) -> list[Return]:
        """The claims whose release has not been answered."""
        return self.parts.releases.unfinished

    def transaction_ended(self, now: Instant, holder: int, *, failed: bool = False) -> Effects:
        """The transaction of a client has ended, and with it the locks on its messages. Those that
        it has not acknowledged are free again. `failed`: it was certainly rolled back, so their
        deliveries count as failed, and they are due after the wait of a delivery."""
        self._locked.transaction_ended(holder, failed=failed)
        return self._advance(now)

    def client_paused(self, now: Instant, subscriber_id: int) -> Effects:
        """A client stopped reading: it is sent nothing more for now."""
        self.parts.groups.set_paused(subscriber_id, paused=True)
        return self._advance(now)

    def client_resumed(self, now: Instant, subscriber_id: int) -> Effects:
        """A client reads again."""
        self.parts.groups.set_paused(subscriber_id, paused=False)
        return self._advance(now)

    def end_all(self, now: Instant, cause: Cause, text: str = "") -> Effects:
        """The proxy stops, or the table cannot serve as a queue any more: end every stream, give
        every message back, start nothing new."""
        self.parts.draining = True
        effects: Effects = [
            self._deliveries.end_stream(subscriber, cause, text) for subscriber in list(self.subscribers.values())
        ]
        self._locked.end_all()
        self._deliveries.end_in_steps(list(self.parts.leases), self._deliveries.give_back_abandoned)
        return effects + self._advance(now)

    # Events: the table.

    def woken(self, now: Instant, *, anywhere: bool = False) -> Effects:
        """A transaction that wrote to the table was committed. `anywhere`: it may have done more
        than insert rows at the end."""
        self.parts.scans.request_scans(anywhere=anywhere)
        if anywhere:
            self.parts.verification.end_pause()  # It may have been an acknowledgement.
            self.parts.capacity.reopen()
            self.parts.places.any_over()
            self.parts.follow_ups.table_changed()
        return self._advance(now)

    def inserted(self, now: Instant, keys: Sequence[Key]) -> Effects:
        """A transaction that only inserted rows was committed, probably rows of these keys: they
        follow from the server's answer. If no other message can be due, they are claimed or offered
        to be locked without a scan. A wrong key costs a claim that misses it, and then a scan."""
        self._deliveries.end_expired(now)
        self.parts.scans.promote_due(now)
        picked = self._picking.pick_inserted(now, keys)
        if picked is None:
            return self.woken(now)
        effects: Effects = []
        if any(group.locks for group, _ in picked.values()):
            self._locked.start_leases(picked, unscanned=True)
            effects += self._start_locks(now)
        elif picked:
            effects.append(self._claim(picked, now, unscanned=True))
        return effects + self._advance(now)

    def settled(self, now: Instant, keys: Iterable[Key]) -> Effects:
        """A statement has certainly acknowledged or deleted these messages just now."""
        keys = tuple(dict.fromkeys(keys))  # A client may name a message twice.
        self.parts.scans.settled(keys)
        return self._over(now, keys)

    def _over(self, now: Instant, keys: Collection[Key]) -> Effects:
        """These different messages are certainly acknowledged or deleted."""
        self.parts.claims.report_changes(keys)
        self.parts.verification.outcome_known(keys)
        leases = self.parts.leases.among(keys)
        if len(leases) < len(keys):
            self._over_elsewhere(keys)
        ended = [lease for lease in leases if not lease.awaits_lock]
        self.parts.measures.settled(ended, now)
        self._deliveries.end_leases(ended, settled=True)
        self.parts.dead_letters.forget(keys)
        self.parts.refusals.forget(keys, now)
        return self._advance(now)

    def suspected(self, now: Instant, keys: Iterable[Key] | None, *, extended: bool = False) -> Effects:
        """These messages (None: any) may have been acknowledged, given back or otherwise changed.
        They are looked up at once. `extended`: their holders may also have been given more time."""
        keys = None if keys is None else tuple(keys)
        if keys is not None and len(keys) > self.parts.limits.suspected_max:
            self.parts.scans.request_scans(anywhere=True)  # Some may have no lease here.
            keys = None
        self.parts.claims.report_changes(keys)
        if keys:
            self._over_elsewhere(keys)
        if keys is None:
            self.parts.capacity.reopen()
            self.parts.places.any_over()
            self.parts.verification.suspect_any(extended=extended)
        else:
            unleased = bool(self.subscribers) or self.parts.dead_letters.configured
            if not self.parts.verification.suspect_keys(keys, extended=extended, unleased=unleased):
                self.parts.scans.request_scans(anywhere=True)
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
            self.parts.scans.changed_anywhere(now)
            self.parts.follow_ups.table_changed()
            return self.suspected(now, None)
        for entry in seen:
            if entry.due_ns == WAITING_NS:
                self.parts.follow_ups.follow_up_logged()
            if lease := self.parts.leases.get(entry.key):
                self.parts.verification.lease_logged(lease, entry, before.get(entry.key))
            elif self.parts.is_taken(entry.key) or self.parts.releases.is_under_way(entry.key):
                self.parts.claims.entry_logged(entry, before.get(entry.key))
            else:
                self._note_foreign_change(entry, before.get(entry.key))
                if self.parts.dead_letters.add_if_dead(entry, now):
                    continue
                self.parts.dead_letters.forget((entry.key,))
                self.parts.scans.entry_logged(entry, now, before.get(entry.key))
        self.parts.scans.stop_awaiting(over)
        ends = tuple(dict.fromkeys(self.parts.verification.ends_logged(over, before)))
        self.parts.scans.forget(ends)
        return self._over(now, ends)

    def _note_foreign_change(self, entry: Entry, before: tuple[int, int] | None) -> None:
        """The binary log shows another state of a message that is not in flight here. Unless it was
        inserted or claimed, its place may be free."""
        if before is not None and entry.epoch <= before[0]:
            self._over_elsewhere((entry.key,))

    def _over_elsewhere(self, keys: Collection[Key]) -> None:
        """The deliveries of those of these messages that are not in flight here may be over, and
        their places free."""
        here = {lease.key for lease in self.parts.leases.among(keys)}
        if len(here) < len(keys):
            self.parts.capacity.reopen()
        self.parts.places.deliveries_over(key for key in keys if key not in here)

    def policy_changed(self, now: Instant, policy: Policy) -> Effects:
        """The table's comment has changed."""
        before = self.parts.policy
        added = "a limit" if policy.locked_claims and not before.locked_claims else None
        if policy.after_batch is not None and before.after_batch is None:
            added = "AFTER_BATCH"
        self.parts.set_policy(policy, now)
        effects: Effects = [
            self._deliveries.end_stream(subscriber, Cause.UNUSABLE, f"FOR UPDATE is not possible with {added}")
            for subscriber in list(self.subscribers.values())
            if added is not None and subscriber.spec.locks
        ]
        return effects + self._advance(now)

    def slot_given(self, now: Instant, slot: int) -> Effects:
        """This proxy has this slot on the server from now on (0: none), and holds its lock."""
        self.parts.abandoned.slot_given(slot)
        return self._advance(now)

    def proxy_lost(self, now: Instant) -> Effects:
        """Another proxy on the server may be gone. Messages that it has left are released. Of others it
        alone may have known: messages that were inserted through it."""
        self.parts.abandoned.request_search(now)
        self.parts.scans.request_scans(anywhere=True)
        return self._advance(now)

    def share_changed(self, now: Instant, share: Share | None) -> Effects:
        """This proxy takes the messages of this share first, because others have streams on the table
        too; None: it takes all messages."""
        self.parts.scans.set_share(share)
        return self._advance(now)

    def tick(self, now: Instant) -> Effects:
        """Time passed, or the server's clock was set."""
        return self._advance(now)

    def parts_over(self, now: Instant, table: TableId, keys: Collection[Key] | None) -> Effects:
        """Parts of batches in `table` (None: any) were acknowledged or deleted, or may have been."""
        if not self.parts.follow_ups.may_wait:
            return []
        self.parts.follow_ups.parts_over(table, keys)
        return self._advance(now)

    def semaphores_freed(self, now: Instant, table: TableId | None, keys: Collection[Key] | None) -> Effects:
        """Messages of another queue of the database (None: of any; with keys None: any of its messages) hold no
        semaphores any more, or may hold none; or semaphores were changed."""
        if not self.parts.places.limited:
            return []
        if table is None or keys is None:
            self.parts.places.any_over()
        self.parts.places.deliveries_over(keys or (), table)
        return self._advance(now)

    # Events: answers of the database.

    def scan_done(self, now: Instant, scan_id: int, result: ScanResult) -> Effects:
        """A scan came back."""
        self.parts.failure_pause.reset()
        self.parts.places.rows_shown(result.entries)
        if self.parts.dead_letters.configured:
            for entry in result.entries:
                if not (self.parts.is_taken(entry.key) or self.parts.leases.get(entry.key)):
                    self.parts.dead_letters.add_if_dead(entry, now)
        self.parts.scans.scan_answered(now, scan_id, result, self.parts.taken_among, self.parts.leases.outdated_among)
        return self._advance(now)

    def scan_failed(self, now: Instant, scan_id: int, text: str, *, lasting: bool = False) -> Effects:
        """A scan failed. `lasting`: every scan fails until the table is changed, so the streams of
        its group end. Bounded streams whose first wait is over end in any case."""
        group = self.parts.scans.scan_failed(now, scan_id)
        self.parts.failure_pause.lengthen(now.mono_ns)
        effects: Effects = []
        for subscriber in list(group.subscribers):
            until_ns = subscriber.first_wait_until_ns
            waited = until_ns is not None and until_ns <= now.mono_ns and not subscriber.unsent
            if lasting or waited:
                effects.append(self._deliveries.end_stream(subscriber, Cause.UNUSABLE, text))
        return effects + self._advance(now)

    def polled(self, now: Instant, *, empty: bool) -> Effects:
        """A poll came back. `empty`: the table has no unacknowledged message."""
        self.parts.scans.poll_answered(empty=empty)
        return self._advance(now)

    def poll_failed(self, now: Instant) -> Effects:
        """A poll failed, perhaps because of another queue. Scans take its place."""
        self.parts.scans.poll_failed()
        return self._advance(now)

    def group_scan_done(self, now: Instant, scan_id: int, result: GroupScanResult) -> Effects:
        """A group scan came back."""
        parts = self.parts
        parts.failure_pause.reset()
        parts.places.rows_shown((*result.entries, *result.arrivals))
        if parts.dead_letters.configured:
            for entry in (*result.entries, *result.arrivals):
                if not (parts.is_taken(entry.key) or parts.leases.get(entry.key)):
                    parts.dead_letters.add_if_dead(entry, now)
        parts.scans.group_scan_answered(now, scan_id, result, parts.unwanted_among)
        return self._advance(now)

    def group_scan_failed(self, now: Instant, scan_id: int) -> Effects:
        """A group scan failed. Scans in the order of time fail as well if it is for a lasting reason."""
        self.parts.scans.group_scan_failed(now, scan_id)
        self.parts.failure_pause.lengthen(now.mono_ns)
        return self._advance(now)

    def claim_done(
        self,
        now: Instant,
        claim_id: int,
        claims: Sequence[Claimed],
        rows: FetchResult | None = None,
        left: LimitsLeft | None = None,
        waiting: Sequence[Key] = (),
    ) -> Effects:
        """A claim of these messages was committed. `rows`: their rows, if they were read behind it.
        `left`: what the limits of the queue leave, if the database keeps them. `waiting`: follow-ups that
        it has set aside."""
        self.parts.claims.failing_since_ns = None
        self.parts.refusals.claimed(len(self.parts.claims.get(claim_id).picked), [claim.key for claim in claims], now)
        return self._claim_answered(now, claim_id, claims, rows, left, waiting)

    def claim_failed(self, now: Instant, claim_id: int, refusal: Refusal | None = None) -> Effects:
        """A claim failed, or its answer was lost. If it was committed, its rows come due again when
        their waits end. `refusal`: one of its messages may be the reason, so they are tried in smaller
        parts; one that was alone is passed over."""
        attempt, known = self.parts.claims.get(claim_id), False
        if refusal is not None:
            size = self.parts.refusals.claim_size
            known = self.parts.refusals.refused(size, attempt.picked, refusal, now)
        if refusal is None or refusal.lasted:
            for _, entry in attempt.picked.values():
                self.parts.scans.rescan_place(entry)
            self.parts.scans.request_scans(anywhere=attempt.unscanned)
        if not known:
            self.parts.failure_pause.lengthen(now.mono_ns)
            if self.parts.claims.failing_since_ns is None:
                self.parts.claims.failing_since_ns = attempt.started_ns
        return self._claim_answered(now, claim_id, (), refused=known)

    def _claim_answered(
        self,
        now: Instant,
        claim_id: int,
        claims: Sequence[Claimed],
        rows: FetchResult | None = None,
        left: LimitsLeft | None = None,
        waiting: Sequence[Key] = (),
        *,
        refused: bool = False,
    ) -> Effects:
        """`refused`: nothing was claimed, and the messages that are not passed over are ready again."""
        left_out: Collection[Key] = left.left_out if left else ()
        if refused:
            left_out = self.parts.claims.get(claim_id).picked.keys()
        attempt = self.parts.claims.record_answer(claim_id, claims, rows, left_out, waiting)
        self.parts.follow_ups.set_aside(waiting, self.parts.groups.main.scans.buffer.upcoming)
        self.parts.capacity.claim_counted(now, left, len(claims))
        duration_ns = now.mono_ns - attempt.started_ns
        self.parts.places.claim_answered(now, left, duration_ns)
        self.parts.capacity.claim_took(duration_ns)
        self.parts.scans.claim_took(duration_ns, now)
        effects: Effects = []
        for attempt, answer in self.parts.claims.take_answers():
            self._deliveries.start_leases(now, attempt, answer)
            effects += self._deliveries.send_claimed_rows(now, attempt, answer)
        for head in [group.head for group in left.groups if group.head is not None] if left else ():
            if head.due_ns <= now.server_ns and not (self.parts.is_taken(head.key) or self.parts.leases.get(head.key)):
                self.parts.scans.found_first(head, now)
        return effects + self._advance(now)

    def fetch_done(self, now: Instant, fetch_id: int, result: FetchResult) -> Effects:
        """Rows were read. Those whose leases still stand are sent; a message that is in no part of
        the result is over."""
        self.parts.refusals.fetch_size.tried(len(self.parts.fetches.leases(fetch_id)))
        return self._deliveries.send_rows(now, fetch_id, result) + self._advance(now)

    def fetch_failed(
        self, now: Instant, fetch_id: int, text: str = "", *, lasting: bool = False, refusal: Refusal | None = None
    ) -> Effects:
        """Rows could not be read: their claims are given back. `lasting`: their streams end. `refusal`: one of
        the rows may be the reason, so they are read in smaller parts; one that was alone is passed over."""
        keys = [lease.key for lease in self.parts.fetches.leases(fetch_id)]
        remaining = self.parts.fetches.finish_fetch(fetch_id)
        if refusal is None or not self.parts.refusals.refused(self.parts.refusals.fetch_size, keys, refusal, now):
            self.parts.failure_pause.lengthen(now.mono_ns)
        elif len(keys) > 1:
            for lease, _ in remaining:
                lease.apply(LeaseEvent.UNREAD)
            return self._advance(now)
        self._deliveries.give_back([lease for lease, _ in remaining])
        over = {subscriber.spec.id: subscriber for _, subscriber in remaining if lasting}
        effects: Effects = [
            self._deliveries.end_stream(subscriber, Cause.UNUSABLE, text) for subscriber in over.values()
        ]
        return effects + self._advance(now)

    def lock_done(self, now: Instant, lock_id: int, locked: AbstractSet[Key], read: Sequence[Entry] = ()) -> Effects:
        """A subscriber's session has locked these of the messages that it was offered, and passed
        their rows on. The others are locked by somebody else, changed or gone. `read`: the rows of
        those that no scan had shown."""
        return self._locked.lock_answered(now, lock_id, locked, read) + self._advance(now)

    def lookup_done(self, now: Instant, found: Mapping[Key, Entry]) -> Effects:
        """A lookup came back: the rows that were found, by key."""
        for lease, entry in self.parts.verification.lookup_answered(now, found, self.parts.now.server_ns):
            if lease is not None and lease.awaits_lock:
                continue
            if lease is not None:
                if entry is None:
                    self.parts.measures.settled((lease,), now)
                else:
                    self.parts.measures.given_back += lease.is_sent
                self._deliveries.end_leases((lease,), settled=entry is None)
            if entry is None or self.parts.is_taken(entry.key) or self.parts.dead_letters.add_if_dead(entry, now):
                continue
            if lease is not None:
                self.parts.scans.found_after_lease(entry, now)
            else:
                self.parts.scans.found_unleased(entry, now)
        return self._advance(now)

    def lookup_failed(self, now: Instant) -> Effects:
        """A lookup failed; its messages stay suspect."""
        self.parts.verification.lookup_failed(now)
        return self._advance(now)

    def release_done(self, now: Instant) -> Effects:
        """The release was carried out: its messages may be claimed again, or are dead."""
        returns = self.parts.releases.release_answered()
        for claim in returns:
            if claim.failed_wait_ns is not None:
                self._locked.failure_counted(now, claim, claim.failed_wait_ns)
            elif claim.sent and claim.key not in self.parts.dead_letters:
                self.parts.dead_letters.add_if_dead(Entry(claim.key, claim.epoch, claim.priority, now.server_ns), now)
        self.parts.places.deliveries_over(claim.key for claim in returns)
        self.parts.scans.rescan_returned(returns)
        self.parts.capacity.reopen()
        return self._advance(now)

    def release_failed(self, now: Instant) -> Effects:
        """A release failed, or its answer was lost."""
        self.parts.scans.rescan_returned(self.parts.releases.release_failed(now))
        return self._advance(now)

    def search_done(self, now: Instant, found: Sequence[Return]) -> Effects:
        """A search for messages in flight at proxies that are gone came back."""
        for claim in self.parts.abandoned.search_answered(now, found):
            lease = self.parts.leases.get(claim.key)
            own = lease is not None and lease.epoch == claim.epoch
            if not own and not self.parts.is_taken(claim.key):
                self.parts.releases.add_release(claim)
        return self._advance(now)

    def search_failed(self, now: Instant) -> Effects:
        """A search failed. It is repeated later."""
        self.parts.abandoned.search_failed(now)
        return self._advance(now)

    def batches_checked(self, now: Instant, seen: BatchesChecked) -> Effects:
        """A check at follow-ups and their batches came back."""
        parts = self.parts
        parts.follow_ups.check_answered(now, seen)
        parts.scans.forget(seen.set_aside)
        parts.follow_ups.set_aside(seen.set_aside, parts.groups.main.scans.buffer.upcoming)
        if seen.fired:
            parts.scans.forget(seen.fired)
            parts.scans.request_scans(anywhere=True)
        return self._advance(now)

    def check_failed(self, now: Instant) -> Effects:
        """Such a check failed, or its answer was lost."""
        self.parts.follow_ups.check_failed(now)
        self.parts.scans.request_scans(anywhere=True)
        return self._advance(now)

    def purge_done(self, now: Instant, deleted: int, *, more: bool) -> Effects:
        """So many old acknowledged rows were deleted. `more`: there may be others."""
        self.parts.purges.purge_answered(now, deleted, more=more)
        self.parts.refusals.forget_old(now)
        return self._advance(now)

    def purge_failed(self, now: Instant) -> Effects:
        """A purge failed. It is not urgent: the next one comes after the usual pause."""
        return self.purge_done(now, 0, more=False)

    def move_done(self, now: Instant, moved: Iterable[Key]) -> Effects:
        """These dead messages were moved. The others are locked, changed, or cannot be moved."""
        moved = set(moved)
        self.parts.places.deliveries_over(moved)
        others = self.parts.dead_letters.move_answered(now, moved)
        self.parts.scans.retry_later(others, now)
        self.parts.scans.request_scans()
        if self.parts.dead_letters.configured:
            self.parts.verification.request_lookup(entry.key for entry in others)
        return self._advance(now)

    def move_failed(self, now: Instant) -> Effects:
        """A move failed, or its answer was lost. Messages still in the table are found again."""
        self.parts.failure_pause.lengthen(now.mono_ns)
        return self.move_done(now, ())

    # Decisions.

    def _advance(self, now: Instant) -> Effects:
        """Do everything that follows from the state and the time."""
        if self._decides_later:
            return []
        parts = self.parts
        if now.server_ns < parts.now.server_ns - parts.limits.clock_step_ns:
            parts.scans.clock_stepped_back()
        parts.now = now
        parts.more = False
        parts.capacity.reopen_when_due(now)
        parts.places.forget_ended(now)
        self._deliveries.end_expired(now)
        self._deliveries.end_more()
        parts.scans.promote_due(now)
        effects = parts.releases.start_release(now)
        effects += self._deliveries.end_finished(now)
        if not parts.draining:
            if not parts.is_failing(now):
                effects += self._start_claim(now)
                effects += parts.dead_letters.start_move(now)
                effects += self._start_scans(now)
            effects += parts.fetches.start_fetches()
            effects += self._start_locks(now)
            effects += parts.verification.start_lookup(now, parts.acknowledgements_needed)
            effects += parts.purges.start_purge(now)
            effects += parts.abandoned.start_search(now, len(parts.leases))
            effects += parts.follow_ups.start_check(now, demand=bool(parts.groups.subscribers))
        return effects

    def _start_claim(self, now: Instant) -> Effects:
        """Claim the most urgent ready messages, as many as credit and capacity allow, and make
        leases of those for streams that lock. Neither kind of stream always chooses first."""
        self._locks_first = not self._locks_first
        if self._locks_first:
            self._locked.start_leases(self._picking.pick_ready(now, locks=True))
        picked = self._picking.pick_ready(now, locks=False)
        effects: Effects = []
        if picked:
            effects.append(self._claim(picked, now))
        if not self._locks_first:
            self._locked.start_leases(self._picking.pick_ready(now, locks=True))
        return effects

    def _start_locks(self, now: Instant) -> Effects:
        """Offer the leases of streams that lock to their sessions."""
        parts = self.parts
        return parts.locks.start_locks(now, parts.policy.max_attempts if parts.dead_letters.configured else None)

    def _claim(self, picked: Picked, now: Instant, *, unscanned: bool = False) -> Effect:
        self.parts.capacity.claim_started()
        self.parts.places.claim_started()
        return self.parts.claims.start_claim(picked, now, slot=self.parts.abandoned.slot, unscanned=unscanned)

    def _start_scans(self, now: Instant) -> Effects:
        """Scan for the groups with demand, and for dead messages."""
        parts = self.parts
        groups, find_dead = parts.groups_with_demand(), parts.dead_letters.scanned_for
        unavailable = parts.claims.messages + parts.dead_letters.due_count
        unavailable += parts.leases.locked + parts.releases.failures
        return parts.scans.start_scans(groups, now, unavailable, find_dead=find_dead)
