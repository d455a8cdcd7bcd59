"""Run `ackstream serve` with its private server, in a temporary directory and on free ports."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

DIRECTIVES = "vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=100,vt_cache_size=10000,vt_poller_interval=30"


@dataclass(frozen=True, slots=True)
class Running:
    """The ports of a running proxy, of its server, and of its admin address."""

    port: int
    server_port: int
    admin_port: int


@contextlib.contextmanager
def ackstream() -> Iterator[Running]:
    """Start the proxy; it is terminated on exit. The program exits if it does not start."""
    with tempfile.TemporaryDirectory(prefix="ackstream-") as directory:
        command = [sys.executable, "-m", "proxy", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, "--data-dir", directory, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            ready = re.match(
                r"ackstream ready listen=\S+:(\d+) admin=\S+:(\d+) backend=\S+:(\d+)$", process.stdout.readline()
            )
            if ready is None:
                sys.exit("ackstream did not start: see above")
            yield Running(port=int(ready[1]), server_port=int(ready[3]), admin_port=int(ready[2]))
        finally:
            process.terminate()
            process.wait()
