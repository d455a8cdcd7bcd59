"""Acknowledgements of several clients in one transaction, and how many messages each of them has
acknowledged.

The result is the same as if the clients' own ACKs had run one after the other, in the given order.
An ACK is left out, and its client has to run it itself, if its row was not locked: a row that
another transaction has locked would delay all others, and a row that was not found may have been
such a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.model import Key


class Ack(NamedTuple):
    """`ACK … WHERE id = key`, with `AND epoch = epoch` unless `epoch` is None."""

    key: Key
    epoch: int | None = None


class Shares(NamedTuple):
    """What a batch of ACKs does."""

    counts: tuple[int | None, ...]
    """The affected rows of each ACK, 0 or 1; None: it is left out."""
    keys: tuple[Key, ...]
    """The messages that the batch acknowledges."""


def shares(acks: Sequence[Ack], locked: Iterable[tuple[Key, int | None]]) -> Shares:
    """What each of `acks` does. `locked`: id and epoch of the unacknowledged rows that the
    transaction has locked."""
    rows = tuple(locked)
    occurrences = Counter(key for key, _ in rows)
    epochs = {key: epoch for key, epoch in rows if occurrences[key] == 1}
    taken: dict[Key, None] = {}
    counts: list[int | None] = []
    for ack in acks:
        if ack.key not in epochs:
            counts.append(None)
        elif ack.key in taken or ack.epoch not in (None, epochs[ack.key]):
            counts.append(0)
        else:
            taken[ack.key] = None
            counts.append(1)
    return Shares(tuple(counts), tuple(taken))
