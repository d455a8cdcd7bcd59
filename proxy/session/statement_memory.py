"""Bounds the memory that all sessions together use for queue statements, and for what clients send
ahead of them.

A queue statement of up to 16 MB is received completely before it is carried out. Its sender decides
how long that takes, and whether it ends. If all sessions together would hold more than the bound,
the largest incomplete statement is dropped. So a few clients that send very long statements, or
never end one, do not prevent others from sending short ones.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from proxy.wire.packets import ServerError


class Sender(Protocol):
    """A session that receives a statement."""

    def drop_statement(self) -> None:
        """Forget the incomplete statement and the rest of it; its answer is an error."""


class StatementMemory:
    """The bytes that each session holds."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        """Bytes held by all sessions."""
        self._incomplete: defaultdict[Sender, int] = defaultdict(int)
        self._complete: defaultdict[Sender, int] = defaultdict(int)

    @property
    def refusal(self) -> ServerError:
        """The answer to a statement that was dropped."""
        return ServerError(
            1105,
            "HY000",
            f"ackstream holds {self.bytes_max} bytes of long statements that clients are sending, as many as"
            " statement_bytes_max allows, and this was the longest: name fewer messages in one statement, or try again",
        )

    @property
    def full(self) -> bool:
        """Whether all sessions together hold more than the bound."""
        return self.used > self.bytes_max

    def grown(self, sender: Sender, size: int) -> bool:
        """An incomplete statement has grown to this size. Returns False if the sender has to drop
        it."""
        self._set(self._incomplete, sender, size)
        while self.full:
            largest = max(self._incomplete, key=self._incomplete.__getitem__)
            self._set(self._incomplete, largest, 0)
            if largest is sender:
                return False
            largest.drop_statement()
        return True

    def holds(self, sender: Sender, incomplete: int, complete: int) -> None:
        """A session now holds these bytes of an incomplete statement, and these bytes besides
        it."""
        self._set(self._incomplete, sender, incomplete)
        self._set(self._complete, sender, complete)

    def _set(self, sizes: defaultdict[Sender, int], sender: Sender, size: int) -> None:
        self.used += size - sizes[sender]
        sizes[sender] = size
        if not size:
            del sizes[sender]
