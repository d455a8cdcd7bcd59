"""How messages are divided into batches."""

from __future__ import annotations

from collections.abc import Iterator


def batches(messages: int, batch: int) -> Iterator[int]:
    """Yield the sizes of batches that are `messages` in total; only the last may be smaller than `batch`."""
    while messages > 0:
        yield min(batch, messages)
        messages -= batch
