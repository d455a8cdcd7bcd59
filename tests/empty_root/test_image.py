"""The image's steps, read from docker/Dockerfile and carried out in an empty Debian system.

No container engine is needed. The base image is this system with Debian's Python under the name
`python`. The program then runs as its user, with nothing writable but its volume.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.embedded.child_process import ChildProcess
from proxy.embedded.server import EmbeddedServer
from tests.support.servers import new_server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.empty_root, pytest.mark.timeout(1500)]

REPOSITORY = Path(__file__).parents[2]
SETTINGS = ("etc/apt", "etc/ssl", "etc/pip.conf", "etc/resolv.conf", "etc/hosts", "usr/local/share/ca-certificates")
KEPT = re.compile("PIP|CERT|CA_|_proxy")
"""Variables that decide from where packages are fetched."""


@dataclass
class Stage:
    """A stage of the build, as a folder."""

    root: Path
    workdir: str = "/"
    user: str = "0"
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    volume: str = ""

    def argv(self, *command: str) -> list[str]:
        kept = [f"{name}={value}" for name, value in os.environ.items() if KEPT.search(name)]
        own = [f"{name}={value}" for name, value in self.environment.items()]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', self.workdir, *command]
        return [
            "chroot",
            f"--userspec={self.user}:{self.user}",
            str(self.root),
            "env",
            "-i",
            path,
            *kept,
            *own,
            *inside,
        ]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def copied(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    into = ["-T"] if source.is_dir() else []
    subprocess.run(["cp", "--recursive", *into, source, target], check=True)


def context(folder: Path) -> Path:
    """The files that the build may see, by Dockerfile.dockerignore."""
    names = re.findall(r"^!(\S+)$", (REPOSITORY / "docker" / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    for name in names:
        copied(REPOSITORY / name, folder / name)
    return folder


def build(base: Path, files: Path, folder: Path) -> Stage:
    """Carry out the instructions; the last stage. An instruction that is not known here fails."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, rest in instructions((REPOSITORY / "docker" / "Dockerfile").read_text()):
        if name == "FROM":
            root = folder / f"stage{len(stages)}"
            subprocess.run(["cp", "--archive", base, root], check=True)
            stage = stages[rest.partition(" AS ")[2] or str(len(stages))] = Stage(root)
            continue
        assert stage is not None
        match name:
            case "RUN":
                subprocess.run(stage.argv("sh", "-c", rest), check=True, stdout=subprocess.DEVNULL)
            case "COPY":
                words = rest.split()
                origin = stages[words.pop(0).removeprefix("--from=")].root if rest.startswith("--from=") else files
                source, target = words
                copied(origin / source.strip("/"), stage.root / stage.workdir.strip("/") / target.removeprefix("/"))
            case "WORKDIR":
                stage.workdir = rest
                (stage.root / rest.strip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                stage.user = rest
            case "ENV":
                stage.environment |= dict(word.split("=", 1) for word in rest.split())
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(rest)
            case "CMD":
                stage.command = json.loads(rest)
            case "VOLUME":
                stage.volume = rest
            case "EXPOSE" | "HEALTHCHECK":
                pass
            case _:
                raise AssertionError(name)
    assert stage is not None
    return stage


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    base = folder / "base"
    base.mkdir(mode=0o755)
    include = "--include=python3,python3-venv,ca-certificates"
    subprocess.run(
        ["debootstrap", "--variant=minbase", include, "bookworm", base], check=True, stdout=subprocess.DEVNULL
    )
    for name in SETTINGS:
        if Path("/", name).exists():
            shutil.rmtree(base / name, ignore_errors=True)
            subprocess.run(["cp", "-rLT", Path("/", name), base / name], check=False)
    user = Path.home() / ".config" / "pip"
    if user.is_dir():
        shutil.copytree(user, base / "etc" / "xdg" / "pip")
    (base / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    try:
        yield build(base, context(folder / "context"), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_image_starts_as_its_user_with_a_read_only_root(image: Stage, tmp_path: Path) -> None:
    assert (image.user, image.volume) == ("10001", "/var/lib/ackstream")
    with new_server("mariadb", tmp_path / "server") as server:
        assert_serves(image, server, tmp_path / "log")


def assert_serves(image: Stage, server: EmbeddedServer, log: Path) -> None:
    environment = image.environment | {
        "ACKSTREAM_BACKEND": f"mysql://root@{server.host}:{server.port}",
        "ACKSTREAM_LISTEN": "127.0.0.1:0",
        "ACKSTREAM_ADMIN": "127.0.0.1:0",
    }
    argv = Stage(image.root, image.workdir, image.user, environment).argv(*image.entrypoint, *image.command)
    data = image.root / image.volume.strip("/")
    mounts = (
        f"mount --bind {image.root} {image.root} && mount --bind {data} {data}"
        f' && mount -o remount,ro,bind {image.root} && mount -t proc proc {image.root}/proc && exec "$@"'
    )
    process = ChildProcess(
        [shutil.which("unshare") or "", "--mount", "--propagation=private", "sh", "-c", mounts, "-", *argv], output=log
    )
    try:
        eventually(
            lambda: "ackstream ready" in log.read_text() or process.returncode is not None,
            timeout_s=60,
            what=f"the ready line in {log}",
        )
        assert process.returncode is None, log.read_text()
        assert (data / "tls.pem").exists()
        health = re.search(r"admin=(\S+)", log.read_text())
        assert health is not None
        check = f"import urllib.request; print(urllib.request.urlopen('http://{health[1]}/livez').status)"
        done = subprocess.run(
            image.argv("/opt/ackstream/bin/python", "-c", check), check=True, capture_output=True, text=True
        )
        assert done.stdout.strip() == "200"
    finally:
        process.kill()
        process.wait(10)
