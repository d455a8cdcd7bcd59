"""What the tests of the pipeline share: one Spark for all of them, and an endpoint on each kind of server.

The JVM is in a zone far from UTC, whose clock was turned within the year: no time may depend on the zone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from pyspark.sql import SparkSession

from pipeline.endpoint import Endpoint
from tests.support.proxies import RunningProxy
from tests.support.servers import FLAVOUR_OF

ZONE = "America/St_Johns"

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for minutes spends more on optimising its code than it gains by that."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is run by `make test-pipeline` alone, and a JVM takes its time on a busy machine."""
    for item in items:
        if "tests/pipeline/" in item.path.as_posix():
            item.add_marker(pytest.mark.pipeline)
            item.add_marker(pytest.mark.timeout(600))
            callspec = getattr(item, "callspec", None)
            if callspec and "server_name" in callspec.params:  # Each process starts one kind of server.
                item.add_marker(pytest.mark.xdist_group(FLAVOUR_OF[callspec.params["server_name"]]))


NO_WORKER = "Python worker failed to connect back"
"""What Spark reports if a Python process of a source or sink needs more than ten seconds to start. The time is fixed
in Spark. The process runs nothing of this project before it connects."""


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test that failed because a busy machine did not start Spark's process in time is run again, at most twice."""
    if item.get_closest_marker("pipeline") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for _ in range(2):
        if any(report.failed and NO_WORKER in report.longreprtext + report.caplog for report in reports):
            item._initrequest()  # type: ignore[attr-defined]  # its fixtures are made anew
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def session(master: str, **options: str) -> SparkSession:
    """A small Spark. It logs nothing: what fails is in the exception, and many tests have tasks that fail."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Data sources run in processes of their own.
    builder = (
        SparkSession.builder.master(master)
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", ZONE)
        .config("spark.driver.extraJavaOptions", f"{QUICK_JVM} -Duser.timezone={ZONE}")
        .config("spark.executor.extraJavaOptions", f"-Duser.timezone={ZONE}")
    )
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at a time in one JVM, each tried three times."""
    spark = session("local[2,3]")
    yield spark
    spark.stop()


@pytest.fixture
def endpoint(proxy: RunningProxy, database: str) -> Endpoint:
    """The shared proxy, in an empty database."""
    return Endpoint(proxy.host, proxy.port, "root", database=database)


@pytest.fixture
def connection(endpoint: Endpoint) -> Iterator[Any]:
    """A connection through the proxy to that database."""
    with endpoint.connect() as connection:
        yield connection
