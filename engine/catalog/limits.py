"""The limits that a queue can have, as everybody knows them but those that keep them (`engine.store.limits`).

What a limit needs of the table, of other tables and of other directives stands here once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.catalog.directive import Directive, OneOf, column, rate, whole
from engine.queue_table import GROUP_RATES, LIMITS, SEMAPHORES, Policy, QueueTable

ROWS_MOST = 1_000_000
"""The greatest number of messages: a greater one is likely a mistake, and keys cost memory."""


@dataclass(frozen=True, slots=True)
class LimitDirective(Directive):
    """A directive that sets a limit."""

    of_dead_letters: bool = False
    tables: tuple[str, ...] = (LIMITS,)
    """The tables of ackstream's own that it needs."""
    counted_by: tuple[str, ...] | None = None
    """The directives of the columns by which its messages in flight are counted; None: they are not counted."""
    ordered: bool = False
    """Whether it needs the index of strict order."""
    part_of: str | None = None
    """The limit that it is a part of, in a queue that has both."""

    def again(self, policy: Policy) -> str:
        """The option with which ALTER QUEUE adds what it needs to a queue that has it."""
        return self.as_option(self.written(self.value(policy)) or "")

    def lacking(self, queue: QueueTable) -> str | None:
        """What the table of a queue that has it lacks; None: nothing."""
        if self.counted_by is not None and queue.lease_index is None:
            return "a lease column and an index" if queue.policy.lease is None else "an index on the lease column"
        return "the index of strict order" if self.ordered and queue.order_index is None else None


_MESSAGES = whole(1, ROWS_MOST)

LIMIT_DIRECTIVES: Sequence[LimitDirective] = (
    LimitDirective(
        "max_in_flight", _MESSAGES, "delivered and unacknowledged messages at most", "1000", of_dead_letters=True,
        counted_by=(),
    ),
    LimitDirective("max_rate", rate, "deliveries of this table a second at most", "100"),
    LimitDirective(
        "group_order", OneOf({"STRICT": True}),
        "the order within a group, one run of group_limit messages (1) at a time", "STRICT", "group_strict",
        needs="group_by", counted_by=("group_by",), ordered=True,
    ),
    LimitDirective(
        "group_limit", _MESSAGES, "messages of a group in flight at most", "2", needs="group_by",
        counted_by=("group_by",), part_of="group_order",
    ),
    LimitDirective(
        "group_rate", rate, "deliveries of a group a second at most", "5", needs="group_by",
        tables=(LIMITS, GROUP_RATES),
    ),
    LimitDirective(
        "semaphores", column, "the column with the semaphores that a message needs", "needs",
        not_with=("group_limit", "group_order", "group_rate"), tables=(SEMAPHORES,), counted_by=("semaphores",),
    ),
)  # fmt: skip
"""All of them."""


def limits_of(policy: Policy) -> Sequence[LimitDirective]:
    """Those that a queue has."""
    found = {limit.key: limit for limit in LIMIT_DIRECTIVES if limit.value(policy) not in {None, False}}
    return [limit for limit in found.values() if limit.part_of not in found]


def counted_columns(values: Mapping[str, str]) -> list[list[str]]:
    """By which columns the messages in flight of a queue with these directives are counted, for each of its
    limits that counts them."""
    counted = (limit.counted_by for limit in LIMIT_DIRECTIVES if limit.key in values)
    return [
        [name.strip() for key in keys if key in values for name in values[key].split("|")]
        for keys in counted
        if keys is not None
    ]
