"""The keys that are read ahead."""

from __future__ import annotations

from engine.model import Entry, ScanResult
from engine.window import RETRY_MAX_NS, RETRY_MIN_NS, Window


def entry(key: int, *, priority: int = 0, due_ns: int = 0, epoch: int = 0) -> Entry:
    return Entry(key, epoch, priority, due_ns)


def window(*entries: Entry, now_ns: int = 100, more: bool = False, horizon_ns: int | None = None) -> Window:
    made = Window()
    made.scanned(ScanResult(entries, more, horizon_ns), now_ns, lambda _: False)
    return made


def keys(entries: list[Entry]) -> list[object]:
    return [each.key for each in entries]


def test_due_entries_come_by_priority_then_time_then_id() -> None:
    made = window(entry(4, priority=1), entry(3, due_ns=2), entry(2, due_ns=1), entry(1, due_ns=2))
    assert keys(made.take(9)) == [2, 1, 3, 4]


def test_entries_become_ready_when_they_are_due() -> None:
    made = window(entry(1, due_ns=150), entry(2, due_ns=120))
    assert made.ready == 0
    assert made.next_ns == 120
    made.promote(120)
    assert keys(made.take(9)) == [2]
    assert made.next_ns == 150


def test_the_horizon_is_a_time_to_look_again() -> None:
    assert window(entry(1, due_ns=150), horizon_ns=140).next_ns == 140


def test_what_is_forgotten_is_not_offered() -> None:
    made = window(entry(1), entry(2), entry(3, due_ns=200))
    made.forget([1, 3])
    made.promote(300)
    assert keys(made.take(9)) == [2]
    assert made.next_ns is None


def test_a_scan_takes_the_place_of_all_before_it() -> None:
    made = window(entry(1), entry(2, due_ns=200))
    made.scanned(ScanResult((entry(3),), more=False, horizon_ns=None), 100, lambda _: False)
    made.promote(300)
    assert keys(made.take(9)) == [3]


def test_unwanted_entries_are_left_out() -> None:
    made = Window()
    made.scanned(ScanResult((entry(1), entry(2)), more=False, horizon_ns=None), 100, lambda each: each.key == 1)
    assert keys(made.take(9)) == [2]


def test_a_missed_row_waits_longer_each_time_and_at_most_a_second() -> None:
    made = window(entry(1))
    now_ns = 100
    pauses = []
    for _ in range(9):
        assert keys(made.take(1)) == [1]
        retry_ns = made.miss([entry(1)], now_ns)
        pauses.append(retry_ns - now_ns)
        made.scanned(ScanResult((entry(1),), more=False, horizon_ns=None), now_ns, lambda _: False)
        assert made.ready == 0
        now_ns = retry_ns
        made.promote(now_ns)
    assert pauses[:3] == [RETRY_MIN_NS, 2 * RETRY_MIN_NS, 4 * RETRY_MIN_NS]
    assert pauses[-1] == RETRY_MAX_NS


def test_a_missed_row_that_is_gone_from_the_index_is_forgotten() -> None:
    made = window(entry(1))
    made.miss([entry(1)], 100)
    made.scanned(ScanResult((), more=False, horizon_ns=None), 100, lambda _: False)
    assert made.missed == 0


def test_a_row_that_could_be_claimed_is_not_held_back_any_more() -> None:
    made = window(entry(1))
    made.miss([entry(1)], 100)
    made.claimed([1])
    made.scanned(ScanResult((entry(1),), more=False, horizon_ns=None), 100, lambda _: False)
    assert made.ready == 1
