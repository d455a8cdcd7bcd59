"""Answers to internal queries that were written together are separated by their sequence numbers."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from engine.packets import WireError, frame
from proxy.session.answers import InternalQueries, ServerAnswer
from proxy.session.commit_notices import PendingCommand
from proxy.wire.walker import Outcome

FINE: Outcome[PendingCommand] = Outcome(3, None, True, 2)
SIZES = (1, 5, 255, 256, 257)


def answers(*sizes: int) -> tuple[ServerAnswer, ...]:
    """What is collected of answers with so many packets."""

    async def collect() -> tuple[ServerAnswer, ...]:
        queries = InternalQueries(len(sizes))
        for number, size in enumerate(sizes):
            for packet in range(size):
                queries.feed(frame(b"%d" % number, packet + 1))
            assert not queries.answered.done()
            queries.finish(FINE)
        return (await queries.answered).split()

    return asyncio.run(collect())


@pytest.mark.parametrize("sizes", list(product(SIZES, repeat=2)))
def test_each_answer_has_its_own_packets(sizes: tuple[int, int]) -> None:
    if sizes[0] % 256 == 0:  # The next answer goes on with the number that this one would have.
        with pytest.raises(WireError, match="cannot be separated"):
            answers(*sizes)
    else:
        found = answers(*sizes)
        assert [{packet.payload for packet in answer.packets} for answer in found] == [{b"0"}, {b"1"}]
        assert tuple(len(answer.packets) for answer in found) == sizes


def test_a_single_answer_may_have_any_length() -> None:
    for size in (255, 256, 257, 512, 1000):
        assert [len(answer.packets) for answer in answers(size)] == [size]
