"""The dispatcher of one table: what happened, and when, goes in; what is to be done comes out.

It knows no socket, no clock and no SQL. Every public method is a happening: it takes the server's time, changes
the state, and returns effects (engine.effects) that the shell carries out, each of which comes back as another
happening. So each possible order of events is a sequence of calls, and tests play thousands of them.

The life of a message: a *scan* brings its key into the window; when it is due and somebody has credit, a *claim*
takes it in the database for the length of this delivery's wait; once that is committed, the claim is a *lease*,
dealt to a subscriber, *fetched* and *delivered*. It ends by an acknowledgement (`settled`, or found by a *lookup*),
by being given back (*release*), or by its deadline, after which the next scan finds the row due again.

What makes it safe is in the database: a claim takes only rows that are unacknowledged, due and of the epoch that was
scanned, so a stale window costs a wasted key and never a wrong delivery. What makes it live: whatever is lost on
the way (an answer, a process, a connection), the row itself says when it is due again.

Streams that want different messages are in different *lanes* (engine.lanes), each with a window of its own; claims,
leases and limits are the table's. A message that was delivered as often as it may be is *buried* instead of claimed.

What is not about streams and who gets what has rooms of its own, each with its own state: what there is to hand out
and when to look for it (engine.looks), what others may have done to what is out (engine.doubts), and what is to be
done for the table whoever streams (engine.chores).

`_advance` is the one place that decides what to do next; happenings only record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

from engine.backoff import wait_ns
from engine.chores import Burials, Purges, Returns
from engine.doubts import Doubts
from engine.effects import Cause, Claim, Deliver, Effect, End, Fetch
from engine.lanes import Lane, Lanes, TooManyLanes, pick
from engine.leases import Lease, Leases
from engine.looks import Looks
from engine.model import (
    Claimed,
    Entry,
    FetchResult,
    Key,
    OnDisconnect,
    Policy,
    Return,
    RowFormat,
    ScanResult,
    Wanted,
)
from engine.pacing import Limits, Pace, Pause
from engine.subscribers import Subscriber, Subscription, share

Effects = list[Effect]


@dataclass(slots=True)
class _Attempt:
    """A claim under way, and its answer while an earlier claim's is still awaited."""

    picked: Mapping[Key, tuple[Lane, Entry]]
    answer: tuple[Claimed, ...] | None = None


