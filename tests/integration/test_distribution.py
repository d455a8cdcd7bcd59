"""The wheel holds our packages, their data and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import proxy

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", directory], cwd=REPOSITORY, check=True)
    (built,) = directory.iterdir()
    return built


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"ackstream-{proxy.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"proxy", "sqlrewrite", "engine", "pipeline", metadata}
    suffixes = {Path(name).suffix for name in names if not name.startswith(metadata)}
    assert suffixes == {".py", ".typed", ".sql", ".jinja"}


def test_the_wheel_holds_what_is_read_at_run_time(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "engine/store/queries.sql",
        "proxy/session/queries.sql",
        "engine/py.typed",
        "proxy/py.typed",
        "sqlrewrite/py.typed",
    } <= names


def test_the_command_starts_the_proxy(wheel: Path) -> None:
    entry_points = f"ackstream-{proxy.__version__}.dist-info/entry_points.txt"
    with zipfile.ZipFile(wheel) as archive:
        assert "ackstream = proxy.__main__:main" in archive.read(entry_points).decode()
