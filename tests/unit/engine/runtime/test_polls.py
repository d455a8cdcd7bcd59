"""Polls of several queues that are one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.model import TableId
from engine.queue_table import QueueTable
from engine.runtime.polls import POLLED_MAX, Polls
from engine.store.port import StoreError
from tests.support.play import queue_table

QUEUE = queue_table()


def queue(number: int) -> QueueTable:
    return replace(QUEUE, id=TableId("shop", f"q{number}"))


class Asked:
    """What the store was asked, and its answers: the queues of even numbers have messages."""

    def __init__(self, error: Exception | None = None, because_of: int | None = None) -> None:
        """`error`: of all statements, or of those with this queue."""
        self.statements: list[int] = []
        self._error, self._because_of = error, because_of

    async def unacknowledged(self, queues: Sequence[QueueTable]) -> frozenset[TableId]:
        self.statements.append(len(queues))
        concerned = self._because_of is None or queue(self._because_of) in queues
        if self._error is not None and concerned:
            raise self._error
        return frozenset(queue.id for queue in queues if int(queue.id.name[1:]) % 2 == 0)


def play(store: Asked, count: int) -> list[Any]:
    async def played() -> list[Any]:
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.ensure_future(work))

        polls = Polls(store.unacknowledged, spawn)
        answers = await asyncio.gather(
            *(polls.is_empty(queue(number)) for number in range(count)), return_exceptions=True
        )
        await asyncio.gather(*tasks)
        return list(answers)

    return asyncio.run(played())


def test_polls_of_one_moment_are_one_statement_and_each_gets_its_answer() -> None:
    store = Asked()
    assert play(store, 5) == [False, True, False, True, False]
    assert store.statements == [5]


def test_a_statement_has_a_bounded_number_of_queues() -> None:
    store = Asked()
    assert sum(play(store, 2 * POLLED_MAX + 2)) == POLLED_MAX + 1
    assert store.statements == [POLLED_MAX, POLLED_MAX, 2]


@pytest.mark.parametrize("error", [StoreError("no such table", code=1146), KeyError("a fault")])
def test_all_get_the_error_of_their_statement(error: Exception) -> None:
    assert play(Asked(error), 3) == [error] * 3


def test_a_queue_that_has_gone_meanwhile_keeps_no_other_from_its_answer() -> None:
    async def played() -> bool:
        store = Asked()
        polls = Polls(store.unacknowledged, lambda work: tasks.append(asyncio.ensure_future(work)))
        tasks: list[asyncio.Task[None]] = []
        gone = asyncio.ensure_future(polls.is_empty(queue(1)))
        await asyncio.sleep(0)
        gone.cancel()
        return await polls.is_empty(queue(3))

    assert asyncio.run(played())


@pytest.mark.parametrize(
    "error",
    [
        StoreError("Table 'shop.q77' doesn't exist", code=1146, lasting=True),
        StoreError("Lock wait timeout exceeded", code=1205),
    ],
    ids=["missing", "locked"],
)
def test_a_queue_that_cannot_be_polled_fails_alone(error: StoreError) -> None:
    store = Asked(error, because_of=77)
    answers = play(store, 200)
    assert answers[77] is error
    assert [answer for number, answer in enumerate(answers) if number != 77] == [
        number % 2 == 1 for number in range(200) if number != 77
    ]
    assert len(store.statements) <= 20


def test_a_server_that_is_away_is_asked_once_for_all_queues() -> None:
    store = Asked(StoreError("the connection to the server broke", code=2013))
    assert all(isinstance(answer, StoreError) for answer in play(store, 200))
    assert store.statements == [200]
