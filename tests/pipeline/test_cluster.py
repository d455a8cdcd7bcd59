"""Spark's standalone cluster, a master and two workers on this machine, with what users install.

The package reaches the executors in an archive of an environment, or in a zip. The cluster itself has
PySpark and PyArrow, and nothing of ours. A worker is
killed in the middle of a job.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pipeline.endpoint import Endpoint
from proxy.embedded.child_process import ChildProcess
from tests.pipeline.conftest import QUICK_JVM
from tests.support.documents import SPARK_SUBMIT, blocks_of
from tests.support.queues import create_queue, rows
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
PACKAGES = Path(sysconfig.get_path("purelib"))
DRIVER = Path(__file__).with_name("cluster_driver.py")
MESSAGES = 3_000


@dataclass(frozen=True)
class Cluster:
    """A running master, and its workers."""

    master: str
    workers: tuple[ChildProcess, ...]
    variables: dict[str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cluster` (the cluster's Python packages), `bare` (a Python with nothing of its own),
    `ackstream_spark.zip` and `environment.tar.gz`: our package and PyMySQL, for `--py-files` and `--archives`."""
    folder = tmp_path_factory.mktemp("made")
    cluster = folder / "cluster"
    cluster.mkdir()
    for package in ("pyarrow", "numpy", "numpy.libs"):
        if (PACKAGES / package).exists():
            (cluster / package).symlink_to(PACKAGES / package)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
    subprocess.run(build, cwd=REPOSITORY / "pipeline", check=True, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    packages = folder / "packages"
    shutil.unpack_archive(wheel, packages, "zip")
    shutil.copytree(PACKAGES / "pymysql", packages / "pymysql")
    shutil.make_archive(str(folder / "ackstream_spark"), "zip", packages)
    for name in ("bare", "environment"):
        venv.create(folder / name, with_pip=False, symlinks=True)
    (site,) = (folder / "environment").glob("lib/*/site-packages")
    shutil.copytree(packages, site, dirs_exist_ok=True)
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as archive:
        archive.add(folder / "environment", ".")
    return folder


@contextlib.contextmanager
def cluster(made: Path, logs: Path) -> Iterator[Cluster]:
    variables = {**os.environ, "SPARK_HOME": str(SPARK), "PYTHONPATH": str(made / "cluster")}
    variables |= {"SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM, "SPARK_LOCAL_IP": "127.0.0.1"}

    def process(name: str, *options: str) -> ChildProcess:
        program = [
            "/usr/bin/env",
            *(f"{key}={value}" for key, value in variables.items() if os.environ.get(key) != value),
        ]
        program += [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        return ChildProcess([*program, "--webui-port", "0", *options], output=logs / f"{len(running)}.log")

    def said(number: int, pattern: str) -> str:
        log = logs / f"{number}.log"
        eventually(lambda: log.exists() and re.search(pattern, log.read_text()), timeout_s=120, what=str(log))
        found = re.search(pattern, log.read_text())
        assert found
        return found[0]

    running: list[ChildProcess] = []
    try:
        running.append(process("master.Master", "--port", "0"))
        master = said(0, r"spark://127\.0\.0\.1:\d+")
        for number in (1, 2):
            folder = str(logs / f"work-{number}")
            running.append(process("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", folder, master))
        for number in (1, 2):
            said(number, "Successfully registered with master")
        yield Cluster(master, tuple(running[1:]), variables)
    finally:
        for one in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)


def submit(cluster: Cluster, line: str, made: Path, url: str, directory: Path) -> Any:
    """A line of the page with `spark-submit`, under way in this directory."""
    given = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    given |= {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": QUICK_JVM}
    given |= {"spark.executor.extraJavaOptions": QUICK_JVM}
    job = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    places = {
        "spark://master:7077": cluster.master,
        "$PWD/ackstream_spark.zip": f"$PWD/ackstream_spark.zip:{made}/cluster",  # A cluster of users has PyArrow.
        " job.py": " " + shlex.join([*job, str(DRIVER), url, str(directory), str(MESSAGES)]),
    }
    for written, real in places.items():
        line = line.replace(written, real)
    variables = {**cluster.variables, "PATH": f"{SPARK / 'bin'}:{os.environ['PATH']}"}
    if "PYSPARK_PYTHON=" not in line:
        variables |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(made / "bare" / "bin" / "python"))
    with (directory / "driver.log").open("wb") as log:
        return subprocess.Popen(
            ["bash", "-c", f"exec env {line}"], env=variables, cwd=directory, stdout=log, stderr=log
        )  # fmt: skip


@pytest.fixture(params=["--archives", "--py-files"])
def line(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> str:
    """The page's line with this option, where it is typed: a folder with what the lines before it make."""
    for name in ("environment", "environment.tar.gz", "ackstream_spark.zip"):
        (tmp_path / name).symlink_to(made / name)
    texts = [block.text.replace("\\\n", " ") for block in blocks_of(SPARK_SUBMIT)]
    (found,) = [line for text in texts for line in text.splitlines() if f" {request.param} " in line]
    return found


@pytest.mark.either_server
@pytest.mark.sampled(1)
def test_a_job_on_two_workers_of_which_one_is_killed(
    line: str, made: Path, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m")
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    with cluster(made, tmp_path) as running:
        submitted = submit(running, line, made, url, tmp_path)
        try:
            second = tmp_path / "batch-1"
            eventually(lambda: second.exists() or submitted.poll() is not None, timeout_s=300)
            assert second.exists(), (tmp_path / "driver.log").read_text()
            os.killpg(running.workers[0].pid, signal.SIGKILL)
            submitted.wait(300)
        finally:
            submitted.kill()
    assert submitted.returncode == 0, (tmp_path / "driver.log").read_text()
    assert (tmp_path / "counts").read_text() == f"{MESSAGES} enqueued, {MESSAGES} consumed"
    acknowledged = "SELECT COUNT(*), COUNT(DISTINCT payload), MAX(epoch) FROM m WHERE time_acked IS NOT NULL"
    assert rows(connection, acknowledged) == [(MESSAGES, MESSAGES, 1)]
