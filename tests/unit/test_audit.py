"""What `make audit` lets pass: only packages that were looked up and are not vulnerable."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]

GOOD = {"name": "attrs", "version": "26.1.0", "vulns": []}
BAD = {"name": "click", "version": "8.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["8.2"]}]}
SKIPPED = {"name": "yarl", "skip_reason": "Dependency not found"}


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", REPOSITORY / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def answering(stdout: str, stderr: str = "", status: int = 0) -> Any:
    """A stand-in for subprocess.run."""
    return lambda command, **_: subprocess.CompletedProcess(command, status, stdout, stderr)


def test_packages_that_were_all_looked_up_pass(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit.subprocess, "run", answering(json.dumps({"dependencies": [GOOD]})))
    assert audit.main(["a.txt"]) == 0
    assert capsys.readouterr().out == "audit: a.txt: no known vulnerability in 1 packages\n"


@pytest.mark.parametrize(
    ("packages", "line"),
    [
        ([GOOD, BAD], "click 8.1: PYSEC-1, fixed in 8.2"),
        ([GOOD, SKIPPED], "1 of 2 packages could not be looked up, so nothing is known of them"),
        ([], "nothing was looked up"),
    ],
)
def test_anything_else_does_not(audit: ModuleType, packages: list[dict[str, Any]], line: str) -> None:
    (problem,) = audit.problems(packages)
    assert problem.startswith(line)


def test_a_service_that_cannot_be_reached_is_reported(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit.subprocess, "run", answering("", "Traceback …\nConnectionError: no route\n", 1))
    assert audit.main(["a.txt"]) == 1
    assert capsys.readouterr().err == "audit: a.txt: pip-audit failed: ConnectionError: no route\n"
