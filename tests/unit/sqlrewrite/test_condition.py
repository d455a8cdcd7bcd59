"""What a stream wants, as a language: what it means, in a form that nothing can change, and what it refuses."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from sqlrewrite.condition import CONSTANTS_MAX, NESTING_MAX, SQL_MAX, Condition
from sqlrewrite.errors import SqlError
from sqlrewrite.lexicon import PLAIN, SqlMode
from sqlrewrite.literals import ESCAPE_CLAUSE
from sqlrewrite.names import Param
from sqlrewrite.stream import StreamStatement, parse_stream
from sqlrewrite.tokens import STATEMENT_BYTES_MAX

ANSI = SqlMode(ansi_quotes=True)
NO_ESCAPES = SqlMode(no_backslash_escapes=True, like_escapes=False)
NO_ESCAPES_ON_MARIADB = SqlMode(no_backslash_escapes=True)
HI = 'say "hi"'
HIGH_NOT = SqlMode(high_not_precedence=True)


def stream(sql: str, mode: SqlMode = PLAIN) -> StreamStatement:
    return parse_stream(sql.encode(), mode=mode)


def condition(where: str, mode: SqlMode = PLAIN, table: str = "t") -> Condition:
    read = stream(f"STREAM * FROM {table} WHERE {where}", mode).condition
    assert read is not None
    return read


def refusal(where: str, mode: SqlMode = PLAIN) -> SqlError:
    with pytest.raises(SqlError) as caught:
        stream(f"STREAM * FROM t WHERE {where}", mode)
    return caught.value


def text(value: str) -> str:
    return f"_utf8mb4 x'{value.encode().hex()}'"


def liked(pattern: str) -> str:
    return f"(`a` LIKE {text(pattern)}{ESCAPE_CLAUSE})"


@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ("a = 1", "(`a` = 1)"),
        ("a <=> NULL", "(`a` <=> NULL)"),
        ("a != 1", "(`a` <> 1)"),
        ("a<>-1", "(`a` <> -1)"),
        ("1 < a", "(`a` > 1)"),
        ("1 <= a", "(`a` >= 1)"),
        ("1 >= a", "(`a` <= 1)"),
        ("'x' = a", f"(`a` = {text('x')})"),
        ("1 <=> a", "(`a` <=> 1)"),
        ("a in (1,2 , NULL)", "(`a` IN (1, 2, NULL))"),
        ("a NOT IN (1)", "(`a` NOT IN (1))"),
        ("a between 1 and 2", "(`a` BETWEEN 1 AND 2)"),
        ("a NOT BETWEEN 1 AND 2 AND b = 3", "((`a` NOT BETWEEN 1 AND 2) AND (`b` = 3))"),
        ("a is null", "(`a` IS NULL)"),
        ("a IS NOT TRUE", "(`a` IS NOT TRUE)"),
        ("a IS FALSE", "(`a` IS FALSE)"),
        ("a = true", "(`a` = TRUE)"),
        ("a = 1 OR b = 2 XOR c = 3 AND NOT d = 4", "((`a` = 1) OR ((`b` = 2) XOR ((`c` = 3) AND (NOT (`d` = 4)))))"),
        ("(a = 1 OR b = 2) AND c = 3", "(((`a` = 1) OR (`b` = 2)) AND (`c` = 3))"),
        ("a = 1 && (b = 2 and (c = 3))", "((`a` = 1) AND (`b` = 2) AND (`c` = 3))"),
        ("((((a = 1))))", "(`a` = 1)"),
        ("NOT a = 1 AND b = 2", "((NOT (`a` = 1)) AND (`b` = 2))"),
        ("!(a = 1)", "(NOT (`a` = 1))"),
        ("NOT NOT a IS NULL", "(NOT (NOT (`a` IS NULL)))"),
        ("t.a = 1", "(`a` = 1)"),
        ("`t`.`a``b` = 1", "(`a``b` = 1)"),
        ("wait = 1 WAIT 2", "(`wait` = 1)"),
        ("date = DATE '2026-1-31'", "(`date` = DATE'2026-01-31')"),
        ("größe = 1", "(`größe` = 1)"),
    ],
)
def test_a_condition_has_one_form_however_it_is_written(where: str, sql: str) -> None:
    assert condition(where).sql() == sql
    assert condition(sql) == condition(where)


@pytest.mark.parametrize(
    ("constant", "sql"),
    [
        ("0", "0"),
        ("007", "7"),
        ("+5", "5"),
        ("- 5", "-5"),
        ("1.50", "1.50"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("5.", "5"),
        ("1e3", "1000.0e0"),
        ("1.5E-30", "1.5e-30"),
        (".5e1", "5.0e0"),
        ("9" * 65, "9" * 65),
        ("''", "_utf8mb4 x''"),
        ("'a' 'b' \"c\"", text("abc")),
        ("'it''s'", text("it's")),
        ('"say ""x"""', text('say "x"')),
        (r"'\0\'\"\b\n\r\t\Z\\\x\%\_'", text("\0'\"\b\n\r\t\x1a\\x\\%\\_")),
        ("'; DROP -- /* 中'", text("; DROP -- /* 中")),
        ("x'0aFF'", "x'0aff'"),
        ("X''", "x''"),
        ("0xABC", "0xabc"),
        ("b'101'", "b'101'"),
        ("0b101", "b'101'"),
        ("TIME '1:02:03.5'", "TIME'01:02:03.500000'"),
        ("TIME '-838:59:59'", "TIME'-838:59:59'"),
        ("TIMESTAMP '2026-12-31 23:59:59.123456'", "TIMESTAMP'2026-12-31 23:59:59.123456'"),
        ("timestamp'2026-12-31T00:00'", "TIMESTAMP'2026-12-31 00:00:00'"),
    ],
)
def test_a_constant_is_written_so_that_no_mode_can_change_it(constant: str, sql: str) -> None:
    assert condition(f"a = {constant}").sql() == f"(`a` = {sql})"
    assert condition(f"a = {sql}").sql() == f"(`a` = {sql})"


