"""Several proxies with streams of one condition: whatever they leave to each other, each message is delivered soon.

Their dispatchers play on one in-memory store. Messages come with reports or without, are locked by other sessions for a
while, or come due later. Consumers stop reading and go on, and the shares change. The poller is so rare that a message
that it alone would find counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Entry, Share
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import EVEN, POLICY, TABLE, Stage
from tests.support.sampling import examples

PROXIES = 3
PROXY = st.integers(0, PROXIES - 1)
MS = 1_000_000
SOON_NS = 60 * NS_PER_S
"""Longer than the reads of a scan that goes on where the last one ended, and the grace."""


class Proxies(RuleBasedStateMachine):
    """Three proxies, each with an endless stream of the even messages, and with a poll now and then."""

    dispatcher_type: type[Dispatcher] = Dispatcher
    begins_contended = False
    """Whether each play begins with contention, and with scan positions: then faults are found sooner."""

    @initialize(bound=st.sampled_from([0, 8]), window=st.sampled_from([12, 1_000]))
    def open(self, bound: int, window: int) -> None:
        self.store = MemoryStore(now_ns=1_000_000 * NS_PER_S)
        limits = Limits(contention_bound=bound, window_max=window, scan_min=4)
        policy = replace(POLICY, cache_size=100, batch_size=4)
        self.stages = [
            Stage(policy=policy, limits=limits, store=self.store, id_grows=True, dispatcher_type=self.dispatcher_type)
            for _ in range(PROXIES)
        ]
        self.streams = 1
        self.greatest = 0
        self.seen = [0] * PROXIES
        for number, stage in enumerate(self.stages):
            stage.set_share(Share(number, PROXIES))
            stage.subscribe(1, holder=1, selection=EVEN)
            self.everything(number)
        if self.begins_contended:
            self._contend()

    def _contend(self) -> None:
        """All read the same messages, and then all try to claim them, each time another one first."""
        for first in range(PROXIES):
            order = [(first + number) % PROXIES for number in range(PROXIES)]
            self.messages_are_inserted(30, 0, logged=True, delay_s=0)
            for number in (*order, *order):
                self.a_proxy_works(number, 1)
            for number in order:
                self.everything(number)
            self.time_passes(3_000)

    @rule(
        count=st.sampled_from([1, 2, 12, 30]), through=PROXY, logged=st.booleans(), delay_s=st.sampled_from([0, 0, 3])
    )
    def messages_are_inserted(self, count: int, through: int, logged: bool, delay_s: int) -> None:
        due_ns = self.store.now_ns + delay_s * NS_PER_S if delay_s else 0
        rows = [Row(self.greatest + 1 + number, time_next_ns=due_ns) for number in range(count)]
        rows = [replace(row, payload=str(row.key).encode()) for row in rows]
        self.greatest += count
        for row in rows:
            self.store.put(TABLE, row)
        stage = self.stages[through]
        stage.handle(stage.dispatcher.woken)
        for other in self.stages if logged else ():
            if other is not stage:
                other.handle(other.dispatcher.changes_logged, [Entry(row.key, 0, 0, due_ns) for row in rows])

    @rule(number=PROXY, steps=st.integers(1, 4))
    def a_proxy_works(self, number: int, steps: int) -> None:
        stage = self.stages[number]
        for asked in stage.asked[:steps]:
            if asked.answer is None:
                stage.do(asked)
            else:
                stage.answer(asked)
        self._acknowledge(number)

    @rule(number=PROXY)
    def everything(self, number: int) -> None:
        self.stages[number].settle()
        self._acknowledge(number)

    @rule(duration_ms=st.sampled_from([1, 20, 60, 150, 3_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.store.now_ns += duration_ms * MS
        for stage in self.stages:
            stage.mono_ns += duration_ms * MS
            stage.handle(stage.dispatcher.tick)

    @rule(number=PROXY, paused=st.booleans())
    def a_consumer_stops_or_goes_on(self, number: int, paused: bool) -> None:
        dispatcher = self.stages[number].dispatcher
        self.stages[number].handle(dispatcher.client_paused if paused else dispatcher.client_resumed, 1)

    @rule(number=PROXY)
    def a_client_polls(self, number: int) -> None:
        self.streams += 1
        self.stages[number].subscribe(self.streams, holder=self.streams, selection=EVEN, first_wait_ns=0)

    @rule(every=st.integers(2, 5))
    def others_lock_messages(self, every: int) -> None:
        self.store.locked = {key for key in self.store.rows[TABLE] if int(key) % every == 0}

    @rule()
    def their_locks_end(self) -> None:
        self.store.locked = set()

    @rule(number=PROXY, share=st.integers(0, PROXIES - 1), count=st.integers(0, PROXIES))
    def a_share_changes(self, number: int, share: int, count: int) -> None:
        """The shares need not fit together."""
        self.stages[number].set_share(Share(share % count, count) if count else None)

    def teardown(self) -> None:
        if not hasattr(self, "stages"):
            return
        self.store.locked = set()
        for stage in self.stages:
            stage.handle(stage.dispatcher.client_resumed, 1)
        until_ns = self.store.now_ns + SOON_NS
        while self.store.now_ns < until_ns and self._waiting():
            for number in range(PROXIES):
                self.everything(number)
            self.time_passes(20)
        assert not self._waiting(), f"lost: {self._waiting()}"

    def _waiting(self) -> Collection[object]:
        rows = self.store.rows[TABLE].values()
        return [row.key for row in rows if int(row.key) % 2 == 0 and row.time_acked_ns is None]

    def _acknowledge(self, number: int) -> None:
        stage = self.stages[number]
        for got in stage.delivered.values():
            for key in got:
                stage.acknowledge(key, seen=True)
            got.clear()


class ContendedProxies(Proxies):
    begins_contended = True


class BrokenGroups(Dispatcher):
    """`damage` is called for each filter group before each decision."""

    def damage(self, group: FilterGroup) -> None:
        raise NotImplementedError

    def _advance(self, now: Instant) -> Effects:
        for group in self.parts.groups:
            if group.selection == EVEN:
                self.damage(group)
        return super()._advance(now)


def disable(thing: object, method: str, instead: Callable[..., object] = lambda *_: None) -> None:
    """Replace a method of one object."""
    setattr(thing, method, instead)


class TheOtherSharesAreNotRead(BrokenGroups):
    """What is left to others is left to them for ever."""

    def damage(self, group: FilterGroup) -> None:
        disable(group.scans.others, "scan_started", lambda *_, **__: 0)


def play_with_a_share_of_nobody(dispatcher: type[Dispatcher]) -> None:
    """Each proxy leaves the messages of one share to others, and none has that share."""

    class Play(ContendedProxies):
        dispatcher_type = dispatcher

    play = Play()
    play.open(bound=8, window=1_000)
    play.a_share_changes(number=0, share=1, count=PROXIES)
    for number in range(PROXIES):
        play.everything(number)
    play.messages_are_inserted(count=30, through=0, logged=False, delay_s=0)
    play.teardown()


def test_the_messages_of_a_share_that_no_proxy_has_are_delivered() -> None:
    play_with_a_share_of_nobody(Dispatcher)


def test_the_play_objects_to_a_dispatcher_that_does_not_read_the_other_shares() -> None:
    with pytest.raises(AssertionError, match="lost"):
        play_with_a_share_of_nobody(TheOtherSharesAreNotRead)


TestProxies = Proxies.TestCase
TestProxies.settings = settings(max_examples=examples(30), stateful_step_count=50, deadline=None)
TestContendedProxies = ContendedProxies.TestCase
TestContendedProxies.settings = settings(max_examples=examples(30), stateful_step_count=50, deadline=None)
