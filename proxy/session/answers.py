"""What the server says to a question of ours, gathered until it is whole."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from proxy.session.commit_notices import PendingCommand
from proxy.wire.framing import Packet, Packets
from proxy.wire.packets import ServerError, parse_err
from proxy.wire.walker import Outcome

ANSWER_MAX = 1 << 20
"""Bytes that the server may answer to a question of ours: a header of a table with 4,096 columns is below it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to a question of ours: its packets, and how it ended."""

    packets: tuple[Packet, ...]
    outcome: Outcome[PendingCommand]

    @property
    def error(self) -> ServerError | None:
        """What the server objected to, if it did."""
        return None if self.outcome.ok else parse_err(self.packets[-1].payload)


class InternalQuery:
    """A question of ours that the server has not answered yet."""

    def __init__(self) -> None:
        self.packets = Packets(ANSWER_MAX)
        self.received: list[Packet] = []
        self.size = 0
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> None:
        """More of the answer; beyond ANSWER_MAX bytes it is forgotten."""
        self.size += len(data)
        if self.size <= ANSWER_MAX:
            self.received += self.packets.feed(data)
        else:
            self.received.clear()

    def finish(self, outcome: Outcome[PendingCommand]) -> None:
        """The answer is whole: `answered` has it, or the error that it was too long."""
        if self.answered.done():
            return
        if self.size <= ANSWER_MAX:
            self.answered.set_result(Answer(tuple(self.received), outcome))
        else:
            text = f"ackstream's question about the table was answered with more than {ANSWER_MAX} bytes"
            self.answered.set_exception(ServerError(1105, "HY000", text))
