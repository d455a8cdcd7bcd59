"""Rows are put into SQL one part ahead of the part that the server inserts.

The order of the two is forced by a connection without a server. How slices are written is tested with servers
(test_enqueue).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from pipeline.common.slices import Target, ahead
from pipeline.common.staging import PLACE, SLICE

LONG_S = 30


def test_a_task_reads_the_next_rows_while_the_server_inserts() -> None:
    first, second = (pa.RecordBatch.from_pydict({SLICE: [0], PLACE: [place], "n": [place]}) for place in range(2))
    second_is_read = threading.Event()
    inserted: list[bytes] = []

    def rows_of_spark() -> Iterator[pa.RecordBatch]:
        yield first
        second_is_read.set()
        yield second

    def execute(statement: str | bytes) -> int:
        if isinstance(statement, bytes):  # An INSERT.
            assert second_is_read.wait(LONG_S)
            inserted.append(statement)
        return 1

    endpoint, ledger = MagicMock(), MagicMock()
    connection = endpoint.connect.return_value = MagicMock()
    connection.__enter__.return_value = connection
    connection.cursor.return_value = nullcontext(MagicMock(execute=execute, nextset=lambda: None))
    Target(endpoint, ledger, MagicMock(), "`q`", ("n",), (2,)).write(rows_of_spark())
    assert [statement[-3:] for statement in inserted] == [b"(0)", b"(1)"]


def test_the_next_item_is_made_while_one_is_used() -> None:
    made = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    for number in ahead(items()):
        assert all(event.wait(LONG_S) for event in made[: number + 2])


def test_no_more_than_one_item_is_made_ahead() -> None:
    made = [0]

    def items() -> Iterator[int]:
        for number in range(5):
            made[0] = number + 1
            yield number

    most = [made[0] - number for number in ahead(items())]
    assert max(most) <= 2


def test_all_items_come_in_their_order_and_none_is_no_end() -> None:
    assert list(ahead(iter([3, None, 1, 2]))) == [3, None, 1, 2]
    assert not list(ahead(iter([])))


def test_an_error_of_the_items_is_raised_behind_those_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the rows cannot be read")

    coming = ahead(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="cannot be read"):
        next(coming)


def test_a_caller_that_ends_early_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    coming = ahead(iter(range(5)))
    next(coming)
    coming.close()
    assert threading.active_count() == before
