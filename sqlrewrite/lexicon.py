"""MySQL's own rules of what is a blank, a comment, a string and a name, as regular expressions.

Every pattern is possessive: a quote or comment that is not closed fails after a single look, never by backtracking, so
that the cost of any input is linear in its length. A repeated group is written as an atomic one, `(?>(?:…)*)`: before
Python 3.11.5, `(?:…)*+` went wrong when the group had alternatives. Patterns are kept as text, to be put together by
those who need them. A comment that the server executes, as in `/*! … */` and `/*M! … */`, is no comment: no pattern
here skips one.

The rules see bytes. In five character sets of East Asia a byte of a longer character can look like a backslash or a
backquote; `shadow` gives text of equal length in which such characters are harmless.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Final

BLANK = r"[ \t\n\v\f\r]"
BLOCK_COMMENT = r"/\*(?!M?!)[^*]*+(?>(?:\*(?!/)[^*]*+)*)\*/"
# The server wants a blank or a control character after the two dashes: `5--1` is a subtraction. A
# NUL ends such a comment for some servers and not for others: it is left for the reader to
# refuse.
LINE_COMMENT = r"(?:\#|--(?=[\x00-\x20\x7f]|\Z))[^\n\x00]*+"
COMMENT = rf"(?:{BLOCK_COMMENT}|{LINE_COMMENT})"
GAP = rf"(?>(?:{BLANK}++|{COMMENT})*)"

WORD_BYTE = r"[0-9A-Za-z_$\x80-\xff]"
WORD_END = rf"(?!{WORD_BYTE})"

BACKQUOTED = r"(?>(?:`[^`]*+`)+)"
DOUBLE_QUOTED = r'(?>(?:"[^"]*+")+)'
SINGLE_QUOTED = r"(?>(?:'[^']*+')+)"
SINGLE_QUOTED_ESCAPED = r"'(?>(?:[^'\\]++|\\[\s\S]|'')*)'"
DOUBLE_QUOTED_ESCAPED = r'"(?>(?:[^"\\]++|\\[\s\S]|"")*)"'

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
"""What no statement of ours may hold outside quotes and comments, and why."""

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


def strings(*, no_backslash_escapes: bool, ansi_quotes: bool) -> str:
    """A string or quoted name in the session's sql_mode. Names know no backslash escapes."""
    single = SINGLE_QUOTED if no_backslash_escapes else SINGLE_QUOTED_ESCAPED
    double = DOUBLE_QUOTED if no_backslash_escapes or ansi_quotes else DOUBLE_QUOTED_ESCAPED
    return rf"(?:{single}|{double}|{BACKQUOTED})"


def shadow(text: bytes, codec: str) -> bytes:
    """Text of equal length to be read in place of `text`, each two-byte character made harmless.

    `codec` is Python's name for the client's character set. Text in ASCII-transparent character
    sets, UTF-8 and all of one byte among them, is its own shadow.
    """
    pairs = _TWO_BYTE_CHARACTERS.get(codecs.lookup(codec).name)
    return text if pairs is None else pairs.sub(b"\x80\x80", text)
