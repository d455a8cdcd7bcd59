"""A primary with a replica, and the proxy in front of both: the primary dies, or gives its place to the other."""

from __future__ import annotations

import pymysql
import pytest

from tests.support.failover import client_of, health, url
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.replicas import (
    catch_up,
    primary_and_replica,
    promote,
    set_read_only,
    set_writable,
)
from tests.support.servers import connect
from tests.support.waiting import eventually, settled

pytestmark = pytest.mark.either_server

LOST = {2006, 2013}
"""What a driver reports of a connection that its server has ended."""


@pytest.fixture
def pair(server_name):
    with primary_and_replica(server_name) as pair:
        with connect(pair[0]) as root:
            run(root, "CREATE DATABASE shop")
            root.select_db("shop")
            run(root, "CREATE USER app")
            run(root, "GRANT ALL ON shop.* TO app")
            create_queue(root, "m", vt_ack_wait="3600", vt_min_backoff="3600")
        yield pair


@pytest.fixture
def behind(pair, tmp_path):
    """A proxy in front of both."""
    primary, replica = pair
    with running_proxy(primary, tmp_path / "log", ["--backend", url(replica)]) as proxy:
        yield proxy


@pytest.mark.parametrize("processes", [1, 2])
def test_the_primary_dies_and_its_replica_takes_over(pair, tmp_path, consume, processes) -> None:
    primary, replica = pair
    options = ["--backend", url(replica), "--processes", str(processes)]
    with running_proxy(primary, tmp_path / "log", options) as proxy:
        client, idle = proxy.connect(database="shop"), proxy.connect(database="shop")
        enqueue(client, "m", "abc")
        consumer = consume(proxy.connect(database="shop"), "STREAM * FROM m")
        eventually(lambda: len(consumer.received) == 3)
        assert run(client, "ACK FROM m WHERE id = 1 AND epoch = 1") == 1

        primary.kill()
        promote(replica)
        assert consumer.ended.wait(10)
        assert isinstance(consumer.error, pymysql.MySQLError)
        assert consumer.error.args[0] == 1053
        with pytest.raises(pymysql.OperationalError) as lost:
            run(idle, "SELECT 1")
        assert lost.value.args[0] in LOST

        with client_of(proxy, replica) as client:
            again = rows(client, "STREAM id, epoch FROM m LIMIT 2 WAIT 20")
            assert sorted(again) == [(2, 2), (3, 2)]
            assert run(client, "ACK FROM m WHERE id = 2 AND epoch = 1") == 0
            assert run(client, "ACK FROM m WHERE id = 2 AND epoch = 2") == 1
            enqueue(client, "m", "d")
            assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 20") == [("d",)]


def test_what_bypasses_the_proxy_is_noticed_on_the_new_primary_too(pair, behind, consume) -> None:
    primary, replica = pair
    behind.connect().close()
    primary.kill()
    promote(replica)
    consumer = consume(client_of(behind, replica), "STREAM payload FROM m")
    eventually(lambda: behind.metric("binlog_following") == 1 and behind.metric("streams") == 1)
    with connect(replica, database="shop") as root:
        enqueue(root, "m", ["past the proxy"])
    eventually(lambda: consumer.received == [("past the proxy",)])


def test_a_read_only_primary_is_written_to_by_nobody_and_used_again_if_nothing_else_happens(pair, behind) -> None:
    primary, _ = pair
    with behind.connect(database="shop") as client:
        set_read_only(primary)
        eventually(lambda: "read_only" in health(behind))
        with pytest.raises(pymysql.MySQLError, match="there is no primary now"):
            run(client, "STREAM payload FROM m LIMIT 1 WAIT 20")
        set_writable(primary)
        eventually(lambda: '"ok"' in health(behind))
        enqueue(client, "m", "a")
        assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 20") == [("a",)]


def test_the_engine_claims_nothing_on_a_read_only_server_though_its_account_could(pair, tmp_path, consume) -> None:
    primary, replica = pair
    with running_proxy(primary, tmp_path / "log", ["--backend", url(replica)]) as proxy, connect(primary) as root:
        consumer = consume(proxy.connect(database="shop"), "STREAM * FROM m")
        with proxy.connect(database="shop") as client:
            enqueue(client, "m", "a")
            eventually(lambda: len(consumer.received) == 1)
        root.select_db("shop")
        run(root, "SET GLOBAL read_only = 1")  # Without super_read_only, on MySQL.
        enqueue(root, "m", "b")
        settled(lambda: proxy.metric("claims_total"))
        assert rows(root, "SELECT id, epoch FROM m ORDER BY id") == [(1, 1), (2, 0)]
        run(root, "SET GLOBAL read_only = 0")
        eventually(lambda: len(consumer.received) == 2, what="the stream goes on")
        assert consumer.error is None


def test_a_switchover_moves_all_clients(pair, behind, consume) -> None:
    primary, replica = pair
    client, asleep = behind.connect(database="shop", user="app"), behind.connect(database="shop")
    run(asleep, "BEGIN")
    consumer = consume(behind.connect(database="shop"), "STREAM * FROM m")
    enqueue(client, "m", "ab")
    eventually(lambda: len(consumer.received) == 2)
    set_read_only(primary)
    with pytest.raises(pymysql.MySQLError) as refused:
        enqueue(client, "m", "c")
    assert refused.value.args[0] == 1290
    catch_up(replica, primary)
    promote(replica)
    with client_of(behind, replica) as moved:
        for old in (client, asleep):
            with pytest.raises(pymysql.OperationalError) as lost:
                run(old, "SELECT 1")
            assert lost.value.args[0] in LOST
        assert consumer.ended.wait(10)
        assert sorted(rows(moved, "STREAM id, epoch FROM m LIMIT 2 WAIT 20")) == [(1, 2), (2, 2)]


def test_a_former_primary_that_returns_writable_is_not_used(pair, behind) -> None:
    primary, replica = pair
    primary.kill()
    promote(replica)
    with client_of(behind, replica) as client:
        primary.start()
        eventually(lambda: "these accept writes, too, and are not used" in behind.output)
        with behind.connect(database="shop") as new:
            assert rows(new, "SELECT @@port") == [(replica.port,)]
        enqueue(client, "m", "a")
        assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 20") == [("a",)]
        set_read_only(primary)
        set_read_only(replica)
        set_writable(primary)
        with client_of(behind, primary) as back:
            assert rows(back, "SELECT COUNT(*) FROM m") == [(0,)]


def test_two_writable_servers_are_reported_and_not_used(pair, behind) -> None:
    primary, replica = pair
    set_writable(replica)
    eventually(lambda: "several servers accept writes" in health(behind))
    with pytest.raises(pymysql.MySQLError, match="several servers accept writes"):
        behind.connect()
    assert behind.output.count("several servers accept writes") == 1
    set_read_only(primary)
    client_of(behind, replica).close()


def test_without_a_server_for_a_while_nothing_spins(pair, behind, consume) -> None:
    primary, replica = pair
    consumer = consume(behind.connect(database="shop"), "STREAM * FROM m")
    primary.kill()
    replica.kill()
    assert consumer.ended.wait(10)
    eventually(lambda: "unreachable" in health(behind))
    lines = settled(lambda: behind.output.count("\n"))
    with pytest.raises(pymysql.MySQLError, match="no server accepts writes"):
        behind.connect()
    assert behind.output.count("there is no primary") == 1
    assert behind.output.count("\n") == lines
    primary.start()
    with client_of(behind, primary) as client:
        enqueue(client, "m", "a")
        assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 20") == [("a",)]
    eventually(lambda: '"ok"' in health(behind))
