"""Rows of an internal query that are passed on as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engine.packets import frame
from proxy.session.answers import RowQuery
from proxy.session.commit_notices import PendingCommand
from proxy.wire.packets import DEPRECATE_EOF, make_end, make_err
from proxy.wire.walker import Outcome

DONE: Outcome[PendingCommand] = Outcome(3, None, True, 0)
FAILED: Outcome[PendingCommand] = Outcome(3, None, False, 0)


def framed(payloads: Sequence[bytes]) -> bytes:
    return b"".join(frame(payload, seq & 0xFF) for seq, payload in enumerate(payloads, 1))


@pytest.mark.parametrize("capabilities", [0, DEPRECATE_EOF])
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_rows_are_passed_on_however_they_are_cut(capabilities: int, step: int) -> None:
    rows = [b"\x01a\xfb", b"\x01b" + b"\xfc\x00\x10" + bytes(4096), b"\x00"]
    eof = [] if capabilities & DEPRECATE_EOF else [make_end(0)]
    end = make_end(capabilities)
    header = [b"\x02", b"column 1", b"\xfecolumn 2", *eof]
    data = framed([*header, *rows, end])
    passed: list[bytes] = []

    async def scenario() -> None:
        query = RowQuery(capabilities, passed.extend)
        for at in range(0, len(data), step):
            query.feed(data[at : at + step])
        query.finish(DONE)
        (answer,) = (await query.answered).split()
        assert [packet.payload for packet in answer.packets] == [end]

    asyncio.run(scenario())
    assert passed == rows


@pytest.mark.parametrize("rows", [[], [b"\x01a"]])
def test_an_error_before_or_behind_rows_is_the_answer(rows: list[bytes]) -> None:
    error = make_err(1213, "40001", "Deadlock found")
    header = [b"\x01", b"column"] if rows else []
    passed: list[bytes] = []

    async def scenario() -> None:
        query = RowQuery(DEPRECATE_EOF, passed.extend)
        query.feed(framed([*header, *rows, error]))
        query.finish(FAILED)
        refused = (await query.answered).split()[0].error
        assert refused is not None
        assert refused.code == 1213

    asyncio.run(scenario())
    assert passed == rows
