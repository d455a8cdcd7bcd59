"""The read-ahead buffer: which keys it offers, and when."""

from __future__ import annotations

import pytest

from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.read_ahead import MISSED_MIN, RETRY_MAX_NS, RETRY_MIN_NS, ReadAhead
from engine.dispatch.time_order import TimeOrder
from engine.dispatch.turns import TurnOrder, Turns
from engine.model import Entry, ScanResult


def at(ns: int) -> Instant:
    """Both clocks show this time."""
    return Instant(ns, ns)


def entry(key: int, *, priority: int = 0, due_ns: int = 0, epoch: int = 0) -> Entry:
    return Entry(key, epoch, priority, due_ns)


def window(*entries: Entry, now_ns: int = 100, more: bool = False, horizon_ns: int | None = None) -> ReadAhead:
    made = ReadAhead()
    made.replace_with(ScanResult(entries, more, horizon_ns), at(now_ns), ())
    return made


def keys(entries: list[Entry]) -> list[object]:
    return [found.key for found in entries]


def test_due_entries_come_by_priority_then_time_then_id() -> None:
    made = window(entry(4, priority=1), entry(3, due_ns=2), entry(2, due_ns=1), entry(1, due_ns=2))
    assert keys(made.take(9)) == [2, 1, 3, 4]


def test_entries_become_ready_when_they_are_due() -> None:
    made = window(entry(1, due_ns=150), entry(2, due_ns=120))
    assert made.ready == 0
    assert made.next_ns(at(100)) == 120
    made.promote_due(at(120))
    assert keys(made.take(9)) == [2]
    assert made.next_ns(at(100)) == 150


def test_the_horizon_is_a_time_to_scan_again() -> None:
    assert window(entry(1, due_ns=150), horizon_ns=140).next_ns(at(100)) == 140


def test_forgotten_entries_are_not_ready() -> None:
    made = window(entry(1), entry(2), entry(3, due_ns=200))
    made.forget([1, 3])
    made.promote_due(at(300))
    assert keys(made.take(9)) == [2]
    assert made.next_ns(at(300)) is None


def test_later_entries_beyond_the_bound_are_left_to_the_horizon() -> None:
    made = window(entry(1), entry(2, due_ns=200))
    found = (entry(3), entry(4, due_ns=170), entry(5, due_ns=150))
    made.extend_with(ScanResult(found, more=False, horizon_ns=300), at(100), (), most=1)
    assert keys(made.take(9)) == [1, 3]
    assert len(made) == 1
    assert made.horizon_ns == 150


def test_an_entry_that_is_due_later_by_now_is_not_ready_though_there_is_no_room_for_it() -> None:
    made = window(entry(1), entry(2, due_ns=200))
    made.extend_with(ScanResult((entry(1, due_ns=150, epoch=1),), more=False, horizon_ns=300), at(100), (), most=1)
    assert made.ready == 0
    assert made.horizon_ns == 150


def test_a_full_scan_replaces_the_buffer() -> None:
    made = window(entry(1), entry(2, due_ns=200))
    made.replace_with(ScanResult((entry(3),), more=False, horizon_ns=None), at(100), ())
    made.promote_due(at(300))
    assert keys(made.take(9)) == [3]


def test_unwanted_entries_are_left_out() -> None:
    made = ReadAhead()
    made.replace_with(ScanResult((entry(1), entry(2)), more=False, horizon_ns=None), at(100), {1})
    assert keys(made.take(9)) == [2]


def test_a_missed_row_waits_longer_each_time_and_at_most_a_second() -> None:
    made = window(entry(1))
    now_ns = 100
    pauses = []
    for _ in range(9):
        assert keys(made.take(1)) == [1]
        retry_ns = made.add_missed([entry(1)], at(now_ns))
        pauses.append(retry_ns - now_ns)
        made.replace_with(ScanResult((entry(1),), more=False, horizon_ns=None), at(now_ns), ())
        assert made.ready == 0
        now_ns = retry_ns
        made.promote_due(at(now_ns))
    assert pauses[:3] == [RETRY_MIN_NS, 2 * RETRY_MIN_NS, 4 * RETRY_MIN_NS]
    assert pauses[-1] == RETRY_MAX_NS


def read_others(made: ReadAhead, now_ns: int) -> None:
    """A scan comes back that reads no message of the buffer."""
    made.replace_with(ScanResult((), more=False, horizon_ns=None), at(now_ns), (), lambda _: True)


def test_the_misses_of_messages_that_scans_do_not_read_are_forgotten_a_second_after_their_pause() -> None:
    made = window(*map(entry, range(1, 9)))
    retry_ns = made.add_missed(made.take(8), at(100))
    read_others(made, retry_ns + RETRY_MAX_NS - 1)
    assert made.missed_count == 8
    read_others(made, retry_ns + RETRY_MAX_NS)
    assert made.missed_count == 0


def test_the_misses_of_messages_that_are_being_claimed_again_are_not_forgotten() -> None:
    made = window(entry(1))
    retry_ns = made.add_missed(made.take(1), at(100), keep=True)
    made.promote_due(at(retry_ns))
    assert keys(made.take(1)) == [1]
    read_others(made, retry_ns + 2 * RETRY_MAX_NS)
    assert made.add_missed([entry(1)], at(0)) == 2 * RETRY_MIN_NS


