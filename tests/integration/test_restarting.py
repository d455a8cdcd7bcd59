"""Stopping a proxy while clients are at work: `drain_work_s`, and a new proxy on the same port (`reuse_port`)."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

import pymysql
import pytest
from mysql_mimic.types import Commands

from engine.packets import EOF
from proxy.wire.packets import parse_err
from tests.support import insides
from tests.support.gate import Gate
from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

PATIENT = {"ACKSTREAM_DRAIN_WORK_S": "20", "ACKSTREAM_REUSE_PORT": "true"}


PROCESSES = pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "two processes"])


def ended(proxy: RunningProxy) -> bool:
    assert proxy._process is not None
    return proxy._process.returncode is not None or proxy._process.wait(0)


@PROCESSES
def test_work_is_acknowledged_while_the_proxy_drains(server, database, tmp_path, consume, options) -> None:
    with environment(**PATIENT), running_proxy(server, tmp_path / "log", options) as proxy:
        with connect(server, database=database) as direct:
            create_queue(direct, "m")
            enqueue(direct, "m", "ab")
        worker, other = proxy.connect(database=database), proxy.connect(database=database)
        assert rows(worker, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
        consumer = consume(proxy.connect(database=database), "STREAM id FROM m")
        eventually(lambda: consumer.received == [(2,)])
        proxy.send(signal.SIGTERM)
        assert consumer.ended.wait(10)
        assert consumer.error is not None
        assert consumer.error.args[0] == 1053
        assert rows(worker, "STREAM id FROM m NOWAIT") == []
        with pytest.raises(pymysql.MySQLError) as refused:
            rows(worker, "STREAM id FROM m NOWAIT")
        assert refused.value.args[0] == 1053
        assert run(worker, "ACK m WHERE id = 2") == 1  # That of the stream, which holds nothing then.
        with connect(server) as direct:
            find = f"SELECT id FROM information_schema.processlist WHERE id = {other.thread_id()}"
            eventually(lambda: not rows(direct, find))
        assert run(worker, "BEGIN") == 0
        assert run(worker, "ACK m WHERE id = 1 AND epoch = 1") == 1
        assert run(worker, "COMMIT") == 0
        eventually(lambda: ended(proxy), timeout_s=10)


BOUNDED = ["STREAM id FROM m WAIT 600", "STREAM id FROM m LIMIT 5 WAIT 600 FOR UPDATE"]


@pytest.mark.parametrize("statement", BOUNDED, ids=["claims", "locks"])
def test_a_bounded_stream_ends_without_an_error_when_the_drain_begins(
    server, database, tmp_path, consume, statement
) -> None:
    with environment(**PATIENT), running_proxy(server, tmp_path / "log") as proxy:
        with connect(server, database=database) as direct:
            create_queue(direct, "m")
        worker = proxy.connect(database=database)
        worker.autocommit("FOR UPDATE" not in statement)
        consumer = consume(worker, statement)
        with proxy.connect(database=database) as client:
            eventually(lambda: rows(client, "SHOW STREAMS"))
        proxy.send(signal.SIGTERM)
        assert consumer.ended.wait(10)
        assert (consumer.error, consumer.received) == (None, [])
        assert run(worker, "COMMIT") == 0
        eventually(lambda: ended(proxy), timeout_s=10)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("STREAM id FROM m", 1053),
        ("STREAM id FROM m WAIT 600", None),
        ("STREAM id FROM m NOWAIT", None),
        ("STREAM id FROM m LIMIT 5 NOWAIT FOR UPDATE", None),
    ],
)
@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
def test_a_stream_that_is_not_answered_yet_when_the_drain_begins_delivers_nothing(
    server, database, tmp_path, statement, code, prepared
) -> None:
    with connect(server, database=database) as direct:
        create_queue(direct, "m")
        enqueue(direct, "m", "a")
    with Gate(server) as gate, environment(**PATIENT):
        gated: Any = gate
        with running_proxy(gated, tmp_path / "log") as proxy, RawClient(proxy, database=database) as client:
            client.query("SET autocommit = 0")
            query = bytes([Commands.COM_QUERY]) + statement.encode()
            payload = client.execution(client.prepare(statement)) if prepared else query
            gate.hold(client.greeting.connection_id, passing=0)
            client.send(payload)
            eventually(gate.held)
            proxy.send(signal.SIGTERM)
            eventually(lambda: "draining" in proxy.output)
            gate.release()
            *columns, last = client.answer(payload[0])
            if code is None:
                assert len(columns) == 3  # Their number, the one, and the EOF packet behind it: no row.
                assert last.payload[0] == EOF
            else:
                assert parse_err(last.payload).code == code
    with connect(server, database=database) as direct:
        assert rows(direct, "SELECT epoch FROM m") == [(0,)]


def test_what_is_not_acknowledged_in_time_is_released(server, database, tmp_path) -> None:
    with (
        environment(ACKSTREAM_DRAIN_WORK_S="0.3"),
        running_proxy(server, tmp_path / "log") as proxy,
        connect(server, database=database) as direct,
    ):
        create_queue(direct, "m")
        enqueue(direct, "m", "a")
        worker = proxy.connect(database=database)
        assert rows(worker, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
        assert proxy.terminate() == 0
        now_ns = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
        assert rows(direct, f"SELECT epoch FROM m WHERE time_next <= {now_ns}") == [(1,)]
        insides.vanish(worker)


class PooledClient(threading.Thread):
    """A pool of one connection that is checked before each use, as `pool_pre_ping` does it."""

    def __init__(self, port: int, database: str) -> None:
        super().__init__(daemon=True)
        self.stop, self.errors, self.inserted = threading.Event(), list[Exception](), 0
        self._address: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": "root", "database": database}
        self._connection: Any = None

    def run(self) -> None:
        while not self.stop.wait(0.02):
            try:
                self._checked()
                with self._connection.cursor() as cursor:
                    cursor.execute("INSERT INTO m (payload) VALUES ('x')")
                self._connection.commit()
                self.inserted += 1
            except pymysql.MySQLError as error:
                self.errors.append(error)

    def _checked(self) -> None:
        with contextlib.suppress(pymysql.MySQLError, AttributeError):
            self._connection.ping(reconnect=False)
            return
        self._connection = pymysql.connect(**self._address)


@PROCESSES
def test_a_pool_sees_no_error_when_a_new_proxy_takes_over_the_port(server, database, tmp_path, options) -> None:
    """The pool pauses at times: then its connections move to the new proxy."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment(**PATIENT))
        old = stack.enter_context(running_proxy(server, tmp_path / "old", options))
        with connect(server, database=database) as direct:
            create_queue(direct, "m")
        clients = [PooledClient(old.port, database) for _ in range(3)]
        for client in clients:
            client.start()
        eventually(lambda: all(client.inserted for client in clients))
        new = RunningProxy(server, tmp_path / "new" / "log", options)
        (tmp_path / "new").mkdir()
        new.port = old.port
        stack.callback(new.stop)
        new.start()
        old.send(signal.SIGTERM)
        eventually(lambda: "draining" in old.output)
        before = [client.inserted for client in clients]
        eventually(lambda: all(client.inserted > count for client, count in zip(clients, before, strict=True)))
        for client in clients:
            client.stop.set()
            client.join()
        eventually(lambda: ended(old), timeout_s=15)
        again = [PooledClient(new.port, database) for _ in range(3)]
        for client in again:
            client.start()
        eventually(lambda: all(client.inserted for client in again))
        for client in again:
            client.stop.set()
            client.join()
        assert [client.errors for client in clients + again] == [[]] * 6
