"""Which subscriber gets the next message: credit, turns, and the cost of an event with thousands of subscribers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.dispatch.leases import Lease, LeaseEvent
from engine.dispatch.subscribers import Subscriber, Subscribers, Subscription
from engine.model import RowFormat

BATCH = 10


def subscriber(
    number: int, *, prefetch: int | None = None, limit: int | None = None, first_wait_until_ns: int | None = None
) -> Subscriber:
    spec = Subscription(number, number, RowFormat(("id",), binary=False), limit, prefetch, first_wait_until_ns)
    return Subscriber(spec, since_scan=1, first_wait_until_ns=first_wait_until_ns, remaining=limit)


def group(*members: Subscriber) -> Subscribers:
    made = Subscribers(BATCH)
    for member in members:
        made.add_stream(member)
    return made


def leases(count: int, first: int = 0) -> list[Lease]:
    return [Lease(key, 1, 100, 0, 0) for key in range(first, first + count)]


def names(dealt: list[tuple[Lease, Subscriber]]) -> list[int]:
    return [member.spec.id for _, member in dealt]


def send(members: Subscribers, member: Subscriber) -> None:
    """Fetch and send all unsent rows of a subscriber."""
    unsent = list(member.unsent.values())
    for lease in unsent:
        lease.apply(LeaseEvent.FETCH)
    members.rows_sent(member, unsent)


# Turns.


def test_subscribers_with_equal_credit_take_turns() -> None:
    dealt, left = group(subscriber(1), subscriber(2), subscriber(3)).distribute(leases(6))
    assert names(dealt) == [1, 2, 3, 1, 2, 3]
    assert left == []


def test_the_subscriber_served_longest_ago_is_next() -> None:
    two = group(subscriber(1), subscriber(2))
    first, _ = two.distribute(leases(1))
    second, _ = two.distribute(leases(1, first=1))
    assert names(first) + names(second) == [1, 2]


def test_the_subscriber_that_holds_the_fewest_messages_is_first() -> None:
    two = group(subscriber(1), subscriber(2))
    dealt, _ = two.distribute(leases(4))
    two.leases_ended(dealt[1][1], [dealt[1][0], dealt[3][0]])
    assert names(two.distribute(leases(3, first=4))[0]) == [2, 2, 1]


@pytest.mark.parametrize("narrow", [{"prefetch": 1}, {"limit": 1}])
def test_a_subscriber_with_little_credit_is_not_passed_over(narrow: dict[str, int]) -> None:
    dealt, _ = group(subscriber(1), subscriber(2, **narrow)).distribute(leases(4))
    assert names(dealt) == [1, 2, 1, 1]


def test_polls_get_their_turns_beside_a_stream_that_takes_each_message_at_once() -> None:
    endless = subscriber(1)
    members = group(endless)
    taken: list[int] = []
    for number in range(2, 5):
        members.add_stream(poll := subscriber(number, limit=3, first_wait_until_ns=0))
        while not poll.limit_reached:
            ((lease, taker),), _ = members.distribute(leases(1, first=len(taken)))
            taken.append(taker.spec.id)
            send(members, taker)
            if taker is endless:  # The client of the poll acknowledges what it was sent when the poll is over.
                members.leases_ended(taker, [lease])
        members.remove_stream(poll)
    assert taken == [1, 2, 1, 2, 1, 2, 1, 3, 1, 3, 1, 3, 1, 4, 1, 4, 1, 4]


def test_one_distribution_gives_a_subscriber_a_batch_at_most() -> None:
    dealt, left = group(subscriber(1)).distribute(leases(BATCH + 5))
    assert len(dealt) == BATCH
    assert len(left) == 5


def test_messages_are_distributed_in_their_order() -> None:
    dealt, _ = group(subscriber(1), subscriber(2)).distribute(leases(5))
    assert [lease.key for lease, _ in dealt] == [0, 1, 2, 3, 4]


# Runs.


def test_a_run_goes_to_one_subscriber() -> None:
    two = group(subscriber(1), subscriber(2))
    dealt, left = two.distribute_runs([leases(4), leases(3, first=4), leases(2, first=7)])
    assert names(dealt) == [1] * 4 + [2] * 5
    assert left == []


def test_what_a_subscriber_has_no_room_for_is_left_of_each_run() -> None:
    two = group(subscriber(1, prefetch=3), subscriber(2, limit=2))
    dealt, left = two.distribute_runs([leases(4), leases(4, first=4), leases(1, first=8)])
    assert names(dealt) == [1] * 3 + [2] * 2
    assert [lease.key for lease in left] == [3, 6, 7, 8]


def test_rooms_are_those_of_the_next_subscribers() -> None:
    some = group(subscriber(1, prefetch=3), subscriber(2, limit=7), subscriber(3), subscriber(4, prefetch=1))
    assert some.rooms(100) == [(0, 3), (0, 7), (0, BATCH), (0, 1)]
    assert some.rooms(4) == [(0, 3), (0, 7)]
    some.set_paused(next(iter(some)), paused=True)
    some.set_paused(next(iter(some)), paused=False)
    assert some.rooms(100) == [(0, 3), (0, 7), (0, BATCH), (0, 1)]
    some.distribute(leases(1))
    assert some.rooms(100) == [(0, 7), (0, BATCH), (0, 1), (1, 2)]


def test_shares_follow_one_another_and_are_equal_parts_of_what_is_ready() -> None:
    dealt, left = group(subscriber(1), subscriber(2), subscriber(3)).distribute_shares(leases(12), ready=12)
    assert [(lease.key, member.spec.id) for lease, member in dealt] == [(key, 1 + key // 4) for key in range(12)]
    assert not left


def test_a_share_is_as_large_as_the_credit_if_more_is_ready() -> None:
    members = group(subscriber(1), subscriber(2, prefetch=3), subscriber(3))
    dealt, left = members.distribute_shares(leases(20), ready=1_000)
    assert Counter(names(dealt)) == {1: BATCH, 2: 3, 3: BATCH - 3}
    assert not left
    members.set_paused(next(iter(members)), paused=True)
    dealt, left = members.distribute_shares(leases(15), ready=1_000)
    assert (Counter(names(dealt)), len(left)) == ({3: 2 * BATCH - 7}, 2)


def test_who_has_less_credit_is_not_passed_over() -> None:
    dealt, _ = group(subscriber(1), subscriber(2, prefetch=3)).distribute_shares(leases(6), ready=6)
    assert Counter(names(dealt)) == {1: 3, 2: 3}


def test_nobody_with_credit_is_given_nothing() -> None:
    dealt, left = group(subscriber(1, prefetch=0)).distribute_shares(leases(2), ready=2)
    assert (dealt, len(left)) == ([], 2)


def dealt_one_by_one(members: Subscribers, count: int) -> list[int]:
    """The subscribers that so many messages go to: each one to the least load, and among equals to the one that has
    waited longest."""
    credit = {member.spec.id: min(member.credit(BATCH), BATCH) for member in members}
    load = {member.spec.id: member.load for member in members}
    turns = {member.spec.id: member.last_turn for member in members}
    dealt: list[int] = []
    for turn in range(1, min(count, sum(credit.values())) + 1):
        able = [number for number in credit if credit[number]]
        best = min(able, key=lambda number: (load[number], turns[number], number))
        credit[best] -= 1
        load[best] += 1
        turns[best] = max(turns.values()) + turn
        dealt.append(best)
    return dealt


@example([None, 3], set(), [("pause", 0), ("read", 0)])  # Two entries of one subscriber in the order.
@given(
    st.lists(st.one_of(st.none(), st.integers(1, 12)), min_size=1, max_size=5),
    st.sets(st.integers(1, 5)),
    st.lists(
        st.tuples(st.sampled_from(("distribute", "end", "send", "pause", "read")), st.integers(0, 25)), max_size=12
    ),
)
def test_each_message_goes_to_the_least_load_whatever_was_before(
    prefetches: list[int | None], polls: set[int], steps: list[tuple[str, int]]
) -> None:
    members = group(
        *(
            subscriber(number, prefetch=prefetch, first_wait_until_ns=0 if number in polls else None)
            for number, prefetch in enumerate(prefetches, 1)
        )
    )
    streams = list(members)
    held: dict[int, list[Lease]] = {member.spec.id: [] for member in streams}
    for at, (step, number) in enumerate([*steps, ("distribute", 100)]):
        member = streams[number % len(streams)]
        match step:
            case "distribute":
                expected = dealt_one_by_one(members, number)
                given_out, left = members.distribute(leases(number, first=1_000 * at))
                assert (names(given_out), len(left)) == (expected, number - len(expected))
                for lease, taker in given_out:
                    held[taker.spec.id].append(lease)
            case "end":
                ended, held[member.spec.id] = held[member.spec.id][:number], held[member.spec.id][number:]
                members.leases_ended(member, ended)
            case "send":
                send(members, member)
            case _:
                members.set_paused(member, paused=step == "pause")
        assert members.credit == sum(min(member.credit(BATCH), BATCH) for member in members)


def test_a_paused_subscriber_gets_nothing_until_it_reads_again() -> None:
    slow = subscriber(1)
    members = group(slow)
    members.set_paused(slow, paused=True)
    assert (members.credit, members.any_reading) == (0, False)
    assert members.distribute(leases(1))[0] == []
    members.set_paused(slow, paused=False)
    assert (members.credit, members.any_reading) == (BATCH, True)
    assert names(members.distribute(leases(1))[0]) == [1]


# Credit.


def test_credit_is_bounded_by_what_is_on_its_way_by_prefetch_and_by_limit() -> None:
    assert subscriber(1).credit(BATCH) == 2 * BATCH
    assert subscriber(1, prefetch=4).credit(BATCH) == 4
    assert subscriber(1, limit=3).credit(BATCH) == 3
    member = subscriber(1, prefetch=4, limit=3)
    group(member).distribute(leases(1))
    assert member.credit(BATCH) == 2


def test_a_lease_that_ends_unsent_restores_the_limit() -> None:
    member = subscriber(1, limit=1)
    members = group(member)
    (lease,) = leases(1)
    members.distribute([lease])
    assert members.credit == 0
    members.leases_ended(member, [lease])
    assert members.credit == 1


def test_a_sent_message_counts_against_the_limit_permanently() -> None:
    member = subscriber(1, limit=1)
    members = group(member)
    (lease,) = leases(1)
    members.distribute([lease])
    send(members, member)
    members.leases_ended(member, [lease])
    assert members.credit == 0
    assert members.finished_streams(nothing_to_give=False, completed=0) == [member]


def test_the_sum_of_credit_follows_each_change_of_one_subscriber() -> None:
    members = group(*(subscriber(number, prefetch=number) for number in range(1, 6)))
    assert members.credit == 15
    gone = next(iter(members))
    members.remove_stream(gone)
    assert members.credit == 14
    members.distribute(leases(14))
    assert (members.credit, members.any_starved) == (0, True)
    members.resize(2)
    assert members.credit == 0


# Bounded streams.


@pytest.mark.parametrize("completed", [0, 1])
def test_a_bounded_stream_ends_when_a_scan_that_began_after_it_found_nothing(completed: int) -> None:
    member = subscriber(1, first_wait_until_ns=50)
    members = group(member)
    assert members.awaits_scan(completed=0, started=0)
    assert members.next_first_wait_end_ns() == 50
    members.end_first_waits(49)
    assert members.finished_streams(nothing_to_give=True, completed=1) == []
    members.end_first_waits(50)
    assert members.next_first_wait_end_ns() is None
    assert members.finished_streams(nothing_to_give=False, completed=completed) == []
    assert members.finished_streams(nothing_to_give=True, completed=completed) == [member][:completed]


def test_a_bounded_stream_that_was_given_something_ends_without_waiting() -> None:
    member = subscriber(1, first_wait_until_ns=1_000)
    members = group(member)
    members.distribute(leases(1))
    assert members.finished_streams(nothing_to_give=True, completed=1) == []
    send(members, member)
    assert members.finished_streams(nothing_to_give=True, completed=1) == [member]


# Costs.


class Counting(Subscribers):
    """Counts the updates of indexes."""

    looks = 0

    def _changed(self, subscriber: Subscriber) -> None:
        self.looks += 1
        super()._changed(subscriber)


@pytest.mark.parametrize("count", [10, 1_000, 5_000])
def test_a_message_costs_the_same_however_many_subscribers_there_are(count: int) -> None:
    members = Counting(BATCH)
    for number in range(1, count + 1):
        members.add_stream(subscriber(number))
    members.looks = 0
    ((lease, member),), _ = members.distribute(leases(1))
    assert members.to_fetch() == [member]
    send(members, member)
    members.leases_ended(member, [lease])
    assert members.finished_streams(nothing_to_give=True, completed=1) == []
    assert members.looks == 3


def test_the_order_of_turns_takes_no_more_room_than_the_subscribers() -> None:
    members = group(*(subscriber(number) for number in range(1, 11)))
    for first in range(0, 10_000, 10):
        for lease, member in members.distribute(leases(10, first))[0]:
            members.leases_ended(member, [lease])
    assert len(members._next) < 200
