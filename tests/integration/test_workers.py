"""Several workers on one port: to clients they are one proxy, and one that dies takes nothing with it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.prepared import ForkedProxy
from tests.support.proxies import READY, RunningProxy, proxies_of
from tests.support.queues import Consumer, create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

Serve = Callable[..., RunningProxy]


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def fork_server(proxy: RunningProxy) -> int:
    (found,) = [child for child in children(proxy.pid) if children(child)]
    return found


def workers(proxy: RunningProxy) -> list[int]:
    return sorted(children(fork_server(proxy)))


def reader(proxy: RunningProxy) -> int:
    """The reader of the binary log, which is a program of its own."""
    return eventually(lambda: [child for child in children(proxy.pid) if "binlog" in command(child)])[0]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def clients(proxy: RunningProxy, pid: int) -> int:
    """How many client connections this worker has open."""
    accepted = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if local.endswith(f":{proxy.port:04X}") and state == "01":  # Established.
            accepted.add(f"socket:[{inode}]")
    return sum(str(entry.readlink()) in accepted for entry in Path(f"/proc/{pid}/fd").iterdir())


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def serve(server: EmbeddedServer, tmp_path: Path) -> Iterator[Serve]:
    """Begin a proxy with so many workers and these settings."""
    with proxies_of(tmp_path) as start:

        def begin(count: int = 2, *options: str, server: EmbeddedServer = server, **settings: str) -> RunningProxy:
            return start(server, "--workers", str(count), *options, **settings)

        yield begin


def connections(proxy: RunningProxy, database: str, count: int) -> list[Any]:
    """Connections of a proxy that has no others: each belongs to another worker than the one before."""
    return [proxy.connect(database=database) for _ in range(count)]


def have_received(consumers: Sequence[Consumer], count: int) -> bool:
    return sum(len(consumer.received) for consumer in consumers) == count


def following(proxy: RunningProxy) -> bool:
    return proxy.metric("binlog_following") == 1


def test_connections_are_spread_over_all_workers(serve: Serve, database: str) -> None:
    proxy = serve(3)
    opened = connections(proxy, database, 63)
    assert [clients(proxy, pid) for pid in workers(proxy)] == [21, 21, 21]
    assert proxy.metric("connections") == 63
    for connection in opened[::3]:
        connection.close()
    eventually(lambda: proxy.metric("connections") == 42)
    opened += connections(proxy, database, 21)  # They go where there is room.
    assert [clients(proxy, pid) for pid in workers(proxy)] == [21, 21, 21]


def test_no_more_clients_than_connections_max_are_served(serve: Serve, database: str) -> None:
    proxy = serve(3, connections_max="7")
    opened = connections(proxy, database, 7)
    with pytest.raises(pymysql.OperationalError, match="Too many connections"):
        proxy.connect()
    opened[4].close()
    eventually(lambda: proxy.metric("connections") == 6)
    assert rows(proxy.connect(), "SELECT 1") == [(1,)]


@pytest.mark.parametrize("binlog", ["auto", "off"])
def test_a_commit_seen_by_one_worker_wakes_the_streams_of_the_others(
    serve: Serve, database: str, consume: Any, binlog: str
) -> None:
    """Long before the poller, which comes once in half a minute."""
    proxy = serve(3, binlog=binlog)
    producer, *streaming = connections(proxy, database, 3)
    create_queue(producer, "m", vt_poller_interval="600")
    consumers: list[Consumer] = [consume(connection, "STREAM * FROM m") for connection in streaming]
    eventually(lambda: proxy.metric("streams") == 2 and (binlog == "off" or following(proxy)))
    for number in range(1, 11):
        enqueue(producer, "m", "a")
        eventually(partial(have_received, consumers, number))


def test_without_a_binary_log_what_is_given_back_or_acknowledged_through_another_worker_is_noticed(
    serve: Serve, database: str, consume: Any
) -> None:
    proxy = serve(2, binlog="off")
    here, there = connections(proxy, database, 2)
    create_queue(here, "m", vt_poller_interval="600", vt_ack_wait="600")
    enqueue(here, "m", "ab")
    consumer: Consumer = consume(here, "STREAM *, epoch FROM m PREFETCH 1")
    eventually(lambda: len(consumer.received) == 1)
    assert run(there, "ACK FROM m WHERE id = 1") == 1
    eventually(lambda: len(consumer.received) == 2)
    assert run(there, "NACK FROM m WHERE id = 2 DELAY 0") == 1
    eventually(lambda: len(consumer.received) == 3)
    assert [row[::2] for row in consumer.received] == [(1, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize("binlog", ["auto", "off"])
def test_what_a_vanished_client_held_goes_to_a_consumer_of_another_worker(
    serve: Serve, database: str, consume: Any, binlog: str
) -> None:
    proxy = serve(2, binlog=binlog)
    here, there = connections(proxy, database, 2)
    create_queue(here, "m", vt_poller_interval="600", vt_ack_wait="600")
    eventually(lambda: binlog == "off" or following(proxy))
    enqueue(here, "m", "a")
    assert rows(here, "STREAM id FROM m LIMIT 1 WAIT 20") == [(1,)]
    consumer: Consumer = consume(there, "STREAM id, epoch FROM m")
    eventually(lambda: proxy.metric("streams") == 1)
    here.close()
    eventually(lambda: consumer.received == [(1, 2)])


@pytest.mark.parametrize("binlog", ["auto", "off"])
def test_a_queue_that_one_worker_made_is_one_for_the_others(serve: Serve, database: str, binlog: str) -> None:
    proxy = serve(2, binlog=binlog)
    here, there = connections(proxy, database, 2)
    for number in range(5):
        run(here, f"CREATE QUEUE q{number} (item INT)")
        assert rows(there, f"STREAM * FROM q{number} NOWAIT") == []
        run(there, f"DROP QUEUE q{number}")
        with pytest.raises(pymysql.MySQLError):
            rows(here, f"STREAM * FROM q{number} NOWAIT")


@pytest.mark.parametrize(("kill", "code"), [("KILL QUERY", 1317), ("KILL", 1053)])
def test_a_kill_through_one_worker_ends_a_stream_of_another(
    serve: Serve, database: str, consume: Any, kill: str, code: int
) -> None:
    proxy = serve(3)
    killer, *streaming = connections(proxy, database, 3)
    create_queue(killer, "m")
    consumers: list[Consumer] = [consume(connection, "STREAM * FROM m") for connection in streaming]
    eventually(lambda: proxy.metric("streams") == 2)
    run(killer, f"{kill} {streaming[1].thread_id()}")
    assert consumers[1].ended.wait(10)
    assert isinstance(consumers[1].error, pymysql.MySQLError)
    assert consumers[1].error.args[0] == code
    enqueue(killer, "m", "a")
    eventually(lambda: len(consumers[0].received) == 1)


def test_streams_of_all_workers_are_shown(serve: Serve, database: str, consume: Any) -> None:
    proxy = serve(3)
    *streaming, asking = connections(proxy, database, 4)
    create_queue(asking, "m")
    for connection in streaming:
        consume(connection, "STREAM * FROM m")
    eventually(lambda: proxy.metric("streams") == 3)
    shown = rows(asking, "SHOW STREAMS")
    assert [row[0] for row in shown] == sorted(connection.thread_id() for connection in streaming)
    assert {row[4] for row in shown} == {f"{database}.m"}
    ((subscribers,),) = [(row[11],) for row in rows(asking, "SHOW FULL QUEUES")]
    assert subscribers == 3


def test_deliveries_and_proxies_of_all_workers_are_shown(serve: Serve, database: str) -> None:
    proxy = serve(3)
    *holding, asking = connections(proxy, database, 4)
    run(asking, "CREATE QUEUE m (body INT)")
    run(asking, "INSERT INTO m (body) VALUES (1), (2), (3)")
    for connection in holding:
        assert len(rows(connection, "STREAM id FROM m LIMIT 1 WAIT 20")) == 1
    shown = rows(asking, "SHOW DELIVERIES FROM m")
    assert sorted(row[6] for row in shown) == sorted(connection.thread_id() for connection in holding)
    eventually(lambda: len({row[0] for row in rows(asking, "SHOW PROXIES") if row[0] and row[4] is not None}) == 3)
    assert sum(row[5] or 0 for row in rows(asking, "SHOW PROXIES")) == 3


def in_the_end(proxy: RunningProxy, database: str, count: int) -> None:
    """Consume and acknowledge all messages of the queue m."""
    with proxy.connect(database=database) as connection:

        def drained() -> bool:
            ids = [row[0] for row in rows(connection, "STREAM id FROM m LIMIT 100 NOWAIT")]
            if ids:
                run(connection, f"ACK FROM m WHERE id IN ({', '.join(map(str, ids))})")
            return rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NOT NULL") == [(count,)]

        eventually(drained, timeout_s=40)


def test_a_worker_that_is_killed_under_load_takes_nothing_with_it(
    serve: Serve, server: EmbeddedServer, database: str, consume: Any
) -> None:
    proxy = serve(2)
    of_first, of_second, producer = connections(proxy, database, 3)
    create_queue(producer, "m", vt_ack_wait="5", vt_batch_size="10")
    consumers: list[Consumer] = [consume(connection, "STREAM id FROM m") for connection in (of_first, of_second)]
    with connect(server, database=database) as direct:
        enqueue(direct, "m", ["x"] * 500)
        eventually(lambda: all(consumer.received for consumer in consumers))
        delivered, accepted = proxy.metric("delivered_total"), proxy.metric("connections_accepted_total")
        first, second = workers(proxy)
        os.kill(first, signal.SIGKILL)
        assert consumers[0].ended.wait(10)
        assert not consumers[1].ended.is_set()
        eventually(lambda: len(workers(proxy)) == 2 and set(workers(proxy)) != {first, second})
        eventually(lambda: proxy.metric("worker_restarts_total") == 1)
        assert second in workers(proxy)
        assert proxy.metric("delivered_total") >= delivered
        assert proxy.metric("connections_accepted_total") >= accepted
        assert "killed by SIGKILL" in proxy.output
        eventually(lambda: proxy.metric('worker_up{worker="1"}') == 1)
    consumers[1].vanish()
    in_the_end(proxy, database, 500)


def test_a_worker_that_hangs_delays_nobody_else(serve: Serve, database: str, consume: Any) -> None:
    proxy = serve(2)
    of_first, of_second, _, producer = connections(proxy, database, 4)
    create_queue(of_first, "m", vt_poller_interval="600")
    consumer: Consumer = consume(of_second, "STREAM * FROM m")
    eventually(lambda: proxy.metric("streams") == 1 and following(proxy))
    hanging, _ = workers(proxy)
    os.kill(hanging, signal.SIGSTOP)
    enqueue(producer, "m", "a")
    eventually(lambda: len(consumer.received) == 1)
    assert [proxy.metric(f'worker_up{{worker="{number}"}}') for number in (1, 2)] == [0, 1]
    assert proxy.metric("streams") == 1
    os.kill(hanging, signal.SIGCONT)
    eventually(lambda: proxy.metric('worker_up{worker="1"}') == 1)
    assert rows(of_first, "SELECT 1") == [(1,)]


def test_the_worker_that_follows_serves_clients_and_has_the_changes_of_the_others(
    serve: Serve, database: str, consume: Any
) -> None:
    proxy = serve(2)
    _, producer = connections(proxy, database, 2)
    create_queue(producer, "m", vt_poller_interval="600")
    eventually(lambda: following(proxy))
    first, second = workers(proxy)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(workers(proxy)) == 2 and first not in workers(proxy))
    eventually(lambda: proxy.metric('worker_up{worker="1"}') == 1)
    consumer: Consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: proxy.metric("streams") == 1)
    assert clients(proxy, second) > 0
    for number in range(1, 6):
        enqueue(producer, "m", "a")
        eventually(partial(have_received, [consumer], number))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_all_workers(
    serve: Serve, server: EmbeddedServer, database: str, consume: Any, number: signal.Signals
) -> None:
    proxy = serve(2)
    streaming = connections(proxy, database, 2)
    with connect(server, database=database) as direct:
        create_queue(direct, "m", vt_ack_wait="600", vt_batch_size="1")
        consumers: list[Consumer] = [consume(connection, "STREAM id FROM m PREFETCH 1") for connection in streaming]
        eventually(lambda: proxy.metric("streams") == 2)
        enqueue(direct, "m", "ab")
        eventually(lambda: all(consumer.received for consumer in consumers))
        all_workers = workers(proxy)
        assert proxy.terminate(number) == 0
        assert all(map(has_ended, all_workers))
        for consumer in consumers:
            assert consumer.ended.wait(10)
            assert isinstance(consumer.error, pymysql.MySQLError)
            assert consumer.error.args[0] == 1053
        released = "SELECT COUNT(*) FROM m WHERE time_next <= 1000000 * UNIX_TIMESTAMP(NOW(6)) * 1000"
        assert rows(direct, released) == [(2,)]


def test_a_worker_that_is_sent_sigterm_drains_and_another_one_follows(serve: Serve, database: str) -> None:
    proxy = serve(2)
    of_first, of_second = connections(proxy, database, 2)
    first, second = workers(proxy)
    os.kill(first, signal.SIGTERM)
    eventually(lambda: len(workers(proxy)) == 2 and first not in workers(proxy))
    assert second in workers(proxy)
    with pytest.raises(pymysql.MySQLError):
        rows(of_first, "SELECT 1")
    assert rows(of_second, "SELECT 1") == [(1,)]
    assert "(status 0)" in proxy.output


def test_after_the_reader_was_killed_changes_come_again(
    serve: Serve, server: EmbeddedServer, database: str, consume: Any
) -> None:
    proxy = serve(2)
    streaming = connections(proxy, database, 2)
    with connect(server, database=database) as direct:
        create_queue(direct, "m", vt_poller_interval="600")
        consumers: list[Consumer] = [consume(connection, "STREAM id FROM m") for connection in streaming]
        eventually(lambda: proxy.metric("streams") == 2 and following(proxy))
        os.kill(reader(proxy), signal.SIGKILL)
        enqueue(direct, "m", "a")
        eventually(lambda: proxy.metric("binlog_starts_total") == 2 and following(proxy))
        enqueue(direct, "m", "bc")
        eventually(lambda: sum(len(consumer.received) for consumer in consumers) == 3)


@pytest.mark.parametrize("victim", ["parent", "fork server"])
def test_when_the_parent_ends_so_do_all_its_processes(serve: Serve, victim: str) -> None:
    proxy = serve(2)
    others = [*workers(proxy), reader(proxy), fork_server(proxy)]
    if victim == "parent":
        proxy.kill()
    else:
        os.kill(fork_server(proxy), signal.SIGKILL)
        eventually(lambda: has_ended(proxy.pid))
        assert "have ended" not in proxy.output
        assert "the process from which workers are forked has ended" in proxy.output
    for pid in others:
        eventually(partial(has_ended, pid))


def test_a_server_that_cannot_be_reached_is_reported_once_with_the_status_of_a_bad_setting(
    serve: Serve, server: EmbeddedServer
) -> None:
    class Nowhere:
        host, port = "127.0.0.1", 1

    with pytest.raises(AssertionError) as caught:
        serve(2, server=Nowhere(), backend_wait_s="0")
    assert str(caught.value).count("ackstream: --backend 127.0.0.1:1: ") == 1


# Limits of queues.


def test_workers_together_keep_max_in_flight_and_use_all_of_it(serve: Serve, database: str, consume: Any) -> None:
    proxy = serve(3)
    *streaming, producer = connections(proxy, database, 4)
    create_queue(producer, "m", max_in_flight="4", vt_ack_wait="600")
    consumers: list[Consumer] = [consume(connection, "STREAM id FROM m") for connection in streaming]
    eventually(lambda: proxy.metric("streams") == 3)
    enqueue(producer, "m", ["x"] * 40)
    in_flight = "SELECT COUNT(*) FROM m WHERE epoch > 0 AND time_acked IS NULL"
    acknowledged: set[int] = set()

    def received() -> list[int]:
        return [row[0] for consumer in consumers for row in consumer.received]

    for _ in range(20):
        eventually(lambda: rows(producer, in_flight) == [(4,)])
        eventually(lambda: len(received()) == len(acknowledged) + 4)
        done = next(key for key in received() if key not in acknowledged)
        acknowledged.add(done)
        assert run(producer, f"ACK FROM m WHERE id = {done}") == 1
        assert rows(producer, in_flight)[0][0] <= 4
    assert len(set(received())) == len(received())
    assert all(consumer.received for consumer in consumers)


def test_a_limit_of_one_goes_around_all_workers(serve: Serve, database: str, consume: Any) -> None:
    proxy = serve(3)
    *streaming, producer = connections(proxy, database, 4)
    create_queue(producer, "m", max_in_flight="1", vt_ack_wait="600")
    consumers: list[Consumer] = [consume(connection, "STREAM id FROM m") for connection in streaming]
    eventually(lambda: proxy.metric("streams") == 3)
    enqueue(producer, "m", ["x"] * 500)

    def all_served() -> bool:
        received = [row[0] for consumer in consumers for row in consumer.received]
        run(producer, f"ACK FROM m WHERE id IN ({', '.join(map(str, received))})") if received else None
        assert rows(producer, "SELECT COUNT(*) <= 1 FROM m WHERE epoch > 0 AND time_acked IS NULL") == [(1,)]
        return all(consumer.received for consumer in consumers)

    eventually(all_served, timeout_s=30)


def test_a_bounded_stream_of_a_queue_with_limits_gets_what_is_there(serve: Serve, database: str) -> None:
    """It waits for its worker's part of the limits before it looks for messages."""
    proxy = serve(3)
    *reading, producer = connections(proxy, database, 4)
    create_queue(producer, "m", max_in_flight="6", max_rate="1000", vt_ack_wait="600")
    enqueue(producer, "m", ["x"] * 6)
    for connection in reading:
        found = [row[0] for row in rows(connection, "STREAM id FROM m LIMIT 2 NOWAIT")]
        assert len(found) == 2
    assert rows(producer, "STREAM id FROM m LIMIT 1 NOWAIT") == []


