"""What the programs beside this one share: Spark in local mode, and a proxy before a server of its own.

All on this machine, whose cores they share: two for Spark's tasks.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.compare.machine import machine
from demo.ackstream import ackstream
from pipeline.endpoint import SESSION, Endpoint

BUFFER_POOL = 1 << 30
"""Of the server, which holds what a program works on then. By default it is 128 MB, less than a batch of a million."""


DEBIANS_JAR = "/usr/share/java/mariadb-java-client.jar"


def jdbc(endpoint: Endpoint, table: str) -> dict[str, str]:
    """Options of Spark's own reader and writer, for what ours is compared with."""
    return {
        "url": f"jdbc:mysql://{endpoint.host}:{endpoint.port}/{endpoint.database}",
        "driver": "org.mariadb.jdbc.Driver",
        "user": endpoint.user,
        "sessionVariables": SESSION,
        "rewriteBatchedStatements": "true",
        "dbtable": table,
    }


@dataclass(frozen=True, slots=True)
class Stage:
    """Spark, and where a database `bench` is: through the proxy, and on the server itself."""

    spark: SparkSession
    proxy: Endpoint
    server: Endpoint


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """Started, and ended afterwards."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").config("spark.jars", DEBIANS_JAR)
    session = session.config("spark.sql.streaming.numRecentProgressUpdates", "10000")
    quiet = session.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = quiet.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    with ackstream() as running:
        proxy, server = (
            Endpoint("127.0.0.1", port, "root", database="bench") for port in (running.port, running.server_port)
        )
        with proxy.connect(database=None) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE bench")
            cursor.execute(f"SET GLOBAL innodb_buffer_pool_size = {BUFFER_POOL}")
        yield Stage(spark, proxy, server)
    spark.stop()


def rows_asked_for(default: int) -> int:
    """The program's first argument."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else default


def compared(rates: Mapping[str, Sequence[float]], base: str) -> list[str]:
    """A table of rates by round, each with its ratio to the base of the same round: median, least and greatest."""
    lines = ["| | messages a second | of the first, same round |", "|---|---|---|"]
    for name, measured in sorted(rates.items(), key=lambda entry: entry[0] != base):
        ratios = sorted(one / other for one, other in zip(measured, rates[base], strict=True))
        ratio = "" if name == base else f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"| {name} | {min(measured):,.0f} to {max(measured):,.0f} | {ratio} |")
    return lines


def publish(name: str, title: str, lines: Sequence[str], load_before: float) -> None:
    """Print a page, and write it to bench/results/spark-NAME.md."""
    text = "\n".join([f"# {title}", "", "  \n".join(machine(load_before)), "", *lines, ""])
    print(text)
    (Path(__file__).parents[1] / "results" / f"spark-{name}.md").write_text(text)
