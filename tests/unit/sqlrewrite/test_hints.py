"""Statements that are nearly queue statements: found, and each with what to write instead."""

from __future__ import annotations

import re

import pytest

from sqlrewrite.classify import Verb, classify
from sqlrewrite.hints import ALONE, hint, hint_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PAUSE orders", "write PAUSE QUEUE orders"),
        ("resume `my orders`;", "write RESUME QUEUE `my orders`"),
        ("PURGE orders", "write PURGE QUEUE orders"),
        ("REDRIVE dead TO orders", "write REDRIVE QUEUE dead"),
        ("SHOW QUEUE", "write SHOW QUEUES, or SHOW CREATE QUEUE and the name of a queue"),
        ("SHOW STREAM", "SHOW STREAM is no statement: write SHOW STREAMS"),
        ("SHOW QUEUS", "SHOW QUEUS is no statement: write SHOW QUEUES"),
        ("show full queu from shop", "SHOW FULL QUEU is no statement: write SHOW FULL QUEUES"),
        ("SHOW FULL QUEUE", "SHOW FULL QUEUE is no statement: write SHOW FULL QUEUES"),
        ("SHOW PROXYS", "SHOW PROXYS is no statement: write SHOW PROXIES"),
        ("SHOW DELIVERY FROM orders", "SHOW DELIVERY is no statement: write SHOW DELIVERIES"),
        ("SHOW CREATE /* a */ QUEU orders", "SHOW CREATE QUEU is no statement: write SHOW CREATE QUEUE"),
        ("CREATE QUEU orders (a INT)", "CREATE QUEU is no statement: write CREATE QUEUE"),
        ("CREATE QUEUES orders (a INT)", "CREATE QUEUES is no statement: write CREATE QUEUE"),
        ("drop queeu orders", "DROP QUEEU is no statement: write DROP QUEUE"),
        ("ALTER QUUE `o` ACK_WAIT = 3", "ALTER QUUE is no statement: write ALTER QUEUE"),
        (
            "SET STATEMENT max_statement_time=1 FOR STREAM id FROM orders LIMIT 1 WAIT 5",
            (
                "a statement of ackstream's has no SET STATEMENT … FOR before it:"
                " leave that out, or the driver's query timeout"
            ),
        ),
        ("RENAME QUEUE a TO b", "write RENAME TABLE: a queue is a table"),
        *(
            (
                f"CREATE {kind} QUEUE orders (a INT)",
                "CREATE QUEUE replaces no table and makes no temporary one: write CREATE QUEUE, or IF NOT EXISTS",
            )
            for kind in ("OR REPLACE", "TEMPORARY", "OR REPLACE TEMPORARY")
        ),
        ("PAUSE QUEU orders", "PAUSE QUEU is no statement: write PAUSE QUEUE"),
        ("PURGE QEUE `orders`", "PURGE QEUE is no statement: write PURGE QUEUE"),
        ("PAUSE queues", "write PAUSE QUEUE queues"),
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
        ("STREEM * FROM orders", "STREEM is no statement: write STREAM"),
        ("nak orders WHERE id = 1", "NAK is no statement: write NACK"),
        ("ACKK orders WHERE id = 1", "ACKK is no statement: write ACK"),
        ("PUASE QUEUE orders", "PUASE is no statement: write PAUSE"),
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
        "strem: LOOP LEAVE strem; END LOOP",
        "SHOW QUEUESTATUS",
        "SHOW CREATE TABLE queu",
        "CREATE TABLE queu (a INT)",
        "ALTER TABLE queu ADD a INT",
        "DROP TABLE queu",
        "DROP QUERY CACHE",
        "RENAME TABLE queue TO b",
        "SET STATEMENT max_statement_time=1 FOR SELECT 'for ack x'",
        "SET STATEMENT max_statement_time=1 FOR INSERT INTO t VALUES (1)",
        "SET STATEMENT max_statement_time=1 FOR ack(1)",
        "CREATE OR REPLACE TABLE queue (a INT)",
        "CREATE TEMPORARY TABLE queue (a INT)",
        "SELECT 1; STREAM * FROM t",
    ],
)
def test_all_else_has_none(text: str) -> None:
    assert classify(text.encode()).verb is not Verb.NEARLY


SYNTAX = "You have an error in your SQL syntax; … near '{}' at line 1"


