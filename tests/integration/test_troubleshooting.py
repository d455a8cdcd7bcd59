"""docs/troubleshooting.md and docs/concepts.md: each error that they quote is provoked, each state that they show is
reached."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

DOCS = Path(__file__).parents[2] / "docs"
MULTI = pymysql.constants.CLIENT.MULTI_STATEMENTS
OF_THE_CLIENT = "2061"
"""An error of the client library; tests/drivers shows what the page names as its remedy."""


def quoted() -> dict[str, list[str]]:
    """The errors of each row of the first table, by the first error's beginning."""
    text = (DOCS / "troubleshooting.md").read_text()
    table = text.partition("## By error text")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        spans = re.findall(r"`([^`]+)`", cell)
        errors = [span for span in spans if not span.isupper() and span != "1.0e0"]
        found[errors[0]] = errors
    return found


def expected(error: str) -> re.Pattern[str]:
    """Matches an error, as `number text`, that the page quotes: `…` stands for anything."""
    return re.compile(".*".join(map(re.escape, error.split("…"))), re.DOTALL)


class Provoking:
    """One method for each row: returns the errors, as `number text`."""

    def __init__(self, server: Any, proxy: RunningProxy, database: str, folder: Path) -> None:
        self.server, self.proxy, self.database, self.folder = server, proxy, database, folder
        with proxy.connect(database=database) as client:
            create_queue(client, "orders")
            enqueue(client, "orders", "a")

    def error(self, statement: str, *, direct: bool = False, before: str = "", **options: Any) -> str:
        opened = (
            connect(self.server, database=self.database)
            if direct
            else self.proxy.connect(database=self.database, **options)
        )
        with opened as client, client.cursor() as cursor:
            if before:
                cursor.execute(before)
            with pytest.raises(pymysql.MySQLError) as caught:
                cursor.execute(statement)
        return "{} {}".format(*caught.value.args)

    def sent_to_the_server(self) -> list[str]:
        several = self.error("STREAM * FROM orders NOWAIT; SELECT 1", client_flag=MULTI)
        return [self.error("STREAM * FROM orders", direct=True), several]

    def unreadable(self) -> list[str]:
        return [self.error("STREAM * FROM orders LIMITT 1")]

    def nearly(self) -> list[str]:
        return [self.error("PAUSE orders"), self.error("STREEM * FROM orders"), self.error("SHOW QUEUS")]

    def no_queue(self) -> list[str]:
        make = "CREATE TABLE broken (id INT PRIMARY KEY) COMMENT = 'vitess_message,vt_ack_wait=30'"
        return [self.error("ACK broken WHERE id = 1", before=make)]

    def missing_and_denied(self) -> list[str]:
        name = f"u_{self.database}"
        with connect(self.server) as root:
            run(root, f"CREATE USER {name}@localhost")
            run(root, f"GRANT SELECT ON {self.database}.orders TO {name}@localhost")
        try:
            return [self.error("ACK nowhere WHERE id = 1"), self.error("ACK orders WHERE id = 1", user=name)]
        finally:
            with connect(self.server) as root:
                run(root, f"DROP USER {name}@localhost")

    def unknown_database(self) -> list[str]:
        return [self.error("USE nowhere_at_all")]

    def interrupted(self) -> list[str]:
        with (
            self.proxy.connect(database=self.database) as client,
            self.proxy.connect() as other,
            client.cursor(pymysql.cursors.SSCursor) as cursor,
        ):
            cursor.execute("STREAM * FROM orders")
            assert cursor.fetchone() == (1, "a")
            run(other, f"KILL QUERY {client.thread_id()}")
            with pytest.raises(pymysql.MySQLError) as caught:
                cursor.fetchone()
        return ["{} {}".format(*caught.value.args)]

    def stopping(self) -> list[str]:
        with (
            environment(ACKSTREAM_DRAIN_WORK_S="20"),
            running_proxy(self.server, self.folder / "stopping") as proxy,
            proxy.connect(database=self.database) as client,
        ):
            assert rows(client, "STREAM id FROM orders LIMIT 1 WAIT 10") == [(1,)]
            proxy.send(signal.SIGTERM)
            eventually(lambda: "draining" in proxy.output)
            assert rows(client, "STREAM id FROM orders NOWAIT") == []
            with pytest.raises(pymysql.MySQLError) as caught:
                rows(client, "STREAM id FROM orders NOWAIT")
        return ["{} {}".format(*caught.value.args)]

    def too_many(self) -> list[str]:
        with (
            environment(ACKSTREAM_CONNECTIONS_MAX="1"),
            running_proxy(self.server, self.folder / "full") as proxy,
            proxy.connect(),
        ):
            with pytest.raises(pymysql.MySQLError) as caught:
                proxy.connect()
            eventually(lambda: "connections.exhausted: the proxy refuses clients (1040)" in proxy.output)
        return ["{} {}".format(*caught.value.args)]

    def denied(self) -> list[str]:
        with pytest.raises(pymysql.MySQLError) as caught:
            self.proxy.connect(user="nobody_of_this_name")
        return ["{} {}".format(*caught.value.args)]

    def locked(self) -> list[str]:
        with connect(self.server, database=self.database) as other, contextlib.ExitStack() as stack:
            run(other, "BEGIN")
            stack.callback(other.rollback)
            run(other, "UPDATE orders SET payload = 'b'")
            return [self.error("ACK orders WHERE id = 1", before="SET innodb_lock_wait_timeout = 1")]

    def deadlock(self) -> list[str]:
        """Two transactions change two messages, each the other's first one."""
        with self.proxy.connect(database=self.database) as client, self.proxy.connect(database=self.database) as other:
            enqueue(client, "orders", "b")
            for connection, first in ((client, 1), (other, 2)):
                run(connection, "BEGIN")
                run(connection, f"UPDATE orders SET payload = 'c' WHERE id = {first}")
            with ThreadPoolExecutor() as pool:
                tried = [
                    pool.submit(run, connection, f"ACK orders WHERE id = {second}")
                    for connection, second in ((client, 2), (other, 1))
                ]
                # The one that the server chooses fails; its end lets the other one go on.
                errors = [error for done in tried if (error := done.exception(timeout=30)) is not None]
        return ["{} {}".format(*error.args) for error in errors]

    def long_comment(self) -> list[str]:
        return [self.error(f"ALTER QUEUE orders COMMENT = '{'long ' * 400}'")]

    def in_a_transaction(self) -> list[str]:
        return [self.error("PURGE QUEUE orders", before="BEGIN")]


