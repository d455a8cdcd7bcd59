"""What others can do by locks. Whoever has no right on the database of a queue: nothing, whichever user-level locks he
holds. Its owner: stop the own queues, and no others."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

SLOTS = range(2, 33)
"""Those that the only proxy does not have."""
QUEUES = 16


def digest(*parts: str, chars: int = 40) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:chars]


def computable(db: str, *queues: str) -> list[str]:
    """The names of all user-level locks that this release and earlier ones take, and that anybody can compute."""
    slots = [f"ackstream/{slot}" for slot in SLOTS]
    of_queues = [
        name
        for queue in queues
        for name in (
            f"ackstream-limit/{digest(db, queue)}",
            f"ackstream:{digest(f'`{db}`.`{queue}`', chars=32)}",
            *(f"{slot}/{digest(db, queue)}" for slot in slots),
        )
    ]
    return [*slots, *of_queues, f"ackstream-semaphore/{digest(db, 'a')}", "ackstream/migrate"]


@pytest.fixture
def stranger(server: EmbeddedServer, database: str) -> Iterator[Any]:
    """A session whose account has no right on anything."""
    name = f"s_{database}"
    with connect(server) as root:
        run(root, f"CREATE USER {name}")
        try:
            with connect(server, user=name) as session:
                yield session
        finally:
            run(root, f"DROP USER {name}")


@pytest.mark.either_server
def test_a_stranger_who_holds_every_user_level_lock_stops_no_delivery_and_no_statement(
    proxy: RunningProxy, database: str, stranger: Any
) -> None:
    with proxy.connect(database=database) as client:
        run(client, "CREATE SEMAPHORE a CAPACITY 2")
        run(client, "CREATE QUEUE counted (body INT) MAX_IN_FLIGHT = 2")
        run(client, "CREATE QUEUE paced (body INT) MAX_RATE = 1000")
        run(client, "CREATE QUEUE strict (body INT) GROUP_BY = (body), GROUP_ORDER = STRICT")
        run(client, "CREATE QUEUE needy (needs VARCHAR(20), body INT) SEMAPHORES = (needs)")
        queues = ["counted", "paced", "strict", "needy"]
        held = [rows(stranger, "SELECT GET_LOCK(%s, 0)", [name])[0][0] for name in computable(database, *queues)]
        assert sum(held) > len(queues) * len(SLOTS)
        for queue in queues:
            columns, values = ("needs, body", "'a', 1") if queue == "needy" else ("body", "1")
            run(client, f"INSERT INTO {queue} ({columns}) VALUES ({values})")
            assert rows(client, f"STREAM id FROM {queue} LIMIT 1 WAIT 10") == [(1,)]
            run(client, f"PAUSE QUEUE {queue}")
            run(client, f"RESUME QUEUE {queue}")
            run(client, f"ALTER QUEUE {queue} ACK_WAIT = 77")
            assert "ACK_WAIT = 77" in rows(client, f"SHOW CREATE QUEUE {queue}")[0][1]


@pytest.mark.either_server
def test_a_change_that_another_proxy_has_begun_is_waited_for(
    proxy: RunningProxy, server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    """The other one waits for a transaction that has read the table."""
    with (
        running_proxy(server, tmp_path / "log", check=False) as other,
        proxy.connect(database=database) as client,
        connect(server, database=database, autocommit=False) as reader,
    ):
        run(client, "CREATE QUEUE m (body INT)")
        rows(reader, "SELECT * FROM m")
        changes = [(proxy, "ALTER QUEUE m ACK_WAIT = 77"), (other, "ALTER QUEUE m BATCH_SIZE = 7")]
        threads = []
        for through, statement in changes:
            threads.append(threading.Thread(target=changed, args=(through, database, statement)))
            threads[-1].start()
            eventually(lambda: is_waiting(client, "ALTER TABLE%"))
        eventually(lambda: other.metric("connections") > 0)
        reader.rollback()
        for thread in threads:
            thread.join()
        text = rows(client, "SHOW CREATE QUEUE m")[0][1]
    assert "ACK_WAIT = 77" in text
    assert "BATCH_SIZE = 7" in text


def changed(proxy: RunningProxy, database: str, statement: str) -> None:
    with proxy.connect(database=database) as client:
        run(client, statement)


def is_waiting(client: Any, text: str) -> bool:
    query = "SELECT 1 FROM information_schema.processlist WHERE info LIKE %s AND state LIKE '%%metadata lock%%'"
    return bool(rows(client, query, [text]))


@pytest.mark.parametrize("limit", ["MAX_IN_FLIGHT = 2", "SEMAPHORES = (needs)"])
@pytest.mark.either_server
def test_queues_whose_owner_has_locked_their_limits_delay_no_other_queue(
    private_server: EmbeddedServer, private_proxy: RunningProxy, limit: str
) -> None:
    names = [f"m{number}" for number in range(QUEUES)]
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(connect(private_server))
        run(root, "CREATE DATABASE owned")
        run(root, "CREATE DATABASE free")
        client = stack.enter_context(private_proxy.connect(database="owned"))
        run(client, "CREATE SEMAPHORE a CAPACITY 2")
        for name in names:
            run(client, f"CREATE QUEUE {name} (needs VARCHAR(20) DEFAULT 'a', body INT) {limit}")
        run(client, "CREATE QUEUE free.m (body INT)")
        owner = stack.enter_context(connect(private_server, database="owned", autocommit=False))
        if limit.startswith("MAX_IN_FLIGHT"):
            run(root, f"INSERT INTO owned.ackstream_limits VALUES {', '.join(f'({name!r}, 0)' for name in names)}")
            rows(owner, "SELECT * FROM ackstream_limits FOR UPDATE")
        else:
            rows(owner, "SELECT * FROM ackstream_semaphores FOR UPDATE")
        errors = private_proxy.metric("store_errors_total")
        pool = stack.enter_context(ThreadPoolExecutor(QUEUES))
        for name in names:
            run(client, f"INSERT INTO {name} (body) VALUES (1)")
        waiting = [pool.submit(received, private_proxy, name) for name in names]
        eventually(lambda: private_proxy.metric("store_errors_total") >= errors + QUEUES, timeout_s=60)
        consumer = stack.enter_context(private_proxy.connect(database="free"))
        for number in range(1, 21):
            run(client, "INSERT INTO free.m (body) VALUES (1)")
            assert rows(consumer, "STREAM id FROM m LIMIT 1 WAIT 5") == [(number,)]
        assert private_proxy.metric("delivered_total") == 20
        owner.rollback()
        assert [stream.result() for stream in waiting] == [[(1,)]] * QUEUES


def received(proxy: RunningProxy, name: str) -> list[tuple[int]]:
    with proxy.connect(database="owned") as client:
        found = rows(client, f"STREAM id FROM {name} LIMIT 1 WAIT 60")
        run(client, f"ACK {name} WHERE id = 1")
    return found
