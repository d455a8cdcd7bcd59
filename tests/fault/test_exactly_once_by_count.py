"""Producers, consumers that are killed at random, a proxy that is killed: nothing is lost, nothing acknowledged twice.

"Exactly once" is counted where it can be known: by the affected rows of the ACK statements.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pymysql.cursors import Cursor, SSCursor

from proxy.embedded.server import EmbeddedServer
from tests.support import insides
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

PRODUCERS, CONSUMERS, MESSAGES = 3, 5, 20_000
MESSAGES_BEFORE_DEATH = (50, 1_500)


class Worker:
    """Streams and acknowledges until told to stop; dies now and then without a word, and is replaced."""

    def __init__(self, proxy: RunningProxy, database: str, acknowledged: Counter[int], seed: int) -> None:
        self._proxy = proxy
        self._database = database
        self._acknowledged = acknowledged
        self._random = random.Random(seed)
        self._cursor = SSCursor if seed % 2 else Cursor  # Some read unbuffered.
        self._stop = threading.Event()
        self.deaths = 0
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._live()
        except Exception as failure:  # noqa: BLE001 - raised again by stop()
            self.failure = failure

    def _live(self) -> None:
        """One life: polls, until death or the end of work."""
        left = self._random.randint(*MESSAGES_BEFORE_DEATH)
        connection = self._proxy.connect(database=self._database)
        while not self._stop.is_set():
            with connection.cursor(self._cursor) as cursor:
                cursor.execute("STREAM * FROM m LIMIT 100 WAIT 0.5")
                ids = [number for number, _ in cursor]
            left -= len(ids)
            if left <= 0:
                self.deaths += 1
                insides.vanish(connection)
                return
            if ids:
                self._acknowledge(connection, ids)
        connection.close()

    def _acknowledge(self, connection: Any, ids: list[int]) -> None:
        for start in range(0, len(ids), 10):
            some = ids[start : start + 10]
            with connection.cursor() as cursor:
                affected = cursor.execute(f"ACK FROM m WHERE id IN ({', '.join(map(str, some))})")
            assert affected == len(some), f"{affected} of {some}: another consumer had one of them at the same time"
            self._acknowledged.update(some)


@pytest.mark.timeout(180)
def test_every_message_is_acknowledged_exactly_once_though_consumers_die(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m", vt_ack_wait="120")

    def produce(share: range) -> None:
        with proxy.connect(database=database) as producer:
            for start in share[::50]:
                enqueue(producer, "m", map(str, range(start, min(start + 50, share.stop))))

    share_size = -(-MESSAGES // PRODUCERS)
    shares = [range(i * share_size, min((i + 1) * share_size, MESSAGES)) for i in range(PRODUCERS)]
    producers = [threading.Thread(target=produce, args=(share,)) for share in shares]
    counters: list[Counter[int]] = [Counter() for _ in range(CONSUMERS)]
    workers = [Worker(proxy, database, counter, seed) for seed, counter in enumerate(counters)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    with proxy.connect(database=database) as connection:
        unfinished = "SELECT COUNT(*) FROM m WHERE time_acked IS NULL"
        eventually(lambda: rows(connection, unfinished) == [(0,)] or any(w.failure for w in workers), timeout_s=120)
        for worker in workers:
            worker.stop()
        ((stored, distinct),) = rows(connection, "SELECT COUNT(*), COUNT(DISTINCT payload) FROM m")
    acknowledged = sum(counters, Counter())
    assert (stored, distinct) == (MESSAGES, MESSAGES)
    assert len(acknowledged) == MESSAGES
    assert set(acknowledged.values()) == {1}
    assert sum(worker.deaths for worker in workers) >= CONSUMERS


@pytest.mark.timeout(120)
def test_two_proxies_on_one_table_never_give_a_message_to_two_consumers(
    proxy: RunningProxy, server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    with (
        running_proxy(server, tmp_path / "second.log") as second,
        proxy.connect(database=database) as connection,
    ):
        create_queue(connection, "m", vt_ack_wait="120", vt_poller_interval="1")
        counters: list[Counter[int]] = [Counter() for _ in range(4)]
        proxies = (proxy, second, proxy, second)
        workers = [Worker(chosen, database, counters[i], seed=i) for i, chosen in enumerate(proxies)]
        for start in range(0, 4_000, 100):
            enqueue(connection, "m", map(str, range(start, start + 100)))
        unfinished = "SELECT COUNT(*) FROM m WHERE time_acked IS NULL"
        eventually(lambda: rows(connection, unfinished) == [(0,)] or any(w.failure for w in workers), timeout_s=60)
        for worker in workers:
            worker.stop()
    acknowledged = sum(counters, Counter())
    assert len(acknowledged) == 4_000
    assert set(acknowledged.values()) == {1}
    assert counters[0] + counters[2], "the first proxy delivered nothing"
    assert counters[1] + counters[3], "the second proxy delivered nothing"


def test_after_kill_9_of_the_proxy_everything_unacknowledged_comes_again_and_nothing_else(
    private_proxy: RunningProxy,
    consume,
) -> None:
    with connect(private_proxy.server) as direct:
        run(direct, "CREATE DATABASE shop")
        direct.select_db("shop")
        create_queue(direct, "m", vt_ack_wait="1", vt_min_backoff="1")
        enqueue(direct, "m", map(str, range(500)))
        consumer = consume(private_proxy.connect(database="shop"), "STREAM * FROM m")
        eventually(lambda: len(consumer.received) == 500)
        with private_proxy.connect(database="shop") as acknowledging:
            assert run(acknowledging, "ACK FROM m WHERE id <= 200") == 200
        private_proxy.kill()
        assert consumer.ended.wait(10)
        private_proxy.start()
        again = consume(private_proxy.connect(database="shop"), "STREAM *, epoch FROM m LIMIT 300")
        assert again.ended.wait(20)
        assert sorted(number for number, _, _ in again.received) == list(range(201, 501))
        assert {epoch for _, _, epoch in again.received} == {2}


def test_a_consumer_that_does_not_read_stalls_only_itself(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m", "payload MEDIUMTEXT", vt_batch_size="10", vt_cache_size="1000")
        enqueue(connection, "m", ["x" * 200_000 for _ in range(100)])
        deaf = proxy.connect(database=database)
        insides.socket_of(deaf).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        insides.send(deaf, 3, b"STREAM * FROM m")
        with proxy.connect(database=database) as other:
            received = len(rows(other, "STREAM id FROM m LIMIT 60 WAIT 20"))
        assert received == 60
        insides.vanish(deaf)


def test_an_open_transaction_on_some_messages_does_not_stall_the_others(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as connection, proxy.connect(database=database) as holder:
        create_queue(connection, "m")
        enqueue(connection, "m", "abcd")
        run(holder, "BEGIN")
        run(holder, "UPDATE m SET payload = 'locked' WHERE id IN (1, 2)")
        assert [number for number, _ in rows(connection, "STREAM * FROM m LIMIT 2 WAIT 20")] == [3, 4]
        run(holder, "COMMIT")
        assert rows(connection, "STREAM * FROM m LIMIT 2 WAIT 20") == [(1, "locked"), (2, "locked")]
