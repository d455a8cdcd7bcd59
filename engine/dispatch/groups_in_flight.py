"""How many messages of each message group are in flight or being claimed, at this proxy.

Leases and claims under way report their messages here. A message whose group is not known (None) is
not counted.
"""

from __future__ import annotations

from collections import Counter

from engine.model import Group


class GroupsInFlight:
    """A count for each group that has such messages."""

    def __init__(self) -> None:
        self._counts: dict[Group, int] = {}
        self._turn_values: int | None = None
        self._turns: Counter[Group] = Counter()
        """The counts by the values that decide whose turn it is, if these are not all of them."""
        self._freed: set[Group] = set()

    def set_turn_values(self, turn_values: int | None) -> None:
        """So many values of a group decide whose turn it is (`Policy.turn_values`)."""
        if turn_values != self._turn_values:
            self._turn_values = turn_values
            self._turns.clear()
            for group, count in self._counts.items() if turn_values is not None else ():
                self._turns[group[:turn_values]] += count

    def __len__(self) -> int:
        """How many groups have such messages."""
        return len(self._counts)

    def count(self, group: Group | None) -> int:
        """How many messages of the turn of a group are in flight or being claimed."""
        if self._turn_values is not None and group is not None:
            return self._turns[group[: self._turn_values]]
        return self._counts.get(group, 0) if group is not None else 0

    def begin(self, group: Group | None) -> None:
        """A claim of one message of this group starts, or a lease of one begins."""
        if group is not None:
            self._counts[group] = self._counts.get(group, 0) + 1
            if self._turn_values is not None:
                self._turns[group[: self._turn_values]] += 1

    def end(self, group: Group | None) -> None:
        """A claim of one message of this group was answered, or its lease has ended."""
        if group is None:
            return
        left = self._counts[group] - 1
        if left:
            self._counts[group] = left
        else:
            del self._counts[group]
        if self._turn_values is not None:
            turn = group[: self._turn_values]
            self._turns[turn] -= 1
            if not self._turns[turn]:
                del self._turns[turn]
        self._freed.add(group)

    def note_unused(self, group: Group | None) -> None:
        """A message of this group was taken out of a buffer, and no claim of it starts."""
        if group is not None:
            self._freed.add(group)

    def take_freed(self) -> set[Group]:
        """The groups whose counts have fallen since the last call."""
        freed, self._freed = self._freed, set()
        return freed
