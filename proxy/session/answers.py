"""The server's answer to an internal query, collected until it is complete."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from proxy.session.commit_notices import PendingCommand
from proxy.wire.framing import Packet, Packets
from proxy.wire.packets import ServerError, parse_err
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
