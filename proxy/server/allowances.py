"""How much of each limit of a queue (`max_in_flight`, `max_rate`) each worker has: together never
more than the limit.

A limit is divided among the workers whose clients stream from the queue. Before one of them gets
more, another one has confirmed that it has less: a worker may still have more messages in flight
than its new allowance, and reports them until it has not. If there are fewer units than workers,
they are passed around (`turn`), so that no stream waits for ever.

Pure: messages of workers go in, orders come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.model import TableId


class Kind(Enum):
    """Which limit of a queue."""

    IN_FLIGHT = auto()
    """A number of messages."""
    RATE = auto()
    """`RATE_UNITS` are the whole rate."""


RATE_UNITS = 840
"""Divisible by up to eight workers, so that they have the same rate."""

Limited = tuple[TableId, Kind]


def divide(total: int, parts: int) -> list[int]:
    """`parts` numbers that differ by 1 at most, with the sum `total`."""
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]


@dataclass(frozen=True, slots=True)
class Order:
    """A worker may use so many units from now on. It answers with what it still uses."""

    worker: int
    limited: Limited
    units: int


@dataclass(slots=True)
class _Divided:
    wanted: dict[int, int] = field(default_factory=dict)
    """By worker that has streams, the limit in its description of the table."""
    used: dict[int, int] = field(default_factory=dict)
    """By worker, the most units that it can be using."""
    ordered: dict[int, int] = field(default_factory=dict)
    """By worker, the units in the last order."""

    def targets(self, turn: int) -> dict[int, int]:
        """What each worker is to have in the end."""
        workers = sorted(self.wanted)
        if not workers:
            return {}
        first = turn % len(workers)
        return dict(
            zip(workers[first:] + workers[:first], divide(min(self.wanted.values()), len(workers)), strict=True)
        )

    def orders(self, turn: int) -> Iterator[tuple[int, int]]:
        targets = self.targets(turn)
        for worker, ordered in list(self.ordered.items()):
            if (less := targets.get(worker, 0)) < ordered:
                self.ordered[worker] = less
                yield worker, less
        limit = min(self.wanted.values(), default=0)
        for worker, target in targets.items():
            used, ordered = self.used.get(worker, 0), self.ordered.get(worker, 0)
            room = max(0, limit - sum(self.used.values()))
            more = min(target, used + room)
            if more > ordered:
                self.ordered[worker] = more
                self.used[worker] = max(used, more)
                yield worker, more


class Allowances:
    """The allowances of all workers."""

    def __init__(self) -> None:
        self._divided: dict[Limited, _Divided] = {}
        self._turn = 0

    def demand(self, worker: int, limits: Mapping[Limited, int]) -> list[Order]:
        """A worker has streams of these queues, and of no others that have limits."""
        for limited in limits:
            self._divided.setdefault(limited, _Divided())
        for limited, divided in self._divided.items():
            if limited in limits:
                divided.wanted[worker] = limits[limited]
            else:
                divided.wanted.pop(worker, None)
        return self._orders()

    def uses(self, worker: int, limited: Limited, ordered: int, used: int) -> list[Order]:
        """A worker that follows the order of `ordered` units uses so many."""
        divided = self._divided.get(limited)
        if divided is not None and divided.ordered.get(worker) == ordered:
            divided.used[worker] = max(ordered, used)
            if not divided.used[worker] and worker not in divided.wanted:
                del divided.used[worker], divided.ordered[worker]
        return self._orders()

    def ended(self, worker: int) -> list[Order]:
        """A worker has ended, and its clients' connections with it."""
        for divided in self._divided.values():
            for by_worker in (divided.wanted, divided.used, divided.ordered):
                by_worker.pop(worker, None)
        return self._orders()

    def turn(self) -> list[Order]:
        """Pass units around where there are fewer than workers. To be called now and then."""
        self._turn += 1
        return self._orders()

    def used(self, limited: Limited) -> int:
        """The most units that all workers together can be using."""
        return sum(self._divided[limited].used.values()) if limited in self._divided else 0

    def _orders(self) -> list[Order]:
        found = []
        for limited, divided in list(self._divided.items()):
            scarce = len(divided.wanted) > min(divided.wanted.values(), default=0)
            found += [Order(worker, limited, units) for worker, units in divided.orders(self._turn if scarce else 0)]
            if not divided.wanted and not divided.used:
                del self._divided[limited]
        return found
