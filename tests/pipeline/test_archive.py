"""Acknowledged rows into Parquet and away from the server, killed at every step: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from pipeline.archive import Archived, Sizes, archive
from pipeline.archive import job as subject
from pipeline.archive.command import cli, said
from pipeline.archive.job import DAY, DAY_NS, _Archiver, deletion, still_there, too_late
from pipeline.common.files import Files
from pipeline.common.progress import Progress, unused
from pipeline.common.statements import Statements
from pipeline.common.table import describe
from pipeline.endpoint import Endpoint
from pipeline.errors import JobError, PipelineError
from proxy.embedded.child_process import ChildProcess
from proxy.embedded.server import Flavour
from tests.pipeline.conftest import QUICK_JVM
from tests.pipeline.kinds import ONLY, TYPES, same_in_utc
from tests.support.queues import create_queue, rows, run, user
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

SMALL = Sizes(chunk_rows=300, slice_rows=150, max_connections=2)
OWN = "doc JSON, raw BLOB, exact DECIMAL(30,10), big BIGINT UNSIGNED, at DATETIME(6), s VARCHAR(9)"
TEXT = "CAST(doc AS CHAR), HEX(raw), CAST(exact AS CHAR), big, CAST(at AS CHAR), s"
EVERYTHING = f"SELECT id, priority, epoch, time_next, time_acked, {TEXT} FROM m WHERE time_acked IS NOT NULL"
DAYS_AGO = (time.time_ns() // DAY_NS - 5) * DAY_NS
"""Recent: what is older than vt_purge_after the proxy purges itself."""

LASTING = {"vt_purge_after": "9999999"}


def fill(connection: Any, count: int) -> None:
    """Three days of rows, a tenth of them not acknowledged, and NULLs."""
    create_queue(connection, "m", OWN, **LASTING)
    values = []
    for number in range(count):
        acked = "NULL" if number % 10 == 0 else str(DAYS_AGO + DAY_NS * (number % 3) + number)
        own = (
            f"'{{\"n\": {number}}}', x'00ff{number:06x}', {number}.0000000001, 18446744073709551615 - {number},"
            f" '1815-06-18 11:30:00.00000{number % 10}', 's'"
        )
        own = own if number % 4 else ", ".join(["NULL"] * 6)
        values.append(f"({number * 3 + 1}, {number % 5}, {number % 7}, NULL, {acked}, {own})")
    run(connection, f"INSERT INTO m VALUES {', '.join(values)}")


def acked(connection: Any, own: str, values: list[str], **directives: str) -> None:
    """A queue, and rows acknowledged one nanosecond after the other, from 1 on."""
    create_queue(connection, "m", own, **{**LASTING, **directives})
    name = own.split(maxsplit=1)[0]
    for number, value in enumerate(values, 1):
        run(connection, f"INSERT INTO m (epoch, time_acked, {name}) VALUES (1, {DAYS_AGO + number}, {value})")


def archived(spark: SparkSession, target: Path) -> DataFrame:
    return spark.read.parquet(f"{target}/messages")


def in_archive(spark: SparkSession, target: Path) -> Counter[Any]:
    """All columns of all rows, as the server would say them."""
    exprs = (
        "id, priority, epoch, time_next, time_acked, doc, hex(raw), cast(exact AS string), big,"
        " date_format(at, 'yyyy-MM-dd HH:mm:ss.SSSSSS'), s"
    )
    archived(spark, target).createOrReplaceTempView("archive_of_tests")
    return Counter(
        tuple(int(value) if column == 8 and value is not None else value for column, value in enumerate(row))
        for row in spark.sql(f"SELECT {exprs} FROM archive_of_tests").collect()
    )


Archive = Callable[..., Archived]


@pytest.fixture
def archiving(spark: SparkSession, endpoint: Endpoint, tmp_path: Path) -> Archive:
    """`archive` of the queue m, in small pieces."""
    return lambda **options: archive(spark, endpoint, "m", str(tmp_path), **{"sizes": SMALL, **options})


@pytest.fixture
def command(endpoint: Endpoint, spark: SparkSession, tmp_path: Path) -> Callable[..., Result]:
    """`ackstream-archive` of the queue m, on the shared Spark."""

    def call(*arguments: str, account: str = "root") -> Result:
        url = f"mysql://{account}@{endpoint.host}:{endpoint.port}/{endpoint.database}"
        return CliRunner().invoke(cli, ["--url", url, "--table", "m", "--to", str(tmp_path), *arguments], obj=spark)

    return call


def test_every_acknowledged_row_is_archived_exactly_and_purged(
    spark: SparkSession, archiving: Archive, connection: Any, tmp_path: Path
) -> None:
    fill(connection, 500)
    expected = Counter(rows(connection, EVERYTHING))
    assert expected.total() == 450
    told: list[Progress] = []
    outcome = archiving(report=told.append)
    assert (outcome.rows, outcome.left, outcome.missed) == (450, 0, 0)
    assert (told[0].phase, told[-1]) == ("planning", Progress("archiving", 450, 450))
    assert in_archive(spark, tmp_path) == expected
    assert rows(connection, "SELECT COUNT(*), COUNT(time_acked) FROM m") == [(50, 0)]
    assert archived(spark, tmp_path).select(DAY).distinct().count() == 3
    # Nothing to do leaves nothing behind; then there is more to do.
    assert archiving().rows == 0
    run(connection, f"UPDATE m SET time_acked = {DAYS_AGO} WHERE time_acked IS NULL")
    assert archiving().rows == 50
    assert archived(spark, tmp_path).select("id").distinct().count() == 500
    assert sorted(Files(spark, str(tmp_path)).names("runs")) == [
        f"00000{run}.{kind}" for run in (1, 2) for kind in ("done", "json")
    ]


def test_values_of_every_type_are_archived_exactly(
    spark: SparkSession, archiving: Archive, connection: Any, flavour: Flavour, tmp_path: Path
) -> None:
    cases = TYPES + ONLY[flavour]
    names = [f"c{number}" for number in range(len(cases))]
    own = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, cases, strict=True))
    create_queue(connection, "m", f"{own}, `a.b ``c,{{}}` INT, made INT AS (priority + 1)", **LASTING)
    expected: list[dict[str, Any]] = [dict.fromkeys(names)]
    run(connection, "INSERT INTO m () VALUES ()")
    for name, (kind, _, values) in zip(names, cases, strict=True):
        for sql, value in values:
            if value is None:  # no day, which is refused
                continue
            run(connection, f"INSERT INTO m ({name}, `a.b ``c,{{}}`) VALUES ({sql}, 7)")
            exact = value if value is not ... else Decimal(sql) if kind == "DECIMAL(38,10)" else sql
            expected.append({**expected[0], name: exact})
    run(connection, f"UPDATE m SET time_acked = {DAYS_AGO}, time_next = NULL")
    assert archiving().rows == len(expected)
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(0,)]
    frame = archived(spark, tmp_path)
    assert [frame.schema[name].dataType for name in names] == [kind for _, kind, _ in cases]
    for row, wanted in zip(sorted(same_in_utc(frame).collect(), key=lambda row: row["id"]), expected, strict=True):
        assert row["a.b `c,{}"] == (None if wanted == expected[0] else 7)
        for name, value in wanted.items():
            got = bytes(row[name]) if isinstance(value, bytes) else row[name]
            assert (got, type(got)) == (value, type(value)), (name, cases[int(name[1:])][0])


IDS: list[tuple[str, list[str]]] = [
    ("VARCHAR(40)", ["''", "'a'", "'B'", "'c''\\\\`'", "'é'", "'🚀'", "'zz'"]),
    ("VARCHAR(40) CHARACTER SET latin1 COLLATE latin1_bin", ["'a'", "'B'", "'é'", "'ÿ'", "'A'"]),
    ("VARBINARY(16)", ["x''", "x'00'", "x'27'", "x'5c'", "x'ff00'"]),
    ("BINARY(16)", [f"x'{number * 7:02x}{'00ff27' * 5}'" for number in range(5)]),
    ("BIGINT UNSIGNED", ["0", "1", "9223372036854775808", "18446744073709551615"]),
    ("DECIMAL(30,10)", ["-1", "0", "0.0000000001", "12345678901234567890.5"]),
    ("DATETIME(6)", ["'1000-01-01'", "'2026-03-08 02:30:00.000001'", "'9999-12-31 23:59:59.999999'"]),
]
ONLY_IDS = {"mysql": [], "mariadb": [("UUID", [f"'{n}b4e28ba-2fa1-11d2-883f-0016d3cca427'" for n in range(4)])]}


def test_ids_of_any_type(
    spark: SparkSession, endpoint: Endpoint, connection: Any, flavour: Flavour, tmp_path: Path
) -> None:
    for number, (kind, values) in enumerate(IDS + ONLY_IDS[flavour]):
        create_queue(connection, "m", "copy TEXT", **LASTING)
        run(connection, f"ALTER TABLE m DROP PRIMARY KEY, DROP COLUMN id, ADD COLUMN id {kind} NOT NULL PRIMARY KEY")
        for value in values:
            run(connection, f"INSERT INTO m (id, time_acked, copy) VALUES ({value}, {DAYS_AGO}, HEX(CONCAT({value})))")
        copies = sorted(rows(connection, "SELECT copy FROM m"))
        target = tmp_path / str(number)
        outcome = archive(spark, endpoint, "m", str(target), sizes=Sizes(slice_rows=2, max_connections=1))
        assert (outcome.rows, outcome.left) == (len(values), 0), kind
        assert rows(connection, "SELECT COUNT(*) FROM m") == [(0,)], kind
        assert sorted(tuple(row) for row in archived(spark, target).select("copy").collect()) == copies, kind
        run(connection, "DROP TABLE m")


def test_a_queue_that_is_partitioned_by_time(
    spark: SparkSession, archiving: Archive, connection: Any, tmp_path: Path
) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) RETENTION BY PARTITION PURGE_AFTER = 9999999")
    run(connection, "INSERT INTO m (payload) SELECT 'x' FROM information_schema.columns LIMIT 400")
    run(connection, f"UPDATE m SET time_acked = {DAYS_AGO} + id, time_next = NULL WHERE id > 10")
    count = rows(connection, "SELECT COUNT(time_acked) FROM m")[0][0]
    assert archiving().rows == count
    assert archived(spark, tmp_path).select("id").distinct().count() == count
    assert rows(connection, "SELECT COUNT(*), COUNT(time_acked) FROM m") == [(10, 0)]


# --- killed ---


def die_at(point: str, spark: SparkSession, endpoint: Endpoint, target: Path) -> None:
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    gateway: Any = spark.sparkContext._gateway
    parameters = gateway.gateway_parameters
    shared = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
    program = [sys.executable, "-m", "tests.pipeline.archiving_driver", url, str(target), point]
    died = subprocess.run(program, env={**os.environ, **shared}, timeout=100, check=False)
    assert died.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", ["planned", "written", "verified", "in place", "deleted"])
def test_a_driver_that_is_killed_loses_and_doubles_nothing(
    spark: SparkSession, endpoint: Endpoint, archiving: Archive, connection: Any, tmp_path: Path, point: str
) -> None:
    fill(connection, 500)
    expected = Counter(rows(connection, EVERYTHING))
    die_at(point, spark, endpoint, tmp_path)
    files = Files(spark, str(tmp_path))
    # Where it died, to be sure that the test is about that.
    assert bool(files.names("pending")) == (point in {"written", "verified"})
    assert bool(files.names("messages")) == (point in {"in place", "deleted"})
    left = Counter(rows(connection, EVERYTHING))
    assert (left == expected) == (point != "deleted")
    if files.names("messages"):
        there = in_archive(spark, tmp_path)
        assert there | left == expected
        assert max(there.values()) == 1
    outcome = archiving()
    assert (outcome.rows, outcome.left, outcome.missed) == (450, 0, 0)
    assert in_archive(spark, tmp_path) == expected
    assert rows(connection, "SELECT COUNT(*), COUNT(time_acked) FROM m") == [(50, 0)]
    assert files.names("pending") == []


def test_the_command_is_killed_between_two_deletes_and_its_jvm_with_it(
    spark: SparkSession, endpoint: Endpoint, command: Callable[..., Result], connection: Any, tmp_path: Path
) -> None:
    """It waits for a row that the test has locked, so the moment is certain."""
    fill(connection, 5000)
    # One day is one file, in the order of ids.
    run(connection, f"UPDATE m SET time_acked = {DAYS_AGO} WHERE time_acked IS NOT NULL")
    expected = Counter(rows(connection, EVERYTHING))
    with endpoint.connect() as locking:
        locking.begin()
        last = rows(locking, "SELECT MAX(id) FROM m WHERE time_acked IS NOT NULL")[0][0]
        run(locking, f"SELECT 1 FROM m WHERE id = {last} FOR UPDATE")
        program = [
            *(sys.executable, "-m", "pipeline.archive.command", "--table", "m", "--to", str(tmp_path)),
            *("--url", f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "--master", "local[2]"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.sql.shuffle.partitions=2"),
            *("--conf", f"spark.driver.extraJavaOptions={QUICK_JVM}"),
        ]
        log = tmp_path.parent / "archive.log"
        process = ChildProcess(program, output=log)
        count = "SELECT COUNT(time_acked) FROM m"
        try:
            eventually(lambda: process.wait(0) or rows(connection, count)[0][0] < 4500, timeout_s=400)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10), log.read_text()
        assert process.returncode == -signal.SIGKILL, log.read_text()
        left = Counter(rows(connection, EVERYTHING))
        assert 0 < left.total() < 4500
        assert in_archive(spark, tmp_path) == expected
        locking.rollback()
    result = command("--keep", "0")
    assert result.exit_code == 0, result.output
    assert "4,500 messages archived" in result.stdout
    assert in_archive(spark, tmp_path) == expected
    assert rows(connection, "SELECT COUNT(*), COUNT(time_acked) FROM m") == [(500, 0)]


# --- what changes meanwhile ---


def test_a_delete_leaves_alone_what_is_another_row_by_now(endpoint: Endpoint, connection: Any) -> None:
    acked(connection, "payload TEXT", ["'same'", "'redriven'", "'acknowledged again'", "'another epoch'", "'gone'"])
    now = [(key, 1, DAYS_AGO + key) for key in range(1, 6)]
    run(connection, "UPDATE m SET time_acked = NULL WHERE id = 2")
    run(connection, "UPDATE m SET time_acked = time_acked + 1 WHERE id = 3")
    run(connection, "UPDATE m SET epoch = 2 WHERE id = 4")
    run(connection, "DELETE FROM m WHERE id = 5")
    statements = Statements(describe(connection, str(endpoint.database), "m"))
    assert run(connection, deletion(statements, now)) == 1
    assert rows(connection, still_there(statements, now)) == [(3,)]
    assert rows(connection, "SELECT id FROM m ORDER BY id") == [(2,), (3,), (4,)]


@pytest.mark.parametrize("together", [True, False], ids=["acknowledged together", "one by one"])
def test_a_delete_goes_by_the_key(endpoint: Endpoint, connection: Any, together: bool) -> None:
    fill(connection, 2000)
    if together:
        run(connection, f"UPDATE m SET epoch = 1, time_acked = {DAYS_AGO} WHERE time_acked IS NOT NULL")
    run(connection, "ANALYZE TABLE m")
    statements = Statements(describe(connection, str(endpoint.database), "m"))
    some = rows(connection, "SELECT id, epoch, time_acked FROM m WHERE time_acked IS NOT NULL LIMIT 500")
    plan = run_as_dicts(connection, f"EXPLAIN FORMAT=TRADITIONAL {deletion(statements, some)}")
    assert [(step["key"], step["type"], int(step["rows"]) <= 500) for step in plan] == [("PRIMARY", "range", True)]
    assert run(connection, deletion(statements, some)) == 500


@pytest.mark.parametrize(("messages", "acknowledged"), [(3, 2), (5_000, 20)], ids=["small", "few are acknowledged"])
def test_no_statement_leaves_the_key_whatever_the_planner_believes(
    endpoint: Endpoint, connection: Any, messages: int, acknowledged: int
) -> None:
    create_queue(connection, "m", "payload VARCHAR(20)", **LASTING)
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO m (payload) VALUES (%s)", [(str(number),) for number in range(messages)])
    run(connection, f"UPDATE m SET epoch = 1, time_acked = {DAYS_AGO} + id, time_next = NULL LIMIT {acknowledged}")
    run(connection, "ANALYZE TABLE m")
    statements = Statements(describe(connection, str(endpoint.database), "m"))
    some = rows(connection, "SELECT id, epoch, time_acked FROM m WHERE time_acked IS NOT NULL")
    condition = f"time_acked IS NOT NULL AND time_acked < {DAYS_AGO + 10**6}"
    for statement in (
        statements.page("*", condition, 0, messages, 1_000),
        deletion(statements, some),
        still_there(statements, some),
    ):
        for step in run_as_dicts(connection, f"EXPLAIN FORMAT=TRADITIONAL {statement}"):
            # Of three rows a plain count may read all: that locks none.
            assert (step["key"], step["type"] == "range" or messages == 3) == ("PRIMARY", True), (statement, step)
            assert "filesort" not in (step["Extra"] or ""), statement


def run_as_dicts(connection: Any, statement: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_a_message_that_is_redriven_before_its_delete_lives_on_and_is_archived_again(
    spark: SparkSession,
    archiving: Archive,
    connection: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acked(connection, "payload TEXT", ["'a'", "'b'", "'c'"])
    rename = Files.rename

    def redriving(self: Files, old: str, new: str) -> None:
        rename(self, old, new)
        if new.startswith("messages/") and old.startswith("pending/"):
            run(connection, "UPDATE m SET time_acked = NULL, time_next = 0, epoch = 2 WHERE id = 2")

    monkeypatch.setattr(Files, "rename", redriving)
    outcome = archiving()
    assert (outcome.rows, outcome.left) == (3, 1)
    assert said(outcome)[1:] == ["1 of them stay in the queue: they were redriven or changed meanwhile"]
    assert rows(connection, "SELECT id, epoch FROM m") == [(2, 2)]
    monkeypatch.undo()
    run(connection, f"UPDATE m SET time_acked = {DAYS_AGO + 9}, time_next = NULL")
    assert archiving().rows == 1
    there = archived(spark, tmp_path).select("id", "epoch").collect()
    assert sorted(map(tuple, there)) == [(1, 1), (2, 1), (2, 2), (3, 1)]


def test_what_goes_away_unread_is_counted(archiving: Archive, connection: Any) -> None:
    acked(connection, "payload TEXT", ["'a'", "'b'", "'c'"])

    def purging(progress: Progress) -> None:
        if progress == Progress("archiving", 0, 3):
            run(connection, "DELETE FROM m WHERE id = 2")

    outcome = archiving(report=purging)
    assert (outcome.rows, outcome.left, outcome.missed) == (2, 0, 1)
    assert said(outcome)[1:] == [
        "1 others were purged or redriven before they were read: raise the queue's PURGE_AFTER"
    ]


def test_a_column_that_is_added_meanwhile_is_not_lost(
    archiving: Archive, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked(connection, "payload TEXT", ["'a'"])
    compare = _Archiver._compare

    def altering(self: _Archiver, *frames: DataFrame) -> Any:
        run(connection, "ALTER TABLE m ADD COLUMN added INT DEFAULT 5")
        return compare(self, *frames)

    monkeypatch.setattr(_Archiver, "_compare", altering)
    with pytest.raises(JobError, match="has other columns than when this began"):
        archiving()
    assert rows(connection, "SELECT added FROM m") == [(5,)]


def test_what_was_read_back_is_told_from_the_servers_rows(
    spark: SparkSession, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    table = describe(connection, str(endpoint.database), "m")
    archiver = _Archiver(spark, endpoint, table, Files(spark, str(tmp_path)), SMALL, unused)
    names = [column.name for column in table.columns]
    server = spark.range(3).selectExpr("id", *(f"NULL AS {name}" for name in names[1:-1]), "'x' AS payload")
    moved = server.selectExpr("id", "payload AS priority", *names[2:-1], "NULL AS payload")

    def told(back: DataFrame) -> tuple[int, ...]:
        found = archiver._compare(server, back)
        return found.rows, found.gone, found.late, found.changed

    assert told(server.orderBy("id", ascending=False)) == (3, 0, 0, 0)
    assert told(server.where("id < 2")) == (2, 0, 1, 0)
    assert told(server.union(server.limit(1))) == (4, 0, 0, 1)
    assert told(moved) == (3, 0, 0, 3)  # the same values in other columns


def test_what_is_not_read_back_as_it_is_on_the_server_is_not_purged(
    archiving: Archive, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked(connection, "payload TEXT", ["'a'", "'b'"])
    back = _Archiver._back
    monkeypatch.setattr(_Archiver, "_back", lambda self, place: back(self, place).where("id <> 2"))
    monkeypatch.setattr(subject, "TRIES", 1)
    with pytest.raises(JobError, match=r"late=1.*all executors must write to one file system"):
        archiving()
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(2,)]


# --- what is refused, and what is said ---


@pytest.mark.parametrize("value", ["'0000-00-00'", "'2026-02-31'"])
def test_a_date_that_is_no_day_stays(archiving: Archive, connection: Any, value: str) -> None:
    run(connection, "SET sql_mode = 'ALLOW_INVALID_DATES'")
    acked(connection, "day DATE", ["'2026-01-01'", value])
    with pytest.raises(JobError) as caught:
        archiving()
    assert str(caught.value) == (
        f"message 2 has {value} in day, which is no day and which Parquet cannot hold: correct it or delete the"
        " message, and run this again"
    )
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(2,)]
    run(connection, "UPDATE m SET day = '2026-03-01'")
    assert archiving().rows == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("MODIFY id TIMESTAMP(6) NOT NULL", "id: is a TIMESTAMP, which"),
        ("MODIFY id ENUM('b', 'a') NOT NULL", "id: is of type ENUM, whose order"),
        ("ADD COLUMN Acked_Day INT", "acked_day: is a name that the archive's folders need"),
        ("COMMENT ''", "is no message table"),
    ],
)
def test_a_table_that_cannot_be_archived(archiving: Archive, connection: Any, change: str, complaint: str) -> None:
    create_queue(connection, "m")
    run(connection, f"ALTER TABLE m {change}")
    with pytest.raises(PipelineError, match=complaint):
        archiving()


def test_the_command_says_what_it_did_and_what_stands_against_it(
    command: Callable[..., Result], connection: Any, endpoint: Endpoint, tmp_path: Path
) -> None:
    acked(connection, "payload TEXT", ["'a'", "'b'"], vt_purge_after="999999.5")
    result = command("--keep", "1d", "--max-connections", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"`{endpoint.database}`.`m`: 2 messages archived, ")
    assert result.stderr.splitlines() == ["planning", "archiving 0 of 2", "archiving 2 of 2"]

    warned = command("--keep", "20d")
    assert warned.exit_code == 0
    assert warned.stderr.startswith(f"ackstream-archive: the proxy purges `{endpoint.database}`.`m` itself, 999999.5 s")

    create_queue(connection, "other")
    refused = command("--table", "other")
    places = f"`{endpoint.database}`.`m`, not of `{endpoint.database}`.`other`"
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"ackstream-archive: this folder is the archive of {places}\n",
    )
    for arguments, status, complaint in [
        (("--table", "nowhere"), 2, "there is no table"),
        (("--to", "http://localhost/archive"), 2, "folders must be renamed in one step: only file, hdfs, viewfs do"),
        (("--to", "/proc/nowhere"), 1, "Spark says: java.io.IOException: Mkdirs failed to create file:/proc/nowhere"),
        (("--keep", "soon"), 2, "'soon' is no duration"),
    ]:
        run(connection, f"INSERT INTO m (time_acked) VALUES ({DAYS_AGO})")
        found = command(*arguments)
        assert (found.exit_code, complaint in found.stderr) == (status, True), found.output


def test_two_archivers_of_a_queue_do_not_meet(
    command: Callable[..., Result], endpoint: Endpoint, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "LOCK_S", 0)
    acked(connection, "payload TEXT", ["'a'"])
    with endpoint.connect() as other:
        table = f"`{endpoint.database}`.`m`"
        assert rows(other, "SELECT GET_LOCK(SHA2(%s, 224), 0)", [f"ackstream-archive {table}"]) == [(1,)]
        found = command()
    assert (found.exit_code, found.stderr) == (
        2,
        f"ackstream-archive: another ackstream-archive is at work on {table}\n",
    )
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(1,)]


@pytest.mark.parametrize(
    ("grants", "denied"),
    [
        (["SELECT"], "DELETE command denied"),
        (["SELECT (id, priority, epoch, time_next, time_acked)", "DELETE"], "SELECT command denied"),
    ],
)
def test_an_account_without_the_rights_is_told_before_anything_is_done(
    command: Callable[..., Result],
    connection: Any,
    endpoint: Endpoint,
    tmp_path: Path,
    grants: list[str],
    denied: str,
) -> None:
    acked(connection, "payload TEXT", ["'a'"])
    with user(connection, str(endpoint.database), *grants) as name:
        found = command(account=name)
    assert found.exit_code == 1
    assert denied in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_select_and_delete_are_all_the_rights_it_takes(
    command: Callable[..., Result], connection: Any, endpoint: Endpoint
) -> None:
    acked(connection, "payload TEXT", ["'a'"])
    with user(connection, str(endpoint.database), "SELECT", "DELETE") as name:
        found = command(account=name)
    assert (found.exit_code, rows(connection, "SELECT COUNT(*) FROM m")) == (0, [(0,)]), found.output


def test_a_queue_that_is_purged_before_it_is_archived_is_warned_of(endpoint: Endpoint, connection: Any) -> None:
    create_queue(connection, "m", vt_purge_after="3600")
    table = describe(connection, str(endpoint.database), "m")
    assert too_late(table, keep_s=3599) is None
    assert str(too_late(table, keep_s=3600)).endswith("to the end of the next, and some more")


def test_small_files_are_written_whole(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path / "new"))
    files.write("a/b.json", "ünï")
    assert (files.names("a"), files.read("a/b.json"), files.names("nowhere")) == (["b.json"], "ünï", [])
    with pytest.raises(JobError, match="cannot be renamed"):
        files.rename("a", "a")
    files.delete("a")
    assert not files.exists("a")
