"""Statements that are nearly queue statements: found, and each with what to write instead."""

from __future__ import annotations

import pytest

from sqlrewrite.classify import Verb, classify
from sqlrewrite.hints import ALONE, hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PAUSE orders", "write PAUSE QUEUE orders"),
        ("resume `my orders`;", "write RESUME QUEUE `my orders`"),
        ("PURGE orders", "write PURGE QUEUE orders"),
        ("REDRIVE dead TO orders", "write REDRIVE QUEUE dead"),
        ("SHOW QUEUE", "write SHOW QUEUES, or SHOW CREATE QUEUE and the name of a queue"),
        ("SHOW STREAM", "write SHOW STREAMS"),
        (
            "DESCRIBE QUEUE orders",
            "write SHOW CREATE QUEUE and its name, or DESCRIBE and its name: a queue is a table",
        ),
        (
            "/* why */ explain Stream * FROM orders",
            "EXPLAIN is not possible for STREAM: SHOW FULL QUEUES and SHOW STREAMS return what it does",
        ),
        (
            "DESC ACK orders WHERE id = 1",
            "DESC is not possible for ACK: SHOW FULL QUEUES and SHOW STREAMS return what it does",
        ),
        ("STREAM * FROM orders; SELECT 1", ALONE),
        ("PAUSE QUEUE orders; SELECT 1", ALONE),
        ("ACK orders WHERE note = 'not closed; SELECT 1", ALONE),
    ],
)
def test_a_statement_that_is_nearly_ours_has_a_hint(text: str, expected: str) -> None:
    assert classify(text.encode()).verb is Verb.NEARLY
    assert hint(text.encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN SELECT 1",
        "EXPLAIN stream",
        "DESCRIBE queue",
        "DESC stream.queue",
        "PURGE BINARY LOGS TO 'binlog.000002'",
        "PURGE MASTER LOGS BEFORE '2026-01-01'",
        "pause: LOOP LEAVE pause; END LOOP",
        "PAUSE",
        "SHOW QUEUESTATUS",
        "SELECT 1; STREAM * FROM t",
    ],
)
def test_all_else_has_none(text: str) -> None:
    assert classify(text.encode()).verb is not Verb.NEARLY
