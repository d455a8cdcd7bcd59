"""The server's clock is set while it runs: deliveries go on, since only *is it due* goes by it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.clocks import ShiftedClock
from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import SERVERS, connect, server_or_skip
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

BACK_S = -600.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClock:
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, clock: ShiftedClock) -> Iterator[EmbeddedServer]:
    with contextlib.ExitStack() as stack:
        with environment(**clock.environment):
            server = stack.enter_context(server_or_skip(request.param))
        yield server


@pytest.fixture(scope="module")
def proxy(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with running_proxy(server, tmp_path_factory.mktemp("proxy") / "log") as proxy:
        yield proxy


@pytest.fixture
def shop(server: EmbeddedServer, clock: ShiftedClock) -> Iterator[str]:
    clock.shift(0)
    with connect(server) as root:
        run(root, "DROP DATABASE IF EXISTS shop")
        run(root, "CREATE DATABASE shop")
    yield "shop"
    clock.shift(0)


def test_a_queue_with_a_rate_goes_on_when_the_servers_clock_is_set_back(
    server: EmbeddedServer, proxy: RunningProxy, clock: ShiftedClock, shop: str, consume
) -> None:
    with proxy.connect(database=shop) as client:
        create_queue(client, "m")
        run(client, "ALTER QUEUE m MAX_RATE = 100")
        consumer = consume(proxy.connect(database=shop), "STREAM * FROM m")
        enqueue(client, "m", ["a"])
        eventually(lambda: len(consumer.received) == 1)
        clock.shift(BACK_S)
        with connect(server) as root:
            ((offset_s,),) = rows(root, "SELECT UNIX_TIMESTAMP(NOW()) - UNIX_TIMESTAMP(SYSDATE())")
            assert offset_s == 0  # One clock, and it is the shifted one.
        enqueue(client, "m", map(str, range(64)))
        eventually(lambda: len(consumer.received) == 65)


def test_queues_go_on_when_the_clock_is_set_back_while_they_pause_after_a_failure(
    server: EmbeddedServer, proxy: RunningProxy, clock: ShiftedClock, shop: str, consume
) -> None:
    names = [f"m{number}" for number in range(5)]
    with proxy.connect(database=shop) as client:
        for name in names:
            create_queue(client, name)
        consumers = [consume(proxy.connect(database=shop), f"STREAM * FROM {name}") for name in names]
        eventually(lambda: len(rows(client, "SHOW STREAMS")) == len(names))
        with connect(server) as root:  # What the engine does next, on any of its connections, fails.
            mine = {client.thread_id(), root.thread_id(), *(consumer.connection.thread_id() for consumer in consumers)}
            for (number,) in rows(root, "SELECT id FROM information_schema.processlist WHERE user = 'root'"):
                if number not in mine:
                    with contextlib.suppress(pymysql.OperationalError):  # It has ended meanwhile.
                        run(root, f"KILL {number}")
        for name in names:
            enqueue(client, name, ["a"])
        clock.shift(BACK_S)
        for name in names:
            enqueue(client, name, ["b"])
        payloads = [{"a", "b"}] * len(names)
        eventually(lambda: [{payload for _, payload in consumer.received} for consumer in consumers] == payloads)


def test_a_message_that_was_scheduled_comes_when_the_servers_clock_reaches_its_time(
    proxy: RunningProxy, clock: ShiftedClock, shop: str, consume
) -> None:
    with proxy.connect(database=shop) as client:
        create_queue(client, "m", vt_poller_interval="1")
        run(client, "INSERT INTO m (payload, time_next) VALUES ('later', UNIX_TIMESTAMP() * 1000000000 + 3600e9)")
        consumer = consume(proxy.connect(database=shop), "STREAM * FROM m")
        enqueue(client, "m", ["now"])
        eventually(lambda: len(consumer.received) == 1)
        clock.shift(3601.0)
        eventually(lambda: "later" in [payload for _, payload in consumer.received])


def test_the_servers_waits_last_as_long_as_they_would_at_the_right_time(server, clock, shop) -> None:
    """Otherwise these tests would be of a server that no set clock makes: it would wait for an hour and a second."""
    clock.shift(3600)
    with connect(server, database=shop) as root, connect(server, database=shop, read_timeout=20) as other:
        create_queue(root, "m")
        run(root, "LOCK TABLES m WRITE")
        run(other, "SET SESSION lock_wait_timeout = 1")
        with pytest.raises(pymysql.OperationalError, match="1205"):
            rows(other, "SELECT * FROM m")
