"""The dispatcher's guarantees, in any order of events.

A state machine plays clients, clock and database against the dispatcher: effects are carried out late, answers arrive
later, some never; rows are locked by others, claimed by another proxy, acknowledged without a report. After each step
the stage checks its records. At the end all faults are repaired, and every unacknowledged message must be delivered.

The same machine must fail with dispatchers that are broken on purpose: a test that cannot fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from engine.dispatch.capacity import Capacity
from engine.dispatch.claims import ClaimAttempt, ClaimsUnderWay
from engine.dispatch.deliveries import Deliveries
from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Claim, Effect, Fetch, Lock, Scan
from engine.dispatch.fetches import FetchesUnderWay
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.leases import FETCHING_STATES, SUSPECT_STATES, Lease, LeaseState
from engine.dispatch.limits import Limits
from engine.dispatch.locked_leases import LockedLeases
from engine.dispatch.maintenance import DeadLetters
from engine.dispatch.picking import Picking
from engine.dispatch.scan_position import SETTLING_NS
from engine.dispatch.scans import ScanScheduler
from engine.dispatch.subscribers import Subscriber
from engine.model import ANYTHING, NS_PER_S, Claimed, Entry, FetchResult, Key, Selection, Share
from engine.queue_table import OnDisconnect, Policy
from engine.refused import Refusal
from tests.support.hunting import assert_objects
from tests.support.memory_store import Row
from tests.support.play import DEAD_LETTERS, EVEN, LOW, POLICY, TABLE, Asked, Stage
from tests.support.sampling import examples

T = TypeVar("T")

KEYS = st.integers(1, 40)
NO_KEY = 99
"""None of them."""
AFTER_ANY_PAUSE_NS = 6 * NS_PER_S
"""Longer than the pause after a failed release, shorter than any wait for an acknowledgement."""
CLOCK_OFF_MAX_S = 2_000
"""A clock that is set back further in all would schedule messages for after the end of the play."""
PICK = st.integers(0, 1_000)
EVENTS_OF_A_TURN = (
    "a stream",
    "a stream that locks",
    "an answer of a lock",
    "an answer of a claim",
    "an ACK",
    "the end of a transaction",
    "a wake-up",
    "an INSERT",
)


class Play(RuleBasedStateMachine):
    """Clients, clock and database against one dispatcher."""

    dispatcher_type: type[Dispatcher] = Dispatcher
    shares = True
    """Whether the proxy has shares of the messages. Faults that need none are found sooner without them."""
    plain = False
    """Whether conditions, rates and dead letters are left out, for the same reason."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribers = 0
        self.uncommitted: dict[int, int] = {}
        self.greatest = 0
        self.last_ones: dict[int, int] = {}
        """The consumers that acknowledge at once in the end, and how many messages they have acknowledged."""
        self.set_forward_s = 0
        self.extended: set[Key] = set()
        self.ended_by_the_clock: set[Key] = set()
        """Messages whose waits were over, and are not any more if the server's clock was set back since."""

    @initialize(
        keep=st.booleans(),
        in_flight=st.sampled_from([None, 5]),
        rate=st.sampled_from([None, None, 2.0]),
        attempts=st.sampled_from([0, 0, 2]),
        id_grows=st.booleans(),
    )
    def open(self, keep: bool, in_flight: int | None, rate: float | None, attempts: int, id_grows: bool) -> None:
        policy = replace(
            POLICY,
            on_disconnect=OnDisconnect.KEEP if keep else OnDisconnect.RELEASE,
            max_in_flight=in_flight,
            max_rate=None if self.plain else rate,
            max_attempts=0 if self.plain else attempts,
            dead_letter=(None, DEAD_LETTERS.name) if attempts else None,
        )
        self.stage = Stage(policy=policy, dispatcher_type=self.dispatcher_type, id_grows=id_grows)

    # Clients.

    @rule(
        key=KEYS,
        priority=st.integers(0, 2),
        delay_s=st.sampled_from([0, 0, 0, 5, 100]),
        wake=st.booleans(),
    )
    def enqueue(self, key: int, priority: int, delay_s: int, wake: bool) -> None:
        if (new := self._new(key)) is not None:
            self.stage.enqueue(new, priority, self.stage.now_ns + delay_s * NS_PER_S if delay_s else 0, wake=wake)
            if not wake:
                self.stage.handle(self.stage.dispatcher.woken)

    @rule(first=KEYS)
    def enqueue_many_and_a_commit_wakes_once(self, first: int) -> None:
        for number in range(first, first + 10):
            if (key := self._new(number)) is not None:
                self.stage.enqueue(key, wake=False)
        self.stage.handle(self.stage.dispatcher.woken)

    @rule(
        first=KEYS,
        count=st.sampled_from([1, 1, 2, 9, 30]),
        off=st.sampled_from([0, 0, 0, 1, -1]),
        priority=st.integers(0, 2),
        delay_s=st.sampled_from([0, 0, 0, 5]),
    )
    def the_answer_to_an_insert_shows_ids(self, first: int, count: int, off: int, priority: int, delay_s: int) -> None:
        """The right ids, or (`off`) others."""
        keys = [key for number in range(first, first + count) if (key := self._new(number)) is not None]
        for key in keys:
            self.stage.enqueue(key, priority, self.stage.now_ns + delay_s * NS_PER_S if delay_s else 0, wake=False)
        if keys:
            self.stage.handle(self.stage.dispatcher.inserted, [key + off for key in keys])

    @rule(key=KEYS)
    def a_transaction_inserts_and_does_not_commit(self, key: int) -> None:
        if (new := self._new(key)) is not None:
            self.uncommitted[new] = self.stage.mono_ns

    @precondition(lambda self: self.uncommitted)
    @rule(pick=PICK)
    def a_transaction_commits_what_it_inserted(self, pick: int) -> None:
        """A transaction older than `SETTLING_NS` causes a wake-up for anywhere."""
        key = self._one_of(sorted(self.uncommitted), pick)
        age_ns = self.stage.mono_ns - self.uncommitted.pop(key)
        self.stage.enqueue(key, wake=False)
        self.stage.handle(partial(self.stage.dispatcher.woken, anywhere=age_ns >= SETTLING_NS))

    @precondition(lambda self: len(self.stage.dispatcher.subscribers) < 4)
    @rule(
        holder=st.integers(1, 3),
        limit=st.sampled_from([None, None, 1, 4]),
        prefetch=st.sampled_from([None, 1, 2]),
        first_wait_s=st.sampled_from([None, None, 0, 20]),
        selection=st.sampled_from([ANYTHING, ANYTHING, EVEN, LOW]),
    )
    def subscribe(
        self, holder: int, limit: int | None, prefetch: int | None, first_wait_s: int | None, selection: Selection
    ) -> None:
        self.subscribers += 1
        first_wait_ns = None if first_wait_s is None else first_wait_s * NS_PER_S
        selection = ANYTHING if self.plain else selection
        self.stage.subscribe(
            self.subscribers, holder, limit=limit, prefetch=prefetch, first_wait_ns=first_wait_ns, selection=selection
        )

    @precondition(lambda self: self.stage.dispatcher.subscribers)
    @rule(pick=PICK)
    def cancel_a_stream(self, pick: int) -> None:
        subscriber = self._one_of(sorted(self.stage.dispatcher.subscribers), pick)
        self.stage.cancel(subscriber)

    @precondition(lambda self: len(self.stage.dispatcher.subscribers) < 4)
    @rule(
        holder=st.integers(1, 3),
        limit=st.sampled_from([1, 4, 10]),
        first_wait_s=st.sampled_from([0, 20]),
        selection=st.sampled_from([ANYTHING, ANYTHING, EVEN, LOW]),
    )
    def subscribe_for_update(self, holder: int, limit: int, first_wait_s: int, selection: Selection) -> None:
        self.subscribers += 1
        selection = ANYTHING if self.plain else selection
        self.stage.subscribe(
            self.subscribers,
            holder,
            limit=limit,
            first_wait_ns=first_wait_s * NS_PER_S,
            selection=selection,
            locks=True,
        )

    @precondition(lambda self: self._ready_to_end())
    @rule(pick=PICK, commits=st.booleans(), seen=st.booleans(), certain=st.booleans())
    def a_transaction_ends(self, pick: int, commits: bool, seen: bool, certain: bool) -> None:
        holder = self._one_of(self._ready_to_end(), pick)
        self.stage.end_transaction(holder, commits=commits, seen=seen, certain=certain)

    @rule(turn=st.lists(st.tuples(st.sampled_from(EVENTS_OF_A_TURN), PICK), min_size=2, max_size=5))
    def several_clients_do_something_in_one_turn_of_the_event_loop(self, turn: Sequence[tuple[str, int]]) -> None:
        with self.stage.turn():
            for event, pick in turn:
                self._event_of_a_turn(event, pick)

    def _event_of_a_turn(self, event: str, pick: int) -> None:
        stage, holder = self.stage, 1 + pick % 3
        kind = Lock if event == "an answer of a lock" else Claim
        asked_for, enders = self._asked_for(kind), self._ready_to_end()
        if event == "a stream" and len(stage.dispatcher.subscribers) < 4:
            self.subscribe(holder, limit=1, prefetch=None, first_wait_s=0 if pick % 2 else None, selection=ANYTHING)
        elif event == "a stream that locks" and len(stage.dispatcher.subscribers) < 4:
            self.subscribe_for_update(holder, limit=1, first_wait_s=0, selection=ANYTHING)
        elif event in ("an answer of a lock", "an answer of a claim") and asked_for:
            asked = self._one_of(asked_for, pick)
            if asked.answer is None:
                stage.do(asked)
            stage.answer(asked)
        elif event == "an ACK" and stage.holdings:
            stage.acknowledge(self._one_of(sorted(stage.holdings), pick), seen=True)
        elif event == "the end of a transaction" and enders:
            stage.end_transaction(self._one_of(enders, pick), commits=pick % 3 > 0, seen=True, certain=True)
        elif event == "a wake-up":
            stage.handle(stage.dispatcher.woken)
        elif event == "an INSERT":
            self.the_answer_to_an_insert_shows_ids(first=1 + pick % 40, count=1, off=0, priority=0, delay_s=0)

    @rule(holder=st.integers(1, 3), unlocks_late=st.booleans())
    def disconnect(self, holder: int, unlocks_late: bool) -> None:
        self.stage.disconnect(holder, unlocks_late=unlocks_late)

    @precondition(lambda self: self.stage.dispatcher.subscribers)
    @rule(pick=PICK, slow=st.booleans())
    def read_slowly_or_again(self, pick: int, slow: bool) -> None:
        dispatcher = self.stage.dispatcher
        subscriber = self._one_of(sorted(dispatcher.subscribers), pick)
        self.stage.handle(dispatcher.client_paused if slow else dispatcher.client_resumed, subscriber)

    @precondition(lambda self: self.stage.holdings)
    @rule(pick=PICK, seen=st.booleans())
    def acknowledge_what_was_delivered(self, pick: int, seen: bool) -> None:
        self.stage.acknowledge(self._one_of(sorted(self.stage.holdings), pick), seen=seen)

    @precondition(lambda self: self.stage.rows)
    @rule(pick=PICK, seen=st.booleans())
    def acknowledge_any(self, pick: int, seen: bool) -> None:
        self.stage.acknowledge(self._one_of(sorted(self.stage.rows), pick), seen=seen)

    @precondition(lambda self: self._live())
    @rule(pick=PICK, in_order=st.booleans(), during_scan=st.booleans())
    def a_client_deletes_a_message_and_another_inserts_its_id_again(
        self, pick: int, in_order: bool, during_scan: bool
    ) -> None:
        """The server's answers may come in the other order, and the first one may start a scan. A scan under way
        may have read either of the two messages. What was read before and is on its way cannot be called back."""
        stage, key = self.stage, self._one_of(self._live(), pick).key
        on_its_way = any(key in asked.carries for asked in self._asked(done=True))
        if key in stage.store.locked or key in stage.row_locks or on_its_way:
            return
        scans = [asked for asked in self._asked_for(Scan) if asked.answer is None] if during_scan else []
        for scan in scans[:1]:
            stage.do(scan)
        del stage.rows[key]
        stage.holdings.pop(key, None)
        stage.to_count.pop(key, None)
        stage.store.put(TABLE, Row(key, payload=str(key).encode()))
        settled, woken = partial(stage.dispatcher.settled, keys=[key]), partial(stage.dispatcher.woken, anywhere=True)
        stage.handle(settled if in_order else woken)
        for scan in self._asked_for(Scan):
            if scan.answer is None:
                stage.do(scan)
        stage.handle(woken if in_order else settled)
        stage.pass_time(1)  # No clock stands still so long that the claims of both have one deadline.

    @precondition(lambda self: self._held())
    @rule(pick=PICK, duration_s=st.sampled_from([0.001, 50]))
    def extend(self, pick: int, duration_s: float) -> None:
        key = self._one_of(self._held(), pick)
        self.extended.add(key)
        self.stage.extend(key, int(duration_s * NS_PER_S))

    @precondition(lambda self: self._held())
    @rule(pick=PICK, delay_s=st.sampled_from([0, 50]))
    def give_back(self, pick: int, delay_s: int) -> None:
        self.stage.give_back(self._one_of(self._held(), pick), delay_s * NS_PER_S)

    @rule(key=KEYS)
    def the_binlog_shows(self, key: int) -> None:
        if key in self.stage.rows:
            self.stage.notice(key)

    @rule(what=st.sampled_from(("all", "one that is there", "any")), key=KEYS)
    def doubt(self, what: str, key: int) -> None:
        there = [row.key for row in self._live()] if what == "one that is there" else []
        keys = None if what == "all" else [self._one_of(there, key)] if there else [key]
        self.stage.handle(self.stage.dispatcher.suspected, keys)

    # Others, behind the proxy's back.

    @precondition(lambda self: self._due())
    @rule(pick=PICK, wait_s=st.sampled_from([1, 40]))
    def another_proxy_claims(self, pick: int, wait_s: int) -> None:
        row = self._one_of(self._due(), pick)
        if row.key in self.stage.store.locked:
            return
        until_ns = self.stage.now_ns + wait_s * NS_PER_S
        self.stage.store.put(TABLE, replace(row, epoch=row.epoch + 1, time_next_ns=until_ns))
        self.stage.holdings.pop(row.key, None)

    @rule(key=KEYS)
    def a_transaction_locks_a_row(self, key: int) -> None:
        self.stage.store.locked.add(key)

    @rule()
    def transactions_end(self) -> None:
        self.stage.unlock_others()

    @precondition(lambda self: self.shares)
    @rule(number=st.integers(0, 2), count=st.sampled_from([0, 2, 2, 3]))
    def the_share_changes(self, number: int, count: int) -> None:
        """Whatever the other proxies have: the shares need not fit together."""
        self.stage.set_share(Share(number % count, count) if count else None)

    # Clock and database.

    @rule(duration_s=st.sampled_from([0.001, 0.5, 11, 61]))
    def time_passes(self, duration_s: float) -> None:
        self.stage.pass_time(int(duration_s * NS_PER_S))

    @rule(forward_s=st.sampled_from([-600, -3, 3, 600]))
    def the_servers_clock_is_set(self, forward_s: int) -> None:
        if abs(self.set_forward_s + forward_s) > CLOCK_OFF_MAX_S:
            return
        self.set_forward_s += forward_s
        self.ended_by_the_clock |= self._waits_over()
        self.stage.set_clock(forward_s * NS_PER_S)
        self.ended_by_the_clock |= self._waits_over()

    @precondition(lambda self: self._asked(done=False))
    @rule(pick=PICK)
    def the_database_does_one(self, pick: int) -> None:
        self.stage.do(self._one_of(self._asked(done=False), pick))

    @precondition(lambda self: self._asked(done=True))
    @rule(pick=PICK)
    def an_answer_arrives(self, pick: int) -> None:
        self.stage.answer(self._one_of(self._asked(done=True), pick))

    @precondition(lambda self: self.stage.asked)
    @rule(pick=PICK, lasting=st.booleans())
    def one_fails_or_its_answer_is_lost(self, pick: int, lasting: bool) -> None:
        self.stage.fail(self._one_of(self.stage.asked, pick), lasting=lasting)

    @precondition(lambda self: self.stage.asked)
    @rule(pick=PICK)
    def one_thing_goes_well(self, pick: int) -> None:
        asked = self._one_of(self.stage.asked, pick)
        if asked.answer is None:
            self.stage.do(asked)
        self.stage.answer(asked)

    @precondition(lambda self: self._asked_for(Scan))
    @rule(key=KEYS)
    def a_commit_falls_into_a_scan(self, key: int) -> None:
        """The database has made its snapshot, the answer is on its way, and a message is committed."""
        scan = self._asked_for(Scan)[0]
        if scan.answer is None:
            self.stage.do(scan)
        self.enqueue(key, priority=0, delay_s=0, wake=True)
        self.stage.answer(scan)

    @precondition(lambda self: self._asked_for(Fetch) or self._asked_for(Claim))
    @rule(duration_s=st.sampled_from([11, 61]))
    def rows_arrive_late(self, duration_s: int) -> None:
        if fetch := self._rows_on_their_way():
            self.stage.pass_time(duration_s * NS_PER_S)
            if fetch in self.stage.asked:
                self.stage.answer(fetch)

    @precondition(lambda self: self._asked_for(Fetch) or self._asked_for(Claim))
    @rule(pick=PICK, delay_s=st.sampled_from([None, 0, 50]))
    def another_word_overtakes_rows(self, pick: int, delay_s: int | None) -> None:
        """The rows were read before somebody acknowledged one of them, or, having had it earlier, gave it back; they
        arrive after."""
        if not (bringing := self._rows_on_their_way()):
            return
        key = self._one_of(sorted(bringing.carries), pick)
        row = self.stage.rows.get(key)
        if delay_s is None:
            self.stage.acknowledge(key, seen=True)
        elif row is not None and row.time_acked_ns is None:
            self.stage.give_back(key, delay_s * NS_PER_S)
        if bringing in self.stage.asked:
            self.stage.answer(bringing)

    def _rows_on_their_way(self) -> Asked | None:
        """A fetch, or a claim with its rows, that the database has done, after the claims before it."""
        while asked := next(iter([*self._asked_for(Fetch), *self._asked_for(Claim)]), None):
            if asked.answer is None:
                self.stage.do(asked)
            if asked.carries:
                return asked
            self.stage.answer(asked)
        return None

    @rule(key=KEYS)
    def the_server_refuses_claims_of_a_message(self, key: int) -> None:
        self.stage.store.unclaimable.add(key)

    @precondition(lambda self: self.stage.store.unclaimable)
    @rule(pick=PICK)
    def a_message_is_repaired(self, pick: int) -> None:
        self.stage.store.unclaimable.remove(self._one_of(sorted(self.stage.store.unclaimable), pick))

    @rule()
    def all_goes_well_for_a_moment(self) -> None:
        self.stage.settle()

    # What must hold.

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        stage.unlock_others()
        stage.settle()
        self._transactions_end()
        abandoned = {key for key in stage.holdings if key not in stage.acked_seen}
        for holder in (1, 2, 3):
            stage.disconnect(holder)
        stage.settle()
        stage.pass_time(AFTER_ANY_PAUSE_NS)
        stage.settle()
        if stage.policy.on_disconnect is OnDisconnect.RELEASE:
            self._is_due_again(abandoned)
        self._everything_comes()

    def _transactions_end(self) -> None:
        """Without the clients' open transactions nothing is locked, whether they acknowledged or not."""
        stage = self.stage
        for subscriber in [stream.id for stream in stage.streams.values() if stream.locks]:
            if subscriber in stage.dispatcher.subscribers:
                stage.cancel(subscriber)
        stage.settle()
        for holder in sorted(set(stage.row_locks.values())):
            stage.end_transaction(holder, commits=True)
        stage.settle()
        assert stage.dispatcher.parts.leases.locked == 0, "a message counts as locked without a transaction"

    def _is_due_again(self, keys: set[Key]) -> None:
        """Messages of a vanished client are due again before their waits end, except those that were extended
        so late that their leases were over before a lookup."""
        for key in keys - self.extended - self.ended_by_the_clock - self.stage.store.rows[DEAD_LETTERS].keys():
            row = self.stage.rows[key]
            assert row.time_acked_ns is not None or row.entry.due_ns <= self.stage.now_ns, f"{key!r} was not released"

    def _everything_comes(self) -> None:
        """A last consumer that acknowledges at once gets every message that is left, those that the server refuses
        when they are repaired, and then nothing is held."""
        if not self.plain:
            self._a_consumer_gets_all(EVEN)
        self._a_consumer_gets_all(ANYTHING)
        self.stage.store.unclaimable.clear()
        self._a_consumer_gets_all(ANYTHING)
        self.stage.run_until(lambda: self.stage.dispatcher.in_flight == 0)

    def _a_consumer_gets_all(self, selection: Selection) -> None:
        stage = self.stage
        self.subscribers = last = self.subscribers + 1
        stage.subscribe(last, holder=9, selection=selection)
        self.last_ones[last] = 0
        condition = selection.condition

        def drained() -> bool:
            for consumer, seen in self.last_ones.items():
                got = stage.delivered.get(consumer, [])
                for key in got[seen:]:
                    stage.acknowledge(key, seen=True)
                self.last_ones[consumer] = len(got)
            assert not stage.rows.keys() & stage.store.rows[DEAD_LETTERS].keys(), "a message is in two tables"
            unclaimable = stage.store.unclaimable
            live = [row for row in stage.rows.values() if row.time_acked_ns is None and row.key not in unclaimable]
            return not any(condition is None or stage.store.conditions[condition](row) for row in live)

        stage.run_until(drained)
        if selection == ANYTHING:  # A last message, whose INSERT was answered with another id.
            self.the_answer_to_an_insert_shows_ids(NO_KEY, count=1, off=1, priority=0, delay_s=0)
            stage.run_until(drained)

    # Choosing.

    def _new(self, key: int) -> int | None:
        """An id for a new message: this one if it is free, or the next one where ids grow."""
        if self.stage.id_grows:
            self.greatest += 1
            return self.greatest
        taken = key in self.stage.rows or key in self.stage.acked_seen or key in self.uncommitted
        return None if taken or key in self.stage.store.rows[DEAD_LETTERS] else key

    def _live(self) -> list[Row]:
        return [row for _, row in sorted(self.stage.rows.items()) if row.time_acked_ns is None]

    def _held(self) -> list[Key]:
        """What is in somebody's hands, and was not acknowledged or claimed anew behind the books' back."""
        stage = self.stage
        live = ((key, stage.rows.get(key)) for key in sorted(stage.holdings))
        return [key for key, row in live if row and row.time_acked_ns is None and row.entry.due_ns > stage.now_ns]

    def _ready_to_end(self) -> list[int]:
        """The holders with messages locked, and no stream FOR UPDATE that still runs."""
        stage = self.stage
        running = {stream.spec.holder for stream in stage.dispatcher.subscribers.values() if stream.spec.locks}
        return sorted(set(stage.row_locks.values()) - running)

    def _due(self) -> list[Row]:
        rows = (row for _, row in sorted(self.stage.rows.items()))
        return [row for row in rows if row.time_acked_ns is None and row.entry.due_ns <= self.stage.now_ns]

    def _asked_for(self, kind: type[Effect]) -> list[Asked]:
        return [asked for asked in self.stage.asked if isinstance(asked.effect, kind)]

    def _asked(self, *, done: bool) -> list[Asked]:
        return [asked for asked in self.stage.asked if (asked.answer is not None) is done]

    def _waits_over(self) -> set[Key]:
        """Messages whose holder's wait is over by the server's clock as it is now."""
        return {key for key, holding in self.stage.holdings.items() if holding.deadline_ns <= self.stage.now_ns}

    @staticmethod
    def _one_of(things: Sequence[T], pick: int) -> T:
        return things[pick % len(things)]


