"""Whether a statement that begins with WITH only reads: `WITH a AS (…), b (x, y) AS (…) SELECT …`.

MySQL allows SELECT, UPDATE and DELETE behind the common table expressions, so these have to be passed over first. One
pattern does that: names, and parentheses that are balanced outside quotes and comments, up to a depth. It matches
only what every sql_mode and every character set reads in the same way. So the answer is "no" for all else: a backslash
(in a string it may escape or not), a comment that the server executes, a backquote behind a byte that may be the first
half of a character, an expression nested more deeply or longer than is looked at.
"""

from __future__ import annotations

from typing import Final

from sqlrewrite.lexicon import BLOCK_COMMENT, GAP, LINE_COMMENT, WORD_BYTE, WORD_END, bytes_pattern

DEPTH_MAX: Final = 12
"""Parentheses within each other that are followed; people and programs rarely write more than five."""

_BACKQUOTED = r"(?<![\x80-\xff])`[^`\\]*+(?<![\x80-\xff])`"
_QUOTED = rf"""(?:'[^'\\]*+'|"[^"\\]*+"|{_BACKQUOTED})"""
_PLAIN = rf"[^()'\"`\\/\#\-;\x00]++|{_QUOTED}|{BLOCK_COMMENT}|{LINE_COMMENT}|-(?!-)|/(?!\*)"


def _balanced(depth: int) -> str:
    """Parentheses with at most so many others within each other. Each is looked at once: no group gives back."""
    inner = f"|{_balanced(depth - 1)}" if depth else ""
    return rf"\((?>(?:{_PLAIN}{inner})*)\)"


_NAME = rf"(?:{WORD_BYTE}++|(?>{_QUOTED}+))"
_EXPRESSION = rf"{_NAME}{GAP}(?>(?:{_balanced(0)}{GAP})?)AS{GAP}{_balanced(DEPTH_MAX)}{GAP}"
_READS = bytes_pattern(
    rf"{GAP}(?>(?:RECURSIVE{WORD_END}{GAP})?){_EXPRESSION}(?>(?:,{GAP}{_EXPRESSION})*)"
    rf"(?:SELECT|TABLE|VALUES){WORD_END}"
)


def only_reads(text: bytes, start: int, end: int) -> bool:
    """Whether the statement, of which WITH ends at `start`, is seen to be a SELECT before `end`."""
    return _READS.match(text, start, end) is not None
