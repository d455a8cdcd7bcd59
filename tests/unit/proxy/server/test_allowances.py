"""The limits of queues are divided among workers: never more than the limit, and every worker gets its turn."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.model import TableId
from proxy.server.allowances import Allowances, Kind, Limited, Order

LIMITED = (TableId("shop", "orders"), Kind.IN_FLIGHT)


class Played:
    """Workers that carry out orders late, and keep what is in flight until they please."""

    def __init__(self) -> None:
        self.allowances = Allowances()
        self.sent: dict[int, list[int]] = {}
        """By worker, orders that it has not read."""
        self.confirmed: dict[int, list[tuple[int, int]]] = {}
        """By worker, answers that the parent has not read."""
        self.allowed: dict[int, int] = {}
        self.in_flight: dict[int, int] = {}
        self.wanting: set[int] = set()

    def send(self, orders: Iterable[Order]) -> None:
        for order in orders:
            assert order.limited == LIMITED
            self.sent.setdefault(order.worker, []).append(order.units)

    def demand(self, worker: int, limit: int | None) -> None:
        if limit is None:
            self.wanting.discard(worker)
        else:
            self.wanting.add(worker)
        self.send(self.allowances.demand(worker, {} if limit is None else {LIMITED: limit}))

    def read(self, worker: int) -> None:
        if self.sent.get(worker):
            self.allowed[worker] = self.sent[worker].pop(0)
            self.report(worker)

    def report(self, worker: int) -> None:
        answer = (self.allowed.get(worker, 0), self.in_flight.get(worker, 0))
        self.confirmed.setdefault(worker, []).append(answer)

    def confirm(self, worker: int) -> None:
        if self.confirmed.get(worker):
            self.send(self.allowances.uses(worker, LIMITED, *self.confirmed[worker].pop(0)))

    def claim(self, worker: int) -> None:
        if worker in self.wanting and self.in_flight.get(worker, 0) < self.allowed.get(worker, 0):
            self.in_flight[worker] = self.in_flight.get(worker, 0) + 1

    def settle(self, worker: int) -> None:
        if self.in_flight.get(worker):
            self.in_flight[worker] -= 1
            self.report(worker)

    def end(self, worker: int) -> None:
        for state in (self.sent, self.confirmed, self.allowed, self.in_flight):
            state.pop(worker, None)
        self.wanting.discard(worker)
        self.send(self.allowances.ended(worker))

    def settle_down(self, workers: Iterable[int]) -> None:
        """Everything that is under way arrives."""
        while any(self.sent.get(worker) or self.confirmed.get(worker) for worker in workers):
            for worker in workers:
                self.read(worker)
                self.confirm(worker)


KINDS = ("demand", "leave", "read", "read", "confirm", "confirm", "claim", "claim", "claim", "settle", "end", "turn")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), max_size=80)


def play(steps: Iterable[tuple[str, int]], limit: int, allowances: Allowances | None = None) -> Played:
    """Play the steps. Fails if there is ever more in flight than the limit."""
    played = Played()
    played.allowances = allowances or played.allowances
    for step, worker in steps:
        match step:
            case "demand":
                played.demand(worker, limit)
            case "leave":
                played.demand(worker, None)
            case "turn":
                played.send(played.allowances.turn())
            case _:
                getattr(played, step)(worker)
        assert sum(max(played.allowed.get(name, 0), played.in_flight.get(name, 0)) for name in (1, 2, 3)) <= limit
    return played


@given(STEPS, st.integers(1, 7))
def test_workers_together_never_have_more_in_flight_than_the_limit(steps: list[tuple[str, int]], limit: int) -> None:
    play(steps, limit)


class Careless(Allowances):
    """Believes that a worker has nothing in flight beyond its new allowance."""

    def uses(self, worker: int, limited: Limited, ordered: int, used: int) -> list[Order]:
        return super().uses(worker, limited, ordered, ordered)


class Hasty(Allowances):
    """Does not wait until a worker has confirmed that it has less."""

    def demand(self, worker: int, limits: Mapping[Limited, int]) -> list[Order]:
        orders = super().demand(worker, limits)
        for order in orders:
            orders += super().uses(order.worker, order.limited, order.units, order.units)
        return orders


@pytest.mark.parametrize("broken", [Careless, Hasty])
def test_the_play_objects_to_allowances_that_are_broken_on_purpose(broken: type[Allowances]) -> None:
    def objects(seed: int) -> bool:
        drawn = random.Random(seed)
        steps = [(drawn.choice(KINDS), drawn.randint(1, 3)) for _ in range(80)]
        try:
            play(steps, 2, broken())
        except AssertionError:
            return True
        return False

    assert any(map(objects, range(1_000)))


@given(STEPS, st.integers(1, 7))
def test_in_the_end_the_whole_limit_is_given_to_those_that_stream(steps: list[tuple[str, int]], limit: int) -> None:
    played = play(steps, limit)
    for worker in (1, 2, 3):
        while played.in_flight.get(worker):
            played.settle(worker)
    played.settle_down((1, 2, 3))
    assert sum(played.allowed.get(worker, 0) for worker in played.wanting) == (limit if played.wanting else 0)


def test_where_there_are_fewer_units_than_workers_each_gets_its_turn() -> None:
    played, served = Played(), set()
    for worker in (1, 2, 3):
        played.demand(worker, 1)
    for _ in range(3):
        played.settle_down((1, 2, 3))
        served |= {worker for worker, units in played.allowed.items() if units}
        played.send(played.allowances.turn())
    assert served == {1, 2, 3}


def test_a_unit_that_is_in_use_is_passed_on_when_it_is_free() -> None:
    played = Played()
    played.demand(1, 1)
    played.settle_down((1, 2))
    played.claim(1)
    played.demand(2, 1)
    for _ in range(4):
        played.send(played.allowances.turn())
        played.settle_down((1, 2))
        assert not played.allowed.get(2)
    played.settle(1)
    played.settle_down((1, 2))
    played.send(played.allowances.turn())
    played.settle_down((1, 2))
    assert sum(played.allowed.values()) == 1


def test_the_lowest_limit_that_a_worker_knows_holds() -> None:
    played = Played()
    played.demand(1, 10)
    played.demand(2, 4)
    played.settle_down((1, 2))
    assert played.allowed == {1: 2, 2: 2}


def test_a_queue_that_nobody_streams_from_takes_no_memory() -> None:
    played = Played()
    played.demand(1, 4)
    played.demand(1, None)
    played.settle_down((1,))
    assert played.allowances._divided == {}
