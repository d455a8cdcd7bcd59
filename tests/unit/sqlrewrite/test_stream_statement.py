"""STREAM as a language: what it says, and how it answers to what it does not say."""

from __future__ import annotations

from decimal import Decimal

import pytest

from sqlrewrite.errors import SqlError
from sqlrewrite.lexicon import PLAIN as PLAIN_MODE
from sqlrewrite.lexicon import SqlMode
from sqlrewrite.names import Param, TableName
from sqlrewrite.stream import STAR, WAIT_MAX_S, WHOLE_NUMBER_MAX, StreamStatement, parse_stream

PLAIN = StreamStatement(TableName("t"), (STAR,))


def parse(sql: str, mode: SqlMode = PLAIN_MODE) -> StreamStatement:
    return parse_stream(sql.encode(), mode=mode)


def refusal(sql: str, mode: SqlMode = PLAIN_MODE) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse(sql, mode)
    return caught.value


@pytest.mark.parametrize(
    "sql",
    [
        "STREAM * FROM t",
        "stream*from t;",
        "\n STREAM\t*\r\nFROM\ft\v; ",
        "/* a */ STREAM /* ' */ * -- b\nFROM # ` c\n t ; -- d",
        "STREAM * FROM /* LIMIT 5 */ `t`",
        "STREAM * FROM t -- LIMIT 5",
        "STREAM * FROM t --",
        "STREAM * FROM t /* /* */",
        "STREAM/*+ NO_MERGE() */* FROM t",
    ],
)
def test_blanks_comments_case_quotes_and_one_semicolon_change_nothing(sql: str) -> None:
    assert parse(sql) == PLAIN


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("id", ("id",)),
        ("id, message", ("id", "message")),
        ("`id`,`message`", ("id", "message")),
        ("*, epoch", (STAR, "epoch")),
        ("*,`epoch`, id", (STAR, "epoch", "id")),
        ("ID, Message", ("ID", "Message")),
        ("`a``b`, `c d`, `from`, `*`, `/* x */`, `it's`", ("a`b", "c d", "from", "*", "/* x */", "it's")),
        ("stream, ack, wait, nowait, prefetch, offset", ("stream", "ack", "wait", "nowait", "prefetch", "offset")),
        ("date, timestamp, value, text, status, type", ("date", "timestamp", "value", "text", "status", "type")),
        ("a$b, 1a, 2024_jobs, größe, 列", ("a$b", "1a", "2024_jobs", "größe", "列")),
    ],
)
def test_columns_are_names_as_written(columns: str, names: tuple[str, ...]) -> None:
    assert parse(f"STREAM {columns} FROM t").columns == names


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("t", TableName("t")),
        ("Jobs", TableName("Jobs")),
        ("app.t", TableName("t", "app")),
        ("app . t", TableName("t", "app")),
        ("`app`.`t`", TableName("t", "app")),
        ("app /* x */ . -- y\n `t`", TableName("t", "app")),
        ("`a.b`", TableName("a.b")),
        ("`a``b`", TableName("a`b")),
        ("stream", TableName("stream")),
        ("wait WAIT 1", TableName("wait")),
        ("2024_jobs", TableName("2024_jobs")),
    ],
)
def test_a_table_has_a_name_and_may_have_a_database(table: str, name: TableName) -> None:
    assert parse(f"STREAM * FROM {table}").table == name


def test_a_name_is_quoted_for_any_sql_mode() -> None:
    assert TableName("t").quoted() == "`t`"
    assert TableName("t`x", "a.b").quoted() == "`a.b`.`t``x`"


def test_double_quotes_are_names_under_ansi_quotes_alone() -> None:
    sql = 'STREAM "id", `x` FROM "app"."t""u"'
    assert parse(sql, SqlMode(ansi_quotes=True)) == StreamStatement(TableName('t"u', "app"), ("id", "x"))
    assert "this is a string; names stand in backquotes" in refusal(sql).message


def test_options_stand_in_any_order() -> None:
    asked = StreamStatement(TableName("t"), (STAR,), limit=10, prefetch=3, wait=Decimal(20))
    assert parse("STREAM * FROM t LIMIT 10 PREFETCH 3 WAIT 20") == asked
    assert parse("STREAM * FROM t wait 20 prefetch 3 limit 10;") == asked


def test_nowait_is_an_option_without_a_value() -> None:
    assert parse("STREAM * FROM t NOWAIT LIMIT 5") == StreamStatement(TableName("t"), (STAR,), limit=5, nowait=True)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", "0"), ("0.5", "0.5"), (".5", "0.5"), ("1e-3", "0.001"), ("2.", "2")]
)
def test_wait_takes_a_fraction(text: str, seconds: str) -> None:
    assert parse(f"STREAM * FROM t WAIT {text}").wait == Decimal(seconds)


