"""The steps of a claim that keeps the limits of its queue over all proxies, and its choice.

Which messages are in flight follows from the rows: those that are unacknowledged and whose lease
column equals time_next and is not past. A claim takes a lock that all claims with the same limit
take, counts, claims no more than there are places, commits, and releases the lock. So each claim
counts what those before it have committed. The isolation level is READ COMMITTED: a statement shows
everything that was committed before it began.

The lock is a user-level lock of the server. It ends with its connection, as the transaction does.
Both stores carry out these steps in this order, and the tests play any other work of any proxy
between two of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence

from engine.model import Claimed, Entry, Key, Wanted


class Step(enum.Enum):
    """One statement of such a claim."""

    TAKE_LOCK = enum.auto()
    """Wait for the lock of the limit, for a short time. Without it nothing is claimed."""
    BEGIN = enum.auto()
    COUNT = enum.auto()
    """Count the messages in flight."""
    LOCK_ROWS = enum.auto()
    """Lock the rows that can be claimed."""
    WRITE = enum.auto()
    COMMIT = enum.auto()
    RELEASE_LOCK = enum.auto()


FIRST_PACKET: Sequence[Step] = (Step.TAKE_LOCK, Step.BEGIN, Step.COUNT, Step.LOCK_ROWS)
SECOND_PACKET: Sequence[Step] = (Step.WRITE, Step.COMMIT, Step.RELEASE_LOCK)
"""What is written follows from the results of the first packet."""


def choose(
    wanted: Collection[Wanted],
    found: Mapping[Key, Entry],
    now_ns: int,
    end_ns: Callable[[int], int],
    places: int | None,
) -> tuple[tuple[Claimed, ...], tuple[Key, ...]]:
    """The messages that a claim takes, and those that it leaves out for want of places.

    Takes those of the locked rows (`found`) that still have the wanted epoch, the first `places` of
    them in the order of `wanted` (None: all). `end_ns`: the end of a lease as it is written.
    """
    possible = [
        Claimed(want.key, entry.epoch + 1, end_ns(now_ns + want.wait_ns), entry.priority, entry.due_ns, entry.group)
        for want in wanted
        if (entry := found.get(want.key)) and want.epoch == entry.epoch
    ]
    count = len(possible) if places is None else max(0, places)
    return tuple(possible[:count]), tuple(claim.key for claim in possible[count:])