class Dispatcher:
    """Who gets which message of one table, and when."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now_ns: int) -> None:
        self._policy = policy
        self._limits = limits
        self._jitter = jitter
        self._subscribers: dict[int, Subscriber] = {}
        self._lanes = Lanes(limits.lanes_max, limits.scan_min)
        self._leases = Leases()
        self._pace = Pace(policy.max_rate, now_ns)
        self._ids = count(1)
        """Of all that is asked of the database, and of leases: what has the greater number is later."""
        self._looks = Looks(self._lanes, policy, limits, self._ids)
        self._doubts = Doubts(self._leases, limits)
        self._attempts: dict[int, _Attempt] = {}
        self._fetches: dict[int, list[Lease]] = {}
        self._returns = Returns(limits)
        self._burials = Burials(limits)
        self._purges = Purges(limits, now_ns)
        self._failure_pause = Pause(limits.failure_pause_min_ns, limits.failure_pause_max_ns)
        self._now_ns = now_ns
        """The time of the last decisions: what came due after it is still to be decided."""
        self._dealt = 0
        self._draining = False

    def __repr__(self) -> str:
        return (
            f"<Dispatcher subscribers={len(self._subscribers)} ready={self.ready} lanes={len(self._lanes)}"
            f" claims={len(self._attempts)} in_flight={len(self._leases)}"
            f" returning={len(self._returns)}>"
        )

    # What others may see.

    @property
    def in_flight(self) -> int:
        """Messages claimed and not over."""
        return len(self._leases)

    @property
    def ready(self) -> int:
        """Keys read ahead that are due."""
        return sum(each.window.ready for each in self._lanes)

    @property
    def subscribers(self) -> Mapping[int, Subscriber]:
        """By id; for reading."""
        return self._subscribers

    @property
    def settled_down(self) -> bool:
        """Whether nothing is under way or waiting to be given back: a drained dispatcher may be dropped."""
        asked = self._attempts or self._fetches or self._looks.under_way or self._doubts.under_way
        chores = len(self._returns) or self._burials.under_way or self._purges.under_way
        return not (asked or chores)

    @property
    def wake_at_ns(self) -> int | None:
        """When to call `tick` if nothing else happens before; perhaps already past by the caller's clock."""
        times = [self._leases.next_deadline_ns, self._returns.at_ns]
        if not self._draining:
            times.append(self._purges.at_ns)
        if self._burials.waiting:
            times.append(self._failure_pause.until_ns)
        if self._subscribers and not self._draining:
            times.append(self._looks.again_ns)
            for lane in self._lanes:
                times += lane.patient_until_ns
            for lane in self._hungry():
                times += self._looks.times(lane)
                times.append(self._failure_pause.until_ns)
                if lane.window.ready:
                    times.append(self._pace.ready_ns())
            if len(self._doubts) or self._starved():
                times.append(self._doubts.until_ns)
        now_ns = self._now_ns
        return min([each for each in times if each is not None and each > now_ns], default=None)

    # Happenings: clients.

    def subscribe(self, now_ns: int, spec: Subscription) -> Effects:
        """A client opened a stream."""
        if self._draining:
            return [End(spec.id, Cause.DRAINING)]
        try:
            lane = self._lanes.lane(spec.selection)
        except TooManyLanes:
            text = f"the streams of this table have {self._limits.lanes_max} different conditions already"
            return [End(spec.id, Cause.UNUSABLE, text)]
        subscriber = Subscriber(
            spec,
            since_scan=lane.scanning.started + 1,
            patient_until_ns=None if spec.patience_ns is None else now_ns + spec.patience_ns,
            remaining=spec.limit,
        )
        self._subscribers[spec.id] = lane.subscribers[spec.id] = subscriber
        return self._advance(now_ns)

    def unsubscribe(self, now_ns: int, subscriber_id: int) -> Effects:
        """A stream was ended by its client; what it was sent stays with the client's connection."""
        if subscriber := self._subscribers.get(subscriber_id):
            self._forget(subscriber)
            self._give_back(list(subscriber.unsent.values()))
        return self._advance(now_ns)

    def disconnected(self, now_ns: int, holder: int) -> Effects:
        """A client is gone: all that it holds is released, or kept until its deadline, as the policy says."""
        for each in [each for each in self._subscribers.values() if each.spec.holder == holder]:
            self._forget(each)
        keep = self._policy.on_disconnect is OnDisconnect.KEEP
        self._give_back([each for each in self._leases.held_by(holder) if not (keep and each.sent)])
        return self._advance(now_ns)

    def paused(self, now_ns: int, subscriber_id: int) -> Effects:
        """A client stopped reading: send it nothing more for now."""
        if subscriber := self._subscribers.get(subscriber_id):
            subscriber.paused = True
        return self._advance(now_ns)

    def resumed(self, now_ns: int, subscriber_id: int) -> Effects:
        """A client reads again."""
        if subscriber := self._subscribers.get(subscriber_id):
            subscriber.paused = False
        return self._advance(now_ns)

    def drain(self, now_ns: int) -> Effects:
        """The proxy is stopping: end every stream, give everything back, begin nothing."""
        return self._end_all(now_ns, Cause.DRAINING, "")

    def unusable(self, now_ns: int, text: str) -> Effects:
        """The table cannot serve as a queue any more."""
        return self._end_all(now_ns, Cause.UNUSABLE, text)

    # Happenings: the table.

    def woken(self, now_ns: int, *, anywhere: bool = False) -> Effects:
        """Somebody committed something that touched the table; `anywhere`: not just new rows at its end."""
        self._looks.stir(anywhere=anywhere)
        if anywhere:
            self._doubts.hasten()  # It may have been an acknowledgement.
        return self._advance(now_ns)

    def settled(self, now_ns: int, keys: Iterable[Key]) -> Effects:
        """These were acknowledged, or are gone, for certain."""
        keys = tuple(keys)
        self._doubts.settled(keys)
        for key in keys:
            if lease := self._leases.get(key):
                self._end_lease(lease)
        self._looks.over(keys)
        return self._advance(now_ns)

    def doubted(self, now_ns: int, keys: Iterable[Key] | None, *, extended: bool = False) -> Effects:
        """These (None: any) may have been acknowledged, given back or otherwise changed: worth a lookup at once.
        `extended`: or their holder may have been given more time."""
        if keys is None:
            self._doubts.about_any(extended=extended)
        elif not self._doubts.about_these(keys, extended=extended, strangers=bool(self._subscribers)):
            self._looks.stir(anywhere=True)
        return self._advance(now_ns)

    def noticed(self, now_ns: int, seen: Sequence[Entry] = (), over: Sequence[Key] = ()) -> Effects:
        """The server's log tells what messages became, or, with none named, that any may have changed.

        The order is that of the log: each later change is told later. Our own claims and releases are in it too.
        """
        if not seen and not over:
            self._looks.anything(now_ns)
            return self.doubted(now_ns, None)
        ours = self._claiming().union(each.key for each in self._returns.under_way)
        for entry in seen:
            if lease := self._leases.get(entry.key):
                self._doubts.logged(lease, entry)
            elif entry.key not in ours:
                self._looks.told(entry, now_ns)
        self._looks.expected_no_more(over)
        return self.settled(now_ns, [key for key in over if self._doubts.logged_over(key)])

    def reconfigure(self, now_ns: int, policy: Policy) -> Effects:
        """The table's comment changed."""
        self._policy = policy
        self._pace.change(policy.max_rate, now_ns)
        self._looks.reconfigure(policy)
        self._purges.reconfigure(now_ns, policy)
        return self._advance(now_ns)

    def tick(self, now_ns: int) -> Effects:
        """Time passed."""
        return self._advance(now_ns)

    # Happenings: answers of the database.

    def scanned(self, now_ns: int, scan_id: int, result: ScanResult) -> Effects:
        """A scan came back."""
        self._failure_pause.reset()
        self._looks.answered(now_ns, scan_id, result, self._claiming(), self._is_outdated)
        return self._advance(now_ns)

    def scan_failed(self, now_ns: int, scan_id: int, text: str, *, lasting: bool = False) -> Effects:
        """A scan could not be made; `lasting`: and cannot be before somebody changes the table."""
        lane = self._looks.failed(now_ns, scan_id)
        self._failure_pause.lengthen(now_ns)
        effects: Effects = []
        for each in list(lane.subscribers.values()):
            impatient = each.patient_until_ns is not None and each.patient_until_ns <= now_ns and not each.unsent
            if lasting or impatient:
                effects.append(self._end(each, Cause.UNUSABLE, text))
        return effects + self._advance(now_ns)

    def claimed(self, now_ns: int, claim_id: int, claims: Sequence[Claimed]) -> Effects:
        """A claim is committed, with these rows."""
        self._attempts[claim_id].answer = tuple(claims)
        while (attempt := next(iter(self._attempts.values()), None)) and attempt.answer is not None:
            del self._attempts[next(iter(self._attempts))]
            self._take_claims(now_ns, attempt.picked, attempt.answer)
        return self._advance(now_ns)

    def claim_failed(self, now_ns: int, claim_id: int) -> Effects:
        """A claim failed, or its answer was lost. If it was committed all the same, its rows come due again
        by themselves."""
        for _, entry in self._attempts[claim_id].picked.values():
            self._looks.lower(entry)
        self._looks.stir()
        self._failure_pause.lengthen(now_ns)
        return self.claimed(now_ns, claim_id, ())

    def fetched(self, now_ns: int, fetch_id: int, result: FetchResult) -> Effects:
        """Rows came: deliver those whose lease still stands; those in no part are over."""
        self._expire(now_ns)
        parcels: dict[int, list[bytes]] = {}
        stopped: set[int] = set()
        for lease, subscriber in self._end_fetch(fetch_id):
            if lease.key in result.unread or subscriber.spec.id in stopped:
                stopped.add(subscriber.spec.id)
            elif lease.doubted or lease.key in result.changed:
                self._doubts.about(lease)
            elif (row := result.rows.get(lease.key)) is not None:
                subscriber.sent(lease)
                parcels.setdefault(subscriber.spec.id, []).append(row)
            else:
                self._end_lease(lease)
        effects: Effects = [Deliver(each, tuple(rows)) for each, rows in parcels.items()]
        return effects + self._advance(now_ns)

    def fetch_failed(self, now_ns: int, fetch_id: int, text: str = "", *, lasting: bool = False) -> Effects:
        """Rows could not be read: their claims are given back; `lasting`: and their streams cannot go on."""
        standing = self._end_fetch(fetch_id)
        self._give_back([lease for lease, _ in standing])
        self._failure_pause.lengthen(now_ns)
        over = {each.spec.id: each for _, each in standing if lasting}
        effects: Effects = [self._end(each, Cause.UNUSABLE, text) for each in over.values()]
        return effects + self._advance(now_ns)

    def looked_up(self, now_ns: int, found: Mapping[Key, Entry]) -> Effects:
        """What became of the leases that were looked up."""
        claiming = self._claiming()
        for lease, entry in self._doubts.answered(now_ns, found, self._now_ns):
            if lease is not None:
                self._end_lease(lease)
                if entry is not None:
                    self._looks.see(entry, now_ns)
            elif entry is not None and entry.key not in claiming:
                self._looks.seen_before(entry, now_ns)
        return self._advance(now_ns)

    def lookup_failed(self, now_ns: int) -> Effects:
        """The lookup could not be made; what was doubted still is."""
        self._doubts.failed(now_ns)
        return self._advance(now_ns)

    def released(self, now_ns: int) -> Effects:
        """What was given back is anybody's now."""
        self._look_where_they_were(self._returns.done())
        return self._advance(now_ns)

    def release_failed(self, now_ns: int) -> Effects:
        """Giving back failed, or its answer was lost."""
        self._look_where_they_were(self._returns.failed(now_ns))
        return self._advance(now_ns)

    def purged(self, now_ns: int, deleted: int) -> Effects:
        """Old acknowledged rows are gone; a full batch means that there are more."""
        self._purges.done(now_ns, self._policy, deleted)
        return self._advance(now_ns)

    def purge_failed(self, now_ns: int) -> Effects:
        """The purge could not be made; it can wait."""
        return self.purged(now_ns, 0)

    def buried(self, now_ns: int, moved: Iterable[Key]) -> Effects:
        """Dead messages were moved away; the others are locked by somebody, changed, or left alone for a while."""
        self._looks.missed(self._burials.done(set(moved)), now_ns)
        self._looks.stir()
        return self._advance(now_ns)

    def bury_failed(self, now_ns: int) -> Effects:
        """They could not be moved, or the answer was lost: whatever is still there is found again."""
        self._failure_pause.lengthen(now_ns)
        return self.buried(now_ns, ())

    # Decisions.

    def _advance(self, now_ns: int) -> Effects:
        """Everything that follows from the state as it is now."""
        self._now_ns = now_ns
        self._expire(now_ns)
        self._looks.pass_time(now_ns)
        effects = self._returns.begin(now_ns)
        effects += self._finish(now_ns)
        for lane in self._lanes:
            lane.survey(self._policy.batch_size)
        if not self._draining:
            if now_ns >= self._failure_pause.until_ns:
                effects += self._claim(now_ns)
                effects += self._burials.begin()
                effects += self._look(now_ns)
            effects += self._fetch()
            effects += self._doubts.begin(now_ns, self._starved)
            effects += self._purges.begin(now_ns, self._policy)
        return effects

    def _expire(self, now_ns: int) -> None:
        for lease in self._leases.expired(now_ns):
            self._end_lease(lease)
            entry = Entry(lease.key, lease.epoch, lease.priority, lease.deadline_ns)
            if self._is_dead(entry):
                self._burials.add(entry)
            self._looks.lower(entry)
            self._looks.stir()
        self._returns.pass_time(now_ns)

    def _finish(self, now_ns: int) -> Effects:
        over = [each for lane in self._lanes for each in lane.subscribers.values() if self._is_over(lane, each, now_ns)]
        return [self._end(each, Cause.COMPLETE) for each in over]

    def _is_over(self, lane: Lane, subscriber: Subscriber, now_ns: int) -> bool:
        """Whether a stream has had all that it asked for, or, bounded, all that there is to have now."""
        if subscriber.finished:
            return True
        if subscriber.patient_until_ns is None or subscriber.unsent or self._attempts:
            return False
        if not subscriber.given and now_ns < subscriber.patient_until_ns:
            return False
        if self._policy.paused:
            return True
        nothing_to_give = lane.window.ready == 0 and not lane.window.more
        looked = lane.scanning.completed >= subscriber.since_scan
        return (nothing_to_give and looked) or subscriber.starved or self._capacity() <= 0

    def _claim(self, now_ns: int) -> Effects:
        wishes = [
            (lane, 0 if lane.scanning.is_stale(now_ns) else max(0, min(lane.credit - lane.reserved, lane.window.ready)))
            for lane in self._lanes
        ]
        most = self._claimable(sum(wish for _, wish in wishes), now_ns)
        if most <= 0 or len(self._attempts) >= self._limits.claims_max:
            return []
        if self._attempts and most < self._policy.batch_size:
            return []  # Credit comes in drops while a claim is under way: gather it into one statement.
        picked: dict[Key, tuple[Lane, Entry]] = {}
        for lane, entry in pick(wishes, most):
            if self._is_dead(entry):
                self._burials.add(entry)
            else:
                picked[entry.key] = lane, entry
                lane.reserved += 1
        if not picked:
            return []
        self._pace.spend(len(picked))
        claim_id = next(self._ids)
        self._attempts[claim_id] = _Attempt(picked)
        wanted = [
            Wanted(entry.key, entry.epoch, wait_ns(self._policy, entry.epoch, self._jitter()), lane.selection)
            for lane, entry in picked.values()
        ]
        return [Claim(claim_id, tuple(wanted))]

    def _claimable(self, wished: int, now_ns: int) -> int:
        if not wished or self._policy.paused:
            return 0
        allowance = self._pace.allowance(now_ns)
        most = min(wished, self._capacity(), self._limits.claim_max)
        return most if allowance is None else min(most, allowance)

    def _look(self, now_ns: int) -> Effects:
        hungry = self._hungry()
        return self._looks.begin(hungry, now_ns, self._reserved() + self._burials.waiting) if hungry else []

    def _fetch(self) -> Effects:
        batches: dict[RowFormat, list[Lease]] = {}
        for each in self._subscribers.values():
            if not each.unsent or each.fetching or each.paused:
                continue
            room = self._limits.fetch_max - len(batches.get(each.spec.row_format, ()))
            wanted = list(islice((lease for lease in each.unsent.values() if not lease.doubted), max(0, room)))
            if wanted:
                batches.setdefault(each.spec.row_format, []).extend(wanted)
                each.fetching = True
        effects: Effects = []
        for row_format, leases in batches.items():
            fetch_id = next(self._ids)
            self._fetches[fetch_id] = leases
            effects.append(Fetch(fetch_id, row_format, {each.key: each.delivery for each in leases}))
        return effects

    # Parts of decisions.

    def _reserved(self) -> int:
        return sum(len(each.picked) for each in self._attempts.values())

    def _claiming(self) -> set[Key]:
        """The messages that are being claimed or buried."""
        keys = {key for attempt in self._attempts.values() for key in attempt.picked}
        return keys.union(self._burials)

    def _capacity(self) -> int:
        """How many more messages the table may have in flight."""
        most = self._policy.cache_size
        if self._policy.max_in_flight is not None:
            most = min(most, self._policy.max_in_flight)
        return most - len(self._leases) - self._reserved()

    def _hungry(self) -> list[Lane]:
        """The lanes in which somebody could be given a message."""
        if self._policy.paused or self._capacity() <= 0:
            return []
        return [each for each in self._lanes if each.credit > 0]

    def _starved(self) -> bool:
        """Whether somebody waits for acknowledgements."""
        if not len(self._leases):
            return False
        full = self._capacity() <= 0
        return any(each.starved or (full and each.awake) for each in self._lanes)

    def _is_dead(self, entry: Entry) -> bool:
        """Whether a message has been delivered as often as it may be."""
        return 0 < self._policy.max_attempts <= entry.epoch and self._policy.dead_letter is not None

    def _is_outdated(self, entry: Entry, scan_id: int) -> bool:
        """Whether a scan shows a row as it was before our own claim of it, and not as somebody made it since."""
        lease = self._leases.get(entry.key)
        return lease is not None and entry.epoch < lease.epoch and scan_id < lease.since

    def _take_claims(self, now_ns: int, picked: Mapping[Key, tuple[Lane, Entry]], claims: Sequence[Claimed]) -> None:
        """Make leases of committed claims, and deal them out."""
        taken = {each.key for each in claims}
        by_lane: dict[Lane, list[Lease]] = {}
        for lane, _ in picked.values():
            lane.reserved -= 1
            by_lane.setdefault(lane, [])
        missed = [(lane, entry) for lane, entry in picked.values() if entry.key not in taken]
        self._pace.spend(-len(missed))
        for lane in by_lane:
            self._looks.missed([entry for each, entry in missed if each is lane], now_ns, lane)
            lane.window.claimed(taken)
        leases = [Lease.of(each) for each in claims]
        leases.sort(key=lambda each: (each.priority, each.due_ns, each.key))
        for lease in leases:
            if before := self._leases.get(lease.key):
                self._end_lease(before)
            lease.since = next(self._ids)
            self._leases.add(lease)
            by_lane[picked[lease.key][0]].append(lease)
        for lane, each in by_lane.items():
            self._deal(lane, each)

    def _deal(self, lane: Lane, leases: Sequence[Lease]) -> None:
        willing = () if self._draining else lane.subscribers.values()
        dealt, left = share(willing, leases, self._policy.batch_size, self._dealt)
        self._dealt += len(dealt)
        for lease, subscriber in dealt:
            subscriber.assign(lease)
            self._leases.hold(lease, subscriber.spec.holder, subscriber.spec.id)
        self._give_back(left)

    def _end_fetch(self, fetch_id: int) -> list[tuple[Lease, Subscriber]]:
        """The leases of a fetch that still stand and are still to be sent, with their subscribers."""
        standing: list[tuple[Lease, Subscriber]] = []
        for lease in self._fetches.pop(fetch_id):
            subscriber = self._subscribers.get(lease.subscriber or 0)
            if subscriber is None:
                continue
            subscriber.fetching = False
            if subscriber.unsent.get(lease.key) is lease:
                standing.append((lease, subscriber))
        return standing

    def _give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._returns.add(lease.returned())
            self._end_lease(lease)
            if not lease.sent:
                self._pace.spend(-1)

    def _look_where_they_were(self, returns: Iterable[Return]) -> None:
        """Claims may have been given back: unsent messages stand at their old places."""
        for each in returns:
            if not each.sent:
                self._looks.lower(each.entry)
        self._looks.stir()

    def _end_lease(self, lease: Lease) -> None:
        self._leases.remove(lease)
        if lease.subscriber is not None and (subscriber := self._subscribers.get(lease.subscriber)):
            subscriber.unassign(lease)

    def _forget(self, subscriber: Subscriber) -> None:
        del self._subscribers[subscriber.spec.id]
        if lane := self._lanes.get(subscriber.spec.selection):
            del lane.subscribers[subscriber.spec.id]

    def _end(self, subscriber: Subscriber, cause: Cause, text: str = "") -> End:
        self._forget(subscriber)
        self._give_back(list(subscriber.unsent.values()))
        return End(subscriber.spec.id, cause, text)

    def _end_all(self, now_ns: int, cause: Cause, text: str) -> Effects:
        self._draining = True
        effects: Effects = [self._end(each, cause, text) for each in list(self._subscribers.values())]
        keep = self._policy.on_disconnect is OnDisconnect.KEEP
        self._give_back([each for each in list(self._leases) if not (keep and each.sent)])
        return effects + self._advance(now_ns)
