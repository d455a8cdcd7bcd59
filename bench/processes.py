"""Processes that a measurement starts, their listening ports, and the CPU time that they take."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from proxy.embedded.child_process import ChildProcess
from tests.support.waiting import eventually

HOST = "127.0.0.1"
TICKS = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = 60.0


class ProgramFailedError(Exception):
    """A program of a measurement did not start, or failed."""


def family(pid: int) -> Iterator[int]:
    """Yield the process and its descendants. A process that ends meanwhile is left out."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        yield pid
        for task in tasks:
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process so far, with that of its ended children, in seconds."""
    try:
        # The name, in parentheses, may contain blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, shared libraries included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def listens(port: int) -> bool:
    """Whether a process accepts connections on this port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def free_port() -> int:
    """Return a port that was free just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def listening_process(command: Sequence[str], log: Path, port: int) -> Iterator[int]:
    """Run a server until the block ends; yield its process id when it accepts connections.

    Raises ProgramFailedError if it ends before.
    """
    process = ChildProcess(list(command), output=log)
    try:
        eventually(
            lambda: listens(port) or process.returncode is not None,
            timeout_s=START_TIMEOUT_S,
            what=f"a listener, see {log}",
        )
        if process.returncode is not None:
            raise ProgramFailedError(f"{command[-1]} has ended: {log.read_text()}")
        yield process.pid
    finally:
        descendants = [pid for pid in family(process.pid) if pid != process.pid]
        process.kill()
        process.wait()
        for pid in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
