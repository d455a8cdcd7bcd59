"""Proxies that begin as a fork of a process with the program's imports already done.

The imports take most of the CPU time of a start, and the tests start hundreds of proxies. Each of
them is a process of its own all the same, with `ackstream serve` as its main program. What depends
on the command line of the process itself starts it as users do (`RunningProxy(..., forked=False)`),
and so does what sets variables of the environment that a program reads when it begins: libraries to
preload, settings of the memory allocator (`may_fork`).
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from proxy.embedded.child_process import die_with_parent

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["proxy.__main__", "proxy.serve"])

_ENVIRONMENT = dict(os.environ)
_READ_LATER = ("ACKSTREAM_", "PYTEST_", "TESTS_")
"""Variables of these names make no difference before the main function begins."""


def may_fork() -> bool:
    """Whether a fork sees the environment as a new process would."""
    changed = {name for name, _ in _ENVIRONMENT.items() ^ os.environ.items()}
    return all(name.startswith(_READ_LATER) for name in changed)


class ForkedProxy:
    """`ackstream` with these arguments in a session of its own, as a `ChildProcess`. It ends with
    the test process, however that ends."""

    def __init__(self, arguments: Sequence[str], *, output: Path) -> None:
        self._process: ForkServerProcess = _CONTEXT.Process(
            target=_run, args=(tuple(arguments), dict(os.environ), str(output)), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status once it has ended (negative: the signal that ended it), else None."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; False when it still runs after `timeout_s`."""
        self._process.join(timeout_s)
        return self._process.exitcode is not None

    def kill(self) -> None:
        """End it at once (SIGKILL). Does nothing if it has ended."""
        self._process.kill()


def _run(arguments: Sequence[str], environment: Mapping[str, str], output: str) -> None:
    """The main function of the forked process."""
    die_with_parent()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with Path(output).open("ab") as log, Path(os.devnull).open("rb") as nothing:
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source.fileno(), target)
    from proxy.__main__ import main  # noqa: PLC0415  # Imported already: only a fork comes here.

    main(list(arguments), prog_name="ackstream")
