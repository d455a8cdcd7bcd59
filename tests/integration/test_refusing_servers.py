"""A server whose settings refuse every claim: who is told, and how the queues recover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from proxy.checks import of_server
from proxy.embedded.server import EmbeddedServer
from proxy.session.queries import sql
from proxy.settings import Settings
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import Consumer, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

TOLD = "binlog_format is STATEMENT"


@pytest.fixture
def root(private_server: EmbeddedServer) -> Iterator[Connection[Any]]:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
        run(root, "USE shop")
        yield root


@pytest.fixture
def proxy(private_server: EmbeddedServer, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy that reads the catalog five times a second."""
    config = tmp_path / "ackstream.toml"
    config.write_text("catalog_interval_s = 0.2\n")
    with running_proxy(private_server, tmp_path / "log", ["--config", str(config)]) as proxy:
        yield proxy


def shown(client: Connection[Any]) -> str:
    """The state of the queue, and its problem."""
    (row,) = rows(client, "SHOW FULL QUEUES LIKE 'm'")
    return f"{row[2]} {row[-1]}"


def test_a_binary_log_of_statements_is_the_problem_of_each_queue_while_it_lasts(
    root, proxy, consume: Callable[[Connection[Any], str], Consumer]
) -> None:
    with proxy.connect(database="shop") as client:
        run(client, "CREATE QUEUE m (payload TEXT)")
        enqueue(client, "m", "ab")
        assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("a",)]
        stream = consume(proxy.connect(database="shop"), "STREAM payload FROM m")
        eventually(lambda: stream.received == [("b",)])

        run(root, "SET GLOBAL binlog_format = 'STATEMENT'")
        assert stream.ended.wait(20)
        assert TOLD in str(stream.error)
        with pytest.raises(pymysql.MySQLError, match=TOLD) as refused:
            rows(client, "STREAM payload FROM m LIMIT 1 NOWAIT")
        assert refused.value.args[0] == 1105
        assert shown(client).startswith("broken")
        assert TOLD in shown(client)
        (doctor,) = rows(root, sql("doctor"))
        values = [None if value is None else str(value) for value in doctor]
        levels = {finding.about: finding.level for finding in of_server(values, 0.0, Settings())}
        assert levels["binary log"] == "error"

        run(root, "SET GLOBAL binlog_format = 'ROW'")
        eventually(lambda: shown(client) == "running None")
        with proxy.connect(database="shop") as another:
            enqueue(another, "m", "c")
            assert "c" in [row[0] for row in rows(another, "STREAM payload FROM m LIMIT 3 WAIT 10")]
