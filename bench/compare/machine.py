"""What a page of results names of the machine and of the revision that was measured."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
from pathlib import Path


def machine(load_before: float) -> list[str]:
    """Return the revision, the date and the machine, a line each."""
    return [
        f"commit {_revision()}, {dt.datetime.now(dt.UTC):%d %B %Y}; {_python()}",
        f"{os.cpu_count()} cores ({_processor()}), Linux {platform.release()}; load before the run {load_before:.1f}",
    ]


def _revision() -> str:
    """Return the commit, marked if files other than results differ from it."""
    commit = _git("describe", "--always") or "unknown"
    differs = _git("status", "--porcelain", "--untracked-files=no", ":/", ":!/bench/results")
    return f"{commit}-dirty" if differs else commit


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def _python() -> str:
    """Return the version of Python, and whose it is: systems build theirs with optimizations."""
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "the system")
    of = f" of {system}" if sys.base_prefix == "/usr" else ""
    return f"Python {platform.python_version()}{of}"


def _processor() -> str:
    """Return the model of the first core."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
