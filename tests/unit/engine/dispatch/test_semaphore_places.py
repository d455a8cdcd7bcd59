"""Which semaphores may have a place, and when messages that wait are tried again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.dispatch.group_places import GroupPlaces
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.semaphore_places import KNOWN_MAX, names_in, needs_of
from engine.model import NS_PER_S, Group, LimitsLeft, SemaphoreLeft, TableId
from tests.support.play import POLICY

S = NS_PER_S
NOW = Instant(5_000 * S, 1_000_000 * S)
SOON_NS = NOW.server_ns + 30 * S
OTHER = TableId("test", "others")
SEMAPHORES = replace(POLICY, semaphores="needs", poller_interval_ns=60 * S)


def later(duration_ns: int) -> Instant:
    return Instant(NOW.mono_ns + duration_ns, NOW.server_ns + duration_ns)


class Places(GroupPlaces):
    """With the groups that were reported."""

    def __init__(self, *found: SemaphoreLeft) -> None:
        self.reported: list[Group | None] = []
        in_flight = GroupsInFlight()
        in_flight.note_unused = self.reported.append  # type: ignore[assignment,method-assign]
        super().__init__(SEMAPHORES, in_flight, Leases(in_flight))
        self.claim_started()
        self.found(*found)
        self.reported.clear()

    def found(self, *found: SemaphoreLeft) -> None:
        self.claim_answered(NOW, LimitsLeft((), None, semaphores=found), 0)

    def may_go(self, group: Group) -> bool:
        return self.has_place(group, 0, 0)


def full(name: str, *keys: int) -> SemaphoreLeft:
    return SemaphoreLeft(name, len(keys), {(None, key): SOON_NS for key in keys})


@pytest.mark.parametrize(
    ("text", "names"),
    [("", set()), (" , ,", set()), ("a", {"a"}), (" a , b,a,", {"a", "b"}), ("a b,A", {"a b", "A"})],
)
def test_names_are_separated_by_commas(text: str, names: set[str]) -> None:
    assert names_in(text) == names
    assert needs_of((text,)) == names


def test_null_needs_nothing() -> None:
    assert needs_of((None,)) == needs_of(None) == frozenset()


def test_a_message_waits_while_one_of_its_semaphores_is_full() -> None:
    places = Places(full("a", 1), SemaphoreLeft("b", 2, {(None, 1): SOON_NS}))
    assert not places.may_go(("a",))
    assert not places.may_go(("b,a",))
    assert places.may_go(("b",))
    assert places.may_go((None,))
    assert places.may_go(("unknown,b",))


def test_messages_of_one_round_take_places() -> None:
    places = Places(SemaphoreLeft("a", 2, {(None, 1): SOON_NS}))
    assert places.may_go(("a",))
    places.note_taken(("a,b",))
    assert not places.may_go(("a",))
    places.end_round()
    assert places.reported == [("a",)]
    assert places.may_go(("a",))


def test_the_end_of_a_delivery_reports_those_that_wait_for_its_semaphores_alone() -> None:
    places = Places(full("a", 1), full("b", 2))
    assert not places.may_go(("a",))
    assert not places.may_go(("b",))
    places.deliveries_over([3])
    assert places.reported == []
    places.deliveries_over([1])
    assert places.reported == [("a",)]
    assert places.may_go(("a",))


def test_a_delivery_of_another_queue_is_another_one() -> None:
    places = Places(SemaphoreLeft("a", 1, {(OTHER, 1): SOON_NS}))
    assert not places.may_go(("a",))
    places.deliveries_over([1])
    assert not places.may_go(("a",))
    places.deliveries_over([1], OTHER)
    assert places.may_go(("a",))


def test_what_ends_during_a_claim_is_not_taken_for_a_holder() -> None:
    places = Places()
    places.claim_started()
    places.deliveries_over([1])
    places.found(full("a", 1))
    assert places.may_go(("a",))


def test_after_a_report_of_anything_during_a_claim_nothing_is_known() -> None:
    places = Places()
    places.claim_started()
    places.any_over()
    places.found(full("a", 1))
    assert places.may_go(("a",))


def test_a_semaphore_that_does_not_exist_has_no_place_until_a_report_or_a_poll() -> None:
    for after in (Places.any_over, lambda places: places.forget_ended(later(61 * S))):
        places = Places(SemaphoreLeft("a", None, {}))
        assert not places.may_go(("a",))
        assert places.next_ns(NOW) == NOW.mono_ns + 60 * S
        after(places)
        assert places.reported == [("a",)]
        assert places.may_go(("a",))


def test_the_end_of_a_lease_frees_its_places() -> None:
    assert Places(full("a", 1)).next_ns(NOW) is None
    places = Places(full("a", 1))
    assert not places.may_go(("a",))
    assert places.next_ns(NOW) == NOW.mono_ns + 30 * S
    places.forget_ended(later(29 * S))
    assert not places.may_go(("a",))
    places.forget_ended(later(30 * S))
    assert places.may_go(("a",))


def test_the_semaphores_found_last_are_remembered() -> None:
    places = Places(*(full(f"s{number}", number) for number in range(KNOWN_MAX + 1)))
    assert places.may_go(("s0",))
    assert not places.may_go(("s1",))
