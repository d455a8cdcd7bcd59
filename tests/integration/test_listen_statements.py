"""The address for clients that receive no messages: a process of its own serves them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from proxy.wire.commands import COM_STMT_PREPARE
from tests.support import insides
from tests.support.proxies import RunningProxy, proxies_of
from tests.support.queues import Consumer, create_queue, enqueue, rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

AT_ANY_PORT = ("--listen-statements", "127.0.0.1:0")


@pytest.fixture
def begin(server: EmbeddedServer, tmp_path: Path) -> Iterator[Any]:
    """Begin a proxy with such an address, and these options and settings."""
    with proxies_of(tmp_path) as start:
        yield partial(start, server, *AT_ANY_PORT)


def apart(proxy: RunningProxy, database: str | None = None) -> Any:
    """A client of the address."""
    return proxy.connect(port=proxy.statements_port, database=database)


def pid_of(connection: Any) -> int:
    """The process that serves the connection: the one that holds its server's end."""
    client = insides.socket_of(connection)
    _, port = client.getsockname()
    _, listening = client.getpeername()
    ends = (f":{listening:04X}", f":{port:04X}")
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [fields[9] for fields in lines if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1])]
    (found,) = [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and f"socket:[{inode}]" in _descriptors(process)
    ]
    return found


def _descriptors(process: Path) -> set[str]:
    try:
        return {str(entry.readlink()) for entry in (process / "fd").iterdir()}
    except OSError:  # It has ended.
        return set()


def refused(connection: Any, statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as raised:
        rows(connection, statement)
    return raised.value.args


def test_a_stream_is_refused_there_with_the_address_to_take(begin: Any, database: str) -> None:
    proxy = begin()
    client = apart(proxy, database)
    create_queue(client, "m")
    for statement in (
        "STREAM * FROM m",
        "STREAM id FROM m LIMIT 1 NOWAIT",
        "STREAM * FROM m LIMIT 1 WAIT 1 FOR UPDATE",
    ):
        code, text = refused(client, statement)
        assert code == 1105
        assert "(listen_statements): connect to the other address of the proxy (listen)" in text
    insides.send(client, COM_STMT_PREPARE, b"STREAM * FROM m")
    with pytest.raises(pymysql.MySQLError, match="listen_statements"):
        insides.packet(client)
    assert rows(client, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("binlog", ["auto", "off"])
def test_what_is_inserted_there_goes_to_the_streams_and_may_be_acknowledged_there(
    begin: Any, database: str, consume: Any, binlog: str
) -> None:
    proxy = begin(binlog=binlog)
    client = apart(proxy, database)
    create_queue(client, "m", vt_poller_interval="600", vt_ack_wait="600")
    consumer: Consumer = consume(proxy.connect(database=database), "STREAM * FROM m PREFETCH 1")
    followed = int(binlog == "auto")
    eventually(lambda: proxy.metric("streams") == 1 and proxy.metric("binlog_following") == followed)
    for number in range(1, 11):
        enqueue(client, "m", "a")
        eventually(lambda: len(consumer.received) == number)  # noqa: B023
        assert run(client, f"ACK m WHERE id = {number}") == 1
    assert rows(client, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]


def test_another_process_serves_its_clients(begin: Any) -> None:
    proxy = begin()
    streaming, others = {pid_of(proxy.connect()) for _ in range(4)}, {pid_of(apart(proxy)) for _ in range(4)}
    assert len(streaming) == len(others) == 1
    assert not streaming & others


def test_several_workers_share_the_other_address(begin: Any) -> None:
    proxy = begin("--workers", "2")
    opened, clients = [proxy.connect() for _ in range(4)], [apart(proxy) for _ in range(4)]
    streaming, others = set(map(pid_of, opened)), set(map(pid_of, clients))
    assert len(streaming) == 2
    assert len(others) == 1
    assert not streaming & others


def test_the_worker_for_streams_locks_messages_in_transactions(begin: Any, database: str) -> None:
    proxy = begin()
    client = apart(proxy, database)
    create_queue(client, "m")
    enqueue(client, "m", "ab")
    worker = proxy.connect(database=database, autocommit=False)
    run(worker, "BEGIN")
    assert rows(worker, "STREAM id FROM m LIMIT 2 WAIT 20 FOR UPDATE") == [(1,), (2,)]
    assert run(worker, "ACK m WHERE id IN (1, 2)") == 2
    worker.commit()
    assert rows(client, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]


def test_streams_are_shown_and_ended_from_there(begin: Any, database: str, consume: Any) -> None:
    proxy = begin()
    client, streaming = apart(proxy, database), proxy.connect(database=database)
    create_queue(client, "m")
    consumer: Consumer = consume(streaming, "STREAM * FROM m")
    eventually(lambda: proxy.metric("streams") == 1)
    assert [row[0] for row in rows(client, "SHOW STREAMS")] == [streaming.thread_id()]
    run(client, f"KILL QUERY {streaming.thread_id()}")
    assert consumer.ended.wait(10)
    assert isinstance(consumer.error, pymysql.MySQLError)
    assert consumer.error.args[0] == 1317


def test_its_process_is_replaced_when_it_ends_and_the_streams_go_on(begin: Any, database: str, consume: Any) -> None:
    proxy = begin()
    client = apart(proxy, database)
    create_queue(client, "m", vt_poller_interval="1")
    consumer: Consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: proxy.metric("streams") == 1)
    killed = pid_of(client)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: proxy.metric("worker_restarts_total") == 1)
    client = apart(proxy, database)
    assert pid_of(client) != killed
    enqueue(client, "m", "a")
    eventually(lambda: len(consumer.received) == 1)


def test_a_stop_drains_both_addresses(begin: Any, database: str, consume: Any) -> None:
    proxy = begin()
    client = apart(proxy, database)
    create_queue(client, "m")
    consumer: Consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: proxy.metric("streams") == 1)
    assert proxy.terminate() == 0
    assert consumer.ended.wait(10)
    with pytest.raises(pymysql.MySQLError):
        rows(client, "SELECT 1")


def test_the_total_of_connections_is_divided(begin: Any) -> None:
    proxy = begin(connections_max="3")
    opened = [proxy.connect(), proxy.connect(), apart(proxy)]
    for port in (proxy.port, proxy.statements_port):
        with pytest.raises(pymysql.OperationalError, match="Too many connections"):
            proxy.connect(port=port)
    eventually(lambda: proxy.metric("connections") == len(opened))
