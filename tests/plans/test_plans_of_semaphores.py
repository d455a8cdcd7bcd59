"""The claims of a queue with semaphores read little, at 200,000 rows with 50,000 different needs.

The rows are those of test_plans_of_groups.py: one group has 100,000 due messages. A second queue shares the semaphores.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.model import NS_PER_S, TableId, Wanted
from engine.queue_table import SEMAPHORES
from tests.plans.test_plans import SLACK, Bench, Measured, Meter, measured_store
from tests.plans.test_plans_of_groups import FILL
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import GROWING, ServerSubject

S = NS_PER_S
COLUMNS = GROWING + ", tenant VARCHAR(20) CHARACTER SET latin1, region INT"


@pytest.fixture(scope="module", params=SERVERS)
def bench(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Bench]:
    server = server_pool.get(request.param)
    subject = ServerSubject(server, columns=COLUMNS, semaphores=True)
    subject.execute("SET SESSION sql_mode = ''")
    subject.execute(FILL.format(now=subject.now_ns()))
    subject.execute("UPDATE messages SET needs = CONCAT_WS(',', tenant, region)")
    subject.execute(f"CREATE TABLE others {subject.definition}")
    subject.execute(f"INSERT INTO {SEMAPHORES} SELECT DISTINCT tenant, 4 FROM messages WHERE tenant IS NOT NULL")
    subject.execute(
        f"INSERT IGNORE INTO {SEMAPHORES} SELECT DISTINCT region, 1000 FROM messages WHERE region IS NOT NULL"
    )
    subject.execute("ANALYZE TABLE messages")
    meter = Meter()
    yield Bench(subject.table, measured_store(server, meter), meter, subject)
    subject.close()


def claimed(bench: Bench, keys: list[int]) -> tuple[list[int], list[Measured]]:
    """What was claimed of these messages, and the statements of the claim."""
    text = f"SELECT id, needs FROM messages WHERE id IN ({', '.join(map(str, keys))}) ORDER BY id"
    wanted = [Wanted(int(key), 0, 30 * S, group=(needs,)) for key, needs in bench.subject.execute(text)]
    bench.meter.take()
    claims = bench.store.claim_and_fetch(bench.table, wanted, None, 0).value.claims
    return [int(str(claim.key)) for claim in claims], bench.meter.take()


def test_a_claim_reads_what_is_in_flight_and_its_own_semaphores(bench: Bench) -> None:
    """However many messages wait for them, and however many semaphores there are."""
    bench.store.describe(TableId(bench.table.id.db, "others"))
    keys, _ = claimed(bench, list(range(101, 121)))
    assert len(keys) == 4
    for at in range(3):
        more, statements = claimed(bench, list(range(121 + 20 * at, 141 + 20 * at)))
        assert more == []
        limits = [measured for measured in statements if "/* ackstream limit */" in measured.text]
        assert len(limits) >= 3
        for measured in limits:
            if "information_schema" not in measured.text:
                assert measured.read <= 3 * (4 + 16) + SLACK, measured.text
