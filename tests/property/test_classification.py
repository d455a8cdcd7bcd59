"""Statements made at random from the pieces that lexers trip over.

The guard of an ACK is checked by two readers that share no code with ours: sqlglot's tokenizer, and a
plain loop over the bytes that does what MySQL's lexer does, in every sql_mode.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TypeVar
from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot import TokenType, tokenize

from sqlrewrite import ack, settle_grammar
from sqlrewrite.ack import NOW, acknowledged, parse_settle
from sqlrewrite.classify import Head, Verb, classify, parse_kill
from sqlrewrite.errors import SqlError
from sqlrewrite.lexicon import SqlMode
from sqlrewrite.settle_grammar import grammar
from sqlrewrite.stream import parse_stream
from tests.support.conditions import modes

T = TypeVar("T")

PIECES = [
    "STREAM", "ACK", "FROM", "WHERE", "t", "`t`", '"t"', "*", ",", ".", "id", "=", "IN", "(", ")", "((", "1", "?",
    "'a'", "'", '"', "`", "\\", "''", "'\\'", ";", " ", "\n", "\t", "\0", "\x7f", "/*", "*/", "/*!", "/*M!", "/* x */",
    "--", "-- ", "-", "#", "/", "LIMIT", "ORDER BY", "WAIT", "NOWAIT", "AND", "OR", "epoch", "é",
    "\xa0", "@", "{", "0x",
    "INSERT INTO", "UPDATE", "SET", "DELETE", "KILL", "QUERY", "CREATE", "TABLE", "BEGIN", "NOT ATOMIC",
]  # fmt: skip

texts = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
anything = st.one_of(st.binary(max_size=60), texts.map(str.encode), texts.map(lambda text: text.encode("latin-1")))
gaps = st.lists(
    st.sampled_from([" ", "\t", "\n", "\r\n", "\f", "/* x */", "/**/", "/* ' ; ` */", "-- ' ;\n", "#;`\n", "--\n"]),
    max_size=4,
).map("".join)


@given(anything)
@example(b"")
def test_no_bytes_make_classification_fail(text: bytes) -> None:
    assert isinstance(classify(text), Head)
    assert isinstance(classify(text, multi_statements=False), Head)
    parse_kill(text)


@given(
    st.sampled_from(["", "STREAM ", "STREAM * FROM t ", "STREAM * FROM t WHERE ", "STREAM * FROM t WHERE id = "]),
    st.one_of(texts, st.text(max_size=40)),
    modes,
)
def test_a_stream_is_read_or_refused(head: str, rest: str, mode: SqlMode) -> None:
    sql = head + rest
    statement = read_or_refused(lambda: parse_stream(sql.encode(), mode=mode))
    if isinstance(statement, SqlError):
        assert statement.code == 1064
        assert statement.position is not None
        assert 0 <= statement.position <= len(sql.encode())
    else:
        assert statement.columns
        assert statement.param_count <= sql.count("?")


@given(
    st.lists(st.sampled_from(["LIMIT 5", "PREFETCH 3", "WAIT 1.5"]), unique=True),
    st.lists(st.tuples(st.booleans(), gaps), min_size=12, max_size=12),
    st.sampled_from(["", ";"]),
)
def test_gaps_case_and_order_of_options_do_not_change_what_a_stream_says(
    options: list[str], looks: list[tuple[bool, str]], end: str
) -> None:
    words = ["", "STREAM", "`id`", ",", "note", "FROM", "app", ".", "`t`", *options]
    written = "".join(
        (word.lower() if lower else word) + gap + " " for word, (lower, gap) in zip(words, looks, strict=False)
    )
    plain = f"STREAM id, note FROM app.t {' '.join(options)}"
    assert classify((written + end).encode()).verb is Verb.STREAM
    assert parse_stream((written + end).encode()) == parse_stream(plain.encode())


@given(gaps, gaps.filter(bool), st.sampled_from(["ACK", "ack", "Ack"]), st.sampled_from([b"", b";"]))
def test_gaps_and_case_do_not_change_what_an_ack_says(gap: str, between: str, verb: str, end: bytes) -> None:
    words = (verb, "FROM", "t", "where", "id IN (1, 2)")
    written = (gap + between.join(words)).encode() + end + gap.encode()
    assert classify(written).verb is Verb.ACK
    assert parse_settle(written) == parse_settle(b"ACK t WHERE id IN (1, 2)")


@given(
    st.text(min_size=1).filter(lambda name: "\0" not in name),
    st.sampled_from(["INSERT INTO", "DELETE FROM", "TRUNCATE"]),
)
def test_any_quoted_name_is_told_from_the_head_of_a_write(name: str, verb: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    assert classify(f"{verb} app.{quoted}".encode(), multi_statements=False).table == name.casefold()


atoms = st.sampled_from(
    ["id = 1", "?", "'a)'", "'it''s ('", "'\\') ('", '"b("', "`c)`", "/* ) */", "-- )\n", "# (\n", "5-1", "6/2", "é",
     "f()", '"d\\" (', "-- \0\n", "'", "\\", ")", "(", ";", "--\xa0", "/*! ) */", "\0"]
)  # fmt: skip
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(" ".join), inner.map(lambda condition: f"({condition})")
    ),
    max_leaves=12,
)
well_formed = conditions.filter(
    lambda condition: not any(piece in condition for piece in ("\\", ";", "\0", "\xa0", "/*!"))
)


@given(
    st.one_of(conditions, texts),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["ACK {}", "NACK {}", "NACK {} DELAY 5", "NACK {} DELAY ?", "EXTEND {} BY 5", "EXTEND {} BY ?"]),
)
@example("id = 1 /*! ) OR (1 */", False, False, "ACK {}")
@example("id = 1 --\xa0(\n) OR (1 --\xa0)\n", False, False, "ACK {}")
@example("id = '\\') OR (TRUE OR a = '", False, True, "EXTEND {} BY ?")
def test_no_condition_gets_out_of_its_parentheses(
    condition: str, ansi_quotes: bool, no_backslash_escapes: bool, form: str
) -> None:
    sql = form.format(f"FROM t WHERE {condition}").encode("latin-1")
    modes = {"ansi_quotes": ansi_quotes, "no_backslash_escapes": no_backslash_escapes}
    statement = read_or_refused(lambda: parse_settle(sql, "latin-1", **modes))
    if isinstance(statement, SqlError):
        assert statement.code == 1064
        return
    acknowledges = statement.verb is Verb.ACK
    lasts = b"time_next > %b AND " % NOW if statement.verb is Verb.EXTEND else b""
    guard = b" WHERE time_acked IS NULL AND %b(" % (b"" if acknowledges else b"epoch > 0 AND " + lasts)
    before, _, behind = statement.update().partition(guard)
    assert before.startswith(
        ack.AS_IT_IS + b"UPDATE t SET " + (acknowledged(0) if acknowledges else b"time_next = " + NOW)
    )
    marks = list(marks_as_the_server_reads(behind, **modes))
    assert_only_the_last_mark_closes(marks)
    assert behind.endswith(b"\n)")
    assert b";" not in marks
    assert marks.count(b"?") + before.count(b"?") == statement.param_count


@contextlib.contextmanager
def small_steps() -> Iterator[None]:
    """Stretches, strings and comments are read in steps from their third piece on."""
    grammar.cache_clear()
    bounds = {"INNER_PIECES": 1, "STRETCH_PIECES": 2, "STEP_PIECES": 2}
    with contextlib.ExitStack() as stack:
        for module in (ack, settle_grammar):
            for name, pieces in bounds.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, pieces))
        yield
    grammar.cache_clear()


@given(st.one_of(conditions, texts), st.booleans(), st.booleans(), st.sampled_from(["ACK {}", "NACK {} DELAY ?"]))
@example("a = '\\\\\\'\\'' /* * * ) */ AND `b``)``` = \"\\\"\\\")\"", False, False, "ACK {}")
@example("a = '\\\\\\'\\'", False, False, "ACK {}")
@example("a = 1 /* * * *", False, False, "ACK {}")
def test_what_is_read_in_steps_means_the_same(
    condition: str, ansi_quotes: bool, no_backslash_escapes: bool, form: str
) -> None:
    sql = form.format(f"FROM t WHERE {condition}").encode("latin-1")
    modes = {"ansi_quotes": ansi_quotes, "no_backslash_escapes": no_backslash_escapes}

    def read() -> object:
        found = read_or_refused(lambda: parse_settle(sql, "latin-1", **modes))
        return (found.message, found.position) if isinstance(found, SqlError) else found

    at_once = read()
    with small_steps():
        assert read() == at_once


@given(well_formed)
def test_sqlglot_too_sees_one_statement_with_the_guard_outside(condition: str) -> None:
    statement = read_or_refused(lambda: parse_settle(f"ACK FROM t WHERE {condition}".encode()))
    if isinstance(statement, SqlError):
        return
    tokens = tokenize(statement.update().decode(), read="mysql")
    assert all(token.token_type is not TokenType.SEMICOLON for token in tokens)
    opened = next(index for index, token in enumerate(tokens) if token.token_type is TokenType.AND) + 1
    assert_only_the_last_mark_closes(
        [token.text.encode() for token in tokens[opened + 1 :] if token.text in ("(", ")")]
    )
    assert tokens[-1].token_type is TokenType.R_PAREN


NAMES = ["a", "`b`", "`b``c`", '"d"', "e (x, y)", "_1", "\u00e9"]
VERBS = ["SELECT", "select", "TABLE", "VALUES", "UPDATE", "delete", "INSERT", "REPLACE", "(SELECT", "CYCLE x"]
bodies = st.recursive(
    st.sampled_from(
        ["SELECT 1", "UPDATE t SET", "x", "'a)'", "'it''s ('", "'\\') ('", '"b("', '"\\"', "`c)`", "`\\`", "/* ) */",
         "-- )\n", "# (\n", "5-1", "6/2", "5--1", "\u00e9`", "f()", "'", "\\", ")", "(", ";",
         "/*! ) UPDATE */", "/*!", "*/", "\0"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(" ".join), inner.map(lambda body: f"({body})")
    ),
    max_leaves=10,
)  # fmt: skip
expressions = st.lists(st.tuples(st.sampled_from(NAMES), bodies), min_size=1, max_size=3)


@given(st.sampled_from(["", "RECURSIVE "]), expressions, gaps, st.sampled_from(VERBS))
@example("", [("a", "SELECT 1 /*! ) UPDATE t SET x = (1 */")], "", "SELECT")
@example("", [("a", "SELECT '\\') UPDATE t SET x = ('")], "", "SELECT")
@example("", [("a", "SELECT \u00e9`) SELECT (`) UPDATE t SET x = (1")], "", "SELECT")
def test_a_with_counts_as_read_only_where_every_mode_finds_a_select_behind_it(
    recursive: str, ctes: list[tuple[str, str]], gap: str, verb: str
) -> None:
    written = f"WITH {recursive}" + f",{gap}".join(f"{name} AS{gap}({body}){gap}" for name, body in ctes)
    text = f"{written} {verb} x".encode("gbk" if "\u00e9" in written else "ascii")
    if classify(text, multi_statements=False).verb is Verb.OTHER:
        for ansi_quotes in (False, True):
            for no_backslash_escapes in (False, True):
                modes = {"ansi_quotes": ansi_quotes, "no_backslash_escapes": no_backslash_escapes}
                with contextlib.suppress(IndexError, ValueError):  # Quotes, or comments, that are not closed: refused.
                    assert verb_behind_with(text, **modes) in {b"SELECT", b"TABLE", b"VALUES"}


@given(
    st.lists(st.sampled_from(["SELECT 1", "(SELECT 2)", "'a)'", "'it''s ('", '"b("', "`c)`", "/* ) */", "-- )\n",
                              "f(g(1), 2)", "IN (SELECT (x))", "5 - 1 / 2"]), min_size=1, max_size=8),
    gaps,
    st.sampled_from(NAMES),
)  # fmt: skip
def test_what_a_with_holds_does_not_hide_the_statement_behind_it(body: list[str], gap: str, name: str) -> None:
    head = f"WITH {gap} a AS (SELECT 1),{name} AS {gap}({' '.join(body)}){gap} ".encode()
    assert classify(head + b"select 1", multi_statements=False) == Head(Verb.OTHER)
    assert classify(head + b"UPDATE t SET x = 1", multi_statements=False) == Head(Verb.WRITE)
    assert classify(head + b"DELETE FROM t", multi_statements=False) == Head(Verb.WRITE)


def verb_behind_with(text: bytes, *, ansi_quotes: bool, no_backslash_escapes: bool) -> bytes:
    """The first verb outside parentheses, quotes and comments in GBK; what a comment executes is part of the text."""
    position = depth = 0
    while position < len(text):
        byte = text[position : position + 1]
        if byte >= b"\x81" and byte != b"\xff":
            position += 2
        elif byte in (b"'", b'"', b"`"):
            escapes = not no_backslash_escapes and byte != b"`" and not (byte == b'"' and ansi_quotes)
            position = end_of_quotes(text, position, escapes=escapes)
        elif text.startswith((b"/*!", b"*/"), position):
            position += 3 if byte == b"/" else 2
        elif text.startswith(b"/*", position):
            position = text.index(b"*/", position + 2) + 2
        elif byte == b"#" or (text.startswith(b"--", position) and is_blank(text[position + 2 : position + 3])):
            position = text.index(b"\n", position)
        elif depth == 0 and (found := VERB.match(text, position)) and not text[position - 1 : position].isalnum():
            return found[0].upper()
        else:
            depth += {b"(": 1, b")": -1}.get(byte, 0)
            position += 1
    return b"SELECT"  # It is none that the server would accept.


VERB = re.compile(rb"(?:SELECT|TABLE|VALUES|UPDATE|DELETE|INSERT|REPLACE)\b", re.IGNORECASE)


def read_or_refused(read: Callable[[], T]) -> T | SqlError:
    try:
        return read()
    except SqlError as error:
        return error


def assert_only_the_last_mark_closes(marks: list[bytes]) -> None:
    """One parenthesis is open at the start; the last mark closes it, and none before does."""
    depth = 1
    for mark in marks[:-1]:
        depth += {b"(": 1, b")": -1}.get(mark, 0)
        assert depth > 0
    assert depth == 1
    assert marks[-1] == b")"


def marks_as_the_server_reads(text: bytes, *, ansi_quotes: bool, no_backslash_escapes: bool) -> Iterator[bytes]:
    """The parentheses, semicolons and parameters outside quotes and comments, in latin1."""
    position = 0
    while position < len(text):
        byte = text[position : position + 1]
        if byte in (b"'", b'"', b"`"):
            escapes = not no_backslash_escapes and byte != b"`" and not (byte == b'"' and ansi_quotes)
            position = end_of_quotes(text, position, escapes=escapes)
        elif text.startswith(b"/*", position):
            assert not text.startswith((b"/*!", b"/*M!"), position)
            position = text.index(b"*/", position + 2) + 2
        elif byte == b"#" or (text.startswith(b"--", position) and is_blank(text[position + 2 : position + 3])):
            end = text.index(b"\n", position)
            assert b"\0" not in text[position:end]
            position = end
        else:
            assert byte != b"\0"
            if byte in (b"(", b")", b";", b"?"):
                yield byte
            position += 1


def is_blank(byte: bytes) -> bool:
    """As MySQL's latin1 has it, where the no-break space is one."""
    return byte <= b" " or byte in (b"\x7f", b"\xa0")


def end_of_quotes(text: bytes, start: int, *, escapes: bool) -> int:
    """A doubled quote is an end followed by a start, which comes to the same."""
    position = start + 1
    while text[position] != text[start]:
        position += 2 if escapes and text[position] == ord("\\") else 1
    return position + 1
