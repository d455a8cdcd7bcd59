"""Proxies that die: what they had in flight comes back, and no message has two holders.

Several dispatchers play on one in-memory store. A proxy dies between any two events, and what it had sent to the
server may be carried out afterwards; another one starts, perhaps with the same slot; a proxy loses the lock of its slot
for a moment, while others search. The waits of deliveries are so long that a message that only its wait brings back
counts as lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Claim, FindAbandoned
from engine.dispatch.instant import Instant
from engine.model import NS_PER_S, SLOTS, Key, Return
from tests.support.hunting import assert_objects
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import POLICY, TABLE, Asked, Holding, Stage
from tests.support.sampling import examples

T = TypeVar("T")

PICK = st.integers(0, 1_000)
KEYS = st.integers(1, 12)
WAIT_NS = 3_600 * NS_PER_S
LEASED = replace(
    POLICY, ack_wait_ns=WAIT_NS, min_backoff_ns=WAIT_NS, max_backoff_ns=WAIT_NS, cache_size=30, lease="lease"
)
LATE_NS = 2 * NS_PER_S
"""How long after its death what a proxy had sent is carried out at most."""
BLIPS_APART_NS = 10 * NS_PER_S
SOON_NS = 30 * NS_PER_S
"""Longer than the pauses after failures, shorter than any wait."""


@dataclass(eq=False)
class Proxy:
    """A proxy that lives: its dispatcher, and its slot."""

    stage: Stage
    slot: int


class Fleet(RuleBasedStateMachine):
    """Up to three proxies on one store."""

    dispatcher_type: type[Dispatcher] = Dispatcher

    @initialize()
    def open(self) -> None:
        self.store = MemoryStore(now_ns=1_000_000 * NS_PER_S)
        self.mono_ns = 5_000 * NS_PER_S
        self.holdings: dict[Key, Holding] = {}
        self.acked: set[Key] = set()
        self.proxies: list[Proxy] = []
        self.late: list[tuple[int, Stage, Asked]] = []
        """What dead proxies had sent, and until when it may be carried out (monotonic)."""
        self.unnoticed: list[Proxy] = []
        """The proxies that have not been told yet that another one is gone."""
        self.unanswered: dict[tuple[Key, int], Stage] = {}
        """Deliveries whose claims were carried out and their answers lost, and who claimed them."""
        self.streams = 0
        self.blip_ns = 0
        self.start_a_proxy(0)

    # Proxies.

    @precondition(lambda self: len(self.proxies) < 3)
    @rule(pick=PICK)
    def start_a_proxy(self, pick: int) -> None:
        slot = self._one_of([slot for slot in range(1, 5) if slot not in self.store.slots_held], pick)
        stage = Stage(
            policy=LEASED, dispatcher_type=self.dispatcher_type, store=self.store, mono_ns=self.mono_ns,
            holdings=self.holdings, acked_seen=self.acked,
        )  # fmt: skip
        self.store.slots_held.add(slot)
        self.proxies.append(Proxy(stage, slot))
        stage.handle(stage.dispatcher.slot_given, slot)
        for _ in range(2):
            self.streams += 1
            stage.subscribe(self.streams, holder=self.streams)

    @precondition(lambda self: len(self.proxies) > 1)
    @rule(pick=PICK)
    def a_proxy_dies(self, pick: int) -> None:
        self._die(self._one_of(self.proxies, pick))

    @precondition(lambda self: len(self.proxies) > 1 and self._claiming())
    @rule(pick=PICK)
    def a_claim_is_carried_out_after_the_death_of_its_proxy_and_a_first_search(self, pick: int) -> None:
        proxy = self._one_of(self._claiming(), pick)
        self._die(proxy)
        for other in self.proxies:
            other.stage.handle(other.stage.dispatcher.proxy_lost)
            other.stage.settle()
        self.unnoticed.clear()
        self._pass_time(NS_PER_S)
        for late in [late for late in self.late if late[1] is proxy.stage]:
            self.late.remove(late)
            late[1].do(late[2])

    def _claiming(self) -> list[Proxy]:
        """The proxies that have sent a claim which the server has not carried out."""
        return [
            proxy
            for proxy in self.proxies
            if any(isinstance(asked.effect, Claim) and asked.answer is None for asked in proxy.stage.asked)
        ]

    def _die(self, proxy: Proxy) -> None:
        self.proxies.remove(proxy)
        self.unnoticed = [other for other in self.unnoticed if other is not proxy] + self.proxies
        self.store.slots_held.discard(proxy.slot)
        sent = [asked for asked in proxy.stage.asked if asked.answer is None]
        self.late += [(self.mono_ns + LATE_NS, proxy.stage, asked) for asked in sent]
        for key, holding in list(self.holdings.items()):
            if holding.subscriber in proxy.stage.streams:
                del self.holdings[key]

    @precondition(lambda self: self.late)
    @rule(pick=PICK)
    def the_server_carries_out_what_a_dead_proxy_had_sent(self, pick: int) -> None:
        late = self._one_of(self.late, pick)
        self.late.remove(late)
        _, stage, asked = late
        stage.do(asked)

    @precondition(lambda self: self.unnoticed)
    @rule(pick=PICK)
    def a_proxy_notices_that_another_one_is_gone(self, pick: int) -> None:
        proxy = self._one_of(self.unnoticed, pick)
        self.unnoticed.remove(proxy)
        proxy.stage.handle(proxy.stage.dispatcher.proxy_lost)

    @precondition(lambda self: self.mono_ns >= self.blip_ns)
    @rule(pick=PICK)
    def a_proxy_loses_its_lock_for_a_moment_while_the_others_search(self, pick: int) -> None:
        self.blip_ns = self.mono_ns + BLIPS_APART_NS
        proxy = self._one_of(self.proxies, pick)
        self.store.slots_held.discard(proxy.slot)
        for other in self.proxies:
            other.stage.handle(other.stage.dispatcher.proxy_lost)
            for asked in list(other.stage.asked):
                if isinstance(asked.effect, FindAbandoned) and asked.answer is None:
                    other.stage.do(asked)
        self.store.slots_held.add(proxy.slot)

    # Clients.

    @rule(key=KEYS, pick=PICK)
    def enqueue(self, key: int, pick: int) -> None:
        if key not in self.store.rows[TABLE]:
            self.store.put(TABLE, Row(key, time_next_ns=0, payload=str(key).encode()))
            stage = self._one_of(self.proxies, pick).stage
            stage.handle(stage.dispatcher.woken)

    @precondition(lambda self: self.holdings)
    @rule(pick=PICK)
    def acknowledge(self, pick: int) -> None:
        self._acknowledge(self._one_of(sorted(self.holdings, key=str), pick))

    def _acknowledge(self, key: Key) -> None:
        stage = next(proxy.stage for proxy in self.proxies if self.holdings[key].subscriber in proxy.stage.streams)
        stage.acknowledge(key, seen=True)

    # Clock and database.

    @precondition(lambda self: self._asked())
    @rule(pick=PICK, answered=st.booleans())
    def the_server_does_one(self, pick: int, answered: bool) -> None:
        stage, asked = self._one_of(self._asked(), pick)
        if asked.answer is None:
            stage.do(asked)
        if answered:
            stage.answer(asked)

    @precondition(lambda self: self._asked())
    @rule(pick=PICK)
    def one_fails_or_its_answer_is_lost(self, pick: int) -> None:
        stage, asked = self._one_of(self._asked(), pick)
        if isinstance(asked.effect, Claim) and asked.answer is not None:
            self.unanswered |= {(want.key, want.epoch + 1): stage for want in asked.effect.wanted}
        stage.fail(asked)

    @rule(duration_s=st.sampled_from([0.001, 0.6, 3]))
    def time_passes(self, duration_s: float) -> None:
        self._pass_time(int(duration_s * NS_PER_S))

    @rule()
    def all_goes_well_for_a_while(self) -> None:
        for _ in range(10):
            for proxy in self.proxies:
                proxy.stage.settle()
            self._pass_time(NS_PER_S)

    def _pass_time(self, duration_ns: int) -> None:
        self.mono_ns += duration_ns
        self.store.now_ns += duration_ns
        for until_ns, stage, asked in list(self.late):
            if until_ns <= self.mono_ns:
                self.late.remove((until_ns, stage, asked))
        for proxy in self.proxies:
            proxy.stage.mono_ns = self.mono_ns
            proxy.stage.handle(proxy.stage.dispatcher.tick)

    # What must hold.

    def teardown(self) -> None:
        if not hasattr(self, "proxies"):
            return
        for proxy in self.unnoticed:
            proxy.stage.handle(proxy.stage.dispatcher.proxy_lost)
        until_ns = self.mono_ns + SOON_NS
        self._all_are_acknowledged()
        while self._lost():
            assert self.mono_ns < until_ns, f"only their waits bring {self._lost()} back"
            wakes = [proxy.stage.dispatcher.wake_at_ns for proxy in self.proxies]
            wake_ns = min([at_ns for at_ns in wakes if at_ns is not None], default=until_ns)
            self._pass_time(min(max(wake_ns - self.mono_ns, NS_PER_S // 1_000), until_ns - self.mono_ns))
            self._all_are_acknowledged()

    def _all_are_acknowledged(self) -> None:
        """Everything that is under way is carried out and answered, and then every delivery is acknowledged."""
        for proxy in self.proxies:
            proxy.stage.settle()
        for key in sorted(self.holdings, key=str):
            self._acknowledge(key)

    def _lost(self) -> list[Key]:
        """What is not acknowledged. Without a slot a claim belongs to nobody, and only its wait ends it."""
        return [
            row.key
            for row in self.store.rows[TABLE].values()
            if row.time_acked_ns is None
            and (row.lease_ns is None or row.lease_ns != row.time_next_ns or row.lease_ns % SLOTS)
            and not self._lost_answer(row)
        ]

    def _lost_answer(self, row: Row) -> bool:
        """Whether a proxy that lives has claimed it, and the answer was lost."""
        stage = self.unanswered.get((row.key, row.epoch))
        return row.lease_ns == row.time_next_ns and any(proxy.stage is stage for proxy in self.proxies)

    def _asked(self) -> list[tuple[Stage, Asked]]:
        return [(proxy.stage, asked) for proxy in self.proxies for asked in proxy.stage.asked]

    @staticmethod
    def _one_of(things: Sequence[T], pick: int) -> T:
        return things[pick % len(things)]


class ProxiesAreGoneForEver(Dispatcher):
    """Only a proxy that starts searches for what others have left."""

    def proxy_lost(self, now: Instant) -> Effects:
        return self._advance(now)


class OneSearchIsEnough(Dispatcher):
    """What one search finds is released."""

    def search_done(self, now: Instant, found: Sequence[Return]) -> Effects:
        self.parts.abandoned._gone_since_ns = dict.fromkeys(range(SLOTS), 0)
        return super().search_done(now, found)


class ASlotIsUsedAtOnce(Dispatcher):
    """What an earlier proxy with the same slot has left counts as this proxy's own."""

    def slot_given(self, now: Instant, slot: int) -> Effects:
        self.parts.abandoned.slot = slot
        return super().slot_given(now, slot)


BREAKS = [ProxiesAreGoneForEver, OneSearchIsEnough, ASlotIsUsedAtOnce]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("broken", BREAKS, ids=lambda dispatcher: dispatcher.__name__)
def test_the_play_objects_to_a_dispatcher_that_is_broken_on_purpose(broken: type[Dispatcher]) -> None:
    class BrokenFleet(Fleet):
        dispatcher_type = broken

    assert_objects(BrokenFleet)


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
