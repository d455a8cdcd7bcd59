"""What a client has sent ahead of the statement that is under way."""

from __future__ import annotations

from collections import deque

from proxy.wire.framing import Command, Event


class Withheld:
    """Events in the order in which they came, and the bytes that they hold."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self.size = 0
        """In bytes."""

    def __bool__(self) -> bool:
        return bool(self._events)

    @property
    def first(self) -> Event:
        """The event that is next."""
        return self._events[0]

    def append(self, event: Event) -> None:
        """Add an event behind the others."""
        self._events.append(event)
        self.size += _size(event)

    def drop_first(self) -> None:
        """Remove the first event."""
        self.size -= _size(self._events.popleft())


def _size(event: Event) -> int:
    return len(event.data) if isinstance(event, Command) else len(event) if isinstance(event, bytes) else 0
