"""The answer to one command, whose error is put into other words."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.packets import frame
from proxy.session.rephrasing import Rephrasing
from proxy.wire.mimic_adapter import Commands
from proxy.wire.packets import ServerError, make_end, make_err, make_ok
from proxy.wire.walker import ResponseWalker

QUERY = int(Commands.COM_QUERY)
MORE_RESULTS = 0x0008


def result_set(*rows: bytes, more: bool) -> list[bytes]:
    status = 2 | (MORE_RESULTS if more else 0)
    column = bytes.fromhex("03646566000000016100") + bytes([12, 63, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0])
    return [b"\x01", column, make_end(0, 2), *rows, make_end(0, status)]


def packets(*payloads: bytes) -> bytes:
    return b"".join(frame(payload, seq % 256) for seq, payload in enumerate(payloads, 1))


def fed(answers: bytes, cuts: list[int], commands: int = 1) -> bytes:
    """What the client gets of these bytes, which come in pieces."""
    walker: ResponseWalker[Any] = ResponseWalker(0, 2)
    for _ in range(commands):
        walker.expect(QUERY, None)

    def rephrase(error: ServerError) -> ServerError:
        return ServerError(error.code, error.sqlstate, f"{error.message}; in other words")

    rephrasing = Rephrasing(rephrase)
    sent = b""
    places = sorted({0, len(answers), *(cut % (len(answers) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        chunk = answers[begin:end]
        sent += chunk if rephrasing.over else rephrasing.feed(chunk, walker.feed(chunk))
    assert rephrasing.over
    return sent


WRONG = make_err(1064, "42000", "wrong")
REPHRASED = make_err(1064, "42000", "wrong; in other words")
CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@given(CUTS)
def test_an_error_alone(cuts: list[int]) -> None:
    assert fed(packets(WRONG), cuts) == packets(REPHRASED)


@given(CUTS)
def test_an_error_behind_other_results_of_the_same_packet(cuts: list[int]) -> None:
    before = [*result_set(b"\x011", b"\x012", more=True), make_ok(status=2 | MORE_RESULTS)]
    assert fed(packets(*before, WRONG), cuts) == packets(*before, REPHRASED)


@given(CUTS)
def test_an_answer_without_an_error_is_passed_on_as_it_is(cuts: list[int]) -> None:
    answer = packets(*result_set(b"\x03" + b"\xff" * 3, more=False))
    assert fed(answer, cuts) == answer


@given(CUTS)
def test_the_error_of_the_next_command_is_its_own(cuts: list[int]) -> None:
    following = packets(make_err(1064, "42000", "the next one's"))
    assert fed(packets(WRONG) + following, cuts, commands=2) == packets(REPHRASED) + following
    right = packets(*result_set(b"\x011", more=False))
    assert fed(right + following, cuts, commands=2) == right + following


@pytest.mark.parametrize("length", [0xFFFFFF, 0xFFFFFF + 7])
def test_the_continuation_of_a_long_row_is_not_taken_for_an_error(length: int) -> None:
    before = result_set(b"\x01a" + b"\xff" * (length - 2), more=True)
    assert fed(packets(*before, WRONG), [0x1000040, 0x1000044]) == packets(*before, REPHRASED)
