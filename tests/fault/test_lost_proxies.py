"""Proxies that are lost: their messages come to other consumers long before the waits of their deliveries end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

HELD = "SELECT id FROM m WHERE time_acked IS NULL AND lease = time_next AND lease % 1000 > 0"


@pytest.fixture
def direct(server: EmbeddedServer, database: str) -> Iterator[Connection[Any]]:
    """A connection to the server itself, and a queue whose deliveries may take an hour."""
    with connect(server) as connection:
        connection.select_db(database)
        yield connection


@pytest.fixture
def doomed(server: EmbeddedServer, tmp_path: Path) -> Iterator[RunningProxy]:
    with running_proxy(server, tmp_path / "doomed.log") as proxy:
        yield proxy


@pytest.fixture
def other(server: EmbeddedServer, tmp_path: Path) -> Iterator[RunningProxy]:
    with running_proxy(server, tmp_path / "other.log") as proxy:
        yield proxy


def hold(proxy: RunningProxy, direct: Connection[Any], database: str) -> Any:
    """Deliver messages to a client of the proxy until one of them is in flight in the proxy's slot; the client."""
    client = proxy.connect(database=database)
    run(client, "CREATE QUEUE m (body INT) ACK_WAIT = 3600")

    def delivered() -> bool:
        run(direct, "INSERT INTO m (body) VALUES (1)")
        assert len(rows(client, "STREAM id FROM m LIMIT 1 WAIT 20")) == 1
        return bool(rows(direct, HELD))

    eventually(delivered)
    run(direct, "DELETE FROM m WHERE lease % 1000 = 0")
    assert len(rows(direct, HELD)) == 1
    return client


def lock_of(direct: Connection[Any], slot: int) -> int | None:
    """The server's number of the connection that holds the lock of a slot."""
    found: int | None = rows(direct, "SELECT IS_USED_LOCK(CONCAT('ackstream/', %s))", [slot])[0][0]
    return found


def slot_of(direct: Connection[Any]) -> int:
    return int(rows(direct, "SELECT lease % 1000 FROM m")[0][0])


def test_the_messages_of_a_killed_proxy_come_to_consumers_of_another_one(doomed, other, direct, database) -> None:
    hold(doomed, direct, database)
    doomed.kill()
    with other.connect(database=database) as consumer:
        assert [epoch for (epoch,) in rows(consumer, "STREAM epoch FROM m LIMIT 1 WAIT 20")] == [2]


def test_a_proxy_that_starts_releases_what_the_one_before_had_in_flight(private_proxy: RunningProxy) -> None:
    with connect(private_proxy.server) as direct:
        run(direct, "CREATE DATABASE shop")
        direct.select_db("shop")
        hold(private_proxy, direct, "shop")
        private_proxy.kill()
        private_proxy.start()
        with private_proxy.connect(database="shop") as consumer:
            assert rows(consumer, "STREAM epoch FROM m LIMIT 1 WAIT 20") == [(2,)]


def test_a_proxy_that_was_frozen_for_too_long_has_lost_its_messages(doomed, other, direct, database) -> None:
    client = hold(doomed, direct, database)
    holder = lock_of(direct, slot_of(direct))
    doomed.send(signal.SIGSTOP)
    try:
        run(direct, f"KILL {holder}")  # As the server does by itself, fifteen seconds later.
        with other.connect(database=database) as consumer:
            assert rows(consumer, "STREAM epoch FROM m LIMIT 1 WAIT 20") == [(2,)]
            doomed.send(signal.SIGCONT)
            assert run(client, "ACK m WHERE id > 0 AND epoch = 1") == 0
            assert run(consumer, "ACK m WHERE id > 0 AND epoch = 2") == 1
    finally:
        doomed.send(signal.SIGCONT)


def test_a_proxy_that_loses_its_lock_takes_it_again_and_keeps_its_messages(doomed, other, direct, database) -> None:
    client = hold(doomed, direct, database)
    slot = slot_of(direct)
    before = lock_of(direct, slot)
    run(direct, f"KILL {before}")
    eventually(lambda: lock_of(direct, slot) not in (before, None))
    with other.connect(database=database) as consumer:
        assert rows(consumer, "STREAM id FROM m LIMIT 1 WAIT 2") == []  # Longer than the pause between two searches.
    assert run(client, "ACK m WHERE id > 0 AND epoch = 1") == 1
