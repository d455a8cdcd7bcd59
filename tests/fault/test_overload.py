"""Many clients, and slow ones: what they hold ends with them, and other clients are served meanwhile.

`bench/overload.py` measures the latency of the others."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.packets import frame
from tests.support.proxies import environment, running_proxy
from tests.support.queues import create_queue, enqueue, rows
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually, settled

pytestmark = pytest.mark.either_server

LOGINS, THREADS = 500, 8
ALLOWED_KB = 5 << 10
"""The memory that is not returned at once."""
SLOW = 40
LOGIN = frame(b"\x85\xa6" + b"\0" * 200, 1)


def test_a_thousand_logins_leave_nothing_behind(server, lone_proxy, database) -> None:
    def log_in(_: int) -> None:
        with RawClient(lone_proxy, database=database) as client:
            client.query("SELECT 1")

    with connect(server) as root, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(log_in, range(LOGINS)))
        held = "SELECT COUNT(*) FROM information_schema.processlist"
        before_kb, before = settled(lambda: lone_proxy.memory_kb), settled(lambda: rows(root, held))
        list(pool.map(log_in, range(LOGINS)))
        eventually(lambda: lone_proxy.metric("connections") == 0)
        eventually(lambda: rows(root, held) <= before)
    assert lone_proxy.metric("connections_accepted_total") >= 2 * LOGINS
    assert lone_proxy.memory_kb - before_kb < ALLOWED_KB


def test_a_login_that_comes_byte_by_byte_has_no_more_time_than_another(server, database, tmp_path: Path) -> None:
    with (
        environment(ACKSTREAM_LOGIN_TIMEOUT_S="2"),
        running_proxy(server, tmp_path / "log") as proxy,
        contextlib.ExitStack() as stack,
    ):
        peers = [stack.enter_context(socket.create_connection((proxy.host, proxy.port))) for _ in range(SLOW)]
        ended, pace = set[int](), threading.Event()
        for byte in LOGIN:
            for number, peer in enumerate(peers):
                try:
                    peer.sendall(bytes([byte]))
                except OSError:
                    ended.add(number)
            if len(ended) == SLOW:
                break
            pace.wait(0.1)
        assert len(ended) == SLOW
        with proxy.connect(database=database) as client:
            assert rows(client, "SELECT 1") == [(1,)]
            assert proxy.metric("connections") == 1


def test_statements_that_come_byte_by_byte_delay_no_message(lone_proxy, database) -> None:
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(lone_proxy.connect(database=database))
        create_queue(worker, "m")
        slow = [stack.enter_context(RawClient(lone_proxy, database=database)) for _ in range(SLOW)]
        sent = frame(b"\x03SELECT 'slow'", 0)
        for at, byte in enumerate(sent):
            for client in slow:
                client.sock.sendall(bytes([byte]))
            enqueue(worker, "m", "a")
            assert rows(worker, "STREAM id FROM m LIMIT 1 WAIT 20") == [(at + 1,)]
        for client in slow:
            assert client.answer(0x03)[-2].payload == b"\4slow"