def test_the_bounds_of_numbers_are_within_them() -> None:
    statement = parse(f"STREAM * FROM t LIMIT {WHOLE_NUMBER_MAX} PREFETCH 1 WAIT {WAIT_MAX_S}")
    assert (statement.limit, statement.prefetch, statement.wait) == (WHOLE_NUMBER_MAX, 1, Decimal(WAIT_MAX_S))


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "'5'", "x", "5x", "5s", "", str(WHOLE_NUMBER_MAX + 1), "9" * 5000])
@pytest.mark.parametrize("option", ["LIMIT", "PREFETCH"])
def test_counts_are_whole_numbers_of_at_least_one(option: str, value: str) -> None:
    error = refusal(f"STREAM * FROM t {option} {value}")
    assert error.code == 1064
    assert f"{option} takes a whole number from 1 to {WHOLE_NUMBER_MAX}" in error.message


@pytest.mark.parametrize("value", ["-1", "'5'", "x", "5s", "", str(WAIT_MAX_S + 1), "86400.001", "1e999", "NULL"])
def test_wait_is_a_number_of_seconds_within_a_day(value: str) -> None:
    assert f"WAIT takes seconds from 0 to {WAIT_MAX_S}" in refusal(f"STREAM * FROM t WAIT {value}").message


@pytest.mark.parametrize(
    ("sql", "near", "reason"),
    [
        ("STREAM * FROM t \0", "\0", "a NUL cannot stand outside quotes"),
        ("SELECT * FROM t", "SELECT * FROM t", "STREAM was expected"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place_and_reason(sql: str, near: str, reason: str) -> None:
    error = refusal(sql)
    assert (error.code, error.sqlstate) == (1064, "42000")
    assert f"You have an error in your STREAM statement near '{near}' at line 1: " in error.message
    assert reason in error.message
    assert error.position == len(sql) - len(near)


def test_an_error_names_its_line_and_quotes_no_more_than_mysql_does() -> None:
    error = refusal("STREAM *\nFROM t -- x\n" + "y" * 200)
    assert f"near '{'y' * 80}' at line 3: " in error.message
    assert error.position == 21


def test_parameters_are_numbered_in_the_order_of_the_text() -> None:
    statement = parse("STREAM * FROM t /* ? */ WAIT ? LIMIT ? PREFETCH 5 -- ?")
    assert (statement.wait, statement.limit, statement.prefetch) == (Param(0), Param(1), 5)
    assert statement.param_count == 2


@pytest.mark.parametrize("sql", ["STREAM ? FROM t", "STREAM * FROM ?", "STREAM * FROM t ?"])
def test_a_parameter_stands_for_a_constant_only(sql: str) -> None:
    assert refusal(sql).code == 1064


@pytest.mark.parametrize("ten", [10, 10.0, Decimal(10), "10", b"10", "1e1"])
@pytest.mark.parametrize("half", [0.5, Decimal("0.5"), "0.5", b".5"])
def test_values_are_bound_as_drivers_send_them(ten: object, half: object) -> None:
    bound = parse("STREAM * FROM t LIMIT ? WAIT ?").bind([ten, half])
    assert bound == StreamStatement(TableName("t"), (STAR,), limit=10, wait=Decimal("0.5"))


def test_binding_nothing_to_nothing_changes_nothing() -> None:
    assert PLAIN.bind([]) == PLAIN


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, 1.5, float("nan"), float("inf"), "", "x", "-1", "٣", b"\xff", 2**64]
)
def test_a_value_that_cannot_stand_in_its_place_is_refused_by_name(value: object) -> None:
    statement = parse("STREAM * FROM t WAIT ? LIMIT ?")
    with pytest.raises(SqlError, match=r"LIMIT takes a whole number .* parameter 2 is") as caught:
        statement.bind([1, value])
    assert (caught.value.code, caught.value.sqlstate) == (1210, "HY000")


def test_the_count_of_values_is_checked() -> None:
    with pytest.raises(SqlError, match="has 1 parameters, and 2 were given"):
        parse("STREAM * FROM t LIMIT ?").bind([1, 2])


HOSTILE = [" ", "/*", "/**/", "-- \n", "--", "'", "`", "(", "a", "a,", "a.", "1", "\0", "é", "/*!"]


@pytest.mark.parametrize("head", ["STREAM ", "STREAM * FROM t LIMIT "])
@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.cpu(30)
def test_hostile_text_comes_to_an_end(head: str, unit: str) -> None:
    assert refusal(head + unit * (50_000 // len(unit))).code == 1064


@pytest.mark.parametrize("sql", ["LIMIT 5 NOWAIT FOR UPDATE", "WAIT 2 LIMIT 5 for /* x */ update ;"])
def test_for_update_is_the_last_clause_of_a_bounded_stream(sql: str) -> None:
    statement = parse(f"STREAM * FROM t {sql}")
    assert (statement.locks, statement.limit) == (True, 5)


def test_the_bounds_of_for_update_may_be_parameters() -> None:
    statement = parse("STREAM * FROM t LIMIT ? WAIT ? FOR UPDATE").bind([3, 1])
    assert (statement.locks, statement.limit, statement.wait) == (True, 3, Decimal(1))
