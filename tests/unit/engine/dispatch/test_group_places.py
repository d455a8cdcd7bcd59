"""Which message of a group in strict order may be tried next."""

from __future__ import annotations

from dataclasses import replace

from engine.dispatch.full_groups import HEAD_NS
from engine.dispatch.group_places import GroupPlaces
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.turns import Turns
from engine.model import NS_PER_S, Entry, GroupLeft, Key, LimitsLeft
from tests.support.play import POLICY

NOW = Instant(5_000 * NS_PER_S, 1_000_000 * NS_PER_S)
GROUP = ("acme",)


def places_behind(head: Key) -> GroupPlaces:
    """A claim has just found that this message, due in a minute, is the first of its group."""
    in_flight = GroupsInFlight()
    policy = replace(POLICY, group_by=("tenant",), group_strict=True)
    places = GroupPlaces(policy, in_flight, Leases(in_flight))
    due_ns = NOW.server_ns + 60 * NS_PER_S
    places.claim_started()
    left = GroupLeft(GROUP, {}, head, Entry(head, 1, 0, due_ns, GROUP))
    places.claim_answered(NOW, LimitsLeft((), None, groups=(left,)), 0)
    return places


def test_a_later_message_waits_for_the_first_of_its_group() -> None:
    places = places_behind(9)
    assert not places.has_place(GROUP, 0, 12)
    assert places.has_place(GROUP, 0, 9)
    assert places.has_place(("other",), 0, 12)


def test_a_smaller_id_that_is_committed_late_is_tried_at_once() -> None:
    assert places_behind(9).has_place(GROUP, 0, 3)


def test_ids_that_python_orders_differently_from_the_server_are_not_compared() -> None:
    """Otherwise two messages could be tried in turn, again and again, in vain."""
    assert not places_behind("b").has_place(GROUP, 0, "a")


def test_the_first_message_is_looked_for_again_when_it_is_due() -> None:
    places = places_behind(9)
    places.forget_ended(Instant(NOW.mono_ns + HEAD_NS, NOW.server_ns + HEAD_NS))
    assert not places.has_place(GROUP, 0, 12)
    places.forget_ended(Instant(NOW.mono_ns + 60 * NS_PER_S, NOW.server_ns + 60 * NS_PER_S))
    assert places.has_place(GROUP, 0, 12)


def test_a_group_that_is_full_again_is_not_put_into_the_order_anew() -> None:
    """The end of a claim is the beginning of a lease, and the end of the lease frees the group."""
    in_flight = GroupsInFlight()
    turns = Turns(in_flight, GroupPlaces(replace(POLICY, group_strict=True), in_flight, Leases(in_flight)))
    in_flight.begin(GROUP)
    in_flight.end(GROUP)
    in_flight.begin(GROUP)
    assert turns.take_freed() == set()
    in_flight.end(GROUP)
    assert turns.take_freed() == {GROUP}
