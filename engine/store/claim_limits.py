"""The statements by which a claim keeps the limits of its queue over all proxies (claim_plan)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.model import Claimed, Key, LimitsLeft, QueueTable
from engine.packets import text_values
from engine.quoting import quoted, text_literal
from engine.store.connection import Result
from engine.store.queries import TableStatements, statement

LOCK_WAIT_S = 1
"""How long a claim waits for another one with the same limit: hundreds of times what that takes. A
thread of the engine waits meanwhile."""

HOLDER_IDLE_S = 3
"""The server ends a session that holds the lock and sends nothing for this time: its proxy is frozen,
or its machine is gone. Between the two packets of a claim are microseconds."""

_TAKEN = b"1"


class ClaimLimits:
    """The limits of one claim. Without any, all lists of statements are empty."""

    def __init__(self, table: QueueTable, sql: TableStatements) -> None:
        policy = table.policy
        self._most = policy.max_in_flight if policy.counted else None
        self._lock = "" if self._most is None else text_literal(lock_name(table))
        self._sql = sql
        self._lease = quoted(table.lease_column or "")
        self._index = quoted(table.lease_index or "")
        self.places: int | None = None
        """How many messages may be claimed; None: any number. Known after `read`."""
        self._free_ns: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit, and the claim holds a lock for it."""
        return self._most is not None

    @property
    def before(self) -> list[str]:
        """Before the transaction."""
        if self._most is None:
            return []
        take = statement("limit_take", lock=self._lock, wait_s=LOCK_WAIT_S)
        return [statement("limit_session", idle_s=HOLDER_IDLE_S), take]

    @property
    def within(self) -> list[str]:
        """In the transaction, before the rows are locked."""
        if self._most is None:
            return []
        return [self._sql("limit_count", lease=self._lease, lease_index=self._index, most=self._most)]

    @property
    def behind(self) -> list[str]:
        """Behind the commit."""
        if self._most is None:
            return []
        return [statement("limit_release", lock=self._lock), statement("limit_session", idle_s="DEFAULT")]

    def read(self, before: Sequence[Result], within: Sequence[Result]) -> None:
        """Take the results of `before` and `within`."""
        if self._most is None:
            return
        (taken,) = text_values(before[-1].rows[0])
        if taken != _TAKEN:
            self.places = 0
            return
        count, free_ns = text_values(within[0].rows[0])
        self.places = max(0, self._most - int(count or 0))
        self._free_ns = None if free_ns is None else int(free_ns)

    def left(self, claims: Sequence[Claimed], left_out: Sequence[Key]) -> LimitsLeft | None:
        """What is left behind these claims; None without a limit."""
        if self.places is None:
            return None
        ends = [claim.deadline_ns for claim in claims]
        ends += [self._free_ns] if self._free_ns is not None else []
        return LimitsLeft(tuple(left_out), self.places - len(claims), min(ends, default=None))


def lock_name(table: QueueTable) -> str:
    """The name of the lock that each claim of a queue with a limit takes. A name has 64 characters at
    most, and its case does not count."""
    digest = hashlib.sha256(f"{table.id.db}\0{table.id.name}".encode()).hexdigest()
    return f"ackstream-limit/{digest[:40]}"
