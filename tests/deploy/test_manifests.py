"""The systemd unit and the Kubernetes manifest of docker/: what their programs accept, and names that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.settings import OF_OTHERS, Settings

DOCKER = Path(__file__).parents[2] / "docker"
UNIT = DOCKER / "systemd" / "ackstream.service"
EXPOSURE_MAX = 2.0


def test_variables_and_options_exist() -> None:
    places = [path for path in DOCKER.rglob("*") if path.is_file()]
    variables = {name for path in places for name in re.findall(r"\bACKSTREAM_([A-Z_]+)\b", path.read_text())}
    assert {"BACKEND", "LISTEN", "DATA_DIR"} <= variables
    others = {name.removeprefix("ACKSTREAM_") for name in OF_OTHERS}
    assert {name.lower() for name in variables - others} <= Settings.model_fields.keys()
    options = re.findall(r" --([a-z-]+)", UNIT.read_text().partition("ExecStart=")[2].partition("\n")[0])
    assert {name.replace("-", "_") for name in options} <= {*Settings.model_fields, "config"}


@pytest.mark.deploy
def test_the_unit_is_valid_and_exposes_little(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing")
    program = tmp_path / "ackstream"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "ackstream.service"
    unit.write_text(UNIT.read_text().replace("/opt/ackstream/bin/ackstream", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "ackstream" in line] == []
    command = ["systemd-analyze", "security", "--offline=true", str(unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure is not None, done.stderr
    assert float(exposure[1]) <= EXPOSURE_MAX
