"""What follows when a proxy is gone, one case after the other. tests/property/test_abandoned.py plays all orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.dispatch.abandoned import SEARCHES
from engine.dispatch.effects import Claim, FindAbandoned
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S
from engine.queue_table import OnDisconnect, Policy
from tests.support.memory_store import MemoryStore
from tests.support.play import POLICY, Stage

HOUR_NS = 3_600 * NS_PER_S
LEASED = replace(POLICY, ack_wait_ns=HOUR_NS, min_backoff_ns=HOUR_NS, max_backoff_ns=HOUR_NS, lease="lease")
PAUSE_NS = Limits().abandoned_pause_ns
ONE, OTHER = 1, 2
"""Slots."""


def proxy(store: MemoryStore, slot: int, policy: Policy = LEASED) -> Stage:
    """A proxy in this slot whose first searches are over, with an endless stream."""
    stage = Stage(policy=policy, store=store)
    store.slots_held.add(slot)
    stage.handle(stage.dispatcher.slot_given, slot)
    rest(stage)
    stage.subscribe(slot, holder=slot)
    stage.settle()
    return stage


def rest(stage: Stage) -> None:
    """Let all searches come back."""
    for _ in range(SEARCHES + 1):
        stage.settle()
        stage.pass_time(10 * NS_PER_S)
    stage.settle()


def searches(stage: Stage) -> list[FindAbandoned]:
    return [asked.effect for asked in stage.asked if isinstance(asked.effect, FindAbandoned)]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(now_ns=1_000_000 * NS_PER_S)


def test_messages_of_a_lost_proxy_are_delivered_after_a_second_search(store: MemoryStore) -> None:
    doomed = proxy(store, ONE)
    doomed.enqueue(7)
    doomed.settle()
    survivor = proxy(store, OTHER)
    store.slots_held.discard(ONE)
    survivor.handle(survivor.dispatcher.proxy_lost)
    survivor.settle()
    assert not survivor.delivered
    survivor.pass_time(PAUSE_NS)
    survivor.settle()
    assert survivor.delivered == {OTHER: [7]}


def test_a_claim_that_is_carried_out_after_the_first_search_is_found_by_a_later_one(store: MemoryStore) -> None:
    doomed = proxy(store, ONE)
    doomed.enqueue(7)
    claim = next(asked for asked in doomed.asked if not isinstance(asked.effect, Claim))
    doomed.do(claim)
    doomed.answer(claim)
    (claim,) = [asked for asked in doomed.asked if isinstance(asked.effect, Claim)]
    store.locked.add(7)  # The survivor does not take it in between.
    survivor = proxy(store, OTHER)
    store.slots_held.discard(ONE)
    survivor.handle(survivor.dispatcher.proxy_lost)
    survivor.settle()
    store.locked.clear()
    doomed.do(claim)
    survivor.run_until(lambda: survivor.delivered == {OTHER: [7]}, within_ns=10 * NS_PER_S)


def test_a_proxy_that_has_its_lock_again_keeps_its_messages(store: MemoryStore) -> None:
    one, other = proxy(store, ONE), proxy(store, OTHER)
    one.enqueue(7)
    one.settle()
    store.slots_held.discard(ONE)
    other.handle(other.dispatcher.proxy_lost)
    other.settle()
    store.slots_held.add(ONE)
    rest(other)
    assert not other.delivered
    assert one.delivered == {ONE: [7]}


def test_a_slot_is_used_only_when_nothing_of_an_earlier_proxy_is_left(store: MemoryStore) -> None:
    doomed = proxy(store, ONE)
    doomed.enqueue(7)
    doomed.settle()
    again = Stage(policy=LEASED, store=store)
    again.settle()
    again.handle(again.dispatcher.slot_given, ONE)
    assert [search.slot for search in searches(again)] == [ONE]
    again.subscribe(1, holder=1)
    again.run_until(lambda: again.delivered == {1: [7]}, within_ns=10 * NS_PER_S)
    assert again.rows[7].epoch == 2


def test_without_a_slot_the_claims_belong_to_nobody(store: MemoryStore) -> None:
    stage = proxy(store, ONE)
    stage.handle(stage.dispatcher.slot_given, 0)
    stage.enqueue(7)
    stage.settle()
    lease_ns = stage.rows[7].lease_ns
    assert lease_ns is not None
    assert lease_ns % 1_000 == 0


def test_a_proxy_that_has_its_slot_again_uses_it_whatever_it_has_in_flight(store: MemoryStore) -> None:
    keys = range(Limits().claim_max + 1)
    stage = proxy(store, ONE, replace(LEASED, cache_size=len(keys)))
    for key in keys:
        stage.enqueue(key)
    stage.settle()
    assert sorted(stage.delivered[ONE]) == list(keys)
    stage.handle(stage.dispatcher.slot_given, 0)
    stage.handle(stage.dispatcher.slot_given, ONE)
    rest(stage)
    assert stage.dispatcher.parts.abandoned.slot == ONE
    assert sorted(stage.delivered[ONE]) == list(keys)


def test_claims_carry_no_slot_until_a_new_one_can_be_used(store: MemoryStore) -> None:
    stage = proxy(store, ONE)
    stage.enqueue(7)
    scan = next(asked for asked in stage.asked if not isinstance(asked.effect, FindAbandoned))
    stage.handle(stage.dispatcher.slot_given, OTHER)  # Its search has not come back.
    stage.do(scan)
    stage.answer(scan)
    (claim,) = [asked.effect for asked in stage.asked if isinstance(asked.effect, Claim)]
    assert claim.slot == 0
    stage.settle()
    stage.enqueue(8)
    stage.settle()
    lease_ns = stage.rows[8].lease_ns
    assert lease_ns is not None
    assert lease_ns % 1_000 == OTHER


@pytest.mark.parametrize("policy", [POLICY, replace(LEASED, on_disconnect=OnDisconnect.KEEP)], ids=["plain", "keep"])
def test_nothing_is_searched_for_where_messages_are_not_released(store: MemoryStore, policy: Policy) -> None:
    stage = proxy(store, ONE, policy)
    stage.handle(stage.dispatcher.proxy_lost)
    assert not searches(stage)
