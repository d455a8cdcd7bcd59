"""Which partitions are dropped, made and swept. Times are small numbers: a partition `p20` ends before 20."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.model import NS_PER_S
from engine.store.partition_plan import (
    AHEAD,
    SHARE,
    SHARE_MAX,
    Partition,
    PartitionPlan,
    first_partitions,
    is_by_time,
    plan_partitions,
)
from engine.store.queries import partition_clause, partition_definitions

MINUTE = 60 * NS_PER_S
HOUR = 60 * MINUTE


def partitions(*bounds: float, rest: bool = True) -> list[Partition]:
    made = [Partition(f"p{bound:.0f}", int(bound)) for bound in bounds]
    return [*made, Partition("rest", None)] if rest else made


def names(found: PartitionPlan) -> list[str]:
    return [partition.name for partition in found.add]


def bounds(found: PartitionPlan) -> list[int]:
    return [partition.below_ns for partition in found.add if partition.below_ns is not None]


def hours(*bounds: float) -> list[Partition]:
    return partitions(*(bound * HOUR for bound in bounds))


class TestDropping:
    def test_partitions_that_ended_long_enough_ago_are_dropped_and_never_the_lowest(self) -> None:
        found = plan_partitions(partitions(0, 10, 20, 30, 40, 50, 60, 70), now_ns=45, age_ns=15)
        assert found.drop == ("p10", "p20", "p30")

    def test_the_lowest_one_is_never_dropped_however_old_its_bound_is(self) -> None:
        assert plan_partitions(partitions(0), now_ns=10**19, age_ns=1).drop == ()
        assert "p0" in plan_partitions(partitions(0), now_ns=10**19, age_ns=1).sweep

    def test_the_last_two_stay_because_they_define_the_width_and_are_swept_meanwhile(self) -> None:
        found = plan_partitions(partitions(0, 10, 20, 30), now_ns=1000, age_ns=10)
        assert (found.drop, found.sweep) == (("p10",), ("p0", "p20", "p30", "rest"))

    def test_an_age_beyond_1970_drops_nothing(self) -> None:
        assert plan_partitions(partitions(0, 10, 20, 30), now_ns=45, age_ns=100).drop == ()


class TestSweeping:
    def test_rows_are_deleted_one_by_one_only_where_dropping_does_not_reach(self) -> None:
        assert plan_partitions(partitions(0, 10, 20, 30, 40, 50), now_ns=25, age_ns=10).sweep == ("p0", "rest")

    def test_partitions_wider_than_the_age_are_swept_before_they_end(self) -> None:
        made = partitions(0, 100, 200, 300)
        assert plan_partitions(made, now_ns=150, age_ns=99).sweep == ("p0", "p100", "p200", "p300", "rest")
        assert plan_partitions(made, now_ns=150, age_ns=100).sweep == ("p0", "rest")

    def test_a_partition_that_took_over_the_range_of_dropped_ones_counts_with_its_own_width(self) -> None:
        assert plan_partitions(partitions(0, 90, 100, 110, 120, 130, 140), now_ns=95, age_ns=10).sweep == ("p0", "rest")

    def test_with_an_age_of_zero_everything_is_swept(self) -> None:
        found = plan_partitions(partitions(0, 10, 20, 30, 40, 50), now_ns=25, age_ns=0)
        assert {*found.drop, *found.sweep} == {"p0", "p10", "p20", "p30", "p40", "p50", "rest"}


class TestAnotherAge:
    """The effect of ALTER QUEUE … PURGE_AFTER on a table with partitions of an hour."""

    @pytest.mark.parametrize("age_ns", [HOUR, 10 * HOUR, SHARE_MAX * HOUR, MINUTE - 1, 0])
    def test_partitions_stay_as_wide_as_they_are(self, age_ns: int) -> None:
        assert names(plan_partitions(hours(0, 1, 2), now_ns=0, age_ns=age_ns)) == [f"p{3 * HOUR}", f"p{4 * HOUR}"]

    def test_the_next_ones_are_narrower_when_rows_go_sooner(self) -> None:
        found = plan_partitions(hours(0, 1, 2), now_ns=2 * HOUR - 1, age_ns=HOUR // 2)
        assert names(found) == [f"p{2 * HOUR + count * HOUR // 20}" for count in (1, 2, 3)]
        assert found.sweep == ("p0", f"p{HOUR}", f"p{2 * HOUR}", "rest")

    def test_only_those_that_are_too_wide_are_swept(self) -> None:
        found = plan_partitions(hours(0, 1, 2, 2.05, 2.1), now_ns=2 * HOUR, age_ns=HOUR // 2)
        assert (found.drop, found.sweep) == ((f"p{HOUR}",), ("p0", f"p{2 * HOUR}", "rest"))

    def test_the_next_ones_are_wider_before_there_are_too_many(self) -> None:
        age_ns = SHARE_MAX * HOUR + 1
        found = plan_partitions(hours(0, 1, 2), now_ns=0, age_ns=age_ns)
        assert {after - before for before, after in pairwise(bounds(found))} == {age_ns // SHARE}

    def test_none_is_narrower_than_a_minute(self) -> None:
        found = plan_partitions(hours(0, 1, 2), now_ns=2 * HOUR, age_ns=2 * MINUTE)
        assert {after - before for before, after in pairwise(bounds(found))} == {MINUTE}


class TestAhead:
    def test_some_always_begin_in_the_future(self) -> None:
        for now_ns in range(30, 60):
            found = plan_partitions(made := partitions(0, 10, 20, 30), now_ns=now_ns, age_ns=100)
            bounds = [partition.below_ns for partition in (*made[:-1], *found.add) if partition.below_ns is not None]
            assert sum(begin > now_ns for begin in bounds[:-1]) == AHEAD, now_ns
            assert bounds == sorted(bounds)

    def test_one_is_made_when_one_has_begun(self) -> None:
        made = [0, 10, 20, 30, 40, 50]
        assert names(plan_partitions(partitions(*made), now_ns=19, age_ns=100)) == []
        assert names(plan_partitions(partitions(*made), now_ns=20, age_ns=100)) == ["p60"]

    def test_those_that_were_missed_are_made_as_one(self) -> None:
        assert names(plan_partitions(partitions(0, 10, 20), now_ns=1234, age_ns=100)) == [
            "p1240",
            "p1250",
            "p1260",
            "p1270",
        ]

    def test_the_last_difference_is_the_width_and_the_lowest_bound_has_no_part_in_it(self) -> None:
        assert names(plan_partitions(partitions(0, 1000, 1005, 1006), now_ns=1004, age_ns=9)) == ["p1007", "p1008"]
        assert names(plan_partitions(partitions(0, 1000), now_ns=1004, age_ns=9)) == []

    def test_they_are_split_off_the_last_one_if_it_takes_all_the_rest(self) -> None:
        assert plan_partitions(partitions(0, 10, 20), now_ns=30, age_ns=9).rest == Partition("rest", None)
        assert plan_partitions(partitions(0, 10, 20, rest=False), now_ns=30, age_ns=9).rest is None


@pytest.mark.parametrize(
    ("method", "expression", "by_time"),
    [
        ("RANGE", "`time_acked`", True),
        ("RANGE COLUMNS", "`Time_Acked`", True),
        ("range", "time_acked", True),
        ("RANGE", "`time_acked` DIV 1000", False),
        ("RANGE COLUMNS", "`time_acked`,`id`", False),
        ("RANGE", "`id`", False),
        ("HASH", "`time_acked`", False),
        ("", "", False),
    ],
)
def test_only_ranges_of_time_acked_itself_are_accepted(method: str, expression: str, *, by_time: bool) -> None:
    assert is_by_time(method, expression) is by_time


def test_a_new_table_has_live_rows_some_time_ahead_and_the_rest() -> None:
    assert partition_clause(1000, 10, 2) == (
        "PARTITION BY RANGE (time_acked) (PARTITION `live` VALUES LESS THAN (1000), PARTITION `p1010` VALUES LESS THAN"
        " (1010), PARTITION `p1020` VALUES LESS THAN (1020), PARTITION `later` VALUES LESS THAN (MAXVALUE))"
    )


def test_a_new_table_has_its_next_partitions_made_as_wide() -> None:
    assert names(plan_partitions(first_partitions(1000, 10, 2), now_ns=1000, age_ns=50)) == ["p1030", "p1040"]


def test_a_name_is_quoted() -> None:
    assert partition_definitions([Partition("a`b", 5)]) == "PARTITION `a``b` VALUES LESS THAN (5)"
