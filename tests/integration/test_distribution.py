"""The wheels: what they hold, and that each works where nothing else of ours is.

The environments here are empty. What the proxy depends on comes from this environment, behind
what is installed there; of ours, nothing else can be imported.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import pipeline
import proxy
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import READY
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]

SUFFIXES = {".py", ".typed", ".sql", ".css", ".js"}
"""The files of the proxy's package."""


def built(folder: Path, directory: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (wheel,) = directory.iterdir()
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(REPOSITORY, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def spark_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(REPOSITORY / "pipeline", tmp_path_factory.mktemp("dist"))


def installed(wheel: Path, folder: Path, *, packages: bool) -> Path:
    """The programs of an empty environment with this wheel; with our dependencies, if `packages`."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    if packages:
        (site,) = folder.glob("lib/*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("environment"), packages=True)


def python(programs: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([programs / "python", "-c", text], capture_output=True, text=True, check=False, cwd=programs)


def test_tracing_is_an_extra(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"ackstream-{proxy.__version__}.dist-info/METADATA").decode()
    requirements = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    assert {text for text in requirements if "extra" in text} == {
        text for text in requirements if text.startswith("opentelemetry") and "extra == 'tracing'" in text
    }
    assert any(text.startswith("opentelemetry-sdk") for text in requirements)


def test_the_wheel_has_one_package_of_its_own_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"ackstream-{proxy.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"ackstream", metadata}
    assert {Path(name).suffix for name in names if not name.startswith(metadata)} == SUFFIXES


def test_every_module_of_the_repository_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("proxy", "engine", "sqlrewrite"):
        files = {path for path in (REPOSITORY / folder).rglob("*") if path.suffix in SUFFIXES}
        assert {f"ackstream/{path.relative_to(REPOSITORY)}" for path in files} <= names


def test_every_installed_module_can_be_imported_and_none_by_its_old_name(programs: Path) -> None:
    found = python(
        programs,
        "import importlib, pkgutil, sys, ackstream\n"
        "for module in pkgutil.walk_packages(ackstream.__path__, 'ackstream.'):\n"
        "    importlib.import_module(module.name)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('proxy', 'engine', 'sqlrewrite', 'pipeline')])",
    )
    assert (found.stdout, found.stderr) == ("[]\n", "")


@pytest.mark.parametrize("command", [["ackstream"], ["python", "-m", "ackstream"], ["python", "-m", "ackstream.proxy"]])
def test_the_program_says_its_version(programs: Path, command: list[str]) -> None:
    argv = [str(programs / command[0]), *command[1:], "--version"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=programs)
    assert shown.stdout == f"ackstream, version {proxy.__version__}\n"


def test_the_installed_program_serves_a_stream(
    programs: Path, server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    """It follows the binary log, too: its reader is a module that is started by its name."""
    argv = [str(programs / "ackstream"), "serve", "--backend", f"mysql://root@{server.host}:{server.port}"]
    argv += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, cwd=tmp_path)
    try:
        eventually(lambda: READY.search(log.read_text()) or process.poll() is not None, timeout_s=30)
        ready = READY.search(log.read_text())
        assert ready, log.read_text()
        with connect(server, host=ready[1], port=int(ready[2]), database=database) as client:
            create_queue(client, "m")
            run(client, "INSERT INTO m (payload) VALUES ('installed')")
            assert rows(client, "STREAM id, payload FROM m LIMIT 1 WAIT 20") == [(1, "installed")]
            assert run(client, "ACK FROM m WHERE id = 1") == 1
        eventually(lambda: "following the binlog" in log.read_text(), timeout_s=20, what=log.read_text())
        process.terminate()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()


def test_sparks_wheel_has_one_package_and_needs_pymysql_alone(spark_wheel: Path) -> None:
    with zipfile.ZipFile(spark_wheel) as archive:
        names = archive.namelist()
        metadata = f"ackstream_spark-{pipeline.__version__}.dist-info"
        assert {name.split("/")[0] for name in names} == {"ackstream_spark", metadata}
        assert {Path(name).suffix for name in names if not name.startswith(metadata)} == {".py", ".typed", ".jinja"}
        requirements = re.findall(r"^Requires-Dist: (.*)$", archive.read(f"{metadata}/METADATA").decode(), re.MULTILINE)
    assert [text for text in requirements if "extra" not in text] == ["pymysql<2,>=1.2"]
    files = {path.relative_to(REPOSITORY / "pipeline") for path in (REPOSITORY / "pipeline").rglob("*.py")}
    assert {f"ackstream_spark/{path}" for path in files} <= set(names)


def test_both_distributions_have_one_version() -> None:
    assert pipeline.__version__ == proxy.__version__


def test_a_program_of_sparks_wheel_names_what_is_missing(spark_wheel: Path, tmp_path: Path) -> None:
    programs = installed(spark_wheel, tmp_path, packages=False)
    (site,) = tmp_path.glob("lib/*/site-packages")
    (site / "pymysql").symlink_to(Path(sysconfig.get_path("purelib"), "pymysql"))
    ended = subprocess.run([programs / "ackstream-enqueue"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert re.fullmatch(r"ackstream-enqueue: \w+ is missing: pip install 'ackstream-spark\[\w+\]'\n", ended.stderr)


def test_the_programs_of_sparks_wheel_are_those_that_the_commands_have() -> None:
    project = tomllib.loads((REPOSITORY / "pipeline" / "pyproject.toml").read_text())["project"]
    for name, place in project["scripts"].items():
        assert place == f"ackstream_spark.commands:{name.removeprefix('ackstream-')}"
    assert (REPOSITORY / "pipeline" / "LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()
