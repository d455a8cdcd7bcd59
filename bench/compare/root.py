"""Programs of the competitors that come from Debian's unstable suite, unpacked in the cache.

`scripts/prepare competitors` unpacks them. They run in a chroot, which needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.compare.model import MissingError
from bench.processes import ProgramFailedError, listening_process
from tests.support.servers import cache_dir

ROOT = cache_dir() / "competitors-sid"


def in_root(program: str, *arguments: str, user: str = "root") -> list[str]:
    """Return the command that runs a program as a user of the unpacked system. Raises MissingError."""
    if os.geteuid() != 0:
        raise MissingError("its programs run in a chroot, which needs root")
    if not (ROOT / program.lstrip("/")).exists():
        raise MissingError("not installed: `scripts/prepare competitors` does it")
    chroot = shutil.which("chroot", path=f"{os.environ['PATH']}:/usr/sbin") or "/usr/sbin/chroot"
    return [chroot, f"--userspec={user}", str(ROOT), program, *arguments]


def output(*command: str) -> str:
    """Run a command; return its output. Raises ProgramFailedError with its errors if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ProgramFailedError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
    return done.stdout.strip()


@contextlib.contextmanager
def folder_in_root(owner: str = "root") -> Iterator[Path]:
    """Make an empty folder; yield its path inside the unpacked system. Its path outside is `outside(path)`."""
    with tempfile.TemporaryDirectory(prefix="compare-", dir=ROOT / "tmp", ignore_cleanup_errors=True) as made:
        output(*in_root("/usr/bin/chown", owner, f"/tmp/{Path(made).name}"))  # noqa: S108
        yield Path("/tmp") / Path(made).name  # noqa: S108


def outside(inside: Path) -> Path:
    """Return the path on this machine of a path inside the unpacked system."""
    return ROOT / inside.relative_to("/")


@contextlib.contextmanager
def server_in_root(folder: Path, port: int, command: Sequence[str], user: str = "root") -> Iterator[int]:
    """Run a server with its log in `folder`; yield its process id when it listens."""
    with listening_process(in_root(*command, user=user), outside(folder) / "log", port) as pid:
        yield pid
