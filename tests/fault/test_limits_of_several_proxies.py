"""MAX_IN_FLIGHT over three proxies, of which one is killed: never exceeded, and no message lost.

The messages in flight are counted from the rows, by a direct connection in a tight loop, and from the clients' view.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pymysql.cursors import SSCursor

from engine.dispatch.burst import BURST_S, CLAIM_MAX_S
from proxy.embedded.server import EmbeddedServer
from tests.support import insides
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

LIMIT = 5
MESSAGES = 600
IN_FLIGHT = (
    "SELECT COUNT(*) FROM m WHERE time_acked IS NULL AND lease = time_next"
    " AND lease > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
)


@pytest.fixture
def proxies(server: EmbeddedServer, database: str, tmp_path: Path) -> Iterator[Sequence[RunningProxy]]:
    """Three proxies, and the queue m, whose deliveries may take an hour."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(running_proxy(server, tmp_path / f"{number}.log")) for number in range(3)]
        with running[0].connect(database=database) as connection:
            run(connection, f"CREATE QUEUE m (payload TEXT) MAX_IN_FLIGHT = {LIMIT}, ACK_WAIT = 3600")
        yield running


class View:
    """What the clients hold: received, and the ACK not sent."""

    def __init__(self) -> None:
        self.most = 0
        self.acknowledged: list[int] = []
        self._held: dict[Any, set[int]] = {}
        self._changing = threading.Lock()

    def received(self, client: Any, key: int) -> None:
        with self._changing:
            self._held.setdefault(client, set()).add(key)
            self.most = max(self.most, sum(map(len, self._held.values())))

    def acknowledges(self, client: Any, key: int) -> None:
        with self._changing:
            self._held[client].discard(key)

    def gone(self, client: Any) -> None:
        with self._changing:
            self._held.pop(client, None)


class Consumer:
    """Acknowledges each message that it receives, on another connection of the same proxy."""

    def __init__(self, proxy: RunningProxy, database: str, view: View) -> None:
        self.proxy = proxy
        self._view = view
        self._stream, self._acks = proxy.connect(database=database), proxy.connect(database=database)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        insides.cut(self._stream)
        self._thread.join(10)
        for connection in (self._stream, self._acks):
            insides.vanish(connection)

    def _read(self) -> None:
        cursor: Any = SSCursor(self._stream)
        try:
            cursor.execute("STREAM id FROM m")
            while (row := cursor.fetchone()) is not None:
                self._view.received(self, row[0])
                self._view.acknowledges(self, row[0])
                if run(self._acks, f"ACK m WHERE id = {row[0]}"):
                    self._view.acknowledged.append(row[0])
        except Exception:  # noqa: BLE001 - Its proxy was killed, or the test is over.
            insides.forget_result(self._stream)
        self._view.gone(self)


class Observer:
    """Counts what is in flight, again and again."""

    def __init__(self, server: EmbeddedServer, database: str) -> None:
        self.most = self.counts = 0
        self._over = threading.Event()
        self._connection = connect(server)
        self._connection.select_db(database)
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)
        self._connection.close()

    def _count(self) -> None:
        while not self._over.is_set():
            ((count,),) = rows(self._connection, IN_FLIGHT)
            self._connection.rollback()
            self.most = max(self.most, count)
            self.counts += 1


@pytest.fixture
def running(
    server: EmbeddedServer, database: str, proxies: Sequence[RunningProxy]
) -> Iterator[tuple[View, Observer, Callable[[], None]]]:
    """Two consumers on each proxy, and an observer. The function begins the consumers."""
    view, observer = View(), Observer(server, database)
    consumers: list[Consumer] = []
    yield view, observer, lambda: consumers.extend(Consumer(proxy, database, view) for proxy in [*proxies, *proxies])
    for consumer in consumers:
        consumer.stop()
    observer.stop()


def produce(proxy: RunningProxy, database: str, count: int) -> None:
    with proxy.connect(database=database) as producer:
        enqueue(producer, "m", ["x"] * count)


def test_three_proxies_together_keep_the_limit_and_use_all_of_it(proxies, running, database) -> None:
    view, observer, begin = running
    produce(proxies[0], database, MESSAGES)
    begin()
    eventually(lambda: len(view.acknowledged) == MESSAGES, timeout_s=90)
    assert sorted(view.acknowledged) == list(range(1, MESSAGES + 1))
    assert observer.most == LIMIT
    assert view.most <= LIMIT
    assert observer.counts > 100


def test_the_limit_holds_while_a_proxy_is_killed_and_the_others_get_its_places(proxies, running, database) -> None:
    view, observer, begin = running
    produce(proxies[0], database, MESSAGES)
    begin()
    eventually(lambda: len(view.acknowledged) > MESSAGES // 4, timeout_s=60)
    proxies[2].kill()
    with connect(proxies[0].server) as direct:
        direct.select_db(database)

        def all_over() -> bool:
            direct.rollback()
            return rows(direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]

        eventually(all_over, timeout_s=90)
    assert observer.most == LIMIT
    assert view.most <= LIMIT
    assert len(set(view.acknowledged)) == len(view.acknowledged)


RATE = 60


def claim_times(direct: Any) -> list[int]:
    """When each message was claimed, by the server's clock: its lease without the wait of an hour."""
    direct.rollback()
    return sorted(row[0] - 3600 * 10**9 for row in rows(direct, "SELECT lease FROM m WHERE lease IS NOT NULL"))


def longest_claim_s(proxy: RunningProxy) -> float:
    """The upper bound of the last bucket of claim durations that is not empty. A burst has the messages of
    the last claim's duration, so a busy machine has larger ones."""
    counts = proxy.buckets("claim_duration_seconds")
    return next(bound for bound, below in counts.items() if below == max(counts.values()))


def test_three_proxies_together_keep_the_rate_while_one_is_killed(proxies, running, database) -> None:
    view, _, begin = running
    with proxies[0].connect(database=database) as connection:
        run(connection, f"ALTER QUEUE m MAX_IN_FLIGHT = NONE, MAX_RATE = {RATE}")
    for proxy in proxies:  # Each knows of it.
        with proxy.connect(database=database) as connection:
            eventually(lambda: rows(connection, "STREAM id FROM m NOWAIT") == [], timeout_s=20)
    produce(proxies[0], database, 4 * RATE)
    begin()
    eventually(lambda: len(view.acknowledged) > RATE, timeout_s=60)
    of_killed_s = longest_claim_s(proxies[2])
    proxies[2].kill()
    with connect(proxies[0].server) as direct:
        direct.select_db(database)
        eventually(lambda: len(claim_times(direct)) == 4 * RATE, timeout_s=90)
        times_ns = claim_times(direct)
    busiest = max(sum(at <= other < at + 10**9 for other in times_ns) for at in times_ns)
    burst_s = BURST_S + min(CLAIM_MAX_S, max(of_killed_s, *map(longest_claim_s, proxies[:2])))
    assert busiest <= RATE + max(1, RATE * burst_s)
