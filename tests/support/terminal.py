"""The `mysql` command line client on a terminal of its own, as a person types into it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.waiting import eventually


class Terminal:
    """`mysql` on a terminal of its own."""

    def __init__(self, argv: list[str]) -> None:
        self.screen = ""
        try:
            self._master, slave = pty.openpty()
        except OSError as error:  # A bare chroot has none.
            pytest.skip(f"this system gives out no terminals: {error}")
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - so that Ctrl-C reaches it as from a keyboard
        )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def shows(self, pattern: str) -> str:
        """Wait until the screen shows it; forget the screen up to there."""

        def found() -> re.Match[str] | None:
            while select.select([self._master], [], [], 0)[0]:
                try:
                    self.screen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # The program has closed its side.
                    break
            return re.search(pattern, self.screen)

        try:
            match = eventually(found, timeout_s=20)
        except AssertionError as error:
            raise AssertionError(f"not on the screen: {pattern!r}; it shows {self.screen!r}") from error
        assert match is not None
        self.screen = self.screen[match.end() :]
        return match[0]

    def waits(self) -> None:
        """Wait until the program sleeps, all that it had to print being on the screen: for the server, then."""
        eventually(lambda: Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def as_printed(line: str) -> str:
    """A pattern for a line of a page as a client prints it: with other times and other blanks."""
    words = r"\s+".join(map(re.escape, line.split()))
    return re.sub(r"\d\\\.\d+", r"[\\d.]+", words)


def type_session(argv: list[str], lines: Sequence[str]) -> None:
    """Type each line behind `> ` at the client's prompt, and wait for the lines that follow it."""
    client = Terminal(argv)
    try:
        for line in filter(None, lines):
            if line.startswith("> "):
                client.shows("> ")
                client.type(f"{line[2:]}\n")
            else:
                client.shows(as_printed(line))
    finally:
        client.close()
