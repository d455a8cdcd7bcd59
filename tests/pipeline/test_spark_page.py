"""docs/spark.md: its programs and commands, run as they are on the page, with this machine's places."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.archive import command as archive_command
from pipeline.datasource import register
from pipeline.endpoint import Endpoint, Tls
from pipeline.enqueue import command as enqueue_command
from pipeline.enqueue import enqueue
from pipeline.errors import PipelineError
from pipeline.report import command as report_command
from tests.support.documents import REPOSITORY, SPARK_EXTRAS, SPARK_PYTHON, SPARK_SHELL, SPARK_URL, Block, blocks_of
from tests.support.queues import rows, run

pytestmark = pytest.mark.either_server

COMMANDS: dict[str, click.Command] = {
    "ackstream-archive": archive_command.cli,
    "ackstream-enqueue": enqueue_command.cli,
    "ackstream-report": report_command.cli,
}
Here = Callable[[str], str]
Typed = Callable[[str], list[Result]]

TWO_HOURS_AGO = "UNIX_TIMESTAMP() * 1000000000 - 7200000000000"
OWN = "region VARCHAR(20), created_at TIMESTAMP(6) NULL, tenant INT, user_id INT, payload TEXT"
EVENTS = "('eu', '2026-01-01 10:00:10'), ('eu', '2026-01-01 10:00:50'), ('us', '2026-01-01 12:00:00')"


@pytest.fixture
def here(endpoint: Endpoint, tmp_path: Path) -> Here:
    """Replace the places of the page's text by those of the test."""
    places = {
        "mysql://app@db.example:3307/shop": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}",
        "hdfs:///": f"{tmp_path}/",
        '"path", "orders"': f'"path", "{tmp_path}/files"',
        "checkpoints/": f"{tmp_path}/checkpoints/",
        "reports/today": f"{tmp_path}/reports/today",
        "--source orders.parquet": f"--source {tmp_path}/orders.parquet",
        "ackstream_spark": "pipeline",
    }

    def adapted(text: str) -> str:
        for written, real in places.items():
            text = text.replace(written, real)
        return re.sub(r"\bshop\.", f"{endpoint.database}.", text)

    return adapted


@pytest.fixture
def queue(connection: Any) -> None:
    """The page's queue, with three messages."""
    run(connection, f"CREATE QUEUE orders ({OWN})")
    run(connection, f"INSERT INTO orders (region, created_at) VALUES {EVENTS}")


@pytest.fixture
def names(spark: SparkSession, endpoint: Endpoint, queue: None) -> Iterator[dict[str, Any]]:
    """What the page's programs take as given. Queries that still run at the end are stopped."""
    register(spark)
    yield {"spark": spark, "endpoint": endpoint, "window": f.window}
    for query in spark.streams.active:
        query.stop()


def programs() -> dict[str, Block]:
    """The page's Python blocks by what they show."""
    marks = {
        "enqueue": "batch=", "consume": "readStream", "window": "withWatermark", "once": "add_totals",
        "sink": "scores.writeStream", "write": "orders.write.", "archive": "archive(", "report": "report(",
    }  # fmt: skip
    return {name: block for block in blocks_of(SPARK_PYTHON) for name, mark in marks.items() if mark in block.text}


def finish(spark: SparkSession) -> None:
    """Let the one running query take all that is there."""
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()


def test_each_python_block_is_run_by_one_of_these_tests() -> None:
    tests = {name.removeprefix("test_") for name in vars(TestPrograms) if name.startswith("test_")}
    assert programs().keys() == tests
    assert len(tests) == len(blocks_of(SPARK_PYTHON))


