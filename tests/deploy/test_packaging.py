"""The compose file and the Kubernetes manifest against their published schemas, and the bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import proxy

pytestmark = pytest.mark.deploy

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = REPOSITORY / ".venv-deploy" / "bin"
COMPOSE = REPOSITORY / "docker" / "compose.yaml"
MANIFEST = REPOSITORY / "docker" / "kubernetes" / "ackstream.yaml"
COMPOSE_CHECK = ("check-jsonschema", "--builtin-schema", "vendor.compose-spec")
MANIFEST_CHECK = ("kubernetes-validate", "--strict")
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
