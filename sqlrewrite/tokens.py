"""A statement cut into tokens, each a span of the client's bytes.

For the statements that are written seldom and hold clauses that pass through unread: what matters is where a name, a
string or a parenthesis begins and ends, so that the bytes between can be cut out and put together anew. Comments and
blanks are no tokens. The inside of a comment that the server executes (`/*!50100 PARTITION BY … */`, as the server
itself prints it) counts as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NoReturn

from sqlrewrite import literals
from sqlrewrite.cursor import SqlMode
from sqlrewrite.errors import syntax_error
from sqlrewrite.lexicon import (
    BACKQUOTED,
    BLANK,
    BLOCK_COMMENT,
    DOUBLE_QUOTED,
    DOUBLE_QUOTED_ESCAPED,
    LINE_COMMENT,
    SINGLE_QUOTED,
    SINGLE_QUOTED_ESCAPED,
    UNREADABLE,
    WORD_BYTE,
    bytes_pattern,
    shadow,
)
from sqlrewrite.names import unquote

STATEMENT_BYTES_MAX: Final = 1 << 20
"""A longer statement than this is not cut into tokens, each of which costs a hundred times its bytes."""


@dataclass(frozen=True, slots=True)
class Token:
    """A span of the statement. `depth` is the count of parentheses around it."""

    kind: str
    """word, name (quoted), string, or mark (any other character)."""
    start: int
    end: int
    depth: int


@cache
def _pieces(*, no_backslash_escapes: bool, ansi_quotes: bool) -> re.Pattern[bytes]:
    single = SINGLE_QUOTED if no_backslash_escapes else SINGLE_QUOTED_ESCAPED
    double = DOUBLE_QUOTED if no_backslash_escapes or ansi_quotes else DOUBLE_QUOTED_ESCAPED
    names, texts = (f"{BACKQUOTED}|{double}", single) if ansi_quotes else (BACKQUOTED, f"{single}|{double}")
    return bytes_pattern(
        rf"(?P<gap>{BLANK}++|{BLOCK_COMMENT}|{LINE_COMMENT})|(?P<opened>/\*M?![0-9]*+)|(?P<closed>\*/)"
        rf"|(?P<name>{names})|(?P<string>{texts})|(?P<word>{WORD_BYTE}++)"
        rf"|(?P<bad>['\"`\x00]|/\*|--(?=[\x80-\xff]))|(?P<mark>[\s\S])"
    )


class Tokens:
    """The tokens of one statement, and what they say."""

    def __init__(self, sql: bytes, codec: str, mode: SqlMode, statement: str) -> None:
        """`codec` is Python's name of the text's character set, `statement` what errors call it. Raises SqlError."""
        self.sql = sql
        self.codec = codec
        self.mode = mode
        self.statement = statement
        if len(sql) > STATEMENT_BYTES_MAX:
            self.fail(0, f"it is longer than {STATEMENT_BYTES_MAX} bytes")
        self.all = list(self._cut())

    def text(self, token: Token) -> str:
        """As written."""
        return self.decode(token.start, token.end)

    def decode(self, start: int, end: int) -> str:
        """A stretch of the statement as text."""
        return self.sql[start:end].decode(self.codec, "replace")

    def word(self, token: Token) -> str:
        """A bare word in capitals; empty for all that is none."""
        return self.text(token).upper() if token.kind == "word" else ""

    def name(self, token: Token) -> str:
        """A name without its quotes; empty for what cannot be one."""
        return unquote(self.text(token)) if token.kind in {"word", "name"} else ""

    def string(self, token: Token) -> str:
        """What a string says."""
        written = self.text(token)
        return literals.unescape(written, no_backslash_escapes=self.mode.no_backslash_escapes)

    def inside(self, tokens: Sequence[Token], opened: int) -> Sequence[Token]:
        """What stands in the parentheses that open there."""
        depth = tokens[opened].depth
        end = next((at for at in range(opened + 1, len(tokens)) if tokens[at].depth <= depth), len(tokens))
        return tokens[opened + 1 : end]

    def split(self, tokens: Sequence[Token]) -> Iterator[tuple[Sequence[Token], Token | None]]:
        """The parts of a list, each with the comma behind it."""
        start = 0
        for at, each in enumerate(tokens):
            if each.depth == tokens[0].depth and each.kind == "mark" and self.text(each) == ",":
                if start == at:
                    self.fail(each.start, "nothing stands before this comma")
                yield tokens[start:at], each
                start = at + 1
        if tokens and start == len(tokens):
            self.fail(tokens[-1].end, "nothing stands behind the last comma")
        if tokens:
            yield tokens[start:], None

    def fail(self, position: int, expected: str) -> NoReturn:
        """1064, with the place."""
        before, near = self.decode(0, position), self.decode(position, len(self.sql))
        raise syntax_error(self.statement, before, near, position, expected)

    def _cut(self) -> Iterator[Token]:
        text = shadow(self.sql, self.codec)
        pattern = _pieces(no_backslash_escapes=self.mode.no_backslash_escapes, ansi_quotes=self.mode.ansi_quotes)
        position = depth = executed = 0
        while position < len(text):
            piece = pattern.match(text, position)
            assert piece is not None
            kind, end = piece.lastgroup or "", piece.end()
            if kind == "opened":
                executed += 1
            elif kind == "closed" and executed:
                executed -= 1
            elif kind == "bad":
                self.fail(position, UNREADABLE[piece[0].decode()])
            elif kind != "gap":
                if kind == "closed":
                    kind, end = "mark", position + 1  # `2*/* two */2`
                shut = kind == "mark" and text[position] == 0x29
                depth -= shut
                if depth < 0:
                    self.fail(position, "this parenthesis was not opened")
                yield Token(kind, position, end, depth)
                depth += kind == "mark" and text[position] == 0x28
            position = end
        if executed:
            self.fail(len(text), UNREADABLE["/*"])
        if depth:
            self.fail(len(text), "a parenthesis is not closed")
