"""Streams FOR UPDATE: what the dispatcher offers, and what becomes of what was locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from engine.dispatch.effects import Cause, Claim, Lock, Release, Scan
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Entry
from engine.queue_table import OnDisconnect
from tests.support.memory_store import Row
from tests.support.play import DEAD_LETTERS, EVEN, POLICY, TABLE, Asked, Stage


def locking(stage: Stage, subscriber: int, holder: int, limit: int = 10, wait_s: int = 20) -> Stage:
    """Begin a stream FOR UPDATE, and let it lock what there is."""
    stage.subscribe(subscriber, holder, limit=limit, first_wait_ns=wait_s * NS_PER_S, locks=True)
    stage.settle()
    return stage


def filled(*keys: int, **options: object) -> Stage:
    stage = Stage(policy=replace(POLICY, **options))  # type: ignore[arg-type]
    for key in keys:
        stage.enqueue(key)
    return stage


def effects(stage: Stage, kind: type) -> Sequence[Asked]:
    return [asked for asked in stage.asked if isinstance(asked.effect, kind)]


def test_messages_are_locked_in_order_and_never_claimed() -> None:
    stage = filled(3, 1, 2)
    locking(stage, 1, holder=1)
    assert stage.delivered[1] == [1, 2, 3]
    assert stage.ended == {1: Cause.COMPLETE}
    assert {row.epoch for row in stage.rows.values()} == {0}
    assert stage.dispatcher.in_flight == 3


def test_a_locked_message_is_offered_to_nobody_else_and_hides_no_other() -> None:
    stage = filled(*range(1, 7))
    locking(stage, 1, holder=1, limit=5)
    stage.handle(partial(stage.dispatcher.woken, anywhere=True))
    stage.subscribe(2, 2, limit=5, first_wait_ns=0, locks=True)
    offered = [asked.effect.keys for asked in effects(stage, Lock) if isinstance(asked.effect, Lock)]
    stage.settle()
    assert offered in ([], [(6,)])
    assert stage.delivered[2] == [6]


def test_a_message_that_somebody_has_locked_is_tried_again_with_pauses_while_the_stream_waits() -> None:
    stage = filled(1)
    stage.store.locked.add(1)
    locking(stage, 1, holder=1)
    assert not stage.ended
    stage.unlock_others()
    stage.run_until(lambda: 1 in stage.ended, within_ns=2 * NS_PER_S)
    assert stage.delivered[1] == [1]


def test_without_wait_a_stream_ends_when_all_is_locked_by_others() -> None:
    stage = filled(1, 2)
    stage.store.locked |= {1, 2}
    locking(stage, 1, holder=1, wait_s=0)
    assert stage.ended == {1: Cause.COMPLETE}
    assert 1 not in stage.delivered


def test_after_a_commit_what_was_not_acknowledged_is_delivered_again_without_time_passing() -> None:
    stage = filled(1, 2)
    locking(stage, 1, holder=1)
    stage.acknowledge(1, seen=False)
    stage.end_transaction(1, commits=True, certain=True)
    locking(stage, 2, holder=2)
    assert stage.delivered[2] == [2]
    assert stage.rows[2].epoch == 0


def acknowledged_during_a_scan() -> tuple[Stage, Asked]:
    """Messages 1 to 5 of ten are acknowledged while a scan is under way that has read them before."""
    stage = locking(filled(*range(1, 11)), 1, holder=1, limit=5)
    stage.subscribe(2, 2, limit=10, first_wait_ns=20 * NS_PER_S, locks=True)
    stage.handle(partial(stage.dispatcher.woken, anywhere=True))
    (scan,) = effects(stage, Scan)
    stage.do(scan)
    for key in range(1, 6):
        stage.acknowledge(key, seen=False)
    stage.end_transaction(1, commits=True, certain=True)
    return stage, scan


def test_what_is_acknowledged_while_a_scan_is_under_way_is_not_offered_again() -> None:
    stage, scan = acknowledged_during_a_scan()
    stage.answer(scan)
    assert not {lease.key for lease in stage.dispatcher.parts.leases} & set(range(1, 6))
    stage.settle()
    assert sorted(stage.delivered[2]) == list(range(6, 11))


def test_a_scan_that_began_behind_the_commit_of_an_acknowledgement_reported_later_loses_nothing() -> None:
    """The message was acknowledged, and is there again, when the scan begins; the binary log reports the former
    during the scan."""
    stage = filled(1)
    stage.subscribe(1, 1)
    (scan,) = effects(stage, Scan)
    stage.do(scan)
    stage.handle(stage.dispatcher.changes_logged, (), [1], {1: (0, 0)})
    stage.answer(scan)
    stage.settle()
    assert stage.delivered[1] == [1]


def test_a_message_that_is_dropped_since_its_reports_came_in_the_wrong_order_comes_within_a_second() -> None:
    stage = filled(1)
    stage.subscribe(1, 1)
    (scan,) = effects(stage, Scan)
    stage.do(scan)
    stage.handle(stage.dispatcher.settled, [1])
    stage.answer(scan)
    stage.run_until(lambda: 1 in stage.delivered, within_ns=NS_PER_S)
    assert stage.delivered[1] == [1]


def test_what_the_binary_log_shows_to_be_unacknowledged_meanwhile_is_offered() -> None:
    stage, scan = acknowledged_during_a_scan()
    stage.rows[1] = replace(stage.rows[1], time_acked_ns=None, time_next_ns=0)
    stage.acked_seen.discard(1)
    stage.handle(stage.dispatcher.changes_logged, [Entry(1, 0, 0, 0)], (), {1: (0, 0)})
    stage.answer(scan)
    stage.settle()
    assert sorted(stage.delivered[2]) == [1, *range(6, 11)]


def test_messages_whose_failure_cannot_be_counted_now_do_not_keep_those_behind_them_from_others() -> None:
    """The scan would show nothing that may be had, and be repeated at once."""
    stage = filled(*range(1, POLICY.cache_size + 2))
    locking(stage, 1, holder=1, limit=POLICY.cache_size)
    stage.end_transaction(1, commits=False)
    (release,) = effects(stage, Release)
    stage.fail(release)
    stage.subscribe(2, 2, limit=1, first_wait_ns=0)
    stage.settle()
    assert stage.delivered[2] == [POLICY.cache_size + 1]


@pytest.mark.parametrize("commits", [True, False])
def test_a_stream_that_ends_between_its_rows_and_the_answer_of_its_lock_leaves_them_to_its_transaction(
    commits: bool,
) -> None:
    stage = filled(1)
    stage.subscribe(1, 1, limit=5, first_wait_ns=20 * NS_PER_S, locks=True)
    (scan,) = effects(stage, Scan)
    stage.do(scan)
    stage.answer(scan)
    (lock,) = effects(stage, Lock)
    stage.do(lock)
    stage.cancel(1)
    stage.subscribe(2, 2, limit=5, first_wait_ns=900 * NS_PER_S, locks=True)
    stage.answer(lock)
    stage.settle()
    assert 2 not in stage.delivered
    stage.end_transaction(1, commits=commits)
    stage.run_until(lambda: 2 in stage.delivered)
    assert stage.rows[1].epoch == (0 if commits else 1)


def test_after_a_rollback_the_attempt_is_counted_before_the_message_comes_again() -> None:
    stage = filled(1)
    locking(stage, 1, holder=1)
    stage.end_transaction(1, commits=False)
    (release,) = effects(stage, Release)
    locking(stage, 2, holder=2, wait_s=60)
    assert release not in stage.asked
    assert stage.rows[1].epoch == 1
    assert 2 not in stage.delivered
    stage.run_until(lambda: 2 in stage.ended, within_ns=POLICY.ack_wait_ns + NS_PER_S)
    assert stage.delivered[2] == [1]


def test_a_rollback_is_counted_for_a_message_of_which_only_its_insert_was_known() -> None:
    """Its time is not that of most messages, and its priority either."""
    stage = Stage()
    locking(stage, 1, holder=1, limit=1)
    stage.store.put(TABLE, Row(7, priority=3, time_next_ns=stage.now_ns - NS_PER_S, payload=b"7"))
    stage.handle(stage.dispatcher.inserted, [7])
    assert [lock.effect.unscanned for lock in effects(stage, Lock) if isinstance(lock.effect, Lock)] == [True]
    stage.settle()
    assert stage.delivered == {1: [7]}
    stage.end_transaction(1, commits=False)
    stage.settle()
    assert stage.rows[7].epoch == 1


def test_a_message_that_was_not_locked_before_its_stream_ended_comes_in_its_order() -> None:
    """Two were inserted, of priorities that no scan has shown; the first is being locked."""
    stage = Stage()
    locking(stage, 1, holder=1, limit=1)
    locking(stage, 2, holder=2, limit=1)
    for key, priority in ((7, 2), (8, 1)):
        stage.store.put(TABLE, Row(key, priority=priority, payload=str(key).encode()))
    stage.handle(stage.dispatcher.inserted, [7, 8])
    for subscriber in (1, 2):
        stage.cancel(subscriber)
    stage.settle()
    stage.end_transaction(1, commits=True)
    stage.end_transaction(2, commits=True)
    locking(stage, 3, holder=3, limit=2)
    assert stage.delivered[3] == [8, 7]


def test_a_rollback_is_counted_once_though_the_first_answer_is_lost() -> None:
    stage = filled(1)
    locking(stage, 1, holder=1)
    stage.end_transaction(1, commits=False)
    (release,) = effects(stage, Release)
    stage.do(release)
    stage.fail(release)
    stage.pass_time(10 * NS_PER_S)
    stage.settle()
    assert stage.rows[1].epoch == 1


@pytest.mark.parametrize("keeps", [OnDisconnect.RELEASE, OnDisconnect.KEEP])
def test_a_client_that_vanishes_has_failed(keeps: OnDisconnect) -> None:
    stage = filled(1, on_disconnect=keeps)
    locking(stage, 1, holder=1)
    stage.disconnect(1)
    stage.settle()
    assert stage.rows[1].epoch == 1
    assert (stage.rows[1].entry.due_ns > stage.now_ns) is (keeps is OnDisconnect.KEEP)
    assert stage.dispatcher.in_flight == 0


def test_a_message_is_dead_as_soon_as_its_last_attempt_was_rolled_back() -> None:
    stage = filled(1, max_attempts=1, dead_letter=(None, DEAD_LETTERS.name))
    locking(stage, 1, holder=1)
    stage.end_transaction(1, commits=False)
    stage.settle()
    assert list(stage.store.rows[DEAD_LETTERS]) == [1]


def test_locked_messages_count_against_max_in_flight_until_the_transaction_ends() -> None:
    stage = filled(*range(1, 6), max_in_flight=2)
    locking(stage, 1, holder=1)
    assert stage.delivered[1] == [1, 2]
    locking(stage, 2, holder=2)
    assert 2 not in stage.delivered
    stage.end_transaction(1, commits=True)
    stage.settle()
    assert stage.delivered[2] == [1, 2]


def test_a_paused_queue_offers_nothing() -> None:
    stage = filled(1)
    stage.handle(stage.dispatcher.policy_changed, replace(POLICY, paused=True))
    locking(stage, 1, holder=1)
    assert 1 not in stage.delivered
    stage.handle(stage.dispatcher.policy_changed, POLICY)
    stage.settle()
    assert stage.delivered[1] == [1]


def test_a_client_that_does_not_read_is_offered_nothing_more() -> None:
    stage = filled(*range(1, 8))
    stage.subscribe(1, 1, limit=7, first_wait_ns=0, locks=True)
    stage.handle(stage.dispatcher.client_paused, 1)
    stage.settle()
    assert len(stage.delivered.get(1, ())) <= stage.limits.lock_max
    stage.handle(stage.dispatcher.client_resumed, 1)
    stage.settle()
    assert stage.delivered[1] == list(range(1, 8))


def test_a_client_that_does_not_read_keeps_nothing_from_others_but_what_it_is_to_lock() -> None:
    stage = filled(*range(1, 31), batch_size=2)
    stage.subscribe(1, 1, limit=30, first_wait_ns=0, locks=True)
    stage.do(effects(stage, Scan)[0])
    stage.answer(effects(stage, Scan)[0])
    (lock,) = effects(stage, Lock)
    assert 0 < stage.dispatcher.in_flight <= stage.limits.lock_max
    stage.do(lock)  # Its client does not read the rows, so the answer does not come.
    stage.subscribe(2, 2, limit=5, first_wait_ns=0, locks=True)
    for _ in range(10):
        for asked in [asked for asked in stage.asked if asked is not lock]:
            stage.do(asked)
            stage.answer(asked)
    assert len(stage.delivered[2]) == 5


def test_what_one_decision_may_not_offer_is_offered_soon_whatever_else_happens() -> None:
    limits = Limits(scan_min=40, window_max=40, lock_max=2, locks_turn_max=7)
    stage = Stage(policy=replace(POLICY, batch_size=2, cache_size=100), limits=limits)
    for key in range(30):
        stage.enqueue(key)
    stage.settle()
    with stage.turn():
        for stream in range(10):
            stage.subscribe(stream, stream, limit=2, first_wait_ns=20 * NS_PER_S, locks=True)
    (scan,) = effects(stage, Scan)
    stage.do(scan)
    stage.answer(scan)
    assert stage.dispatcher.in_flight == limits.locks_turn_max
    assert stage.dispatcher.ready
    while stage.dispatcher.wake_at_ns == stage.mono_ns + 1:
        before = stage.dispatcher.in_flight
        stage.pass_time(1)
        assert before < stage.dispatcher.in_flight <= before + limits.locks_turn_max
    assert len(effects(stage, Lock)) == 10


def test_streams_that_lock_and_streams_that_claim_share_a_queue() -> None:
    stage = Stage(policy=POLICY)
    stage.subscribe(1, 1)
    stage.subscribe(2, 2, limit=100, first_wait_ns=900 * NS_PER_S, locks=True)
    for key in range(1, 7):
        stage.enqueue(key)
        stage.settle()
        for claimed in stage.delivered.get(1, ()):
            stage.acknowledge(claimed, seen=True)
    assert sorted([*stage.delivered.get(1, ()), *stage.delivered.get(2, ())]) == list(range(1, 7))
    assert not {*stage.delivered.get(1, ())} & {*stage.delivered.get(2, ())}


def test_a_condition_is_the_sessions_to_check() -> None:
    stage = filled(1, 2, 3, 4)
    stage.subscribe(1, 1, limit=10, first_wait_ns=0, locks=True, selection=EVEN)
    stage.settle()
    assert stage.delivered[1] == [2, 4]


def test_an_acknowledgement_that_comes_late_does_not_end_what_is_being_locked() -> None:
    stage = filled(1)
    stage.subscribe(1, 1, limit=1, first_wait_ns=0, locks=True)
    while not (locks := effects(stage, Lock)):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.do(locks[0])
    stage.handle(stage.dispatcher.settled, [1])
    stage.answer(locks[0])
    assert stage.dispatcher.in_flight == 1
    assert stage.ended == {1: Cause.COMPLETE}


def test_the_binary_log_of_a_locked_message_causes_no_scan() -> None:
    stage = filled(1)
    locking(stage, 1, holder=1)
    stage.handle(stage.dispatcher.changes_logged, [Entry(1, 0, 0, 0)])
    assert not effects(stage, Scan)


def test_the_end_of_all_streams_leaves_locked_messages_to_their_transactions() -> None:
    stage = filled(1, 2)
    locking(stage, 1, holder=1, limit=1)
    stage.handle(partial(stage.dispatcher.end_all, cause=Cause.DRAINING))
    stage.settle()
    assert stage.dispatcher.settled_down
    assert stage.rows[1].epoch == 0


def test_what_a_session_locks_after_the_end_of_its_stream_is_its_transactions() -> None:
    stage = filled(1)
    stage.subscribe(1, 1, limit=1, first_wait_ns=0, locks=True)
    while not (locks := effects(stage, Lock)):
        stage.do(stage.asked[0])
        stage.answer(stage.asked[0])
    stage.cancel(1)
    stage.do(locks[0])
    stage.answer(locks[0])
    assert stage.dispatcher.in_flight == 1
    stage.end_transaction(1, commits=True)
    assert stage.dispatcher.in_flight == 0
    assert not effects(stage, Claim)


class Reading(Stage):
    """Notes how many due messages each scan reads at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.limits_of_scans: list[int] = []

    def do(self, asked: Asked) -> None:
        if isinstance(asked.effect, Scan):
            self.limits_of_scans.append(asked.effect.limit)
        super().do(asked)

    def consume(self, batches: int, pause_ns: int, *, locks: bool = True, wakes: bool = False) -> set[int]:
        """Take batches of ten messages, each so long after the one before. Returns how many messages the last scans
        read ahead, in tens. `wakes`: each time somebody has written to the table."""
        for number in range(len(self.streams) + 1, len(self.streams) + 1 + batches):
            if wakes:
                self.handle(self.dispatcher.woken)
            self.subscribe(number, 1, limit=10, first_wait_ns=0, locks=locks)
            self.settle()
            for key in self.delivered[number]:
                self.acknowledge(key, seen=True)
            if locks:
                self.end_transaction(1, commits=True, certain=True)
            self.pass_time(pause_ns)
        return {limit // 10 for limit in self.limits_of_scans[-3:]}


def reading() -> Reading:
    """Messages for streams that read 20 ahead usually, and 80 at most. A scan reads as many more as were taken."""
    limits = Limits(scan_min=5, window_max=20, locks_window_max=80, lock_max=10)
    stage = Reading(policy=replace(POLICY, cache_size=1_000, batch_size=10), limits=limits)
    for key in range(1, 2_001):
        stage.enqueue(key)
    return stage


ENOUGH_NS = Limits().window_lasts_ns


def test_streams_that_use_up_soon_what_a_scan_has_read_read_further_ahead() -> None:
    stage = reading()
    assert stage.consume(40, ENOUGH_NS // 10) <= {8, 9}
    assert stage.consume(40, ENOUGH_NS // 5) <= {8, 9}  # It lasts for longer, but not for twice as long as is enough.
    assert stage.consume(40, ENOUGH_NS) <= {2, 3}


def test_a_scan_for_what_is_new_reads_no_further_ahead() -> None:
    assert reading().consume(40, ENOUGH_NS, wakes=True) <= {2, 3}


def test_streams_that_claim_read_no_further_ahead() -> None:
    assert reading().consume(40, ENOUGH_NS // 10, locks=False) <= {2, 3}
