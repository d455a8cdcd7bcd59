"""What `consume` does with messages: it runs a program, or posts them to a URL."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from proxy.commands.values import as_json, as_text

AGAIN_STATUS = 75
"""EX_TEMPFAIL of sysexits.h."""

RETRY_AFTER_MAX_S = 86_400.0
"""A day: an answer that asks for more is an error of its service more often than meant."""

OUTPUT_MAX = 64 << 10
"""Bytes of a program's output that are logged, the last ones."""

COLUMN_PREFIX = "COLUMN_"
"""The prefix of the variables with a message's columns. No column can set any other variable."""

COLUMN_MAX = 32 << 10
"""Bytes of a column that is a variable. The system refuses a program whose variables are too large:
one of 128 KiB, or all of 2 MiB."""

COLUMNS_MAX = 256 << 10
"""Bytes of all of them."""

VARIABLE = re.compile(r"[A-Za-z0-9_]+")
"""The end of a variable's name, so that shells can use it."""

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
"""The name of a column in an argument."""

KILL_AFTER_S = 5.0
"""After the SIGTERM to a program that takes too long."""

Message = Mapping[str, Any]


class Result(Enum):
    """What becomes of messages."""

    DONE = auto()
    """They are acknowledged."""
    AGAIN = auto()
    """They are given back: it is too early."""
    FAILED = auto()
    """The attempt has failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for a batch of messages, and lines for the log."""

    result: Result
    text: str = ""
    delay_s: float | None = None
    """When to try again, if the receiver has said so."""
    reason: str = ""
    """Why they are not done, in one line."""


class Handler(Protocol):
    """Handles a batch of messages. Its methods are called from several threads."""

    columns: frozenset[str]
    """The columns that it needs of each message, by their names."""

    def handle(self, batch: Sequence[Message]) -> Outcome:
        """Handle the messages; returns when they are handled."""

    def stop(self) -> None:
        """End what is under way, as failed."""


class Program:
    """Runs a program for each batch. A message is one line of JSON on its standard input."""

    def __init__(self, command: str, timeout_s: float, queue: str, *, in_batches: bool) -> None:
        """`command` is split as a shell does. `{column}` in an argument is replaced, unless messages come
        `in_batches`. Raises ValueError if a quotation has no end, or if there is no such program."""
        self._argv = shlex.split(command)
        if not PLACEHOLDER.search(self._argv[0]) and shutil.which(self._argv[0]) is None:
            raise ValueError(f"there is no program {self._argv[0]}")
        self._in_batches = in_batches
        named = [] if in_batches else [name for argument in self._argv for name in PLACEHOLDER.findall(argument)]
        self.columns = frozenset(filter(VARIABLE.fullmatch, named))
        self._timeout_s = timeout_s
        self._queue = queue
        self._guard = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def handle(self, batch: Sequence[Message]) -> Outcome:
        """Run the program, and wait for it."""
        lines = "".join(as_json(message) + "\n" for message in batch).encode()
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    self._arguments(batch),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._variables(batch),
                    start_new_session=True,
                )
            except OSError as error:
                text = f"{self._argv[0]} cannot be run: {error.strerror}"
                return Outcome(Result.FAILED, text, reason=text)
            with self._guard:
                self._running.add(process)
            try:
                status = self._wait(process, lines)
            finally:
                with self._guard:
                    self._running.discard(process)
            output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_MAX))
            text = output.read().decode("utf-8", "replace").strip()
        if status == 0:
            return Outcome(Result.DONE, text)
        last_line = text.rpartition("\n")[2]
        if status == AGAIN_STATUS:
            return Outcome(Result.AGAIN, text, reason=_reason(f"exit status {status}", last_line))
        if status is None:
            how = f"ended after --timeout {self._timeout_s:g} s"
        else:
            how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
        return Outcome(Result.FAILED, _joined(text, how), reason=_reason(how, last_line))

    def stop(self) -> None:
        """End the programs that run."""
        with self._guard:
            for process in self._running:
                _signal(process, signal.SIGTERM)

    def _wait(self, process: subprocess.Popen[bytes], lines: bytes) -> int | None:
        """Its exit status; None if it took too long."""
        with process:
            try:
                process.communicate(lines, timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGTERM)
                try:
                    process.wait(KILL_AFTER_S)
                except subprocess.TimeoutExpired:
                    _signal(process, signal.SIGKILL)
                return None
            return process.returncode

    def _arguments(self, batch: Sequence[Message]) -> list[str]:
        if self._in_batches:
            return self._argv
        values = {name: as_text(value) for name, value in batch[0].items()}
        return [_replaced(argument, values) for argument in self._argv]

    def _variables(self, batch: Sequence[Message]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(COLUMN_PREFIX)}
        own = {"MESSAGE_QUEUE": self._queue, "MESSAGE_COUNT": str(len(batch))}
        if len(batch) == 1:
            own |= {"MESSAGE_ID": as_text(batch[0]["id"]), "MESSAGE_EPOCH": as_text(batch[0]["epoch"])}
            own |= column_variables(batch[0])
        return {**inherited, **own}


class Post:
    """Posts each batch to a URL: a JSON object, or lines of JSON."""

    def __init__(self, url: str, timeout_s: float, *, lines: bool) -> None:
        """`lines`: the body is NDJSON also for one message."""
        self._url, self._timeout_s, self._lines = url, timeout_s, lines
        self.columns = frozenset[str]()

    def handle(self, batch: Sequence[Message]) -> Outcome:
        """Post the messages, and wait for the answer."""
        body = "\n".join(map(as_json, batch)).encode()
        kind = "application/x-ndjson" if self._lines else "application/json"
        request = urllib.request.Request(self._url, body, {"Content-Type": kind}, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:  # noqa: S310
                answer.read(OUTPUT_MAX)
            return Outcome(Result.DONE)
        except urllib.error.HTTPError as error:
            with error:
                early = error.code in {408, 425, 429, 503}
                result, text = Result.AGAIN if early else Result.FAILED, f"HTTP {error.code}"
                return Outcome(result, text, _retry_after(error), text)
        except OSError as error:
            text = f"{self._url}: {error}"
            return Outcome(Result.AGAIN, text, reason=text)

    def stop(self) -> None:
        """Requests end by themselves, within the timeout."""


def column_variables(message: Message) -> dict[str, str]:
    """The columns of a message as variables of a program's environment. Columns that are NULL, that a
    variable cannot contain or that are too large are left out."""
    found, total = dict[str, str](), 0
    for name, value in message.items():
        text = as_text(value)
        total += (size := len(name) + len(text.encode()))
        fits = size <= COLUMN_MAX and total <= COLUMNS_MAX
        if value is not None and fits and VARIABLE.fullmatch(name) and "\0" not in text:
            found[COLUMN_PREFIX + name] = text
    return found


def _retry_after(error: urllib.error.HTTPError) -> float | None:
    """The seconds that the answer asks for. A date in their place is not read."""
    text = error.headers.get("Retry-After", "")
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdecimal() else None


def _joined(text: str, how: str) -> str:
    return f"{text}\n{how}" if text else how


def _reason(how: str, last_line: str) -> str:
    return f"{how}: {last_line}" if last_line else how


def _replaced(argument: str, values: Mapping[str, str]) -> str:
    """The argument with values in the places of columns. What a value contains is not replaced."""
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), argument)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
