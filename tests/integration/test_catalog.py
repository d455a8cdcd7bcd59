"""What the catalog costs, and what it notices: through a proxy, on both servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mysql.connector
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import Consumer, create_queue, directives, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually


@pytest.fixture
def unlogged(server: EmbeddedServer, database: str) -> Iterator[Connection[Any]]:
    """A connection to the server itself, of which the binary log tells nothing."""
    with connect(server, database=database) as connection:
        run(connection, "SET sql_log_bin = 0")
        yield connection


def test_streams_on_a_known_queue_ask_the_catalog_nothing(private_server: EmbeddedServer, tmp_path: Path) -> None:
    config = tmp_path / "ackstream.toml"
    config.write_text("catalog_interval_s = 3600\nbinlog = 'off'\n")
    with connect(private_server) as admin:
        run(admin, "CREATE USER engine IDENTIFIED BY 'secret'")
        run(admin, "GRANT ALL PRIVILEGES ON *.* TO engine")
        run(admin, "CREATE DATABASE shop")
        create_queue(admin, "shop.m")
        with (
            running_proxy(private_server, tmp_path / "log", ["--config", str(config)], "engine:secret") as proxy,
            proxy.connect(database="shop") as client,
            proxy.connect(database="shop", charset="latin1") as other,
        ):
            for session in (client, other):  # A definition looks different in each kind of session.
                assert rows(session, "STREAM * FROM m NOWAIT") == []
            run(admin, "SET GLOBAL log_output = 'TABLE'")
            run(admin, "SET GLOBAL general_log = ON")
            for number in range(10):
                for session in (client, other):
                    enqueue(session, "m", [str(number)])
                    (row,) = rows(session, "STREAM id, payload FROM m LIMIT 1 WAIT 10")
                    assert row[1] == str(number)
                    assert run(session, f"ACK FROM m WHERE id = {row[0]}") == 1
            run(admin, "SET GLOBAL general_log = OFF")
        sent = [
            text
            for (text,) in rows(
                admin,
                "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log"
                " WHERE user_host LIKE 'engine%' AND command_type = 'Query'",
            )
        ]
    assert sum("SELECT /* ackstream claim */" in text for text in sent) == 20
    assert [text for text in sent if "ackstream catalog" in text] == []


CHANGES = {
    "another column": ("ADD COLUMN more INT NOT NULL DEFAULT 7", [(1, "a", 7)]),
    "a column less": ("DROP COLUMN payload", [(1,)]),
    "a column renamed": ("RENAME COLUMN payload TO text", [(1, "a")]),
    "what * means": (f"COMMENT '{directives(vt_message_cols='payload|id')}'", [("a", 1)]),
    "a pause": (f"COMMENT '{directives(paused='1')}'", []),
    "a lesser index": ("DROP INDEX next_idx", [(1, "a")]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_nothing_tells_of_is_seen_by_the_next_stream(
    proxy: RunningProxy, database: str, unlogged: Connection[Any], change: str
) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        assert rows(client, "STREAM * FROM m NOWAIT") == []
        enqueue(client, "m", ["a"])
        run(unlogged, f"ALTER TABLE m {CHANGES[change][0]}")
        assert rows(client, "STREAM * FROM m LIMIT 1 WAIT 0.2") == CHANGES[change][1]


INDEXES = {
    "renamed": "RENAME INDEX next_idx TO other",
    "another one": "DROP INDEX next_idx, ADD INDEX other (time_acked, priority, time_next)",
    "none": "DROP INDEX next_idx",
}


@pytest.mark.parametrize("change", INDEXES)
def test_a_stream_goes_on_when_the_index_that_it_reads_has_another_name_or_is_gone(
    proxy: RunningProxy, database: str, unlogged: Connection[Any], consume, change: str
) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        consumer: Consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
        enqueue(client, "m", ["a"])
        eventually(lambda: consumer.received)
        run(unlogged, f"ALTER TABLE m {INDEXES[change]}")
        run(client, "INSERT INTO m (payload) SELECT 'b'")  # Of which a scan alone shows the id.
        eventually(lambda: len(consumer.received) == 2 or consumer.error)
        assert consumer.error is None
        assert rows(client, "STREAM payload FROM m NOWAIT") == []
        assert run(client, "ACK FROM m WHERE id IN (1, 2)") == 2


def test_a_table_that_was_put_in_the_place_of_a_queue_is_seen_as_it_is(
    proxy: RunningProxy, database: str, unlogged: Connection[Any]
) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        create_queue(unlogged, "n")
        run(unlogged, "ALTER TABLE n ADD COLUMN first INT NOT NULL DEFAULT 1 FIRST, MODIFY id VARCHAR(20)")
        run(unlogged, "INSERT INTO n (id, payload) VALUES ('x', 'new')")
        assert rows(client, "STREAM * FROM m NOWAIT") == []
        run(unlogged, "RENAME TABLE m TO old, n TO m")
        assert rows(client, "STREAM * FROM m LIMIT 1 WAIT 5") == [(1, "x", "new")]
        run(unlogged, "ALTER TABLE m COMMENT ''")
        with pytest.raises(Exception, match="not a message table"):
            rows(client, "STREAM * FROM m NOWAIT")


def test_a_prepared_stream_goes_on_with_the_columns_that_it_was_prepared_with(
    proxy: RunningProxy, database: str, unlogged: Connection[Any]
) -> None:
    create_queue(unlogged, "m")
    enqueue(unlogged, "m", ["a", "b", "c", "d"])
    driver: Any = mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", database=database, use_pure=True, ssl_disabled=True
    )
    try:
        driver.autocommit = True
        cursor = driver.cursor(prepared=True)

        def stream() -> list[Any]:
            cursor.execute("STREAM * FROM m LIMIT 1 WAIT 5")
            return list(cursor.fetchall())

        assert stream() == [(1, "a")]
        run(unlogged, "ALTER TABLE m ADD COLUMN first INT NOT NULL DEFAULT 7 FIRST")
        assert stream() == [(2, "b")]
        run(unlogged, "ALTER TABLE m MODIFY payload VARBINARY(10) AFTER first")
        assert stream() == [(3, bytearray(b"c"))]
        run(unlogged, "ALTER TABLE m DROP COLUMN payload")
        with pytest.raises(mysql.connector.Error, match="payload"):
            stream()
    finally:
        driver.close()
