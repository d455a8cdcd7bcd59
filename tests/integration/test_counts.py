"""How many calls of the store a message costs a running proxy, for each way of consuming.

A call is a thread handover, and its packets are counted in tests/contract. A change that adds one fails here with the
calls before and after.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.wire.commands import COM_QUERY
from proxy.wire.params import make_query
from tests.support.proxies import RunningProxy
from tests.support.queues import PATIENT, Consumer, create_queue, enqueue, rows, run
from tests.support.raw import BASE, RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually, settled
from tests.support.writing import NOW_NS

pytestmark = pytest.mark.either_server

MESSAGES = 30
COUNTED = ("claims", "scans", "store_answers")

Consume = Callable[[Any, str], Consumer]


@pytest.fixture
def connection(private_proxy: RunningProxy) -> Iterator[Any]:
    with private_proxy.connect() as connection:
        run(connection, "CREATE DATABASE counts")
        connection.select_db("counts")
        create_queue(connection, "m", **PATIENT)
        eventually(lambda: private_proxy.metric("binlog_following") == 1, timeout_s=30)
        yield connection


class Calls:
    """The calls of a proxy's store since the beginning of the block."""

    def __init__(self, proxy: RunningProxy) -> None:
        self._proxy = proxy
        self._before = {name: proxy.metric(f"{name}_total") for name in COUNTED}

    def __getitem__(self, name: str) -> int:
        return int(self._proxy.metric(f"{name}_total") - self._before[name])


def waiting(private_proxy: RunningProxy, consume: Consume, statement: str = "STREAM * FROM m") -> Consumer:
    """A stream that has taken its first message."""
    reader = private_proxy.connect(database="counts")
    consumer = consume(reader, statement)
    with private_proxy.connect(database="counts") as producer:
        enqueue(producer, "m", ["first"])
        eventually(lambda: len(consumer.received) == 1)
    return consumer


def test_a_message_for_a_stream_that_waits_takes_one_call_and_no_scan_before_it(
    private_proxy: RunningProxy, connection: Any, consume: Consume
) -> None:
    consumer = waiting(private_proxy, consume)
    calls = Calls(private_proxy)
    for number in range(2, MESSAGES + 2):
        run(connection, "INSERT INTO m (payload) VALUES ('x')")
        eventually(lambda: len(consumer.received) == number)  # noqa: B023
    assert MESSAGES <= calls["claims"] < 1.5 * MESSAGES  # In vain where the log shows a row that cannot be read yet.
    assert calls["scans"] < MESSAGES  # One in a second.


def test_a_batch_in_one_insert_takes_one_call(private_proxy: RunningProxy, connection: Any, consume: Consume) -> None:
    consumer = waiting(private_proxy, consume)
    calls = Calls(private_proxy)
    enqueue(connection, "m", map(str, range(MESSAGES)))
    eventually(lambda: len(consumer.received) == MESSAGES + 1)
    assert calls["claims"] == 1


def test_a_poll_that_finds_a_batch_takes_a_scan_and_a_claim(private_proxy: RunningProxy, connection: Any) -> None:
    """At least once in five times: for 20 s after the log is followed, scans are repeated at growing intervals."""

    def followed() -> bool:
        enqueue(connection, "m", ["before"])
        return private_proxy.metric("binlog_rows_total") > 0

    def poll() -> tuple[int, int]:
        logged = private_proxy.metric("binlog_rows_total")
        enqueue(connection, "m", map(str, range(MESSAGES)))
        eventually(lambda: private_proxy.metric("binlog_rows_total") >= logged + MESSAGES)  # Later, it causes a scan.
        calls = Calls(private_proxy)
        assert len(rows(connection, f"STREAM * FROM m LIMIT {MESSAGES} NOWAIT")) == MESSAGES
        return calls["claims"], calls["scans"]

    run(connection, "STREAM * FROM m NOWAIT")
    eventually(followed)
    assert rows(connection, "STREAM * FROM m NOWAIT")
    polls = [poll() for _ in range(5)]
    assert min(polls) <= (1, 1)


def test_an_acknowledgement_in_a_transaction_takes_no_call(private_proxy: RunningProxy, connection: Any) -> None:
    """As soon as the engine knows which tables have triggers. Meanwhile the roster is checked and the catalog read,
    much less often than once for each message."""

    def other_calls() -> int:
        enqueue(connection, "m", map(str, range(MESSAGES)))
        ids = [number for (number,) in rows(worker, f"STREAM id FROM m LIMIT {MESSAGES} WAIT 10")]
        assert len(ids) == MESSAGES
        calls = Calls(private_proxy)
        for number in ids:
            worker.begin()
            assert run(worker, f"ACK m WHERE id = {number}") == 1
            worker.commit()
        assert rows(worker, "STREAM * FROM m NOWAIT") == []  # Lookups would have been begun before its scan.
        return calls["store_answers"] - calls["scans"] - calls["claims"]

    with private_proxy.connect(database="counts") as worker:
        eventually(lambda: other_calls() < MESSAGES / 2)


