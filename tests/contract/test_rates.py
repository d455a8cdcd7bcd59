"""A rate that holds over all proxies: each claim takes what the claims of all proxies have left of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from engine.model import NS_PER_S, Key, LimitsLeft, TableId, Wanted
from engine.queue_table import QueueTable
from engine.store.mysql import MySQLStore
from engine.store.port import Described, StoreError
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import (
    GROWING,
    AnySubject,
    MemorySubject,
    ServerSubject,
    counted_store,
    kept_subjects,
    mysql_store,
)

S = NS_PER_S
RATE = 5
WAIT_NS = 30 * S


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    yield from kept_subjects(server_pool, lambda server, _: ServerSubject(server, columns=GROWING, rate=RATE))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(rate=RATE) if kind == "memory" else on_server(kind)


def put(subject: AnySubject, *keys: Key) -> None:
    subject.put(*(Row(key, time_next_ns=subject.now_ns() - S) for key in keys))


def claim(subject: AnySubject, *keys: Key) -> tuple[list[Key], LimitsLeft]:
    wanted = [Wanted(key, 0, WAIT_NS) for key in keys]
    answer = subject.store.claim_and_fetch(subject.table, wanted, None, 0).value
    assert answer.limits is not None
    return [claim.key for claim in answer.claims], answer.limits


def test_the_first_claim_takes_the_messages_of_a_burst(subject: AnySubject) -> None:
    put(subject, 1, 2, 3)
    before_ns = subject.now_ns()
    claimed, left = claim(subject, 3, 1, 2)
    assert claimed == [3]
    assert left.left_out == (1, 2)
    assert left.places is None
    assert left.paced_until_ns is not None
    assert before_ns + S // RATE <= left.paced_until_ns <= subject.now_ns() + S // RATE


def test_a_greater_burst_is_claimed_at_once_and_comes_back_at_the_rate(subject: AnySubject) -> None:
    table = replace(subject.table, policy=replace(subject.table.policy, max_burst=3))
    wanted = [Wanted(key, 0, WAIT_NS) for key in (1, 2, 3, 4)]
    put(subject, 1, 2, 3, 4)
    claimed = subject.store.claim(table, wanted)
    assert [claim.key for claim in claimed.value] == [1, 2, 3]
    subject.wait_until(claimed.now_ns + S // RATE)
    assert [claim.key for claim in subject.store.claim(table, wanted[3:]).value] == [4]


def test_the_next_one_can_be_claimed_when_the_rate_allows_it(subject: AnySubject) -> None:
    put(subject, 1, 2, 3)
    _, left = claim(subject, 1)
    assert left.paced_until_ns is not None
    subject.wait_until(left.paced_until_ns)
    assert claim(subject, 2)[0] == [2]


def test_a_claim_that_takes_nothing_costs_nothing(subject: AnySubject) -> None:
    put(subject, 1)
    assert claim(subject, 7, 8)[0] == []
    assert claim(subject, 1)[0] == [1]


def test_a_state_that_no_claim_can_have_left_delays_nothing_and_is_replaced(subject: AnySubject) -> None:
    """The server's clock was set back by an hour."""
    later_ns = subject.now_ns() + 3600 * S
    if isinstance(subject, MemorySubject):
        subject.store.rates[subject.table.id] = later_ns
    else:
        subject.execute("UPDATE ackstream_limits SET full_ns = %s", later_ns)
    put(subject, 1, 2)
    claimed, left = claim(subject, 1, 2)
    assert claimed == [1]
    assert left.paced_until_ns is not None
    subject.wait_until(left.paced_until_ns)
    assert claim(subject, 2)[0] == [2]


def test_several_stores_together_keep_the_rate(server: ServerSubject) -> None:
    """By the server's clock, which decided each claim."""
    put(server, *range(1, 301))
    stores = [mysql_store(server.server) for _ in range(3)]
    ends: list[int] = []
    begun_ns = server.now_ns()

    def work(number: int, store: MySQLStore) -> None:
        for key in range(number * 100 + 1, number * 100 + 101):
            made = store.claim(server.table, [Wanted(key, 0, WAIT_NS)]).value
            ends.extend(claim.deadline_ns for claim in made)

    threads = [threading.Thread(target=work, args=(number, store)) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    times_ns = sorted(end_ns - WAIT_NS for end_ns in ends)
    assert times_ns
    assert len(times_ns) <= 1 + (times_ns[-1] - begun_ns) * RATE / S * 1.05 + 1


def test_it_costs_no_further_packet_and_one_write_a_claim(server: ServerSubject) -> None:
    put(server, 1)
    with counted_store(server) as (store, sent):
        store.claim(server.table, [Wanted(1, 0, WAIT_NS)])
    assert len(sent) == 2
    assert b" ".join(sent).count(b"ackstream_limits") == 2


class TestPrivileges:
    def test_without_the_table_nothing_is_delivered_and_the_remedy_is_named(self, server: ServerSubject) -> None:
        server.execute("RENAME TABLE ackstream_limits TO away")
        found = server.store.describe(server.table.id).value
        assert isinstance(found, QueueTable)
        problem = server.store.limits_problem(found.id, found.policy).value
        server.execute("RENAME TABLE away TO ackstream_limits")
        assert found.policy.paused
        (warning,) = found.warnings
        assert f"MAX_RATE = 5 makes the table {server.database}.ackstream_limits" in warning
        assert warning == f"nothing is delivered: {problem}"
        assert server.store.limits_problem(found.id, found.policy).value is None
        again = server.store.describe(server.table.id).value
        assert again == server.table

    def test_a_table_that_is_locked_for_a_moment_is_not_absent(self, server: ServerSubject) -> None:
        with server.connect() as other, other.cursor() as cursor:
            cursor.execute("LOCK TABLES ackstream_limits WRITE")
            with pytest.raises(StoreError, match="Lock wait timeout"):
                server.store.describe(server.table.id)
        assert server.store.describe(server.table.id).value == server.table

    def test_queues_wait_together_for_a_locked_table_and_others_are_described(self, server: ServerSubject) -> None:
        paced = [TableId(server.database, f"m{number}") for number in range(20)]
        unpaced = TableId(server.database, "unpaced")
        for table in (*paced, unpaced):
            server.execute(f"CREATE TABLE {table.name} LIKE messages")
        server.execute("ALTER TABLE unpaced COMMENT 'vitess_message'")
        with counted_store(server) as (store, sent):
            before = store.describe_all([*paced, unpaced]).value
            with server.connect() as other, other.cursor() as cursor:
                cursor.execute("LOCK TABLES ackstream_limits WRITE")
                found, checks = list[Mapping[TableId, Described]](), list[int]()
                for tables in (paced[:1], [*paced, unpaced]):
                    sent.clear()
                    found.append(store.describe_all(tables).value)
                    checks.append(b" ".join(sent).count(b"ackstream_limits"))
            after = store.describe_all([*paced, unpaced]).value
        assert checks[0] == checks[1] > 0
        assert found[1][unpaced] == before[unpaced]
        assert all("Lock wait timeout" in str(found[1][table]) for table in paced)
        assert after == before
        assert len(after) == 21
        for table in after:
            server.execute(f"DROP TABLE {table.name}")
