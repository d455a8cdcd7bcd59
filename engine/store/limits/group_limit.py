"""`group_limit`: how many messages of a message group may be in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.model import Claimed, Entry, GroupLeft, Key, Wanted
from engine.packets import Result, text_values
from engine.queue_table import QueueTable
from engine.store.limits.limit import Choice, Left, Limit, lease_words


@dataclass(slots=True)
class GroupCounts(Choice):
    """The messages in flight of the message groups of a claim, as the server has counted them.

    A group is what the server treats as one: it has a number. A message without a number may not be
    claimed.
    """

    most: int
    """How many messages of a group may be in flight."""
    numbers: dict[Key, int] = field(default_factory=dict)
    """The number of the group of each message of the claim."""
    held: dict[int, int] = field(default_factory=dict)
    """How many messages of each group are in flight."""
    holders: dict[int, dict[Key, int]] = field(default_factory=dict)
    """The messages in flight of groups that may be full, and the ends of their leases."""
    taken: Counter[int] = field(default_factory=Counter)
    """How many messages of each group the claim takes."""

    def has_place(self, key: Key) -> bool:
        number = self.numbers.get(key)
        return number is not None and not self._is_full(number)

    def note_taken(self, claim: Claimed) -> None:
        self.taken[self.numbers[claim.key]] += 1

    def leave(self, left: Left) -> None:
        for entry in left.found.values():
            number = self.numbers.get(entry.key)
            if entry.group is not None and number is not None and self._is_full(number):
                left.groups[entry.group] = GroupLeft(entry.group, self.holders.get(number, {}))

    def _is_full(self, number: int) -> bool:
        return self.held[number] + self.taken[number] >= self.most


class GroupLimit(Limit):
    """Counts the messages in flight of the groups of a claim, which cannot change behind the locks of its rows."""

    def __init__(self, table: QueueTable, claim_s: float) -> None:
        super().__init__(table, claim_s)
        self._most = table.policy.group_limit or 1

    def of_rows(self, wanted: Mapping[Key, Wanted]) -> Sequence[str]:
        return self._sql.for_ids("group_count", wanted, most=self._most, **lease_words(self._table))

    def read_rows(self, results: Sequence[Result], found: Mapping[Key, Entry], now_ns: int) -> None:
        self.choice = groups = GroupCounts(self._most)
        for row in (row for result in results for row in result.rows):
            raw, number, held, ends = text_values(row)
            key, of_group = self._sql.key(raw or b""), int(number or 0)
            if ends is None:
                groups.numbers[key], groups.held[of_group] = of_group, int(held or 0)
            else:
                groups.holders.setdefault(of_group, {})[key] = int(ends)