class AcknowledgedIsNotHeard(Dispatcher):
    """An ACK frees credit later, by a lookup; the row that was read is still sent."""

    def settled(self, now: Instant, keys: Iterable[Key]) -> Effects:
        return self.suspected(now, None)


class VanishedClientsKeepTheirMessages(Dispatcher):
    """Nothing is given back when a client is gone."""

    def disconnected(self, now: Instant, holder: int) -> Effects:
        for subscriber in self.parts.groups.streams_of(holder):
            self.parts.groups.remove_subscription(subscriber, self.parts.now)
        return self._advance(now)


class BrokenDeliveries(Dispatcher):
    """A dispatcher with another class for its deliveries."""

    Kind: type[Deliveries]

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        self._deliveries = self.Kind(self.parts)
        self._locked = LockedLeases(self.parts, self._deliveries)


class ASuspectRowIsSent(BrokenDeliveries):
    """A row is sent though its message was given back meanwhile."""

    class Kind(Deliveries):
        def send_rows(self, now: Instant, fetch_id: int, result: FetchResult) -> Effects:
            for lease in self._parts.leases:
                if lease.state in SUSPECT_STATES & FETCHING_STATES:
                    lease.state = LeaseState.FETCHING
            return super().send_rows(now, fetch_id, result)


class FetchesOfEndedLeases(FetchesUnderWay):
    """A fetch returns the leases that have ended meanwhile, too."""

    def finish_fetch(self, fetch_id: int) -> list[tuple[Lease, Subscriber]]:
        leases = list(self.leases(fetch_id))
        super().finish_fetch(fetch_id)
        remaining = []
        for lease in leases:
            subscriber = self._groups.subscribers.get(lease.subscriber or 0)
            if subscriber is not None and not lease.is_sent:
                lease.state = LeaseState.FETCHING
                subscriber.unsent[lease.key] = lease
                remaining.append((lease, subscriber))
        return remaining


