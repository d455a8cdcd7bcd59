"""A client of the database in a process of its own, which a test kills between two statements or in the middle of one.

As a program (`python -m tests.support.killable PORT DATABASE`) it reads statements from standard input, one line of
JSON each, and writes one line of JSON with what each has returned.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql


class Killed(Exception):
    """The process of the client was killed; its statement has no answer."""


@dataclass(frozen=True)
class Kill:
    """A kill at the statement behind `after` others, by a signal."""

    after: int
    by: signal.Signals
    sent: bool
    """Whether the statement is sent first: then the server may or may not have carried it out."""


class KillableClient:
    """The process. `answered` counts the statements that it has carried out."""

    def __init__(self, port: int, database: str, kill: Kill | None = None) -> None:
        self.answered = 0
        self._kill = kill
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killable", str(port), database],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.connection_id = int(self._line())

    def __call__(self, statement: str, arguments: Sequence[object] = ()) -> Any:
        """The rows of a statement, or the number of its affected rows. Raises Killed."""
        kill = self._kill if self._kill is not None and self._kill.after == self.answered else None
        if kill is None or kill.sent:
            self._say(json.dumps([statement, list(arguments)]))
        if kill is not None:
            self._process.send_signal(kill.by)
            self._process.communicate()
            raise Killed(statement)
        line = self._line()
        self.answered += 1
        return json.loads(line)

    def close(self) -> None:
        """End the process as a program that has nothing more to do, if it was not killed."""
        self._process.communicate()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the client's statement has failed: see its traceback"
        return line


@contextmanager
def killable(port: int, database: str, kill: Kill | None = None) -> Iterator[KillableClient]:
    client = KillableClient(port, database, kill)
    try:
        yield client
    finally:
        client.close()


def main(port: str, database: str) -> None:
    connection = pymysql.connect(host="127.0.0.1", port=int(port), user="root", database=database, autocommit=True)
    answer: Any
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        sys.stdout.write(f"{cursor.fetchall()[0][0]}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            statement, arguments = json.loads(line)
            answer = cursor.execute(statement, arguments or None)
            if cursor.description:
                answer = cursor.fetchall()
            sys.stdout.write(json.dumps(answer, default=str) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