def test_acknowledgements_through_the_proxy_are_not_read_in_the_binary_log(
    private_proxy: RunningProxy, connection: Any, consume: Consume
) -> None:
    """As soon as the proxy has a slot, and its reader knows of it."""
    consumer = waiting(private_proxy, consume)
    delivered = len(consumer.received)

    def rows_read(acknowledge: Callable[[str], object]) -> float:
        nonlocal delivered
        enqueue(connection, "m", map(str, range(MESSAGES)))
        delivered += MESSAGES
        eventually(lambda: len(consumer.received) == delivered)
        logged = settled(lambda: private_proxy.metric("binlog_rows_total"))
        acknowledge(", ".join(str(number) for number, *_ in consumer.received[-MESSAGES:]))
        enqueue(connection, "m", ["behind the acknowledgements"])
        delivered += 1
        eventually(lambda: len(consumer.received) == delivered)
        eventually(lambda: private_proxy.metric("binlog_rows_total") > logged)
        return private_proxy.metric("binlog_rows_total") - logged

    def in_a_transaction(ids: str) -> None:
        connection.begin()
        run(connection, f"ACK m WHERE id IN ({ids})")
        connection.commit()

    eventually(lambda: rows_read(lambda ids: run(connection, f"ACK m WHERE id IN ({ids})")) == 1)
    assert rows_read(in_a_transaction) == 1
    plain = "UPDATE m SET time_acked = {0} DIV 1000 * 1000, time_next = NULL WHERE id IN ({1})"
    assert rows_read(lambda ids: run(connection, plain.format(NOW_NS, ids))) == 1 + MESSAGES


def test_of_a_queue_that_nobody_streams_no_row_is_read_in_the_binary_log(
    private_proxy: RunningProxy, connection: Any, consume: Consume
) -> None:
    create_queue(connection, "streamed", **PATIENT)
    run(connection, "STREAM * FROM streamed NOWAIT")
    enqueue(connection, "m", map(str, range(1_000)))
    enqueue(connection, "streamed", ["x"])
    eventually(lambda: private_proxy.metric("binlog_rows_total") >= 1)
    assert private_proxy.metric("binlog_rows_total") < 100
    consumer = consume(private_proxy.connect(database="counts"), "STREAM * FROM m")
    eventually(lambda: len(consumer.received) == 1_000)
    with connect(private_proxy.server, database="counts") as past_the_proxy:
        run(past_the_proxy, "INSERT INTO m (payload) VALUES ('x')")
        eventually(lambda: len(consumer.received) == 1_001)


def test_a_commit_of_unknown_rows_causes_a_scan_and_its_log_another_one_at_most(
    private_proxy: RunningProxy, connection: Any, consume: Consume
) -> None:
    """Rows whose ids do not follow from the answer: the application gives them out."""
    consumer = waiting(private_proxy, consume)
    calls = Calls(private_proxy)
    for number in range(2, MESSAGES + 2):
        run(connection, f"INSERT INTO m (id, payload) SELECT {1000 + number}, 'x'")
        eventually(lambda: len(consumer.received) == number)  # noqa: B023
    assert MESSAGES <= calls["claims"] < 1.5 * MESSAGES
    assert calls["scans"] <= 2 * MESSAGES


def test_acks_of_sixty_four_clients_take_a_few_updates_and_commits(
    private_proxy: RunningProxy, connection: Any
) -> None:
    """Without gathering, each takes an UPDATE with its own commit. All are sent at about the same time."""
    clients_count = 64
    with contextlib.ExitStack() as stack, connect(private_proxy.server) as observer:
        clients = [stack.enter_context(RawClient(private_proxy, BASE, "counts")) for _ in range(clients_count)]

        def statements() -> Counter[str]:
            found = rows(observer, "SHOW GLOBAL STATUS WHERE variable_name IN ('Com_update', 'Com_commit')")
            return Counter({name: int(count) for name, count in found})

        def acknowledge() -> Counter[str]:
            enqueue(connection, "m", map(str, range(clients_count)))
            ids = [number for (number,) in rows(observer, "SELECT id FROM counts.m WHERE time_acked IS NULL")]
            before = statements()
            for number, client in zip(ids, clients, strict=True):
                client.send(make_query(f"ACK m WHERE id = {number}".encode(), attributes=client.attributes))
            for client in clients:
                client.answer(COM_QUERY)
            cost = statements() - before
            assert rows(observer, "SELECT COUNT(*) FROM counts.m WHERE time_acked IS NULL") == [(0,)]
            return cost

        # Each session shows its right first, by an UPDATE under autocommit. Those that come before the engine knows
        # the queue acknowledge by it, and the others are gathered.
        assert clients_count <= acknowledge()["Com_update"] <= clients_count * 5 / 4
        # The others are gathered once the engine knows the queue. (Its first maintenance of the queue commits.)
        eventually(lambda: acknowledge().total() <= clients_count / 4)
