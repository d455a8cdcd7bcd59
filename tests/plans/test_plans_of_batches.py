"""Claims and checks of follow-ups read hardly more than they return, at 200,000 rows and 50,000 batches.

Each of 50,000 batches has two parts and a follow-up that waits; in every other batch both are acknowledged. Another
40,000 follow-ups are acknowledged, and one batch has 10,000 unacknowledged parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine.model import NS_PER_S, WAITING_NS, BatchCheck, BatchesChecked, FollowUpPlace, Wanted
from engine.packets import text_values
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.pool import Pool
from tests.plans.test_plans import SLACK, Bench, MeasuringConnection, Meter
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import GROWING, SCAN_INDEXES, ServerSubject

FILL = """
    INSERT INTO messages (id, priority, epoch, time_next, time_acked, body, batch, after_batch)
    WITH digits AS (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
            UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9),
        numbers AS (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d AS n
            FROM digits a, digits b, digits c, digits e, digits f, digits g WHERE g.d < 2)
    SELECT n + 1, 0, 0,
        CASE WHEN n < 100000 THEN IF(n DIV 2 % 2, 0, NULL) WHEN n < 150000 THEN {waiting} WHEN n < 190000 THEN NULL
            ELSE {now} + 600000000000 + n END,
        CASE WHEN n < 100000 THEN IF(n DIV 2 % 2, NULL, {now} - n) WHEN n BETWEEN 150000 AND 189999 THEN {now} - n END,
        REPEAT('x', 100),
        CASE WHEN n < 100000 THEN n DIV 2 WHEN n >= 190000 THEN 60000 END,
        CASE WHEN n BETWEEN 100000 AND 149999 THEN n - 100000 WHEN n BETWEEN 150000 AND 189999 THEN n - 150000 END
    FROM numbers
"""
LOOKUPS = 4
"""Reads for each row that is returned: its entry and its row, and the entry of a part."""


class WholePlans(MeasuringConnection):
    """Explains all parts of a statement, its subqueries too."""

    def _explained(self, text: str) -> dict[str, str]:
        result = self._result(f"EXPLAIN /*!80000 FORMAT=TRADITIONAL */ {text}")
        lines = [[(value or b"").decode() for value in text_values(row)] for row in result.rows]
        return {"all": "\n".join(" | ".join(line) for line in lines)}


@pytest.fixture(params=SERVERS)
def bench(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Bench]:
    with ExitStack() as stack:
        server = server_pool.get(request.param)
        subject = ServerSubject(server, columns=GROWING, index=SCAN_INDEXES["ascending"], batches=True)
        stack.callback(subject.close)
        subject.execute("SET SESSION sql_mode = ''")
        subject.execute(FILL.format(now=subject.now_ns(), waiting=WAITING_NS))
        subject.execute("ANALYZE TABLE messages")
        meter, address = Meter(), BackendAddress(server.host, server.port, "root")
        store = MySQLStore(address)
        store._pool = Pool(lambda: WholePlans(address, meter), 1)
        yield Bench(subject.table, store, meter, subject)


def frugal(bench: Bench) -> None:
    """Each statement uses the indexes of ids and batches alone, without sorting, and reads little more than it
    returns or changes."""
    for measured in bench.meter.take():
        plan = f"{measured.name}: read {measured.read} for {measured.count}:\n{measured.plan['all']}"
        if "batches */ table_name" in measured.text:
            continue
        for word in ("filesort", "temporary", "join buffer", "| ALL |", "| index |", "next_up"):
            assert word not in measured.plan["all"], plan
        assert measured.read <= LOOKUPS * measured.count + SLACK, plan


def checked(bench: Bench, check: BatchCheck) -> BatchesChecked:
    return bench.store.check_batches(bench.table, check).value


def test_batches(bench: Bench) -> None:
    """One test, because the table takes long to fill."""
    bench.subject.execute("UPDATE messages SET time_next = 0 WHERE id BETWEEN 140001 AND 140400")
    wanted = [Wanted(key, 0, NS_PER_S) for key in range(140_001, 140_401)]
    result = bench.store.claim_and_fetch(bench.table, wanted, None, 0).value
    assert (len(result.claims), len(result.waiting)) == (200, 200)
    frugal(bench)

    bench.subject.execute("INSERT INTO messages (id, after_batch) VALUES (300000, 60000), (300001, 60001)")
    result = bench.store.claim_and_fetch(bench.table, [Wanted(key, 0, 1) for key in (300_000, 300_001)], None, 0).value
    assert result.waiting == (300_000,)
    frugal(bench)

    places: list[FollowUpPlace | None] = [None]
    fired = 0
    for _ in range(3):
        seen = checked(bench, BatchCheck(rotate=True, after=places[-1], limit=500))
        places.append(seen.after)
        fired += len(seen.fired)
        frugal(bench)
    assert (fired, places[-1]) == (750, (1499, 101_500))

    bench.subject.execute("UPDATE messages SET time_acked = 1, time_next = NULL WHERE id BETWEEN 40001 AND 40400")
    parts = ((bench.table.id, tuple(range(40_001, 40_401))),)
    assert len(checked(bench, BatchCheck(parts=parts)).fired) == 200
    frugal(bench)

    assert checked(bench, BatchCheck(keys=tuple(range(140_001, 140_501)), limit=500)).set_aside == ()
    frugal(bench)