class TestPrograms:
    """Each Python block, by its name in `programs`."""

    @pytest.fixture(autouse=True)
    def _block(self, request: pytest.FixtureRequest, here: Here, names: dict[str, Any]) -> None:
        self.names = names
        self.block = programs()[request.function.__name__.removeprefix("test_")]
        self.text = here(self.block.text)

    def run(self, **given: Any) -> None:
        """Run the block, with these names beside those of the fixture."""
        self.names.update(given)
        exec(compile(self.text, str(self.block), "exec", dont_inherit=True), self.names)

    def stream(self, spark: SparkSession, here: Here, **options: Any) -> DataFrame:
        """The stream that the page's text before has made."""
        place = here("mysql://app@db.example:3307/shop")
        return spark.readStream.format("ackstream").options(url=place, table="orders", **options).load()

    def test_enqueue(self, spark: SparkSession, connection: Any) -> None:
        self.run(frame=spark.createDataFrame([(1, "tea"), (2, "bread")], "id INT, item STRING"))
        written = rows(connection, "SELECT payload FROM orders WHERE payload IS NOT NULL")
        assert sorted(json.loads(payload)["item"] for (payload,) in written) == ["bread", "tea"]

    def test_consume(self, spark: SparkSession, connection: Any, tmp_path: Path) -> None:
        self.run()
        finish(spark)
        found = spark.read.parquet(str(tmp_path / "files")).select("id", "region").collect()
        assert sorted(map(tuple, found)) == [(1, "eu"), (2, "eu")]
        assert rows(connection, "SELECT id FROM orders WHERE time_acked IS NULL") == [(3,)]

    def test_window(self, spark: SparkSession, here: Here, tmp_path: Path) -> None:
        self.run(orders=self.stream(spark, here, maxMessagesPerBatch=1))
        closed: list[tuple[str, int]] = []

        def take(batch: DataFrame, _: int) -> None:
            closed.extend((row["region"], row["count"]) for row in batch.collect())

        writer = self.names["per_minute"].writeStream.outputMode("append").foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "closed")).trigger(availableNow=True)
        writer.start().awaitTermination(120)
        assert closed == [("eu", 2)]

    def test_once(self, spark: SparkSession, here: Here, endpoint: Endpoint, connection: Any) -> None:
        run(connection, "CREATE TABLE applied (query VARCHAR(20) PRIMARY KEY, batch BIGINT NOT NULL)")
        run(connection, "CREATE TABLE totals (region VARCHAR(20) PRIMARY KEY, count BIGINT NOT NULL)")
        self.run(orders=self.stream(spark, here), target=endpoint)
        finish(spark)
        assert rows(connection, "SELECT region, count FROM totals ORDER BY region") == [("eu", 2), ("us", 1)]

    def test_sink(self, spark: SparkSession, here: Here, connection: Any) -> None:
        run(connection, f"CREATE QUEUE scored ({OWN})")
        self.run(scores=self.stream(spark, here).select("region"))
        finish(spark)
        assert rows(connection, "SELECT region FROM scored ORDER BY region") == [("eu",), ("eu",), ("us",)]

    def test_write(self, spark: SparkSession, here: Here, connection: Any) -> None:
        run(connection, f"CREATE QUEUE scored ({OWN})")
        place = {"url": here("mysql://app@db.example:3307/shop"), "table": "scored"}  # The block before defines it.
        self.run(orders=spark.sql("SELECT 'eu' AS region"), place=place)
        assert rows(connection, "SELECT region FROM scored") == [("eu",)]

    def test_archive(self, spark: SparkSession, connection: Any, tmp_path: Path) -> None:
        run(connection, f"UPDATE orders SET time_acked = {TWO_HOURS_AGO}, time_next = NULL WHERE id < 3")
        self.run()
        archived = spark.read.parquet(str(tmp_path / "archive" / "orders" / "messages")).select("id").collect()
        assert sorted(map(tuple, archived)) == [(1,), (2,)]
        assert rows(connection, "SELECT id FROM orders") == [(3,)]

    def test_report(self, connection: Any, tmp_path: Path) -> None:
        run(connection, f"CREATE QUEUE mail ({OWN})")
        self.run()
        assert "orders" in (tmp_path / "reports" / "today" / "report.html").read_text()


