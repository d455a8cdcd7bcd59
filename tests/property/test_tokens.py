"""One language, two ways to read it: the lexicon's patterns and sqlglot's tokenizer agree.

The patterns tell what a statement is (`classify`) and where the condition of an ACK ends (`ack`).
The tokenizer cuts everything else (`tokens`).
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from hypothesis import assume, example, given
from hypothesis import strategies as st

from sqlrewrite import ack
from sqlrewrite.ack import KeyLiterals, SettleStatement, parse_settle
from sqlrewrite.classify import MESSAGE_VERBS, Verb, classify
from sqlrewrite.errors import SqlError
from sqlrewrite.lexicon import COMMENT, PLAIN, WORD_BYTE, SqlMode, bytes_pattern, strings
from sqlrewrite.names import Param
from sqlrewrite.tokens import TokenStream
from tests.support.conditions import modes

PIECES = [
    "a", "id", "x", "b", "N", "_utf8mb4", "1", "1.5", ".5", "1e3", "0x1F", "5t", "$", "@", "\u00e9", "\u00a0", "\x1f",
    "'a'", "''", "'it''s'", "'\\''", "'\\\\'", '"d"', '"d""d"', "`q`", "`q``q`", "'/* x'", "`-- x`",
    "'", '"', "`", "\\", "/* x */", "/**/", "-- c\n", "--\n", "#c\n", "/*!50100 ", "*/", "*", "/", "-", "--",
    "(", ")", ",", ".", ";", "?", "=", "<=>", "||", ":=", "{#", " ", "\n",
]  # fmt: skip
GAPS = ["", " ", "\n", "/* x */", "-- x\n", "#\n", "\t"]

texts = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
gaps = st.lists(st.sampled_from(GAPS), max_size=3).map("".join)


def tokens_of(text: bytes, mode: SqlMode = PLAIN, *, passes_through: bool = False) -> TokenStream | None:
    """The tokens, None where the text has none: a quote is not closed, say."""
    try:
        return TokenStream(text, "utf-8", mode, "X", passes_through=passes_through)
    except SqlError as error:
        refusal = error.message
    # Where the lexicon finds all quotes closed, sqlglot does too, except for a literal such as x'z'.
    assert "cannot be cut" not in refusal or any(mark in text.lower() for mark in (b"x'", b"b'"))
    return None


@given(texts, modes)
@example("'a''b' x'41' N'a' \"d\"", PLAIN)
@example("'\\' /* ' */", SqlMode(no_backslash_escapes=True))
@example("1e31.5", PLAIN)
def test_strings_and_names_end_where_the_lexicon_ends_them(written: str, mode: SqlMode) -> None:
    text = written.encode()
    tokens = tokens_of(text, mode)
    assume(tokens is not None)
    assert tokens is not None
    found = {token.end: token for token in tokens.all}
    quoted = strings(ansi_quotes=mode.ansi_quotes, no_backslash_escapes=mode.no_backslash_escapes)
    number = rf"\.?[0-9](?:\.|{WORD_BYTE})*+"  # Not followed: where 1e31.5 ends, the server alone decides.
    word = rf"(?P<word>{WORD_BYTE}++)"
    piece = bytes_pattern(rf"(?P<hidden>{COMMENT})|(?P<quoted>{quoted})|{number}|{word}|[\s\S]")
    begins = {token.start for token in tokens.all}
    for match in piece.finditer(text):
        start, end = match.span()
        if match["hidden"] is not None:
            assert not begins & set(range(start, end))
        elif match["quoted"] is not None:
            assert not begins & set(range(start + 1, end))
            token = found[end]
            assert text[token.start : start].lower() in (b"", b"x", b"b", b"n")
            assert token.kind in ("string", "name") or token.start < start
        elif match["word"] is not None and text[end : end + 1] not in (b"'", b'"'):
            assert end in found


@given(gaps, st.sampled_from([*MESSAGE_VERBS, Verb.KILL]), st.booleans(), texts, st.booleans())
@example("", Verb.ACK, False, "; a", True)
@example("", Verb.ACK, False, " ';' ;/* x */", True)
def test_the_head_pattern_finds_the_first_word_and_a_second_statement(
    gap: str, verb: Verb, lower: bool, rest: str, multi_statements: bool
) -> None:
    word = verb.name.lower() if lower else verb.name
    text = (gap + word + rest).encode()
    tokens = tokens_of(text)
    assume(tokens is not None)
    assert tokens is not None
    written = [tokens.text_of(token) for token in tokens.all]
    ours = (
        verb in MESSAGE_VERBS
        and written[0].upper() == verb.name
        and not (len(written) > 1 and written[1][0] in ":(.=")
        and ";" not in written[:-1]
    )
    found = classify(text, multi_statements=multi_statements).verb
    assert (found is verb) is ours or (verb is Verb.KILL and found in (Verb.KILL, Verb.OTHER, Verb.WRITE))


literals = st.sampled_from(["1", "-2", "30", "?", "'a'", '"b"', "'it s'"])
lists = st.lists(literals, min_size=1, max_size=5).map(lambda ids: f"id IN ({', '.join(ids)})")
conditions = st.one_of(lists, lists.map("{} AND epoch = 5".format), literals.map("`id` = {}".format), texts)
forms = st.sampled_from(
    ["ACK t WHERE {}", "NACK t WHERE {} DELAY 5", "NACK t WHERE {} DELAY ?", "EXTEND t WHERE {} BY ?;"]
)


@given(conditions, forms, modes)
@example("id IN (1, 'a', ?) AND epoch = ?", "NACK t WHERE {} DELAY ?", PLAIN)
def test_the_condition_of_an_ack_has_the_tokens_that_were_counted(condition: str, form: str, mode: SqlMode) -> None:
    statement = settled(form.format(condition), mode)
    assume(statement is not None)
    assert statement is not None
    tokens = tokens_of(statement.condition + b"\n", mode, passes_through=True)
    assume(tokens is not None)  # x'zz' is the server's to refuse.
    assert tokens is not None
    tokens.check_parentheses()
    written = [tokens.text_of(token) for token in tokens.all]
    assert ";" not in written
    assert written.count("?") == statement.param_count - isinstance(statement.delay_s, Param)
    if statement.keys is not None:
        assert list(statement.keys) == keys_of(written)


def keys_of(written: list[str]) -> list[bytes | Param]:
    """The keys of `id = …` or `id IN (…)`, from its tokens."""
    until = written.index("AND") if "AND" in written else len(written)
    text = " ".join(word for word in written[2:until] if word not in "()").replace("- ", "-")
    params = iter(range(len(written)))
    return [
        Param(next(params)) if key.strip() == "?" else key.strip().strip("'\"").encode() for key in text.split(" , ")
    ]


@given(conditions, forms, modes)
def test_a_list_of_keys_is_measured_like_any_other_condition(condition: str, form: str, mode: SqlMode) -> None:
    sql = form.format(condition)
    statement = settled(sql, mode)
    with mock.patch.object(ack, "KEYS_BYTES_MAX", 0):
        measured = settled(sql, mode)
    assert measured == (statement and replace(statement, keys=None, key_literals=KeyLiterals.NUMBERS, epoch=None))


def settled(sql: str, mode: SqlMode) -> SettleStatement | None:
    try:
        return parse_settle(sql.encode(), no_backslash_escapes=mode.no_backslash_escapes, ansi_quotes=mode.ansi_quotes)
    except SqlError:
        return None
