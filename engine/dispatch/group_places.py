"""Which message groups have a place for one more message in flight.

Each limit of groups has a hint (`GroupHint`), and a message needs a place in all of them. A new limit is a
hint here, in `HINTS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.dispatch.full_groups import FullGroups
from engine.dispatch.group_hint import GroupHint
from engine.dispatch.group_rates import GroupRates
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.semaphore_places import SemaphorePlaces
from engine.model import Entry, Group, Holder, Key, LimitsLeft, TableId
from engine.queue_table import Policy

HINTS: Sequence[type[GroupHint]] = (FullGroups, GroupRates, SemaphorePlaces)


class GroupPlaces:
    """The places of the groups of one table. Reads `leases`, and reports to `in_flight` which groups
    may have a place again."""

    def __init__(self, policy: Policy, in_flight: GroupsInFlight, leases: Leases) -> None:
        self._policy = policy
        self._hints = [kind(policy, in_flight.note_unused, leases) for kind in HINTS]
        self.hints: Sequence[GroupHint] = ()
        """Those of the limits that the queue has."""
        self._claiming = False
        """Whether a claim is under way. Where the database counts, there is one at a time."""
        self._over: set[Holder] | None = set()
        """The deliveries that have ended since the claim under way was started, which may have counted them;
        None: any may have."""
        self.set_policy(policy)

    @property
    def limited(self) -> bool:
        """Whether groups have a limit or a rate, or need semaphores."""
        return bool(self.hints)

    @property
    def most(self) -> int | None:
        """How many messages of a group may be in flight; None: any number."""
        return self._policy.group_most

    @property
    def strict(self) -> bool:
        """Whether the messages of a group are in the order of their ids."""
        return self._policy.group_strict

    # Picking.

    def has_place(self, group: Group | None, here: int, key: Key, taken: int = 0) -> bool:
        """Whether this message of a group may be in flight, beside `here` messages of this proxy and
        `taken` ones that were taken in this round."""
        if group is not None:
            for hint in self.hints:
                if not hint.has_place(group, key, here, taken):
                    return False
        return True

    def may_follow(self, group: Group | None, taken: int) -> bool:
        """Whether one more message of a group may be taken, behind the first one of a run."""
        return group is None or all(hint.may_follow(group, taken) for hint in self.hints)

    def note_taken(self, group: Group | None) -> None:
        """A message of this group was taken in this round."""
        for hint in self.hints if group is not None else ():
            hint.note_taken(group or ())

    def end_round(self) -> None:
        """What was taken is claimed, or was not handed out."""
        for hint in self.hints:
            hint.end_round()

    # Claims.

    def claim_started(self) -> None:
        """A claim starts. What is reported from now on may be over although it was counted."""
        self._claiming = True
        self._over = set()

    def claim_answered(self, now: Instant, left: LimitsLeft | None, duration_ns: int) -> None:
        """A claim was answered, so long after its start, and has found this; None, if it failed."""
        self._claiming = False
        for hint in self.hints:
            hint.claim_took(duration_ns)
            if left is not None:
                hint.claim_answered(now, left, self._over)

    # Reports.

    def deliveries_over(self, keys: Iterable[Key], table: TableId | None = None) -> None:
        """The deliveries of these messages are over, or may be. `table`: None for this one."""
        for key in keys if self.hints else ():
            if self._claiming and self._over is not None:
                self._over.add((table, key))
            for hint in self.hints:
                hint.delivery_over(key, table)

    def rows_shown(self, entries: Sequence[Entry]) -> None:
        """A scan shows these messages. One with another time than the end of its lease is not in flight any
        more, or was extended."""
        for hint in self.hints:
            hint.rows_shown(entries)

    def any_over(self) -> None:
        """Any delivery elsewhere may be over."""
        self._over = None
        for hint in self.hints:
            hint.any_over()

    def forget_ended(self, now: Instant) -> None:
        """Forget what the time has ended."""
        for hint in self.hints:
            hint.forget_ended(now)

    def next_ns(self, now: Instant) -> int | None:
        """When the time alone may free a place (monotonic); None: never."""
        times = (hint.next_ns(now) for hint in self.hints)
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def set_policy(self, policy: Policy) -> None:
        """The table's comment has changed."""
        self._policy = policy
        for hint in self._hints:
            hint.set_policy(policy)
        self.hints = [hint for hint in self._hints if hint.limited]
        self._over = None
