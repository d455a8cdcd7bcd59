"""Group scans read hardly more than they return, at 200,000 rows of 50,000 groups.

One group has 100,000 due messages. 49,000 groups have one message each, scheduled for next year, and
1,000 have two due ones behind those of the large group. Another 49,000 rows are acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine.model import NS_PER_S, Arrivals, Group, GroupScan, GroupScanResult, Portion, Share
from tests.plans.test_plans import SLACK, Bench, Measured, Meter, measured_store
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import GROWING, SCAN_INDEXES, ServerSubject

S = NS_PER_S

FILL = """
    INSERT INTO messages (id, priority, epoch, time_next, time_acked, body, tenant, region)
    WITH digits AS (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
            UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9),
        numbers AS (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d AS n
            FROM digits a, digits b, digits c, digits e, digits f, digits g WHERE g.d < 2)
    SELECT n + 1, 0, 0,
        CASE WHEN n < 100000 THEN {now} - 3600000000000 + n WHEN n < 149000 THEN {now} + 31536000000000000 + n
            WHEN n < 151000 THEN {now} - 1000000000 + n ELSE NULL END,
        IF(n < 151000, NULL, {now} - 7200000000000 + n), REPEAT('x', 100),
        CASE WHEN n < 100000 THEN 't25000' WHEN n < 149000 THEN CONCAT('t', LPAD(n - 100000, 5, '0'))
            WHEN n < 151000 THEN CONCAT('t', 49000 + n % 1000) ELSE 't00000' END,
        1
    FROM numbers
"""
LARGE: Group = ("t25000", 1)


@pytest.fixture(scope="module", params=[f"{name} {form}" for name in SERVERS for form in SCAN_INDEXES])
def bench(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Bench]:
    name, form = request.param.split()
    with ExitStack() as stack:
        server = server_pool.get(name)
        columns = GROWING + ", tenant VARCHAR(20) CHARACTER SET latin1, region INT"
        subject = ServerSubject(server, columns=columns, index=SCAN_INDEXES[form], groups=("tenant", "region"))
        stack.callback(subject.close)
        subject.execute("SET SESSION sql_mode = ''")
        subject.execute(FILL.format(now=subject.now_ns()))
        subject.execute("ANALYZE TABLE messages")
        meter = Meter()
        yield Bench(subject.table, measured_store(server, meter), meter, subject)


def scanned(bench: Bench, request: GroupScan, portion: Portion | None = None) -> tuple[GroupScanResult, list[Measured]]:
    """The result of a group scan, and its statements."""
    bench.meter.take()
    result = bench.store.scan_groups(bench.table, request, portion).value
    return result, bench.meter.take()


def frugal(statements: list[Measured], key: str) -> None:
    """Each reads the index without sorting, and little more than it returns."""
    assert statements
    for measured in statements:
        plan = f"{measured.name}: {measured.plan}"
        assert measured.plan["key"] == key, plan
        assert measured.plan["type"] in {"range", "ref"}, plan
        assert "filesort" not in measured.plan["Extra"], plan
        assert "temporary" not in measured.plan["Extra"], plan
        assert measured.read <= measured.count + SLACK, f"read {measured.read} for {measured.count}: {plan}"


@pytest.mark.parametrize(
    "after", [None, ("t00010", 1), ("t00010", None), (None, None), (None, 1), ("t24999", 1), LARGE]
)
def test_a_step_of_the_rotation_reads_as_many_entries_as_it_returns(bench: Bench, after: Group | None) -> None:
    _, statements = scanned(bench, GroupScan(0, after=after, quota=20, room=1_000, step_max=500, entries_max=500))
    frugal(statements, "by_group")
    assert sum(measured.read for measured in statements) <= 2_000


def test_a_pass_hops_over_the_large_group_and_finds_all_that_is_due(bench: Bench) -> None:
    after: Group | None = None
    found: set[Group | None] = set()
    read = steps = 0
    while steps == 0 or after is not None:
        result, statements = scanned(bench, GroupScan(0, after=after, quota=20, room=4_000))
        found |= {entry.group for entry in result.entries}
        read += sum(measured.read for measured in statements)
        after, steps = result.after, steps + 1
    assert len(found) == 1_001
    assert read <= 52_000 + 1_000, "a pass costs an entry of each group, and not the backlog of the large one"


def test_a_group_is_read_by_its_name(bench: Bench) -> None:
    named: list[tuple[Group, int]] = [(LARGE, 100), (("t49500", 1), 100), (("nobody", 1), 100), ((None, 1), 10)]
    result, statements = scanned(bench, GroupScan(0, tuple(named)))
    assert len(result.entries) == 102
    frugal([measured for measured in statements if measured.count], "by_group")
    assert sum(measured.read for measured in statements) <= 102 + 4 * SLACK


def test_arrivals_are_read_from_the_end_of_the_order_of_time(bench: Bench) -> None:
    now_ns = bench.subject.now_ns()
    for after_ns in (0, now_ns - 600 * S):
        result, statements = scanned(bench, GroupScan(0, arrivals=Arrivals(after_ns, 0, now_ns, 50)))
        assert len(result.arrivals) == 50
        frugal([measured for measured in statements if measured.count], "next_up")


def test_one_of_two_shares_is_read_past_the_other(bench: Bench) -> None:
    _, statements = scanned(
        bench,
        GroupScan(0, after=("t48999", 1), quota=20, room=500, step_max=500, entries_max=500),
        Portion(Share(0, 2)),
    )
    assert sum(measured.read for measured in statements) <= 3 * sum(measured.count for measured in statements) + SLACK
