"""Acknowledgements of several clients in one transaction, and how many messages each of them has
acknowledged.

The result is the same as if the ACKs had run one after the other, in the given order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.model import Key


class Ack(NamedTuple):
    """`ACK … WHERE id IN (keys)`, with `AND epoch = epoch` unless `epoch` is None."""

    keys: tuple[Key, ...]
    epoch: int | None = None


class Shares(NamedTuple):
    """What a batch of ACKs does."""

    counts: tuple[int, ...]
    """The affected rows of each ACK."""
    keys: tuple[Key, ...]
    """The messages that the batch acknowledges."""


def shares(acks: Sequence[Ack], epochs: Mapping[Key, int | None]) -> Shares:
    """What each of `acks` does. `epochs`: those of the unacknowledged rows that the transaction has
    locked."""
    taken: dict[Key, None] = {}
    counts: list[int] = []
    for ack in acks:
        before = len(taken)
        for key in ack.keys:
            if key in epochs and ack.epoch in (None, epochs[key]):
                taken[key] = None
        counts.append(len(taken) - before)
    return Shares(tuple(counts), tuple(taken))
