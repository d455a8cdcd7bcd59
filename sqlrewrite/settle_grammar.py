"""The patterns of ACK, NACK and EXTEND, which depend on the verb and on the session's sql_mode.

`ack` reads a statement with them: the head, then either a condition of the common shape with all behind
it in one match (`Grammar.keys`), or the condition piece by piece and the tail. Each repetition is bounded,
atomic or possessive, so that no text makes a match slow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

from sqlrewrite.classify import Verb
from sqlrewrite.lexicon import (
    BLANK,
    COMMENT,
    GAP,
    LINE_COMMENT,
    WORD_BYTE,
    WORD_END,
    block_comment,
    bytes_pattern,
    escaping_marks,
    inside,
    quoted,
    quoted_alike,
)

STEP_PIECES: Final = 2_048
"""Pieces of a condition that are scanned at once, in about a millisecond. A piece is a word, a
string, a comment or a mark."""
GAP_PIECES_MAX: Final = 1_000
"""Blanks and comments in a row that can stand between two words."""
NAME_QUOTES_MAX: Final = 128
"""Quotes that a name can contain: more than it can have characters."""
INNER_PIECES: Final = 64
"""Escapes in a string, or asterisks in a comment, that the pattern matches. One with more is read
in steps."""

STRETCH_PIECES: Final = 512
"""Pieces other than marks and clauses that the pattern matches at once."""

GAP_PIECES = rf"(?>(?:{BLANK}++|{COMMENT}){{0,{GAP_PIECES_MAX}}})"
_BARE_NAME = rf"(?!(?:FROM|WHERE){WORD_END}){WORD_BYTE}++"
_SHORT_NAMES = tuple(rf"(?>(?:{quoted(mark, escapes=False)}){{1,{NAME_QUOTES_MAX}}})" for mark in ("`", '"'))

TAIL_WORDS: Final[Mapping[Verb, str]] = {Verb.NACK: "DELAY", Verb.EXTEND: "BY"}
"""The word that precedes a number of seconds behind the condition, by verb."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The patterns that depend on sql_mode."""

    head: re.Pattern[bytes]
    """All that precedes a condition."""
    name: re.Pattern[bytes]
    keys: re.Pattern[bytes]
    """A whole condition of the common shape, up to the end of the statement."""
    tail: re.Pattern[bytes]
    """What follows a condition, up to the end of the statement."""
    pieces: re.Pattern[bytes]
    """A stretch of the condition, or one of the named groups: a mark, a word that may begin a
    clause, an error."""
    inside: Mapping[bytes, re.Pattern[bytes]]
    """By quote, the next part of a long text in quotes; empty at its end."""


def compile_grammars() -> None:
    """Compile the patterns of every statement in every mode, 0.1 s in all. Without it, the first statement
    of a kind does so."""
    for verb, escapes, marks in product((Verb.ACK, Verb.NACK, Verb.EXTEND), (False, True), (False, True)):
        grammar(verb, no_backslash_escapes=escapes, ansi_quotes=marks)


