"""Checks the packages of a lock for known vulnerabilities, by pip-audit: `audit.py LOCK...`.

It passes only if each package was looked up and none is vulnerable. pip-audit itself passes, too, if the
service does not know a package. Run by make audit, with the Python that has pip-audit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def problems(packages: Sequence[dict[str, Any]]) -> list[str]:
    """Why the packages of a report of pip-audit do not pass, a line each; empty: they pass."""
    if not packages:
        return ["nothing was looked up"]
    found = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in "
        f"{', '.join(vulnerability['fix_versions']) or 'no version'}"
        for package in packages
        for vulnerability in package.get("vulns", ())
    ]
    unknown = [package for package in packages if "skip_reason" in package]
    if unknown:
        found.append(
            f"{len(unknown)} of {len(packages)} packages could not be looked up, so nothing is known of them "
            f"({unknown[0]['skip_reason']}): run it where the vulnerability service is reached"
        )
    return found


def report(lock: Path) -> list[dict[str, Any]]:
    """What pip-audit reports about a lock. Raises RuntimeError if the service cannot be reached."""
    program = str(Path(sys.executable).with_name("pip-audit"))
    command = [program, "--format", "json", "--progress-spinner", "off", "--require-hashes", "--disable-pip"]
    done = subprocess.run([*command, "--requirement", str(lock)], check=False, capture_output=True, text=True)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RuntimeError(f"pip-audit failed: {last}") from error
    return packages


def main(locks: Sequence[str]) -> int:
    """Audit each lock. Returns the exit status: 0 if all pass."""
    status = 0
    for lock in locks:
        try:
            packages = report(Path(lock))
            found = problems(packages)
        except RuntimeError as error:
            packages, found = [], [str(error)]
        for line in found:
            sys.stderr.write(f"audit: {lock}: {line}\n")
        if found:
            status = 1
        else:
            sys.stdout.write(f"audit: {lock}: no known vulnerability in {len(packages)} packages\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
