"""A stage on which a dispatcher plays against the in-memory store, one event at a time, in any order.

Each effect first waits, is then carried out in the database, and its answer waits again before it arrives. A test can
therefore put any event in between. The stage records which client holds which delivery and checks README's
guarantees after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import (
    Cause,
    CheckBatches,
    Claim,
    Deliver,
    Effect,
    End,
    Fetch,
    FindAbandoned,
    Lock,
    Lookup,
    MoveDeadLetters,
    Poll,
    Purge,
    Release,
    Scan,
    ScanGroups,
)
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.subscribers import Subscription
from engine.model import NS_PER_S, Group, Key, RowFormat, Selection, Share, TableId, Wanted
from engine.queue_table import BatchColumn, GroupColumn, IdKind, OnDisconnect, Policy, QueueTable
from engine.store.port import StoreError
from tests.support.memory_store import MemoryStore, Row

TABLE = TableId("test", "messages")
FORMAT = RowFormat(columns=("id",), binary=False)

POLICY = Policy(
    ack_wait_ns=30 * NS_PER_S,
    purge_after_ns=3600 * NS_PER_S,
    batch_size=3,
    cache_size=12,
    poller_interval_ns=10_000 * NS_PER_S,
    min_backoff_ns=30 * NS_PER_S,
    max_backoff_ns=60 * NS_PER_S,
)
"""Small bounds, so that they are reached; a poller so rare that whatever only it would find counts as lost."""


DEAD_LETTERS = TableId("test", "dead_letters")

FAR_NS = 2**63 - 1

EVEN = Selection("id % 2 = 0")
LOW = Selection("id <= 20")


def queue_table(policy: Policy = POLICY, *, id_grows: bool = False, table: TableId = TABLE) -> QueueTable:
    """A message table as the catalog would describe it."""
    kind = IdKind.INTEGER if policy.semaphores is None else IdKind.TEXT
    return QueueTable(
        table,
        policy,
        IdKind.INTEGER,
        "PRIMARY",
        "next",
        False,
        True,
        ("id",),
        ("id",),
        id_grows=id_grows,
        lease_column=policy.lease,
        group_columns=tuple(GroupColumn(name, kind) for name in policy.grouping),
        group_index="by_group" if policy.groups_indexed else None,
        batch=BatchColumn(policy.batch_by, IdKind.INTEGER, "by_batch") if policy.batch_by else None,
        after_batch=BatchColumn(policy.after_batch, IdKind.INTEGER, "by_after") if policy.after_batch else None,
    )


TOGETHER = frozenset(("settled", "transaction_ended", "subscribe", "woken", "inserted"))
"""Events that the table runner hands over once in each turn of the event loop, like answers to locks."""


@dataclass
class Holding:
    """The client that received a delivery of a message."""

    subscriber: int
    holder: int
    epoch: int
    deadline_ns: int
    is_over: bool = False
    """Whether the message has been claimed since. If the server's clock is set back after that, the deadline is in
    the future again."""


@dataclass
class Asked:
    """An effect under way; `answer` once the database has done it."""

    effect: Effect
    answer: Callable[[], Effects] | None = None
    carries: frozenset[Key] = frozenset()
    """The messages whose rows are in the answer."""


@dataclass
class Stage:
    """A dispatcher, a database, the effects under way between them, and the record of deliveries."""

    policy: Policy = POLICY
    limits: Limits = field(
        default_factory=lambda: Limits(
            scan_min=4,
            claim_max=5,
            fetch_max=4,
            lookup_max=4,
            in_vain_max=2,
            contention_bound=0,
            window_max=40,
            lock_max=5,
            locks_turn_max=7,
            ends_max=3,
            suspected_max=4,
            over_max=6,
        )
    )
    fetch_budget: int = 3
    unread_every: int = 5
    """One of so many claims is answered without the rows behind it, which are then fetched."""
    id_grows: bool = False
    """Whether new messages have ids greater than all before."""
    group_of: Callable[[int], Group] = lambda _: ()
    """The message group of the message with this id."""
    dispatcher_type: type[Dispatcher] = Dispatcher
    store: MemoryStore = field(default_factory=lambda: MemoryStore(now_ns=1_000_000 * NS_PER_S))
    mono_ns: int = 5_000 * NS_PER_S
    asked: list[Asked] = field(default_factory=list)
    streams: dict[int, Subscription] = field(default_factory=dict)
    ended: dict[int, Cause] = field(default_factory=dict)
    delivered: dict[int, list[Key]] = field(default_factory=dict)
    holdings: dict[Key, Holding] = field(default_factory=dict)
    acked_seen: set[Key] = field(default_factory=set)
    sent_at_ns: list[int] = field(default_factory=list)
    lost_answers: int = 0
    row_locks: dict[Key, int] = field(default_factory=dict)
    """The holder whose open transaction has locked a message that a stream FOR UPDATE delivered to it."""
    acks_to_commit: set[Key] = field(default_factory=set)
    """Messages acknowledged in those transactions."""
    to_count: dict[Key, int] = field(default_factory=dict)
    """Messages whose transactions were rolled back before the proxy's eyes, and their epochs then."""
    share: Share | None = None
    shared_since_ns: int = 0
    since_ns: dict[tuple[Key, int], int] = field(default_factory=dict)
    """Since when each message has had each of its epochs (monotonic)."""
    table: TableId = TABLE
    on_own_write: Callable[[], None] = lambda: None
    """Called before and after the database does a claim, a release, a purge, or a move of dead messages."""
    _turn: list[Callable[[Instant], Effects]] | None = None
    _undecided: bool = False
    """The events of this turn of the event loop that the dispatcher has not got yet."""

    def __post_init__(self) -> None:
        self.queue = queue_table(self.policy, id_grows=self.id_grows, table=self.table)
        if self.table not in self.store.tables:  # Otherwise it is shared with other proxies.
            self.store.add_table(self.queue)
            taking = replace(self.policy, dead_letter_of=((None, self.table.name),))
            self.store.add_table(replace(self.queue, id=DEAD_LETTERS, policy=taking))
        self.store.conditions = {
            str(EVEN.condition): lambda row: int(row.key) % 2 == 0,
            str(LOW.condition): lambda row: int(row.key) <= 20,
        }
        self.dispatcher = self.dispatcher_type(self.policy, self.limits, lambda: 0.5, self.now)
        self.handle(self.dispatcher.tick)

    @property
    def now_ns(self) -> int:
        """The server's clock."""
        return self.store.now_ns

    @property
    def now(self) -> Instant:
        return Instant(self.mono_ns, self.store.now_ns)

    @property
    def rows(self) -> dict[Key, Row]:
        return self.store.rows[self.table]

    # What the world does.

    def handle(self, event: Callable[..., Effects], *args: Any) -> None:
        name = event.func.__name__ if isinstance(event, partial) else event.__name__
        if name == "inserted" and not (self._turn or self._undecided):
            self._record(lambda now: event(now, *args))
        elif self._turn is not None and name in TOGETHER:
            self._turn.append(lambda now: event(now, *args))
        else:
            self._end_turn()
            self._take(event(self.now, *args))

    def _record(self, event: Callable[[Instant], Effects]) -> None:
        """What follows from an event alone happens at once. The decision comes at the end of the turn of the event
        loop, behind other events."""
        self._end_turn()
        self._undecided = True
        self._take(self.dispatcher.recorded(self.now, [event]))
        if self._turn is None:
            self._end_turn()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The block is one turn of the event loop. Events of clients reach the dispatcher together, at its end or
        before the next event of another kind."""
        self._turn = []
        yield
        self._end_turn()
        self._turn = None

    def _end_turn(self) -> None:
        if self._turn or self._undecided:
            events, self._undecided = list(self._turn or ()), False
            if self._turn is not None:
                self._turn.clear()
            self._take(self.dispatcher.recorded(self.now, events))
            self._take(self.dispatcher.together(self.now, ()))

    def enqueue(self, key: int, priority: int = 0, due_ns: int = 0, *, wake: bool = True) -> None:
        row = Row(key, priority=priority, time_next_ns=due_ns, payload=str(key).encode(), group=self.group_of(key))
        self.store.put(self.table, row)
        if wake:
            self.handle(self.dispatcher.woken)

    def subscribe(self, subscriber: int, holder: int, **options: Any) -> None:
        self.streams[subscriber] = Subscription(subscriber, holder, FORMAT, **options)
        self.handle(self.dispatcher.subscribe, self.streams[subscriber])

    def cancel(self, subscriber: int) -> None:
        self.ended.setdefault(subscriber, Cause.COMPLETE)
        self.handle(self.dispatcher.unsubscribe, subscriber)

    def disconnect(self, holder: int, *, unlocks_late: bool = False) -> None:
        """A client is gone. `unlocks_late`: the server notices later, and its locks are others' until then."""
        keys = [key for key, locker in self.row_locks.items() if locker == holder]
        self._unlock(keys)
        if unlocks_late:
            self.store.locked |= set(keys)
        for stream in self.streams.values():
            if stream.holder == holder:
                self.ended.setdefault(stream.id, Cause.COMPLETE)
        if self.policy.on_disconnect is OnDisconnect.RELEASE:
            self.holdings = {key: held for key, held in self.holdings.items() if held.holder != holder}
        self.handle(self.dispatcher.disconnected, holder)

    def end_transaction(self, holder: int, *, commits: bool, seen: bool = True, certain: bool = False) -> None:
        """A client's transaction ends, and its locks. `seen`: its end is known as what it was. `certain`: so are its
        ACKs."""
        self._answer_locks(holder)
        keys = [key for key, locker in self.row_locks.items() if locker == holder]
        acked = [key for key in keys if key in self.acks_to_commit]
        delivered = self.holdings.keys() & set(keys)  # A session may lock after its client has vanished.
        self._unlock(keys)
        for key in acked if commits else ():
            self.store.acknowledge(self.table, key)
        if acked:
            notice = self.dispatcher.settled if commits and certain else self.dispatcher.suspected
            if notice == self.dispatcher.settled:
                self.acked_seen |= set(acked)
            self.handle(notice, acked)
        failed = seen and not commits
        if failed:
            self.to_count |= {key: self.rows[key].epoch for key in delivered}
        self.handle(partial(self.dispatcher.transaction_ended, failed=failed), holder)

    def _answer_locks(self, holder: int) -> None:
        """A session answers its lock before its transaction ends. After the end of its stream it locks nothing."""
        for asked in tuple(self.asked):
            if isinstance(asked.effect, Lock) and self.streams[asked.effect.subscriber].holder == holder:
                if asked.answer is None:
                    asked.answer = partial(self.dispatcher.lock_done, self.now, asked.effect.lock_id, frozenset())
                self.answer(asked)

    def unlock_others(self) -> None:
        """Transactions of others end."""
        self.store.locked = set(self.row_locks)

    def _unlock(self, keys: list[Key]) -> None:
        self.store.locked -= set(keys)
        for key in keys:
            del self.row_locks[key]
            self.holdings.pop(key, None)
        self.acks_to_commit -= set(keys)

    def _lock(self, lock: Lock) -> frozenset[Key]:
        """The session of a stream FOR UPDATE locks what it can, and its client gets the rows."""
        stream = self.streams[lock.subscriber]
        locked = [key for key in lock.keys if self._is_lockable(key, lock, stream.selection)]
        for key in locked:
            self.store.locked.add(key)
            self.row_locks[key] = stream.holder
            if lock.subscriber not in self.ended:
                self._delivered(lock.subscriber, int(key), locked=True)
        return frozenset(locked)

    def _is_lockable(self, key: Key, lock: Lock, selection: Selection) -> bool:
        row = self.rows.get(key)
        if row is None or row.time_acked_ns is not None or key in self.store.locked:
            return False
        alive = lock.epoch_below is None or row.epoch < lock.epoch_below
        return alive and row.entry.due_ns <= lock.now_ns and self.store._is_wanted(row, selection)

    def extend(self, key: Key, duration_ns: int) -> None:
        """The holder asks for more time, through the proxy."""
        row, until_ns = self.rows[key], self.now_ns + duration_ns
        self.store.put(self.table, replace(row, time_next_ns=until_ns))
        holding = self.holdings.get(key)
        if holding and holding.epoch == row.epoch:  # Who had it earlier extends the delivery of whoever has it now.
            holding.deadline_ns = until_ns
        self.handle(partial(self.dispatcher.suspected, extended=True), [key])

    def give_back(self, key: Key, delay_ns: int) -> None:
        """The holder gives it back, through the proxy."""
        self.store.put(self.table, replace(self.rows[key], time_next_ns=self.now_ns + delay_ns))
        self.holdings.pop(key, None)
        self.handle(self.dispatcher.suspected, [key])

    def notice(self, key: Key) -> None:
        """The binlog shows a row as it now is."""
        row = self.rows.get(key)
        if row is None or row.time_acked_ns is not None:
            self.acked_seen.add(key)
            self.handle(self.dispatcher.changes_logged, [], [key])
        else:
            self.handle(self.dispatcher.changes_logged, [row.entry], [])

    def set_share(self, share: Share | None) -> None:
        """Other proxies have come or gone."""
        if share != self.share:
            self.share, self.shared_since_ns = share, self.mono_ns
            self._note_new_rows()
        self.handle(self.dispatcher.share_changed, share)

    def acknowledge(self, key: Key, *, seen: bool) -> None:
        if key in self.row_locks:  # Only its own transaction can.
            self.acks_to_commit.add(key)
            return
        if self.store.acknowledge(self.table, key):
            self.holdings.pop(key, None)
        if seen:
            self.acked_seen.add(key)
            self.handle(self.dispatcher.settled, [key])

    def pass_time(self, duration_ns: int) -> None:
        self._note_new_rows()
        self.mono_ns += duration_ns
        self.store.now_ns += duration_ns
        self.handle(self.dispatcher.tick)

    def set_clock(self, forward_ns: int) -> None:
        """The server's clock is set forward (or back)."""
        self.store.now_ns += forward_ns
        self.handle(self.dispatcher.tick)

    # What the database does.

    def do(self, asked: Asked) -> None:
        """The database carries an effect out; the answer is on its way."""
        self.on_own_write()
        self._do(asked)
        self.on_own_write()

    def _do(self, asked: Asked) -> None:
        store, queue, dispatcher = self.store, self.queue, self.dispatcher
        match asked.effect:
            case Scan() | ScanGroups():
                asked.answer = self._scan(asked.effect)
            case Poll():
                empty = not store.unacknowledged([queue]).value
                asked.answer = lambda: dispatcher.polled(self.now, empty=empty)
            case Claim():
                self._claim(asked, asked.effect)
            case Fetch(fetch_id, row_format, keys):
                rows = store.fetch(queue, row_format, keys, self.fetch_budget).value
                asked.answer = lambda: dispatcher.fetch_done(self.now, fetch_id, rows)
                asked.carries = frozenset(keys)
            case Lock(lock_id):
                locked = self._lock(asked.effect)
                read = [self.rows[key].entry for key in locked] if asked.effect.unscanned else []
                asked.answer = lambda: dispatcher.lock_done(self.now, lock_id, locked, read)
            case Lookup(keys):
                entries = store.lookup(queue, keys).value
                asked.answer = lambda: dispatcher.lookup_done(self.now, entries)
            case Release(returns):
                for claim in returns:
                    self.to_count.pop(claim.key, None)
                store.release(queue, returns)
                asked.answer = lambda: dispatcher.release_done(self.now)
            case MoveDeadLetters(dead):
                assert queue.dead_letter is not None
                result = store.move_dead_letters(queue, dead, queue.dead_letter).value
                asked.answer = lambda: dispatcher.move_done(self.now, result.moved)
            case FindAbandoned(slot, limit):
                found = store.find_abandoned(queue, slot, limit).value
                asked.answer = lambda: dispatcher.search_done(self.now, found)
            case CheckBatches(check):
                seen = store.check_batches(queue, check).value
                asked.answer = lambda: dispatcher.batches_checked(self.now, seen)
            case Purge(age_ns, limit):
                purged = store.purge(queue, age_ns, limit).value
                asked.answer = lambda: dispatcher.purge_done(self.now, purged.rows, more=purged.more)
            case _:
                raise AssertionError(asked)

    def _claim(self, asked: Asked, claim: Claim) -> None:
        try:
            answer = self.store.claim_and_fetch(
                self.queue, claim.wanted, claim.row_format, self.fetch_budget, claim.slot
            )
        except StoreError as error:
            refusal = error.refusal
            asked.answer = lambda: self.dispatcher.claim_failed(self.now, claim.claim_id, refusal)
            return
        claims, rows, left, waiting = answer.value
        self.end_holdings(claimed.key for claimed in claims)
        if claim.claim_id % self.unread_every == 0:
            rows = None  # They could not be read.
        asked.answer = lambda: self.dispatcher.claim_done(self.now, claim.claim_id, claims, rows, left, waiting)
        asked.carries = frozenset() if rows is None else frozenset(rows.rows)

    def _scan(self, effect: Scan | ScanGroups) -> Callable[[], Effects]:
        dispatcher = self.dispatcher
        if isinstance(effect, ScanGroups):
            groups = self.store.scan_groups(self.queue, effect.request, effect.portion).value
            return lambda: dispatcher.group_scan_done(self.now, effect.scan_id, groups)
        scan = self.store.scan(self.queue, effect.limit, effect.selection, effect.part, effect.portion).value
        return lambda: dispatcher.scan_done(self.now, effect.scan_id, scan)

    def answer(self, asked: Asked) -> None:
        """An answer arrives."""
        answer = asked.answer
        assert answer is not None
        self.asked.remove(asked)
        if isinstance(asked.effect, Claim):
            self._record(lambda _: answer())
        elif self._turn is not None and isinstance(asked.effect, Lock):
            self._turn.append(lambda _: answer())
        else:
            self._end_turn()
            self._take(answer())

    def fail(self, asked: Asked, *, lasting: bool = False) -> None:
        """An effect fails, or, if the database has done it already, its answer is lost; `lasting`: for good."""
        self.asked.remove(asked)
        self.lost_answers += asked.answer is not None
        dispatcher = self.dispatcher
        match asked.effect:
            case Scan(scan_id):
                self.handle(partial(dispatcher.scan_failed, lasting=lasting), scan_id, "the server has gone away")
            case ScanGroups(scan_id):
                self.handle(dispatcher.group_scan_failed, scan_id)
            case Poll():
                self.handle(dispatcher.poll_failed)
            case Claim(claim_id):
                self.handle(dispatcher.claim_failed, claim_id)
            case Fetch(fetch_id, _, _):
                self.handle(partial(dispatcher.fetch_failed, lasting=lasting), fetch_id, "no such column")
            case Lock(lock_id, subscriber):
                self._lock_failed(asked, lock_id, subscriber, deadlock=lasting and asked.answer is None)
            case Lookup():
                self.handle(dispatcher.lookup_failed)
            case Release():
                self.handle(dispatcher.release_failed)
            case FindAbandoned():
                self.handle(dispatcher.search_failed)
            case CheckBatches():
                self.handle(dispatcher.check_failed)
            case Purge():
                self.handle(dispatcher.purge_failed)
            case MoveDeadLetters():
                self.handle(dispatcher.move_failed)
            case _:
                raise AssertionError(asked)

    def _lock_failed(self, asked: Asked, lock_id: int, subscriber: int, *, deadlock: bool) -> None:
        """The server refuses the SELECT of a session, which ends the stream; or the transaction is rolled back. Before
        an error behind the rows, the session answers with what it has passed on."""
        if asked.answer is None:
            self.handle(self.dispatcher.lock_done, lock_id, ())
        else:
            self._take(asked.answer())
        self.cancel(subscriber)
        if deadlock:
            self.end_transaction(self.streams[subscriber].holder, commits=False)

    def settle(self, most: int = 1_000) -> None:
        """Let the database and the dispatcher finish all that is under way, at this instant."""
        for _ in range(most):
            if not self.asked:
                if not self.dispatcher.parts.more:
                    return
                self.handle(self.dispatcher.tick)
                continue
            asked = self.asked[0]
            if asked.answer is None:
                self.do(asked)
            self.answer(asked)
        raise AssertionError(f"no end of effects: {self.dispatcher!r} {self.asked[:3]}")

    def run_until(self, done: Callable[[], bool], within_ns: int = 5_000 * NS_PER_S) -> None:
        """Let time pass from one waking to the next until it is so, by default sooner than the poller helps."""
        until_ns = self.mono_ns + within_ns
        while self.mono_ns <= until_ns:
            self.settle()
            if done():
                return
            wake_at_ns = self.dispatcher.wake_at_ns
            assert wake_at_ns is not None, f"asleep for ever: {self.dispatcher!r}"
            self.pass_time(max(0, wake_at_ns - self.mono_ns))
        raise AssertionError(f"it did not come in time: {self.dispatcher!r}")

    # The books.

    def _take(self, effects: Effects) -> None:
        self._note_new_rows()
        for effect in effects:
            match effect:
                case Claim(wanted=wanted):
                    self._check_shares(wanted)
                    self.asked.append(Asked(effect))
                case Deliver(subscriber, rows):
                    for row in rows:
                        self._delivered(subscriber, int(row))
                case End(subscriber, cause, _):
                    assert subscriber not in self.ended, f"stream {subscriber} ended twice"
                    self.ended[subscriber] = cause
                case _:
                    self.asked.append(Asked(effect))
        for subscriber in {effect.subscriber for effect in effects if isinstance(effect, Deliver)}:
            limit = self.streams[subscriber].limit
            assert len(self.delivered[subscriber]) != limit or subscriber in self.ended, (
                f"the last row of stream {subscriber} waits for its end, which is no effect of the same event"
            )
        self.check()

    def _delivered(self, subscriber: int, key: int, *, locked: bool = False) -> None:
        stream = self.streams[subscriber]
        assert subscriber not in self.ended, f"{key} delivered to stream {subscriber}, which is over"
        assert key not in self.acked_seen, f"{key} delivered after its ACK was seen"
        if locked:
            self.end_holdings([key])
        holding = self.holdings.get(key)
        assert holding is None or holding.is_over, f"{key!r} has two holders"
        row = self.rows.get(key)
        if locked:
            assert row is not None
            before = self.to_count.pop(key, -1)
            assert row.epoch > before, f"{key} is delivered again, and its failed delivery was not counted"
            self.holdings[key] = Holding(subscriber, stream.holder, row.epoch, FAR_NS)
        elif row is not None and row.time_acked_ns is None:
            assert row.time_next_ns is not None
            assert row.time_next_ns > self.now_ns, f"{key} delivered without a claim that stands"
            self.holdings[key] = Holding(subscriber, stream.holder, row.epoch, row.time_next_ns)
        got = self.delivered.setdefault(subscriber, [])
        got.append(key)
        assert stream.limit is None or len(got) <= stream.limit, f"stream {subscriber} got more than its LIMIT"
        self._check_wanted(stream, key)
        self.sent_at_ns.append(self.now_ns)

    def end_holdings(self, keys: Iterable[Key]) -> None:
        """These messages are claimed, or locked, now."""
        for key in keys:
            if (holding := self.holdings.get(key)) is not None:
                assert holding.is_over or holding.deadline_ns <= self.now_ns, f"{key!r} has two holders"
                holding.is_over = True

    def _note_new_rows(self) -> None:
        if self.share is None:  # Its check alone reads them.
            return
        for key, row in self.rows.items():
            self.since_ns.setdefault((key, row.epoch), self.mono_ns)

    def _check_shares(self, wanted: Sequence[Wanted]) -> None:
        """Messages of other shares are left to their proxies for a grace, unless a bounded stream waits for its end."""
        if self.share is None or any(stream.first_wait_ns is not None for stream in self.streams.values()):
            return
        for want in wanted:
            since_ns = max(self.since_ns.get((want.key, want.epoch), self.mono_ns), self.shared_since_ns)
            early = self.mono_ns < since_ns + self.limits.share_grace_ns
            foreign = want.key in self._group_of(want.selection).scans.others
            first = self.policy.group_strict  # The first message of a group is claimed at once.
            assert first or not (early and foreign), f"{want.key!r} was not left to its proxy: {self.share}"

    def _group_of(self, selection: Selection) -> FilterGroup:
        return next(
            group for group in self.dispatcher.parts.groups if (group.selection, group.locks) == (selection, False)
        )

    def _check_wanted(self, stream: Subscription, key: int) -> None:
        condition, row = stream.selection.condition, self.rows.get(key) or Row(key)
        assert condition is None or self.store.conditions[condition](row), f"{key} is not wanted by {condition}"
        most = self.policy.max_attempts
        assert not most or row.epoch <= most - stream.locks, f"{key} is dead, and was delivered"

    def check(self) -> None:
        """The bounds, which hold at every instant."""
        dispatcher, policy = self.dispatcher, self.policy
        assert dispatcher.in_flight <= policy.cache_size, f"{dispatcher!r} holds more than vt_cache_size"
        for group in dispatcher.parts.groups:
            scheduled = 2 * self.limits.window_max  # Messages for later that the binary log has shown.
            read_ahead = 4 * (policy.cache_size + self.limits.claim_max)
            assert len(group.scans.buffer) <= read_ahead + scheduled, f"{group} reads too far"
        reads = any(isinstance(asked.effect, Fetch | Lock) for asked in self.asked)
        for subscriber in dispatcher.subscribers.values():
            assert reads or not subscriber.fetching, f"{subscriber.spec.id} waits for rows that nobody reads"
            batch = max(policy.batch_size, self.limits.lock_max if subscriber.spec.locks else 0)
            assert len(subscriber.unsent) <= 2 * batch, f"too much is on its way to {subscriber.spec.id}"
            if subscriber.spec.prefetch is not None:
                assert subscriber.held <= subscriber.spec.prefetch, f"{subscriber.spec.id} has more than its PREFETCH"


def run_for(stage: Stage, duration_ns: int) -> list[list[Key]]:
    """Let time pass, from one wake-up to the next; returns the messages of the claims that were carried out."""
    claims: list[list[Key]] = []
    until_ns = stage.mono_ns + duration_ns
    for _ in range(20_000):
        while stage.asked:
            effect = stage.asked[0].effect
            if isinstance(effect, Claim):
                claims.append([want.key for want in effect.wanted])
            stage.do(stage.asked[0])
            stage.answer(stage.asked[0])
        wake_ns = stage.dispatcher.wake_at_ns
        if wake_ns is None or wake_ns > until_ns:
            stage.pass_time(until_ns - stage.mono_ns)
            return claims
        stage.pass_time(max(0, wake_ns - stage.mono_ns))
    raise AssertionError("the dispatcher does not come to rest")


def received(stage: Stage) -> list[Key]:
    """The messages that its streams have received, one stream after another."""
    return [key for keys in stage.delivered.values() for key in keys]
