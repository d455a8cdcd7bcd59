"""A Galera cluster of three, all writable, and the proxy in front of it."""

from __future__ import annotations

import pytest

from tests.support.failover import client_of, health, url
from tests.support.galera import galera_cluster
from tests.support.proxies import running_proxy
from tests.support.queues import enqueue, rows, run
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def members():
    with galera_cluster() as members:
        yield members


def test_one_member_is_used_and_another_when_it_is_killed_and_none_without_a_quorum(members, tmp_path, consume) -> None:
    first, second, third = members
    options = ["--backend", url(second), "--backend", url(third)]
    with running_proxy(first, tmp_path / "log", options) as proxy:
        with client_of_any(proxy, first) as client:
            run(client, "CREATE DATABASE shop")
            client.select_db("shop")
            run(client, "CREATE QUEUE m (payload VARCHAR(20)) ack_wait = 3600")
            enqueue(client, "m", "abc")
            consumer = consume(proxy.connect(database="shop"), "STREAM * FROM m")
            eventually(lambda: len(consumer.received) == 3)
            assert run(client, "ACK FROM m WHERE payload = 'a'") == 1
        first.kill()
        assert consumer.ended.wait(10)
        assert getattr(consumer.error, "args", (0,))[0] == 1053
        with client_of(proxy, second) as client:
            again = rows(client, "STREAM payload, epoch FROM m LIMIT 2 WAIT 20")
            assert sorted(again) == [("b", 2), ("c", 2)]
            assert run(client, "ACK FROM m WHERE payload IN ('b', 'c')") == 2
        third.kill()
        eventually(lambda: "wsrep_cluster_status=non-Primary" in health(proxy), timeout_s=20)


def client_of_any(proxy, server):
    client = proxy.connect()
    assert rows(client, "SELECT @@port") == [(server.port,)]
    return client
