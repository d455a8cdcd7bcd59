"""Keys with times: the first one is known at any moment, and what has changed is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.dispatch.timed_keys import OUTDATED_MIN, TimedKeys

CHANGES = st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 100))))
"""Keys, each with its new time; None: it is removed."""


@given(CHANGES)
def test_the_first_time_is_that_of_a_key_that_is_there(changes: list[tuple[int, int | None]]) -> None:
    keys, expected = TimedKeys(), dict[int, int]()
    for key, at_ns in changes:
        if at_ns is None:
            keys.discard([key])
            expected.pop(key, None)
        else:
            keys.set(key, at_ns)
            expected[key] = at_ns
        assert keys.next_ns == min(expected.values(), default=None)
        assert len(keys) == len(expected)
    assert all(keys[key] == at_ns for key, at_ns in expected.items())


def test_it_is_empty_when_it_was_cleared() -> None:
    keys = TimedKeys()
    keys.set(1, 5)
    keys.clear()
    assert keys.next_ns is None
    assert not len(keys)


def test_new_times_of_the_same_keys_cost_no_memory() -> None:
    keys = TimedKeys()
    keys.set(0, 0)
    for number in range(1_000):
        for key in range(1, 10):
            keys.set(key, 10 + number)
    assert len(keys._heap) <= 2 * len(keys) + OUTDATED_MIN
    assert keys.next_ns == 0
