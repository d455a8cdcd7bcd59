"""How consumers divide messages."""

import pytest

from bench.compare.shares import batches, shares


@pytest.mark.parametrize(("messages", "consumers", "divided"), [(10, 4, [3, 3, 2, 2]), (8, 4, [2] * 4), (1, 2, [1, 0])])
def test_the_shares_are_all_messages_and_nearly_equal(messages: int, consumers: int, divided: list[int]) -> None:
    assert shares(messages, consumers) == divided


@pytest.mark.parametrize(("messages", "sizes"), [(250, [100, 100, 50]), (200, [100, 100]), (0, [])])
def test_only_the_last_batch_is_smaller(messages: int, sizes: list[int]) -> None:
    assert list(batches(messages, 100)) == sizes
