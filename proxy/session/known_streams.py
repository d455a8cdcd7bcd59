"""STREAMs that a session has proven before, so that the same text again costs one round trip or none.

What is remembered of a STREAM holds under one context of the session and one definition of the
table: see `proxy.statements.proof`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engine.model import RowFormat
from engine.queue_table import QueueTable
from proxy.session.prepared import TrackedStatement
from proxy.wire.params import Execute
from sqlrewrite.stream import StreamStatement

if TYPE_CHECKING:
    from proxy.session.internal_queries import Context

KNOWN_STREAMS_MAX: Final = 4
"""STREAMs remembered for each session. A worker runs one text, or a few in turn."""

COMMAND_BYTES_MAX: Final = 2 << 10
"""Of the command of one of them. What was parsed of it takes four times its bytes."""

KNOWN_BYTES_MAX: Final = 8 << 10
"""Of the column packets and the queries of one of them. A STREAM of twenty columns has 3 kB."""


@dataclass(slots=True)
class KnownStream:
    """A STREAM statement, and what the session has shown for it."""

    statement: StreamStatement
    """Without parameters."""
    queue: QueueTable
    row_format: RowFormat
    header: tuple[bytes, ...]
    """The packets that precede the rows."""
    context: Context
    context_signature: tuple[bytes | None, ...]
    definition: bytes
    """The digest of the table's definition."""
    queries: tuple[bytes, ...]
    """They prove it again: the context, the definition, the rights."""
    begun_s: float
    """When the last proof was begun, by the monotonic clock."""

    @property
    def size(self) -> int:
        """The bytes of its packets and queries."""
        return sum(map(len, self.queries)) + sum(map(len, self.header))


Key = bytes | tuple[TrackedStatement, Execute]
"""The text of a statement, or the parameters of an execution of this very prepared statement."""


class KnownStreams:
    """The last STREAMs of a session."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Key, KnownStream] = OrderedDict()

    def get(self, key: Key) -> KnownStream | None:
        """What is known of this STREAM."""
        return self._by_key.get(key)

    def remember(self, key: Key, length: int, known: KnownStream) -> None:
        """Remember this STREAM, instead of the one that was remembered first, unless it is too
        long. `length`: the bytes of its command."""
        if length <= COMMAND_BYTES_MAX and known.size <= KNOWN_BYTES_MAX:
            self._by_key[key] = known
            if len(self._by_key) > KNOWN_STREAMS_MAX:
                self._by_key.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Remember nothing of this STREAM."""
        self._by_key.pop(key, None)
