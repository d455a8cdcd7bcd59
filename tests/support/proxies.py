"""A proxy as its users run it: a process of its own, in front of a test's server.

It prints a ready line with its address. It ends with the test process, however that ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
from prometheus_client.parser import text_string_to_metric_families

from proxy.embedded.child_process import ChildProcess
from proxy.embedded.server import EmbeddedServer
from tests.support.prepared import ForkedProxy, may_fork
from tests.support.waiting import eventually

READY = re.compile(
    r"^ackstream ready listen=(\S+):(\d+) admin=(\S+) backend=(\S+)(?: socket=(\S+))?$",
    re.MULTILINE,
)


@contextlib.contextmanager
def environment(**changed: str) -> Iterator[None]:
    """Set these variables for processes started in the block."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class RunningProxy:
    """A started proxy. `port` is where clients connect, `admin_port` where HTTP is served: with
    several processes, by the first of `admin_ports`."""

    host = "127.0.0.1"

    def __init__(
        self,
        server: EmbeddedServer,
        log: Path,
        options: Sequence[str] = (),
        account: str = "root",
        *,
        forked: bool = True,
        program: Sequence[str] = (),
    ) -> None:
        """`forked`: it begins as a fork, which saves a second of CPU time (tests.support.prepared).
        `program`: what is started instead of this repository's."""
        self.server = server
        self.log = log
        self._options = options
        self._account = account
        self.port = 0
        self.admin_port = 0
        self.admin_ports: list[int] = []
        self._forked = forked and not program
        self.program = list(program) or [sys.executable, "-m", "proxy"]
        self._process: ChildProcess | ForkedProxy | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        backend = f"mysql://{self._account}@{self.server.host}:{self.server.port}"
        listen = f"{self.host}:{self.port}"
        self.log.unlink(missing_ok=True)
        arguments = [
            *("serve", "--backend", backend, "--listen", listen, "--admin", "127.0.0.1:0"),
            *("--log-level", "debug", "--data-dir", str(self.log.parent / "data"), *self._options),
        ]
        if self._forked and may_fork():
            process: ChildProcess | ForkedProxy = ForkedProxy(arguments, output=self.log)
        else:
            process = ChildProcess([*self.program, *arguments], output=self.log)
        self._process = process
        try:
            eventually(
                lambda: self._ready() or process.returncode is not None, timeout_s=30, what=f"ready line in {self.log}"
            )
        except AssertionError:
            self.stop()  # Otherwise it would be ready later, and have the port.
            raise
        assert process.returncode is None, self.output

    def _ready(self) -> bool:
        ready = READY.search(self.output)
        if ready is not None:
            self.port = int(ready[2])
            self.admin_ports = [int(address.rpartition(":")[2]) for address in ready[3].split(",")]
            self.admin_port = self.admin_ports[0]
        return ready is not None

    @property
    def output(self) -> str:
        """Its output and log."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def metric(self, name: str) -> float:
        """One number of /metrics, without `ackstream_` before its name."""
        lines = self._metrics().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"ackstream_{name} ")))

    def buckets(self, name: str) -> dict[float, float]:
        """A histogram of /metrics: how many values are below each bound, in the order of the bounds."""
        families = text_string_to_metric_families(self._metrics())
        samples = (sample for family in families if family.name == f"ackstream_{name}" for sample in family.samples)
        return {float(sample.labels["le"]): sample.value for sample in samples if "le" in sample.labels}

    def _metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics?counted=no") as answer:
            text: str = answer.read().decode()
        return text

    @property
    def memory_kb(self) -> int:
        """The resident memory of its process, in KiB."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found
        return int(found[1])

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self._process is not None
        self._process.kill()
        assert self._process.wait(10)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; its exit status."""
        assert self._process is not None
        self.send(number)
        assert self._process.wait(15), self.output
        assert self._process.returncode is not None
        return self._process.returncode

    def stop(self) -> None:
        """End it, whatever its state."""
        if self._process is not None and self._process.returncode is None:
            self.kill()

    def connect(self, **options: Any) -> Any:
        """A PyMySQL connection through it, as root, autocommit, unless told else; of no type, for tests look inside."""
        defaults = {
            "host": self.host,
            "port": self.port,
            "user": "root",
            "autocommit": True,
            "charset": "utf8mb4",
            "ssl_disabled": True,
        }
        return pymysql.connect(**{**defaults, **options})


@contextlib.contextmanager
def running_proxy(
    server: EmbeddedServer,
    log: Path,
    options: Sequence[str] = (),
    account: str = "root",
    *,
    check: bool = True,
    forked: bool = True,
) -> Iterator[RunningProxy]:
    """A started proxy, gone afterwards; no exception in its log (`check`). `account`: the engine's USER:PASSWORD."""
    proxy = RunningProxy(server, log, options, account, forked=forked)
    proxy.start()
    try:
        yield proxy
        assert not check or "Traceback" not in proxy.output, proxy.output
    finally:
        proxy.stop()


@contextlib.contextmanager
def proxies_of(folder: Path) -> Iterator[Callable[..., RunningProxy]]:
    """What starts proxies: `start(server, *options, **settings)`. They are gone behind the block; no exception in
    their logs, which are in this folder."""
    numbers = itertools.count()
    with contextlib.ExitStack() as started:

        def start(server: EmbeddedServer, *options: str, **settings: str) -> RunningProxy:
            with environment(**{f"ACKSTREAM_{name.upper()}": value for name, value in settings.items()}):
                log = folder / f"proxy-{next(numbers)}.log"
                return started.enter_context(running_proxy(server, log, options))

        yield start
