"""Spark Connect: source and sink work there, and what needs the JVM says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.endpoint import Endpoint
from tests.pipeline.conftest import QUICK_JVM
from tests.support.queues import create_queue, rows

REPOSITORY = Path(__file__).parents[2]

CONNECT = REPOSITORY / ".venv" / "connect"
"""The packages that Spark Connect needs besides."""

pytestmark = pytest.mark.skipif(not CONNECT.exists(), reason="make test-pipeline installs what Spark Connect needs")


@pytest.mark.either_server
def test_a_program_of_spark_connect(endpoint: Endpoint, connection: Any, tmp_path: Path) -> None:
    create_queue(connection, "m")
    create_queue(connection, "done")
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    program = [sys.executable, "-m", "tests.pipeline.connect_driver", url, str(tmp_path)]
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    variables["JAVA_TOOL_OPTIONS"] = QUICK_JVM
    variables["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{CONNECT}"
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=variables, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["read"] == 500
    for name, refused in zip(("enqueue", "report", "archive"), seen["refused"], strict=True):
        assert refused == (
            f"{name} needs a classic Spark session, with its JVM, and this is one of Spark Connect: run it by"
            f' spark-submit; format("ackstream") works here'
        )
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NOT NULL") == [(500,)]
    assert rows(connection, "SELECT COUNT(*), COUNT(DISTINCT payload) FROM done") == [(500, 500)]
