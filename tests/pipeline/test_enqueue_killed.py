"""Killed drivers, executors and proxies: run again, the queue has each row exactly once.

The command runs as its users run it, a process with a JVM of its own, and is ended by SIGKILL at a moment that is seen
in the database.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.common.ledger import Batch, Ledger
from pipeline.common.slices import Target
from pipeline.common.staging import PLACE, SLICE
from pipeline.common.table import describe
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, Outcome, enqueue
from pipeline.enqueue.abandon import abandon
from pipeline.enqueue.direct import Direct
from pipeline.enqueue.load import Settings
from pipeline.enqueue.staged import Staged
from pipeline.errors import JobError, PipelineError
from tests.pipeline.conftest import QUICK_JVM
from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

MESSAGES = 20_000
SLICE_ROWS = 700
SETTINGS = Settings(slice_rows=SLICE_ROWS, look_s=0.05)

CREATE = "CREATE QUEUE m (payload VARCHAR(100) NOT NULL)"


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files with as many messages, all of them different."""
    path = str(tmp_path_factory.mktemp("source") / "messages.parquet")
    frame = spark.range(MESSAGES).select(f.format_string("message %d", "id").alias("payload"))
    frame.repartition(30).write.parquet(path)
    return path


@pytest.fixture(params=["streaming", "atomic"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


BY_FILES, BY_HASH = "SELECT * FROM source", "SELECT /*+ REPARTITION(3) */ * FROM source"
"""Queries by which the rows are cut in these ways."""


@pytest.fixture
def query() -> str:
    return BY_FILES


both_ways = pytest.mark.parametrize("query", [BY_FILES, BY_HASH], ids=["by-files", "by-hash"])


@pytest.fixture
def data(spark: SparkSession, source: str, query: str) -> DataFrame:
    return spark.sql(query.replace("source", f"parquet.`{source}`"))


def assert_cut(connection: Any, query: str) -> None:
    """As its source allows."""
    ((by_files, slices),) = rows(connection, "SELECT file_octets IS NOT NULL, slices FROM ackstream_batches")
    assert by_files == (query == BY_FILES)
    assert slices > 5


def again(data: DataFrame, endpoint: Endpoint, mode: Mode) -> Outcome:
    """The same batch once more, by another driver."""
    return enqueue(data, endpoint, "m", batch="b", mode=mode, settings=SETTINGS)


def assert_each_is_there_once(connection: Any) -> None:
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT payload) FROM m") == [(MESSAGES, MESSAGES)]
    assert rows(
        connection, "SELECT COUNT(*) FROM m WHERE time_next > UNIX_TIMESTAMP(NOW() + INTERVAL 1 DAY) * 1e9"
    ) == [(0,)]


@contextlib.contextmanager
def running(
    endpoint: Endpoint, source: str, mode: Mode, options: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process group of its own, gone afterwards."""
    command = [
        *(sys.executable, "-m", "pipeline.enqueue.command", "--table", "m", "--batch", "b", "--source", source),
        *("--url", f"mysql://{endpoint.user}@{endpoint.host}:{endpoint.port}/{endpoint.database}", "--mode", mode),
        *("--slice-rows", str(SLICE_ROWS), "--master", "local[2]", "--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"),
        *("--conf", f"spark.driver.extraJavaOptions={QUICK_JVM}", *options),
    ]
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until(process: subprocess.Popen[str], reached: Callable[[], int], count: int) -> None:
    """Wait until so many rows are there, and the process at work."""
    eventually(lambda: reached() > count or process.poll() is not None, timeout_s=400, what=f"{count} rows")
    assert process.poll() is None, process.communicate()


def enqueued(connection: Any) -> int:
    """How many rows are in the queue, those of open transactions included."""
    return int(rows(connection, "SELECT COUNT(*) FROM m")[0][0])


def staged(connection: Any) -> int:
    """How many rows are in the staging table."""
    (database,) = rows(connection, "SELECT DATABASE()")[0]
    tables = rows(
        connection,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s",
        [database, "ackstream\\_staging%"],
    )
    with contextlib.suppress(pymysql.ProgrammingError):  # it can be dropped meanwhile
        return sum(int(rows(connection, f"SELECT COUNT(*) FROM {name}")[0][0]) for (name,) in tables)
    return 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("mode", "reached", "query"),
    [
        pytest.param("streaming", enqueued, BY_FILES, id="streaming-half-enqueued"),
        pytest.param("streaming", enqueued, BY_HASH, id="streaming-by-hash-half-enqueued"),
        pytest.param("atomic", staged, BY_FILES, id="atomic-half-staged"),
        pytest.param("atomic", enqueued, BY_HASH, id="atomic-by-hash-half-published"),
    ],
)
def test_a_killed_driver(
    endpoint: Endpoint,
    connection: Any,
    data: DataFrame,
    source: str,
    query: str,
    mode: Mode,
    reached: Callable[[Any], int],
) -> None:
    """Run again by a Spark of other settings, which would cut files otherwise."""
    run(connection, CREATE)
    parallel = ("--master", "local[3]", "--conf", "spark.default.parallelism=7")
    otherwise = ("--conf", "spark.sql.files.maxPartitionBytes=10000", "--max-connections", "3")
    run(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    with running(endpoint, source, mode, ("--query", query, *parallel, *otherwise)) as process:
        until(process, lambda: reached(connection), MESSAGES // 3)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    if mode == "atomic":
        assert eventually(lambda: enqueued(connection) in {0, MESSAGES})
    else:
        assert enqueued(connection) < MESSAGES
    assert again(data, endpoint, mode).messages == MESSAGES
    assert_each_is_there_once(connection)
    assert not again(data, endpoint, mode).added
    assert_each_is_there_once(connection)
    assert_cut(connection, query)


@pytest.mark.sampled(1)
def test_a_killed_driver_whose_tasks_live_on(
    endpoint: Endpoint, connection: Any, data: DataFrame, source: str, mode: Mode
) -> None:
    """Python is killed, and its JVM writes on for as long as it likes, beside the rerun."""
    run(connection, CREATE)
    reached = enqueued if mode == "streaming" else staged
    with running(endpoint, source, mode) as process:
        until(process, lambda: reached(connection), MESSAGES // 10)
        process.kill()
        assert again(data, endpoint, mode).messages == MESSAGES
    assert_each_is_there_once(connection)


def executors(group: int) -> set[int]:
    """The processes of a group that are Spark's executors."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                os.getpgid(int(path.name)) == group
                and b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes()
            ):
                found.add(int(path.name))
    return found


@pytest.mark.sampled(1)
def test_killed_executors(endpoint: Endpoint, connection: Any, source: str, mode: Mode) -> None:
    """A cluster of two, one of which is killed while it writes; another takes its place."""
    run(connection, CREATE)
    reached = enqueued if mode == "streaming" else staged
    quick = f"spark.executor.extraJavaOptions={QUICK_JVM}"
    cluster = ("--master", "local-cluster[2,1,1024]", "--conf", "spark.executor.memory=512m", "--conf", quick)
    with running(endpoint, source, mode, cluster) as process:
        until(process, lambda: reached(connection), MESSAGES // 5)
        os.kill(min(executors(process.pid)), signal.SIGKILL)
        output, _ = process.communicate(timeout=400)
        assert process.returncode == 0, output
        assert re.search(rf"batch b: {MESSAGES:,} messages in \S+\.m", output), output
    assert_each_is_there_once(connection)
    assert_cut(connection, BY_FILES)


def test_a_proxy_that_is_killed_and_comes_back(private_proxy: RunningProxy, data: DataFrame, mode: Mode) -> None:
    with private_proxy.connect() as connection:
        run(connection, "CREATE DATABASE d")
    endpoint = Endpoint(private_proxy.host, private_proxy.port, "root", database="d")
    with endpoint.connect() as connection:
        run(connection, CREATE)
    with connect(private_proxy.server, database="d") as direct:
        outcomes: list[Outcome] = []
        job = threading.Thread(target=lambda: outcomes.append(again(data, endpoint, mode)))
        job.start()
        reached = enqueued if mode == "streaming" else staged
        eventually(lambda: reached(direct) > MESSAGES // 4, timeout_s=200, what="a quarter")
        private_proxy.kill()
        private_proxy.start()
        job.join()
        assert [outcome.messages for outcome in outcomes] == [MESSAGES]
        assert_each_is_there_once(direct)


@pytest.mark.sampled(2)
@both_ways
def test_tasks_that_are_carried_out_twice(
    endpoint: Endpoint, connection: Any, data: DataFrame, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an executor that died between its commit and its report: everything is written twice."""
    run(connection, CREATE)
    way = Direct if mode == "streaming" else Staged
    write = way.write
    counts: list[tuple[int, int]] = []

    def there() -> int:
        return enqueued(connection) + staged(connection)

    def twice(self: Any, wanted: Sequence[int]) -> None:
        write(self, wanted)
        before = there()
        write(self, wanted)  # the ledger has their slices as written
        counts.append((before, there()))

    monkeypatch.setattr(way, "write", twice)
    again(data, endpoint, mode)
    assert counts == [(MESSAGES, MESSAGES)]
    assert_each_is_there_once(connection)


def test_staged_slices_that_a_failover_took_back_are_staged_again(
    endpoint: Endpoint, connection: Any, data: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the new server had not got the old one's last commits."""
    run(connection, CREATE)
    look = Staged.look
    taken: list[int] = []

    def look_and_lose(self: Staged) -> tuple[int, ...]:
        missing = look(self)
        if not taken and 0 < len(missing) < len(self._load.slices):
            there = min(set(range(len(self._load.slices))) - {*missing})
            taken.append(run(connection, f"DELETE FROM {self.staging} WHERE ackstream_slice = {there}"))
            run(connection, f"UPDATE ackstream_slices SET published = NULL WHERE slice = {there}")  # one transaction
        return missing

    monkeypatch.setattr(Staged, "look", look_and_lose)
    assert again(data, endpoint, "atomic").added
    assert taken[0] > 0
    assert_each_is_there_once(connection)


def test_a_slice_that_two_tasks_write_is_written_by_one_of_them(endpoint: Endpoint, connection: Any) -> None:
    """The second one waits for the first, and writes it if that fails."""
    run(connection, CREATE)
    queue = describe(connection, str(endpoint.database), "m")
    ledger = Ledger(queue)
    batch = ledger.begin(connection, Batch("b", "streaming", "", None, 1, 2, 0, None))
    ledger.add_slices(connection.cursor(), batch, [0])
    rows_of_it = pa.record_batch({SLICE: [0, 0], PLACE: [0, 1], "payload": ["a", "b"]})
    tasks = [Target(endpoint, ledger, batch, queue.quoted, ("payload",), (2,)) for _ in range(2)]
    with endpoint.connect() as first:
        first.begin()
        assert ledger.write_slice(first.cursor(), batch, 0)
        second = threading.Thread(target=tasks[0].write, args=(iter([rows_of_it]),))
        second.start()
        run(first, "INSERT INTO m (payload) VALUES ('a')")
        first.rollback()
        second.join(60)
    tasks[1].write(iter([rows_of_it]))
    tasks[1].write(iter([rows_of_it.slice(0, 1), rows_of_it.slice(1)]))
    assert rows(connection, "SELECT payload FROM m ORDER BY id") == [("a",), ("b",)]


def test_a_slice_that_lacks_rows_is_not_written(endpoint: Endpoint, connection: Any) -> None:
    """Its data changed since it was checked."""
    run(connection, CREATE)
    queue = describe(connection, str(endpoint.database), "m")
    ledger = Ledger(queue)
    batch = ledger.begin(connection, Batch("b", "streaming", "", None, 1, 2, 0, None))
    ledger.add_slices(connection.cursor(), batch, [0])
    task = Target(endpoint, ledger, batch, queue.quoted, ("payload",), (2,))
    with pytest.raises(JobError, match="changed while it was read: slice 0 has 1 rows now"):
        task.write(iter([pa.record_batch({SLICE: [0], PLACE: [0], "payload": ["a"]})]))
    with pytest.raises(JobError, match="are gone, by a failover: run this again"):
        ledger.finish(connection.cursor(), batch, set())
    assert rows(connection, "SELECT payload FROM m") == []


def test_a_slice_of_another_beginning_of_its_batch_is_not_written(endpoint: Endpoint, connection: Any) -> None:
    """By a task of a job that was abandoned, when the batch was begun again since."""
    run(connection, CREATE)
    queue = describe(connection, str(endpoint.database), "m")
    ledger = Ledger(queue)
    batch = ledger.begin(connection, Batch("b", "streaming", "", None, 1, 1, 0, None))
    ledger.add_slices(connection.cursor(), batch, [0])
    earlier = Target(endpoint, ledger, replace(batch, begun=batch.begun - 1), queue.quoted, ("payload",), (1,))
    earlier.write(iter([pa.record_batch({SLICE: [0], PLACE: [0], "payload": ["a"]})]))
    assert rows(connection, "SELECT payload FROM m") == []


def test_slices_of_an_earlier_version_are_left_to_it(endpoint: Endpoint, connection: Any, data: DataFrame) -> None:
    """They were proved by messages with marks."""
    run(connection, CREATE)
    again(data.limit(5), endpoint, "streaming")
    run(connection, "UPDATE ackstream_batches SET finished = NULL")
    run(connection, "INSERT INTO ackstream_slices VALUES ('m', 'b', 0, '17', 5, NULL)")
    for work in (lambda: again(data.limit(5), endpoint, "streaming"), lambda: abandon(endpoint, "m", "b")):
        with pytest.raises(PipelineError, match="was begun by an earlier version"):
            work()


@pytest.mark.sampled(2)
@both_ways
def test_commits_whose_answers_are_lost(
    endpoint: Endpoint, connection: Any, data: DataFrame, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, CREATE)
    lost: list[Any] = []
    connect_well = Endpoint.connect

    def connect_badly(self: Endpoint, *arguments: Any, **options: Any) -> Any:
        opened = connect_well(self, *arguments, **options)
        commit = opened.commit

        def commit_and_lose() -> None:
            commit()
            if len(lost) % 2 == 0:
                lost.append(opened)
                opened.close()
                raise pymysql.OperationalError(2013, "Lost connection to MySQL server during query")
            lost.append(None)

        opened.commit = commit_and_lose
        return opened

    monkeypatch.setattr(Endpoint, "connect", connect_badly)
    assert enqueue(data, endpoint, "m", batch="b", mode=mode, settings=SETTINGS).added
    assert lost
    assert_each_is_there_once(connection)
