"""README's first screen, typed line by line in a Debian system that has nothing but git and make.

The system gets this machine's settings for fetching packages, and no package of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.terminal import type_session
from tests.support.waiting import eventually

pytestmark = [pytest.mark.empty_root, pytest.mark.timeout(1500)]

REPOSITORY = Path(__file__).parents[2]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SUITE = "bookworm"
SETTINGS = ("etc/apt", "etc/ssl", "etc/pip.conf", "etc/resolv.conf", "etc/hosts", "usr/local/share/ca-certificates")
"""What decides from where this machine fetches packages."""
READY_S = 900


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian system with git and make."""
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    root = tmp_path_factory.mktemp("root") / "debian"
    root.mkdir(mode=0o755)
    packages = "--include=git,make,ca-certificates"
    subprocess.run(["debootstrap", "--variant=minbase", packages, SUITE, root], check=True, stdout=subprocess.DEVNULL)
    for name in SETTINGS:
        source = Path("/", name)
        if source.exists():
            subprocess.run(["cp", "--recursive", "--dereference", "--force", "-T", source, root / name], check=False)
    user = Path.home() / ".config" / "pip"
    if user.is_dir():
        shutil.copytree(user, root / "etc" / "xdg" / "pip")
    mounts = {"proc": ["-t", "proc", "proc"], "dev": ["--rbind", "/dev"]}
    for place, options in mounts.items():
        subprocess.run(["mount", *options, root / place], check=True)
    subprocess.run(["mount", "--make-rslave", root / "dev"], check=True)
    try:
        yield root
    finally:
        for place in mounts:
            subprocess.run(["umount", "--recursive", "--lazy", root / place], check=True)
        shutil.rmtree(root)


def inside(root: Path, line: str) -> list[str]:
    """The argv of a line that is typed behind `$` in the clone."""
    assert line.startswith("$ ")
    kept = [f"{name}={value}" for name, value in os.environ.items() if re.search("PIP|CERT|CA_|_proxy", name)]
    environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/opt", "TERM=dumb", *kept]
    script = f"cd /opt/ackstream && exec {line[2:]}"
    return ["chroot", str(root), *environment, "sh", "-c", script]


def test_the_first_screen_works_in_an_empty_system(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    serve, session = (block.splitlines() for block in CONSOLE.findall(readme))
    (program,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    began = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, root / "opt" / "ackstream"], check=True)
    log = root / "tmp" / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(inside(root, serve[0]), stdout=output, stderr=subprocess.STDOUT)
    try:
        ready = re.escape("\n".join(serve[1:])).replace("PORT", r"\d+")
        eventually(
            lambda: re.search(ready, log.read_text()) or process.poll() is not None, timeout_s=READY_S, what=str(log)
        )
        assert process.poll() is None, log.read_text()
        type_session(inside(root, session[0]), session[1:])
        (root / "opt" / "ackstream" / "worker.py").write_text(program)
        worker = subprocess.Popen(inside(root, "$ .venv/bin/python worker.py"), stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "working on bread\n"
        worker.kill()
        worker.communicate()
    finally:
        process.terminate()
        process.wait()
    with capsys.disabled():
        sys.stdout.write(
            f"\nfrom `git clone` to the first message of the worker in Python: {time.monotonic() - began:.0f} s\n"
        )
