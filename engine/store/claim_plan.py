"""The steps of a claim that keeps the limits of its queue over all proxies, and its choice.

Which messages are in flight follows from the rows: those that are unacknowledged and whose lease
column equals time_next and is not past. A claim begins with the lock of a row that all claims with the
same limit lock, counts, claims no more than there are places, and commits, which releases the lock. So
each claim counts what those before it have committed. The isolation level is READ COMMITTED: a statement
shows everything that was committed before it began.

The row of a queue is in `ackstream_limits`, that of a semaphore in `ackstream_semaphores`. To lock one
takes a privilege on it. A lock ends with its transaction, and so with its connection. A claim that waits
in vain fails (1205), as at a table that another session has locked.

Both stores carry out these steps in this order, and the tests play any other work of any proxy
between two of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence

from engine.model import Claimed, Entry, Key, Wanted
from engine.store.limits.limit import Choice


class Step(enum.Enum):
    """One statement of such a claim."""

    BEGIN = enum.auto()
    LOCK_LIMITS = enum.auto()
    """Lock the rows of the limits: wait for a short time, and fail without them."""
    COUNT = enum.auto()
    """Count the messages in flight, and read who holds the semaphores that are needed."""
    LOCK_ROWS = enum.auto()
    """Lock the rows that can be claimed."""
    COUNT_GROUPS = enum.auto()
    """Count the messages in flight of the message groups of these rows, which cannot change any more, read
    what their rates leave, and in strict order which messages are next."""
    CHECK_BATCHES = enum.auto()
    """Find the follow-ups among them whose batches are not done. Behind LOCK_ROWS: what a statement
    shows was committed before it began, and a part is committed with its follow-up, or before."""
    WRITE = enum.auto()
    COMMIT = enum.auto()
    """Also releases all locks."""


FIRST_PACKET: Sequence[Step] = (
    Step.BEGIN,
    Step.LOCK_LIMITS,
    Step.COUNT,
    Step.LOCK_ROWS,
    Step.COUNT_GROUPS,
    Step.CHECK_BATCHES,
)
SECOND_PACKET: Sequence[Step] = (Step.WRITE, Step.COMMIT)
"""What is written follows from the results of the first packet."""


def choose(
    wanted: Collection[Wanted],
    found: Mapping[Key, Entry],
    now_ns: int,
    end_ns: Callable[[int], int],
    choices: Sequence[Choice] = (),
) -> tuple[tuple[Claimed, ...], tuple[Key, ...]]:
    """The messages that a claim takes, and those that it leaves out for want of places.

    Takes those of the locked rows (`found`) that still have the wanted epoch and, in the order of `wanted`, a
    place in each of `choices`, which note them. `end_ns`: the end of a lease as it is written.
    """
    taken: list[Claimed] = []
    left_out: list[Key] = []
    for want in wanted:
        if (entry := found.get(want.key)) and want.epoch == entry.epoch:
            if choices and not all(choice.has_place(want.key) for choice in choices):
                left_out.append(want.key)
                continue
            end = end_ns(now_ns + want.wait_ns)
            claim = Claimed(want.key, entry.epoch + 1, end, entry.priority, entry.due_ns, entry.group)
            taken.append(claim)
            for choice in choices:
                choice.note_taken(claim)
    return tuple(taken), tuple(left_out)
