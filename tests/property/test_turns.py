"""The order of turns, beside a model that compares all messages for each turn."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.turns import TurnOrder, Turns
from engine.model import Entry, Group, Key, ScanResult

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
                buffer.replace_with(ScanResult(tuple(unique.values()), False, None), NOW, lambda _: False)
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
