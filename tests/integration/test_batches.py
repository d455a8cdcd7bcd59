"""Batches through a proxy: how a queue gets them, when a follow-up is delivered, and what else works with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from engine.model import WAITING_NS
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.queues import rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


def indexes(connection: Connection[Any], table: str) -> set[tuple[str, ...]]:
    """The columns of the indexes of a table."""
    found: dict[str, list[str]] = {}
    for name, column in rows(
        connection,
        "SELECT index_name, column_name FROM information_schema.statistics"
        f" WHERE table_schema = DATABASE() AND table_name = '{table}' ORDER BY index_name, seq_in_index",
    ):
        found.setdefault(name, []).append(column)
    return {tuple(columns) for columns in found.values()}


def received(connection: Connection[Any], queue: str, *, wait: str = "NOWAIT") -> list[str]:
    """The bodies of up to ten messages, which are acknowledged."""
    got = rows(connection, f"STREAM id, body FROM {queue} LIMIT 10 {wait}")
    if got:
        run(connection, f"ACK {queue} WHERE id IN ({', '.join(str(number) for number, _ in got)})")
    return sorted(body for _, body in got)


def refused(connection: Connection[Any], statement: str) -> str:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    return str(error.value.args[1])


BY_BATCH = ("batch", "time_acked")
BY_AFTER = ("time_acked", "after_batch", "id")


# How a queue gets batches.


def test_batches_adds_both_columns_and_their_indexes(connection) -> None:
    run(connection, "CREATE QUEUE m (body TEXT) BATCHES MAX_RATE = 100")
    assert {BY_BATCH, BY_AFTER} <= indexes(connection, "m")
    assert [row[0] for row in rows(connection, "SHOW COLUMNS FROM m LIKE '%batch'")] == ["batch", "after_batch"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE QUEUE m (body TEXT) BATCHES",
        "CREATE QUEUE m (job VARCHAR(40), next VARCHAR(40)) BATCH_BY = (job) AFTER_BATCH = (next)",
        "CREATE QUEUE m (body TEXT) BATCH_BY = (batch_7) BATCH_ON_DEAD = HOLD MAX_ATTEMPTS = 3 DEAD_LETTER = dead",
        "CREATE QUEUE m (body TEXT) AFTER_BATCH = (step) REASON = reason LEASE = lease",
    ],
)
def test_show_create_queue_prints_batches_and_no_index(connection, statement: str) -> None:
    run(connection, statement)
    ((_, written),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "KEY" not in written
    table = rows(connection, "SHOW CREATE TABLE m")
    run(connection, "DROP QUEUE m")
    run(connection, written)
    assert rows(connection, "SHOW CREATE TABLE m") == table
    assert rows(connection, "SHOW CREATE QUEUE m") == [("m", written)]


def test_alter_queue_gives_a_queue_batches_and_takes_them(connection) -> None:
    run(connection, "CREATE QUEUE m (body TEXT) MAX_ATTEMPTS = 3 DEAD_LETTER = dead")
    run(connection, "ALTER QUEUE m BATCHES BATCH_ON_DEAD = HOLD")
    assert {BY_BATCH, BY_AFTER} <= indexes(connection, "m")
    assert BY_BATCH in indexes(connection, "dead")
    run(connection, "ALTER QUEUE m BATCHES")
    assert len(indexes(connection, "m")) == 4
    ((_, written),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "BATCH_ON_DEAD = HOLD" in written.upper()
    run(connection, "INSERT INTO m (body, batch, after_batch) VALUES ('part', 1, NULL), ('last', NULL, 1)")
    assert received(connection, "m") == ["part"]
    eventually(lambda: received(connection, "m") == ["last"])
    run(connection, "ALTER QUEUE m BATCH_BY = NONE AFTER_BATCH = NONE BATCH_ON_DEAD = NONE")
    run(connection, "INSERT INTO m (body, batch, after_batch) VALUES ('part', 2, NULL), ('last', NULL, 2)")
    assert received(connection, "m") == ["last", "part"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("BATCH_BY = (body)", "batch_by names the column 'body', which is TEXT: a batch needs an integer"),
        ("AFTER_BATCH = (priority)", "after_batch names the column 'priority', which has another purpose"),
        ("BATCH_BY = (a) AFTER_BATCH = (A)", "batch_by and after_batch name the same column"),
        ("BATCH_ON_DEAD = HOLD", "BATCH_ON_DEAD needs BATCH_BY"),
        ("BATCHES BATCH_ON_DEAD = WAIT", "BATCH_ON_DEAD = 'WAIT' is not fire or hold"),
        ("BATCHES BATCH_BY = (a)", "BATCH_BY is given twice"),
    ],
)
def test_columns_that_cannot_have_batches_are_refused(connection, options: str, problem: str) -> None:
    assert problem in refused(connection, f"CREATE QUEUE m (body TEXT, a BIGINT) {options}")
    assert rows(connection, "SHOW TABLES") == []
    run(connection, "CREATE QUEUE m (body TEXT, a BIGINT)")
    assert problem in refused(connection, f"ALTER QUEUE m {options}")


def test_a_table_without_the_index_is_no_queue_and_the_error_names_it(connection, database) -> None:
    run(connection, "CREATE QUEUE m (body TEXT, batch INT, after_batch INT)")
    ((comment,),) = rows(
        connection, "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE()"
    )
    run(connection, f"ALTER TABLE m COMMENT '{comment},batch_by=batch,after_batch=after_batch'")
    problem = refused(connection, "STREAM * FROM m NOWAIT")
    for index in ("(`batch`, time_acked)", "(time_acked, `after_batch`, id)"):
        assert f"batches need an index: ALTER TABLE {database}.m ADD INDEX {index}" in problem
        run(connection, f"ALTER TABLE m ADD INDEX {index}")
    assert rows(connection, "STREAM * FROM m NOWAIT") == []


def test_show_queues_reports_parts_that_cannot_be_read(connection, database) -> None:
    run(connection, "CREATE QUEUE steps (body TEXT) AFTER_BATCH = (after_batch)")
    run(connection, "CREATE QUEUE parts (body TEXT) BATCH_BY = (batch)")
    assert rows(connection, "SHOW FULL QUEUES LIKE 'steps'")[0][-1] is None
    ((name,),) = rows(
        connection,
        "SELECT index_name FROM information_schema.statistics"
        " WHERE table_schema = DATABASE() AND table_name = 'parts' AND column_name = 'batch'",
    )
    run(connection, f"ALTER TABLE parts DROP INDEX {name}")
    problem = rows(connection, "SHOW FULL QUEUES LIKE 'steps'")[0][-1]
    assert f"follow-ups wait, because the parts in {database}.parts cannot be read: batches need an index" in problem
    run(connection, "ALTER TABLE parts ADD INDEX (batch, time_acked)")
    assert rows(connection, "SHOW FULL QUEUES LIKE 'steps'")[0][-1] is None


def test_for_update_is_refused(connection) -> None:
    run(connection, "CREATE QUEUE m (body TEXT) BATCHES")
    connection.begin()
    assert "AFTER_BATCH" in refused(connection, "STREAM * FROM m LIMIT 1 NOWAIT FOR UPDATE")
    connection.rollback()


# When a follow-up is delivered.


def test_a_follow_up_comes_once_when_the_last_of_a_hundred_parts_is_acknowledged(
    connection, proxy, database, consume
) -> None:
    run(connection, "CREATE QUEUE parts (body TEXT) BATCH_BY = (batch)")
    run(connection, "CREATE QUEUE steps (body TEXT) AFTER_BATCH = (after_batch)")
    steps = consume(proxy.connect(database=database), "STREAM body FROM steps")
    connection.begin()
    run(connection, "INSERT INTO steps (body, after_batch) VALUES ('report', 42), ('other', 43)")
    run(connection, "INSERT INTO parts (batch) VALUES " + ", ".join(["(42)"] * 100 + ["(43)"]))
    run(connection, "INSERT INTO steps (body) VALUES ('plain')")
    connection.commit()
    eventually(lambda: steps.received == [("plain",)])
    run(connection, "ACK parts WHERE batch = 42 AND id < 100")
    eventually(
        lambda: rows(connection, f"SELECT COUNT(*) FROM steps WHERE time_next = {WAITING_NS}")[0][0] == 2,
        what="both follow-ups wait",
    )
    assert steps.received == [("plain",)]
    run(connection, "ACK parts WHERE id = 100")
    eventually(lambda: steps.received == [("plain",), ("report",)])
    run(connection, "DELETE FROM parts WHERE batch = 43")
    eventually(lambda: steps.received == [("plain",), ("report",), ("other",)])


@pytest.mark.parametrize("last", ["ACK m WHERE id = 1", "UPDATE m SET time_acked = 1, time_next = NULL WHERE id = 1"])
def test_the_ack_of_another_session_fires_in_its_transaction(
    connection, server, database, proxy, consume, last
) -> None:
    """Through the proxy, or by plain SQL on the server, which the binary log shows."""
    run(connection, "CREATE QUEUE m (body TEXT) BATCHES")
    connection.begin()
    run(connection, "INSERT INTO m (body, batch, time_next) VALUES ('part', 1, 8000000000000000000)")
    run(connection, "INSERT INTO m (body, after_batch) VALUES ('last', 1)")
    connection.commit()
    consumer = consume(proxy.connect(database=database), "STREAM body FROM m")
    eventually(lambda: bool(rows(connection, f"SELECT id FROM m WHERE time_next = {WAITING_NS}")))
    other = proxy.connect(database=database) if last.startswith("ACK") else connect(server, database=database)
    with other:
        other.begin()
        run(other, last)
        assert consumer.received == []
        other.commit()
        eventually(lambda: consumer.received == [("last",)])


def test_a_part_may_add_parts_to_its_batch(connection) -> None:
    run(connection, "CREATE QUEUE m (body TEXT) BATCHES")
    run(connection, "INSERT INTO m (body, batch, after_batch) VALUES ('split', 1, NULL), ('join', NULL, 1)")
    got = rows(connection, "STREAM id, body FROM m LIMIT 1 NOWAIT")
    assert [body for _, body in got] == ["split"]
    connection.begin()
    run(connection, "INSERT INTO m (body, batch) VALUES ('half', 1), ('half', 1)")
    run(connection, f"ACK m WHERE id = {got[0][0]}")
    connection.commit()
    assert received(connection, "m") == ["half", "half"]
    eventually(lambda: received(connection, "m") == ["join"])


def test_dead_parts_fire_or_hold(connection) -> None:
    for queue, on_dead in (("a", "FIRE"), ("b", "HOLD")):
        run(
            connection,
            f"CREATE QUEUE {queue} (body TEXT) BATCHES BATCH_ON_DEAD = {on_dead}"
            f" MAX_ATTEMPTS = 1 DEAD_LETTER = {queue}_dead",
        )
        run(connection, f"INSERT INTO {queue} (body, batch) VALUES ('part', '{1 if queue == 'a' else 2}')")
        run(connection, f"INSERT INTO {queue} (body, after_batch) VALUES ('last', '{1 if queue == 'a' else 2}')")
        ((number, _),) = rows(connection, f"STREAM id, body FROM {queue} LIMIT 1 NOWAIT")
        run(connection, f"NACK {queue} WHERE id = {number}")
        eventually(lambda: rows(connection, f"SELECT COUNT(*) FROM {queue}_dead")[0][0] == 1)  # noqa: B023
    eventually(lambda: received(connection, "a") == ["last"])
    assert received(connection, "b") == []
    run(connection, "REDRIVE QUEUE b_dead TO b")
    assert received(connection, "b") == ["part"]
    eventually(lambda: received(connection, "b") == ["last"])


def test_a_pipeline_of_batches(connection) -> None:
    """Group, then analyse, then report: each step is a follow-up of the batch before, and a part of the next."""
    run(connection, "CREATE QUEUE steps (body TEXT) BATCHES")
    connection.begin()
    run(
        connection,
        "INSERT INTO steps (body, batch, after_batch) VALUES"
        " ('group a', 1, NULL), ('group b', 1, NULL), ('analyse x', 2, 1), ('analyse y', 2, 1), ('report', NULL, 2)",
    )
    connection.commit()
    assert received(connection, "steps") == ["group a", "group b"]
    analyses: list[str] = []

    def both_analyses() -> bool:
        analyses.extend(received(connection, "steps"))
        return sorted(analyses) == ["analyse x", "analyse y"]

    eventually(both_analyses)
    eventually(lambda: received(connection, "steps") == ["report"])
    assert received(connection, "steps") == []


# Several proxies.


def test_parts_through_one_proxy_fire_a_follow_up_at_another(
    connection, server: EmbeddedServer, database, proxy, consume, tmp_path: Path
) -> None:
    run(connection, "CREATE QUEUE parts (body TEXT) BATCH_BY = (batch)")
    run(connection, "CREATE QUEUE steps (body TEXT) AFTER_BATCH = (after_batch)")
    steps = consume(proxy.connect(database=database), "STREAM body FROM steps")
    with running_proxy(server, tmp_path / "log") as other, other.connect(database=database) as elsewhere:
        connection.begin()
        run(connection, "INSERT INTO parts (batch) VALUES (1), (1)")
        run(connection, "INSERT INTO steps (body, after_batch) VALUES ('last', 1)")
        connection.commit()
        eventually(lambda: bool(rows(connection, f"SELECT id FROM steps WHERE time_next = {WAITING_NS}")))
        run(elsewhere, "ACK parts WHERE id = 1")
        run(connection, "ACK parts WHERE id = 2")
        eventually(lambda: steps.received == [("last",)])


# SHOW BATCHES.


def shown(connection: Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    return [(str(batch), *map(int, counts)) for batch, *counts in rows(connection, statement)]


def test_show_batches_counts_what_is_left(connection) -> None:
    run(connection, "CREATE QUEUE parts (body TEXT) BATCH_BY = (batch) MAX_ATTEMPTS = 1 DEAD_LETTER = dead")
    run(connection, "CREATE QUEUE steps (body TEXT) BATCHES")
    run(connection, "INSERT INTO parts (batch) VALUES (1), (2), (2), (3), (NULL)")
    run(connection, "INSERT INTO steps (batch, after_batch) VALUES (2, NULL), (3, 2), (NULL, 2), (NULL, 4)")
    assert shown(connection, "SHOW BATCHES FROM parts") == [("1", 1, 0, 0, 0), ("2", 3, 0, 0, 2), ("3", 2, 0, 0, 0)]
    run(connection, "ACK parts WHERE id IN (1, 2)")
    run(connection, "ACK steps WHERE id = 4")
    assert shown(connection, "SHOW BATCHES FROM parts LIMIT 1") == [("2", 3, 1, 0, 2)]
    ((number, _),) = rows(connection, "STREAM id, body FROM parts WHERE batch = 2 LIMIT 1 NOWAIT")
    run(connection, f"NACK parts WHERE id = {number}")
    eventually(lambda: shown(connection, "SHOW BATCHES FROM steps") == [("2", 2, 1, 1, 2), ("3", 2, 0, 0, 0)])
    with connection.cursor() as cursor:
        cursor.execute("SHOW BATCHES FROM steps")
        assert [column[0] for column in cursor.description] == ["Batch", "Parts", "Acknowledged", "Dead", "Waiting"]


@pytest.mark.parametrize(
    ("column", "batches"), [("VARCHAR(20)", ["'naïve'", "'o''clock'"]), ("VARBINARY(20)", ["x'00ff'", "x'61'"])]
)
def test_show_batches_of_any_type(connection, column: str, batches: list[str]) -> None:
    run(connection, f"CREATE QUEUE m (job {column}) BATCH_BY = (job)")
    run(connection, f"INSERT INTO m (job) VALUES ({batches[0]}), ({batches[0]}), ({batches[1]})")
    names = [batch.replace("x'", "0x").replace("''", '"').strip("'").replace('"', "'") for batch in batches]
    assert shown(connection, "SHOW BATCHES FROM m") == [(names[0], 2, 0, 0, 0), (names[1], 1, 0, 0, 0)]


def test_show_batches_of_a_queue_without(connection) -> None:
    run(connection, "CREATE QUEUE m (body TEXT)")
    assert "has no batches: ALTER QUEUE" in refused(connection, "SHOW BATCHES FROM m")
    assert "LIMIT" not in refused(connection, "SHOW BATCHES FROM nothing")


def test_show_batches_counts_what_the_client_may_read(connection, proxy, database, server) -> None:
    run(connection, "CREATE QUEUE a (body TEXT) BATCHES")
    run(connection, "CREATE QUEUE b (body TEXT) BATCHES")
    run(connection, "INSERT INTO a (batch) VALUES (1)")
    run(connection, "INSERT INTO b (batch) VALUES (1)")
    user = f"batches_{database}"[:32]
    run(connection, f"CREATE USER {user} IDENTIFIED BY 'secret'")
    try:
        run(connection, f"GRANT SELECT, UPDATE ON {database}.a TO {user}")
        with proxy.connect(database=database, user=user, password="secret") as other:
            assert shown(other, "SHOW BATCHES FROM a") == [("1", 1, 0, 0, 0)]
            refused(other, "SHOW BATCHES FROM b")
        assert shown(connection, "SHOW BATCHES FROM a") == [("1", 2, 0, 0, 0)]
    finally:
        run(connection, f"DROP USER {user}")
