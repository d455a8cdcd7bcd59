"""What all sessions together hold of statements of ours, and of what clients send ahead, and the bound of it.

A statement of ours is gathered to its end before it is carried out, up to 16 MB. Its sender decides how fast that goes,
and whether it ends. So where all together would hold more than the bound, the largest one that is still incomplete is
dropped: a few senders of very long statements, or of some that never end, keep nobody from sending short ones.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from proxy.wire.packets import ServerError


class Sender(Protocol):
    """A session that gathers a statement."""

    def drop_statement(self) -> None:
        """Forget what is gathered and what comes of it yet; its answer is an error."""


class StatementMemory:
    """The bytes that are held, by session."""

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
            f"ackstream has {self.bytes_max} bytes in hand of long statements that clients are sending, as many as"
            " gathered_bytes_max allows, and this was the longest: name fewer messages in one statement, or try again",
        )

    @property
    def full(self) -> bool:
        """Whether more is held than may be."""
        return self.used > self.bytes_max

    def grown(self, sender: Sender, size: int) -> bool:
        """A statement has grown to so many bytes and is not complete; False when it is to be dropped."""
        self._set(self._incomplete, sender, size)
        while self.full:
            largest = max(self._incomplete, key=self._incomplete.__getitem__)
            self._set(self._incomplete, largest, 0)
            if largest is sender:
                return False
            largest.drop_statement()
        return True

    def holds(self, sender: Sender, incomplete: int, complete: int) -> None:
        """What a session holds now: of a statement that is not complete, and otherwise."""
        self._set(self._incomplete, sender, incomplete)
        self._set(self._complete, sender, complete)

    def _set(self, sizes: defaultdict[Sender, int], sender: Sender, size: int) -> None:
        self.used += size - sizes[sender]
        sizes[sender] = size
        if not size:
            del sizes[sender]
