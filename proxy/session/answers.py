"""The server's answers to internal queries: collected until they are complete, or the rows passed on
as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.packets import EOF, ERR, WireError, frame
from proxy.session.commit_notices import PendingCommand
from proxy.wire.fields import Reader
from proxy.wire.framing import Packet, Packets
from proxy.wire.handshake import MARIADB_CACHE_METADATA
from proxy.wire.packets import DEPRECATE_EOF, ServerError, parse_err
from proxy.wire.walker import Outcome

ANSWER_MAX = 1 << 20
"""Bytes of an answer to an internal query. The column packets of a table with 4,096 columns are
below it."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The server's answer to an internal query: its packets, and how it ended."""

    packets: tuple[Packet, ...]
    outcome: Outcome[PendingCommand]

    @property
    def error(self) -> ServerError | None:
        """The server's error; None if it was not an error."""
        return None if self.outcome.ok else parse_err(self.packets[-1].payload)


@dataclass(frozen=True, slots=True)
class Answers:
    """The server's answers to internal queries that were written together."""

    raw: bytes
    """All their bytes."""
    outcomes: tuple[Outcome[PendingCommand], ...]

    def split(self) -> tuple[ServerAnswer, ...]:
        """The answer to each query. Raises WireError if they cannot be separated."""
        packets = Packets(ANSWER_MAX).feed(self.raw)
        answers = [packets] if len(self.outcomes) == 1 else list(_each_answer(packets))
        if len(answers) != len(self.outcomes):
            raise WireError("the server's answers to several queries cannot be separated")
        return tuple(map(ServerAnswer, map(tuple, answers), self.outcomes))


class InternalQueries:
    """Internal queries that were written together and that the server has not answered yet."""

    def __init__(self, count: int = 1) -> None:
        self.size_max = count * ANSWER_MAX
        self.received: list[bytes] = []
        self.size = 0
        self.answered: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._count = count
        self._outcomes: list[Outcome[PendingCommand]] = []

    def feed(self, data: bytes) -> None:
        """Add bytes of the answers. Beyond `size_max` all are dropped."""
        self.size += len(data)
        if self.size <= self.size_max:
            self.received.append(data)
        else:
            self.received.clear()

    def finish(self, outcome: Outcome[PendingCommand]) -> None:
        """An answer is complete. After the last one, set the result of `answered`, or its exception
        if the answers were too long."""
        self._outcomes.append(outcome)
        if len(self._outcomes) < self._count or self.answered.done():
            return
        if self.size > self.size_max:
            text = f"The server's answer to an internal query of ackstream has more than {ANSWER_MAX} bytes"
            self.answered.set_exception(ServerError(1105, "HY000", text))
            return
        self.answered.set_result(Answers(b"".join(self.received), tuple(self._outcomes)))


OnPayloads = Callable[[Sequence[bytes]], None]

ROW_MAX = 1 << 30
"""Bytes of a row: the server's own bound (max_allowed_packet)."""


class RowQuery(InternalQueries):
    """An internal query whose rows are passed on as they come, in portions. Its `ServerAnswer` has only the
    last packet: an error, or what ends the rows.

    The first value of each row must be a string of less than 64 kB and not NULL, so that no row
    begins as the packets do that end an answer.
    """

    def __init__(self, capabilities: int, on_rows: OnPayloads) -> None:
        super().__init__()
        self.packets = Packets(ROW_MAX)
        self._on_rows = on_rows
        self._columns_eof = 0 if capabilities & DEPRECATE_EOF else 1
        self._may_omit_columns = bool(capabilities & MARIADB_CACHE_METADATA)
        self._before_rows: int | None = None
        """How many packets still precede the rows; None before the first packet."""

    def feed(self, data: bytes) -> None:
        """Pass the rows on that these bytes complete."""
        rows: list[bytes] = []
        for packet in self.packets.feed(data):
            first = packet.payload[0]
            if self._before_rows is None and first != ERR:
                head = Reader(packet.payload)
                columns = head.lenenc()
                omitted = self._may_omit_columns and packet.payload[head.at :] == b"\0"
                self._before_rows = (0 if omitted else columns) + self._columns_eof
            elif self._before_rows:
                self._before_rows -= 1
            elif first in (EOF, ERR):
                self.received = [frame(packet.payload, packet.seq)]
            else:
                rows.append(packet.payload)
        if rows:
            self._on_rows(rows)


def _each_answer(packets: Sequence[Packet]) -> Iterator[Sequence[Packet]]:
    """The packets of each answer.

    Within an answer each packet has the next sequence number, modulo 256, and the first one has 1.
    So an answer of a multiple of 256 packets would be taken for a part of its successor.
    """
    begin, last = 0, 0
    for place, packet in enumerate(packets):
        if packet.seq == 1 and last and place:
            yield packets[begin:place]
            begin = place
        last = packet.seq
    yield packets[begin:]
