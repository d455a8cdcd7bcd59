"""MySQL's rules of what is a blank, a comment, a string and a name, as regular expressions.

This is the only place that states these rules. Each pattern is text, from which the modules build
theirs: `classify` the head of a statement, `ack` a condition that it does not parse, `tokens` what
is hidden from sqlglot's tokenizer.

Every pattern is possessive. A quote or comment that is not closed fails at once, without
backtracking, so the cost of any input is linear in its length. A repeated group is written as an
atomic one, `(?>(?:…)*)`: before Python 3.11.5, `(?:…)*+` went wrong when the group had
alternatives. A comment that the server executes (`/*! … */`, `/*M! … */`) is not a comment here.

The patterns match bytes. In five character sets of East Asia a byte of a longer character can look
like a backslash or a backquote; `shadow` returns text of equal length without such characters.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SqlMode:
    """The parts of a session's sql_mode and character set that change how text is read."""

    ansi_quotes: bool = False
    """Whether "t" is a name."""
    no_backslash_escapes: bool = False
    """Whether a backslash in a string is a character like any other."""
    high_not_precedence: bool = False
    """Whether NOT binds more tightly than a comparison."""
    like_escapes: bool = True
    """Whether a backslash escapes in a LIKE pattern without ESCAPE. no_backslash_escapes ends that
    on MySQL alone."""
    strings_are_bytes: bool = False
    """Whether the character set is `binary`: a string is its bytes then, and has no characters."""


PLAIN: Final = SqlMode()

BLANK = r"[ \t\n\v\f\r]"


def block_comment(pieces_max: int | None = None) -> str:
    """A comment in `/* */`. One with more than `pieces_max` asterisks does not match."""
    return rf"/\*(?!M?!)[^*]*+(?>(?:\*(?!/)[^*]*+){_times(pieces_max)})\*/"


def quoted(mark: str, *, escapes: bool, pieces_max: int | None = None) -> str:
    """A string or name in one pair of quotes. One with more than `pieces_max` escapes does not
    match.

    A doubled quote is an end followed by a start, so a whole string is one or more of these.
    """
    return mark + inside(mark, escapes=escapes, pieces_max=pieces_max) + mark


def inside(mark: str, *, escapes: bool, pieces_max: int | None = None) -> str:
    """The text between two quotes, or its next part."""
    if not escapes:
        return f"[^{mark}]*+"
    return rf"(?>(?:[^{mark}\\]++|\\[\s\S]){_times(pieces_max)})"


def quoted_alike(mark: str) -> str:
    """Text in one pair of quotes that every sql_mode reads alike: it has no backslash."""
    return rf"{mark}[^{mark}\\]*+{mark}"


def _times(pieces_max: int | None) -> str:
    return "*" if pieces_max is None else f"{{0,{pieces_max}}}"


def _whole(mark: str, *, escapes: bool) -> str:
    """A string or name. With escapes, one that is not closed fails from its beginning: the error
    names that place."""
    if escapes:
        return rf"{mark}(?>(?:[^{mark}\\]++|\\[\s\S]|{mark}{mark})*){mark}"
    return rf"(?>(?:{quoted(mark, escapes=False)})+)"


BLOCK_COMMENT = block_comment()
# The server requires a blank or a control character after the two dashes: `5--1` is a subtraction.
# A NUL ends such a comment for some servers and not for others: the parsers refuse it.
LINE_COMMENT = r"(?:\#|--(?=[\x00-\x20\x7f]|\Z))[^\n\x00]*+"
COMMENT = rf"(?:{BLOCK_COMMENT}|{LINE_COMMENT})"
GAP = rf"(?>(?:{BLANK}++|{COMMENT})*)"
EXECUTED = r"/\*M?!"
"""The start of a comment that the server executes."""

WORD_BYTE = r"[0-9A-Za-z_$\x80-\xff]"
WORD_END = rf"(?!{WORD_BYTE})"

BACKQUOTED = _whole("`", escapes=False)
DOUBLE_QUOTED = _whole('"', escapes=False)
NAME = rf"(?:{WORD_BYTE}++|{BACKQUOTED}|{DOUBLE_QUOTED})"

_NOT_CLOSED = "this quote is not closed"

UNREADABLE: Final[Mapping[str, str]] = {
    "'": _NOT_CLOSED,
    '"': _NOT_CLOSED,
    "`": _NOT_CLOSED,
    "/*": "this comment is not closed, or is one that the server executes",
    "--": "two dashes begin a comment only before a blank",
    "\0": "a NUL cannot stand outside quotes",
}
"""What a queue statement may not contain outside quotes and comments, and why."""

_TWO_BYTE_CHARACTERS = {
    "big5": re.compile(rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]"),
    "cp932": re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"),
    "gb18030": re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"),
    "gbk": re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"),
    "shift_jis": re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"),
}


def bytes_pattern(pattern: str) -> re.Pattern[bytes]:
    """The pattern, compiled for statements as bytes, keywords in any case."""
    return re.compile(pattern.encode("ascii"), re.IGNORECASE)


def escaping_marks(*, no_backslash_escapes: bool, ansi_quotes: bool) -> Mapping[str, bool]:
    """The quotes, each with whether a backslash escapes between two of them. In names it never
    does."""
    return {"'": not no_backslash_escapes, '"': not (no_backslash_escapes or ansi_quotes), "`": False}


def strings(*, no_backslash_escapes: bool, ansi_quotes: bool) -> str:
    """A string or quoted name in the session's sql_mode."""
    marks = escaping_marks(no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    return "(?:" + "|".join(_whole(mark, escapes=escapes) for mark, escapes in marks.items()) + ")"


def shadow(text: bytes, codec: str) -> bytes:
    """Text of equal length to be read in place of `text`, each two-byte character made harmless.

    `codec` is Python's name for the client's character set. Text in ASCII-transparent character
    sets, UTF-8 and all of one byte among them, is returned as it is.
    """
    pairs = _TWO_BYTE_CHARACTERS.get(codecs.lookup(codec).name)
    return text if pairs is None else pairs.sub(b"\x80\x80", text)
