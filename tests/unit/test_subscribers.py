"""Who gets the next message: credit, turns, and what an event costs with thousands of subscribers."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.dispatch.leases import Lease, LeaseEvent
from engine.dispatch.subscribers import Subscriber, Subscribers, Subscription
from engine.model import RowFormat

BATCH = 10


def subscriber(
    number: int, *, prefetch: int | None = None, limit: int | None = None, patient_until_ns: int | None = None
) -> Subscriber:
    spec = Subscription(number, number, RowFormat(("id",), binary=False), limit, prefetch)
    return Subscriber(spec, since_scan=1, patient_until_ns=patient_until_ns, remaining=limit)


def group(*members: Subscriber) -> Subscribers:
    made = Subscribers(BATCH)
    for member in members:
        made.add(member)
    return made


def leases(count: int, first: int = 0) -> list[Lease]:
    return [Lease(key, 1, 100, 0, 0) for key in range(first, first + count)]


def names(dealt: list[tuple[Lease, Subscriber]]) -> list[int]:
    return [member.spec.id for _, member in dealt]


def send(members: Subscribers, member: Subscriber) -> None:
    """Everything that is on its way to a subscriber is fetched and sent."""
    unsent = list(member.unsent.values())
    for lease in unsent:
        lease.apply(LeaseEvent.FETCH)
    members.sent(member, unsent)


# Turns.


def test_equals_take_turns() -> None:
    dealt, left = group(subscriber(1), subscriber(2), subscriber(3)).deal(leases(6))
    assert names(dealt) == [1, 2, 3, 1, 2, 3]
    assert left == []


def test_whoever_was_served_longest_ago_is_next() -> None:
    two = group(subscriber(1), subscriber(2))
    first, _ = two.deal(leases(1))
    second, _ = two.deal(leases(1, first=1))
    assert names(first) + names(second) == [1, 2]


def test_most_credit_goes_first() -> None:
    dealt, _ = group(subscriber(1, prefetch=1), subscriber(2, prefetch=3)).deal(leases(4))
    assert names(dealt)[:2] == [2, 2]
    assert Counter(names(dealt)) == {1: 1, 2: 3}


def test_nobody_gets_more_than_a_batch_of_one_deal() -> None:
    dealt, left = group(subscriber(1)).deal(leases(BATCH + 5))
    assert len(dealt) == BATCH
    assert len(left) == 5


def test_messages_are_dealt_in_their_order() -> None:
    dealt, _ = group(subscriber(1), subscriber(2)).deal(leases(5))
    assert [lease.key for lease, _ in dealt] == [0, 1, 2, 3, 4]


def test_a_paused_subscriber_gets_nothing_until_it_reads_again() -> None:
    slow = subscriber(1)
    members = group(slow)
    members.pause(slow, paused=True)
    assert (members.credit, members.awake) == (0, False)
    assert members.deal(leases(1))[0] == []
    members.pause(slow, paused=False)
    assert (members.credit, members.awake) == (BATCH, True)
    assert names(members.deal(leases(1))[0]) == [1]


# Credit.


def test_credit_is_bounded_by_what_is_on_its_way_by_prefetch_and_by_limit() -> None:
    assert subscriber(1).credit(BATCH) == 2 * BATCH
    assert subscriber(1, prefetch=4).credit(BATCH) == 4
    assert subscriber(1, limit=3).credit(BATCH) == 3
    member = subscriber(1, prefetch=4, limit=3)
    group(member).deal(leases(1))
    assert member.credit(BATCH) == 2


def test_a_message_that_was_not_sent_gives_its_place_back() -> None:
    member = subscriber(1, limit=1)
    members = group(member)
    (lease,) = leases(1)
    members.deal([lease])
    assert members.credit == 0
    members.take_back(member, lease)
    assert members.credit == 1


def test_a_message_that_was_sent_counts_against_the_limit_for_good() -> None:
    member = subscriber(1, limit=1)
    members = group(member)
    (lease,) = leases(1)
    members.deal([lease])
    send(members, member)
    members.take_back(member, lease)
    assert members.credit == 0
    assert members.over(nothing_to_give=False, completed=0) == [member]


def test_the_credit_of_all_follows_each_change_of_one() -> None:
    members = group(*(subscriber(number, prefetch=number) for number in range(1, 6)))
    assert members.credit == 15
    gone = next(iter(members))
    members.remove(gone)
    assert members.credit == 14
    members.deal(leases(14))
    assert (members.credit, members.starved) == (0, True)
    members.resize(2)
    assert members.credit == 0


# Bounded streams.


@pytest.mark.parametrize("completed", [0, 1])
def test_a_bounded_stream_ends_when_a_scan_that_began_after_it_found_nothing(completed: int) -> None:
    member = subscriber(1, patient_until_ns=50)
    members = group(member)
    assert members.is_unsure(completed=0, started=0)
    assert members.next_patience_ns() == 50
    members.pass_time(49)
    assert members.over(nothing_to_give=True, completed=1) == []
    members.pass_time(50)
    assert members.next_patience_ns() is None
    assert members.over(nothing_to_give=False, completed=completed) == []
    assert members.over(nothing_to_give=True, completed=completed) == [member][:completed]


def test_a_bounded_stream_that_was_given_something_needs_no_patience_to_end() -> None:
    member = subscriber(1, patient_until_ns=1_000)
    members = group(member)
    members.deal(leases(1))
    assert members.over(nothing_to_give=True, completed=1) == []
    send(members, member)
    assert members.over(nothing_to_give=True, completed=1) == [member]


# Costs.


class Counting(Subscribers):
    """Counts how often one subscriber is looked at."""

    looks = 0

    def _changed(self, subscriber: Subscriber) -> None:
        self.looks += 1
        super()._changed(subscriber)


@pytest.mark.parametrize("count", [10, 1_000, 5_000])
def test_a_message_costs_the_same_however_many_subscribers_there_are(count: int) -> None:
    members = Counting(BATCH)
    for number in range(1, count + 1):
        members.add(subscriber(number))
    members.looks = 0
    ((lease, member),), _ = members.deal(leases(1))
    assert members.to_fetch() == [member]
    send(members, member)
    members.take_back(member, lease)
    assert members.over(nothing_to_give=True, completed=1) == []
    assert members.looks == 3


def test_the_order_of_turns_takes_no_more_room_than_the_subscribers() -> None:
    members = group(*(subscriber(number) for number in range(1, 11)))
    for first in range(0, 10_000, 10):
        for lease, member in members.deal(leases(10, first))[0]:
            members.take_back(member, lease)
    assert len(members._next) < 200
