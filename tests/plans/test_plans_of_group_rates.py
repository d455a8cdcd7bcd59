"""The claims of queues with GROUP_RATE read one row for each group, with 200,000 messages and 50,000 rates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.model import NS_PER_S, Wanted
from engine.store.limits.group_rate import group_hash
from tests.plans.test_plans import SLACK, Bench, Meter, measured_store
from tests.plans.test_plans_of_group_limits import COLUMNS, GROUPS, OF_SMALL_GROUPS, OF_THE_LARGE_GROUP, only
from tests.plans.test_plans_of_groups import FILL
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import ServerSubject

S = NS_PER_S


@pytest.fixture(scope="module", params=SERVERS)
def bench(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Bench]:
    subject = ServerSubject(server_pool.get(request.param), columns=COLUMNS, groups=GROUPS, group_rate=1)
    subject.execute("SET SESSION sql_mode = ''")
    subject.execute(FILL.format(now=subject.now_ns()))
    subject.execute(
        "INSERT INTO ackstream_group_rates (queue, group_hash, full_ns)"
        f" SELECT DISTINCT 'messages', {group_hash(subject.table.group_columns)}, 0 FROM messages"
        " WHERE id > 100000 AND id <= 151000"
    )
    subject.execute("ANALYZE TABLE messages, ackstream_group_rates")
    meter = Meter()
    yield Bench(subject.table, measured_store(subject.server, meter), meter, subject)
    subject.close()


def test_a_claim_reads_its_messages_and_the_rates_of_their_groups(bench: Bench) -> None:
    wanted = [Wanted(key, 0, 30 * S) for key in [*OF_THE_LARGE_GROUP, *OF_SMALL_GROUPS]]
    claims = bench.store.claim_and_fetch(bench.table, wanted, None, 0).value.claims
    assert len(claims) == 1 + len(OF_SMALL_GROUPS)
    assert only(bench.meter.take(), "rates").read <= 4 * len(wanted) + SLACK


def test_a_purge_reads_a_part_of_the_rates(bench: Bench) -> None:
    bench.meter.take()
    bench.store.purge(bench.table, 3600 * S, 50)
    read = [measured for measured in bench.meter.take() if "ackstream_group_rates" in measured.text]
    assert [measured.read <= 4 * 50 + SLACK for measured in read] == [True, True]
