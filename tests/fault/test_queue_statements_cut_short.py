"""Statements about queues whose server, client or proxy goes away in the middle: nothing half made, no message lost."""

from __future__ import annotations

import contextlib
import threading

import pymysql
import pytest

from tests.support import insides
from tests.support.proxies import running_proxy
from tests.support.queues import enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

DEAD = 20_480


def graveyard(connection) -> None:
    """A queue with very many dead messages."""
    run(connection, "CREATE QUEUE orders (payload TEXT) MAX_ATTEMPTS = 4 DEAD_LETTER = orders_dead")
    run(connection, f"INSERT INTO orders_dead (epoch, payload) VALUES {', '.join(['(4, 0)'] * 10)}")
    while rows(connection, "SELECT COUNT(*) FROM orders_dead")[0][0] < DEAD:
        run(connection, "INSERT INTO orders_dead (epoch, payload) SELECT 4, payload FROM orders_dead")


def ids(connection, table: str) -> set[int]:
    return {number for (number,) in rows(connection, f"SELECT id FROM {table}")}


def begin(connection, statement: str) -> None:
    """Send a statement and do not wait for its end."""
    insides.send(connection, 3, statement.encode())


@pytest.mark.parametrize("victim", ["server", "proxy", "client"])
def test_a_redrive_that_is_cut_short_loses_no_message_and_doubles_none(
    private_server, private_proxy, victim: str
) -> None:
    with private_proxy.connect() as client:
        run(client, "CREATE DATABASE shop")
        client.select_db("shop")
        graveyard(client)
        everything = ids(client, "orders_dead")
    with connect(private_server, database="shop") as watcher:
        client = private_proxy.connect(database="shop")
        begin(client, "REDRIVE QUEUE orders_dead")
        eventually(lambda: rows(watcher, "SELECT 1 FROM orders LIMIT 1"))
    match victim:
        case "server":
            private_server.kill()
            with pytest.raises(pymysql.MySQLError):
                insides.answer(client)
            private_server.start()
        case "proxy":
            private_proxy.kill()
            private_proxy.start()
        case _:
            insides.vanish(client)
    with private_proxy.connect(database="shop") as client:
        assert ids(client, "orders")
        assert ids(client, "orders") | ids(client, "orders_dead") == everything
        # What the broken connection had locked is passed over until the server has noticed.
        eventually(lambda: run(client, "REDRIVE QUEUE orders_dead") == 0 and not ids(client, "orders_dead"))
        assert ids(client, "orders") == everything


def test_a_server_that_dies_leaves_no_queue_half_made(private_server, private_proxy) -> None:
    made: list[int] = []
    enough = threading.Event()

    def create_queues() -> None:
        with contextlib.suppress(pymysql.MySQLError), private_proxy.connect(database="shop") as client:
            for number in range(100_000):
                run(client, f"CREATE QUEUE q{number} (a INT) MAX_ATTEMPTS = 3 DEAD_LETTER = q{number}_dead")
                made.append(number)
                if number == 5:
                    enough.set()

    with connect(private_server) as direct:
        run(direct, "CREATE DATABASE shop")
    creator = threading.Thread(target=create_queues)
    creator.start()
    assert enough.wait(30)
    private_server.kill()
    creator.join(20)
    assert not creator.is_alive()
    private_server.start()

    with private_proxy.connect(database="shop") as client:
        run(client, "DO 0")
        queues = {row[1]: row for row in rows(client, "SHOW FULL QUEUES FROM shop")}
        assert {row[0] for row in rows(client, "SHOW TABLES")} == queues.keys()
        assert {row[2] for row in queues.values()} == {"running"}
        for name in queues:
            assert name.endswith("_dead") or f"{name}_dead" in queues
        assert {f"q{number}" for number in made} <= queues.keys()
        following = len(made)
        run(client, f"CREATE QUEUE IF NOT EXISTS q{following} (a INT) MAX_ATTEMPTS = 3 DEAD_LETTER = q{following}_dead")
        run(client, f"INSERT INTO q{following} (a) VALUES (1)")
        assert rows(client, f"STREAM * FROM q{following} LIMIT 1 WAIT 20") == [(1, 1)]


def test_a_queue_paused_through_one_proxy_is_paused_in_the_other_and_after_a_restart(
    server, database, tmp_path
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("catalog_interval_s = 0.2\n")
    options = ("--config", str(config))
    with (
        running_proxy(server, tmp_path / "one.log", options) as one,
        running_proxy(server, tmp_path / "two.log", options) as two,
        one.connect(database=database) as here,
        two.connect(database=database) as there,
    ):
        run(here, "CREATE QUEUE m (payload TEXT)")
        eventually(lambda: [row[2] for row in rows(there, f"SHOW FULL QUEUES FROM {database}")] == ["running"])
        run(here, "PAUSE QUEUE m")
        eventually(lambda: [row[2] for row in rows(there, f"SHOW FULL QUEUES FROM {database}")] == ["paused"])
        enqueue(there, "m", "a")
        assert rows(there, "STREAM * FROM m WAIT 0.3") == []
        assert rows(here, "STREAM * FROM m NOWAIT") == []
        two.terminate()
        two.start()
        with two.connect(database=database) as again:
            assert rows(again, "STREAM * FROM m NOWAIT") == []
            run(again, "RESUME QUEUE m")
            assert rows(here, "STREAM * FROM m LIMIT 1 WAIT 10") == [(1, "a")]
