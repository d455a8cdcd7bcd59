"""The errors of queue statements, word by word: tests/fixtures/errors.txt has each statement with its error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.catalog.directives import OPTIONS
from sqlrewrite.ack import parse_settle
from sqlrewrite.errors import PARSE_ERROR, SqlError
from sqlrewrite.queues import parse_queue_statement
from sqlrewrite.stream import parse_stream

LINES = (Path(__file__).parents[2] / "fixtures" / "errors.txt").read_text().splitlines()
ROWS = [line for line in LINES if line and not line.startswith("# ")]


def parse(statement: bytes) -> object:
    match statement.split()[0]:
        case b"STREAM":
            return parse_stream(statement)
        case b"ACK" | b"NACK" | b"EXTEND":
            return parse_settle(statement)
        case _:
            return parse_queue_statement(statement, OPTIONS)


@pytest.mark.parametrize(("statement", "error"), list(zip(ROWS[::2], ROWS[1::2], strict=True)))
def test_a_statement_has_this_error(statement: str, error: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(statement.encode())
    pattern = ".*".join(map(re.escape, error.strip().split("…")))
    verb = statement.split(maxsplit=1)[0]
    assert re.fullmatch(rf"You have an error in your {verb}[A-Z ]* statement {pattern}", caught.value.message)
    assert (caught.value.code, caught.value.sqlstate) == (PARSE_ERROR, "42000")
    near = re.search(r"near '(.*)' at line 1: ", caught.value.message)
    assert near
    assert caught.value.position == len(statement) - len(near[1])
