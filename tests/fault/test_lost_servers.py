"""A server that dies under its clients: each hears what it would hear on a direct connection."""

from __future__ import annotations

import pytest

from proxy.wire.packets import parse_err
from tests.support.queues import create_queue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


def test_every_client_hears_of_the_servers_death(private_server, private_proxy) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
        root.select_db("shop")
        create_queue(root, "m")
        clients = {name: RawClient(private_proxy, database="shop") for name in ("idle", "query", "result", "stream")}
        direct = RawClient(private_server, database="shop")
        for client in (clients["query"], direct):
            client.send(b"\x03SELECT SLEEP(60)")
        clients["result"].send(b"\x03SELECT REPEAT('x', 1000000) FROM information_schema.columns")
        clients["result"].packet()
        clients["stream"].send(b"\x03STREAM * FROM m")
        asleep = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'"
        eventually(lambda: rows(root, asleep) == [(2,)])
        while clients["stream"].packet().payload[:1] != b"\xfe":  # The end of the columns: it runs.
            pass
    private_server.kill()
    for client in (direct, clients["idle"], clients["query"], clients["result"]):
        with pytest.raises(ConnectionResetError):
            read_to_the_end(client)
    assert parse_err(clients["stream"].packet().payload).code == 1053
    with pytest.raises(ConnectionResetError):
        clients["stream"].packet()
    for client in (direct, *clients.values()):
        client.close()


def read_to_the_end(client: RawClient) -> None:
    """What was under way may still come, but no error, which would say that it ended."""
    while client.packet().payload[:1] != b"\xff":
        pass
