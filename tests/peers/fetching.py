"""Sources and environments of the suites, kept in the cache directory between runs.

From PyPI a source comes as an sdist by pip; from Debian as the upstream archive of a source package by apt, with an apt
configuration of its own, so that this system's stays as it is. Either is believed only when its hash is the known one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.suites import Source, Suite, lock_of
from tests.support.servers import cache_dir

REPOSITORY = Path(__file__).parents[2]
LOCKS = REPOSITORY / "locks"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


class FetchError(Exception):
    """A suite cannot be had here; the text says why."""


def cache() -> Path:
    """Where all of it is kept."""
    path = cache_dir() / "peers"
    path.mkdir(parents=True, exist_ok=True)
    return path


def run(argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a tool; its output, or FetchError with the end of it."""
    done = subprocess.run(
        [*map(str, argv)], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise FetchError(f"{' '.join(map(str, argv))}\n{done.stdout[-2000:]}")
    return done.stdout


def archive(source: Source, python: Path) -> Path:
    """The source's archive, fetched unless it is in the cache."""
    folder = cache() / "sources" / f"{source.package}-{source.version}"
    for path in sorted(folder.glob("*.tar.*")):
        if _has_hash(path, source.sha256):
            return path
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if source.debian is None:
        _fetch_sdist(source, python, folder)
    else:
        _fetch_upstream(source.package, source.debian, folder)
    found = [path for path in folder.glob("*.tar.*") if _has_hash(path, source.sha256)]
    if not found:
        raise FetchError(f"{source.package} {source.version} is not what it was: {[*folder.iterdir()]}")
    return found[0]


def _has_hash(path: Path, sha256: str) -> bool:
    return hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _fetch_sdist(source: Source, python: Path, folder: Path) -> None:
    wanted = folder / "requirement.txt"
    wanted.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
    options = ["--no-deps", "--no-build-isolation", f"--no-binary={source.package}", f"--dest={folder}"]
    run([python, *PIP, "download", *options, "--require-hashes", f"--requirement={wanted}"])


def _fetch_upstream(package: str, release: str, folder: Path) -> None:
    if shutil.which("apt-get") is None or not KEYRING.exists():
        raise FetchError(f"{package} comes as a source package of Debian's, and this is no Debian system")
    archives = run(["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"])
    mirrors = [line.removeprefix("Debian ") for line in archives.splitlines() if line.startswith("Debian ")]
    if not mirrors:
        raise FetchError(f"{package} comes as a source package of Debian's, and apt knows no archive of Debian's")
    with tempfile.TemporaryDirectory(prefix="ackstream-apt-") as scratch:
        state = Path(scratch)
        (state / "sources.list").write_text(f"deb-src [signed-by={KEYRING}] {mirrors[0]} {release} main\n")
        for name in ("lists/partial", "cache/archives/partial"):
            (state / name).mkdir(parents=True)
        apt = [
            "apt-get",
            *("-o", f"Dir::Etc::sourcelist={state / 'sources.list'}", "-o", "Dir::Etc::sourceparts=/dev/null"),
            *("-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state / 'cache'}"),
            *("-o", "APT::Sandbox::User="),
        ]
        run([*apt, "update"])
        run([*apt, "source", "--download-only", "--tar-only", package], cwd=folder)


def unpacked(path: Path, into: Path) -> Path:
    """A fresh copy of the source in an archive."""
    shutil.rmtree(into, ignore_errors=True)
    with tarfile.open(path) as packed:
        packed.extractall(into, filter="data")
    (top,) = into.iterdir()
    return top


def environment_of(suite: Suite) -> Path:
    """The Python of the suite's environment, made when it or its lock is new."""
    locks = [LOCKS / "peers-build.txt", LOCKS / lock_of(suite)] if suite.python else [LOCKS / "peers-build.txt"]
    said = "".join(lock.read_text() for lock in locks) + suite.source.sha256 + sys.version
    folder = cache() / "environments" / f"{suite.name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    python = folder / "bin/python"
    if (folder / "complete").exists():
        return python
    run([sys.executable, "-m", "venv", "--clear", folder])
    for lock in locks:
        run([python, *PIP, "install", "--require-hashes", "--no-build-isolation", f"--requirement={lock}"])
    if suite.python and suite.builds:
        with tempfile.TemporaryDirectory(prefix="ackstream-build-") as scratch:
            top = unpacked(archive(suite.source, python), Path(scratch) / "source")
            run([python, *PIP, "install", "--no-deps", "--no-build-isolation", top])
    (folder / "complete").touch()
    return python
