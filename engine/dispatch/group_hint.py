"""What the dispatcher knows of one limit that message groups wait for.

All this is a hint: each claim reads again in the database. A hint that is wrong costs a claim in vain, or a
wait until the next poll, and never exceeds a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar

from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.model import Entry, Group, Holder, Key, LimitsLeft, TableId
from engine.queue_table import Policy


class GroupHint:
    """One limit of the groups of one table. Reads `leases`, and reports groups that may have a place again."""

    reasons: ClassVar[Mapping[str, str]] = {}
    """Why messages are held back, by name, with a text for people."""

    def __init__(self, policy: Policy, note_unused: Callable[[Group], None], leases: Leases) -> None:
        """`note_unused` takes the groups that may have a place again."""
        self._policy = policy
        self._note_unused = note_unused
        self._leases = leases

    @property
    def limited(self) -> bool:
        """Whether the queue has this limit. Everything but `set_policy` is called only then."""
        return False

    @property
    def reason(self) -> str | None:
        """Which of `reasons` holds, if only groups without a place have messages; None: it is another limit."""
        return next(iter(self.reasons))

    # Picking.

    def has_place(self, group: Group, key: Key, here: int, taken: int) -> bool:
        """Whether this message of a group may be in flight, beside `here` messages of this proxy and
        `taken` ones that were taken in this round."""
        return True

    def may_follow(self, group: Group, taken: int) -> bool:
        """Whether one more message of a group may be taken, behind the first one of a run."""
        return True

    def note_taken(self, group: Group) -> None:
        """A message of this group was taken in this round."""

    def end_round(self) -> None:
        """What was taken is claimed, or was not handed out."""

    # Claims.

    def claim_took(self, duration_ns: int) -> None:
        """The last claim was answered so long after its start."""

    def claim_answered(self, now: Instant, left: LimitsLeft, over: Collection[Holder] | None) -> None:
        """That claim has found this. `over`: the deliveries that are over, or may be, since it was started, so that it
        may have counted them; None: any may be."""

    # Reports.

    def delivery_over(self, key: Key, table: TableId | None) -> None:
        """The delivery of a message is over, or may be. `table`: None for this one."""

    def rows_shown(self, entries: Iterable[Entry]) -> None:
        """A scan shows these messages. One with another time than the end of its lease is not in flight any
        more, or was extended."""

    def any_over(self) -> None:
        """Any delivery elsewhere may be over."""

    def forget_ended(self, now: Instant) -> None:
        """Forget what the time has ended."""

    def next_ns(self, now: Instant) -> int | None:
        """When the time alone may free a place (monotonic); None: never."""
        return None

    def set_policy(self, policy: Policy) -> None:
        """The table's comment has changed."""
        self._policy = policy
        self.any_over()
