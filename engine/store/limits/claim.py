"""All limits of one claim, each in its turn (`claim_plan` has the steps)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from engine.catalog.limits import limits_of
from engine.catalog.own_tables import LIMITS_TABLE
from engine.model import Entry, Key, LimitsLeft, Wanted
from engine.packets import Result
from engine.queue_table import QueueTable
from engine.store.limits.group_limit import GroupLimit
from engine.store.limits.group_order import GroupOrderLimit
from engine.store.limits.group_rate import GroupRateLimit
from engine.store.limits.in_flight import InFlightLimit
from engine.store.limits.limit import Choice, Left, Limit
from engine.store.limits.of_queue import QueueLimit
from engine.store.queries import statement

HOLDER_IDLE_S = 3
"""The server ends a session that has locked a limit and sends nothing for this time: its proxy is frozen,
or its machine is gone. Between the two packets of a claim are microseconds."""

KEPT_BY: Mapping[str, type[Limit]] = MappingProxyType(
    {
        "max_in_flight": InFlightLimit,
        "group_order": GroupOrderLimit,
        "group_limit": GroupLimit,
        "group_rate": GroupRateLimit,
    }
)
"""The limits that a queue has of its own, by their directives. `QueueLimit` keeps `max_rate`."""


def own_limits(table: QueueTable, claim_s: float) -> list[Limit]:
    """The limits that a queue has of its own. `claim_s`: how long its last claim took. The first one locks before
    those that others share: a claim that waits for another one of its queue then holds no semaphore that other
    queues need, and no claim that holds a semaphore waits for the row of a queue."""
    if LIMITS_TABLE.limit(table.policy) is None:
        return []
    kept = [KEPT_BY[limit.key](table, claim_s) for limit in limits_of(table.policy) if limit.key in KEPT_BY]
    return [QueueLimit(table, claim_s), *kept]


class ClaimLimits:
    """The limits of one claim. Without any, all lists of statements are empty."""

    def __init__(self, limits: Sequence[Limit], wanted: Mapping[Key, Wanted]) -> None:
        self._limits = limits
        self._locks = [limit.locks for limit in limits]
        self._counts = [limit.counts for limit in limits]
        self._of_rows = [limit.of_rows(wanted) for limit in limits]
        self.locks = _joined(self._locks)
        """First in the transaction."""
        self.counts = _joined(self._counts)
        """Behind them, before the messages are locked."""
        self.of_rows = _joined(self._of_rows)
        """Behind the locks of the messages."""

    @property
    def before(self) -> list[str]:
        """Before the transaction. The reset of the session behind it undoes this."""
        return [statement("limit_session", idle_s=HOLDER_IDLE_S)] if self.locks else []

    def read(self, locked: Sequence[Result], counted: Sequence[Result], now_ns: int) -> None:
        """Take the results of `locks` and `counts`. Raises Unprepared."""
        of_counts = _divided(counted, self._counts)
        for limit, of_locks in zip(self._limits, _divided(locked, self._locks), strict=True):
            limit.read(of_locks, next(of_counts), now_ns)

    def read_rows(self, results: Sequence[Result], found: Mapping[Key, Entry], now_ns: int) -> None:
        """Take the results of `of_rows`. `found`: the messages that were locked."""
        for limit, of_limit in zip(self._limits, _divided(results, self._of_rows), strict=True):
            limit.read_rows(of_limit, found, now_ns)

    def possible(self, found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]) -> Mapping[Key, Entry]:
        """Those of the locked messages that may be claimed if they have places. Raises Unprepared."""
        for limit in self._limits:
            found = limit.possible(found, wanted)
        return found

    @property
    def choices(self) -> list[Choice]:
        """What was found."""
        return [limit.choice for limit in self._limits if limit.choice is not None]

    def writes(self) -> list[str]:
        """With the claims, in the transaction."""
        return _joined([limit.writes() for limit in self._limits])

    def left(self, left_out: Sequence[Key], found: Mapping[Key, Entry]) -> LimitsLeft | None:
        """What is left behind the claim; None if nothing was locked for a limit."""
        return left_behind(self.choices, left_out, found) if self.locks else None


def left_behind(choices: Sequence[Choice], left_out: Sequence[Key], found: Mapping[Key, Entry]) -> LimitsLeft:
    """What these choices leave. `found`: the messages that were locked."""
    left = Left(found)
    for choice in choices:
        choice.leave(left)
    return left.with_left_out(left_out)


def _joined(parts: Sequence[Sequence[str]]) -> list[str]:
    return [text for part in parts for text in part]


def _divided(results: Sequence[Result], parts: Sequence[Sequence[str]]) -> Iterator[Sequence[Result]]:
    """The results of the statements of each part."""
    at = 0
    for part in parts:
        yield results[at : at + len(part)]
        at += len(part)