@pytest.mark.parametrize(
    ("text", "near", "expected"),
    [
        ("SELECT 1; STREAM * FROM t", "STREAM * FROM t", ALONE),
        ("INSERT INTO t VALUES (1); ack t WHERE id = 1; SELECT 2", "ack t WHERE id = 1; SELECT 2", ALONE),
        ("SELECT 1; CREATE QUEUE t (a INT)", "QUEUE t (a INT)", ALONE),
        ("SELECT 1; SHOW FULL QUEUES", "QUEUES", ALONE),
        ("SELECT 1; STREEM * FROM t", "STREEM * FROM t", f"STREEM is no statement: write STREAM; {ALONE}"),
        ("SELECT 1; PAUSE t", "PAUSE t", f"write PAUSE QUEUE t; {ALONE}"),
        ("SELECT 1; EXPLAIN STREAM * FROM t", "* FROM t", f"{hint(b'EXPLAIN STREAM')}; {ALONE}"),
        ("SELECT 1; CREATE QUEU t (a INT)", "QUEU t (a INT)", f"{hint(b'CREATE QUEU t')}; {ALONE}"),
        ("SELECT 1; show full queus", "queus", f"{hint(b'SHOW FULL QUEUS')}; {ALONE}"),
        ("SELECT 1; SHOW CREATE QUEUE t", "QUEUE t", ALONE),
        ("SELECT 1; SHOW PROXIES", "PROXIES", ALONE),
        ("SHOW QUEUS; SELECT 1", "QUEUS; SELECT 1", hint(b"SHOW QUEUS")),
        ("STREEM * FROM t; SELECT 1", "STREEM * FROM t; SELECT 1", hint(b"STREEM * FROM t")),
        ("SELECT 1; DESC QUEUE t; SELECT 1", "QUEUE t; SELECT 1", f"{hint(b'DESC QUEUE')}; {ALONE}"),
    ],
)
def test_a_queue_statement_behind_another_statement_has_a_hint(text: str, near: str, expected: str) -> None:
    assert classify(text.encode()).before_queue_statement
    assert hint_for(text.encode(), 1064, SYNTAX.format(near)) == expected


@pytest.mark.parametrize(
    ("text", "code", "near"),
    [
        ("SELECT 1; SELEC 2; STREAM * FROM t", 1064, "SELEC 2; STREAM * FROM t"),
        ("SELEC 1; STREAM * FROM t", 1064, "SELEC 1; STREAM * FROM t"),
        ("SELECT * FROM nowhere; STREAM * FROM t", 1146, ""),
        ("SELECT '; ack '; SELEC 1", 1064, "SELEC 1"),
        ("SELECT 1; STREAM * FROM t", 1317, ""),
        ("EXPLAIN stream c; SELEC 1", 1064, "SELEC 1"),
    ],
)
def test_an_error_about_another_statement_of_the_packet_has_none(text: str, code: int, near: str) -> None:
    assert hint_for(text.encode(), code, SYNTAX.format(near)) is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1; SELECT 2",
        "UPDATE t SET stream = 1; COMMIT",
        "SELECT 1; SHOW TABLES",
        "SELECT 1; DROP TABLE queu",
        "SELECT 1; SHOW CREATE TABLE queues",
    ],
)
def test_packets_of_ordinary_statements_are_not_examined_further(text: str) -> None:
    assert not classify(text.encode()).before_queue_statement


SERVER_WORDS = re.findall(
    r"\w+",
    """
    ALL AUTHORS BINARY BINLOG CHARACTER CHARSET COLLATION COLUMNS CONTRIBUTORS COUNT CREATE DATABASE DATABASES
    ENGINE ENGINES ERRORS EVENT EVENTS EXPLAIN EXTENDED FIELDS FULL FUNCTION GLOBAL GRANTS INDEX INDEXES
    INDEX_STATISTICS KEYS LIBRARY LOCAL LOCALES LOGFILE MASTER MUTEX NULL ONLINE OPEN OR PACKAGE PARSE_TREE
    PLUGINS PREPARE PRIVILEGES PROCEDURE PROCESSLIST PROFILE PROFILES QUERY QUERY_RESPONSE_TIME RELAYLOG
    REPLICA REPLICAS RESOURCE ROLE SCHEMA SCHEMAS SEQUENCE SERVER SESSION SLAVE SNAPSHOT SPATIAL STATUS
    STORAGE SYSTEM TABLE TABLES TABLESPACE TEMPORARY TRIGGER TRIGGERS UNDO UNIQUE USER USER_STATISTICS
    VARIABLES VIEW WARNINGS WSREP_MEMBERSHIP WSREP_STATUS
    """,
)
"""Words that may stand behind SHOW, CREATE, ALTER or DROP on one of the servers."""


@pytest.mark.parametrize("verb", ["SHOW", "CREATE", "ALTER", "DROP"])
def test_no_word_of_the_servers_counts_as_misspelt(verb: str) -> None:
    nearly = [word for word in SERVER_WORDS if classify(f"{verb} {word} x".encode()).verb is Verb.NEARLY]
    assert nearly == []
