"""Rows that the server refuses: set aside with its reason, and all others are in the queue, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.common.ledger import WITHHELD_NS, Batch, Ledger
from pipeline.common.literals import insert
from pipeline.common.slices import SIFTING, Aside, Target, sift
from pipeline.common.table import describe
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, Outcome, enqueue
from pipeline.enqueue import job as enqueueing
from pipeline.enqueue.command import cli
from pipeline.enqueue.direct import Direct
from pipeline.enqueue.load import Settings
from pipeline.errors import JobError
from tests.support.queues import rows, run
from tests.support.servers import MARIADBS

pytestmark = pytest.mark.either_server

ROWS = 600
REFUSED = {0, 250, 251, 599}
SETTINGS = Settings(slice_rows=100, look_s=0.05, rounds=3)

Fill = Callable[..., Outcome]

on_one_server = pytest.mark.parametrize("server_name", MARIADBS, indirect=True)
"""What is tested is the same on each: the driver's steps."""


@pytest.fixture(params=["streaming", "atomic"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def orders(spark: SparkSession, connection: Any) -> DataFrame:
    """Data of which a trigger refuses some rows: nothing can know of that before."""
    run(connection, "CREATE QUEUE m (n INT NOT NULL, at DATETIME(6))")
    these = ", ".join(map(str, sorted(REFUSED)))
    run(
        connection,
        f"CREATE TRIGGER t BEFORE INSERT ON m FOR EACH ROW IF NEW.n IN ({these}) THEN"
        " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no such order'; END IF",
    )
    times = f.expr("TIMESTAMP_NTZ '2026-01-01 00:00:00.5' + make_dt_interval(0, 0, 0, id)")
    return spark.range(ROWS).select(f.col("id").cast("int").alias("n"), times.alias("at"))


@pytest.fixture
def aside(tmp_path: Path) -> str:
    return str(tmp_path / "rejects")


@pytest.fixture
def fill(endpoint: Endpoint, mode: Mode, aside: str) -> Fill:
    def call(frame: DataFrame, **options: Any) -> Outcome:
        given = {"batch": "b", "mode": mode, "settings": SETTINGS, "rejects": aside, **options}
        return enqueue(frame, endpoint, "m", **given)

    return call


def the_others_are_there_once(connection: Any, refused: set[int] = REFUSED) -> bool:
    found = sorted(n for (n,) in rows(connection, "SELECT n FROM m"))
    held = rows(connection, f"SELECT COUNT(*) FROM m WHERE time_next >= {WITHHELD_NS}")
    left = rows(connection, "SHOW TABLES LIKE 'ackstream\\_staging%'")
    return (found, held, list(left)) == (sorted(set(range(ROWS)) - refused), [(0,)], [])


def set_aside(spark: SparkSession, path: str) -> set[int]:
    found = spark.read.parquet(path).select("n", "ackstream_code", "ackstream_reason", "ackstream_batch").collect()
    assert {tuple(row)[1:] for row in found} <= {(1644, "no such order", "b")}
    assert len({row.n for row in found}) == len(found)
    return {row.n for row in found}


def test_all_others_are_in_and_what_was_refused_can_be_corrected(
    fill: Fill, connection: Any, spark: SparkSession, orders: DataFrame, aside: str
) -> None:
    outcome = fill(orders)
    assert (outcome.added, outcome.messages, outcome.rejected) == (True, ROWS, len(REFUSED))
    assert the_others_are_there_once(connection)
    assert set_aside(spark, aside) == REFUSED
    again = fill(orders)
    assert (again.added, again.rejected) == (False, len(REFUSED))
    assert the_others_are_there_once(connection)
    run(connection, "DROP TRIGGER t")
    corrected = spark.read.parquet(aside).drop("ackstream_code", "ackstream_reason", "ackstream_batch")
    assert fill(corrected, batch="corrected").rejected == 0
    assert the_others_are_there_once(connection, set())
    seconds = "TIMESTAMPDIFF(MICROSECOND, '2026-01-01 00:00:00.5', at)"
    assert rows(connection, f"SELECT COUNT(*) FROM m WHERE {seconds} != n * 1000000") == [(0,)]


def test_a_job_that_dies_between_refused_rows_is_run_again(
    fill: Fill, connection: Any, spark: SparkSession, orders: DataFrame, aside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a transaction, and then before what was refused is written to files."""

    class DiedError(Exception):
        pass

    reject = Ledger.reject
    calls: list[int] = []

    def die(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise DiedError
        reject(*arguments)

    def die_at_once(*_: Any) -> None:
        raise DiedError

    def write_here(frame: DataFrame, target: Target) -> None:
        """As a task, in this process, which ends with it."""
        try:
            target.write(iter(frame.toArrow().to_batches()))
        except DiedError as died:
            ended.append(died)

    def look_unless_dead(self: Direct) -> tuple[int, ...]:
        if ended:
            raise ended[0]
        return look(self)

    ended: list[DiedError] = []
    look = Direct.look
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "reject", die)
        patched.setattr("pipeline.enqueue.direct.write_slices", write_here)
        patched.setattr(Direct, "look", look_unless_dead)
        with pytest.raises(DiedError):
            fill(orders)
    with monkeypatch.context() as patched:
        patched.setattr(enqueueing, "export", die_at_once)
        with pytest.raises(DiedError):
            fill(orders)
    assert the_others_are_there_once(connection)
    outcome = fill(orders)
    assert (outcome.added, outcome.rejected) == (False, len(REFUSED))
    assert set_aside(spark, aside) == REFUSED


@on_one_server
def test_commits_whose_answers_are_lost(
    fill: Fill, connection: Any, spark: SparkSession, orders: DataFrame, aside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_well = Endpoint.connect
    lost: list[bool] = []

    def connect_badly(self: Endpoint, *arguments: Any, **options: Any) -> Any:
        opened = connect_well(self, *arguments, **options)
        commit = opened.commit

        def commit_and_lose() -> None:
            commit()
            lost.append(len(lost) % 2 == 0)
            if lost[-1]:
                opened.close()
                raise pymysql.OperationalError(2013, "Lost connection to MySQL server during query")

        opened.commit = commit_and_lose
        return opened

    with monkeypatch.context() as patched:
        patched.setattr(Endpoint, "connect", connect_badly)
        assert fill(orders).added
    assert any(lost)
    assert the_others_are_there_once(connection)
    assert set_aside(spark, aside) == REFUSED


@on_one_server
def test_too_many_are_an_error_and_none_of_their_slice_is_in(
    fill: Fill, connection: Any, orders: DataFrame, mode: Mode
) -> None:
    with pytest.raises(JobError, match="the server refuses more than 1 rows, the last one with: no such order"):
        fill(orders, settings=Settings(slice_rows=100, look_s=0.05, rejects_max=1))
    assert len(rows(connection, "SELECT 1 FROM ackstream_rejects")) <= 1
    if mode == "atomic":
        assert rows(connection, "SELECT COUNT(*) FROM m") == [(0,)]
    assert fill(orders).rejected == len(REFUSED)
    assert the_others_are_there_once(connection)


def test_ids_that_are_taken(
    fill: Fill, connection: Any, spark: SparkSession, orders: DataFrame, aside: str, mode: Mode
) -> None:
    run(connection, "DROP TRIGGER t")
    taken = set(range(0, ROWS, 2)) - {300}
    run(connection, f"INSERT INTO m (id, n) VALUES {', '.join(f'({n + 1}, -1)' for n in taken)}")
    frame = orders.withColumn("id", f.col("n").cast("bigint") + 1)
    if mode == "streaming":
        with pytest.raises(JobError, match=r"Duplicate entry .*, --rejects sets them aside"):
            fill(frame, rejects=None)
    assert fill(frame).rejected == len(taken)
    run(connection, "DELETE FROM m WHERE n = -1")
    assert the_others_are_there_once(connection, taken)
    found = spark.read.parquet(aside).select("id", "ackstream_code").collect()
    assert {(row.id - 1, row.ackstream_code) for row in found} == {(n, 1062) for n in taken}


@on_one_server
def test_the_command_has_an_exit_status_for_it(
    endpoint: Endpoint, connection: Any, spark: SparkSession, orders: DataFrame, tmp_path: Path
) -> None:
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    orders.createOrReplaceTempView("refused_orders")
    place = str(tmp_path / "rejects")
    common = ["--url", url, "--table", "m", "--batch", "b", "--query", "SELECT * FROM refused_orders"]
    result = CliRunner().invoke(cli, [*common, "--rejects", place], obj=spark)
    assert result.exit_code == 3, result.output
    assert result.stdout.endswith("a second; 4 that the server refused are set aside\n")
    assert set_aside(spark, place) == REFUSED
    result = CliRunner().invoke(cli, [*common[:4], "--list"])
    assert result.stdout.endswith(", 4 rows refused\n")


class Server:
    """A cursor of a server that refuses some rows, each of them in any statement. A statement is its rows."""

    def __init__(self, refused: set[int], code: int = 1062) -> None:
        self._refused = refused
        self._code = code
        self._waiting: list[bytes] = []
        self.packets = 0
        self.rows_sent = 0
        self.published: list[int] = []

    def execute(self, packet: bytes) -> None:
        self.packets += 1
        self._waiting = packet.split(b";")
        self.rows_sent += packet.count(b",") + len(self._waiting)
        self._next()

    def nextset(self) -> bool | None:
        return self._next() if self._waiting else None

    def _next(self) -> bool:
        numbers = [int(number) for number in self._waiting.pop(0).split(b",")]
        if self._refused & {*numbers}:
            raise pymysql.IntegrityError(self._code, "refused")
        self.published += numbers
        return True


def as_statement(some: range) -> bytes:
    return ",".join(map(str, some)).encode()


@pytest.mark.parametrize("every", [1, 2, 50, 5_000])
def test_a_refused_row_takes_at_most_three_packets(every: int) -> None:
    places = range(min(10_000, 200 * every))
    refused = {*places[every // 2 :: every]}
    server = Server(refused)
    aside: list[int] = []
    sift(server, places, as_statement, lambda place, _code, _reason: aside.append(place))
    assert (sorted(server.published), aside) == (sorted({*places} - refused), sorted(refused))
    assert server.packets <= 3 * len(refused)
    assert server.rows_sent <= 8 * len(places) + 100 * len(refused)


def test_an_error_that_is_no_row_s_fault_is_none_of_them() -> None:
    with pytest.raises(pymysql.MySQLError):
        sift(Server({3}, 1213), range(4), as_statement, lambda *_: pytest.fail("refused"))


def test_a_slice_with_refused_rows_lets_other_tasks_go_on(endpoint: Endpoint, connection: Any) -> None:
    """Until its end, when all are counted."""
    run(connection, "CREATE QUEUE m (n INT NOT NULL CHECK (n <> 7))")
    table = describe(connection, str(endpoint.database), "m")
    ledger, new = Ledger(table), Batch("b", "streaming", "", None, 1, 10, 0, None)
    batch = ledger.begin(connection, new)
    ledger.make_room_for_rejects(connection)
    ledger.add_slices(connection.cursor(), batch, [0])
    with endpoint.connect(**SIFTING) as other, other.cursor() as cursor:
        other.begin()
        assert ledger.write_slice(cursor, batch, 0)
        aside = Aside(ledger, batch, 0, 5)

        def statement(some: range) -> bytes:
            return insert("m", ["n"], [b"%d" % n for n in some])

        sift(cursor, range(10), statement, aside.refusing(cursor))
        run(connection, "SET SESSION innodb_lock_wait_timeout = 1")
        assert ledger.lock(connection.cursor(), batch) == batch
        aside.record(cursor)
        other.commit()
    assert [(row.place, row.code in {3819, 4025}) for row in ledger.rejects(connection, "b")] == [(7, True)]
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(9,)]
