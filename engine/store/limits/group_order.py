"""Strict order in a claim: which of its messages are the next ones of their message groups.

The messages of a group that a claim may take together are a run. The server shows, behind the locks
of the rows, which of them are not in the place of their group where the run has them, and what the
groups have in flight. The locks make both hold until the commit: a locked row keeps its group, and
cannot be acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.model import Claimed, Entry, Group, GroupLeft, Key, Wanted
from engine.packets import Result, text_values
from engine.queue_table import QueueTable
from engine.store.limits.limit import Choice, Left, Limit, lease_words


@dataclass(slots=True)
class GroupOrder(Choice):
    """The places of a claim's messages in the strict order of their groups."""

    runs: Sequence[Sequence[Key]]
    """The messages of the claim, by group."""
    wrong: Mapping[Key, Entry | None]
    """Those of `checks` that are not in the place of their group where the run has them, each with the
    one that is (None: the group has fewer)."""
    holders: Mapping[Key, Mapping[Key, int]]
    """The messages in flight of the groups, and the ends of their leases, by the first message of each
    run. Runs without any are left out."""
    _run_of: dict[Key, int] = field(init=False)
    _places: dict[Key, int] = field(default_factory=dict)
    """The messages that may be claimed, each with the number of those of its run before it. The claim
    takes these, too."""
    _taken: Counter[int] = field(default_factory=Counter)
    """How many messages of each run the claim takes."""

    def __post_init__(self) -> None:
        self._run_of = {key: number for number, run in enumerate(self.runs) for key in run}

    def note_locked(self, found: Mapping[Key, Entry]) -> None:
        """These are the rows that the claim has locked."""
        for run in self.runs:
            if self.holders.get(run[0]):
                continue
            group = found[run[0]].group if run[0] in found else None
            locked = next((at for at, key in enumerate(run) if key not in found or found[key].group != group), len(run))
            right = [at for at in checked(run) if at < locked and run[at] not in self.wrong]
            self._places.update((key, at) for at, key in enumerate(run[: in_order(run, right)]))

    def has_place(self, key: Key) -> bool:
        return key in self._places and self._places[key] == self._taken[self._run_of[key]]

    def note_taken(self, claim: Claimed) -> None:
        self._taken[self._run_of[claim.key]] += 1

    def leave(self, left: Left) -> None:
        for entry in left.found.values():
            if entry.group is not None and (of_group := self._left(entry, entry.group)) is not None:
                left.groups[entry.group] = of_group

    def _left(self, entry: Entry, group: Group) -> GroupLeft | None:
        """What is left of the group of this message; None: nothing that the claims themselves do not show, or it is
        in no run."""
        number = self._run_of.get(entry.key)
        if number is None or self._taken[number]:
            return None
        first = self.runs[number][0]
        if holders := self.holders.get(first):
            return GroupLeft(group, holders)
        if first not in self.wrong:
            return GroupLeft(group, {}, first)
        head = self.wrong[first]
        return None if head is None else GroupLeft(group, {}, head.key, head._replace(group=group))


class GroupOrderLimit(Limit):
    """Reads what the groups of a claim have in flight, and which messages are the next ones."""

    def __init__(self, table: QueueTable, claim_s: float) -> None:
        super().__init__(table, claim_s)
        self._words = {**self._sql.order_words, **lease_words(table)}
        self._runs: Sequence[Sequence[Key]] = ()
        """The messages that may be claimed together."""

    def of_rows(self, wanted: Mapping[Key, Wanted]) -> Sequence[str]:
        self._runs = runs_of(wanted.values(), self._table.policy.group_run)
        firsts = [run[0] for run in self._runs]
        statements = self._sql.for_ids("group_holders", firsts, count=len(firsts), **self._words)
        for place, keys in checks(self._runs).items():
            statements += self._sql.for_ids("group_heads", keys, count=len(keys), place=place, **self._words)
        return statements

    def read_rows(self, results: Sequence[Result], found: Mapping[Key, Entry], now_ns: int) -> None:
        self.choice = order = GroupOrder(self._runs, dict(self._wrong(results[1:])), self._holders(results[:1]))
        order.note_locked(found)

    def _holders(self, results: Iterable[Result]) -> dict[Key, dict[Key, int]]:
        """The messages in flight of the groups of these runs, by the first message of each."""
        holders: dict[Key, dict[Key, int]] = {}
        for row in (row for result in results for row in result.rows):
            first, holder, ends = text_values(row)
            holders.setdefault(self._sql.key(first or b""), {})[self._sql.key(holder or b"")] = int(ends or 0)
        return holders

    def _wrong(self, results: Iterable[Result]) -> Iterator[tuple[Key, Entry | None]]:
        """The messages that are not in their place, each with the one that is."""
        for row in (row for result in results for row in result.rows):
            raw, head, *numbers = text_values(row)
            epoch, priority, due_ns = (int(value or 0) for value in numbers)
            entry = None if head is None else Entry(self._sql.key(head), epoch, priority, due_ns)
            yield self._sql.key(raw or b""), entry


def runs_of(wanted: Iterable[Wanted], most: int) -> list[list[Key]]:
    """The messages of each message group, as they were scanned, in the order of the claim: up to `most` of
    each. With `most` 1, each message is a run."""
    runs: dict[tuple[Key | None, Group | None], list[Key]] = {}
    for want in wanted:
        alone = most == 1 or want.group is None
        run = runs.setdefault((want.key, None) if alone else (None, want.group), [])
        if not run or (len(run) < most and _may_follow(want.key, run[-1])):
            run.append(want.key)
    return list(runs.values())


def checked(run: Sequence[Key]) -> Sequence[int]:
    """The places in this run whose messages are compared with the order of their group: of numbers the
    first, second, fourth, eighth one, and so on, and the last one."""
    if not isinstance(run[0], int):
        return range(len(run))
    return sorted({*(2**power - 1 for power in range(len(run).bit_length())), len(run) - 1})


def checks(runs: Iterable[Sequence[Key]]) -> dict[int, list[Key]]:
    """The messages of these runs that are compared, by their place in the run."""
    found: dict[int, list[Key]] = {}
    for run in runs:
        for place in checked(run):
            found.setdefault(place, []).append(run[place])
    return found


def in_order(run: Sequence[Key], right: Sequence[int]) -> int:
    """How many messages of a run are the first ones of their group, in order. `right`: the places, in
    ascending order, for which the comparison has found that as many of the group are before the
    message as in the run.

    Numbers ascend in a run. Those before one that is in its place are as many as those of the group before
    it, and have smaller ids, so they are the same. The order of other ids is that of the server alone, so
    each of them has to be in its place."""
    if isinstance(run[0], int):
        return right[-1] + 1 if right else 0
    return next((at for at, place in enumerate(right) if at != place), len(right))


def _may_follow(key: Key, before: Key) -> bool:
    """Whether a message may be behind another one in a run."""
    return not isinstance(key, int) or not isinstance(before, int) or key > before
