"""Connections on which nothing happens: kept alive where a stream waits, ended by the server's timeouts elsewhere."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from proxy.wire.packets import parse_err
from tests.support.queues import create_queue, enqueue, run
from tests.support.raw import BASE, RawClient
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

KEEPALIVE = "02"


def wait_for_a_timeout(client: RawClient) -> list[bytes]:
    """What an idle client is told when the server's wait_timeout of a second is over, and the connection ended."""
    client.query("SET wait_timeout = 1")
    said: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while packet := client.packet():
            said.append(bytes([packet.seq]) + packet.payload)
    return said


def timer_of(local_port: int, remote_port: int) -> str:
    """The kernel's timer of a connection on this machine, at its local end."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        if local.endswith(f":{local_port:04X}") and remote.endswith(f":{remote_port:04X}"):
            return timer.partition(":")[0]
    raise AssertionError(f"no connection from {local_port} to {remote_port}")


TIMEOUTS = {"idle": "wait_timeout = 1", "in a transaction": "idle_transaction_timeout = 1"}


@pytest.mark.parametrize(
    "text", ["STREAM payload FROM m LIMIT 1 WAIT 50", "STREAM payload FROM m LIMIT 1 WAIT 50 FOR UPDATE"]
)
@pytest.mark.parametrize("prepared", [False, True], ids=["as text", "prepared"])
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_stream_outlives_the_servers_timeouts_for_idle_sessions(
    server, proxy, database, flavour, timeout: str, text: str, *, prepared: bool
) -> None:
    if flavour == "mysql" and timeout == "in a transaction":
        pytest.skip("MySQL has no such timeout")
    with connect(server, database=database) as root, RawClient(proxy, BASE, database) as client:
        create_queue(root, "m")
        run(root, "CREATE TABLE other (id INT)")
        client.query(f"SET autocommit = 0, {TIMEOUTS[timeout]}")
        client.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        client.query("SELECT * FROM other")
        client.send(client.execution(client.prepare(text)) if prepared else b"\x03" + text.encode())
        for _ in range(2):
            with RawClient(server) as other:
                wait_for_a_timeout(other)
        with RawClient(proxy, BASE, database) as producer:
            producer.query("INSERT INTO m (payload) VALUES ('still here')")
        assert client.answer(0x17 if prepared else 0x03)[-2].payload.endswith(b"\x0astill here")
        client.query("ACK FROM m WHERE id = 1")
        assert client.outcome.affected_rows == 1


def test_an_idle_client_is_told_of_the_servers_wait_timeout_as_on_a_direct_connection(server, proxy, flavour) -> None:
    with RawClient(server) as direct, RawClient(proxy) as relayed:
        said = [wait_for_a_timeout(client) for client in (direct, relayed)]
    assert said[0] == said[1]
    if flavour == "mysql":
        assert said[0][0][0] == 0
        assert parse_err(said[0][0][1:]).code == 4031


def test_both_ends_of_a_stream_are_probed_by_the_kernel(server, proxy, database) -> None:
    """So that a peer whose machine is gone is noticed, and no box in between forgets the connection."""
    with connect(server, database=database) as root, RawClient(proxy, BASE, database) as client:
        create_queue(root, "m")
        enqueue(root, "m", "a")
        client.send(b"\x03STREAM * FROM m")
        while client.packet().payload != b"\x011\x01a":
            pass
        assert timer_of(proxy.port, client.sock.getsockname()[1]) == KEEPALIVE
        listed = f"SELECT host FROM information_schema.processlist WHERE id = {client.greeting.connection_id}"
        with root.cursor() as cursor:
            cursor.execute(listed)
            ((host,),) = cursor.fetchall()
        assert timer_of(int(host.rpartition(":")[2]), server.port) == KEEPALIVE
