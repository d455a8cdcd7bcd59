"""The order of delivery without groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.dispatch.time_order import TimeOrder, place_of
from engine.model import Entry, Key

ENTRIES = st.builds(Entry, st.integers(1, 20), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3))
STEPS = st.one_of(
    st.tuples(st.just("rebuild"), st.lists(ENTRIES, max_size=10, unique_by=lambda entry: entry.key)),
    st.tuples(st.just("put"), ENTRIES),
    st.tuples(st.just("drop"), st.integers(1, 20)),
    st.tuples(st.just("take"), st.integers(0, 6)),
)


def test_an_entry_that_comes_again_with_another_priority_is_in_its_new_place() -> None:
    order, ready = TimeOrder(), {}
    for entry in (Entry(1, 0, 0, 1), Entry(2, 0, 0, 0), Entry(2, 0, 1, 0)):
        ready[entry.key] = entry
        order.push(entry)
    assert [entry.key for entry in order.take(ready, 2)] == [1, 2]


@given(st.lists(STEPS, max_size=20))
def test_entries_are_taken_in_order_and_each_once_however_they_came_and_went(steps: list[tuple[str, object]]) -> None:
    order = TimeOrder()
    ready: dict[Key, Entry] = {}
    for step in [*steps, ("take", 100)]:
        match step:
            case "rebuild", list(entries):
                ready.clear()
                ready.update({entry.key: entry for entry in entries})
                order.rebuild(ready.values())
            case "put", Entry() as entry:
                ready[entry.key] = entry
                order.push(entry)
            case "drop", int(key):
                ready.pop(key, None)
            case "take", int(count):
                expected = sorted(ready.values(), key=place_of)
                assert order.head(ready) == (expected[0] if expected else None)
                assert order.take(ready, count) == expected[:count]
                assert list(ready.values()) == [entry for entry in ready.values() if entry in expected[count:]]
                assert len(ready) == len(expected[count:])
            case _:
                raise AssertionError(step)
