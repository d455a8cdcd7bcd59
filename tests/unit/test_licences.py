"""The licences of what is installed with ackstream stand in the documents, and are those that the packages state."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([a-z0-9-]+) \| ((?:[A-Z][A-Za-z0-9.-]*)(?: (?:AND|OR) [A-Z][A-Za-z0-9.-]*)*) \|$", re.MULTILINE)
SPELLINGS = {"Apache 2": "Apache-2.0", "Apache 2.0": "Apache-2.0", "MIT License": "MIT"}
BY_CLASSIFIER = {"License :: OSI Approved :: MIT License": "MIT"}


def stated(name: str) -> str:
    """The licence in a package's metadata, as an SPDX expression."""
    found = metadata(name).json
    text = str(found.get("license_expression") or found.get("license") or "")
    if text:
        return SPELLINGS.get(text, text)
    (licence,) = [BY_CLASSIFIER[line] for line in found.get("classifier", []) if line in BY_CLASSIFIER]
    return licence


def test_the_licences_of_all_dependencies_are_listed() -> None:
    locked = re.findall(r"^([a-z0-9-]+)==", (REPOSITORY / "locks" / "runtime.txt").read_text(), re.MULTILINE)
    page = (REPOSITORY / "docs" / "dependencies.md").read_text()
    assert dict(ROW.findall(page)) == {
        name: "MIT OR Apache-2.0" if name == "uvloop" else stated(name) for name in locked
    }
