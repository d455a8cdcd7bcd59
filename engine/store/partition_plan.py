"""Plans for tables with acknowledged rows in partitions by time: old ones are dropped, not deleted
by row.

PARTITION BY RANGE (time_acked) keeps live rows, whose time_acked is NULL, in the lowest partition.
An ACK moves its row into the partition of its time. Queries for live rows read the lowest partition
only. Old partitions are dropped, and new ones are made ahead of their time. Old rows in partitions
that cannot be dropped (`sweep`) are deleted in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.model import NS_PER_S

AHEAD = 3
"""Partitions that begin in the future. With daily ones, a proxy may be stopped for a weekend. Each
is one or two open files."""

SHARE = 10
"""A partition's width is the age at which rows go, divided by this. Rows are kept longer by one
width at most, until their whole partition is old. There are about this many partitions, plus those
ahead."""

SHARE_MAX = 1_000
"""With more partitions than this, the next ones are made wider. A table has 8,192 at most, each a
file."""

WIDTH_MIN_NS = 60 * NS_PER_S
"""Each partition costs an ALTER TABLE to make it and one to drop it. Rows that go sooner are better
deleted."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, and the time below which its rows are (None: MAXVALUE)."""

    name: str
    below_ns: int | None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The changes that a table's partitions need now."""

    drop: tuple[str, ...]
    add: tuple[Partition, ...]
    rest: Partition | None
    """The MAXVALUE partition, if there is one. New ones are then split off it."""
    sweep: tuple[str, ...]
    """The partitions in which old rows must be deleted one by one."""


def is_by_time(method: str, expression: str) -> bool:
    """Whether this partitioning puts acknowledged rows into partitions by time."""
    return method.upper() in {"RANGE", "RANGE COLUMNS"} and expression.strip("`").lower() == "time_acked"


def plan_partitions(partitions: Sequence[Partition], now_ns: int, age_ns: int) -> PartitionPlan:
    """The plan for these partitions (in their order): rows go some time after they are `age_ns`
    old."""
    before_ns = now_ns - age_ns
    bounds_ns = [partition.below_ns for partition in partitions if partition.below_ns is not None]
    widths_ns = [end - begin for begin, end in pairwise(bounds_ns)]
    drop: list[str] = []
    sweep: list[str] = []
    for at, partition in enumerate(partitions):
        # The lowest one has the live rows. The last two with a bound define the next ones' width.
        if partition.below_ns is None or at == 0:
            sweep.append(partition.name)
        elif partition.below_ns <= before_ns:
            (drop if at < len(bounds_ns) - 2 else sweep).append(partition.name)
        # The first one after the lowest has taken over the range of those that were dropped.
        elif len(widths_ns) < 2 or widths_ns[max(at - 1, 1)] > age_ns:
            sweep.append(partition.name)  # Its first rows would be kept twice as long.
    rest = next((partition for partition in partitions if partition.below_ns is None), None)
    add = () if len(widths_ns) < 2 else tuple(_next_ones(bounds_ns[-1], _next_width_ns(widths_ns[-1], age_ns), now_ns))
    return PartitionPlan(tuple(drop), add, rest, tuple(sweep))


def first_partitions(start_ns: int, width_ns: int, count: int) -> tuple[Partition, ...]:
    """The partitions of a new table: one for live rows, `count` (at least two) of this width from
    `start_ns` on, and one for all later times.
    """
    ends = (start_ns + width_ns * number for number in range(1, count + 1))
    return (Partition("live", start_ns), *map(_ending, ends), Partition("later", None))


def fitting_width_ns(age_ns: int) -> int:
    """The best width of partitions for a table whose rows go at this age."""
    return max(WIDTH_MIN_NS, age_ns // SHARE)


def _next_width_ns(last_ns: int, age_ns: int) -> int:
    """The last one's width, unless the age was changed and does not fit it any more."""
    fits = last_ns <= age_ns <= last_ns * SHARE_MAX
    return last_ns if fits or age_ns < WIDTH_MIN_NS else fitting_width_ns(age_ns)


def _next_ones(last_ns: int, width_ns: int, now_ns: int) -> Iterable[Partition]:
    missed = max(0, now_ns - last_ns) // width_ns  # One partition for all of them: nothing is acknowledged in the past.
    end_ns = last_ns + missed * width_ns
    while end_ns <= now_ns + AHEAD * width_ns:
        end_ns += width_ns
        yield _ending(end_ns)


def _ending(below_ns: int) -> Partition:
    return Partition(f"p{below_ns}", below_ns)