@pytest.mark.parametrize(
    ("mode", "where", "sql"),
    [
        (ANSI, '"a" = 1', "(`a` = 1)"),
        (ANSI, "a = 'say \"hi\"'", f"(`a` = {text(HI)})"),
        (NO_ESCAPES, r"a = '\' AND b = 1", f"((`a` = {text(chr(92))}) AND (`b` = 1))"),
        (NO_ESCAPES, r"a LIKE 'x\%'", liked(r"x\\%")),
        (NO_ESCAPES, r"a LIKE 'x\%' ESCAPE '\'", liked(r"x\%")),
        (NO_ESCAPES_ON_MARIADB, r"a LIKE 'x\%'", liked(r"x\%")),
        (HIGH_NOT, "NOT (a = 1)", "(NOT (`a` = 1))"),
        (HIGH_NOT, "NOT NOT (a = 1)", "(NOT (NOT (`a` = 1)))"),
    ],
)
def test_a_condition_is_read_in_the_sessions_mode(mode: SqlMode, where: str, sql: str) -> None:
    assert condition(where, mode).sql() == sql


@pytest.mark.parametrize(
    ("where", "pattern"),
    [
        ("'a%b_c'", "a%b_c"),
        (r"'a\%b\_c'", r"a\%b\_c"),
        (r"'a\\%'", r"a\%"),
        (r"'a\\\\%'", r"a\\%"),
        (r"'a\\'", r"a\\"),
        ("'a|%|b||' ESCAPE '|'", r"a\%b|"),
        (r"'a|\\' ESCAPE '|'", r"a\\"),
        ("'a|' ESCAPE '|'", "a|"),
    ],
)
def test_a_pattern_has_one_escape_character_however_it_is_written(where: str, pattern: str) -> None:
    read = condition(f"a LIKE {where}")
    assert read.sql() == liked(pattern)
    assert condition(read.sql()) == read


def test_columns_are_known_by_name() -> None:
    assert condition("a = 1 AND (t.b = 2 OR `c d` IS NULL) AND a < 5").columns == {"a", "b", "c d"}


def test_a_qualified_column_is_of_the_very_table() -> None:
    assert condition("app.t.a = 1 AND t.b = 2", table="app.t").sql() == "((`a` = 1) AND (`b` = 2))"
    assert "only columns of `t`" in refusal("u.a = 1").message
    assert "only columns of `t`" in refusal("app.t.a = 1").message


