"""What a statement is, told from its head: the fixtures, a statement a line, and what no line can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlrewrite.classify import (
    LEXED_BYTES_MAX,
    OTHER,
    QUEUE_STATEMENT_VERBS,
    Head,
    Kill,
    KillByExpression,
    TransactionEnd,
    Verb,
    classify,
    may_be_queue_statement,
    parse_kill,
    transaction_end,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
OURS = {"STREAM": Verb.STREAM, "ACK": Verb.ACK, "NACK": Verb.NACK, "EXTEND": Verb.EXTEND}


def lines(name: str) -> list[str]:
    return (FIXTURES / name).read_text().splitlines()


def tables(name: str) -> list[tuple[str, str | None]]:
    pairs = [line.split("\t") for line in lines(name)]
    return [(statement, None if table == "?" else table) for statement, table in pairs]


@pytest.mark.parametrize("statement", lines("ours.sql"))
def test_a_statement_that_begins_with_a_verb_of_ours_and_stands_alone_is_ours(statement: str) -> None:
    assert classify(statement.encode()).verb in OURS.values()


@pytest.mark.parametrize("statement", lines("queues.sql"))
def test_a_statement_about_queues_is_ours(statement: str) -> None:
    assert classify(statement.encode()) == Head(Verb.QUEUE)
    assert may_be_queue_statement(statement.encode())


@pytest.mark.parametrize("statement", lines("not_ours.sql"))
def test_all_else_is_left_to_the_server(statement: str) -> None:
    assert classify(statement.encode()).verb not in QUEUE_STATEMENT_VERBS


@pytest.mark.parametrize(("statement", "table"), tables("writes.sql"))
def test_a_write_names_the_table_it_touches(statement: str, table: str | None) -> None:
    head = classify(statement.encode())
    assert (head.verb, head.table) == (Verb.WRITE, table)


@pytest.mark.parametrize(("statement", "table"), tables("schema.sql"))
def test_a_change_of_schema_names_the_table_it_touches(statement: str, table: str | None) -> None:
    assert classify(statement.encode()) == Head(Verb.SCHEMA, table)


@pytest.mark.parametrize(("word", "verb"), OURS.items())
def test_each_verb_is_told_from_the_others(word: str, verb: Verb) -> None:
    assert classify(f"{word} t".encode()) == Head(verb)
    assert classify(f"-- one\n# two\n/* three */\t{word.lower()}\nt".encode()) == Head(verb)


def test_reading_and_session_statements_are_other() -> None:
    for statement in (b"SELECT 1", b"SET autocommit = 0", b"SHOW TABLES", b"BEGIN", b"", b";", b" "):
        assert classify(statement) == OTHER


@pytest.mark.parametrize(
    "statement",
    [
        b"WITH a AS (SELECT 1) SELECT * FROM a",
        b"with recursive n as (select 1 union all select i + 1 from n where (i < 9)) select * from n",
        b"WITH a (x, y) AS (SELECT ')', \"(\" /* ) */), `b)` AS (TABLE t)\nSELECT x FROM a",
        b"WITH a AS (SELECT 1), b AS (SELECT 'ACK; UPDATE') VALUES ROW(1)",
        b"WITH a AS (SELECT 1) TABLE a",
        b"WITH a AS (SELECT 1) SELECT * FROM a WHERE x = '" + b"\\" * 5000,
    ],
)
def test_a_with_that_only_reads_is_other(statement: bytes) -> None:
    assert classify(statement) == OTHER


@pytest.mark.parametrize(
    "statement",
    [
        b"WITH a AS (SELECT 1) UPDATE t SET x = 1",
        b"WITH a AS (SELECT 1) DELETE FROM t",
        b"WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
        b"WITH a AS (SELECT ') SELECT (') UPDATE t SET x = 1",
        # What one mode reads in another way than the next one, what is executed, and what is too long to be seen.
        b"WITH a AS (SELECT '\\') SELECT ('') UPDATE t SET x = ('') SELECT 1",
        b"WITH a AS (SELECT 1 /*! ) UPDATE t SET x = (1 */) SELECT 1",
        b"WITH a AS (SELECT " + b"(" * 40 + b"1" + b")" * 40 + b") SELECT 1",
        b"WITH a AS (SELECT '" + b"x" * LEXED_BYTES_MAX + b"') SELECT 1",
        b"WITH",
        b"WITH a",
        b"WITH a AS (SELECT 1",
        b"WITH a AS (SELECT 1) SELECTS",
    ],
)
def test_any_other_with_counts_as_a_write(statement: bytes) -> None:
    assert classify(statement, multi_statements=False) == Head(Verb.WRITE)


def test_use_is_noted() -> None:
    assert classify(b"/* pool */ use `app`") == Head(Verb.USE)


def test_two_dashes_are_a_comment_only_before_a_blank_or_control_character_or_the_end() -> None:
    assert classify(b"--\nSTREAM * FROM t").verb is Verb.STREAM
    assert classify(b"--\tx\nSTREAM * FROM t").verb is Verb.STREAM
    assert classify(b"--\x01\nSTREAM * FROM t").verb is Verb.STREAM
    assert classify(b"STREAM * FROM t; --").verb is Verb.STREAM
    assert classify(b"--x\nSTREAM * FROM t") == OTHER


@pytest.mark.parametrize("mark", [b"!", b"!50000", b"M!", b"M!100100", b"m!"])
def test_a_comment_that_the_server_executes_is_never_skipped(mark: bytes) -> None:
    assert classify(b"/*%b */ STREAM * FROM t" % mark) == Head(Verb.WRITE)
    assert classify(b"/*%b STREAM * FROM t */" % mark) == Head(Verb.WRITE)


@pytest.mark.parametrize("prefix", [b"\0", b"\xef\xbb\xbf", b"\xc2\xa0", b"-- \0\n", b"\\"])
def test_what_the_server_does_not_skip_is_not_skipped(prefix: bytes) -> None:
    assert classify(prefix + b"STREAM * FROM t") == OTHER


def test_without_multi_statements_a_semicolon_means_nothing_to_other_statements() -> None:
    pair = b"INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)"
    assert classify(pair, multi_statements=True) == Head(Verb.WRITE, None)
    assert classify(pair, multi_statements=False) == Head(Verb.WRITE, "t", inserts=True)


def test_a_queue_statement_stands_alone_with_multi_statements_or_without() -> None:
    pair = b"ACK FROM t WHERE id = 1; SELECT 1"
    assert classify(pair, multi_statements=False) == classify(pair) == Head(Verb.NEARLY)


def test_a_semicolon_far_inside_a_long_text_is_in_doubt() -> None:
    long = b"INSERT INTO t VALUES ('%b; x')" % (b"y" * LEXED_BYTES_MAX)
    assert classify(long) == Head(Verb.WRITE, None)
    assert classify(b"SELECT '%b; x'" % (b"y" * LEXED_BYTES_MAX)) == Head(Verb.WRITE, None)
    assert classify(long, multi_statements=False) == Head(Verb.WRITE, "t", inserts=True)


def test_a_long_acknowledgement_of_text_keys_is_recognised_whatever_they_hold() -> None:
    keys = b", ".join(b"'a;%d'" % number for number in range(10_000))
    assert classify(b"ACK FROM t WHERE id IN (%b);" % keys) == Head(Verb.ACK)


def test_the_first_bytes_of_a_long_statement_tell_whether_to_read_on() -> None:
    statement = b"/* pool */ ACK FROM t WHERE id IN ('a;b', 'c;d')"
    assert all(may_be_queue_statement(statement[:length]) for length in range(15, len(statement)))
    assert not may_be_queue_statement(b"INSERT INTO stream VALUES ('a;")
    assert not may_be_queue_statement(b"ack: LOOP")


def test_a_name_in_another_character_set_than_utf_8_is_any_table() -> None:
    assert classify("INSERT INTO Größe VALUES (1)".encode("latin-1")) == Head(Verb.WRITE, None)


@pytest.mark.parametrize(
    ("statement", "kill"),
    [
        ("KILL 5", Kill(5, query_only=False)),
        ("kill connection 5;", Kill(5, query_only=False)),
        ("KILL QUERY 5", Kill(5, query_only=True)),
        ("/* ^C */ KILL /**/ QUERY 18446744073709551615 ; -- bye", Kill(2**64 - 1, query_only=True)),
        ("KILL HARD QUERY 5", Kill(5, query_only=True)),
        ("KILL SOFT CONNECTION 5", Kill(5, query_only=False)),
        ("KILL QUERY ?", Kill(None, query_only=True)),
    ],
)
def test_kill_names_a_connection(statement: str, kill: Kill) -> None:
    assert classify(statement.encode()) == Head(Verb.KILL)
    assert parse_kill(statement.encode()) == kill


@pytest.mark.parametrize(
    "statement",
    [
        "KILL QUERY ID 5",
        "KILL USER bob",
        "KILL 5; KILL 6",
        "KILL 5 + 1 -- all of them",
        "KILL 5 + 1 # all of them",
        f"KILL {'1 + ' * 1000}1",
        "KILL",
        "KILL QUERY",
        "SELECT 5",
        "/*! KILL 5 */",
    ],
)
def test_a_kill_of_anything_but_a_connection_is_not_noted(statement: str) -> None:
    assert parse_kill(statement.encode()) is None


@pytest.mark.parametrize(
    ("statement", "expression", "numbered", "query_only"),
    [
        ("KILL @id", "@id", "KILL 7", False),
        ("kill query 5 + 1;", "5 + 1", "kill query 7;", True),
        ("KILL SOFT CONNECTION CONNECTION_ID()", "CONNECTION_ID()", "KILL SOFT CONNECTION 7", False),
        ("KILL -5", "-5", "KILL 7", False),
        ("KILL QUERY '5'; -- bye", "'5'", "KILL QUERY 7; -- bye", True),
        ("KILL 5x", "5x", "KILL 7", False),
        ("KILL QUERY user_id", "user_id", "KILL QUERY 7", True),
    ],
)
def test_kill_names_a_connection_by_an_expression(
    statement: str, expression: str, numbered: str, *, query_only: bool
) -> None:
    found = parse_kill(statement.encode())
    assert isinstance(found, KillByExpression)
    assert found.expression.decode() == expression
    assert found.numbered(b"7").decode() == numbered
    assert found.kill(7) == Kill(7, query_only=query_only)


HOSTILE = {
    "blanks": b" " * 1_000_000 + b"x",
    "open comments": b"/*" * 500_000,
    "executed comments": b"/*!" * 330_000,
    "comments": b"/**/" * 250_000,
    "line comments": b"-- \n" * 250_000,
    "dashes": b"-" * 1_000_000,
    "single quotes": b"'" * 1_000_001,
    "backquotes": b"`" * 1_000_001,
    "backslashes": b"'" + b"\\" * 1_000_001,
    "semicolons": b";" * 1_000_000,
    "semicolons after comments": b"/**/;" * 200_000,
    "parentheses": b"(" * 1_000_000,
    "letters": b"a" * 1_000_000,
    "names": b"a." * 500_000,
    "high bytes": b"\xff" * 1_000_000,
    "nul bytes": b"\0" * 1_000_000,
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.cpu(20)
def test_a_megabyte_of_anything_comes_to_an_end(hostile: bytes) -> None:
    for head in (
        b"",
        b"SELECT ",
        b"ACK ",
        b"ACK;",
        b"INSERT INTO ",
        b"UPDATE t ",
        b"ALTER TABLE t ",
        b"CREATE ",
        b"CREATE QUEUE",
        b"SHOW ",
    ):
        assert isinstance(classify(head + hostile), Head)
        assert parse_kill(head + hostile) is None


@pytest.mark.parametrize(
    ("statement", "inserts"),
    [
        ("INSERT INTO t VALUES (1)", True),
        ("insert t (a, `b`) /* new */ values (1, 2), (3, 4)", True),
        ("INSERT INTO db.t SET a = 1", True),
        ("INSERT HIGH_PRIORITY INTO t VALUE (1)", True),
        ("INSERT INTO t SELECT * FROM s", False),
        ("INSERT INTO t (a) SELECT a FROM s", False),
        ("INSERT IGNORE INTO t VALUES (1)", False),
        ("INSERT LOW_PRIORITY IGNORE INTO t VALUES (1)", False),
        ("INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE a = 2", False),
        ("INSERT INTO t VALUES (1) on /* x */ duplicate key update a = 2", False),
        (f"INSERT INTO t VALUES {'(1), ' * 2_000}(1) On Duplicate Key Update a = 2", False),
        (f"INSERT INTO t VALUES {'(1), ' * 2_000}('no duplicate')", True),
        ("REPLACE INTO t VALUES (1)", False),
        ("UPDATE t SET a = 1", False),
    ],
)
def test_a_statement_that_only_adds_rows_is_told_from_one_that_may_change_some(statement: str, inserts: bool) -> None:
    head = classify(statement.encode())
    assert (head.table, head.inserts) == ("t", inserts)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (b"COMMIT", TransactionEnd.COMMIT),
        (b"/* done */ commit work and chain;", TransactionEnd.COMMIT),
        (b"BEGIN", TransactionEnd.COMMIT),
        (b"START /* a */ TRANSACTION READ ONLY", TransactionEnd.COMMIT),
        (b"ROLLBACK", TransactionEnd.ROLLBACK),
        (b"rollback work and no chain", TransactionEnd.ROLLBACK),
        (b"ROLLBACK TO s", TransactionEnd.TO_SAVEPOINT),
        (b"ROLLBACK WORK TO SAVEPOINT `to`", TransactionEnd.TO_SAVEPOINT),
        (b"ROLLBACK-- x\n TO s", TransactionEnd.TO_SAVEPOINT),
        (b"SAVEPOINT s", None),
        (b"COMMITS", None),
        (b"START SLAVE", None),
        (b"SELECT 1", None),
        (b"", None),
    ],
)
def test_how_a_statement_ends_a_transaction(text: bytes, end: TransactionEnd | None) -> None:
    assert transaction_end(text) is end
