"""`ackstream-enqueue`, as it is typed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from pipeline.common.command_line import Lines
from pipeline.common.progress import Progress
from pipeline.endpoint import Endpoint
from pipeline.enqueue.command import cli
from tests.support.queues import rows, run

Command = Callable[..., Result]


@pytest.fixture
def command(endpoint: Endpoint, spark: SparkSession) -> Command:
    """Run it on the shared Spark."""

    def call(*arguments: str, url: str = "") -> Result:
        url = url or f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
        return CliRunner().invoke(cli, ["--url", url, "--table", "m", *arguments], obj=spark)

    return call


@pytest.fixture
def orders(tmp_path: Path) -> str:
    path = tmp_path / "orders.csv"
    path.write_text("customer,item,amount\n" + "".join(f"{number % 7},item {number},1.5\n" for number in range(100)))
    return str(path)


def test_a_file_into_a_queue_and_once_more(command: Command, connection: Any, orders: str) -> None:
    run(connection, "CREATE QUEUE m (customer INT NOT NULL, doc JSON)")
    arguments = (
        *("--source", orders, "--batch", "first", "--spread", "1h", "--mapping", "priority=customer % 2"),
        *("--mapping", "customer=customer", "--mapping", "doc=to_json(struct(item, amount))"),
    )
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("batch first: 100 messages in ")
    lines = result.stderr.splitlines()
    assert (lines[0], lines[-1]) == ("checking", "enqueueing 100 of 100")
    expected = Counter((number % 7, number % 7 % 2) for number in range(100))
    assert Counter(rows(connection, "SELECT customer, priority FROM m")) == expected
    assert rows(connection, "SELECT COUNT(DISTINCT time_next) FROM m") == [(100,)]

    again = command(*arguments)
    assert (again.exit_code, again.stdout.split(" already")[1]) == (0, " (100 messages): nothing added\n")
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(100,)]


def test_a_query_over_the_source(command: Command, connection: Any, orders: str) -> None:
    run(connection, "CREATE QUEUE m (customer BIGINT, total BIGINT)")
    query = "SELECT customer, count(*) AS total FROM source GROUP BY customer"
    result = command("--source", orders, "--query", query, "--batch", "b", "--mode", "atomic")
    assert result.exit_code == 0, result.output
    assert sorted(rows(connection, "SELECT customer, total FROM m"))[:2] == [(0, 15), (1, 15)]


def test_data_that_does_not_fit_is_exit_status_2_and_all_that_is_wrong(
    command: Command, connection: Any, orders: str
) -> None:
    run(connection, "CREATE QUEUE m (customer DATE, amount DOUBLE, address TEXT NOT NULL)")
    result = command("--source", orders, "--batch", "b")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0].startswith("ackstream-enqueue: the data does not fit `")
    assert {line.split(":")[0] for line in result.stderr.splitlines()[1:]} == {
        "  - customer",
        "  - item",
        "  - address",
    }


def test_without_checks_what_the_server_changes_is_in_the_queue(command: Command, connection: Any, orders: str) -> None:
    run(connection, "CREATE QUEUE m (n FLOAT)")
    query = ("--source", orders, "--query", "SELECT 16777217 AS n FROM source LIMIT 1", "--batch")
    assert command(*query, "b").exit_code == 2
    assert command(*query, "b", "--check", "off").exit_code == 0
    assert rows(connection, "SELECT n = 16777216 FROM m") == [(1,)]


@pytest.mark.parametrize(
    ("arguments", "url", "complaint"),
    [
        (["--source", "x.parquet"], "", "Missing option '--batch'"),
        (["--source", "x.dat", "--batch", "b"], "", "--format is needed"),
        (["--batch", "b"], "", "name the data"),
        (["--source", "x", "--batch", "b", "--spread", "soon"], "", "'soon' is no duration"),
        (["--source", "x", "--batch", "b", "--mapping", "nonsense"], "", "'nonsense' is not name=value"),
        (["--source", "x", "--batch", "b", "--check", "some"], "", "'some' is not one of 'all', 'sample', 'off'"),
        (["--source", "x", "--batch", "b", "--mapping", "a=1", "--mapping", "a=2"], "", "names a column twice"),
        (["--source", "x", "--batch", "b"], "mysql://root:secret@h/d", "a password does not belong in the URL"),
    ],
)
def test_a_command_that_makes_no_sense(command: Command, arguments: list[str], url: str, complaint: str) -> None:
    result = command(*arguments, url=url)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--source", "/nowhere.csv"], "the data cannot be read: [PATH_NOT_FOUND] Path does not exist"),
        (["--source", "hdfs://nowhere.invalid/a.csv"], "the data cannot be read: java.net.UnknownHostException"),
        (["--source", __file__, "--format", "parquet"], "is not a Parquet file"),
        (["--source", __file__, "--format", "csvv"], "the data cannot be read: java.lang.ClassNotFoundException"),
        (["--source", __file__, "--format", "csv", "--query", "SELECT nothing FROM source"], "[UNRESOLVED_COLUMN"),
        (["--query", "SELECT 1 AS n", "--rejects", "nosuch://x"], "the folder nosuch://x cannot be used: "),
    ],
)
def test_a_source_that_cannot_be_read_is_one_line_and_exit_status_2(
    command: Command, connection: Any, arguments: list[str], complaint: str
) -> None:
    run(connection, "CREATE QUEUE m (n INT)")
    result = command("--batch", "b", *arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert complaint in result.stderr


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    lines: list[str] = []
    times = iter([0.0, 1.0, 2.0, 8.0, 8.5, 9.0])
    told = Lines(lines.append, lambda: next(times))
    for done in (0, 10, 20, 30, 100):
        told.show(Progress("enqueueing", done, 100))
    told.show(Progress("enqueueing", 100, 100))
    assert lines == ["enqueueing 0 of 100", "enqueueing 30 of 100", "enqueueing 100 of 100"]
