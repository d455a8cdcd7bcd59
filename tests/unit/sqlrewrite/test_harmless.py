"""Statements that run nothing stored: what drivers begin with is known, and nothing that could call anything is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlrewrite.harmless import LENGTH_MAX, runs_nothing_stored

HARMLESS = [
    "SELECT 1",
    "select @@version_comment limit 1",
    "SET NAMES utf8mb4",
    "SET NAMES 'utf8mb4' COLLATE 'utf8mb4_general_ci'",
    "SET AUTOCOMMIT = 1",
    "SET @@session.autocommit = ON",
    "SET sql_mode=CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES'), @x := -1.5",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "/* Connector */ SELECT @@session.auto_increment_increment AS `a`, @@init_connect AS i;",
    "SELECT DATABASE(), USER() LIMIT 1",
    "BEGIN",
    "START TRANSACTION READ ONLY",
    "COMMIT AND CHAIN",
    "ROLLBACK TO SAVEPOINT s1",
    "RELEASE SAVEPOINT s1",
    "SHOW WARNINGS",
    "SHOW VARIABLES LIKE 'sql_mode'",
    "USE shop",
    "KILL QUERY 17;",
    "SELECT 1 -- a comment\n",
]

HARMFUL = [
    "SELECT f()",
    "SELECT f ()",
    "SELECT f/**/()",
    "SELECT `f`()",
    'SELECT "f"()',
    "SELECT 'f'()",
    "SELECT d.concat(1)",
    "SELECT d . now()",
    "SELECT concat (1)",
    "SELECT @x, f(1)",
    "SELECT * FROM v",
    "SELECT (SELECT x FROM v)",
    "TABLE v",
    "SELECT 1 UNION TABLE v",
    "SET @x = (SELECT f())",
    "SET @x = f()",
    "SET STATEMENT max_statement_time = 1 FOR CALL p",
    "SET sql_mode = 'ORACLE'",
    "SET character_set_connection = ucs2",
    "SET @x = 'a\\' , f()'",
    "SELECT 1; CALL p",
    "SELECT 1 /*! , f() */",
    "SELECT 1 /*M! , f() */",
    "/*! CALL p */",
    "BEGIN NOT ATOMIC CALL p; END",
    "CALL p",
    "EXECUTE s",
    "DO f()",
    "INSERT INTO t VALUES (1)",
    "UPDATE t SET a = 1",
    "DELETE FROM t",
    "CREATE TEMPORARY TABLE m (id INT)",
    "CREATE TABLE t (id INT)",
    "LOAD DATA INFILE 'x' INTO TABLE t",
    "SELECT 1 INTO OUTFILE 'x'",
    "SELECT 'not closed",
    "SELECT 1 /* not closed",
    "SET NAMES latin1, x = 'ä'",
    "",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_drivers_prepare_their_sessions_with_is_harmless(text: str) -> None:
    assert runs_nothing_stored(text.encode())
    assert runs_nothing_stored(text.swapcase().encode())


@pytest.mark.parametrize("text", HARMFUL)
def test_what_may_run_something_stored_is_not(text: str) -> None:
    assert not runs_nothing_stored(text.encode())


GAPS = st.sampled_from(["", " ", "\n", "/**/", "/* ( */ ", " -- (\n"])
CALLS = st.sampled_from(["f", "`f`", '"f"', "d.f", "`d`.`f`", "d . now", "made_by_user", "concat2", "_now"])


@given(st.sampled_from(HARMLESS), CALLS, GAPS, st.sampled_from([" , ", " + ", " = "]))
def test_a_call_of_anything_that_is_not_the_server_s_own_is_always_seen(
    text: str, name: str, gap: str, before: str
) -> None:
    assert not runs_nothing_stored(f"{text.rstrip(';')}\n{before}{name}{gap}()".encode())


@given(st.sampled_from(HARMLESS), st.sampled_from(["; CALL p", "/*! + f() */", " FROM v", " UNION TABLE v", "\0f()"]))
def test_another_statement_or_a_table_behind_it_is_always_seen(text: str, more: str) -> None:
    assert not runs_nothing_stored(f"{text.rstrip(';')}\n{more}".encode())


@given(st.binary())
def test_any_bytes_at_all_are_judged(text: bytes) -> None:
    assert runs_nothing_stored(text) in (True, False)


def test_a_long_statement_is_not_read() -> None:
    assert runs_nothing_stored(b"SELECT 1" + b" " * (LENGTH_MAX - 8))
    assert not runs_nothing_stored(b"SELECT 1" + b" " * LENGTH_MAX)
