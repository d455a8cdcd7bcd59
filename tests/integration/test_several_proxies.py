"""Several proxies in front of one server divide the messages of a queue among themselves."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from pymysql.cursors import SSCursor

from proxy.embedded.server import EmbeddedServer
from tests.support import insides
from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import PATIENT, Consumer, create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

MESSAGES = 12_000
CONSUMERS = 4

Proxies = Callable[[int], Sequence[RunningProxy]]


class Consumers(Protocol):
    """Starts CONSUMERS consumers at these proxies; `where` is the end of their STREAM."""

    def __call__(self, proxies: Sequence[RunningProxy], where: str = "") -> Sequence[AckingConsumer]: ...


@pytest.fixture
def proxies(private_server: EmbeddedServer, tmp_path: Path) -> Iterator[Proxies]:
    """Starts so many proxies on a server that no other proxy uses, with the queue p.m."""
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(connect(private_server))
        run(root, "CREATE DATABASE p")
        root.select_db("p")
        create_queue(root, "m", **PATIENT | {"vt_ack_wait": "600"})

        def start(count: int) -> Sequence[RunningProxy]:
            folders = [tmp_path / str(number) for number in range(count)]
            for folder in folders:
                folder.mkdir()
            return [
                stack.enter_context(running_proxy(private_server, folder / "log", check=False)) for folder in folders
            ]

        yield start


@pytest.fixture
def consumers() -> Iterator[Consumers]:
    begun: list[AckingConsumer] = []

    def begin(proxies: Sequence[RunningProxy], where: str = "") -> Sequence[AckingConsumer]:
        begun.extend(AckingConsumer(proxies[number % len(proxies)], where) for number in range(CONSUMERS))
        return begun

    yield begin
    for consumer in begun:
        consumer.stop()


class AckingConsumer:
    """Reads a stream and acknowledges a hundred messages at a time, and the last ones when it is told to."""

    def __init__(self, proxy: RunningProxy, where: str) -> None:
        self.received: list[int] = []
        self._where = where
        self._stream, self._acks = proxy.connect(database="p"), proxy.connect(database="p")
        self._acknowledged = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def acknowledge(self) -> None:
        """Acknowledge what it has received."""
        ids = self.received[self._acknowledged :]
        if ids:
            run(self._acks, f"ACK FROM m WHERE id IN ({', '.join(map(str, ids))})")
            self._acknowledged += len(ids)

    def stop(self) -> None:
        insides.cut(self._stream)
        self._thread.join(10)
        for connection in (self._stream, self._acks):
            insides.vanish(connection)

    def _read(self) -> None:
        cursor: Any = SSCursor(self._stream)
        try:
            cursor.execute(f"STREAM id FROM m{self._where}")
            while (row := cursor.fetchone()) is not None:
                self.received.append(row[0])
                if len(self.received) >= self._acknowledged + 100:
                    self.acknowledge()
        except Exception:  # noqa: BLE001 - Its proxy was killed, or the test is over.
            insides.forget_result(self._stream)


def total(proxies: Sequence[RunningProxy], name: str) -> float:
    return sum(proxy.metric(name) for proxy in proxies)


def share_it(proxies: Sequence[RunningProxy]) -> None:
    """Wait until each has a share of the queue, and the reader of each has read the binary log."""
    count = len(proxies)
    for proxy in proxies:
        eventually(lambda: f"count={count})" in proxy.output or count == 1, timeout_s=30)  # noqa: B023
        eventually(lambda: proxy.metric("binlog_following") == 1, timeout_s=30)  # noqa: B023


def backlog(proxy: RunningProxy, count: int = MESSAGES) -> None:
    """Insert messages in one transaction."""
    with proxy.connect(database="p") as producer:
        producer.begin()
        for _ in range(0, count, 1_000):
            enqueue(producer, "m", ["x"] * 1_000)
        producer.commit()


@pytest.mark.parametrize(
    ("count", "leased", "where", "in_vain_most"),
    [
        (2, True, "", 0.05),
        (4, True, "", 0.05),
        (4, False, "", 0.05),
        pytest.param(3, True, " WHERE payload <> 'y'", 0.25, id="a condition"),
    ],
)
def test_a_drain_through_several_proxies_scans_hardly_more_keys_and_claims_few_in_vain(
    private_server: EmbeddedServer,
    proxies: Proxies,
    consumers: Consumers,
    count: int,
    leased: bool,
    where: str,
    in_vain_most: float,
) -> None:
    """Each reads its own share: the keys that all of them read are not more than those that one alone may read, which
    are its read-ahead buffer (2,000) again and again. With a lease column, each gets no change of what others hold.
    With a condition, they find out first that they take the same messages."""
    if leased:
        with connect(private_server, database="p") as root:
            run(root, "DROP TABLE m")
            create_queue(root, "m", "payload TEXT, lease BIGINT", lease="lease", **PATIENT | {"vt_ack_wait": "600"})
    running = proxies(count)
    readers = consumers(running, where)
    share_it(running)
    before = {name: total(running, name) for name in ("scanned_total", "claimed_total", "claimed_in_vain_total")}
    backlog(running[0])
    eventually(lambda: total(running, "claimed_total") - before["claimed_total"] >= MESSAGES, timeout_s=60)
    in_vain = total(running, "claimed_in_vain_total") - before["claimed_in_vain_total"]
    assert in_vain <= in_vain_most * MESSAGES
    assert total(running, "scanned_total") - before["scanned_total"] <= 4 * MESSAGES
    eventually(lambda: sum(len(reader.received) for reader in readers) == MESSAGES, timeout_s=60)
    assert sorted(key for reader in readers for key in reader.received) == list(range(1, MESSAGES + 1))
    if leased:
        inserted, acknowledged_here = count * MESSAGES, MESSAGES
        assert total(running, "binlog_rows_total") <= 1.1 * (inserted + acknowledged_here)


def test_the_share_of_a_killed_proxy_is_delivered_by_the_others(proxies: Proxies, consumers: Consumers) -> None:
    """Apart from what its consumers held: that is due again when its wait is over."""
    first, second = running = proxies(2)
    consumers(running)
    share_it(running)
    backlog(first)
    eventually(lambda: second.metric("claimed_total") > 0, timeout_s=30)
    second.kill()
    left = "SELECT COUNT(*) FROM m WHERE epoch = 0"
    with first.connect(database="p") as reader:
        eventually(lambda: rows(reader, left) == [(0,)], timeout_s=60)


def test_a_proxy_whose_consumers_are_busy_leaves_its_share_to_the_others(
    proxies: Proxies, consume: Callable[[Any, str], Consumer]
) -> None:
    first, second = running = proxies(2)
    busy = consume(second.connect(database="p"), "STREAM * FROM m PREFETCH 1")
    free = consume(first.connect(database="p"), "STREAM * FROM m")
    share_it(running)
    backlog(first, 1_000)
    eventually(lambda: len(free.received) + len(busy.received) == 1_000, timeout_s=60)
    assert len(busy.received) == 1


def test_what_nothing_reports_is_found_in_any_share_while_the_other_proxy_stands_still(
    proxies: Proxies, private_server: EmbeddedServer, consume: Callable[[Any, str], Consumer]
) -> None:
    """The queue was empty, so its proxies poll it."""
    with environment(ACKSTREAM_BINLOG="off"):
        first, second = running = proxies(2)
    with contextlib.ExitStack() as stack:
        client, direct = stack.enter_context(first.connect(database="p")), stack.enter_context(connect(private_server))
        run(client, "ALTER QUEUE m POLLER_INTERVAL = 1")
        free, _ = (consume(proxy.connect(database="p"), "STREAM id FROM m") for proxy in running)
        eventually(lambda: all("count=2)" in proxy.output for proxy in running), timeout_s=30)
        before = [proxy.metric("scans_total") for proxy in running]
        for proxy, count in zip(running, before, strict=True):
            eventually(lambda: proxy.metric("scans_total") > count + 4)  # noqa: B023
        second.send(signal.SIGSTOP)
        stack.callback(second.send, signal.SIGCONT)
        enqueue(direct, "p.m", "abcdefgh")
        eventually(lambda: sorted(free.received) == [(number,) for number in range(1, 9)])
        assert "all messages are this proxy's" not in first.output, "the other one was taken for gone"


def test_polls_through_either_proxy_get_every_message(proxies: Proxies) -> None:
    running = proxies(2)
    received: list[int] = []
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(proxy.connect(database="p")) for proxy in running]
        for reader in readers:
            rows(reader, "STREAM id FROM m NOWAIT")
        backlog(running[0], 1_000)
        while found := rows(readers[len(received) // 50 % 2], "STREAM id FROM m LIMIT 50 NOWAIT"):
            received += [row[0] for row in found]
    assert sorted(received) == list(range(1, 1_001))
