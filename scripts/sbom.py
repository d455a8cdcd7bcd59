"""Writes dist/ackstream-VERSION.cdx.json: what the image installs, as a CycloneDX bill of materials.

It installs locks/runtime.txt into an empty environment and describes that. Run by make sbom, with the
Python that has cyclonedx-bom.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def version() -> str:
    """The version of ackstream."""
    found = re.search(r'^__version__ = "(.+)"$', (REPOSITORY / "proxy" / "__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise LookupError("proxy/__init__.py has no __version__")
    return found[1]


def described(folder: Path) -> str:
    """The bill of materials of an environment that is made in `folder`, as JSON."""
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet", "install"]
    lock = str(REPOSITORY / "locks" / "runtime.txt")
    subprocess.run([*pip, "--no-deps", "--require-hashes", "--requirement", lock], check=True)
    # Without times and serial numbers, so that equal versions make equal files.
    describe = ["cyclonedx-py", "environment", "--output-reproducible", "--mc-type", "application"]
    program = str(Path(sys.executable).with_name(describe[0]))
    command = [program, *describe[1:], "--pyproject", str(REPOSITORY / "pyproject.toml"), python]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def licences() -> dict[str, str]:
    """The licence of each package, from the table in docs/dependencies.md."""
    page = (REPOSITORY / "docs" / "dependencies.md").read_text()
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| ([A-Z].+) \|$", page, re.MULTILINE))


def main() -> None:
    """Write the file and print its path."""
    with tempfile.TemporaryDirectory() as folder:
        bill = json.loads(described(Path(folder)))
    # Its version is not in pyproject.toml.
    bill["metadata"]["component"] |= {"version": version(), "purl": f"pkg:pypi/ackstream@{version()}"}
    # A licence in words of the package's own is left out by cyclonedx-py.
    for component in bill["components"]:
        if not component.get("licenses"):
            component["licenses"] = [{"expression": licences()[component["name"].lower()]}]
    path = REPOSITORY / "dist" / f"ackstream-{version()}.cdx.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")
    sys.stdout.write(f"{path.relative_to(REPOSITORY)}: {len(bill['components'])} packages\n")


if __name__ == "__main__":
    main()