def test_what_a_transaction_has_locked_goes_to_nobody_else(serve: Serve, database: str) -> None:
    proxy = serve(2)
    here, there = connections(proxy, database, 2)
    create_queue(here, "m")
    enqueue(here, "m", "abc")
    for connection in (here, there):
        run(connection, "BEGIN")
    assert len(rows(here, "STREAM id FROM m LIMIT 2 WAIT 20 FOR UPDATE")) == 2
    assert len(rows(there, "STREAM id FROM m LIMIT 2 WAIT 20 FOR UPDATE")) == 1
    run(here, "COMMIT")
    assert rows(there, "STREAM id FROM m LIMIT 1 WAIT 20 FOR UPDATE")
    run(there, "COMMIT")


def test_the_private_server_belongs_to_the_parent(tmp_path: Path) -> None:
    options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", "2"]
    log = tmp_path / "log"
    process = ForkedProxy(["serve", *options, "--data-dir", str(tmp_path / "data")], output=log)
    try:
        ready = eventually(lambda: READY.search(log.read_text() if log.exists() else ""), timeout_s=60)
        assert ready is not None
        opened = [pymysql.connect(host="127.0.0.1", port=int(ready[2]), user="root") for _ in range(2)]
        for connection in opened:
            assert rows(connection, "SELECT 1") == [(1,)]
        (server_pid,) = [child for child in children(process.pid) if re.search("mysqld|mariadbd", command(child))]
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20)
        assert process.returncode == 0
        assert has_ended(server_pid)
    finally:
        process.kill()