@cache
def grammar(verb: Verb, *, no_backslash_escapes: bool, ansi_quotes: bool) -> Grammar:
    """The patterns of ACK, NACK or EXTEND in a session's sql_mode. They are compiled once."""
    marks = escaping_marks(no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    string_marks = "'" if ansi_quotes else "'\""
    short = "|".join(quoted(mark, escapes=escapes, pieces_max=INNER_PIECES) for mark, escapes in marks.items())
    comment = block_comment(INNER_PIECES)
    word = TAIL_WORDS.get(verb)
    clauses = "ORDER|LIMIT" if word is None else f"ORDER|LIMIT|{word}"
    tail = "" if word is None else _seconds_pattern(word, "seconds")
    if verb is Verb.NACK:
        clauses += "|REASON"
        texts = {mark: escapes for mark, escapes in marks.items() if mark in string_marks}
        reason, reason_first = _reason_pattern(texts, "reason"), _reason_pattern(texts, "reason_first")
        in_order = rf"(?>(?:{tail})?)(?>(?:{GAP_PIECES}{reason})?)"
        turned = rf"{reason_first}{GAP_PIECES}{_seconds_pattern(word or '', 'seconds_last')}"
        tail = rf"(?:{turned}|{in_order})"
    tail = rf"{tail}{GAP_PIECES}(?>(?:;{GAP_PIECES})?)\Z"
    name = "|".join((_BARE_NAME, *_SHORT_NAMES[: 1 + ansi_quotes]))
    return Grammar(
        head=bytes_pattern(
            rf"{GAP_PIECES}{verb.name}{WORD_END}{GAP_PIECES}(?>(?:FROM{WORD_END}{GAP_PIECES})?)"
            rf"(?P<first>{name}){GAP_PIECES}(?>(?:\.{GAP_PIECES}(?P<second>{name}){GAP_PIECES})?)"
            rf"WHERE{WORD_END}{GAP_PIECES}"
        ),
        name=bytes_pattern(name),
        keys=bytes_pattern(_keys_pattern(ansi_quotes=ansi_quotes) + GAP + tail),
        tail=bytes_pattern(tail),
        pieces=bytes_pattern(
            rf"(?>(?:{BLANK}++|{comment}|{LINE_COMMENT}|{short}"
            rf"|(?!(?:{clauses}){WORD_END})[0-9A-Z_$.@\x80-\xff]++"
            rf"|-(?!-[\x00-\x20\x7f-\xff]|-\Z)|/(?!\*)|[^\x00'\"`\#();?/\-0-9A-Z_$.@\x80-\xff])"
            rf"{{1,{STRETCH_PIECES}}})"
            rf"|(?P<mark>[();?])|(?P<clause>{clauses})|(?P<bad>/\*|--|[\s\S])"
        ),
        inside={
            mark.encode(): bytes_pattern(inside(mark, escapes=escapes, pieces_max=STEP_PIECES))
            for mark, escapes in marks.items()
        },
    )


def _keys_pattern(*, ansi_quotes: bool) -> str:
    # No backslash and no doubled quote: the text between the quotes is the value itself.
    single, double = quoted_alike("'"), quoted_alike('"')
    text = single if ansi_quotes else f"(?:{single}|{double})"
    literal = rf"(?:-?+[0-9]++|\?|{text})"
    gap = rf"{BLANK}*+"
    # The first alternative matches nothing that the second does not; it halves the time of a long
    # list of numbers.
    listed = rf"\((?:(?>(?:[0-9]++,{gap})*)[0-9]++|(?>(?:{gap}{literal}{gap},)*){gap}{literal}{gap})\)"
    return (
        rf"(?P<condition>(?:`id`|id){gap}(?:=|IN{gap}(?=\()){gap}(?P<list>{listed}|{literal})"
        # `5AND` is a name.
        rf"(?>(?:{gap}(?<![0-9])AND{BLANK}++(?:`epoch`|epoch){gap}={gap}(?P<epoch>[0-9]++|\?))?))"
    )


def _seconds_pattern(word: str, group: str) -> str:
    """The word and its number. What the number is, and whether it is one, is decided later."""
    number = r"[0-9.](?>(?:[0-9A-Z_$.\x80-\xff]|(?<=[0-9.]E)[+-])*)"
    return rf"(?<!{WORD_BYTE}){word}{WORD_END}{GAP_PIECES}(?P<{group}>\?|{number})"


def _reason_pattern(marks: Mapping[str, bool], group: str) -> str:
    """REASON and its text. A doubled quote is an end followed by a start."""
    texts = "|".join(rf"(?>(?:{quoted(mark, escapes=escapes)})+)" for mark, escapes in marks.items())
    return rf"(?<!{WORD_BYTE})REASON{WORD_END}{GAP_PIECES}(?P<{group}>\?|{texts})"
