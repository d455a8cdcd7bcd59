"""A KILL that is sent to the server itself reaches whom the server is at work for, and whose connection it closes.

Where the server is at work the client hears the server's words; when its connection is over its messages are released.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from pymysql.constants import COMMAND

from proxy.wire.framing import Packet
from proxy.wire.packets import parse_err
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

LARGE = "x" * 15_000_000
"""More than the buffers of the sockets take from a client that does not read."""

LOCKED_TABLE = ["LOCK TABLES m WRITE"]
LOCKED_ROW = ["BEGIN", "UPDATE m SET payload = 'held' WHERE id = 1"]


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m", "payload MEDIUMTEXT")
        enqueue(connection, "m", ["a"])
        yield connection


@pytest.fixture
def root(server, database, connection):
    """An administrator on the server itself, when there is a queue."""
    with connect(server, database=database) as root:
        yield root


@contextlib.contextmanager
def waiting_for_a_lock(server, database, root, client: RawClient, statement: str, locking: list[str]) -> Iterator[int]:
    """On the server, the client's statement waits for somebody; the number of its connection."""
    with connect(server, database=database) as holder:
        for lock in locking:
            run(holder, lock)
        client.send(bytes([COMMAND.COM_QUERY]) + statement.encode())
        number = client.greeting.connection_id
        at_work = f"SELECT id FROM information_schema.processlist WHERE id = {number} AND info LIKE '%UPDATE%'"
        eventually(lambda: rows(root, at_work))
        yield number


STATEMENTS = [("STREAM * FROM m NOWAIT", LOCKED_TABLE), ("ACK FROM m WHERE id = 1", LOCKED_ROW)]


@pytest.mark.parametrize(("statement", "locking"), STATEMENTS, ids=["STREAM", "ACK"])
def test_kill_query_interrupts_a_statement_of_ours_while_it_asks_the_server(
    server, proxy, database, root, statement, locking
) -> None:
    with RawClient(proxy, database=database) as client:
        with waiting_for_a_lock(server, database, root, client, statement, locking) as number:
            run(root, f"KILL QUERY {number}")
            assert parse_err(client.answer(COMMAND.COM_QUERY)[-1].payload).code == 1317
        assert client.query("STREAM id FROM m NOWAIT")[-2].payload == b"\x011"
        assert client.query("ACK FROM m WHERE id = 1")[-1].payload[:2] == b"\0\1"


def test_kill_ends_a_connection_while_the_server_is_at_work_for_its_ack_as_it_ends_any(
    server, proxy, database, root
) -> None:
    answers = []
    for place, text in ((server, "UPDATE m SET payload = 'x' WHERE id = 1"), (proxy, "ACK FROM m WHERE id = 1")):
        with (
            RawClient(place, database=database) as client,
            waiting_for_a_lock(server, database, root, client, text, LOCKED_ROW) as number,
        ):
            run(root, f"KILL {number}")
            answers.append(_all_that_comes(client))
    assert answers[0] == answers[1]


def test_kill_ends_a_connection_whose_stream_has_not_begun_and_the_client_is_told(
    server, proxy, database, root
) -> None:
    with (
        RawClient(proxy, database=database) as client,
        waiting_for_a_lock(server, database, root, client, "STREAM * FROM m NOWAIT", LOCKED_TABLE) as number,
    ):
        run(root, f"KILL {number}")
        (error,) = _all_that_comes(client)
        assert parse_err(error.payload).code == 1053


def test_kill_ends_a_stream_whose_client_does_not_read_and_releases_what_it_was_sent(
    proxy, database, connection, root
) -> None:
    enqueue(connection, "m", [LARGE])
    with RawClient(proxy, database=database) as client:
        client.send(bytes([COMMAND.COM_QUERY]) + b"STREAM id, payload FROM m")
        while client.packet().payload != b"\x011\x01a":
            pass
        assert client.sock.recv(1, socket.MSG_PEEK)  # The next row has begun to come.
        run(root, f"KILL {client.greeting.connection_id}")
        got: set[int] = set()

        def others_get_both() -> bool:
            got.update(number for (number,) in rows(connection, "STREAM id FROM m NOWAIT"))
            return got == {1, 2}

        eventually(others_get_both)
        large, error = _all_that_comes(client)
    assert large.payload.endswith(LARGE.encode())
    assert parse_err(error.payload).code == 1053


def _all_that_comes(client: RawClient) -> list[Packet]:
    packets = []
    with contextlib.suppress(ConnectionError):
        while True:
            packets.append(client.packet())
    return packets
