"""What others say of messages that are out, and what lookups make of it: when it is believed, when it is old."""

from __future__ import annotations

import pytest

from engine.doubts import Doubts
from engine.effects import Lookup
from engine.leases import Lease, Leases
from engine.model import Claimed, Entry, Key
from engine.pacing import Limits

NOW_NS = 1_000_000_000
DEADLINE_NS = NOW_NS + 30_000_000_000
LIMITS = Limits(lookup_max=3, doubted_max=4)


@pytest.fixture
def leases() -> Leases:
    leases = Leases()
    for key in (1, 2, 3, 4, 5):
        leases.add(Lease.of(Claimed(key, 1, DEADLINE_NS, 0, 0)))
    return leases


@pytest.fixture
def doubts(leases: Leases) -> Doubts:
    return Doubts(leases, LIMITS)


def asked(doubts: Doubts, now_ns: int = NOW_NS, *, starved: bool = False) -> tuple[Key, ...]:
    effects = doubts.begin(now_ns, lambda: starved)
    return tuple(key for each in effects if isinstance(each, Lookup) for key in each.keys)


def shown(key: int, epoch: int = 1, due_ns: int = DEADLINE_NS) -> dict[Key, Entry]:
    return {key: Entry(key, epoch, 0, due_ns)}


def lease_of(leases: Leases, key: int) -> Lease:
    lease = leases.get(key)
    assert lease is not None
    return lease


def test_doubted_messages_are_looked_up_together_the_first_ones_first(doubts: Doubts) -> None:
    assert doubts.about_these([4, 1, 3, 2], extended=False, strangers=True)
    assert asked(doubts) == (4, 1, 3)
    assert asked(doubts) == ()  # One lookup at a time.
    doubts.answered(NOW_NS, {}, NOW_NS)
    assert asked(doubts) == (2,)


def test_a_row_in_doubt_is_held_back_until_it_shows_the_lease_again(doubts: Doubts, leases: Leases) -> None:
    doubts.about(lease_of(leases, 1))
    assert lease_of(leases, 1).doubted
    assert asked(doubts) == (1,)
    assert doubts.answered(NOW_NS, shown(1), NOW_NS) == []
    assert not lease_of(leases, 1).doubted


def test_what_is_doubted_again_while_it_is_looked_up_stays_doubted(doubts: Doubts, leases: Leases) -> None:
    doubts.about(lease_of(leases, 1))
    asked(doubts)
    doubts.about(lease_of(leases, 1))
    doubts.answered(NOW_NS, shown(1), NOW_NS)
    assert lease_of(leases, 1).doubted
    assert asked(doubts, NOW_NS + LIMITS.lookup_pause_min_ns) == (1,)


@pytest.mark.parametrize(
    "found", [{}, shown(1, epoch=2), shown(1, due_ns=NOW_NS)], ids=["gone", "claimed anew", "given back"]
)
def test_a_lease_that_its_row_does_not_show_is_over(doubts: Doubts, leases: Leases, found: dict[Key, Entry]) -> None:
    doubts.about(lease_of(leases, 1))
    asked(doubts)
    assert doubts.answered(NOW_NS, found, NOW_NS) == [(leases.get(1), found.get(1))]


def test_more_time_is_believed_when_somebody_may_have_asked_for_it(doubts: Doubts, leases: Leases) -> None:
    for extended in (False, True):
        doubts.about_these([1], extended=extended, strangers=True)
        asked(doubts)
        changed = doubts.answered(NOW_NS, shown(1, due_ns=DEADLINE_NS + 1), NOW_NS)
        assert bool(changed) is not extended
    assert lease_of(leases, 1).deadline_ns == DEADLINE_NS + 1


def test_a_lookup_says_nothing_of_a_lease_that_is_younger_than_it(doubts: Doubts, leases: Leases) -> None:
    doubts.about(lease_of(leases, 1))
    asked(doubts)
    leases.remove(lease_of(leases, 1))
    leases.add(Lease.of(Claimed(1, 1, DEADLINE_NS + 7, 0, 0)))
    assert doubts.answered(NOW_NS, {}, NOW_NS) == []


def test_the_log_is_believed_after_it_has_shown_the_claim(doubts: Doubts, leases: Leases) -> None:
    lease = lease_of(leases, 1)
    assert not doubts.logged_over(1)
    assert asked(doubts) == (1,)
    doubts.answered(NOW_NS, shown(1), NOW_NS)
    doubts.logged(lease, shown(1)[1])
    assert not lease.doubted
    assert doubts.logged_over(1)


def test_what_the_log_shows_of_the_time_before_the_claim_is_no_news_and_of_later_times_is(
    doubts: Doubts, leases: Leases
) -> None:
    lease = lease_of(leases, 1)
    before = Entry(1, 0, 0, 0)
    doubts.logged(lease, before)
    assert not lease.doubted
    doubts.logged(lease, shown(1)[1])
    doubts.logged(lease, before)
    assert lease.doubted


def test_messages_of_others_are_looked_up_while_there_is_room_for_them(doubts: Doubts, leases: Leases) -> None:
    assert doubts.about_these([11, 12], extended=False, strangers=True)
    assert not doubts.about_these([13, 14, 15], extended=False, strangers=True)
    assert len(doubts) == LIMITS.doubted_max
    assert not doubts.about_these([16], extended=False, strangers=False)
    assert asked(doubts) == (11, 12, 13)
    row = Entry(12, 3, 0, NOW_NS)
    assert doubts.answered(NOW_NS, {12: row}, NOW_NS) == [(None, row)]


def test_who_waits_for_acknowledgements_has_what_was_sent_looked_up_less_and_less_often(
    doubts: Doubts, leases: Leases
) -> None:
    assert asked(doubts, starved=True) == ()
    lease_of(leases, 2).sent = True
    now_ns, pauses = NOW_NS, []
    for _ in range(3):
        assert asked(doubts, now_ns, starved=True) == (2,)
        doubts.answered(now_ns, shown(2), now_ns)
        pauses.append(doubts.until_ns - now_ns)
        assert asked(doubts, doubts.until_ns - 1, starved=True) == ()
        now_ns = doubts.until_ns
    least_ns = LIMITS.lookup_pause_min_ns
    assert pauses == [least_ns, 2 * least_ns, 4 * least_ns]
    doubts.hasten()
    assert asked(doubts, now_ns - 1, starved=True) == (2,)


def test_what_could_not_be_looked_up_is_the_first_to_be_looked_up_again(doubts: Doubts, leases: Leases) -> None:
    doubts.about(lease_of(leases, 1))
    asked(doubts)
    doubts.about_any(extended=False)
    doubts.failed(NOW_NS)
    assert asked(doubts) == ()
    assert asked(doubts, doubts.until_ns) == (1, 2, 3)


def test_what_is_known_for_certain_is_doubted_no_more(doubts: Doubts) -> None:
    doubts.about_these([1, 2], extended=False, strangers=True)
    doubts.settled([1])
    assert asked(doubts) == (2,)
