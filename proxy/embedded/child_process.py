"""A child process that never outlives its parent.

A private database server must end with the program that started it, also when that program is
killed by a signal that it cannot handle. Linux does this (PR_SET_PDEATHSIG) under two conditions.
The child must request it itself, between fork and exec. Python code run there (`preexec_fn`) can
deadlock in a process with threads, so this file is run as a script in between: it makes the request
and becomes the program by exec, with the same pid. And the kernel watches the *thread* that forked,
so each child is started by a thread of its own, which then waits for the child's end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
LOST_PARENT_STATUS = 125


class ChildProcess:
    """A running program in a session of its own, killed by the kernel when this process ends.

    `argv[0]` is an absolute path. Standard output and error are appended to the file `output`; the
    file descriptors of `keep_fds` stay open in the child. Raises OSError where it cannot be started
    at all.
    """

    def __init__(self, argv: Sequence[str], *, output: Path, keep_fds: Sequence[int] = ()) -> None:
        self._argv = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]
        self._output = output
        self._keep_fds = tuple(keep_fds)
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=f"child {Path(argv[0]).name}", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with self._output.open("ab") as output:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=self._keep_fds,
                    # A terminal's Ctrl-C reaches its whole process group: not this child.
                    start_new_session=True,
                )
        except OSError as failure:
            self._failure = failure
        finally:
            self._started.set()
        if self._process is not None:
            self._process.wait()
            self._ended.set()

    @property
    def pid(self) -> int:
        """The process id of the program."""
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status once it has ended (negative: the signal that ended it), else None."""
        assert self._process is not None
        return self._process.returncode if self._ended.is_set() else None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; False when it still runs after `timeout_s`."""
        return self._ended.wait(timeout_s)

    def terminate(self) -> None:
        """Request its end (SIGTERM). Does nothing if it has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL). Does nothing if it has ended."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends. Does nothing except on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """`child_process.py PARENT_PID PROGRAM ARGUMENT…`: become the program, which then ends with its parent."""
    parent_pid, *argv = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent_pid):  # The parent ended before the request.
        sys.exit(LOST_PARENT_STATUS)
    os.execv(argv[0], argv)  # noqa: S606 - to become another program is this file's purpose


if __name__ == "__main__":
    main()
