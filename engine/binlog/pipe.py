"""What the reader of the binary log and its parent say to each other, and how it goes through a pipe."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import IO, Any

from engine.model import TableId
from engine.store.connection import BackendAddress

HEAD_BYTES = 4

MESSAGE_BYTES_MAX = 256 << 20
"""A message of a reader that is well is far shorter: 2,000 messages' ids, of 3 KB each at the most that an index holds,
are 6 MB. A longer one is rubbish, and waiting for its end would be waiting for ever."""


@dataclass(frozen=True, slots=True)
class BinlogLimits:
    """The bounds of reading the log, each with its reason."""

    rows_max: int = 2_000
    """Messages told of at a time; with more, a look at the table is the better news."""
    pause_s: float = 0.001
    """Between two batches of news: at ten thousand changes a second, ten share a batch."""
    unknown_pause_s: float = 0.02
    """After news that cost the parent a look at a table."""
    lag_max_s: float = 2.0
    """Further behind the server than this, rows are not read any more, until the log's end is reached: the tables are
    looked at instead. The log tells whole seconds."""
    heartbeat_s: float = 5.0
    """The server speaks at least as often, so that a dead connection is noticed within ConnectionLimits.read_s."""


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """What the parent says first."""

    address: BackendAddress
    limits: BinlogLimits
    tables: frozenset[TableId]


@dataclass(frozen=True, slots=True)
class ReaderStarted:
    """The log is being followed, from here on."""

    at: str


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """A change set, as plain values, because there may be ten thousand a second: for each table its messages as they
    now are, and the ids of those that are over."""

    tables: tuple[tuple[str, str, tuple[tuple[Any, ...], ...], tuple[Any, ...]], ...] = ()
    everything: bool = False
    schema_changed: bool = False
    rows: int = 0
    """Rows read since the last batch."""
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReaderEnded:
    """The reader cannot go on; `refused`: and cannot before somebody changes the server or the account."""

    text: str
    refused: bool = False


def message(value: object) -> bytes:
    """A message for a pipe: its size and itself."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return struct.pack("<I", len(body)) + body


def size_of(head: bytes) -> int:
    """The size that a message's head tells; ValueError for one that no message has."""
    (size,) = struct.unpack("<I", head)
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes, which is no message")
    return int(size)


def value_of(body: bytes) -> Any:
    """What was said. Only for what a program of ours has written."""
    return pickle.loads(body)  # noqa: S301  # parent and child are one program, and the pipe is theirs


def read_message(stream: IO[bytes]) -> Any:
    """The next message; None when there is none any more."""
    head = stream.read(HEAD_BYTES)
    return None if len(head) < HEAD_BYTES else value_of(stream.read(size_of(head)))
