"""Leases: deadlines, holders, and the states of a delivery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.leases import TRANSITIONS, InvalidTransition, Lease, LeaseEvent, Leases, LeaseState


def lease(key: int, epoch: int = 1, deadline_ns: int = 10) -> Lease:
    return Lease(key, epoch, deadline_ns, priority=0, due_ns=0)


def test_a_lease_released_and_claimed_again_with_the_same_deadline_expires_once() -> None:
    leases = Leases(GroupsInFlight())
    first, second = lease(1), lease(1)
    leases.add_lease(first)
    leases.end(first)
    leases.add_lease(second)
    assert leases.expired(10, 10) == [second]


def test_a_lease_that_has_ended_does_not_expire() -> None:
    leases = Leases(GroupsInFlight())
    gone = lease(1)
    leases.add_lease(gone)
    leases.end(gone)
    assert leases.next_deadline_ns is None
    assert leases.expired(10, 10) == []


def test_a_locked_message_does_not_expire_though_an_earlier_claim_of_it_had_that_deadline() -> None:
    """The claim could not be released, so its row is due at the end of its wait. The estimate of the server's
    clock is behind, so that moment is still to come here."""
    leases = Leases(GroupsInFlight())
    claimed = lease(1, deadline_ns=10)
    leases.add_lease(claimed)
    leases.end(claimed)
    locked = Lease.locking(claimed.expired_entry, known_since=2)
    leases.add_lease(locked)
    assert (locked.epoch, locked.deadline_ns) == (claimed.epoch, claimed.deadline_ns)
    assert leases.next_deadline_ns is None
    assert leases.expired(10, 10) == []
    assert leases.get(1) is locked


def test_leases_expire_in_the_order_of_their_deadlines_and_not_before() -> None:
    leases = Leases(GroupsInFlight())
    late, early = lease(1, deadline_ns=20), lease(2, deadline_ns=10)
    leases.add_lease(late)
    leases.add_lease(early)
    assert leases.next_deadline_ns == 10
    assert leases.expired(9, 10) == []
    assert leases.expired(25, 10) == [early, late]


def test_of_leases_that_have_expired_at_one_time_as_many_are_taken_as_wanted() -> None:
    leases = Leases(GroupsInFlight())
    for key in range(5):
        leases.add_lease(lease(key, deadline_ns=10))
    assert [[over.key for over in leases.expired(10, 2)] for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_holder_has_its_leases_until_they_end() -> None:
    leases = Leases(GroupsInFlight())
    held, other = lease(1), lease(2)
    for begun in (held, other):
        leases.add_lease(begun)
    leases.assign(held, holder=7, subscriber=1)
    assert leases.held_by(7) == [held]
    leases.end(held)
    assert leases.held_by(7) == []


def test_stale_deadlines_are_not_kept_for_ever() -> None:
    leases = Leases(GroupsInFlight())
    for key in range(10_000):
        passing = lease(key, deadline_ns=10**9)
        leases.add_lease(passing)
        leases.end(passing)
    assert len(leases._deadlines) < 200


# The states of a lease.


def in_state(state: LeaseState) -> Lease:
    made = lease(7)
    made.state = state
    return made


@pytest.mark.parametrize("state", LeaseState)
@pytest.mark.parametrize("event", LeaseEvent)
def test_a_lease_changes_state_only_as_in_the_table(state: LeaseState, event: LeaseEvent) -> None:
    made = in_state(state)
    if (after := TRANSITIONS[state].get(event)) is not None:
        made.apply(event)
        assert made.state is after
        return
    with pytest.raises(InvalidTransition) as refused:
        made.apply(event)
    assert event.value in str(refused.value)
    assert state.value in str(refused.value)
    assert made.state is state


def test_every_state_can_be_reached_and_every_lease_can_end() -> None:
    reached, left = {LeaseState.CLAIMED}, [LeaseState.CLAIMED]
    while left:
        state = left.pop()
        assert state is LeaseState.ENDED or TRANSITIONS[state][LeaseEvent.END] is LeaseState.ENDED
        new = set(TRANSITIONS[state].values()) - reached
        reached |= new
        left += new
    assert reached == set(LeaseState)


def test_only_a_row_that_is_being_fetched_and_not_suspect_can_be_sent() -> None:
    assert [state for state in LeaseState if LeaseEvent.SEND in TRANSITIONS[state]] == [LeaseState.FETCHING]


def test_a_lease_that_was_sent_stays_so_until_it_ends() -> None:
    for state in (LeaseState.SENT, LeaseState.SUSPECT_SENT):
        for event, after in TRANSITIONS[state].items():
            assert event is LeaseEvent.END or in_state(after).is_sent


def test_the_picture_in_the_architecture_is_that_of_the_table() -> None:
    lines = [
        f"    {state.name.lower()} --> {after.name.lower()}: {event.value}"
        for state, events in TRANSITIONS.items()
        for event, after in events.items()
    ]
    lines = ["stateDiagram-v2", "    [*] --> claimed", *lines, "    ended --> [*]"]
    _, _, section = (Path(__file__).parents[4] / "ARCHITECTURE.md").read_text().partition("## The states of a lease")
    assert section.partition("```mermaid\n")[2].partition("\n```")[0].split("\n") == lines


def test_a_group_has_as_many_messages_in_flight_as_it_has_leases() -> None:
    in_flight = GroupsInFlight()
    leases = Leases(in_flight)
    acme, nobody = ("acme",), (None,)
    begun = [replace(lease(key), group=group) for key, group in enumerate([acme, acme, nobody, None])]
    for one in begun:
        leases.add_lease(one)
    assert (in_flight.count(acme), in_flight.count(nobody), in_flight.count(None)) == (2, 1, 0)
    for one in begun[1:]:
        leases.end(one)
    assert (in_flight.count(acme), in_flight.count(nobody), len(in_flight)) == (1, 0, 1)
    assert in_flight.take_freed() == {acme, nobody}
    assert in_flight.take_freed() == set()
