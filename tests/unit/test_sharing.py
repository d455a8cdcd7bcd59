"""Who gets the next message: credit, and the deal."""

from __future__ import annotations

from collections import Counter

from engine.leases import Lease
from engine.model import RowFormat
from engine.subscribers import Subscriber, Subscription, share

BATCH = 10


def subscriber(number: int, *, prefetch: int | None = None, limit: int | None = None) -> Subscriber:
    spec = Subscription(number, number, RowFormat(("id",), binary=False), limit, prefetch)
    return Subscriber(spec, since_scan=1, patient_until_ns=None, remaining=limit)


def leases(count: int) -> list[Lease]:
    return [Lease(key, 1, 100, 0, 0) for key in range(count)]


def names(dealt: list[tuple[Lease, Subscriber]]) -> list[int]:
    return [each.spec.id for _, each in dealt]


def test_equals_take_turns() -> None:
    dealt, left = share([subscriber(1), subscriber(2), subscriber(3)], leases(6), BATCH, 0)
    assert names(dealt) == [1, 2, 3, 1, 2, 3]
    assert left == []


def test_whoever_was_served_longest_ago_is_next() -> None:
    two = [subscriber(1), subscriber(2)]
    first, _ = share(two, leases(1), BATCH, 0)
    second, _ = share(two, leases(1), BATCH, 1)
    assert names(first) + names(second) == [1, 2]


def test_most_credit_goes_first() -> None:
    dealt, _ = share([subscriber(1, prefetch=1), subscriber(2, prefetch=3)], leases(4), BATCH, 0)
    assert names(dealt)[:2] == [2, 2]
    assert Counter(names(dealt)) == {1: 1, 2: 3}


def test_nobody_gets_more_than_a_batch_of_one_deal() -> None:
    dealt, left = share([subscriber(1)], leases(BATCH + 5), BATCH, 0)
    assert len(dealt) == BATCH
    assert len(left) == 5


def test_messages_are_dealt_in_their_order() -> None:
    dealt, _ = share([subscriber(1), subscriber(2)], leases(5), BATCH, 0)
    assert [lease.key for lease, _ in dealt] == [0, 1, 2, 3, 4]


def test_a_paused_subscriber_has_no_credit() -> None:
    paused = subscriber(1)
    paused.paused = True
    assert paused.credit(BATCH) == 0
    assert share([paused], leases(1), BATCH, 0)[0] == []


def test_credit_is_bounded_by_what_is_on_its_way_by_prefetch_and_by_limit() -> None:
    assert subscriber(1).credit(BATCH) == 2 * BATCH
    assert subscriber(1, prefetch=4).credit(BATCH) == 4
    assert subscriber(1, limit=3).credit(BATCH) == 3
    each = subscriber(1, prefetch=4, limit=3)
    each.assign(leases(1)[0])
    assert each.credit(BATCH) == 2


def test_a_message_that_was_not_sent_gives_its_place_back() -> None:
    each = subscriber(1, limit=1)
    (lease,) = leases(1)
    each.assign(lease)
    assert each.credit(BATCH) == 0
    each.unassign(lease)
    assert each.credit(BATCH) == 1


def test_a_message_that_was_sent_counts_against_the_limit_for_good() -> None:
    each = subscriber(1, limit=1)
    (lease,) = leases(1)
    each.assign(lease)
    each.sent(lease)
    each.unassign(lease)
    assert each.credit(BATCH) == 0
    assert each.finished
