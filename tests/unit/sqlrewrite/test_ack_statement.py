"""ACK as a language, and the UPDATE that it becomes: nothing in a condition undoes the guard."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest

from sqlrewrite.ack import (
    AS_IT_IS,
    DELAY_MAX_S,
    KEYS_MAX,
    NOW,
    ReasonColumns,
    SettleStatement,
    acknowledged,
    parse_settle,
    settle_steps,
)
from sqlrewrite.classify import Verb
from sqlrewrite.errors import SqlError
from sqlrewrite.names import Param, TableName
from sqlrewrite.settle_grammar import STEP_PIECES


def refusal(sql: bytes, codec: str = "utf-8", **modes: bool) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse_settle(sql, codec, **modes)
    return caught.value


def test_the_update_is_guarded_before_the_condition_and_closed_after_it() -> None:
    assert parse_settle(b"ACK FROM app.`t` WHERE id = 5 OR TRUE -- all").update() == (
        AS_IT_IS + b"UPDATE app.`t` SET " + acknowledged(0) + b" WHERE time_acked IS NULL AND (id = 5 OR TRUE -- all\n)"
    )


def test_the_time_is_the_servers_in_nanoseconds() -> None:
    assert b"UTC_TIMESTAMP(6)) * 1000, time_next = NULL" in acknowledged(0)


@pytest.mark.parametrize(
    "sql",
    [
        b"ACK FROM t WHERE id = 1",
        b"ack t where id = 1",
        b"\n/* ' */ Ack -- x\n from # y\n t/**/where\tid = 1 ; ",
        b"ACK t WHERE /* first */ id = 1; -- done",
        b"ACK t WHERE id = 1 \r\n",
    ],
)
def test_blanks_comments_case_from_and_one_semicolon_change_nothing(sql: bytes) -> None:
    assert parse_settle(sql) == SettleStatement(Verb.ACK, TableName("t"), b"t", b"id = 1", (b"1",), 0)


@pytest.mark.parametrize(
    ("table", "name", "written"),
    [
        (b"t", TableName("t"), b"t"),
        (b"app.t", TableName("t", "app"), b"app.t"),
        (b"`app` . /* x */ `t`", TableName("t", "app"), b"`app`.`t`"),
        (b"`a``b`", TableName("a`b"), b"`a``b`"),
        (b"`from`", TableName("from"), b"`from`"),
        (b"ack", TableName("ack"), b"ack"),
        (b"2024_jobs", TableName("2024_jobs"), b"2024_jobs"),
        ("größe".encode(), TableName("größe"), "größe".encode()),
    ],
)
def test_a_table_is_decoded_and_kept_as_written(table: bytes, name: TableName, written: bytes) -> None:
    statement = parse_settle(b"ACK FROM %b WHERE id = 1" % table)
    assert (statement.table, statement.table_sql) == (name, written)


def test_names_are_decoded_by_the_clients_character_set() -> None:
    assert parse_settle("ACK größe WHERE TRUE".encode("latin-1"), "latin-1").table == TableName("größe")


def test_double_quotes_are_names_under_ansi_quotes_alone() -> None:
    sql = b'ACK FROM "app"."t" WHERE "id" = 1'
    assert parse_settle(sql, ansi_quotes=True).table == TableName("t", "app")
    assert "a table name was expected" in refusal(sql).message


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        (b"id = 1", (b"1",)),
        (b"ID=-1", (b"-1",)),
        (b"`id` = 'a'", (b"a",)),
        (b"id = ''", (b"",)),
        (b'id = "a"', (b"a",)),
        (b"id IN (1)", (b"1",)),
        (b"id in(1,2 , 3)", (b"1", b"2", b"3")),
        (b"id IN (\n1,\n2\n)", (b"1", b"2")),
        (b"id IN ('a', 'b;c', '(d,e)', '?')", (b"a", b"b;c", b"(d,e)", b"?")),
        (b"""id IN ('a "b"', "c 'd'", 5)""", (b'a "b"', b"c 'd'", b"5")),
        (b"id = ?", (Param(0),)),
        (b"id IN (?, 5, ?)", (Param(0), b"5", Param(1))),
        (b"id IN (?,'x',?)", (Param(0), b"x", Param(1))),
        (b"id = 1 AND epoch = 2", (b"1",)),
        (b"id IN (1)AND `epoch`=?", (b"1",)),
        (b"id = 1 /* one */", (b"1",)),
    ],
)
def test_keys_of_the_common_shapes_are_read(condition: bytes, keys: tuple[bytes | Param, ...]) -> None:
    statement = parse_settle(b"ACK FROM t WHERE " + condition)
    assert statement.keys == keys
    assert condition.startswith(statement.condition)


@pytest.mark.parametrize(
    "condition",
    [
        b"TRUE",
        b"priority = 1",
        b"id > 1",
        b"id = 1 OR TRUE",
        b"id = 1 AND epoch > 2",
        b"id = 1 + 1",
        b"id = 1.5",
        b"id = 0x1F",
        b"id = 1x",
        b"id = 5AND epoch = 2",
        b"id = -?",
        b"id = 'it''s'",
        b"id = 'it\\'s'",
        b"id = 'a' 'b'",
        b"id = N'a'",
        b"id = _latin1'a'",
        b"id IN (SELECT 1)",
        b"id IN (1, 2) OR id = 3",
        b"id IN (1, /* 2, */ 3)",
        b"(id = 1)",
        b"t.id = 1",
        b"NOT id = 1",
        b"idx = 1",
        b"id = @a",
    ],
)
def test_any_other_condition_has_no_keys_and_is_kept_verbatim(condition: bytes) -> None:
    statement = parse_settle(b"ACK FROM t WHERE %b;" % condition)
    assert (statement.keys, statement.condition) == (None, condition)


def test_a_key_in_double_quotes_is_a_column_under_ansi_quotes() -> None:
    assert parse_settle(b'ACK t WHERE id = "a"', ansi_quotes=True).keys is None


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        (b"id = ?", 1),
        (b"id IN (?, ?, 3) AND epoch = ?", 3),
        (b"id = 1 AND epoch = ?", 1),
        (b"id = '?' AND epoch = 5", 0),
        (b"a = ? AND b IN (?, '?', `?`, /* ? */ ?) -- ?", 3),
    ],
)
def test_parameters_are_counted_outside_quotes_and_comments(condition: bytes, count: int) -> None:
    statement = parse_settle(b"ACK t WHERE " + condition)
    assert statement.param_count == count


@pytest.mark.parametrize(
    "condition",
    [
        b"a = ')' AND (b = '(' OR c = \")(\")",
        b"`)` = 1",
        b"a /* ) */ = 1 -- )",
        b"a = 1 # )",
        b"a = 'it''s )' AND b = 'it\\'s )'",
        b"a = '\\\\' AND (b = 1)",
        b"a = ';'",
        b"a IN (SELECT b FROM u ORDER BY b LIMIT 5)",
        b"`limit` = 1 AND t.limit = 2 AND @order = 3 AND limits = 4",
        b"a = 5--1 AND b = 5-1 AND c - - 1",
        b"a = 6/2 AND b*/**/2 = 4",
        b"data->>'$.a' = 1 AND b = {d '2026-01-01'}",
        b"a = -- b\n1",
        b"a = 1 /*+ hint */",
        b"a = \xe4\xbd\xa0\xe5\xa5\xbd",
        b"a = 'x\0y'",
        b"TRUE --",
    ],
)
def test_what_stands_in_quotes_and_comments_is_no_structure(condition: bytes) -> None:
    assert parse_settle(b"ACK t WHERE " + condition).condition == condition


@pytest.mark.parametrize(
    ("condition", "near", "reason"),
    [
        (b"id = 1 --\xa0(\n) OR (TRUE --\xa0)\n", b"--\xa0(\n) OR (TRUE --\xa0)\n", "only before a blank"),
        (b"id = 1 -- \0\n", b"\0\n", "a NUL cannot stand outside quotes"),
        (b"id = 1 \0", b"\0", "a NUL cannot stand outside quotes"),
        (b"", b"", "write WHERE TRUE"),
    ],
)
def test_a_condition_that_could_end_elsewhere_is_refused(condition: bytes, near: bytes, reason: str) -> None:
    sql = b"ACK FROM t WHERE " + condition
    error = refusal(sql)
    assert (error.code, error.sqlstate) == (1064, "42000")
    assert (
        f"You have an error in your ACK statement near '{near.decode(errors='replace')}' at line 1: " in error.message
    )
    assert reason in error.message
    assert error.position == len(sql) - len(near)


@pytest.mark.parametrize(
    ("sql", "near", "reason"),
    [
        (b"UPDATE t SET a = 1", "UPDATE t SET a = 1", "ACK was expected"),
    ],
)
def test_the_head_is_a_table_and_where(sql: bytes, near: str, reason: str) -> None:
    error = refusal(sql)
    assert f"near '{near}' at line 1: " in error.message
    assert reason in error.message


def test_an_error_names_its_line() -> None:
    assert "near ')' at line 3: " in refusal(b"ACK FROM t\nWHERE a = 1\n)").message


def test_a_backslash_escapes_only_where_the_sql_mode_has_it_escape() -> None:
    closed_without_escapes = b"ACK t WHERE a = '\\' AND (b = 1)"
    assert parse_settle(closed_without_escapes, no_backslash_escapes=True).condition == b"a = '\\' AND (b = 1)"
    assert "this quote is not closed" in refusal(closed_without_escapes).message
    closed_with_escapes = b"ACK t WHERE a = '\\') OR ('"
    assert parse_settle(closed_with_escapes).condition == b"a = '\\') OR ('"
    assert "not opened" in refusal(closed_with_escapes, no_backslash_escapes=True).message


def test_a_backslash_is_nothing_special_in_names() -> None:
    assert parse_settle(b"ACK t WHERE `a\\` = 1").condition == b"`a\\` = 1"
    assert parse_settle(b'ACK t WHERE "a\\" = 1', ansi_quotes=True).condition == b'"a\\" = 1'
    assert "this quote is not closed" in refusal(b'ACK t WHERE "a\\" = 1').message


@pytest.mark.parametrize(
    ("codec", "character"),
    [
        ("gbk", b"\xbf\x5c"),
        ("gb18030", b"\xbf\x5c"),
        ("big5", b"\xa5\x5c"),
        ("shift_jis", b"\x95\x5c"),
        ("cp932", b"\x95\x5c"),
    ],
)
def test_a_backslash_byte_inside_a_longer_character_escapes_nothing(codec: str, character: bytes) -> None:
    condition = b"id = '%b' AND (a = 1)" % character
    assert parse_settle(b"ACK t WHERE " + condition, codec).condition == condition
    assert "this quote is not closed" in refusal(b"ACK t WHERE " + condition, "latin-1").message
    assert parse_settle(b"ACK t WHERE id = '%b'" % character, codec).keys == (character,)


def test_a_backquote_byte_inside_a_longer_character_quotes_nothing() -> None:
    table = "乣".encode("gbk")
    assert table.endswith(b"`")
    assert parse_settle(b"ACK %b WHERE %b = 1" % (table, table), "gbk").table == TableName("乣")


HOSTILE = [
    b" ",
    b"/*",
    b"/**/",
    b"-- \n",
    b"--",
    b"'",
    b'"',
    b"`",
    b"\\",
    b"(",
    b")",
    b"()",
    b"?",
    b"1,",
    b"id=",
    b"a.",
    b"\0",
]


@pytest.mark.parametrize("head", [b"ACK ", b"ACK t WHERE ", b"ACK t WHERE id IN (", b"ACK t WHERE id = '"])
@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.cpu(30)
def test_hostile_text_comes_to_an_end(head: bytes, unit: bytes) -> None:
    sql = head + unit * (1_000_000 // len(unit)) + b")"
    with suppress(SqlError):
        assert parse_settle(sql).condition in sql


# -- NACK and EXTEND

GUARDS = {
    Verb.NACK: b" WHERE time_acked IS NULL AND epoch > 0 AND (",
    Verb.EXTEND: b" WHERE time_acked IS NULL AND epoch > 0 AND time_next > %b AND (" % NOW,
}


@pytest.mark.parametrize(
    ("sql", "delay_s", "condition"),
    [
        (b"NACK t WHERE id = 1", "0", b"id = 1"),
        (b"nack from t where id = 1;", "0", b"id = 1"),
        (b"NACK t WHERE id IN (1, 2) DELAY 5", "5", b"id IN (1, 2)"),
        (b"NACK t WHERE id IN (1,2)DELAY 1.5;", "1.5", b"id IN (1,2)"),
        (b"NACK t WHERE id = 'a' /* x */ delay /* y */ .5 -- z", "0.5", b"id = 'a'"),
        (b"NACK t WHERE TRUE DELAY 0.000000001", "1e-9", b"TRUE"),
        (b"NACK t WHERE TRUE DELAY 1.5e0", "1.5", b"TRUE"),
        (b"NACK t WHERE id = 1 DELAY 2.5E-3 -- z", "0.0025", b"id = 1"),
        (b"NACK t WHERE id IN (1) DELAY 0.30000000000000004", "0.3", b"id IN (1)"),
        (b"EXTEND t WHERE id = 1 BY 1e+2", "100", b"id = 1"),
        (b"NACK t WHERE a > 1 AND (b = 2) DELAY 3155760000 ; ", "3155760000", b"a > 1 AND (b = 2)"),
        (b"NACK t WHERE delay = 5", "0", b"delay = 5"),
        (b"NACK t WHERE delay", "0", b"delay"),
        (b"NACK t WHERE a > delay", "0", b"a > delay"),
        (b"NACK t WHERE a > delay - 5", "0", b"a > delay - 5"),
        (b"NACK t WHERE a > delay DELAY 5", "5", b"a > delay"),
        (b"NACK t WHERE `delay` = 'DELAY 5'", "0", b"`delay` = 'DELAY 5'"),
        (b"NACK t WHERE t.delay = 5 DELAY 6", "6", b"t.delay = 5"),
        (b"NACK t WHERE id = 1 -- DELAY 5", "0", b"id = 1"),
        (b"EXTEND t WHERE id = 1 BY 30", "30", b"id = 1"),
        (b"extend from t where id = 1 and epoch = 2 by 0.25;", "0.25", b"id = 1 and epoch = 2"),
        (b"EXTEND t WHERE a BETWEEN 1 AND 2 BY 3", "3", b"a BETWEEN 1 AND 2"),
        (b"EXTEND t WHERE t.by = 1 AND `BY` = 2 BY 3", "3", b"t.by = 1 AND `BY` = 2"),
        (
            b"EXTEND t WHERE id IN (SELECT id FROM u ORDER BY 1) BY 2",
            "2",
            b"id IN (SELECT id FROM u ORDER BY 1)",
        ),
    ],
)
def test_the_time_stands_at_the_end_outside_quotes_and_parentheses(sql: bytes, delay_s: str, condition: bytes) -> None:
    statement = parse_settle(sql)
    assert (statement.delay_s, statement.condition) == (Decimal(delay_s), condition)
    assert statement.update() == (
        b"%bUPDATE t SET time_next = %b + %d%b%b\n)"
        % (AS_IT_IS, NOW, Decimal(delay_s) * 10**9, GUARDS[statement.verb], condition)
    )


def test_keys_are_read_beside_a_time() -> None:
    assert parse_settle(b"NACK t WHERE id IN (1, 'b') AND epoch = 3 DELAY 5").keys == (b"1", b"b")
    assert parse_settle(b"EXTEND t WHERE id = 7 BY 5").keys == (b"7",)
    assert parse_settle(b"EXTEND t WHERE id > 7 BY 5").keys is None


@pytest.mark.parametrize(("verb", "word"), [(b"NACK", b"DELAY"), (b"EXTEND", b"BY")])
def test_a_time_that_is_a_parameter_is_the_statements_last_and_the_updates_first(verb: bytes, word: bytes) -> None:
    statement = parse_settle(b"%b t WHERE id IN (?, ?) AND epoch = ? %b ?" % (verb, word))
    assert (statement.keys, statement.delay_s, statement.param_count) == ((Param(0), Param(1)), Param(3), 4)
    update = statement.update()
    assert update.count(b"?") == 4
    assert b"CAST(? AS DECIMAL(20, 9)) * 1000000000 WHERE" in update


@pytest.mark.parametrize("value", [0, 5, 1.5, Decimal("0.000000001"), b"1.5", DELAY_MAX_S])
def test_a_time_is_bound_as_drivers_send_it(value: object) -> None:
    parse_settle(b"NACK t WHERE id = ? DELAY ?").check_delay([1, value])


@pytest.mark.parametrize("value", [None, -1, DELAY_MAX_S + 1, b"x", float("nan"), b""])
def test_a_time_that_cannot_be_is_refused_by_name(value: object) -> None:
    with pytest.raises(SqlError, match=r"BY takes seconds from 0 to .* and parameter 2 is") as caught:
        parse_settle(b"EXTEND t WHERE id = ? BY ?").check_delay([1, value])
    assert caught.value.code == 1210


@pytest.mark.parametrize("verb", [b"NACK", b"EXTEND"])
@pytest.mark.parametrize("unit", [b" DELAY", b" DELAY 5", b" BY", b" BY 5", b" a", b"delay ", b"by.", *HOSTILE])
@pytest.mark.cpu(30)
def test_hostile_times_come_to_an_end(verb: bytes, unit: bytes) -> None:
    with suppress(SqlError):
        parse_settle(b"%b t WHERE a = 1 " % verb + unit * (1_000_000 // len(unit)) + b")")


def steps_of(sql: bytes) -> tuple[int, SettleStatement]:
    """How many steps it takes to read, and what is read."""
    steps, count = settle_steps(sql), 1
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return count, done.value
        count += 1


def ids(count: int, form: bytes = b"%d") -> bytes:
    return b"id IN (" + b", ".join(form % number for number in range(count)) + b")"


def test_as_many_ids_as_a_queue_has_in_flight_are_read_and_of_more_it_is_not_known_which() -> None:
    few, many = (parse_settle(b"ACK FROM t WHERE " + ids(count)) for count in (KEYS_MAX, KEYS_MAX + 1))
    assert few.keys == tuple(b"%d" % number for number in range(KEYS_MAX))
    assert many.keys is None
    assert many.condition == ids(KEYS_MAX + 1)
    assert many.update().startswith(AS_IT_IS + b"UPDATE t SET time_acked = ")


def test_parameters_are_counted_where_the_ids_are_not_read() -> None:
    condition = b"id IN (" + b"'a?', ?, " * KEYS_MAX + b"?) AND epoch = ?"
    statement = parse_settle(b"NACK FROM t WHERE " + condition + b" DELAY ?")
    assert (statement.keys, statement.param_count) == (None, KEYS_MAX + 3)
    assert statement.condition == condition


@pytest.mark.parametrize(
    "piece", [b"id = 7 OR ", b"(", b"?, ", b"a DELAY ", b"'it''s (' OR ", b"1 /* ) */ ", b"1 -- )\n", b"5-1/2 "]
)
@pytest.mark.parametrize("verb", [b"ACK", b"NACK"])
def test_each_step_of_a_long_statement_is_bounded(verb: bytes, piece: bytes) -> None:
    """Twice as many pieces take twice as many steps, each of a bounded count of pieces."""
    closing = {b"(": b")"}.get(piece, b"")

    def steps(count: int) -> int:
        return steps_of(verb + b" FROM t WHERE " + count * piece + b"1" + count * closing)[0]

    count = 10 * STEP_PIECES
    once, twice = steps(count), steps(2 * count)
    assert once >= count // STEP_PIECES
    assert 2 * once - 2 <= twice <= 2 * once + 2


@pytest.mark.parametrize(
    ("begin", "piece", "end"),
    [(b"a = '", rb"\'", b"'"), (b'a = "', rb"\\", b'"'), (b"a = '", b"''", b"'"), (b"", b"``", b"")],
)
def test_what_stands_in_quotes_is_read_in_steps_too(begin: bytes, piece: bytes, end: bytes) -> None:
    condition = begin + 10 * STEP_PIECES * piece + end + b" OR b = ?"
    count, statement = steps_of(b"ACK FROM t WHERE " + condition)
    assert count >= 10
    assert (statement.condition, statement.param_count) == (condition, 1)
    assert refusal(b"ACK FROM t WHERE " + condition + b")").code == 1064


@pytest.mark.parametrize("unclosed", [b"a = '" + rb"\'" * 10_000, b"a = 1 /* " + b"* " * 10_000, b"`" + b"``" * 10_000])
def test_what_is_long_and_not_closed_is_refused(unclosed: bytes) -> None:
    assert "is not closed" in refusal(b"ACK FROM t WHERE " + unclosed).message


def test_a_long_comment_hides_what_is_in_it() -> None:
    condition = b"a = 1 /* ; ) ' " + b"* " * 10_000 + b"*/ AND b = ?"
    assert parse_settle(b"ACK FROM t WHERE " + condition).condition == condition
    executed = condition.replace(b"/*", b"/*!")
    assert "executes" in refusal(b"ACK FROM t WHERE " + executed).message


def test_two_million_ids_are_read_in_steps() -> None:
    count, statement = steps_of(b"ACK FROM t WHERE " + ids(2_000_000))
    assert count >= 2_000_000 // STEP_PIECES
    assert statement.keys is None


def test_a_long_condition_means_what_a_short_one_does_wherever_a_step_ends() -> None:
    """Pieces that a reader that begins in the middle of them would take for others."""
    tricky = (
        b"a = 'x''); \\' ' AND b = \"(\" AND `c``)` = 5- -1 /* ; ) ' */ AND ordering = order_by AND \xe9 = 6/2 AND "
    )
    for shift in range(0, 40, 3):
        condition = b"x AND " * shift + tricky * 100 + b"(1)"
        statement = parse_settle(b"EXTEND FROM t WHERE " + condition + b" BY 5")
        assert (statement.condition, statement.param_count) == (condition, 0)
        with pytest.raises(SqlError):
            parse_settle(b"EXTEND FROM t WHERE " + condition + b") OR (1 BY 5")


REASON = ReasonColumns(b"`reason`", b"`reason_at`", 16_000)


@pytest.mark.parametrize(
    ("text", "condition", "delay", "reason"),
    [
        (b"NACK t WHERE id = 1 REASON 'x'", b"id = 1", Decimal(0), b"'x'"),
        (b"NACK t WHERE id = 1 DELAY 5 REASON 'it''s'", b"id = 1", Decimal(5), b"'it''s'"),
        (b"NACK t WHERE a > 1 /* x */ DELAY 5\nREASON /* y */ 'a\\'b' -- z", b"a > 1 /* x */", Decimal(5), b"'a\\'b'"),
        (b"NACK t WHERE id = ? DELAY ? REASON ?;", b"id = ?", Param(1), Param(2)),
        (b"NACK t WHERE id = ? REASON ?", b"id = ?", Decimal(0), Param(1)),
        (b"NACK t WHERE id = 1 REASON 'it''s' DELAY 5", b"id = 1", Decimal(5), b"'it''s'"),
        (b"NACK t WHERE a > 1 REASON /* y */ 'a\\'b'\nDELAY /* z */ .5;", b"a > 1", Decimal("0.5"), b"'a\\'b'"),
        (b"NACK t WHERE id = ? REASON ? DELAY ?", b"id = ?", Param(2), Param(1)),
        (b"NACK t WHERE id = ? REASON ? DELAY 5", b"id = ?", Decimal(5), Param(1)),
        (b"NACK t WHERE reason = 'x'", b"reason = 'x'", Decimal(0), None),
        (b"NACK t WHERE id = 1 AND reason = 'x' REASON 'y'", b"id = 1 AND reason = 'x'", Decimal(0), b"'y'"),
    ],
)
def test_a_reason_ends_a_nack(
    text: bytes, condition: bytes, delay: Decimal | Param, reason: bytes | Param | None
) -> None:
    statement = parse_settle(text)
    assert (statement.condition, statement.delay_s, statement.reason) == (condition, delay, reason)
    moved = [param.index for param in (delay, reason) if isinstance(param, Param)]
    assert statement.params_order == (*moved, *range(statement.param_count - len(moved)))
    if reason is not None:
        written = b"?" if isinstance(reason, Param) else reason
        assert b", `reason` = LEFT(%b, 16000), `reason_at` = UTC_TIMESTAMP(6) WHERE" % written in statement.update(
            None, REASON
        )


def test_only_a_nack_has_a_reason() -> None:
    for text in (b"ACK t WHERE id = 1 REASON 'x'", b"EXTEND t WHERE id = 1 REASON 'x' BY 5"):
        assert parse_settle(text).reason is None  # The server refuses it.


def test_double_quotes_are_a_text_unless_the_mode_makes_them_a_name() -> None:
    text = b'NACK t WHERE id = 1 REASON "x"'
    assert parse_settle(text).reason == b'"x"'
    with pytest.raises(SqlError):
        parse_settle(text, ansi_quotes=True)
