"""Clients that vanish: whatever they were in the middle of, their backing connection is soon free.

The server's own list of connections is the proof. A server that sleeps, waits for a lock or computes does not look at
its socket, so there the engine's account says KILL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engine.packets import frame
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

SOON_S = 3.0
"""A second on a quiet machine. MySQL itself looks whether a client is still there while it sleeps, every 5 s."""

QUERY = b"\x03"
HALF = 20 << 20


def ask(text: str) -> Callable[[RawClient], None]:
    return lambda client: client.send(QUERY + text.encode())


def half_a_statement(client: RawClient) -> None:
    client.sock.sendall(frame(QUERY + b"SELECT '" + b"x" * HALF, 0)[: HALF // 2])


def half_a_file(client: RawClient) -> None:
    client.query("CREATE TABLE f (a TEXT)")
    client.send(QUERY + b"LOAD DATA LOCAL INFILE 'any' INTO TABLE f")
    request = client.packet()
    client.sock.sendall(frame(b"a line\n" * 100_000, request.seq + 1))


def an_unread_result(client: RawClient) -> None:
    client.send(QUERY + b"SELECT REPEAT('x', 1000000) FROM information_schema.columns")
    client.packet()


def a_stream_in_full_flow(client: RawClient) -> None:
    client.send(QUERY + b"STREAM * FROM m")
    while len(client.packet().payload) < 9:
        pass


MIDDLES: dict[str, Callable[[RawClient], None]] = {
    "nothing": lambda _client: None,
    "a statement half sent": half_a_statement,
    "a file half sent": half_a_file,
    "a sleep": ask("SELECT SLEEP(60)"),
    "a wait for a row": ask("UPDATE locked SET a = 2"),
    "a wait for a table": ask("SELECT * FROM altered"),
    "a result that is not read": an_unread_result,
    "a stream": a_stream_in_full_flow,
    "a stream without messages": ask("STREAM * FROM quiet"),
    "a long poll": ask("STREAM * FROM quiet WAIT 60"),
    "a stream that waits for a table": ask("STREAM * FROM altered"),
}


@pytest.fixture
def scene(server, proxy: RunningProxy, database: str) -> Iterator[RawClient]:
    """Queues with and without messages, a locked row, a locked table; and a client."""
    root, holder, other = (connect(server, database=database) for _ in range(3))
    with root, holder, other:
        for name in ("m", "quiet", "altered"):
            create_queue(root, name)
        enqueue(root, "m", map(str, range(10)))
        run(root, "CREATE TABLE locked (a INT) ENGINE=InnoDB")
        run(root, "INSERT INTO locked VALUES (1)")
        run(holder, "LOCK TABLES altered WRITE")
        run(other, "BEGIN")
        run(other, "UPDATE locked SET a = 3")
        with RawClient(proxy, database=database) as client:
            yield client


def listed(server, connection_id: int) -> bool:
    with connect(server) as root:
        found = rows(root, f"SELECT id FROM information_schema.processlist WHERE id = {connection_id}")
    return bool(found)


@pytest.mark.parametrize("end", [RawClient.close, RawClient.reset], ids=["FIN", "RST"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_its_backing_connection_is_free_soon(server, scene: RawClient, middle: str, end) -> None:
    MIDDLES[middle](scene)
    connection_id = scene.greeting.connection_id
    if " wait" in middle or middle == "a sleep":
        with connect(server) as root:
            busy = f"SELECT id FROM information_schema.processlist WHERE id = {connection_id} AND command <> 'Sleep'"
            eventually(lambda: rows(root, busy))
    end(scene)
    eventually(lambda: not listed(server, connection_id), timeout_s=SOON_S)


def test_what_it_asked_for_last_is_still_done_when_that_is_soon_done(server, proxy, database) -> None:
    with connect(server, database=database) as root:
        run(root, "CREATE TABLE t (a INT)")
        client = RawClient(proxy, database=database)
        client.sock.sendall(b"".join(frame(QUERY + b"INSERT INTO t VALUES (%d)" % a, 0) for a in range(50)))
        client.close()
        eventually(lambda: rows(root, "SELECT COUNT(*) FROM t") == [(50,)])


def test_what_it_wrote_last_wakes_a_stream(server, proxy, database, consume) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m")
        consumer = consume(plain, "STREAM payload FROM m LIMIT 1")
        client = RawClient(proxy, database=database)
        client.send(QUERY + b"INSERT INTO m (payload) VALUES ('last words')")
        client.close()
        assert consumer.ended.wait(10)
        assert consumer.received == [("last words",)]


def test_an_account_that_may_not_kill_says_so_once_and_all_else_works(private_server, tmp_path) -> None:
    with connect(private_server) as root:
        run(root, "CREATE USER engine@localhost IDENTIFIED BY 'secret'")
        run(root, "CREATE DATABASE shop")
        run(root, "GRANT SELECT, UPDATE, DELETE ON shop.* TO engine@localhost")
        with running_proxy(private_server, tmp_path / "log", account="engine:secret") as proxy:
            clients = [RawClient(proxy) for _ in range(2)]
            for client in clients:
                client.send(QUERY + b"SELECT SLEEP(60)")
            sleeping = "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'"
            eventually(lambda: len(rows(root, sleeping)) == 2)
            for client in clients:
                client.close()
            eventually(lambda: not rows(root, sleeping), timeout_s=20)  # As soon as the server notices it itself.
            assert proxy.output.count("may not KILL") == 1
