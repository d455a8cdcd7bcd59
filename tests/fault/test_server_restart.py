"""The server goes away and comes back; the proxy stays."""

from __future__ import annotations

import contextlib

import pymysql

from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually


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
