"""The compose file and the Kubernetes manifest against their published schemas, the bill of materials, the packages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pymysql
import pytest

import proxy
from tests.support.queues import rows, run

pytestmark = pytest.mark.deploy

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = REPOSITORY / ".venv-deploy" / "bin"
COMPOSE = REPOSITORY / "docker" / "compose.yaml"
MANIFEST = REPOSITORY / "docker" / "kubernetes" / "ackstream.yaml"
COMPOSE_CHECK = ("check-jsonschema", "--builtin-schema", "vendor.compose-spec")
MANIFEST_CHECK = ("kubernetes-validate", "--strict")
SERVING = re.compile(r"^ackstream ready listen=127\.0\.0\.1:(\d+)", re.MULTILINE)
VALIDATOR = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


def checked(command: tuple[str, ...], path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAMS / command[0], *command[1:], path], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "path"), [(COMPOSE_CHECK, COMPOSE), (MANIFEST_CHECK, MANIFEST)], ids=["compose", "kubernetes"]
)
def test_a_file_fits_its_schema(command: tuple[str, ...], path: Path) -> None:
    done = checked(command, path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "path", "good", "bad"),
    [
        (COMPOSE_CHECK, COMPOSE, "stop_grace_period", "stop_grace_time"),
        (COMPOSE_CHECK, COMPOSE, "profiles: [consumer]", "profiles: consumer"),
        (MANIFEST_CHECK, MANIFEST, "terminationGracePeriodSeconds", "terminationGraceSeconds"),
        (MANIFEST_CHECK, MANIFEST, "failureThreshold: 1", "failureThreshold: one"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, command: tuple[str, ...], path: Path, good: str, bad: str) -> None:
    """So the schemas are read at all, and strictly."""
    assert good in path.read_text()
    broken = tmp_path / path.name
    broken.write_text(path.read_text().replace(good, bad))
    assert checked(command, broken).returncode == 1


@pytest.mark.timeout(180)
def test_the_bill_of_materials_lists_what_the_image_installs() -> None:
    subprocess.run([PROGRAMS / "python", REPOSITORY / "scripts" / "sbom.py"], check=True, stdout=sys.stderr)
    text = (REPOSITORY / "dist" / f"ackstream-{proxy.__version__}.cdx.json").read_text()
    validate = [str(PROGRAMS / "python"), "-c", VALIDATOR]
    valid = subprocess.run(validate, check=True, input=text, capture_output=True, text=True)
    assert valid.stdout == "None\n"
    bill = json.loads(text)
    locked = re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (REPOSITORY / "locks" / "runtime.txt").read_text(), re.MULTILINE)
    found = {component["purl"]: component.get("licenses") for component in bill["components"]}
    assert found.keys() == {f"pkg:pypi/{name}@{version}" for name, version in locked}
    assert all(found.values())
    (root,) = [entry for entry in bill["dependencies"] if entry["ref"] == "root-component"]
    assert len(root["dependsOn"]) > 5


def built(target: str, sources: Path, folder: Path) -> Path:
    """The wheel or source distribution that these sources make."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(build, cwd=sources, check=True, capture_output=True)
    (package,) = folder.iterdir()
    return package


@pytest.mark.timeout(300)
def test_the_wheel_of_the_source_distribution_serves_from_an_empty_environment(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", REPOSITORY, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    (sources,) = (tmp_path / "sources").iterdir()
    wheel = built("wheel", sources, tmp_path / "wheel")
    venv.create(tmp_path / "environment", with_pip=True, symlinks=True)
    programs = tmp_path / "environment" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", str(wheel)], check=True)
    listed = subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True, text=True).stdout
    assert "pyspark" not in {package["name"] for package in json.loads(listed)}
    serve = [str(programs / "ackstream"), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ACKSTREAM_", "PYTHON"))}
    with subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as proxy_process:
        assert proxy_process.stdout is not None
        ready = next(filter(None, map(SERVING.match, proxy_process.stdout)))
        with pymysql.connect(host="127.0.0.1", port=int(ready[1]), user="root", autocommit=True) as client:
            for statement in ("CREATE DATABASE shop", "USE shop", "CREATE QUEUE m (body TEXT)"):
                run(client, statement)
            run(client, "INSERT INTO m (body) VALUES ('a')")
            assert rows(client, "STREAM body FROM m LIMIT 1 NOWAIT") == [("a",)]
        proxy_process.send_signal(signal.SIGTERM)
        assert proxy_process.wait(30) == 0
