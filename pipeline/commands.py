"""The programs `ackstream-archive`, `ackstream-enqueue` and `ackstream-report`, for the shell and for
`spark-submit`.

They need packages that executors do not. Without these, each ends with one line that names them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

NEEDED: Final = {
    "click": "commands",
    "rich": "commands",
    "jinja2": "report",
    "markupsafe": "report",
    "matplotlib": "report",
    "py4j": "local",
    "pyspark": "local",
    "pyarrow": "local",
}
"""The extra of the distribution that installs a package."""


def archive() -> None:
    """Run `ackstream-archive`."""
    _run("archive")


def enqueue() -> None:
    """Run `ackstream-enqueue`."""
    _run("enqueue")


def report() -> None:
    """Run `ackstream-report`."""
    _run("report")


def _run(name: str) -> None:
    try:
        command = import_module(f".{name}.command", __package__)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in NEEDED:
            raise
        extra = NEEDED[package]
        sys.exit(f"ackstream-{name}: {package} is missing: pip install 'ackstream-spark[{extra}]'")
    command.main()
