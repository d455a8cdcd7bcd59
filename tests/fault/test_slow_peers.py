"""Clients that do not read, and servers that do not: nobody is read faster than the other side takes it.

The proxy of these tests is a process of its own, so that its memory can be looked at.
"""

from __future__ import annotations

import contextlib
import re

import pytest

from engine.packets import frame
from tests.support.queues import create_queue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually, settled

pytestmark = pytest.mark.either_server

MUCH = 200 << 20
ALLOWED_KB = 40 << 10
"""Buffers of the proxy and one fetch; an eighth of what the peer would have it hold."""


def test_a_large_result_waits_on_the_server_for_a_client_that_does_not_read(server, lone_proxy, database) -> None:
    before = lone_proxy.memory_kb
    size, count = 1_000_000, MUCH // 1_000_000
    with RawClient(lone_proxy) as client, connect(server) as root:
        number = client.greeting.connection_id
        client.send(
            f"\x03WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
            f" SELECT REPEAT('x', {size}) FROM n".encode()
        )
        blocked = f"SELECT state FROM information_schema.processlist WHERE id = {number}"
        eventually(lambda: re.search(r"(?i)writing to net|sending", str(rows(root, blocked))))
        assert settled(lambda: lone_proxy.memory_kb) - before < ALLOWED_KB
        answer = client.answer(0x03)
        assert sum(len(packet.payload) > size for packet in answer) == count
        assert lone_proxy.memory_kb - before < ALLOWED_KB


def test_a_stream_stops_for_a_client_that_does_not_read(server, lone_proxy, database) -> None:
    count = 2_000
    with connect(server, database=database) as root, RawClient(lone_proxy, database=database) as client:
        create_queue(root, "m", "payload LONGTEXT")
        run(root, "INSERT INTO m (payload) VALUES (REPEAT('x', 100000))")
        for _ in range(11):
            run(root, "INSERT INTO m (payload) SELECT payload FROM m")
        before = lone_proxy.memory_kb
        client.send(f"\x03STREAM * FROM m LIMIT {count}".encode())
        claimed = "SELECT COUNT(*) FROM m WHERE epoch > 0"
        eventually(lambda: rows(root, claimed)[0][0] > 10)
        assert settled(lambda: rows(root, claimed)[0][0]) < count / 2
        assert settled(lambda: lone_proxy.memory_kb) - before < ALLOWED_KB
        assert sum(len(packet.payload) > 100_000 for packet in client.answer(0x03)) == count
        assert lone_proxy.memory_kb - before < ALLOWED_KB


def test_a_client_that_sends_ahead_waits_for_a_server_that_does_not_read(server, lone_proxy, database) -> None:
    before = lone_proxy.memory_kb
    with connect(server, database=database) as root, RawClient(lone_proxy, database=database) as client:
        run(root, "CREATE TABLE t (a INT)")
        run(root, "LOCK TABLES t WRITE")
        inserts = frame(b"\x03INSERT INTO t VALUES (1) /* " + b"x" * 1_000_000 + b" */", 0)
        sent = send_until_nobody_reads(client, inserts, 0)
        assert sent < MUCH / 4
        assert lone_proxy.memory_kb - before < ALLOWED_KB
        client.sock.settimeout(30)
        run(root, "UNLOCK TABLES")
        client.sock.sendall(inserts[sent % len(inserts) :])
        for _ in range(sent // len(inserts) + 1):
            client.answer(0x03)
        assert rows(root, "SELECT COUNT(*) FROM t") == [(sent // len(inserts) + 1,)]


def test_a_client_that_sends_ahead_of_its_stream_waits_for_the_server_when_that_has_ended(
    server, lone_proxy, database
) -> None:
    """The proxy has two reasons not to read, and the first goes away."""
    before = lone_proxy.memory_kb
    with connect(server, database=database) as root, RawClient(lone_proxy, database=database) as client:
        create_queue(root, "m")
        run(root, "CREATE TABLE t (a INT)")
        client.send(b"\x03STREAM * FROM m LIMIT 1 WAIT 60")
        inserts = frame(b"\x03INSERT INTO t VALUES (1) /* " + b"x" * 10_000 + b" */", 0) * 100
        sent = send_until_nobody_reads(client, inserts, 0)
        with connect(server, database=database) as other:
            run(other, "LOCK TABLES t WRITE")
            with lone_proxy.connect(database=database) as producer:
                run(producer, "INSERT INTO m (payload) VALUES ('the end')")
            client.answer(0x03)
            sent = send_until_nobody_reads(client, inserts, sent)
            assert sent < MUCH / 4
            assert lone_proxy.memory_kb - before < ALLOWED_KB


def send_until_nobody_reads(client: RawClient, data: bytes, sent: int) -> int:
    """Go on sending `data` again and again; how much was sent."""
    client.sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while sent < MUCH:
            sent += client.sock.send(data[sent % len(data) :])
    return sent
