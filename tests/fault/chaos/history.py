"""The history of a run: one append-only file of events, each a line of JSON with the time first.

Times are microseconds of the machine's monotonic clock, so events of several processes compare. An
operation has two lines, `begin` before its first byte is sent and `done` after its answer, so a
process that is killed leaves operations without an answer and none without a beginning. A line is
written by one system call. Sets of messages are written as ranges (`Tokens`), because batches
contain neighbours. Tokens are unique in a run, unlike ids, which a TRUNCATE gives out again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "clock",  # wall_us: the machine's wall clock at this moment
    "open",  # conn, proxy (-1: the server itself), process
    "close",  # conn, why: its owner ends it, or has found it lost
    "begin",  # op, conn, what, queue, tokens, tx (0: autocommit), and what the operation needs (follow_up: a token)
    "done",  # op, outcome (ok, error, unknown), affected, error
    "got",  # conn, op, queue, rows: [epoch, time_next in us, tokens] for each delivery of equal epoch and time
    "process",  # process, place, pid: a process of the workload has begun in this place
    "gone",  # process: it is about to be killed
    "fault",  # number, what, phase (begin, begun, end), proxy (-1: not of one), values, shift_us (the server's clock)
    "phase",  # name: run, healed (all faults are over, no more messages), end
    "sample",  # what, and figures: memory of a proxy, due messages of a queue
    "plan",  # the queues of the run, as `Plan` has them
    "former",  # written: whether the former primary has committed anything some time after the failover
    "final",  # queue, state (waiting, acked, dead), epoch, tokens: the rows when all is over
    "alarm",  # text: a fault that the harness itself has seen, for instance a traceback in a log
]


class Event(NamedTuple):
    """One line: when, which kind, and its values by name."""

    at: int
    kind: Kind
    values: dict[str, Any]


def now_us() -> int:
    """The monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1000


def pack(tokens: Iterable[int]) -> str:
    """Tokens as text: `5` or `5+3` (5, 6, 7, 8), separated by commas."""
    parts: list[str] = []
    first = last = -2
    for token in sorted(tokens):
        if token == last + 1:
            last = token
            continue
        if first >= 0:
            parts.append(_run(first, last))
        first = last = token
    if first >= 0:
        parts.append(_run(first, last))
    return ",".join(parts)


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}+{last - first}"


def unpack(text: str) -> Iterator[int]:
    """The tokens of such a text."""
    for part in text.split(",") if text else ():
        first, _, more = part.partition("+")
        yield from range(int(first), int(first) + int(more or 0) + 1)


def line_of(event: Event) -> bytes:
    return (json.dumps([event.at, event.kind, event.values], separators=(",", ":")) + "\n").encode()


class Writer:
    """Appends events to a file. Several processes may append to one file: each line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: Kind, at: int | None = None, **values: Any) -> None:
        """Append an event of this moment, or of `at`."""
        os.write(self._file, line_of(Event(now_us() if at is None else at, kind, values)))

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[Event]:
    """The events in the order of the file. A torn last line of a killed process is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                at, kind, values = json.loads(line)
                yield Event(at, kind, values)
