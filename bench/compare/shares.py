"""How consumers divide the messages of a drain."""

from __future__ import annotations

from collections.abc import Iterator


def shares(messages: int, consumers: int) -> list[int]:
    """Return how many messages each consumer takes: as equal as possible, in total `messages`."""
    whole, rest = divmod(messages, consumers)
    return [whole + (number < rest) for number in range(consumers)]


def batches(messages: int, batch: int) -> Iterator[int]:
    """Yield the sizes of batches that are `messages` in total; only the last may be smaller than `batch`."""
    while messages > 0:
        yield min(batch, messages)
        messages -= batch