def test_the_misses_of_a_buffer_for_which_nothing_scans_are_bounded() -> None:
    made = window(entry(0))
    made.add_missed(made.take(1), at(0), keep=True)
    for key in range(1, 10_000):
        made.add_missed([entry(key)], at(key * RETRY_MAX_NS))
        assert made.missed_count < 4 * MISSED_MIN
    assert made.was_missed(0), "it waits for its next attempt"


def test_an_entry_that_is_put_back_again_and_again_costs_no_memory() -> None:
    made = window(entry(1), entry(2))
    for _ in range(1_000):
        made.put(entry(2), at(100))
    assert made._by_time.size < 100
    assert keys(made.take(9)) == [1, 2]


def locked_window(tried: int, took_ns: int) -> ReadAhead:
    """Eight rows, of which the first six are locked: claims of so many have missed them."""
    made = window(*map(entry, range(1, 9)))
    for first in range(0, 6, tried):
        missed = made.take(min(tried, 6 - first))
        made.claim_answered(at(100), tried, len(missed), took_ns)
        made.add_missed(missed, at(100))
    made.replace_with(ScanResult(tuple(map(entry, range(1, 9))), more=False, horizon_ns=None), at(100), ())
    return made


def test_missed_rows_pause_for_as_long_as_the_claim_took_and_leave_that_time_to_the_others() -> None:
    took_ns = 20 * RETRY_MIN_NS
    made = locked_window(2, took_ns)
    made.promote_due(at(99 + took_ns))
    assert made.next_ns(at(99 + took_ns)) == 100 + took_ns
    made.promote_due(at(100 + took_ns))
    assert keys(made.take(9)) == [1, 2, 7, 8]


def test_missed_rows_without_others_do_not_pause_for_as_long_as_the_claim_took() -> None:
    """It may have hung for long."""
    made = locked_window(2, 20 * RETRY_MIN_NS)
    assert keys(made.take(2)) == [7, 8]
    assert made.next_ns(at(100)) == 100 + RETRY_MIN_NS
    made.promote_due(at(100 + RETRY_MIN_NS))
    assert keys(made.take(9)) == [1, 2]


def test_as_many_missed_rows_are_tried_together_as_a_claim_tries_and_the_next_ones_behind_its_answer() -> None:
    made = locked_window(2, 0)
    now_ns = 100 + RETRY_MIN_NS
    made.promote_due(at(now_ns))
    retried = made.take(9)
    assert keys(retried) == [1, 2, 7, 8]
    made.promote_due(at(2 * now_ns))
    assert made.take(9) == []
    made.claim_answered(at(2 * now_ns), 4, 2, 0)
    made.forget_misses([found.key for found in retried])
    made.promote_due(at(2 * now_ns))
    assert keys(made.take(9)) == [3, 4, 5, 6]


def test_a_missed_row_that_is_gone_from_the_index_is_forgotten() -> None:
    made = window(entry(1))
    made.add_missed([entry(1)], at(100))
    made.replace_with(ScanResult((), more=False, horizon_ns=None), at(100), ())
    assert made.missed_count == 0


def test_a_row_that_could_be_claimed_is_ready_after_the_next_scan() -> None:
    made = window(entry(1))
    made.add_missed([entry(1)], at(100))
    made.forget_misses([1])
    made.replace_with(ScanResult((entry(1),), more=False, horizon_ns=None), at(100), ())
    assert made.ready == 1


def test_the_servers_clock_decides_what_is_due_and_the_monotonic_clock_when_to_try_again() -> None:
    made = window(entry(1), entry(2, due_ns=150))
    retry_ns = made.add_missed(made.take(1), at(100), keep=True)
    made.promote_due(Instant(100, 10**15))
    assert keys(made.take(9)) == [2]
    made.promote_due(Instant(retry_ns, 0))
    assert keys(made.take(9)) == [1]


def test_a_server_time_is_converted_to_the_monotonic_clock() -> None:
    assert window(entry(1, due_ns=150)).next_ns(Instant(7_000, 100)) == 7_050


def test_a_state_that_was_written_after_the_known_one_is_not_known_though_its_epoch_is_lower() -> None:
    """As after DELETE and INSERT of one id, or REPLACE."""
    buffer = ReadAhead()
    buffer.put(Entry(1, 2, 0, 50), Instant(0, 0))
    anew = Entry(1, 0, 0, 0)
    for before in (None, (0, 0), (1, 50)):
        assert buffer.knows(anew, before)
    assert not buffer.knows(anew, (2, 50))
    assert buffer.knows(Entry(1, 2, 0, 50), (2, 50))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_scan_that_shows_what_is_known_orders_nothing_anew(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ReadAhead(TurnOrder(Turns(GroupsInFlight())) if grouped else None)
    before = [Entry(key, 0, 0, 0, (str(key).encode(),) if grouped else None) for key in range(900)]
    made.replace_with(ScanResult(tuple(before), more=True, horizon_ns=None), at(100), ())
    pushed = list[Entry]()
    order: type[TurnOrder | TimeOrder] = TurnOrder if grouped else TimeOrder
    monkeypatch.setattr(order, "push", lambda _, entry: pushed.append(entry))
    monkeypatch.setattr(order, "rebuild", lambda _, entries: pushed.extend(entries))
    made.replace_with(
        ScanResult((*before[:300], entry(999)), more=True, horizon_ns=None),
        at(100),
        (),
        lambda entry: int(entry.key) > 299,
    )
    assert keys(pushed) == [999]
    assert made.ready == 901
