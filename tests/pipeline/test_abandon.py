"""Batches and queries that nobody will finish: listed, given up, and safe beside jobs that are not dead after all."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.common.ledger import WITHHELD_NS, Ledger, staging_name
from pipeline.common.table import describe
from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Outcome, enqueue
from pipeline.enqueue.abandon import abandon, listed
from pipeline.enqueue.command import cli
from pipeline.enqueue.direct import Direct
from pipeline.enqueue.load import Settings
from pipeline.enqueue.staged import Staged
from pipeline.errors import AbandonedError, JobError, PipelineError
from tests.support.queues import rows, run

pytestmark = pytest.mark.either_server

Enqueue = Callable[..., Outcome]

SETTINGS = Settings(slice_rows=100, look_s=0.05)
CREATE = "CREATE QUEUE m (payload VARCHAR(100))"


class DiedError(Exception):
    """As the driver's end."""


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    return spark.range(1000).select(f.format_string("order %d", "id").alias("payload"))


@pytest.fixture
def atomic(endpoint: Endpoint, connection: Any) -> Enqueue:
    """Enqueue in atomic mode."""
    run(connection, CREATE)

    def call(frame: DataFrame, batch: str = "b", table: str = "m") -> Outcome:
        return enqueue(frame, endpoint, table, batch=batch, mode="atomic", settings=SETTINGS)

    return call


def die_before(
    monkeypatch: pytest.MonkeyPatch, step: str, job: Callable[[], Any], way: type[Direct | Staged] = Staged
) -> None:
    """Carry it out up to that step."""

    def died(*_: Any) -> None:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(way, step, died)
        with pytest.raises(DiedError):
            job()


def staging_tables(connection: Any) -> list[str]:
    return [name for (name,) in rows(connection, "SHOW TABLES LIKE 'ackstream\\_s%\\_%'") if name.count("_") > 1]


def messages(connection: Any) -> int:
    return int(rows(connection, "SELECT COUNT(*) FROM m")[0][0])


def states(endpoint: Endpoint) -> dict[str, tuple[int, int, bool]]:
    return {
        found.batch.name: (
            found.batch.messages,
            found.written,
            found.batch.finished is not None,
        )
        for found in listed(endpoint, "m").batches
    }