@pytest.mark.parametrize(
    ("where", "near", "reason"),
    [
        ("", "", "a column was expected; a condition compares"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place_and_what_is_possible(where: str, near: str, reason: str) -> None:
    error = refusal(where)
    assert error.code == 1064
    assert f"in your STREAM statement near '{near[:80]}' at line 1: " in error.message
    assert reason in error.message


def test_not_before_a_comparison_is_refused_where_it_would_negate_the_column() -> None:
    assert "HIGH_NOT_PRECEDENCE" in refusal("NOT a = 1", HIGH_NOT).message


# -- Parameters


def test_parameters_are_counted_in_the_order_of_the_text_across_all_clauses() -> None:
    statement = stream("STREAM * FROM t WHERE ? < a AND b IN (?, 5, ?) AND c LIKE ? LIMIT ? WAIT ?")
    assert statement.condition is not None
    assert statement.condition.param_count == 4
    assert (statement.limit, statement.wait, statement.param_count) == (Param(4), Param(5), 6)
    assert statement.condition.template() == f"((`a` > ?) AND (`b` IN (?, 5, ?)) AND (`c` LIKE ?{ESCAPE_CLAUSE}))"


def test_a_bound_condition_is_the_one_that_was_written_with_constants() -> None:
    statement = stream("STREAM * FROM t WHERE ? < a AND b LIKE ? LIMIT ?").bind([5, "x%", 10])
    assert statement == stream("STREAM * FROM t WHERE 5 < a AND b LIKE 'x%' LIMIT 10")
    assert hash(statement) == hash(stream("STREAM * FROM t WHERE a > 5 AND b LIKE 'x%' LIMIT 10"))


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        (None, "NULL"),
        (-5, "-5"),
        (2**64 - 1, "18446744073709551615"),
        (0.5, "0.5e0"),
        (1e300, "1e+300"),
        (Decimal("-1.50"), "-1.50"),
        (Decimal("1E+3"), "1000"),
        ("it's", text("it's")),
        (b"\x00'", "_binary x'0027'"),
        (date(2026, 1, 2), "DATE'2026-01-02'"),
        (datetime(2026, 1, 2, 3, 4, 5, 6), "TIMESTAMP'2026-01-02 03:04:05.000006'"),  # noqa: DTZ001
        (timedelta(hours=-100, microseconds=-1), "TIME'-100:00:00.000001'"),
    ],
)
def test_values_are_bound_as_python_has_them(value: object, sql: str) -> None:
    assert condition("a = ?").bind([value]).sql() == f"(`a` = {sql})"


def test_bytes_and_strings_are_read_again_from_their_canonical_form() -> None:
    for value in (b"\xff'", "it's"):
        for where in ("a = ?", "a LIKE ?"):
            bound = condition(where).bind([value])
            assert condition(bound.sql()) == bound


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), Decimal("NaN"), Decimal("1e66"), Decimal("1e-66"), 10**65, "\ud800", object(),
     timedelta(hours=839), datetime(2026, 1, 1, tzinfo=UTC)],
)  # fmt: skip
def test_a_value_that_no_column_can_have_is_refused_by_its_number(value: object) -> None:
    with pytest.raises(SqlError, match=r"a condition takes numbers, .* and parameter 2 is") as caught:
        condition("a = ? AND b = ?").bind([1, value])
    assert caught.value.code == 1210


def test_a_patterns_value_is_read_with_the_escape_character_of_its_place() -> None:
    assert condition("a LIKE ?").bind([r"x\%_"]).sql() == liked(r"x\%_")
    assert condition("a LIKE ?", NO_ESCAPES).bind([r"x\%_"]).sql() == liked(r"x\\%_")
    assert condition("a LIKE ? ESCAPE '|'").bind(["x|%_"]).sql() == liked(r"x\%_")
    assert condition("a LIKE ?").bind([b"\xff\\%"]).sql() == f"(`a` LIKE _binary x'ff5c25'{ESCAPE_CLAUSE})"
    assert condition("a LIKE ?").bind([None]).sql() == "(`a` LIKE NULL)"
    with pytest.raises(SqlError, match="LIKE takes a string, and parameter 1 is 5"):
        condition("a LIKE ?").bind([5])


# -- Bounds


def test_a_condition_has_room_for_its_bounds_and_not_for_more() -> None:
    full = ", ".join("1" for _ in range(CONSTANTS_MAX))
    assert condition(f"a IN ({full})").sql().count("1") == CONSTANTS_MAX
    assert f"at most {CONSTANTS_MAX} constants" in refusal(f"a IN ({full}, 1)").message
    half = "x" * (SQL_MAX // 2 - 100)
    assert condition(f"a = '{half}'").columns == {"a"}
    assert f"{SQL_MAX} are possible" in refusal(f"a = '{half}{'x' * 100}'").message
    with pytest.raises(SqlError, match=f"{SQL_MAX} are possible") as caught:
        condition("a = ?").bind([half + "x" * 100])
    assert caught.value.code == 1210
    too_long = refusal("a = 1" + " " * STATEMENT_BYTES_MAX)
    assert f"more than {STATEMENT_BYTES_MAX} bytes" in too_long.message


@pytest.mark.parametrize("opening", ["(", "NOT ", "NOT (", "!(", "(a = 1 OR b = 2 XOR c = 3 AND "])
def test_nesting_is_bounded_before_the_stack_is(opening: str) -> None:
    levels = NESTING_MAX // 2
    closing = ")" * opening.count("(") * levels
    assert condition(opening * levels + "d = 1" + closing).columns >= {"d"}
    assert f"{NESTING_MAX} deep" in refusal(opening * 10_000 + "d = 1").message


# -- Partitions


def test_partitions_are_names() -> None:
    assert stream("STREAM * FROM t PARTITION (p0, `p 1`) WHERE a = 1").partitions == ("p0", "p 1")
    assert stream("STREAM * FROM t").partitions == ()


@pytest.mark.parametrize(
    ("clause", "near", "reason"),
    [
        ("PARTITION p0", "p0", "names of partitions in parentheses"),
        ("PARTITION ()", ")", "the name of a partition"),
        ("PARTITION (?)", "?)", "the name of a partition"),
        ("PARTITION (p0 p1)", "p1)", "a comma or a closing parenthesis"),
        ("PARTITION (p0) PARTITION (p1)", "PARTITION (p1)", "the order is FROM t"),
    ],
)
def test_what_is_wrong_with_partitions_is_said(clause: str, near: str, reason: str) -> None:
    with pytest.raises(SqlError) as caught:
        stream(f"STREAM * FROM t {clause}")
    assert f"near '{near}' at line 1: " in caught.value.message
    assert reason in caught.value.message
