"""Where looks for a condition begin: behind what was passed, and never behind what may still come."""

from __future__ import annotations

from engine.cursor import SETTLING_NS, Cursor
from engine.model import NS_PER_S, Entry, Position

NOW_NS = 1_000_000 * NS_PER_S
AHEAD_NS = 10 * NS_PER_S


def looked(cursor: Cursor, begun_ns: int, *, answered_ns: int | None = None, greatest_id: int | None = None) -> None:
    """A look that came as far ahead as looks do, and over all ids."""
    cursor.begin(begun_ns)
    reached = {0: Position(greatest_id, begun_ns + AHEAD_NS)}
    cursor.advance(reached, greatest_id, answered_ns or begun_ns)


def test_the_first_look_begins_at_the_front() -> None:
    assert Cursor().begin(NOW_NS) == {}


def test_what_may_be_committed_late_is_looked_at_again() -> None:
    cursor = Cursor()
    looked(cursor, NOW_NS)
    assert cursor.begin(NOW_NS)[0].time_ns == NOW_NS - SETTLING_NS


def test_a_look_whose_answer_was_slow_has_seen_no_more_than_there_was_when_it_began() -> None:
    cursor = Cursor()
    looked(cursor, NOW_NS, answered_ns=NOW_NS + 11 * NS_PER_S)
    assert cursor.begin(NOW_NS + 11 * NS_PER_S)[0].time_ns == NOW_NS - SETTLING_NS


def test_ids_are_passed_once_those_before_them_had_time_to_be_committed() -> None:
    cursor = Cursor()
    looked(cursor, NOW_NS, greatest_id=100)
    assert cursor.begin(NOW_NS)[0].zero_id is None
    looked(cursor, NOW_NS + SETTLING_NS, greatest_id=200)
    assert cursor.begin(NOW_NS + SETTLING_NS)[0].zero_id == 100


def test_an_id_that_a_slow_answer_told_of_is_no_older_than_the_answer() -> None:
    cursor = Cursor()
    looked(cursor, NOW_NS, answered_ns=NOW_NS + SETTLING_NS, greatest_id=100)
    looked(cursor, NOW_NS + SETTLING_NS, greatest_id=200)
    assert cursor.begin(NOW_NS + SETTLING_NS)[0].zero_id is None


def test_what_is_lowered_during_a_look_stays_lowered_after_it() -> None:
    cursor = Cursor()
    looked(cursor, NOW_NS)
    cursor.begin(NOW_NS)
    cursor.lower(Entry(7, 0, 0, 5 * NS_PER_S))
    cursor.advance({0: Position(None, NOW_NS)}, None, NOW_NS)
    assert cursor.begin(NOW_NS)[0].time_ns == 5 * NS_PER_S - 1


def test_a_reset_during_a_look_is_not_undone_by_it() -> None:
    cursor = Cursor()
    looked(cursor, NOW_NS)
    cursor.begin(NOW_NS)
    cursor.reset()
    cursor.advance({0: Position(None, NOW_NS)}, None, NOW_NS)
    assert cursor.at_front