class TestCommands:
    """Each block of commands, run on the shared Spark."""

    @pytest.fixture
    def typed(self, spark: SparkSession, here: Here, queue: None) -> Typed:
        """Run the commands of the one block with this text. `…` stands for the options of the block before."""

        def call(mark: str) -> list[Result]:
            (text,) = [block.text for block in blocks_of(SPARK_SHELL) if mark in block.text]
            place = "--url mysql://app@db.example:3307/shop --table shop.orders"
            made: list[Result] = []
            for line in here(text.replace("…", place).replace("\\\n", " ")).splitlines():
                program, *arguments = shlex.split(line)
                made.append(CliRunner().invoke(COMMANDS[program], arguments, obj=spark))
            return made

        return call

    def orders(self, spark: SparkSession, folder: Path, *columns: str) -> None:
        """The file that the page enqueues: two rows of these expressions of `n`, 0 and 1."""
        frame = spark.createDataFrame([(0,), (1,)], "n INT")
        frame.selectExpr(*columns).write.parquet(str(folder / "orders.parquet"))

    def test_enqueue(self, spark: SparkSession, typed: Typed, connection: Any, tmp_path: Path) -> None:
        self.orders(spark, tmp_path, "named_struct('id', n + 7) AS customer", "n = 1 AS express")
        (result,) = typed("--spread")
        assert result.exit_code == 0, result.output
        written = rows(connection, "SELECT user_id, priority FROM orders WHERE payload IS NOT NULL")
        assert sorted(written) == [(7, 10), (8, 0)]

    def test_rejects(self, spark: SparkSession, typed: Typed, connection: Any, tmp_path: Path) -> None:
        run(connection, "ALTER TABLE orders ADD CONSTRAINT short CHECK (CHAR_LENGTH(payload) <= 200)")
        self.orders(spark, tmp_path, "n AS user_id", "repeat('x', 100 + 101 * n) AS payload")
        first, corrected = typed("--rejects")
        assert first.exit_code == 3, first.output
        assert corrected.exit_code == 0, corrected.output
        lengths = "SELECT user_id, CHAR_LENGTH(payload) FROM orders WHERE payload IS NOT NULL"
        assert sorted(rows(connection, lengths)) == [(0, 100), (1, 200)]

    def test_list_and_abandon(
        self, spark: SparkSession, typed: Typed, here: Here, endpoint: Endpoint, connection: Any
    ) -> None:
        run(connection, "ALTER TABLE orders ADD CONSTRAINT short CHECK (CHAR_LENGTH(payload) <= 200)")
        frame = spark.sql("SELECT repeat('b', 201) AS payload")
        with pytest.raises(PipelineError):  # So the batch is begun and not finished.
            enqueue(frame, endpoint, here("shop.orders"), batch="orders-2026-11-21")
        listed, abandoned = typed("--list")
        assert (listed.exit_code, abandoned.exit_code) == (0, 0), listed.output + abandoned.output
        assert "orders-2026-11-21" in listed.output
        assert rows(connection, "SELECT * FROM ackstream_batches") == []

    def test_archive(self, spark: SparkSession, typed: Typed, connection: Any, tmp_path: Path) -> None:
        run(connection, f"UPDATE orders SET time_acked = {TWO_HOURS_AGO}, time_next = NULL WHERE id < 3")
        (result,) = typed("ackstream-archive")
        assert result.exit_code == 0, result.output
        assert spark.read.parquet(str(tmp_path / "archive" / "orders" / "messages")).count() == 2

    def test_report(self, typed: Typed, connection: Any, tmp_path: Path) -> None:
        run(connection, f"CREATE QUEUE mail ({OWN})")
        (result,) = typed("ackstream-report")
        assert result.exit_code == 0, result.output
        assert (tmp_path / "reports" / "today" / "report.html").exists()


def test_the_form_of_a_url() -> None:
    """Each choice of the form is a URL that is understood."""
    (block,) = blocks_of(SPARK_URL)
    found = re.fullmatch(r"(.*)\[\?tls=(.*)&ca=FILE\]\n", block.text)
    assert found
    place = found[1].replace("PORT", "3307")
    urls = [place, *(f"{place}?tls={choice}" for choice in found[2].split("|")), f"{place}?tls=verify&ca=FILE"]
    assert [Endpoint.from_url(url).tls for url in urls] == [Tls.ON, Tls.OFF, Tls.ON, Tls.VERIFY, Tls.VERIFY]


def test_the_extras_that_pip_installs_exist() -> None:
    (block,) = blocks_of(SPARK_EXTRAS)
    line = shlex.split(block.text, comments=True)
    extras = re.findall(r"\w+", line[2].partition("[")[2])
    project = tomllib.loads((REPOSITORY / "pipeline" / "pyproject.toml").read_text())["project"]
    assert line[:2] == ["pip", "install"]
    assert extras
    assert set(extras) <= project["optional-dependencies"].keys()
    assert project["scripts"].keys() == COMMANDS.keys()
    assert "commands" in extras
    page = (REPOSITORY / "docs" / "spark.md").read_text()
    assert page.index("```sh\n") + len("```sh\n") == page.index(block.text) < page.index("\n## ")
