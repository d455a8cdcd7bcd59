"""Whether a statement that begins with WITH only reads: `WITH a AS (…), b (x, y) AS (…) SELECT …`.

MySQL allows SELECT, UPDATE and DELETE behind the common table expressions, so these have to be
skipped first. One pattern matches them: names, and parentheses that are balanced outside quotes and
comments, up to a depth. It matches only what every sql_mode and every character set reads alike. So
the answer is "no" for everything else: a backslash (in a string it may escape or not), a comment
that the server executes, a backquote behind a byte that may be the first half of a character, an
expression that is nested too deeply or is too long.
"""

from __future__ import annotations

from typing import Final

from sqlrewrite.lexicon import BLOCK_COMMENT, GAP, LINE_COMMENT, WORD_BYTE, WORD_END, bytes_pattern, quoted_alike

DEPTH_MAX: Final = 12
"""Levels of parentheses that the pattern matches; people and programs rarely write more than
five."""

_BACKQUOTED = rf"(?<![\x80-\xff]){quoted_alike('`')[:-1]}(?<![\x80-\xff])`"
_QUOTED = "(?:" + "|".join((quoted_alike("'"), quoted_alike('"'), _BACKQUOTED)) + ")"
_PLAIN = rf"[^()'\"`\\/\#\-;\x00]++|{_QUOTED}|{BLOCK_COMMENT}|{LINE_COMMENT}|-(?!-)|/(?!\*)"


def _balanced(depth: int) -> str:
    """Parentheses that contain at most `depth` levels of others. Each is matched once: no group
    backtracks."""
    inner = f"|{_balanced(depth - 1)}" if depth else ""
    return rf"\((?>(?:{_PLAIN}{inner})*)\)"


_NAME = rf"(?:{WORD_BYTE}++|(?>{_QUOTED}+))"
_EXPRESSION = rf"{_NAME}{GAP}(?>(?:{_balanced(0)}{GAP})?)AS{GAP}{_balanced(DEPTH_MAX)}{GAP}"
_READS = bytes_pattern(
    rf"{GAP}(?>(?:RECURSIVE{WORD_END}{GAP})?){_EXPRESSION}(?>(?:,{GAP}{_EXPRESSION})*)"
    rf"(?:SELECT|TABLE|VALUES){WORD_END}"
)


def only_reads(text: bytes, start: int, end: int) -> bool:
    """Whether the statement is found to be a SELECT before `end`. Its WITH ends at `start`."""
    return _READS.match(text, start, end) is not None
