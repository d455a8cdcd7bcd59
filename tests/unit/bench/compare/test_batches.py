"""How messages are divided into batches."""

import pytest

from bench.compare.batches import batches


@pytest.mark.parametrize(("messages", "sizes"), [(250, [100, 100, 50]), (200, [100, 100]), (0, [])])
def test_only_the_last_batch_is_smaller(messages: int, sizes: list[int]) -> None:
    assert list(batches(messages, 100)) == sizes
