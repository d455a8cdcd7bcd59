"""Fewer connections than a job wants: of the server's (`max_connections`), or of the proxy's (`connections_max`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, enqueue
from pipeline.enqueue.direct import Direct
from pipeline.enqueue.load import Settings
from pipeline.errors import JobError
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

MESSAGES = 2_000
FOR_THE_JOB = 2
"""One of the driver's, and one that writes, where Spark has two cores and would have two write."""


@pytest.fixture
def data(spark: SparkSession) -> DataFrame:
    return spark.range(MESSAGES).select(f.format_string("message %d", "id").alias("payload"))


@pytest.fixture
def root(private_server: EmbeddedServer) -> Iterator[Any]:
    """A connection to the server, in a database with a queue; its user `app` has no connection in reserve."""
    with connect(private_server) as root:
        for statement in (
            "CREATE DATABASE d",
            "USE d",
            "CREATE USER app@localhost",
            "GRANT ALL ON d.* TO app@localhost",
        ):
            run(root, statement)
        create_queue(root, "m", "payload VARCHAR(100) NOT NULL")
        yield root


@contextlib.contextmanager
def taken(endpoint: Endpoint) -> Iterator[list[Any]]:
    """All connections that there are, until they are closed."""
    connections: list[Any] = []
    try:
        with contextlib.suppress(pymysql.OperationalError):  # too many
            while len(connections) < 500:
                connections.append(endpoint.connect())
        assert len(connections) < 500
        yield connections
    finally:
        close(connections)


def close(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


def carried_out(data: DataFrame, endpoint: Endpoint, mode: Mode = "streaming", **options: Any) -> bool:
    settings = Settings(**{"slice_rows": 50, "look_s": 0.05, "rounds": 1, **options})
    return enqueue(data, endpoint, "m", batch="b", mode=mode, settings=settings).added


def each_is_there_once(root: Any) -> bool:
    withheld = "SUM(time_next > UNIX_TIMESTAMP(NOW()) * 1e9 + 1e14)"
    return rows(root, f"SELECT COUNT(*), COUNT(DISTINCT payload), {withheld} FROM m") == [(MESSAGES, MESSAGES, 0)]


@pytest.mark.parametrize("mode", ["streaming", "atomic"])
def test_a_job_that_cannot_have_enough_says_so_and_does_with_fewer_where_it_is_told_to(
    mode: Mode,
    private_server: EmbeddedServer,
    root: Any,
    data: DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with environment(ACKSTREAM_CONNECTIONS_MAX="12"), running_proxy(private_server, tmp_path / "log") as proxy:
        endpoint = Endpoint(proxy.host, proxy.port, "app", database="d")
        write = Direct._write

        def write_without_connections(self: Direct, *arguments: Any) -> None:
            with taken(endpoint), taken(endpoint):  # while tasks run; the driver's last one may close late
                write(self, *arguments)

        with taken(endpoint) as connections:
            close([connections.pop() for _ in range(FOR_THE_JOB)])
            with monkeypatch.context() as patched:
                patched.setattr(Direct, "_write", write_without_connections)
                with pytest.raises(JobError, match=r"of 2,000 messages could not be written: .*Too many connections"):
                    carried_out(data, endpoint, mode, look_s=60.0)
            assert carried_out(data, endpoint, mode, max_connections=FOR_THE_JOB, rounds=4)
        assert each_is_there_once(root)


def test_a_job_waits_for_its_first_connection(
    private_server: EmbeddedServer,
    private_proxy: RunningProxy,
    root: Any,
    data: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = Endpoint(private_proxy.host, private_proxy.port, "app", database="d")
    run(root, "SET GLOBAL max_connections = 40")
    refused: list[Any] = []
    with taken(endpoint) as connections:
        connect_well = Endpoint.connect

        def connect_and_tell(self: Endpoint, *arguments: Any, **options: Any) -> Any:
            try:
                return connect_well(self, *arguments, **options)
            except pymysql.OperationalError as error:
                refused.append(error.args[1])
                close(connections)
                raise

        monkeypatch.setattr(Endpoint, "connect", connect_and_tell)
        assert carried_out(data, endpoint, rounds=4)
    assert refused[0] == "Too many connections"
    assert each_is_there_once(root)
