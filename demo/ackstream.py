"""Run `ackstream serve` with its private server, in a temporary directory and on free ports."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

DIRECTIVES = "vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=100,vt_cache_size=10000,vt_poller_interval=30"

READY = re.compile(r"ackstream ready listen=\S+:(\d+) admin=\S+:(\d+) backend=\S+:(\d+)$")


class Running:
    """A running proxy: the ports of the proxy, of its server, and of its admin address."""

    def __init__(self, directory: str) -> None:
        """Start the proxy. The program exits if it does not start."""
        self._directory = directory
        self.port = self.admin_port = self.server_port = 0
        self._start()

    def _start(self) -> None:
        listen, admin = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.admin_port}"
        command = [sys.executable, "-m", "proxy", "serve", "--listen", listen, "--admin", admin]
        self._process = subprocess.Popen(
            [*command, "--data-dir", self._directory, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        ready = READY.match(self._process.stdout.readline())
        if ready is None:
            sys.exit("ackstream did not start: see above")
        self.port, self.admin_port, self.server_port = int(ready[1]), int(ready[2]), int(ready[3])

    def kill_and_start_again(self) -> None:
        """End the proxy as kill -9 does, and its private server with it; then start both on the same ports."""
        self._process.kill()
        self._process.wait()
        self._start()

    def stop(self) -> None:
        """End the proxy."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def ackstream() -> Iterator[Running]:
    """Start the proxy; it is terminated on exit. The program exits if it does not start."""
    with tempfile.TemporaryDirectory(prefix="ackstream-") as directory:
        running = Running(directory)
        try:
            yield running
        finally:
            running.stop()
