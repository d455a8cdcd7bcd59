"""The account of claims that are out."""

from __future__ import annotations

from engine.leases import Lease, Leases


def lease(key: int, epoch: int = 1, deadline_ns: int = 10) -> Lease:
    return Lease(key, epoch, deadline_ns, priority=0, due_ns=0)


def test_a_lease_given_back_and_taken_again_at_the_same_instant_expires_once() -> None:
    leases = Leases()
    first, second = lease(1), lease(1)
    leases.add(first)
    leases.remove(first)
    leases.add(second)
    assert leases.expired(10) == [second]


def test_a_lease_that_was_removed_does_not_expire() -> None:
    leases = Leases()
    gone = lease(1)
    leases.add(gone)
    leases.remove(gone)
    assert leases.next_deadline_ns is None
    assert leases.expired(10) == []


def test_leases_expire_in_the_order_of_their_deadlines_and_not_before() -> None:
    leases = Leases()
    late, early = lease(1, deadline_ns=20), lease(2, deadline_ns=10)
    leases.add(late)
    leases.add(early)
    assert leases.next_deadline_ns == 10
    assert leases.expired(9) == []
    assert leases.expired(25) == [early, late]


def test_a_holder_has_what_it_was_given_until_it_ends() -> None:
    leases = Leases()
    held, other = lease(1), lease(2)
    for each in (held, other):
        leases.add(each)
    leases.hold(held, holder=7, subscriber=1)
    assert leases.held_by(7) == [held]
    leases.remove(held)
    assert leases.held_by(7) == []


def test_stale_deadlines_are_not_kept_for_ever() -> None:
    leases = Leases()
    for key in range(10_000):
        passing = lease(key, deadline_ns=10**9)
        leases.add(passing)
        leases.remove(passing)
    assert len(leases._deadlines) < 200
