"""The messages between the reader of the binary log and its parent, and their encoding in a
pipe."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

from engine.binlog.scope import FollowedTables
from engine.model import Key
from engine.store.opening import BackendAddress

HEAD_BYTES = 4

MESSAGE_BYTES_MAX = 256 << 20
"""Real messages are far shorter: the ids of 2,000 messages, of at most the 3 KB that an index
holds, are 6 MB. A longer size is garbage, and its end would never come."""


@dataclass(frozen=True, slots=True)
class BinlogLimits:
    """The bounds of reading the log, each with its reason."""

    rows_max: int = 2_000
    """Messages in one change set. With more, a scan of the table is cheaper."""
    pause_s: float = 0.001
    """Pause between two batches: at ten thousand changes a second, ten share a batch."""
    unknown_pause_s: float = 0.02
    """Pause after a batch with unknown changes, each of which costs the parent a scan."""
    lag_max_s: float = 2.0
    """With a longer lag behind the server, rows are not read until the end of the binary log is
    reached. The tables are scanned instead. The binary log has times in whole seconds."""
    heartbeat_s: float = 5.0
    """The server sends at least this often, so a dead connection is noticed within
    ConnectionLimits.read_s."""


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """The parent's first message. Later ones are FollowedTables and OwnConnections."""

    address: BackendAddress
    limits: BinlogLimits
    tables: FollowedTables
    mark: str = ""
    """What each statement of the engine that writes begins with. Its transactions are skipped."""
    lock: str = ""
    """The name of a lock that the reader's connection holds on MySQL: a connection of the engine
    that finds it held is on the same run of the same server."""


@dataclass(frozen=True, slots=True)
class OwnConnections:
    """The numbers of the engine's connections to the reader's server."""

    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ReaderStarted:
    """The reader follows the binary log from this position on."""

    at: str
    locked: bool = False
    """Whether the reader's connection holds the lock."""


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """A change set as plain values, because there may be ten thousand rows a second.

    Each table has its database, its name, its messages as they now are, the ids of messages that
    were acknowledged or deleted, and by id the epoch and time_next before a change.
    """

    tables: tuple[
        tuple[str, str, tuple[tuple[Any, ...], ...], tuple[Key, ...], Mapping[Key, tuple[int, int]]], ...
    ] = ()
    everything: bool = False
    schema_changed: bool = False
    rows: int = 0
    """Rows read since the last batch."""
    lag_s: float = 0.0

    def parts(self, messages_max: int) -> Iterator[ChangeBatch]:
        """The batch in parts, in the order of its changes, with at most so many messages in each."""
        if self.everything or sum(len(seen) + len(over) for _, _, seen, over, _ in self.tables) <= messages_max:
            yield self
            return
        yield replace(self, tables=())
        for db, name, seen, over, before in self.tables:
            if not seen and not over:  # Any of its messages may have changed.
                yield ChangeBatch(((db, name, seen, over, before),))
            for at in range(0, len(seen), messages_max):
                part = seen[at : at + messages_max]
                yield ChangeBatch(((db, name, part, (), before),))
            for at in range(0, len(over), messages_max):
                gone = over[at : at + messages_max]
                yield ChangeBatch(((db, name, (), gone, before),))


@dataclass(frozen=True, slots=True)
class ReaderEnded:
    """The reader has ended.

    `refused`: another one fails too until the server or the account is changed.
    """

    text: str
    refused: bool = False


def message(value: object) -> bytes:
    """A message's bytes in the pipe: its size and the pickled value."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return struct.pack("<I", len(body)) + body


def size_of(head: bytes) -> int:
    """The size in a message's head. Raises ValueError for one above MESSAGE_BYTES_MAX."""
    (size,) = struct.unpack("<I", head)
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes, which is too long")
    return int(size)


def value_of(body: bytes) -> Any:
    """The value in a message's body. Only for bytes that a program of ours has written."""
    return pickle.loads(body)  # noqa: S301  # parent and child are one program, and the pipe is theirs


def read_message(stream: IO[bytes]) -> Any:
    """The value of the next message. None at the stream's end."""
    head = stream.read(HEAD_BYTES)
    return None if len(head) < HEAD_BYTES else value_of(stream.read(size_of(head)))
