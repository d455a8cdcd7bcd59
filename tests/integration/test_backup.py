"""A dump of the server contains its queues, with all that makes them queues: docs/sizing.md."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.queues import rows, run
from tests.support.servers import ServerMissingError, client_program, dump_program

pytestmark = pytest.mark.either_server


@pytest.fixture
def client(proxy, database) -> Iterator[Any]:
    with proxy.connect(database=database) as connection:
        yield connection


@pytest.fixture
def restore(server, server_name, client, database) -> Iterator[Any]:
    """Dumps the database as the page does, restores it under another name, and makes that the client's default."""
    name = f"{database}_restored"
    try:
        program = dump_program(server_name)
    except ServerMissingError as missing:
        pytest.skip(str(missing))
    address = ["-h", server.host, "-P", str(server.port), "-u", "root"]

    def restored(*options: str) -> None:
        command = [*program, *address, "--single-transaction", *options, database]
        dump = subprocess.run(command, capture_output=True, check=True).stdout
        run(client, f"CREATE DATABASE {name}")
        subprocess.run([*client_program(server_name), *address, name], input=dump, check=True)
        run(client, f"USE {name}")

    yield restored
    run(client, f"DROP DATABASE IF EXISTS {name}")


def definition(client: Any, queue: str) -> str:
    ((_, text),) = rows(client, f"SHOW CREATE QUEUE {queue}")
    return str(text)


def problems(client: Any) -> list[Any]:
    with client.cursor() as cursor:
        cursor.execute("SHOW FULL QUEUES")
        names = [column[0] for column in cursor.description]
        return [row[names.index("Problem")] for row in cursor.fetchall()]


def test_a_restored_queue_delivers_what_was_unacknowledged(client, restore) -> None:
    run(client, "CREATE QUEUE orders (item TEXT) ACK_WAIT = 1 MAX_ATTEMPTS = 5 DEAD_LETTER = orders_dead")
    run(client, "INSERT INTO orders (item) VALUES ('tea'), ('bread'), ('milk')")
    assert len(rows(client, "STREAM * FROM orders LIMIT 2 WAIT 20")) == 2
    run(client, "ACK orders WHERE id = 1")
    run(client, "PAUSE QUEUE orders")
    restore()
    assert "PAUSED = 1" in definition(client, "orders")
    run(client, "RESUME QUEUE orders")
    delivered = [row for _ in range(2) for row in rows(client, "STREAM * FROM orders LIMIT 1 WAIT 20")]
    assert sorted(delivered) == [(2, "bread"), (3, "milk")]
    assert run(client, "ACK orders WHERE id IN (2, 3)") == 2


QUEUES = {
    "generated columns": (
        "CREATE QUEUE q (account INT, size INT, pending INT AS (IF(time_acked IS NULL, account, NULL)),"
        " big INT AS (size > 10) STORED, UNIQUE KEY (pending), KEY (big))"
    ),
    "delays and reasons": "CREATE QUEUE q (account INT, size INT) DELAY_BY = delay_s REASON = reason PURGE_AFTER = 60",
    "groups with a limit": "CREATE QUEUE q (account INT NOT NULL, size INT) GROUP_BY = (account), GROUP_LIMIT = 2",
    "groups in strict order": (
        "CREATE QUEUE q (account INT NOT NULL, size INT) GROUP_BY = (account), GROUP_ORDER = STRICT"
    ),
    "batches": "CREATE QUEUE q (account INT, size INT) BATCHES",
    "limits": "CREATE QUEUE q (account INT, size INT) MAX_IN_FLIGHT = 5 MAX_RATE = 1000",
    "partitions": "CREATE QUEUE q (account INT, size INT) RETENTION BY PARTITION",
    "dead letters": "CREATE QUEUE q (account INT, size INT) MAX_ATTEMPTS = 5 DEAD_LETTER = q_dead ON_DISCONNECT = keep",
}


@pytest.mark.parametrize("made", QUEUES.values(), ids=QUEUES)
@pytest.mark.parametrize("options", [(), ("--skip-extended-insert", "--complete-insert")], ids=["default", "complete"])
def test_all_that_makes_it_a_queue_is_restored(client, restore, made: str, options: tuple[str, ...]) -> None:
    run(client, made)
    run(client, "INSERT INTO q (account, size) VALUES (1, 3), (2, 30)")
    ((first,),) = rows(client, "STREAM id FROM q LIMIT 1 WAIT 20")
    run(client, f"ACK q WHERE id = {first}")
    before = definition(client, "q")
    columns = rows(client, "SELECT * FROM q ORDER BY id")
    restore(*options)
    assert definition(client, "q") == before
    assert rows(client, "SELECT * FROM q ORDER BY id") == columns
    assert set(problems(client)) <= {None, ""}
    ((second, account),) = rows(client, "STREAM id, account FROM q LIMIT 1 WAIT 20")
    assert second != first
    assert run(client, f"ACK q WHERE id = {second} AND account = {account}") == 1
    run(client, "INSERT INTO q (account, size) VALUES (1, 4)")
    assert rows(client, "STREAM account, size FROM q LIMIT 1 WAIT 20") == [(1, 4)]
