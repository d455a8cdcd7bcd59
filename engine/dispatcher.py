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

`_advance` is the one place that decides what to do next; happenings only record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine.backoff import wait_ns
from engine.effects import (
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
from engine.leases import Lease, Leases
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
from engine.pacing import Limits, Pause, Scanning
from engine.subscribers import Subscriber, Subscription, share
from engine.window import Window

Effects = list[Effect]


@dataclass(slots=True)
class _Attempt:
    """A claim under way, and its answer while an earlier claim's is still awaited."""

    wanted: tuple[Wanted, ...]
    answer: tuple[Claimed, ...] | None = None


@dataclass(slots=True)
class _Returning:
    """Claims to give back: those waiting, and those being given back now."""

    waiting: list[Return] = field(default_factory=list)
    under_way: tuple[Return, ...] = ()


class Dispatcher:
    """Who gets which message of one table, and when."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now_ns: int) -> None:
        self._policy = policy
        self._limits = limits
        self._jitter = jitter
        self._subscribers: dict[int, Subscriber] = {}
        self._window = Window()
        self._leases = Leases()
        self._scanning = Scanning(limit=limits.scan_min)
        self._expected = Expected(limits.window_max)
        self._attempts: dict[int, _Attempt] = {}
        self._fetches: dict[int, list[Lease]] = {}
        self._returning = _Returning()
        self._doubted: dict[Key, None] = {}
        self._looking_up: tuple[Key, ...] = ()
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
            f"<Dispatcher subscribers={len(self._subscribers)} ready={self._window.ready} window={len(self._window)}"
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
        return self._window.ready

    @property
    def subscribers(self) -> Mapping[int, Subscriber]:
        """By id; for reading."""
        return self._subscribers

    @property
    def settled_down(self) -> bool:
        """Whether nothing is under way or waiting to be given back: a drained dispatcher may be dropped."""
        under_way = self._attempts or self._fetches or self._scanning.running or self._purging or self._looking_up
        return not (under_way or self._returning.waiting or self._returning.under_way)

    @property
    def wake_at_ns(self) -> int | None:
        """When to call `tick` if nothing else happens before; perhaps already past by the caller's clock."""
        times = [self._leases.next_deadline_ns]
        if not self._purging and not self._draining:
            times.append(self._purge_at_ns)
        if self._returning.waiting:
            times.append(self._release_pause.until_ns)
        if self._subscribers and not self._draining:
            scanning = self._scanning
            times += [each.patient_until_ns for each in self._subscribers.values() if not each.given]
            if self._hungry():
                times += [self._window.next_ns, scanning.again_ns, self._expected.again_ns]
                times += [scanning.at_ns + self._policy.poller_interval_ns, self._failure_pause.until_ns]
                times += [scanning.at_ns + self._limits.rescan_pause_ns] if scanning.dirty else []
            if self._doubted or self._starved():
                times.append(self._lookup_pause.until_ns)
        return min((each for each in times if each is not None and each > self._now_ns), default=None)

    # Happenings: clients.

    def subscribe(self, now_ns: int, spec: Subscription) -> Effects:
        """A client opened a stream."""
        if self._draining:
            return [End(spec.id, Cause.DRAINING)]
        self._subscribers[spec.id] = Subscriber(
            spec,
            since_scan=self._scanning.started + 1,
            patient_until_ns=None if spec.patience_ns is None else now_ns + spec.patience_ns,
            remaining=spec.limit,
        )
        return self._advance(now_ns)

    def unsubscribe(self, now_ns: int, subscriber_id: int) -> Effects:
        """A stream was ended by its client; what it was sent stays with the client's connection."""
        if subscriber := self._subscribers.pop(subscriber_id, None):
            self._give_back(list(subscriber.unsent.values()))
        return self._advance(now_ns)

    def disconnected(self, now_ns: int, holder: int) -> Effects:
        """A client is gone: all that it holds is released, or kept until its deadline, as the policy says."""
        for each in [each for each in self._subscribers.values() if each.spec.holder == holder]:
            del self._subscribers[each.spec.id]
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

    def woken(self, now_ns: int) -> Effects:
        """Somebody committed something that touched the table."""
        self._scanning.dirty = True
        return self._advance(now_ns)

    def settled(self, now_ns: int, keys: Iterable[Key]) -> Effects:
        """These were acknowledged, for certain."""
        for key in keys:
            if lease := self._leases.get(key):
                self._end_lease(lease)
            self._window.forget((key,))
        return self._advance(now_ns)

    def doubted(self, now_ns: int, keys: Iterable[Key] | None) -> Effects:
        """These (None: any) may have been acknowledged or changed: worth a lookup at once."""
        doubted = (each.key for each in self._leases) if keys is None else keys
        self._doubted.update((key, None) for key in doubted if self._leases.get(key))
        self._lookup_pause.reset()
        return self._advance(now_ns)

    def noticed(self, now_ns: int, seen: Sequence[Entry] = (), over: Sequence[Key] = ()) -> Effects:
        """The server's log tells what messages became, or, with none named, that any may have changed.

        The order is that of the log: each later change is told later. Our own claims and releases are in it too.
        """
        if not seen and not over:
            self._expected.anything(now_ns)
            self._scanning.dirty = True
            return self.doubted(now_ns, None)
        ours = {each.key for attempt in self._attempts.values() for each in attempt.wanted}
        ours.update(each.key for each in self._returning.under_way)
        for entry in seen:
            if lease := self._leases.get(entry.key):
                self._compare(lease, entry)
            elif entry.key not in ours and not self._window.knows(entry):
                self._sight(entry, now_ns)
        self._expected.met(over)
        return self.settled(now_ns, over)

    def reconfigure(self, now_ns: int, policy: Policy) -> Effects:
        """The table's comment changed."""
        self._policy = policy
        self._scanning.dirty = True
        self._purge_at_ns = min(self._purge_at_ns, now_ns + self._purge_pause_ns())
        return self._advance(now_ns)

    def tick(self, now_ns: int) -> Effects:
        """Time passed."""
        return self._advance(now_ns)

    # Happenings: answers of the database.

    def scanned(self, now_ns: int, result: ScanResult) -> Effects:
        """A scan came back."""
        scanning = self._scanning
        scanning.completed = scanning.started
        self._failure_pause.reset()
        self._expected.met(each.key for each in result.entries)
        claiming = {each.key for attempt in self._attempts.values() for each in attempt.wanted}
        self._window.scanned(result, now_ns, lambda entry: entry.key in claiming or self._outdated(entry))
        self._adapt_scan_limit()
        return self._advance(now_ns)

    def scan_failed(self, now_ns: int, text: str, *, lasting: bool = False) -> Effects:
        """A scan could not be made; `lasting`: and cannot be before somebody changes the table."""
        self._scanning.completed = self._scanning.started
        self._scanning.dirty = True
        self._failure_pause.lengthen(now_ns)
        effects: Effects = []
        for each in list(self._subscribers.values()):
            impatient = each.patient_until_ns is not None and each.patient_until_ns <= now_ns and not each.unsent
            if lasting or impatient:
                effects.append(self._end(each, Cause.UNUSABLE, text))
        return effects + self._advance(now_ns)

    def claimed(self, now_ns: int, claim_id: int, claims: Sequence[Claimed]) -> Effects:
        """A claim is committed, with these rows."""
        self._attempts[claim_id].answer = tuple(claims)
        while (attempt := next(iter(self._attempts.values()), None)) and attempt.answer is not None:
            del self._attempts[next(iter(self._attempts))]
            self._take_claims(now_ns, attempt.wanted, attempt.answer)
        return self._advance(now_ns)

    def claim_failed(self, now_ns: int, claim_id: int) -> Effects:
        """A claim failed, or its answer was lost. If it was committed all the same, its rows come due again
        by themselves."""
        self._scanning.dirty = True
        self._failure_pause.lengthen(now_ns)
        return self.claimed(now_ns, claim_id, ())

    def fetched(self, now_ns: int, fetch_id: int, result: FetchResult) -> Effects:
        """Rows came: deliver those whose lease still stands; those in neither part are over."""
        self._expire(now_ns)
        parcels: dict[int, list[bytes]] = {}
        stopped: set[int] = set()
        for lease, subscriber in self._end_fetch(fetch_id):
            if lease.key in result.unread or subscriber.spec.id in stopped:
                stopped.add(subscriber.spec.id)
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
        over = 0
        for key in self._looking_up:
            lease, entry = self._leases.get(key), found.get(key)
            if lease is None:
                continue
            if entry is not None and (entry.epoch, entry.due_ns) == (lease.epoch, lease.deadline_ns):
                self._leases.postpone(lease)
                continue
            over += 1
            self._end_lease(lease)
            self._scanning.dirty |= entry is not None
        self._looking_up = ()
        if over:
            self._lookup_pause.reset()
        else:
            self._lookup_pause.lengthen(now_ns)
        return self._advance(now_ns)

    def lookup_failed(self, now_ns: int) -> Effects:
        """The lookup could not be made; starvation asks for another."""
        self._looking_up = ()
        self._lookup_pause.lengthen(now_ns)
        return self._advance(now_ns)

    def released(self, now_ns: int) -> Effects:
        """What was given back is anybody's now."""
        self._returning.under_way = ()
        self._release_pause.reset()
        self._scanning.dirty = True
        return self._advance(now_ns)

    def release_failed(self, now_ns: int) -> Effects:
        """Giving back failed, or its answer was lost; it is guarded, so it can be tried again while it matters."""
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

    # Decisions.

    def _advance(self, now_ns: int) -> Effects:
        """Everything that follows from the state as it is now."""
        self._now_ns = now_ns
        self._expire(now_ns)
        self._window.promote(now_ns)
        self._scanning.dirty |= self._expected.due(now_ns)
        effects = self._release(now_ns)
        effects += self._finish(now_ns)
        if not self._draining:
            effects += self._claim(now_ns)
            effects += self._scan(now_ns)
            effects += self._fetch()
            effects += self._lookup(now_ns)
            effects += self._purge(now_ns)
        return effects

    def _expire(self, now_ns: int) -> None:
        for lease in self._leases.expired(now_ns):
            self._end_lease(lease)
            self._scanning.dirty = True
        self._returning.waiting = [each for each in self._returning.waiting if each.deadline_ns > now_ns]

    def _release(self, now_ns: int) -> Effects:
        returning = self._returning
        if returning.under_way or not returning.waiting or now_ns < self._release_pause.until_ns:
            return []
        returning.under_way = tuple(returning.waiting[: self._limits.claim_max])
        del returning.waiting[: self._limits.claim_max]
        return [Release(returning.under_way)]

    def _finish(self, now_ns: int) -> Effects:
        over = [each for each in self._subscribers.values() if self._is_over(each, now_ns)]
        return [self._end(each, Cause.COMPLETE) for each in over]

    def _is_over(self, subscriber: Subscriber, now_ns: int) -> bool:
        """Whether a stream has had all that it asked for, or, bounded, all that there is to have now."""
        if subscriber.finished:
            return True
        if subscriber.patient_until_ns is None or subscriber.unsent or self._attempts:
            return False
        if not subscriber.given and now_ns < subscriber.patient_until_ns:
            return False
        nothing_to_give = self._window.ready == 0 and not self._window.more
        looked = self._scanning.completed >= subscriber.since_scan
        return (nothing_to_give and looked) or subscriber.starved or self._capacity() <= 0

    def _claim(self, now_ns: int) -> Effects:
        count = self._claimable()
        if count <= 0 or len(self._attempts) >= self._limits.claims_max or now_ns < self._failure_pause.until_ns:
            return []
        if self._attempts and count < self._policy.batch_size:
            return []  # Credit comes in drops while a claim is under way: gather it into one statement.
        wanted = tuple(
            Wanted(entry.key, entry.epoch, wait_ns(self._policy, entry.epoch, self._jitter()))
            for entry in self._window.take(count)
        )
        claim_id = self._next_id()
        self._attempts[claim_id] = _Attempt(wanted)
        return [Claim(claim_id, wanted)]

    def _claimable(self) -> int:
        batch = self._policy.batch_size
        credit = sum(min(each.credit(batch), batch) for each in self._subscribers.values()) - self._reserved()
        return min(credit, self._capacity(), self._window.ready, self._limits.claim_max)

    def _scan(self, now_ns: int) -> Effects:
        scanning = self._scanning
        if scanning.running or not self._hungry() or now_ns < self._failure_pause.until_ns:
            return []
        if not self._scan_is_due(now_ns):
            return []
        scanning.started += 1
        scanning.at_ns = now_ns
        scanning.dirty = False
        scanning.again_ns = None
        # Rows that cannot be offered again yet must not crowd out those that can.
        return [Scan(scanning.limit + self._window.missed + self._reserved())]

    def _scan_is_due(self, now_ns: int) -> bool:
        scanning, window = self._scanning, self._window
        if window.ready <= scanning.limit // 4:
            if scanning.dirty or window.more or self._unsure():
                return True
            if window.horizon_ns is not None and window.horizon_ns <= now_ns:
                return True
        if scanning.dirty and now_ns >= scanning.at_ns + self._limits.rescan_pause_ns:
            return True
        if scanning.again_ns is not None and scanning.again_ns <= now_ns:
            return True
        return now_ns >= scanning.at_ns + self._policy.poller_interval_ns

    def _fetch(self) -> Effects:
        batches: dict[RowFormat, list[Lease]] = {}
        for each in self._subscribers.values():
            if not each.unsent or each.fetching or each.paused:
                continue
            batch = batches.setdefault(each.spec.row_format, [])
            room = self._limits.fetch_max - len(batch)
            if room > 0:
                batch.extend(islice(each.unsent.values(), room))
                each.fetching = True
        effects: Effects = []
        for row_format, leases in batches.items():
            fetch_id = self._next_id()
            self._fetches[fetch_id] = leases
            effects.append(Fetch(fetch_id, row_format, {each.key: each.epoch for each in leases}))
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
        self._looking_up = tuple(key for key in keys if self._leases.get(key))
        return [Lookup(self._looking_up)] if self._looking_up else []

    def _purge(self, now_ns: int) -> Effects:
        if self._purging or now_ns < self._purge_at_ns:
            return []
        self._purging = True
        return [Purge(self._policy.purge_after_ns, self._limits.purge_rows)]

    # Parts of decisions.

    def _reserved(self) -> int:
        return sum(len(each.wanted) for each in self._attempts.values())

    def _capacity(self) -> int:
        """How many more messages the table may have in flight."""
        most = self._policy.cache_size
        if self._policy.max_in_flight is not None:
            most = min(most, self._policy.max_in_flight)
        return most - len(self._leases) - self._reserved()

    def _hungry(self) -> bool:
        """Whether somebody could be given a message."""
        batch = self._policy.batch_size
        return self._capacity() > 0 and any(each.credit(batch) for each in self._subscribers.values())

    def _starved(self) -> bool:
        """Whether somebody waits for acknowledgements."""
        if not len(self._leases):
            return False
        full = self._capacity() <= 0
        return any((full or each.starved) and not each.paused for each in self._subscribers.values())

    def _unsure(self) -> bool:
        """Whether a bounded stream waits for a scan that began after it did."""
        completed = self._scanning.completed
        return any(
            each.patient_until_ns is not None and completed < each.since_scan for each in self._subscribers.values()
        )

    def _compare(self, lease: Lease, entry: Entry) -> None:
        """The log shows a message that is out: as we claimed it, as it was before, or changed by somebody else."""
        claimed = (entry.epoch, entry.due_ns) == (lease.epoch, lease.deadline_ns)
        if not claimed and entry.epoch >= lease.epoch:
            self._doubted[entry.key] = None
            self._lookup_pause.reset()

    def _sight(self, entry: Entry, now_ns: int) -> None:
        """The log shows a message that we did not know so."""
        if entry.due_ns > now_ns:
            self._expected.met((entry.key,))
            self._window.await_due(entry, self._limits.window_max)
        else:
            self._expected.add(now_ns, entry.key)
            self._scanning.dirty = True

    def _outdated(self, entry: Entry) -> bool:
        """Whether a scan shows a row as it was before our own claim of it."""
        lease = self._leases.get(entry.key)
        return lease is not None and entry.epoch < lease.epoch

    def _adapt_scan_limit(self) -> None:
        """Read further ahead while a backlog is being worked off, and little when most rows are not due."""
        scanning, window = self._scanning, self._window
        if window.more:
            scanning.limit = min(2 * scanning.limit, self._limits.window_max, self._policy.cache_size)
        elif window.ready < scanning.limit // 4:
            scanning.limit //= 2
        scanning.limit = max(scanning.limit, self._limits.scan_min)

    def _take_claims(self, now_ns: int, wanted: Sequence[Wanted], claims: Sequence[Claimed]) -> None:
        """Make leases of committed claims, and deal them out."""
        taken = {each.key for each in claims}
        self._window.claimed(taken)
        if missed := [each.key for each in wanted if each.key not in taken]:
            again_ns = self._window.miss(missed, now_ns)
            self._scanning.again_ns = min(again_ns, self._scanning.again_ns or again_ns)
        leases = [Lease.of(each) for each in claims]
        leases.sort(key=lambda each: (each.priority, each.due_ns, each.key))
        for lease in leases:
            if before := self._leases.get(lease.key):
                self._end_lease(before)
            self._leases.add(lease)
        willing = () if self._draining else self._subscribers.values()
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

    def _end_lease(self, lease: Lease) -> None:
        self._leases.remove(lease)
        if lease.subscriber is not None and (subscriber := self._subscribers.get(lease.subscriber)):
            subscriber.unassign(lease)

    def _end(self, subscriber: Subscriber, cause: Cause, text: str = "") -> End:
        del self._subscribers[subscriber.spec.id]
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
