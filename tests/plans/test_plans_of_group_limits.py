"""The claims of queues with GROUP_LIMIT or strict order read little, at 200,000 rows and 50,000 groups.

The rows are those of test_plans_of_groups.py: one group has 100,000 due messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from engine.model import NS_PER_S, Wanted
from tests.plans.test_plans import SLACK, Bench, Measured, Meter, measured_store
from tests.plans.test_plans_of_groups import FILL
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import GROWING, ServerSubject

S = NS_PER_S
GROUPS = ("tenant", "region")
COLUMNS = GROWING + ", tenant VARCHAR(20) CHARACTER SET latin1, region INT"
OF_THE_LARGE_GROUP = list(range(101, 121))
"""Messages with a hundred earlier ones of their group."""
OF_SMALL_GROUPS = [149_001 + number for number in range(20)]

Make = Callable[[bool], Bench]


@pytest.fixture(scope="module", params=SERVERS)
def make(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Make]:
    with ExitStack() as stack:
        made: dict[bool, Bench] = {}

        def find(strict: bool) -> Bench:
            if strict not in made:
                server = server_pool.get(request.param)
                limit = None if strict else 4
                subject = ServerSubject(server, columns=COLUMNS, groups=GROUPS, strict=strict, group_limit=limit)
                stack.callback(subject.close)
                subject.execute("SET SESSION sql_mode = ''")
                subject.execute(FILL.format(now=subject.now_ns()))
                subject.execute("ANALYZE TABLE messages")
                meter = Meter()
                made[strict] = Bench(subject.table, measured_store(server, meter), meter, subject)
            return made[strict]

        yield find


def claimed(bench: Bench, keys: list[int]) -> tuple[list[int], list[Measured]]:
    """What was claimed of these messages, and the statements of the claim."""
    wanted = [Wanted(key, 0, 30 * S) for key in keys]
    bench.meter.take()
    claims = bench.store.claim_and_fetch(bench.table, wanted, None, 0).value.claims
    return [int(str(claim.key)) for claim in claims], bench.meter.take()


def only(statements: list[Measured], comment: str) -> Measured:
    """The statement with this comment."""
    (found,) = [measured for measured in statements if f"/* ackstream {comment} */" in measured.text]
    return found


def test_a_limit_reads_what_is_in_flight_and_the_messages_of_the_claim(make: Make) -> None:
    """Each is read a few times, since the windows are computed in temporary tables."""
    bench = make(False)
    keys, first = claimed(bench, OF_THE_LARGE_GROUP)
    assert len(keys) == 4
    _, second = claimed(bench, OF_SMALL_GROUPS)
    for statements, in_flight in ((first, 0), (second, 4)):
        assert only(statements, "limit").read <= 14 * (20 + in_flight) + SLACK


def test_the_first_of_a_group_is_one_entry_of_the_index_by_order(make: Make) -> None:
    bench = make(True)
    keys, statements = claimed(bench, [*OF_THE_LARGE_GROUP, *OF_SMALL_GROUPS])
    assert keys == OF_SMALL_GROUPS
    assert only(statements, "order").read <= 6 * 40 + SLACK


def test_what_groups_have_in_flight_is_read_from_the_index_by_lease(make: Make) -> None:
    """Twenty messages are in flight, one of them in the group of the first of these."""
    bench = make(True)
    claimed(bench, OF_SMALL_GROUPS)
    keys, statements = claimed(bench, [OF_SMALL_GROUPS[0] + 1_000, 149_021])
    assert keys == [149_021]
    assert only(statements, "limit").read <= 6 * (20 + 2) + SLACK
