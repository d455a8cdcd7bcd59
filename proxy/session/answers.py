"""The server's answer to an internal query: collected until it is complete, or its rows passed on
as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.packets import EOF, ERR
from proxy.session.commit_notices import PendingCommand
from proxy.wire.fields import Reader
from proxy.wire.framing import Packet, Packets
from proxy.wire.packets import DEPRECATE_EOF, ServerError, parse_err
from proxy.wire.walker import Outcome

ANSWER_MAX = 1 << 20
"""Bytes of an answer to an internal query. The column packets of a table with 4,096 columns are
below it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to an internal query: its packets, and how it ended."""

    packets: tuple[Packet, ...]
    outcome: Outcome[PendingCommand]

    @property
    def error(self) -> ServerError | None:
        """The server's error; None if it was not an error."""
        return None if self.outcome.ok else parse_err(self.packets[-1].payload)


class InternalQuery:
    """An internal query that the server has not answered yet."""

    def __init__(self) -> None:
        self.packets = Packets(ANSWER_MAX)
        self.received: list[Packet] = []
        self.size = 0
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> None:
        """Add bytes of the answer. Beyond ANSWER_MAX all are dropped."""
        self.size += len(data)
        if self.size <= ANSWER_MAX:
            self.received += self.packets.feed(data)
        else:
            self.received.clear()

    def finish(self, outcome: Outcome[PendingCommand]) -> None:
        """The answer is complete: set the result of `answered`, or its exception if the answer was
        too long."""
        if self.answered.done():
            return
        if self.size <= ANSWER_MAX:
            self.answered.set_result(Answer(tuple(self.received), outcome))
        else:
            text = f"The server's answer to an internal query of ackstream has more than {ANSWER_MAX} bytes"
            self.answered.set_exception(ServerError(1105, "HY000", text))


ROW_MAX = 1 << 30
"""Bytes of a row: the server's own bound (max_allowed_packet)."""


class RowQuery(InternalQuery):
    """An internal query whose rows are passed on as they come, in portions. Its `Answer` has only
    the last packet: an error, or what ends the rows.

    The first value of each row must be a string of less than 64 kB and not NULL, so that no row
    begins as the packets do that end an answer.
    """

    def __init__(self, capabilities: int, on_rows: Callable[[Sequence[bytes]], None]) -> None:
        super().__init__()
        self.packets = Packets(ROW_MAX)
        self._on_rows = on_rows
        self._columns_eof = 0 if capabilities & DEPRECATE_EOF else 1
        self._before_rows: int | None = None
        """How many packets still precede the rows; None before the first packet."""

    def feed(self, data: bytes) -> None:
        """Pass the rows on that these bytes complete."""
        rows: list[bytes] = []
        for packet in self.packets.feed(data):
            first = packet.payload[0]
            if self._before_rows is None and first != ERR:
                self._before_rows = Reader(packet.payload).lenenc() + self._columns_eof
            elif self._before_rows:
                self._before_rows -= 1
            elif first in (EOF, ERR):
                self.received = [packet]
            else:
                rows.append(packet.payload)
        if rows:
            self._on_rows(rows)
