"""The server goes away and comes back; the proxy stays."""

from __future__ import annotations

import contextlib

import pymysql
import pytest

from tests.support.failover import health
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


def test_a_stream_is_told_when_the_server_dies_and_the_queue_goes_on_when_it_is_back(
    private_server, private_proxy, consume
) -> None:
    with connect(private_server) as direct:
        run(direct, "CREATE DATABASE shop")
        direct.select_db("shop")
        create_queue(direct, "m", vt_ack_wait="1", vt_min_backoff="1")
        enqueue(direct, "m", "abc")
    consumer = consume(private_proxy.connect(database="shop"), "STREAM * FROM m")
    eventually(lambda: len(consumer.received) == 3)
    with private_proxy.connect(database="shop") as client:
        assert run(client, "ACK FROM m WHERE id = 1") == 1

    private_server.kill()
    assert consumer.ended.wait(10)
    assert isinstance(consumer.error, pymysql.MySQLError)
    assert consumer.error.args[0] == 1053
    private_server.start()

    with private_proxy.connect(database="shop") as client:
        again = rows(client, "STREAM id, epoch FROM m LIMIT 2 WAIT 20")
        assert sorted(number for number, _ in again) == [2, 3]
        enqueue(client, "m", "d")
        assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 20") == [("d",)]


def test_while_the_server_is_away_everybody_is_told_so_and_the_log_has_one_line_for_each_change(
    private_server, private_proxy, consume
) -> None:
    """How often the server is tried meanwhile: tests/unit/engine/store/test_reach.py."""
    with connect(private_server) as direct:
        run(direct, "CREATE DATABASE shop")
        direct.select_db("shop")
        for number in range(20):
            create_queue(direct, f"m{number}")
    with private_proxy.connect(database="shop") as client:
        rows(client, "STREAM * FROM m1 NOWAIT")
    private_server.kill()
    eventually(lambda: "unreachable" in health(private_proxy))
    tried = private_proxy.metric("engine_connection_errors_total")
    eventually(lambda: private_proxy.metric("engine_connection_errors_total") >= tried + 3)
    with pytest.raises(pymysql.MySQLError) as raised:
        private_proxy.connect()
    assert raised.value.args[0] == 1105
    private_server.start()
    eventually(lambda: '"ok"' in health(private_proxy), timeout_s=30)
    output = private_proxy.output
    assert output.count("the server takes no connection") == output.count("the server takes connections again") == 1
    with private_proxy.connect(database="shop") as client:
        consumer = consume(private_proxy.connect(database="shop"), "STREAM * FROM m1")
        enqueue(client, "m1", "a")
        eventually(lambda: len(consumer.received) == 1)


def test_a_stream_through_the_proxy_outlives_the_engines_connections(server, proxy, database, consume) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "a")
        consumer = consume(proxy.connect(database=database), "STREAM * FROM m LIMIT 2")
        eventually(lambda: len(consumer.received) == 1)
        mine = {client.thread_id(), consumer.connection.thread_id()}
        with connect(server) as root:
            listed = rows(root, "SELECT id FROM information_schema.processlist WHERE command = 'Sleep' AND db IS NULL")
            for (engine_connection,) in listed:
                if engine_connection not in mine:
                    with contextlib.suppress(pymysql.OperationalError):  # It has ended meanwhile.
                        run(root, f"KILL {engine_connection}")
        enqueue(client, "m", "b")
        assert consumer.ended.wait(20)
        assert [payload for _, payload in consumer.received] == ["a", "b"]
