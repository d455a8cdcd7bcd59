"""Shares: a dispatcher takes its own messages at once, and those of other proxies after a grace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.dispatch.effects import Cause, Claim, Scan
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.other_shares import STAYS_MAX, OtherShares
from engine.dispatch.time_order import place_of
from engine.model import NS_PER_S, Entry, Share, id_hash
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import POLICY, TABLE, Stage

GRACE_NS = Limits().share_grace_ns
HALF = Share(0, 2)
OWN = [key for key in range(1, 41) if HALF.turn(key) == 0]
OTHERS = [key for key in range(1, 41) if HALF.turn(key) == 1]


@pytest.fixture
def stage() -> Stage:
    """One of two proxies, with an endless stream and nothing left to scan for."""
    stage = Stage()
    stage.subscribe(1, holder=1)
    stage.set_share(HALF)
    stage.settle()
    stage.pass_time(GRACE_NS)
    stage.settle()
    return stage


def scans(stage: Stage) -> list[Scan]:
    return [asked.effect for asked in stage.asked if isinstance(asked.effect, Scan)]


def log(stage: Stage, *keys: int) -> None:
    """The messages are committed elsewhere, and the binary log shows them."""
    entries = [Entry(key, 0, 0, 0) for key in keys]
    for key in keys:
        stage.enqueue(key, wake=False)
    stage.handle(stage.dispatcher.changes_logged, entries)


def taken_elsewhere(stage: Stage, key: int, *, logged: bool) -> None:
    """Another proxy claims a message."""
    stage.store.put(TABLE, Row(key, epoch=1, time_next_ns=stage.now_ns + POLICY.ack_wait_ns))
    if logged:
        stage.notice(key)


def test_three_shares_are_one_after_the_other_in_turn() -> None:
    shares = [Share(number, 3) for number in range(3)]
    for key in range(1, 100):
        assert sorted(share.turn(key) for share in shares) == [0, 1, 2]
        assert shares[id_hash(key) % 3].turn(key) == 0


def test_one_scan_shows_the_messages_of_all_shares_and_those_of_others_are_left_for_a_grace(stage: Stage) -> None:
    stage.enqueue(OTHERS[0], wake=False)
    stage.enqueue(OWN[0])
    assert len(scans(stage)) == 1
    stage.settle()
    assert stage.delivered == {1: [OWN[0]]}
    stage.pass_time(GRACE_NS)
    stage.settle()
    assert stage.delivered == {1: [OWN[0], OTHERS[0]]}


def test_own_messages_in_the_log_are_claimed_at_once_and_without_a_scan(stage: Stage) -> None:
    log(stage, OWN[0])
    stage.settle()
    assert stage.delivered == {1: [OWN[0]]}


def test_other_messages_in_the_log_are_scanned_for_after_a_grace_and_taken_if_they_are_still_due(stage: Stage) -> None:
    log(stage, OTHERS[0])
    stage.settle()
    stage.pass_time(GRACE_NS - 1)
    assert not stage.asked
    stage.pass_time(1)
    assert len(scans(stage)) == 1
    stage.settle()
    assert stage.delivered == {1: [OTHERS[0]]}


def test_other_messages_that_the_log_shows_as_taken_cause_no_scan(stage: Stage) -> None:
    log(stage, OTHERS[0])
    taken_elsewhere(stage, OTHERS[0], logged=True)
    stage.pass_time(2 * GRACE_NS)
    assert not stage.asked


def test_other_messages_that_were_taken_in_silence_are_not_claimed(stage: Stage) -> None:
    log(stage, OTHERS[0])
    taken_elsewhere(stage, OTHERS[0], logged=False)
    stage.pass_time(GRACE_NS)
    stage.settle()
    assert not stage.delivered
    assert not any(isinstance(asked.effect, Claim) for asked in stage.asked)


@pytest.mark.parametrize("count", [1, 3])
def test_an_insert_here_claims_what_is_own_and_leaves_the_others(stage: Stage, count: int) -> None:
    keys = [*OWN[:count], *OTHERS[:count]]
    for key in keys:
        stage.enqueue(key, wake=False)
    stage.handle(stage.dispatcher.inserted, keys)
    (claim,) = [asked.effect for asked in stage.asked if isinstance(asked.effect, Claim)]
    assert {want.key for want in claim.wanted} == set(OWN[:count])


def test_the_proxy_whose_turn_is_third_waits_twice_as_long() -> None:
    stage, third = Stage(), Share(0, 3)
    key = next(key for key in range(1, 41) if third.turn(key) == 2)
    stage.subscribe(1, holder=1)
    stage.set_share(third)
    stage.settle()
    stage.pass_time(GRACE_NS)
    stage.settle()
    log(stage, key)
    began_ns = stage.mono_ns
    stage.run_until(lambda: stage.delivered == {1: [key]})
    assert stage.mono_ns == began_ns + 2 * GRACE_NS


def test_a_poll_gets_messages_of_any_share_at_once() -> None:
    stage = Stage()
    stage.set_share(HALF)
    for key in (OWN[0], OTHERS[0]):
        stage.enqueue(key)
    stage.subscribe(1, holder=1, first_wait_ns=0)
    stage.settle()
    assert sorted(stage.delivered[1]) == sorted([OWN[0], OTHERS[0]])
    assert stage.ended == {1: Cause.COMPLETE}


@pytest.mark.parametrize("before", [None, Share(1, 2)])
@pytest.mark.parametrize("read", [False, True])
def test_a_poll_gets_the_messages_of_another_share_though_the_shares_change_meanwhile(
    before: Share | None, *, read: bool
) -> None:
    """While its scan is under way, or when it has come back and a claim is under way."""
    policy = replace(POLICY, batch_size=1)
    stage = Stage(policy=policy, limits=Limits(claims_max=1))
    stage.set_share(before)
    for key in OTHERS[:3]:
        stage.enqueue(key)
    stage.subscribe(1, holder=1, first_wait_ns=0)
    scan = next(asked for asked in stage.asked if isinstance(asked.effect, Scan))
    stage.do(scan)
    if read:
        stage.answer(scan)
    stage.set_share(HALF)
    stage.settle()
    assert sorted(stage.delivered[1]) == OTHERS[:3]
    assert stage.ended == {1: Cause.COMPLETE}


def test_a_backlog_that_its_proxy_leaves_is_taken_in_larger_and_larger_parts() -> None:
    """The proxy is there and takes nothing: its consumers are busy, or it has stopped a moment ago."""
    policy = replace(POLICY, cache_size=10_000, batch_size=200)
    stage = Stage(policy=policy, limits=Limits(), fetch_budget=10**6)
    stage.subscribe(1, holder=1)
    stage.set_share(HALF)
    stage.settle()
    for key in range(1, 1_001):
        stage.enqueue(key, wake=False)
    began_ns = stage.mono_ns
    stage.handle(stage.dispatcher.woken)
    seen: set[int] = set()

    def drained() -> bool:
        for key in stage.delivered.get(1, [])[len(seen) :]:
            seen.add(int(str(key)))
            stage.acknowledge(key, seen=True)
        return len(seen) == 1_000

    stage.run_until(drained)
    assert stage.mono_ns - began_ns < 15 * GRACE_NS


def test_two_dispatchers_that_drain_one_table_share_it_and_claim_little_in_vain() -> None:
    """Their statements are carried out in turn. No binary log shows what the other one has done."""
    messages, store = 1_000, MemoryStore(now_ns=Stage().now_ns)
    stages = [Stage(store=store, limits=Limits(), fetch_budget=10**6) for _ in range(2)]
    for number in range(1, messages + 1):
        store.put(TABLE, Row(number, payload=str(number).encode()))
    for number, stage in enumerate(stages):
        stage.set_share(Share(number, 2))
        stage.subscribe(1, holder=number)
    wanted, acknowledged = 0, [0, 0]
    while sum(acknowledged) < messages:
        for number, stage in enumerate(stages):
            for asked in list(stage.asked):
                wanted += len(asked.effect.wanted) if isinstance(asked.effect, Claim) else 0
                stage.do(asked)
                stage.answer(asked)
            for key in stage.delivered.get(1, [])[acknowledged[number] :]:
                acknowledged[number] += 1
                stage.acknowledge(key, seen=True)
            stage.mono_ns += 1_000_000
            stage.handle(stage.dispatcher.tick)
    assert wanted <= 1.05 * messages
    assert min(acknowledged) > messages // 3


@pytest.mark.parametrize("takes", [0, 1, 10])
def test_the_oldest_message_waits_for_no_proxy_that_is_slower(takes: int) -> None:
    """The consumer of the second proxy takes so many messages while that of the first takes sixty."""
    messages, store = 2_500, MemoryStore(now_ns=Stage().now_ns)
    policy, limits = replace(POLICY, cache_size=10_000, batch_size=100), Limits(share_lag_ns=2 * GRACE_NS)
    stages = [Stage(policy=policy, store=store, limits=limits, fetch_budget=10**6) for _ in range(2)]
    for number in range(1, messages + 1):
        store.put(TABLE, Row(number, payload=str(number).encode()))
    for number, (stage, prefetch) in enumerate(zip(stages, (60, max(1, takes)), strict=True)):
        stage.set_share(Share(number, 2))
        stage.subscribe(1, holder=number, prefetch=prefetch)
    done, newest, behind = [0, 0], 0, 0
    while newest < messages - 100:
        for number, (stage, pace) in enumerate(zip(stages, (60, takes), strict=True)):
            for asked in list(stage.asked):
                stage.do(asked)
                stage.answer(asked)
            for key in stage.delivered.get(1, [])[done[number] :][:pace]:
                done[number] += 1
                stage.acknowledge(key, seen=True)
            stage.mono_ns += 20_000_000
            stage.handle(stage.dispatcher.tick)
        store.now_ns += 20_000_000
        newest = max(map(int, stages[0].delivered.get(1, [0])))
        oldest = next((int(key) for key, row in store.rows[TABLE].items() if not row.epoch), messages)
        behind = max(behind, newest - oldest)
    assert behind < 1_500


def test_a_locked_message_of_the_own_share_keeps_none_of_another_waiting(stage: Stage) -> None:
    """The other proxy takes nothing."""
    stage.store.locked = {OWN[0]}
    later = [key for key in OTHERS if key > OWN[0]][:5]
    for key in (OWN[0], *later):
        stage.enqueue(key, wake=False)
    stage.handle(stage.dispatcher.woken)
    began_ns = stage.mono_ns
    stage.run_until(lambda: sorted(map(int, stage.delivered.get(1, []))) == later)
    assert stage.mono_ns - began_ns < 10 * GRACE_NS


@pytest.fixture
def idle() -> Stage:
    """One of two proxies, which has read a backlog of its share ahead, and whose consumer holds 100 of it
    and takes no more."""
    policy = replace(POLICY, cache_size=10_000, batch_size=100)
    stage = Stage(policy=policy, limits=Limits(), fetch_budget=10**6)
    stage.set_share(HALF)
    for key in range(1, 2_001):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1, prefetch=100)
    stage.settle()
    assert len(stage.delivered[1]) == 100
    return stage


def claim_sizes(stage: Stage) -> list[int]:
    return [len(asked.effect.wanted) for asked in stage.asked if isinstance(asked.effect, Claim)]


def acknowledge_all(stage: Stage) -> None:
    for key in stage.delivered[1][-100:]:
        stage.acknowledge(key, seen=False)
    stage.handle(stage.dispatcher.settled, list(stage.delivered[1][-100:]))


def test_a_proxy_that_stood_still_tries_few_messages_and_reads_its_share_again_when_they_are_gone(
    idle: Stage,
) -> None:
    """It knows nothing of what happened meanwhile: no event came."""
    for key, row in list(idle.rows.items()):
        if row.epoch == 0:
            taken_elsewhere(idle, int(str(key)), logged=False)
    idle.mono_ns += 20 * GRACE_NS
    idle.asked.clear()
    tried = 0
    acknowledge_all(idle)
    while idle.asked:
        tried += sum(claim_sizes(idle))
        for asked in list(idle.asked):
            idle.do(asked)
            idle.answer(asked)
    assert tried <= Limits().in_vain_max


def test_a_proxy_that_stood_still_claims_as_many_as_before_once_it_has_found_some(idle: Stage) -> None:
    idle.mono_ns += 20 * GRACE_NS
    acknowledge_all(idle)
    assert claim_sizes(idle) == [Limits().in_vain_max]
    idle.settle()
    assert len(idle.delivered[1]) == 200


@pytest.mark.parametrize("took_s", [0.0, 0.4, 2.0])
@pytest.mark.parametrize("share", [None, HALF])
def test_locked_messages_at_the_front_keep_none_behind_them_however_slow_the_database_is(
    share: Share | None, took_s: float
) -> None:
    """A claim of a proxy that vanished on the way keeps its locks until the server notices, for example."""
    policy = replace(POLICY, cache_size=10_000, batch_size=100)
    stage = Stage(policy=policy, limits=Limits(), fetch_budget=10**6, unread_every=10**6)
    stage.set_share(share)
    for key in range(1, 2_001):
        stage.enqueue(key, wake=False)
    stage.store.locked = {key for key in range(1, 1_001) if share is None or share.turn(key) == 0}
    stage.subscribe(1, holder=1, prefetch=100)
    for _ in range(60):
        asked = stage.asked[0]
        stage.do(asked)
        stage.pass_time(int(took_s * NS_PER_S))
        stage.answer(asked)
        if stage.delivered:
            break
    assert stage.delivered


class Left:
    """The messages of other shares, and scans that show some of them."""

    def __init__(self) -> None:
        self.others = OtherShares(Limits())
        self.others.set_share(HALF)

    def scan(self, shown: Sequence[Entry], after_ns: int, *, more: bool = False, **options: Any) -> list[Entry]:
        """The messages that this proxy takes after a scan."""
        reach = place_of(shown[-1]) if more else None
        now = Instant(after_ns, NS_PER_S)
        return self.others.scan_answered(shown, now, reach=reach, busy=False, room=100, **options).free


OTHER_ENTRIES = [Entry(key, 0, 0, 0) for key in OTHERS]


def test_a_scan_that_reads_less_than_the_one_before_shows_no_progress_of_others() -> None:
    """What it has not read may still be there, and keeps its place in the wait."""
    left = Left()
    assert left.scan(OTHER_ENTRIES, GRACE_NS) == []
    assert left.scan(OTHER_ENTRIES[:5], 3 * GRACE_NS, more=True) == OTHER_ENTRIES[:5]
    assert left.scan(OTHER_ENTRIES, 3 * GRACE_NS + 1, taken=OTHERS[:5]) == OTHER_ENTRIES[5:]


def test_what_a_scan_has_passed_and_not_shown_was_taken_by_others_though_the_last_ones_are_known_here() -> None:
    left, entries = Left(), OTHER_ENTRIES[:6]
    left.scan([*entries[:3], *entries[4:]], GRACE_NS)
    shown = [entries[0], entries[1], entries[3]]
    found = left.scan(shown, 3 * GRACE_NS, more=True, taken=[entries[3].key])
    assert found == [entries[1]]  # As many as were taken stay.


def test_a_message_that_stays_while_others_are_taken_is_one_that_its_proxy_does_not_take() -> None:
    left, waiting = Left(), list(OTHER_ENTRIES)
    left.scan(waiting, 0)
    for scan in range(1, STAYS_MAX + 1):
        del waiting[1]
        front = place_of(waiting[1])
        assert left.scan(waiting, scan * GRACE_NS, front=front) == []
    del waiting[1]
    assert left.scan(waiting, (STAYS_MAX + 1) * GRACE_NS, front=place_of(waiting[1])) == waiting[:1]


def test_messages_of_others_behind_the_first_own_one_are_left_to_them() -> None:
    """They come later in the order of delivery. Their proxies have not been slower than this one."""
    left, entries = Left(), OTHER_ENTRIES[:8]
    left.scan(entries, 0)
    assert left.scan(entries, 2 * GRACE_NS, front=place_of(entries[2])) == entries[:2]
    assert left.scan(entries[2:], 3 * GRACE_NS) == entries[2:]
