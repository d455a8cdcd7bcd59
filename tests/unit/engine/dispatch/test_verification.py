"""Suspect leases: which reports count, which are outdated, and what lookups decide."""

from __future__ import annotations

import pytest

from engine.dispatch.effects import Lookup
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseEvent, Leases
from engine.dispatch.limits import Limits
from engine.dispatch.verification import LeaseVerification as Verification
from engine.model import Claimed, Entry, Key

NOW_NS = 1_000_000_000
DEADLINE_NS = NOW_NS + 30_000_000_000
NOW = Instant(NOW_NS, NOW_NS)
LIMITS = Limits(lookup_max=3, suspects_max=4)


@pytest.fixture
def leases() -> Leases:
    leases = Leases(GroupsInFlight())
    for key in (1, 2, 3, 4, 5):
        leases.add_lease(Lease.of(Claimed(key, 1, DEADLINE_NS, 0, 0)))
    return leases


@pytest.fixture
def verification(leases: Leases) -> Verification:
    return Verification(leases, LIMITS)


def asked(verification: Verification, now_ns: int = NOW_NS, *, starved: bool = False) -> tuple[Key, ...]:
    effects = verification.start_lookup(Instant(now_ns, now_ns), lambda: starved)
    return tuple(key for effect in effects if isinstance(effect, Lookup) for key in effect.keys)


def shown(key: int, epoch: int = 1, due_ns: int = DEADLINE_NS) -> dict[Key, Entry]:
    return {key: Entry(key, epoch, 0, due_ns)}


def lease_of(leases: Leases, key: int) -> Lease:
    lease = leases.get(key)
    assert lease is not None
    return lease


def test_suspect_messages_are_looked_up_together_the_first_ones_first(verification: Verification) -> None:
    assert verification.suspect_keys([4, 1, 3, 2], extended=False, unleased=True)
    assert asked(verification) == (4, 1, 3)
    assert asked(verification) == ()  # One lookup at a time.
    verification.lookup_answered(NOW, {}, NOW_NS)
    assert asked(verification) == (2,)


def test_a_suspect_row_is_held_back_until_it_shows_the_lease_again(verification: Verification, leases: Leases) -> None:
    verification.suspect(lease_of(leases, 1))
    assert lease_of(leases, 1).is_suspect
    assert asked(verification) == (1,)
    assert verification.lookup_answered(NOW, shown(1), NOW_NS) == []
    assert not lease_of(leases, 1).is_suspect


def test_a_message_suspected_again_during_its_lookup_stays_suspect(verification: Verification, leases: Leases) -> None:
    verification.suspect(lease_of(leases, 1))
    asked(verification)
    verification.suspect(lease_of(leases, 1))
    verification.lookup_answered(NOW, shown(1), NOW_NS)
    assert lease_of(leases, 1).is_suspect
    assert asked(verification, NOW_NS + LIMITS.lookup_pause_min_ns) == (1,)


@pytest.mark.parametrize(
    "found", [{}, shown(1, epoch=2), shown(1, due_ns=NOW_NS)], ids=["gone", "claimed anew", "given back"]
)
def test_a_lease_that_its_row_does_not_show_is_over(
    verification: Verification, leases: Leases, found: dict[Key, Entry]
) -> None:
    verification.suspect(lease_of(leases, 1))
    asked(verification)
    assert verification.lookup_answered(NOW, found, NOW_NS) == [(leases.get(1), found.get(1))]


def test_a_later_deadline_is_accepted_after_a_report_of_an_extension(
    verification: Verification, leases: Leases
) -> None:
    for extended in (False, True):
        verification.suspect_keys([1], extended=extended, unleased=True)
        asked(verification)
        changed = verification.lookup_answered(NOW, shown(1, due_ns=DEADLINE_NS + 1), NOW_NS)
        assert bool(changed) is not extended
    assert lease_of(leases, 1).deadline_ns == DEADLINE_NS + 1


def test_a_lookup_decides_nothing_about_a_younger_lease(verification: Verification, leases: Leases) -> None:
    verification.suspect(lease_of(leases, 1))
    asked(verification)
    leases.end(lease_of(leases, 1))
    leases.add_lease(Lease.of(Claimed(1, 1, DEADLINE_NS + 7, 0, 0)))
    assert verification.lookup_answered(NOW, {}, NOW_NS) == []


