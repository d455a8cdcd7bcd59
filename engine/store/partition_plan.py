"""Tables that keep their acknowledged rows in partitions by time, so that old ones are dropped, not deleted row by row.

PARTITION BY RANGE (time_acked) puts live rows, whose time_acked is NULL, into the lowest partition, and an ACK moves
its row into the partition of its time. Looking at live rows reads that one partition only. Old partitions are dropped,
new ones made ahead of their time; what lies where dropping cannot reach it (`sweep`) is deleted in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.model import NS_PER_S

AHEAD = 3
"""Partitions that begin in the future: a week's end without a proxy for daily ones, and each is an open file or two."""

SHARE = 10
"""A partition's part of the age at which rows go: so much longer they are kept at most, for the sake of those behind
them in their partition; and so many partitions there are, beside those ahead."""

SHARE_MAX = 1_000
"""With more partitions than this, the next ones are made wider. A server has 8,192 at most, each a file."""

WIDTH_MIN_NS = 60 * NS_PER_S
"""Each partition is an ALTER TABLE to make it and one to drop it: rows that go sooner are better deleted."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition and the time it ends before (None: MAXVALUE)."""

    name: str
    below_ns: int | None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What is to be done to a table's partitions now."""

    drop: tuple[str, ...]
    add: tuple[Partition, ...]
    rest: Partition | None
    """The MAXVALUE partition, if there is one: new ones are then split off it."""
    sweep: tuple[str, ...]
    """Where old rows have to be deleted one by one."""


def is_by_time(method: str, expression: str) -> bool:
    """Whether a table that is partitioned like this has its acknowledged rows in the order of time."""
    return method.upper() in {"RANGE", "RANGE COLUMNS"} and expression.strip("`").lower() == "time_acked"


def plan_partitions(partitions: Sequence[Partition], now_ns: int, age_ns: int) -> PartitionPlan:
    """What to do with partitions (in their order), so that rows go some time after they are `age_ns` old."""
    before_ns = now_ns - age_ns
    bounds_ns = [each.below_ns for each in partitions if each.below_ns is not None]
    widths_ns = [end - begin for begin, end in pairwise(bounds_ns)]
    drop: list[str] = []
    sweep: list[str] = []
    for at, each in enumerate(partitions):
        # The lowest one has the live rows; the last two with a bound tell how wide the next ones are to be.
        if each.below_ns is None or at == 0:
            sweep.append(each.name)
        elif each.below_ns <= before_ns:
            (drop if at < len(bounds_ns) - 2 else sweep).append(each.name)
        # The first behind the lowest has taken over the range of those that were dropped.
        elif len(widths_ns) < 2 or widths_ns[max(at - 1, 1)] > age_ns:
            sweep.append(each.name)  # Its first rows would be kept twice as long.
    rest = next((each for each in partitions if each.below_ns is None), None)
    add = () if len(widths_ns) < 2 else tuple(_next_ones(bounds_ns[-1], _next_width_ns(widths_ns[-1], age_ns), now_ns))
    return PartitionPlan(tuple(drop), add, rest, tuple(sweep))


def first_partitions(start_ns: int, width_ns: int, count: int) -> tuple[Partition, ...]:
    """For a new table: live rows, `count` (two or more) partitions of this width from `start_ns` on, and one for
    whatever comes when nobody has made the next ones.
    """
    ends = (start_ns + width_ns * number for number in range(1, count + 1))
    return (Partition("live", start_ns), *map(_ending, ends), Partition("later", None))


def fitting_width_ns(age_ns: int) -> int:
    """How wide the partitions of a table are best, from which rows go when they are so old."""
    return max(WIDTH_MIN_NS, age_ns // SHARE)


def _next_width_ns(last_ns: int, age_ns: int) -> int:
    """As wide as the last one, unless somebody has changed the age meanwhile to what does not fit that at all."""
    fits = last_ns <= age_ns <= last_ns * SHARE_MAX
    return last_ns if fits or age_ns < WIDTH_MIN_NS else fitting_width_ns(age_ns)


def _next_ones(last_ns: int, width_ns: int, now_ns: int) -> Iterable[Partition]:
    missed = max(0, now_ns - last_ns) // width_ns  # All of those in one: nothing is acknowledged in the past.
    end_ns = last_ns + missed * width_ns
    while end_ns <= now_ns + AHEAD * width_ns:
        end_ns += width_ns
        yield _ending(end_ns)


def _ending(below_ns: int) -> Partition:
    return Partition(f"p{below_ns}", below_ns)
