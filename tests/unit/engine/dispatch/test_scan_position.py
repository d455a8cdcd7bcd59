"""The scan position: scans skip rows that were passed, and never rows that may still be committed."""

from __future__ import annotations

from engine.dispatch.instant import Instant
from engine.dispatch.scan_position import SETTLING_NS, ScanPosition
from engine.model import NS_PER_S, Entry, Position

NOW_NS = 1_000_000 * NS_PER_S
AHEAD_NS = 10 * NS_PER_S


def at(ns: int) -> Instant:
    """Both clocks show this time."""
    return Instant(ns, ns)


def scanned(
    position: ScanPosition, begun_ns: int, *, answered_ns: int | None = None, greatest_id: int | None = None
) -> None:
    """A scan that came as far ahead as scans do, and over all ids."""
    position.scan_from(at(begun_ns))
    reached = {0: Position(greatest_id, begun_ns + AHEAD_NS)}
    position.advance(reached, greatest_id, at(answered_ns or begun_ns))


def test_the_first_scan_begins_at_the_front() -> None:
    assert ScanPosition().scan_from(at(NOW_NS)) == {}


def test_rows_that_may_be_committed_late_are_scanned_again() -> None:
    position = ScanPosition()
    scanned(position, NOW_NS)
    assert position.scan_from(at(NOW_NS))[0].time_ns == NOW_NS - SETTLING_NS


def test_a_slow_scan_advances_only_to_the_time_of_its_start() -> None:
    position = ScanPosition()
    scanned(position, NOW_NS, answered_ns=NOW_NS + 11 * NS_PER_S)
    assert position.scan_from(at(NOW_NS + 11 * NS_PER_S))[0].time_ns == NOW_NS - SETTLING_NS


def test_ids_are_passed_once_those_before_them_had_time_to_be_committed() -> None:
    position = ScanPosition()
    scanned(position, NOW_NS, greatest_id=100)
    assert position.scan_from(at(NOW_NS))[0].zero_id is None
    scanned(position, NOW_NS + SETTLING_NS, greatest_id=200)
    assert position.scan_from(at(NOW_NS + SETTLING_NS))[0].zero_id == 100


def test_an_id_from_a_slow_scan_counts_from_the_time_of_its_answer() -> None:
    position = ScanPosition()
    scanned(position, NOW_NS, answered_ns=NOW_NS + SETTLING_NS, greatest_id=100)
    scanned(position, NOW_NS + SETTLING_NS, greatest_id=200)
    assert position.scan_from(at(NOW_NS + SETTLING_NS))[0].zero_id is None


def test_a_place_lowered_during_a_scan_stays_lowered_after_it() -> None:
    position = ScanPosition()
    scanned(position, NOW_NS)
    position.scan_from(at(NOW_NS))
    position.lower(Entry(7, 0, 0, 5 * NS_PER_S))
    position.advance({0: Position(None, NOW_NS)}, None, at(NOW_NS))
    assert position.scan_from(at(NOW_NS))[0].time_ns == 5 * NS_PER_S - 1


def test_a_reset_during_a_scan_is_not_undone_by_it() -> None:
    position = ScanPosition()
    scanned(position, NOW_NS)
    position.scan_from(at(NOW_NS))
    position.reset_to_front()
    position.advance({0: Position(None, NOW_NS)}, None, at(NOW_NS))
    assert position.at_front
