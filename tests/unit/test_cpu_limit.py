"""The limit of tests that compute ends them, whatever they run in."""

from __future__ import annotations

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.support.cpu import CpuTimeUsedUpError, cpu_limit


def test_a_loop_without_an_end_ends() -> None:
    with pytest.raises(CpuTimeUsedUpError, match=r"more than 0\.05 s"), cpu_limit(0.05):
        for _ in itertools.count():
            pass


def test_hypothesis_does_not_look_for_a_smaller_example_that_has_no_end() -> None:
    examples: list[int] = []

    @hypothesis.given(st.integers())
    def endless(number: int) -> None:
        examples.append(number)
        for _ in itertools.count():
            pass

    with pytest.raises(CpuTimeUsedUpError), cpu_limit(0.05):
        endless()
    assert len(examples) == 1
