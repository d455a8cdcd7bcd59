"""A streaming query whose driver is killed: nothing is lost, and what has run is run again as it was."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.endpoint import Endpoint
from proxy.embedded.child_process import ChildProcess
from tests.support.queues import rows, run
from tests.support.sampling import LONG, SEED
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

DEATHS = ("planned", "after", "committed", "jvm")
BATCH = 300
"""Messages of a micro-batch. The driver dies in another one each time."""
HELD = "SELECT id FROM m WHERE time_acked IS NULL AND time_next > UNIX_TIMESTAMP(NOW(6)) * 1000000000"


def enqueue(connection: Any, count: int) -> None:
    values = ", ".join(["('x')"] * count)
    run(connection, f"INSERT INTO m (payload) VALUES {values}")


def live(endpoint: Endpoint, directory: Path, life: int, point: str, batch: int) -> None:
    """One life of the driver, up to its end."""
    log = directory / f"life-{life}.log"
    url = f"mysql://{endpoint.user}@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    program = [sys.executable, "-m", "tests.pipeline.consuming_driver"]
    driver = ChildProcess([*program, url, str(directory), str(life), point, str(batch)], output=log)
    assert driver.wait(400), log.read_text()
    assert driver.returncode == (0 if point == "never" else -9), log.read_text()


def written(directory: Path) -> dict[int, list[list[int]]]:
    """Ids by batch, each as written by the lives that wrote it."""
    batches: dict[int, list[list[int]]] = {}
    for file in sorted((directory / "batches").glob("*.[0-9]")):
        batches.setdefault(int(file.stem), []).append([int(line) for line in file.read_text().split()])
    return batches


@pytest.mark.timeout(900)
def test_drivers_killed_at_any_point_lose_nothing_and_double_nothing(
    endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    deaths = DEATHS if LONG else random.Random(SEED).sample(DEATHS, 1)
    enqueue(connection, BATCH * (len(deaths) + 1))
    for life, point in enumerate(deaths):
        live(endpoint, tmp_path, life, point, batch=life)
        # What comes now must not get into a batch that runs again.
        enqueue(connection, 200)
        eventually(lambda: not run(connection, HELD), what="what the dead driver held is given back")
    live(endpoint, tmp_path, len(deaths), "never", 0)
    messages = BATCH + (BATCH + 200) * len(deaths)
    batches = written(tmp_path)
    for number, versions in batches.items():
        assert all(version == versions[0] for version in versions), number
    assert "after" not in deaths or len(batches[deaths.index("after")]) == 2
    effects = sorted(key for versions in batches.values() for key in versions[-1])
    assert effects == list(range(1, messages + 1))
    assert rows(connection, "SELECT COUNT(*), MAX(epoch) FROM m WHERE time_acked IS NOT NULL") == [(messages, 1)]