class ExpiredLeasesAreStillSent(BrokenDeliveries):
    """A row is sent when it arrives, though its lease has ended meanwhile."""

    class Kind(Deliveries):
        def end_leases(self, leases: Sequence[Lease], *, settled: bool = False) -> None:
            standing = [lease for lease in leases if self._parts.leases.get(lease.key) is lease]
            super().end_leases(standing, settled=settled)

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        size = self.parts.refusals.fetch_size
        self.parts.fetches = FetchesOfEndedLeases(self.parts.groups, limits.fetch_max, self.parts.numbers, size)


class ClaimsWithoutReports(ClaimsUnderWay):
    """A report of a message that is being claimed is forgotten."""

    def report_changes(self, keys: Collection[Key] | None) -> None:
        pass


class ARowThatCameWithItsClaimIsSentWhateverWasReported(Dispatcher):
    """A row that was read behind a claim is sent though its message was acknowledged or given back meanwhile."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        self.parts.claims = ClaimsWithoutReports(policy, jitter, self.parts.numbers, self.parts.in_flight)
        self.parts.capacity = Capacity(policy, limits, self.parts.leases, self.parts.claims)


class RowsThatDidNotComeWithTheirClaimAreForgotten(BrokenDeliveries):
    """A message that was claimed and not read is never fetched."""

    class Kind(Deliveries):
        def send_claimed_rows(self, now: Instant, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> Effects:
            rows = attempt.rows or FetchResult({})
            attempt.rows = replace(rows, unread=frozenset())
            return super().send_claimed_rows(now, attempt, claims)


class TrustingScheduler(ScanScheduler):
    """Keys that follow from an INSERT are always right."""

    def inserted_unscanned(self, group: FilterGroup, now: Instant) -> None:
        pass


class KeysOfAnInsertAreTrusted(BrokenDeliveries):
    """What an INSERT's answer shows is claimed, and if that misses, or other messages were inserted, nobody scans."""

    class Kind(Deliveries):
        def start_leases(self, now: Instant, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> None:
            attempt.unscanned = False
            super().start_leases(now, attempt, claims)
            for group in self._parts.groups:
                group.scans.retry_ns = None

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        self.parts.scans = TrustingScheduler(self.parts.groups, policy, limits, self.parts.numbers)


class GenerousPicking(Picking):
    """What was inserted may be claimed, whatever credit there is."""

    def _may_take_unscanned(self, group: FilterGroup, now: Instant, keys: Sequence[Key]) -> bool:
        return not any(self._parts.is_taken(key) or self._parts.leases.get(key) for key in keys)


class AnInsertTakesWhatCreditThereIs(Dispatcher):
    """Messages whose keys follow from an INSERT are claimed, whatever credit there is."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        self._picking = GenerousPicking(self.parts)


class Unbounded(Capacity):
    """A table may have any number of messages in flight."""

    @property
    def free(self) -> int:
        return 1_000


class CapacityIsIgnored(Dispatcher):
    """The table's bound on messages in flight is not kept."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        self.parts.capacity = Unbounded(policy, limits, self.parts.leases, self.parts.claims)


class AFailedScanIsTheLast(Dispatcher):
    """The failure of a scan is not noticed."""

    def scan_failed(self, now: Instant, scan_id: int, text: str, *, lasting: bool = False) -> Effects:
        return self._advance(now)


class ALostClaimBlocksThoseBehindIt(Dispatcher):
    """The failure of a claim is not noticed."""

    def claim_failed(self, now: Instant, claim_id: int, refusal: Refusal | None = None) -> Effects:
        return self._advance(now)


class CommitsDuringAScanAreForgotten(Dispatcher):
    """A commit during a scan is taken as seen by that scan."""

    def woken(self, now: Instant, *, anywhere: bool = False) -> Effects:
        for group in self.parts.groups:
            group.scans.dirty = not group.scans.running
        return self._advance(now)


class CreditIsNotReserved(BrokenDeliveries):
    """Two claims under way use the same credit, so that subscribers are given more than their share."""

    class Kind(Deliveries):
        def start_leases(self, now: Instant, attempt: ClaimAttempt, claims: Sequence[Claimed]) -> None:
            for group in self._parts.groups:
                for subscriber in group.subscribers:
                    subscriber.held -= 1
                    group.subscribers._changed(subscriber)
            super().start_leases(now, attempt, claims)
            for subscriber in self._parts.groups.subscribers.values():
                subscriber.held += 1


class CreditIsCountedWrongly(BrokenDeliveries):
    """An acknowledgement does not free the credit of its stream."""

    class Kind(Deliveries):
        def end_leases(self, leases: Sequence[Lease], *, settled: bool = False) -> None:
            subscribers = [self._parts.groups.subscribers.get(lease.subscriber or 0) for lease in leases]
            super().end_leases(leases, settled=settled)
            for subscriber in subscribers:
                if subscriber is not None:
                    subscriber.held += 1


class ConditionsAreNotMinded(BrokenDeliveries):
    """Messages claimed for one stream are given to any."""

    class Kind(Deliveries):
        def distribute(self, group: FilterGroup, leases: Sequence[Lease]) -> None:
            for other in self._parts.groups:
                if other.subscribers.credit:
                    group = other
            super().distribute(group, leases)


class NoDeadLetters(DeadLetters):
    """No message is dead, however often it was delivered."""

    def is_dead(self, entry: Entry) -> bool:
        return False


class TheDeadAreDelivered(Dispatcher):
    """Messages are delivered however often they were before."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        self.parts.dead_letters = NoDeadLetters(policy, limits)


class CreditIsNeverGivenBackToOtherGroups(Dispatcher):
    """A claim for one filter group is held against the credit of the others."""

    def _start_claim(self, now: Instant) -> Effects:
        effects = super()._start_claim(now)
        for effect in effects:
            for wanted in effect.wanted if isinstance(effect, Claim) else ():
                for group in self.parts.groups:
                    group.reserved += group.selection != wanted.selection
        return effects


class PausesUseTheServersClock(Dispatcher):
    """A failure pause that begins before the server's clock is set back lasts until it has caught up."""

    def _advance(self, now: Instant) -> Effects:
        return super()._advance(Instant(now.server_ns, now.server_ns))


class LocksOutliveTheirTransactions(Dispatcher):
    """The end of a transaction is not noticed."""

    def transaction_ended(self, now: Instant, holder: int, *, failed: bool = False) -> Effects:
        return self._advance(now)


class RollbacksAreNotCounted(Dispatcher):
    """A message whose transaction was rolled back is free again as if that had been no delivery."""

    def transaction_ended(self, now: Instant, holder: int, *, failed: bool = False) -> Effects:
        return super().transaction_ended(now, holder)


class MissedLocksCountAsLocked(Dispatcher):
    """A message that a session could not lock is held by its client nevertheless."""

    def lock_done(self, now: Instant, lock_id: int, locked: AbstractSet[Key], read: Sequence[Entry] = ()) -> Effects:
        lock = self.parts.locks._by_id.get(lock_id)
        return super().lock_done(now, lock_id, {lease.key for lease in lock.leases} if lock else locked, read)


class OnlyTheLastEventOfATurnCounts(Dispatcher):
    """The others are forgotten."""

    def recorded(self, now: Instant, events: Sequence[Callable[[Instant], Effects]]) -> Effects:
        return super().recorded(now, events[-1:])


class OneRefusedMessageHoldsUpOthers(Dispatcher):
    """A claim that was refused is tried again as it was."""

    def claim_failed(self, now: Instant, claim_id: int, refusal: Refusal | None = None) -> Effects:
        return super().claim_failed(now, claim_id)


class RefusedOnceIsRefusedForEver(Dispatcher):
    """A message that was passed over is not tried again."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        for_ever = 10**6 * NS_PER_S
        limits = replace(limits, refused_pause_min_ns=for_ever, refused_pause_max_ns=for_ever)
        super().__init__(policy, limits, jitter, now)


class GraceNeverEnds(Dispatcher):
    """Messages of other shares are left to their proxies for ever."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, replace(limits, share_grace_ns=10**6 * NS_PER_S), jitter, now)


BREAKS = [
    AcknowledgedIsNotHeard,
    VanishedClientsKeepTheirMessages,
    ExpiredLeasesAreStillSent,
    ASuspectRowIsSent,
    ARowThatCameWithItsClaimIsSentWhateverWasReported,
    RowsThatDidNotComeWithTheirClaimAreForgotten,
    KeysOfAnInsertAreTrusted,
    AnInsertTakesWhatCreditThereIs,
    CapacityIsIgnored,
    AFailedScanIsTheLast,
    ALostClaimBlocksThoseBehindIt,
    CommitsDuringAScanAreForgotten,
    CreditIsNotReserved,
    CreditIsCountedWrongly,
    LocksOutliveTheirTransactions,
    RollbacksAreNotCounted,
    MissedLocksCountAsLocked,
    OnlyTheLastEventOfATurnCounts,
    OneRefusedMessageHoldsUpOthers,
    RefusedOnceIsRefusedForEver,
]
BREAKS_OF_SHARES = [
    GraceNeverEnds,
]
BREAKS_OF_MORE = [
    ConditionsAreNotMinded,
    TheDeadAreDelivered,
    CreditIsNeverGivenBackToOtherGroups,
    PausesUseTheServersClock,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "broken", [*BREAKS, *BREAKS_OF_SHARES, *BREAKS_OF_MORE], ids=lambda dispatcher: dispatcher.__name__
)
def test_the_machine_objects_to_a_dispatcher_that_is_broken_on_purpose(
    broken: type[Dispatcher],
) -> None:
    class PlayBroken(Play):
        dispatcher_type = broken
        shares = broken in BREAKS_OF_SHARES
        plain = broken not in BREAKS_OF_MORE

    assert_objects(PlayBroken)


TestPlay = Play.TestCase
TestPlay.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
