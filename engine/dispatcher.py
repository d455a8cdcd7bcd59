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

`_advance` is the one place that decides what to do next; happenings only record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine.backoff import wait_ns
from engine.effects import (
    Bury,
    Cause,
    Claim,
    Deliver,
    Effect,
    End,
    Fetch,
    Lookup,
    Purge,
    Release,
    Scan,
)
from engine.expected import Expected
from engine.lanes import Lane, Lanes, TooManyLanes, pick
from engine.leases import Lease, Leases
from engine.model import (
    Claimed,
    Entry,
    FetchResult,
    Key,
    OnDisconnect,
    Policy,
    Range,
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


@dataclass(slots=True)
class _Returning:
    """Claims to give back: those waiting, and those being given back now."""

    waiting: list[Return] = field(default_factory=list)
    under_way: tuple[Return, ...] = ()


@dataclass(slots=True)
class _Scan:
    """A scan under way: for which lane, and in which part of the table."""

    lane: Lane
    part: Range | None


@dataclass(slots=True)
class _Burying:
    """Dead messages: those found, and those being moved away."""

    waiting: dict[Key, Entry] = field(default_factory=dict)
    under_way: dict[Key, Entry] = field(default_factory=dict)


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
        self._expected = Expected(limits.window_max)
        self._scans: dict[int, _Scan] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._burying = _Burying()
        self._fetches: dict[int, list[Lease]] = {}
        self._returning = _Returning()
        self._doubted: dict[Key, None] = {}
        self._looking_up: dict[Key, Lease | None] = {}
        self._lookup_pause = Pause(limits.lookup_pause_min_ns, limits.lookup_pause_max_ns)
        self._failure_pause = Pause(limits.failure_pause_min_ns, limits.failure_pause_max_ns)
        self._release_pause = Pause(limits.failure_pause_min_ns, limits.failure_pause_max_ns)
        self._now_ns = now_ns
        """The time of the last decisions: what came due after it is still to be decided."""
        self._purge_at_ns = now_ns
        self._purging = False
        self._dealt = 0
        self._last_id = 0
        self._draining = False

    def __repr__(self) -> str:
        return (
            f"<Dispatcher subscribers={len(self._subscribers)} ready={self.ready} lanes={len(self._lanes)}"
            f" claims={len(self._attempts)} in_flight={len(self._leases)}"
            f" returning={len(self._returning.waiting) + len(self._returning.under_way)}>"
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
        under_way = self._attempts or self._fetches or self._scans or self._purging or self._looking_up
        burying = self._burying.under_way
        return not (under_way or burying or self._returning.waiting or self._returning.under_way)

    @property
    def wake_at_ns(self) -> int | None:
        """When to call `tick` if nothing else happens before; perhaps already past by the caller's clock."""
        times = [self._leases.next_deadline_ns]
        if not self._purging and not self._draining:
            times.append(self._purge_at_ns)
        if self._returning.waiting:
            times.append(self._release_pause.until_ns)
        if self._burying.waiting:
            times.append(self._failure_pause.until_ns)
        if self._subscribers and not self._draining:
            times.append(self._expected.again_ns)
            for lane in self._lanes:
                times += lane.patient_until_ns
                if self._hungry(lane):
                    times += self._lane_times(lane)
                    times.append(self._failure_pause.until_ns)
            if self._doubted or self._starved():
                times.append(self._lookup_pause.until_ns)
        return min((each for each in times if each is not None and each > self._now_ns), default=None)

    def _lane_times(self, lane: Lane) -> list[int | None]:
        """When a lane that could be given messages may have some, or is to look."""
        scanning = lane.scanning
        times = [lane.window.next_ns, scanning.again_ns, scanning.full_at_ns + self._policy.poller_interval_ns]
        if scanning.dirty:
            times.append(scanning.at_ns + self._limits.rescan_pause_ns)
        if lane.window.ready:
            times.append(self._pace.ready_ns())
        return times

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
        self._lanes.stir()
        if anywhere:
            self._lookup_pause.reset()  # It may have been an acknowledgement.
            self._lanes.reset()
        return self._advance(now_ns)

    def settled(self, now_ns: int, keys: Iterable[Key]) -> Effects:
        """These were acknowledged, or are gone, for certain."""
        keys = tuple(keys)
        for key in keys:
            self._doubted.pop(key, None)
            if lease := self._leases.get(key):
                self._end_lease(lease)
        self._lanes.forget(keys)
        return self._advance(now_ns)

    def doubted(self, now_ns: int, keys: Iterable[Key] | None, *, extended: bool = False) -> Effects:
        """These (None: any) may have been acknowledged, given back or otherwise changed: worth a lookup at once.
        `extended`: or their holder may have been given more time."""
        doubted = (each.key for each in self._leases) if keys is None else keys
        for key in doubted:
            if lease := self._leases.get(key):
                self._doubted[key] = None
                lease.extended |= extended
                lease.doubted |= keys is not None  # Any: too many to hold them all back.
            elif self._subscribers and len(self._doubted) < self._limits.doubted_max:
                self._doubted[key] = None  # Another proxy's, perhaps.
            else:
                self._lanes.stir()
                self._lanes.reset()
        self._lookup_pause.reset()
        return self._advance(now_ns)

    def noticed(self, now_ns: int, seen: Sequence[Entry] = (), over: Sequence[Key] = ()) -> Effects:
        """The server's log tells what messages became, or, with none named, that any may have changed.

        The order is that of the log: each later change is told later. Our own claims and releases are in it too.
        """
        if not seen and not over:
            self._expected.anything(now_ns)
            self._lanes.stir()
            self._lanes.reset()
            return self.doubted(now_ns, None)
        ours = self._claiming().union(each.key for each in self._returning.under_way)
        for entry in seen:
            if lease := self._leases.get(entry.key):
                self._compare(lease, entry)
            elif entry.key not in ours and not self._lanes.main.window.knows(entry):
                self._sight(entry, now_ns)
        self._expected.met(over)
        sure = []
        for key in over:
            lease = self._leases.get(key)
            if lease is None or lease.logged:
                sure.append(key)
            else:
                self._doubt(lease)
        return self.settled(now_ns, sure)

    def _see(self, entry: Entry, now_ns: int) -> None:
        """A row that is nobody's here: whoever may want it looks when it is due."""
        for lane in self._lanes:
            if lane.cursor is not None:
                lane.cursor.lower(entry)
            elif not lane.selection.partitions and self._covers(lane, entry):
                lane.window.put(entry, now_ns)
                continue
            if entry.due_ns <= now_ns:
                lane.scanning.dirty = True
            else:
                lane.look_again(entry.due_ns)

    def _look_for(self, entry: Entry, now_ns: int) -> None:
        """A row was so when it was looked up, and may have become anything since."""
        self._lanes.lower(entry)
        for lane in self._lanes:
            if entry.due_ns <= now_ns:
                lane.scanning.dirty = True
            else:
                lane.look_again(entry.due_ns)

    def _covers(self, lane: Lane, entry: Entry) -> bool:
        """Whether the lane's window holds all that is due as soon as this, and has room."""
        window = lane.window
        whole = not window.more and (window.horizon_ns is None or entry.due_ns < window.horizon_ns)
        return whole and len(window) < lane.scanning.limit and not lane.scanning.running

    def reconfigure(self, now_ns: int, policy: Policy) -> Effects:
        """The table's comment changed."""
        self._policy = policy
        self._pace.change(policy.max_rate, now_ns)
        self._lanes.stir()
        self._purge_at_ns = min(self._purge_at_ns, now_ns + self._purge_pause_ns())
        return self._advance(now_ns)

    def tick(self, now_ns: int) -> Effects:
        """Time passed."""
        return self._advance(now_ns)

    # Happenings: answers of the database.

    def scanned(self, now_ns: int, scan_id: int, result: ScanResult) -> Effects:
        """A scan came back."""
        scan = self._scans.pop(scan_id)
        lane, claiming = scan.lane, self._claiming()
        lane.scanning.returned(now_ns, self._limits.stale_ns)
        self._expected.met(each.key for each in result.entries)
        self._failure_pause.reset()

        def unwanted(entry: Entry) -> bool:
            if entry.key not in claiming:
                return self._outdated(entry, scan_id)
            if lane.cursor is not None:
                lane.cursor.lower(entry)  # The claim may be of an older state of the row, and miss.
            return True

        if scan.part is None or not scan.part.after:
            lane.window.scanned(result, now_ns, unwanted)
        elif len(lane.window) <= 2 * lane.scanning.limit:
            lane.window.joined(result, now_ns, unwanted)
        else:
            return self._advance(now_ns)  # No room: what was found is still there at the next look.
        if lane.cursor is not None:
            lane.cursor.advance(result.reached, result.greatest_id, now_ns)
        most = min(self._limits.window_max // len(self._lanes), self._policy.cache_size)
        lane.adapt_scan_limit(self._limits.scan_min, most)
        return self._advance(now_ns)

    def scan_failed(self, now_ns: int, scan_id: int, text: str, *, lasting: bool = False) -> Effects:
        """A scan could not be made; `lasting`: and cannot be before somebody changes the table."""
        lane = self._scans.pop(scan_id).lane
        lane.scanning.returned(now_ns, self._limits.stale_ns)
        lane.scanning.dirty = True
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
            self._lanes.lower(entry)
        self._lanes.stir()
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
                self._doubt(lease)
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
        over, claiming = 0, self._claiming()
        for key, asked_about in self._looking_up.items():
            lease, entry = self._leases.get(key), found.get(key)
            if lease is None:
                if entry is not None and key not in claiming:
                    self._look_for(entry, now_ns)
                continue
            if lease is not asked_about:  # The row was deleted, and came again: this may be older than our claim.
                continue
            if entry is not None and self._is_still_held(lease, entry):
                self._leases.postpone(lease, entry.due_ns)
                lease.doubted &= key in self._doubted  # As above.
                continue
            over += 1
            self._end_lease(lease)
            if entry is not None:
                self._see(entry, now_ns)
        self._looking_up = {}
        if over:
            self._lookup_pause.reset()
        else:
            self._lookup_pause.lengthen(now_ns)
        return self._advance(now_ns)

    def lookup_failed(self, now_ns: int) -> Effects:
        """The lookup could not be made; what was doubted still is."""
        self._doubted = dict.fromkeys([*self._looking_up, *self._doubted])
        self._looking_up = {}
        self._lookup_pause.lengthen(now_ns)
        return self._advance(now_ns)

    def released(self, now_ns: int) -> Effects:
        """What was given back is anybody's now."""
        self._look_where_it_was()
        self._returning.under_way = ()
        self._release_pause.reset()
        return self._advance(now_ns)

    def release_failed(self, now_ns: int) -> Effects:
        """Giving back failed, or its answer was lost; it is guarded, so it can be tried again while it matters."""
        self._look_where_it_was()
        self._returning.waiting += self._returning.under_way
        self._returning.under_way = ()
        self._release_pause.lengthen(now_ns)
        return self._advance(now_ns)

    def purged(self, now_ns: int, count: int) -> Effects:
        """Old acknowledged rows are gone; a full batch means that there are more."""
        self._purging = False
        self._purge_at_ns = now_ns if count >= self._limits.purge_rows else now_ns + self._purge_pause_ns()
        return self._advance(now_ns)

    def purge_failed(self, now_ns: int) -> Effects:
        """The purge could not be made; it can wait."""
        return self.purged(now_ns, 0)

    def buried(self, now_ns: int, moved: Iterable[Key]) -> Effects:
        """Dead messages were moved away; the others are locked by somebody, changed, or left alone for a while."""
        under_way, self._burying.under_way = self._burying.under_way, {}
        gone = set(moved)
        self._missed([entry for entry in under_way.values() if entry.key not in gone], now_ns)
        self._lanes.stir()
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
        for lane in self._lanes:
            lane.window.promote(now_ns)
        if self._expected.due(now_ns):
            self._lanes.stir()
            if self._expected.slow:
                self._lanes.reset()
        effects = self._release(now_ns)
        effects += self._finish(now_ns)
        for lane in self._lanes:
            lane.survey(self._policy.batch_size)
        if not self._draining:
            effects += self._claim(now_ns)
            effects += self._bury(now_ns)
            effects += self._scan(now_ns)
            effects += self._fetch()
            effects += self._lookup(now_ns)
            effects += self._purge(now_ns)
        return effects

    def _expire(self, now_ns: int) -> None:
        for lease in self._leases.expired(now_ns):
            self._end_lease(lease)
            entry = Entry(lease.key, lease.epoch, lease.priority, lease.deadline_ns)
            if self._is_dead(entry):
                self._burying.waiting[entry.key] = entry
            self._lanes.lower(entry)
            self._lanes.stir()
        self._returning.waiting = [each for each in self._returning.waiting if each.deadline_ns > now_ns]

    def _release(self, now_ns: int) -> Effects:
        returning = self._returning
        if returning.under_way or not returning.waiting or now_ns < self._release_pause.until_ns:
            return []
        returning.under_way = tuple(returning.waiting[: self._limits.claim_max])
        del returning.waiting[: self._limits.claim_max]
        return [Release(returning.under_way)]

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
        count = self._claimable(sum(most for _, most in wishes), now_ns)
        if count <= 0 or len(self._attempts) >= self._limits.claims_max or now_ns < self._failure_pause.until_ns:
            return []
        if self._attempts and count < self._policy.batch_size:
            return []  # Credit comes in drops while a claim is under way: gather it into one statement.
        picked: dict[Key, tuple[Lane, Entry]] = {}
        for lane, entry in pick(wishes, count):
            if self._is_dead(entry):
                self._burying.waiting[entry.key] = entry
            else:
                picked[entry.key] = lane, entry
                lane.reserved += 1
        if not picked:
            return []
        self._pace.spend(len(picked))
        claim_id = self._next_id()
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
        count = min(wished, self._capacity(), self._limits.claim_max)
        return count if allowance is None else min(count, allowance)

    def _bury(self, now_ns: int) -> Effects:
        burying = self._burying
        if burying.under_way or not burying.waiting or now_ns < self._failure_pause.until_ns:
            return []
        dead = list(islice(burying.waiting.values(), self._limits.claim_max))
        for entry in dead:
            del burying.waiting[entry.key]
        burying.under_way = {entry.key: entry for entry in dead}
        retry_ns = self._limits.bury_retry_ns
        return [Bury(tuple(Wanted(entry.key, entry.epoch, retry_ns) for entry in dead))]

    def _scan(self, now_ns: int) -> Effects:
        if now_ns < self._failure_pause.until_ns:
            return []
        due = [each for each in self._lanes if self._hungry(each) and self._scan_is_due(each, now_ns)]
        due.sort(key=lambda each: each.scanning.at_ns)
        return [self._begin_scan(lane, now_ns) for lane in due[: self._limits.scans_max - len(self._scans)]]

    def _begin_scan(self, lane: Lane, now_ns: int) -> Scan:
        scanning, part = lane.scanning, None
        if lane.cursor is not None:
            if now_ns >= scanning.full_at_ns + self._policy.poller_interval_ns:
                lane.cursor.reset()
            part = Range(lane.cursor.begin(now_ns), now_ns + self._limits.ahead_ns)
        if part is None or not part.after:
            scanning.full_at_ns = now_ns
        scanning.started += 1
        scanning.at_ns = now_ns
        scanning.dirty = False
        scanning.again_ns = None
        scan_id = self._next_id()
        self._scans[scan_id] = _Scan(lane, part)
        # Rows that cannot be offered again yet must not crowd out those that can.
        limit = scanning.limit + lane.window.missed + self._reserved() + len(self._burying.waiting)
        return Scan(scan_id, lane.selection, limit, part)

    def _scan_is_due(self, lane: Lane, now_ns: int) -> bool:
        scanning, window = lane.scanning, lane.window
        if scanning.running:
            return False
        if window.ready <= scanning.limit // 4:
            if scanning.dirty or window.more or lane.unsure:
                return True
            if window.horizon_ns is not None and window.horizon_ns <= now_ns:
                return True
        if scanning.dirty and now_ns >= scanning.at_ns + self._limits.rescan_pause_ns:
            return True
        if scanning.again_ns is not None and scanning.again_ns <= now_ns:
            return True
        return now_ns >= scanning.full_at_ns + self._policy.poller_interval_ns

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
            fetch_id = self._next_id()
            self._fetches[fetch_id] = leases
            effects.append(Fetch(fetch_id, row_format, {each.key: each.delivery for each in leases}))
        return effects

    def _lookup(self, now_ns: int) -> Effects:
        if self._looking_up or now_ns < self._lookup_pause.until_ns:
            return []
        if not self._doubted and self._starved():
            sent = (each.key for each in self._leases if each.sent)
            self._doubted.update((key, None) for key in islice(sent, self._limits.lookup_max))
        keys = tuple(islice(self._doubted, self._limits.lookup_max))
        for key in keys:
            del self._doubted[key]
        self._looking_up = {key: self._leases.get(key) for key in keys}
        return [Lookup(keys)] if keys else []

    def _purge(self, now_ns: int) -> Effects:
        if self._purging or now_ns < self._purge_at_ns:
            return []
        self._purging = True
        return [Purge(self._policy.purge_after_ns, self._limits.purge_rows)]

    # Parts of decisions.

    def _reserved(self) -> int:
        return sum(len(each.picked) for each in self._attempts.values())

    def _claiming(self) -> set[Key]:
        """The messages that are being claimed or buried."""
        keys = {key for attempt in self._attempts.values() for key in attempt.picked}
        return keys.union(self._burying.waiting, self._burying.under_way)

    def _capacity(self) -> int:
        """How many more messages the table may have in flight."""
        most = self._policy.cache_size
        if self._policy.max_in_flight is not None:
            most = min(most, self._policy.max_in_flight)
        return most - len(self._leases) - self._reserved()

    def _hungry(self, lane: Lane) -> bool:
        """Whether somebody in the lane could be given a message."""
        return lane.credit > 0 and not self._policy.paused and self._capacity() > 0

    def _starved(self) -> bool:
        """Whether somebody waits for acknowledgements."""
        if not len(self._leases):
            return False
        full = self._capacity() <= 0
        return any(each.starved or (full and each.awake) for each in self._lanes)

    def _is_dead(self, entry: Entry) -> bool:
        """Whether a message has been delivered as often as it may be."""
        return 0 < self._policy.max_attempts <= entry.epoch and self._policy.dead_letter is not None

    def _is_still_held(self, lease: Lease, entry: Entry) -> bool:
        """Whether a row shows the delivery that we know of, perhaps with more time than we know of."""
        if entry.epoch != lease.epoch:
            return False
        extended = lease.extended
        lease.extended &= entry.key in self._doubted  # Then this answer may be older than the reason to ask.
        return entry.due_ns == lease.deadline_ns or (extended and entry.due_ns > self._now_ns)

    def _compare(self, lease: Lease, entry: Entry) -> None:
        """The log shows a message that is out: as we claimed it, as it was before, or changed by somebody else."""
        if (entry.epoch, entry.due_ns) == (lease.epoch, lease.deadline_ns):
            lease.logged = True
        elif lease.logged or entry.epoch >= lease.epoch:
            self._doubt(lease)

    def _doubt(self, lease: Lease) -> None:
        """Somebody may have changed the message."""
        lease.doubted = True
        self._doubted[lease.key] = None
        self._lookup_pause.reset()

    def _sight(self, entry: Entry, now_ns: int) -> None:
        """The log shows a message that we did not know so; others may not see it yet."""
        due = entry.due_ns <= now_ns
        if due:
            self._expected.add(now_ns, entry.key)
            self._lanes.stir()
        else:
            self._expected.met((entry.key,))
        self._lanes.lower(entry)
        for lane in self._lanes:
            if lane.cursor is None and not (due or lane.selection.partitions):
                lane.window.await_due(entry, self._limits.window_max)
            elif not due:
                lane.look_again(entry.due_ns)

    def _outdated(self, entry: Entry, scan_id: int) -> bool:
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
            self._missed([entry for each, entry in missed if each is lane], now_ns, lane)
            lane.window.claimed(taken)
        leases = [Lease.of(each) for each in claims]
        leases.sort(key=lambda each: (each.priority, each.due_ns, each.key))
        for lease in leases:
            if before := self._leases.get(lease.key):
                self._end_lease(before)
            lease.since = self._next_id()
            self._leases.add(lease)
            by_lane[picked[lease.key][0]].append(lease)
        for lane, each in by_lane.items():
            self._deal(lane, each)

    def _missed(self, entries: Sequence[Entry], now_ns: int, of: Lane | None = None) -> None:
        """Rows that looked due could not be had: left alone for a moment, and looked for again, by all."""
        if not entries:
            return
        for lane in self._lanes:
            keep = lane is of and lane.cursor is not None
            lane.look_again(lane.window.miss(entries, now_ns, keep=keep))
        for entry in entries:
            self._lanes.lower(entry, but=of)

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
            self._returning.waiting.append(lease.returned())
            self._end_lease(lease)
            if not lease.sent:
                self._pace.spend(-1)

    def _look_where_it_was(self) -> None:
        for each in self._returning.under_way:
            if not each.sent:
                self._lanes.lower(each.entry)
        self._lanes.stir()

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

    def _purge_pause_ns(self) -> int:
        tenth = self._policy.purge_after_ns // 10
        return min(max(tenth, self._limits.purge_pause_min_ns), self._limits.purge_pause_max_ns)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
