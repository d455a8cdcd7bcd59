"""What a client has sent ahead of the statement that is under way."""

from __future__ import annotations

from collections import deque

from proxy.wire.framing import Command, Event


class Withheld(deque[Event]):
    """Events in the order in which they came, and the bytes that they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        """In bytes."""

    def append(self, event: Event) -> None:
        """Add an event behind the others."""
        super().append(event)
        self.size += _size(event)

    def popleft(self) -> Event:
        """Remove the first event."""
        event = super().popleft()
        self.size -= _size(event)
        return event


def _size(event: Event) -> int:
    return len(event.data) if isinstance(event, Command) else len(event) if isinstance(event, bytes) else 0
