"""The backing server is killed and comes back under each kind of job: it goes on and finishes, or says so and a rerun
does; nothing is lost and nothing is there twice."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark.errors
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, enqueue
from pipeline.enqueue.load import Settings
from pipeline.errors import JobError
from pipeline.report import history, report
from pipeline.report.history import Reading
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

MESSAGES = 6_000


@pytest.fixture
def endpoint(private_proxy: RunningProxy) -> Endpoint:
    """In an empty database of a server that may be killed."""
    with private_proxy.connect() as connection:
        run(connection, "CREATE DATABASE d")
    return Endpoint(private_proxy.host, private_proxy.port, "root", database="d")


def fail_over(server: EmbeddedServer) -> None:
    """As a failover looks to a client: all connections are cut, and for a while there is nobody."""
    server.kill()
    server.start()


@contextlib.contextmanager
def failing_over(server: EmbeddedServer, reached: Callable[[Any], bool]) -> Iterator[None]:
    """Once that is seen in the database, while the job works."""

    def wait_and_kill() -> None:
        with connect(server, database="d") as connection:
            eventually(lambda: reached(connection), timeout_s=90, what="a job at work")
        fail_over(server)
        done.set()

    done = threading.Event()
    killer = threading.Thread(target=wait_and_kill, daemon=True)
    killer.start()
    yield
    killer.join(120)
    assert done.is_set()


def counted(connection: Any, tables: str) -> int:
    """Rows of tables of that name, those of open transactions included."""
    run(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    try:
        return sum(
            int(rows(connection, f"SELECT COUNT(*) FROM `{name}`")[0][0]) for (name,) in rows(connection, tables)
        )
    except Exception:  # noqa: BLE001 - dropped meanwhile
        return 0


QUEUE, STAGING = "SHOW TABLES LIKE 'm'", "SHOW TABLES LIKE 'ackstream\\_staging%'"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("mode", "where"),
    [
        pytest.param("streaming", QUEUE, id="streaming"),
        pytest.param("atomic", STAGING, id="atomic-staging"),
        pytest.param("atomic", QUEUE, id="atomic-publishing"),
    ],
)
def test_while_a_batch_is_enqueued(
    mode: Mode, where: str, private_server: EmbeddedServer, endpoint: Endpoint, spark: SparkSession
) -> None:
    with endpoint.connect() as connection:
        run(connection, "CREATE QUEUE m (payload VARCHAR(100) NOT NULL)")
    data = spark.range(MESSAGES).select(f.format_string("message %d", "id").alias("payload"))

    def job() -> bool:
        settings = Settings(slice_rows=100, look_s=0.05)
        return enqueue(data, endpoint, "m", batch="b", mode=mode, settings=settings).added

    with failing_over(private_server, lambda connection: counted(connection, where) > MESSAGES // 10):
        try:
            assert job()
        except JobError:
            assert job()
    with endpoint.connect() as connection:
        assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT payload) FROM m") == [(MESSAGES, MESSAGES)]
        assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_next > UNIX_TIMESTAMP(NOW()) * 1e9 + 1e14") == [(0,)]
        assert rows(connection, STAGING) == []
        assert not job()


def test_while_a_report_reads(
    private_server: EmbeddedServer, endpoint: Endpoint, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with endpoint.connect() as connection:
        create_queue(connection, "m", "tenant INT NOT NULL")
        now_ns = time.time_ns()  # What is older than vt_purge_after the proxy purges, and looks again after a failover.
        two = f"(1, 1, {now_ns}), (2, 1, {now_ns})"
        run(connection, f"INSERT INTO m (tenant, epoch, time_acked) VALUES {', '.join([two] * 1000)}")
    fill = history._fill
    waiting = (
        "SELECT COUNT(*) FROM information_schema.processlist"
        " WHERE info LIKE '%ORDER BY id LIMIT%' AND id != CONNECTION_ID()"
    )

    def fill_while_it_fails_over(*arguments: Any) -> None:
        # What reads waits for this lock, so that it is in the middle of it when the server dies.
        with contextlib.suppress(Exception), connect(private_server, database="d") as lock:
            run(lock, "LOCK TABLES m WRITE")
            with failing_over(private_server, lambda connection: rows(connection, waiting)[0][0] > 0):
                fill(*arguments)
            filled.append(True)

    filled: list[bool] = []
    monkeypatch.setattr(history, "_fill", fill_while_it_fails_over)
    made = report(spark, endpoint, ["m"], by=["tenant"], reading=Reading(4, 100))
    assert filled
    volumes = {(row.by, row.value): row.acknowledged for row in made.frames["volumes"].collect()}
    assert volumes == {(None, None): 2_000, ("tenant", "1"): 1_000, ("tenant", "2"): 1_000}
    made.close()


def test_while_a_query_moves_messages_from_queue_to_queue(
    private_server: EmbeddedServer, endpoint: Endpoint, spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    with endpoint.connect() as connection:
        for name in ("m", "done"):
            run(connection, f"CREATE QUEUE {name} (payload TEXT)")
        values = ", ".join(f"('p{number}')" for number in range(MESSAGES))
        run(connection, f"INSERT INTO m (payload) VALUES {values}")
    place = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/d"}

    def job() -> None:
        stream = spark.readStream.format("ackstream").options(**place, table="m", maxMessagesPerBatch=500).load()
        out = stream.select("payload").writeStream.format("ackstream").options(**place, table="done")
        query = out.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(100)

    def left(connection: Any) -> int:
        return int(rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL")[0][0])

    with failing_over(private_server, lambda connection: left(connection) < MESSAGES // 2):
        try:
            job()
        except pyspark.errors.StreamingQueryException:
            job()

    def all_moved() -> bool:
        with endpoint.connect() as connection:
            if left(connection) == 0:
                return True
        job()
        return False

    # A claim whose answer was lost with the server keeps its messages until their wait is over, and a query takes
    # only what is due when it begins.
    eventually(all_moved, timeout_s=100, what="what a lost claim had taken")
    with endpoint.connect() as connection:
        assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT payload) FROM done") == [(MESSAGES, MESSAGES)]