PROVOKE: dict[str, Callable[[Provoking], list[str]]] = {
    "1064 … near 'STREAM …'": Provoking.sent_to_the_server,
    "1064 You have an error in your STREAM statement …": Provoking.unreadable,
    "1064 …; write PAUSE QUEUE orders": Provoking.nearly,
    "1105 … cannot be used as a queue: …": Provoking.no_queue,
    "1146 Table … doesn't exist": Provoking.missing_and_denied,
    "1049 Unknown database": Provoking.unknown_database,
    "1317 Query execution was interrupted": Provoking.interrupted,
    "1053 Server shutdown in progress: ackstream is stopping": Provoking.stopping,
    "1040 Too many connections": Provoking.too_many,
    "1045 Access denied": Provoking.denied,
    "1205 Lock wait timeout exceeded": Provoking.locked,
    "1213 Deadlock found when trying to get lock": Provoking.deadlock,
    "1628 The COMMENT of … would have … characters": Provoking.long_comment,
    "1179 … cannot run inside a transaction": Provoking.in_a_transaction,
}


ELSEWHERE = {
    "1105 ackstream cannot connect to the backing server",  # Below.
    "1020 Record has changed since last read",  # MariaDB's alone: tests/integration/test_old_read_views.py
}


def test_every_error_of_the_page_is_provoked() -> None:
    missing = quoted().keys() - PROVOKE.keys() - ELSEWHERE
    assert [error for error in missing if not error.startswith(OF_THE_CLIENT)] == []


@pytest.mark.parametrize("row", PROVOKE)
def test_an_error_is_what_the_page_quotes(server, proxy, database, tmp_path, row: str) -> None:
    errors = PROVOKE[row](Provoking(server, proxy, database, tmp_path))
    for pattern, error in zip(quoted()[row], errors, strict=True):
        assert expected(pattern).match(error) or expected(f"1064 …{pattern}").match(error), error


def test_a_server_that_is_away_is_named(private_server, tmp_path) -> None:
    with running_proxy(private_server, tmp_path / "log", check=False) as proxy:
        private_server.kill()
        with pytest.raises(pymysql.MySQLError) as caught:
            proxy.connect()
    assert caught.value.args[1].startswith("ackstream cannot connect to the backing server")
    assert caught.value.args[0] == 1105


def test_the_states_of_a_message_are_as_the_concepts_show_them(proxy, database) -> None:
    look = (
        "SELECT time_acked IS NULL, CASE WHEN time_next IS NULL THEN 'NULL' WHEN time_next <= UNIX_TIMESTAMP(NOW(6)) *"
        " 1000000000 THEN 'past' ELSE 'future' END, COALESCE(time_next = lease, 0), epoch FROM orders ORDER BY id"
    )
    page = (DOCS / "concepts.md").read_text()
    with proxy.connect(database=database) as client:
        run(client, "CREATE QUEUE orders (item TEXT)")
        run(client, "INSERT INTO orders (item) VALUES ('tea'), ('bread')")
        run(client, "INSERT INTO orders (item, time_next) VALUES ('milk', 9000000000000000000)")
        assert rows(client, look) == [(1, "past", 0, 0), (1, "past", 0, 0), (1, "future", 0, 0)]
        assert len(rows(client, "STREAM * FROM orders LIMIT 2 WAIT 20")) == 2
        run(client, "ACK orders WHERE id = 1")
        assert rows(client, look) == [(0, "NULL", 0, 1), (1, "future", 1, 1), (1, "future", 0, 0)]
        run(client, "NACK orders WHERE id = 2")
        assert rows(client, look)[1] == (1, "past", 0, 1)
    for line in (
        "| ready | NULL | past | deliveries so far |",
        "| scheduled | NULL | future | deliveries so far |",
        "| in flight | NULL | the end of the wait; equal to the [lease column](tables.md#the-lease-column) | 1 or",
        "| acknowledged | when | NULL | deliveries |",
    ):
        assert line in page