def test_an_atomic_batch_leaves_nothing_and_its_name_is_free(
    atomic: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed(endpoint, "m").batches == ()
    atomic(orders, "whole")
    die_before(monkeypatch, "finish", lambda: atomic(orders))
    die_before(monkeypatch, "prepare", lambda: atomic(orders, "unprepared"))
    assert states(endpoint) == {"whole": (1000, 0, True), "b": (1000, 16, False), "unprepared": (1000, 0, False)}
    assert "abandoned" in abandon(endpoint, "m", "b")
    assert "abandoned" in abandon(endpoint, "m", "unprepared")
    assert (staging_tables(connection), messages(connection)) == ([], 1000)
    assert states(endpoint) == {"whole": (1000, 0, True)}
    atomic(orders.limit(10))
    assert messages(connection) == 1010
    assert listed(endpoint, "m").strays == ()


def test_a_batch_that_is_published_is_not_abandoned(
    atomic: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame
) -> None:
    """Also when its driver died before it had dropped the staging table."""
    atomic(orders)
    staging = Ledger(describe(connection, str(endpoint.database), "m")).staging(listed(endpoint, "m").batches[0].batch)
    run(connection, f"CREATE TABLE {staging} (n INT)")
    with pytest.raises(PipelineError, match="batch 'b' is done: its 1,000 messages are in"):
        abandon(endpoint, "m", "b")
    assert (staging_tables(connection), messages(connection)) == ([], 1000)
    assert not atomic(orders).added


def test_a_batch_that_is_being_published_is_not_abandoned(
    atomic: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_before(monkeypatch, "finish", lambda: atomic(orders))
    monkeypatch.setattr("pipeline.enqueue.abandon.LOCK_S", 1)
    (there,) = listed(endpoint, "m").batches
    with endpoint.connect() as publisher:
        publisher.begin()
        Ledger(describe(publisher, str(endpoint.database), "m")).lock(publisher.cursor(), there.batch)
        with pytest.raises(JobError, match="is being published just now"):
            abandon(endpoint, "m", "b")
    assert len(staging_tables(connection)) == 1
    assert atomic(orders).added


def test_a_batch_whose_tasks_are_writing_is_not_abandoned_until_they_have_ended(
    atomic: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_before(monkeypatch, "finish", lambda: atomic(orders))
    monkeypatch.setattr("pipeline.enqueue.abandon.LOCK_S", 1)
    with endpoint.connect() as task:
        task.begin()
        rows(task, f"SELECT 1 FROM {staging_tables(connection)[0]} LIMIT 1")
        with pytest.raises(JobError, match="are writing just now: end its job"):
            abandon(endpoint, "m", "b")
    assert atomic(orders).added


@contextmanager
def held_before(
    monkeypatch: pytest.MonkeyPatch, step: str, job: Callable[[], Any], way: type[Direct | Staged] = Staged
) -> Iterator[Callable[[], BaseException | None]]:
    """The job runs up to that step; called, it goes on to its end, which is what it failed with."""
    here, go_on = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    original = getattr(way, step)

    def held(self: Any, *arguments: Any) -> Any:
        if self._load.batch.name == "b" and not here.is_set():
            here.set()
            assert go_on.wait(60)
        return original(self, *arguments)

    def work() -> None:
        try:
            job()
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            failures.append(failure)

    def end() -> BaseException | None:
        go_on.set()
        thread.join(60)
        return failures[0] if failures else None

    thread = threading.Thread(target=work, daemon=True)
    monkeypatch.setattr(way, step, held)
    thread.start()
    assert here.wait(60)
    try:
        yield end
    finally:
        end()


@pytest.mark.parametrize("step", ["prepare", "look", "finish", "_publish"])
def test_a_job_whose_batch_is_abandoned_under_it_adds_nothing(
    step: str, atomic: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_before(monkeypatch, step, lambda: atomic(orders)) as end:
        abandon(endpoint, "m", "b")
        failure = end()
    assert isinstance(failure, AbandonedError)
    assert "batch 'b' has been abandoned while this job was at work on it" in str(failure)
    assert (staging_tables(connection), messages(connection)) == ([], 0)


@pytest.mark.parametrize("step", ["prepare", "finish"])
def test_nor_does_it_when_its_batch_has_been_begun_anew_with_other_data(
    step: str, atomic: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_before(monkeypatch, step, lambda: atomic(orders)) as end:
        abandon(endpoint, "m", "b")
        atomic(orders.limit(10))
        assert isinstance(end(), AbandonedError)
    assert (staging_tables(connection), messages(connection)) == ([], 10)


def test_an_answer_that_got_lost_is_asked_again(
    atomic: Enqueue, endpoint: Endpoint, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_before(monkeypatch, "finish", lambda: atomic(orders))
    connect = Endpoint.connect

    def connect_badly(self: Endpoint, *arguments: Any, **options: Any) -> Any:
        opened = connect(self, *arguments, **options)
        commit = opened.commit

        def commit_and_lose() -> None:
            commit()
            opened.close()
            opened.cursor()

        opened.commit = commit_and_lose
        return opened

    monkeypatch.setattr(Endpoint, "connect", connect_badly)
    assert "abandoned" in abandon(endpoint, "m", "b")
    assert states(endpoint) == {}


def test_the_command(
    atomic: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--url", url, "--table", "m", *arguments])

    assert command("--list").stdout == "no batches\n"
    atomic(orders, "whole")
    die_before(monkeypatch, "finish", lambda: atomic(orders, "dead and gone"))
    time = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
    whole = rf"whole          atomic  1,000     {time}  finished {time}"
    dead = rf"dead and gone  atomic  1,000     {time}  under way, 16 slices staged"
    assert re.fullmatch(
        rf"batch          mode    messages  begun \(UTC\)          state\n{whole}\n{dead}\n", command("--list").stdout
    )
    result = command("--abandon", "dead and gone", "--list")
    assert len(result.stdout.splitlines()) == 3
    assert result.stdout.startswith("batch dead and gone: abandoned, nothing of it is in ")
    assert (command("--abandon", "whole").exit_code, command("--abandon", "dead and gone").exit_code) == (2, 2)
    assert "there is no batch 'x'" in command("--abandon", "x").stderr
    assert messages(connection) == 1000


def test_what_there_is_not(endpoint: Endpoint, connection: Any) -> None:
    run(connection, CREATE)
    with pytest.raises(PipelineError, match="there is no batch 'x' of"):
        abandon(endpoint, "m", "x")
    with pytest.raises(PipelineError, match="there is no table"):
        listed(endpoint, "other")


def test_a_query_whose_checkpoint_is_gone(
    spark: SparkSession, endpoint: Endpoint, connection: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    register(spark)
    for name in ("m", "n"):
        run(connection, CREATE.replace(" m ", f" {name} "))
    files = tmp_path_factory.mktemp("files")
    (files / "one.csv").write_text("a\nb\n")
    for name, columns in (("m", ["payload"]), ("m", ["payload", "priority"]), ("n", ["payload"])):
        stream = spark.readStream.schema("payload STRING").csv(str(files)).withColumn("priority", f.lit(1))
        place = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": name}
        query = stream.select(columns).writeStream.format("ackstream").options(**place)
        checkpoint = str(tmp_path_factory.mktemp("checkpoint"))
        query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination(50)
    run(connection, "CREATE TABLE ackstream_staging_0123456789abcdef0123 (payload INT)")
    left = listed(endpoint, "m")
    queries = [standing.batch for standing in left.batches]
    assert [(query.mode, query.slices, query.messages) for query in queries] == [("query", 1, 2), ("query", 1, 2)]
    assert left.strays == ("ackstream_staging_0123456789abcdef0123",)
    run(connection, f"CREATE TABLE `{staging_name('m', queries[0])}_1` (payload INT)")
    assert listed(endpoint, "m").strays == left.strays
    assert "forgotten; its 2 messages stay" in abandon(endpoint, "m", queries[0].name)
    assert listed(endpoint, "m").batches == left.batches[1:]
    assert len(listed(endpoint, "n").batches) == 1
    assert staging_tables(connection) == ["ackstream_staging_0123456789abcdef0123"]
    assert messages(connection) == 4


def test_a_ledger_of_a_later_release_is_refused(orders: DataFrame, atomic: Enqueue, connection: Any) -> None:
    atomic(orders.limit(2), batch="before")
    for table in ("batches", "slices"):
        run(connection, f"ALTER TABLE ackstream_{table} COMMENT 'of an earlier release'")
    atomic(orders.limit(2), batch="versionless")
    run(connection, "ALTER TABLE ackstream_slices COMMENT 'ackstream: the ledger (version 2)'")
    with pytest.raises(PipelineError, match="ackstream_slices has version 2, and this program uses version 1: use a"):
        atomic(orders, batch="later")
    assert messages(connection) == 4


# --- streaming mode ---


@pytest.fixture
def streaming(endpoint: Endpoint) -> Enqueue:
    """Enqueue in streaming mode."""

    def call(frame: DataFrame, batch: str = "b", **options: Any) -> Outcome:
        return enqueue(frame, endpoint, "m", batch=batch, settings=SETTINGS, **options)

    return call


def die_with_half_committed(monkeypatch: pytest.MonkeyPatch, job: Callable[[], Any]) -> None:
    """Half of the slices are in the queue when the driver dies."""
    write, look = Direct.write, Direct.look
    written: list[int] = []

    def half(self: Direct, wanted: Sequence[int]) -> None:
        write(self, wanted[::2])
        written.extend(wanted[::2])

    def die(self: Direct) -> tuple[int, ...]:
        if written:
            raise DiedError
        return look(self)

    with monkeypatch.context() as patched:
        patched.setattr(Direct, "write", half)
        patched.setattr(Direct, "look", die)
        with pytest.raises(DiedError):
            job()


def withheld(connection: Any) -> int:
    return int(rows(connection, f"SELECT COUNT(*) FROM m WHERE time_next >= {WITHHELD_NS}")[0][0])


IDS = {
    "AUTO_INCREMENT": None,
    "BIGINT": "id + 1",
    "VARBINARY(16)": "unhex(md5(CAST(id AS STRING)))",
    "VARCHAR(40)": "format_string('é \"id\" \\\\ %d', id)",
    "DECIMAL(30,4)": "CAST(id AS DECIMAL(30,4)) + 12345678901234567890.5BD",
    "DATETIME(6)": "CAST(timestamp_micros(id * 100000001) AS TIMESTAMP_NTZ)",
}


@pytest.mark.parametrize("kind", IDS)
def test_of_a_streaming_batch_the_slices_that_were_committed_stay_and_are_wholly_delivered(
    kind: str,
    streaming: Enqueue,
    endpoint: Endpoint,
    connection: Any,
    orders: DataFrame,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = f"id {kind} NOT NULL PRIMARY KEY, " if IDS[kind] else ""
    run(connection, f"CREATE QUEUE m ({own}payload VARCHAR(100))")
    columns = ["id + 1000 AS time_next", "CAST(id AS STRING) AS payload", *([f"{IDS[kind]} AS id"] if own else [])]
    frame = spark.range(1000).selectExpr(*columns)
    die_with_half_committed(monkeypatch, lambda: streaming(frame))
    assert withheld(connection) == 0
    run(connection, CREATE.replace(" m ", " other "))
    enqueue(orders, endpoint, "other", batch="b", settings=SETTINGS)
    for _ in range(2):
        text = abandon(endpoint, "m", "b")
        assert text.startswith("batch b: abandoned, 8 of its 16 slices are in `")
    assert withheld(connection) == 0
    there = rows(connection, "SELECT payload, time_next FROM m")
    assert 300 < len(there) < 700
    assert all(time_next == 1_000 + int(payload) for payload, time_next in there)
    assert len(rows(connection, "STREAM payload FROM m NOWAIT")) == len(there)
    with pytest.raises(PipelineError, match="batch 'b' was abandoned, and some of it may be in the queue"):
        streaming(frame)
    (found,) = listed(endpoint, "m").batches
    assert (found.slices, found.written, found.batch.finished) == (16, 8, None)
    assert found.batch.abandoned is not None
    assert listed(endpoint, "other").batches[0].batch.abandoned is None


def test_nothing_of_a_streaming_batch_was_begun_and_its_name_is_free(
    streaming: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, CREATE)
    die_before(monkeypatch, "prepare", lambda: streaming(orders), Direct)
    assert "its name is free" in abandon(endpoint, "m", "b")
    assert streaming(orders.limit(5)).added
    with pytest.raises(PipelineError, match="batch 'b' is done: its 5 messages are in"):
        abandon(endpoint, "m", "b")


@pytest.mark.parametrize(("step", "there"), [("prepare", 0), ("write", 0), ("finish", 1000)])
def test_a_streaming_job_whose_batch_is_abandoned_under_it_adds_nothing_more(
    step: str,
    there: int,
    streaming: Enqueue,
    endpoint: Endpoint,
    connection: Any,
    orders: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What its tasks have written stays, and none that begins later writes a slice."""
    run(connection, CREATE)
    with held_before(monkeypatch, step, lambda: streaming(orders, spread_s=100.0), Direct) as end:
        abandon(endpoint, "m", "b")
        assert isinstance(end(), AbandonedError)
    assert (messages(connection), withheld(connection)) == (there, 0)
    ((begun,),) = rows(connection, "SELECT begun FROM ackstream_batches") or [(0,)]
    late = f"time_next NOT BETWEEN {begun} AND {begun + 100 * 10**9}"
    assert rows(connection, f"SELECT COUNT(*) FROM m WHERE {late}") == [(0,)]


def test_a_slice_that_is_on_its_way_is_waited_for_and_keeps_no_other_back(
    streaming: Enqueue, endpoint: Endpoint, connection: Any, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, CREATE)
    monkeypatch.setattr("pipeline.enqueue.abandon.LOCK_S", 1)
    die_with_half_committed(monkeypatch, lambda: streaming(orders))
    ledger = Ledger(describe(connection, str(endpoint.database), "m"))
    (there,) = listed(endpoint, "m").batches
    with endpoint.connect() as task:
        task.begin()
        assert ledger.write_slice(task.cursor(), there.batch, 1)
        run(task, "INSERT INTO m (payload, time_next) VALUES ('late', 0)")
        with pytest.raises(JobError, match="tasks of batch 'b' are writing just now: end its job, and try again"):
            abandon(endpoint, "m", "b")
        run(connection, "INSERT INTO m (payload) VALUES ('of somebody else')")
        task.commit()
    assert "9 of its 16 slices" in abandon(endpoint, "m", "b")
    with endpoint.connect() as task:
        assert not any(ledger.write_slice(task.cursor(), there.batch, number) for number in range(16))