def test_the_log_is_believed_after_it_has_shown_the_claim(verification: Verification, leases: Leases) -> None:
    lease = lease_of(leases, 1)
    assert verification.ends_logged([1], {}) == []
    assert asked(verification) == (1,)
    verification.lookup_answered(NOW, shown(1), NOW_NS)
    verification.lease_logged(lease, shown(1)[1])
    assert not lease.is_suspect
    assert verification.ends_logged([1], {}) == [1]


def test_the_log_makes_a_lease_suspect_only_by_states_after_its_claim(
    verification: Verification, leases: Leases
) -> None:
    lease = lease_of(leases, 1)
    before = Entry(1, 0, 0, 0)
    verification.lease_logged(lease, before)
    assert not lease.is_suspect
    verification.lease_logged(lease, shown(1)[1])
    verification.lease_logged(lease, before)
    assert lease.is_suspect


def test_an_end_that_shows_the_claim_before_it_is_believed(verification: Verification, leases: Leases) -> None:
    lease = lease_of(leases, 1)
    older, extended = (0, 0), (lease.epoch, lease.deadline_ns + 1)
    assert verification.ends_logged([1], {}) == []
    assert verification.ends_logged([1], {1: older}) == []
    assert verification.ends_logged([1], {1: extended}) == []
    assert asked(verification) == (1,)
    assert verification.ends_logged([1, 99], {1: (lease.epoch, lease.deadline_ns)}) == [1, 99]


def test_a_state_from_before_the_claim_makes_a_lease_suspect_if_it_was_written_after_it(
    verification: Verification, leases: Leases
) -> None:
    lease = lease_of(leases, 1)
    for written_before in (None, (0, 0)):
        verification.lease_logged(lease, Entry(1, 0, 0, 0), written_before)
        assert not lease.is_suspect
    verification.lease_logged(lease, Entry(1, 0, 0, 0), (lease.epoch, lease.deadline_ns))
    assert lease.is_suspect


def test_messages_without_a_lease_are_looked_up_while_there_is_room(verification: Verification, leases: Leases) -> None:
    assert verification.suspect_keys([11, 12], extended=False, unleased=True)
    assert not verification.suspect_keys([13, 14, 15], extended=False, unleased=True)
    assert not verification.suspect_keys([16], extended=False, unleased=False)
    assert asked(verification) == (11, 12, 13)
    row = Entry(12, 3, 0, NOW_NS)
    assert verification.lookup_answered(NOW, {12: row}, NOW_NS) == [(None, row)]


def test_while_a_stream_is_starved_sent_messages_are_looked_up_with_growing_pauses(
    verification: Verification, leases: Leases
) -> None:
    assert asked(verification, starved=True) == ()
    for event in (LeaseEvent.FETCH, LeaseEvent.SEND):
        lease_of(leases, 2).apply(event)
    now_ns, pauses = NOW_NS, []
    for _ in range(3):
        assert asked(verification, now_ns, starved=True) == (2,)
        verification.lookup_answered(Instant(now_ns, now_ns), shown(2), now_ns)
        pauses.append(verification.pause_until_ns - now_ns)
        assert asked(verification, verification.pause_until_ns - 1, starved=True) == ()
        now_ns = verification.pause_until_ns
    least_ns = LIMITS.lookup_pause_min_ns
    assert pauses == [least_ns, 2 * least_ns, 4 * least_ns]
    verification.end_pause()
    assert asked(verification, now_ns - 1, starved=True) == (2,)


def test_messages_of_a_failed_lookup_are_the_first_of_the_next(verification: Verification, leases: Leases) -> None:
    verification.suspect(lease_of(leases, 1))
    asked(verification)
    verification.suspect_any(extended=False)
    verification.lookup_failed(NOW)
    assert asked(verification) == ()
    assert asked(verification, verification.pause_until_ns) == (1, 5, 4)


def test_a_message_with_a_certain_outcome_is_not_looked_up(verification: Verification) -> None:
    verification.suspect_keys([1, 2], extended=False, unleased=True)
    verification.outcome_known([1])
    assert asked(verification) == (2,)
