"""The order of turns, beside a model that compares all messages for each turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from engine.dispatch.group_places import GroupPlaces
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Leases
from engine.dispatch.needs_order import NeedsOrder
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.turns import TurnOrder, Turns
from engine.model import Entry, Group, Key, ScanResult
from tests.support.play import POLICY

NOW = Instant(1_000_000, 1_000_000)

KEYS = st.integers(0, 30)
GROUPS = st.sampled_from([None, (None,), ("a",), ("b",), ("c",)])
ENTRIES = st.builds(Entry, KEYS, st.integers(0, 1), st.integers(0, 1), st.integers(0, 3), GROUPS)

STEPS = st.one_of(
    st.tuples(st.just("put"), ENTRIES),
    st.tuples(st.just("drop"), KEYS),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("end"), st.integers(0, 10)),
    st.tuples(st.just("replace"), st.lists(ENTRIES, max_size=8)),
)


class Model:
    """What must be next, by comparing all. Among groups that never had a turn, any may be first."""

    def __init__(self) -> None:
        self.ready: dict[Key, Entry] = {}
        self.loads: Counter[Group | None] = Counter()
        self._turns: dict[Group | None, int] = {}
        self._numbers = count(1)

    def take(self, found: Entry) -> None:
        """Check that this entry may be next, and remove it."""
        assert self._rank(found) == min(map(self._rank, self.ready.values()))
        same = [entry for entry in self.ready.values() if entry[2::2] == found[2::2]]
        assert found == min(same, key=lambda entry: (entry.due_ns, entry.key))
        self._turns[found.group] = next(self._numbers)
        self.loads[found.group] += 1
        del self.ready[found.key]

    def _rank(self, entry: Entry) -> tuple[int, int, int]:
        return entry.priority, self.loads[entry.group], self._turns.get(entry.group, 0)


class Places(GroupPlaces):
    """The needs in `full` have no place."""

    def __init__(self, in_flight: GroupsInFlight) -> None:
        super().__init__(replace(POLICY, group_by=("tenant",), semaphores="needs"), in_flight, Leases(in_flight))
        self.full: set[Key | None] = set()

    def has_place(self, group: Group | None, here: int, key: Key, taken: int = 0) -> bool:
        return group is None or group[-1] not in self.full


TENANTS = ("a", "b")
NEEDS = st.sampled_from([None, "x", "y"])
NEEDING = st.builds(
    Entry, KEYS, st.integers(0, 1), st.integers(0, 1), st.integers(0, 3), st.tuples(st.sampled_from(TENANTS), NEEDS)
)
STEPS_WITH_NEEDS = st.one_of(
    st.tuples(st.just("put"), NEEDING),
    st.tuples(st.just("drop"), KEYS),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("end"), st.integers(0, 10)),
    st.tuples(st.just("replace"), st.lists(NEEDING, max_size=8)),
    st.tuples(st.just("full"), NEEDS),
    st.tuples(st.just("trim"), st.integers(0, 1)),
)


class WithNeeds:
    """A buffer of a queue with groups and semaphores, beside what must be next."""

    def __init__(self) -> None:
        self.in_flight = GroupsInFlight()
        self.in_flight.set_turn_values(1)
        self.places = Places(self.in_flight)
        self.turns = Turns(self.in_flight, self.places, 1)
        self.buffer = ReadAhead(NeedsOrder(self.turns))
        self.ready: dict[Key, Entry] = {}
        self.taken: list[Group] = []
        self.loads: Counter[Key | None] = Counter()
        self.last: Counter[Key | None] = Counter()
        self.numbers = count(1)

    def change_place(self, needs: Key | None) -> None:
        """A semaphore is full now, or is so no more."""
        self.places.full ^= {needs}
        for tenant in TENANTS:
            self.in_flight.note_unused((tenant, needs))

    def trim(self, priority: int) -> None:
        for group in self.buffer.trim(priority, 1):
            same = [entry for entry in self.ready.values() if (entry.priority, entry.group) == (priority, group)]
            for entry in sorted(same, key=self._rank)[1:]:
                del self.ready[entry.key]

    def end_one(self, at: int) -> None:
        group = self.taken.pop(at % len(self.taken))
        self.in_flight.end(group)
        self.loads[group[0]] -= 1

    def take(self, most: int) -> None:
        """Take one after another in one round, and compare each with all others."""
        self.buffer.requeue(self.turns.take_freed())
        before = len(self.taken)
        for _ in range(most):
            possible = [entry for entry in self.ready.values() if _group(entry)[1] not in self.places.full]
            assert (self.buffer.ready > 0) is bool(possible)
            for entry in self.buffer.take(1):
                first = min(possible, key=self._rank)
                assert self._rank(entry)[:3] == self._rank(first)[:3]
                assert entry == min((one for one in possible if self._same_turn(one, entry)), key=self._rank)
                del self.ready[entry.key]
                self.last[_group(entry)[0]] = next(self.numbers)
                self.loads[_group(entry)[0]] += 1
                self.taken.append(_group(entry))
        self.turns.end_round()
        for group in self.taken[before:]:
            self.in_flight.begin(group)

    def _rank(self, entry: Entry) -> tuple[int, int, int, int, Key]:
        tenant = _group(entry)[0]
        return entry.priority, self.loads[tenant], self.last[tenant], entry.due_ns, entry.key

    @staticmethod
    def _same_turn(one: Entry, other: Entry) -> bool:
        return (one.priority, _group(one)[0]) == (other.priority, _group(other)[0])


def _group(entry: Entry) -> Group:
    assert entry.group is not None
    return entry.group


@given(st.lists(STEPS_WITH_NEEDS, max_size=60))
def test_with_semaphores_tenants_take_turns_with_what_has_places(steps: list[tuple[str, object]]) -> None:
    played = WithNeeds()
    for step in steps:
        match step:
            case "put", Entry() as entry:
                played.buffer.put(entry, NOW)
                played.ready[entry.key] = entry
            case "drop", int(key):
                played.buffer.drop(key)
                played.ready.pop(key, None)
            case "replace", list(entries):
                played.ready = {entry.key: entry for entry in entries}
                result = ScanResult(tuple(played.ready.values()), False, None)
                played.buffer.replace_with(result, NOW, ())
            case "end", int(at) if played.taken:
                played.end_one(at)
            case "full", (None | str()) as needs:
                played.change_place(needs)
            case "trim", int(priority):
                played.trim(priority)
            case "take", int(most):
                played.take(most)
            case _:
                pass


@given(st.lists(STEPS, max_size=60))
def test_the_next_message_is_that_of_the_group_whose_turn_it_is(steps: list[tuple[str, object]]) -> None:
    in_flight, model = GroupsInFlight(), Model()
    turns = Turns(in_flight)
    buffer = ReadAhead(TurnOrder(turns))
    taken: list[Group] = []
    for step in steps:
        match step:
            case "put", Entry() as entry:
                buffer.put(entry, NOW)
                model.ready[entry.key] = entry
            case "drop", int(key):
                buffer.drop(key)
                model.ready.pop(key, None)
            case "replace", list(entries):
                unique = {entry.key: entry for entry in entries}
                buffer.replace_with(ScanResult(tuple(unique.values()), False, None), NOW, ())
                model.ready = dict(unique)
            case "end", int(at) if taken:
                group = taken.pop(at % len(taken))
                in_flight.end(group)
                model.loads[group] -= 1
            case "take", int(most):
                buffer.requeue(turns.take_freed())
                found = buffer.take(most)
                turns.end_round()
                assert len(found) == min(most, len(model.ready))
                for entry in found:
                    model.take(entry)
                model.loads[None] = 0  # Messages without a known group do not count as in flight.
                for entry in found:
                    in_flight.begin(entry.group)
                taken += [entry.group for entry in found if entry.group is not None]
            case _:
                pass
        assert buffer.ready == len(model.ready)
