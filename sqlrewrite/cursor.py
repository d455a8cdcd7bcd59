"""A statement of ours, cut into words and read from left to right.

sqlglot's MySQL tokenizer cuts the text (sqlrewrite.sqlglot_adapter). Comments are blanked out before,
because sqlglot and the server disagree on what is one (`--x`, `/*! … */`); no offset moves by that.
Where the server would read something in another way, it is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, NoReturn

from sqlrewrite.errors import syntax_error
from sqlrewrite.lexicon import COMMENT, UNREADABLE, strings
from sqlrewrite.names import Param, unquote
from sqlrewrite.sqlglot_adapter import UncuttableError, cut

TEXT_MAX: Final = 512 * 1024
"""Characters of a statement that is cut into words: what a condition of the largest size may be
written in, comments and all. Beyond it the event loop would be held for too long."""

_WORD = re.compile(r"[\w$]+")


@dataclass(frozen=True, slots=True)
class SqlMode:
    """What of a session's sql_mode has text read in another way."""

    ansi_quotes: bool = False
    """Whether "t" is a name."""
    no_backslash_escapes: bool = False
    """Whether a backslash in a string is a character like any other."""
    high_not_precedence: bool = False
    """Whether NOT binds more tightly than a comparison."""
    like_escapes: bool = True
    """Whether a backslash escapes in a LIKE pattern without ESCAPE: no_backslash_escapes ends that on MySQL alone."""


PLAIN: Final = SqlMode()


@cache
def _opaque(*, ansi_quotes: bool, no_backslash_escapes: bool) -> re.Pattern[str]:
    """What is no token, what hides comment marks, and what the server would read in another way."""
    quoted = strings(no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    return re.compile(rf"(?P<quoted>{quoted})|(?P<comment>{COMMENT})|(?P<bad>['\"`]|/\*|--|\x00)")


class Cursor:
    """Where reading a statement stands. `statement` is its verb, for errors."""

    def __init__(self, sql: str, mode: SqlMode, statement: str) -> None:
        self.mode = mode
        self.param_count = 0
        """The `?` that were read so far."""
        self._sql = sql
        self._statement = statement
        self._name_marks = ("`", '"') if mode.ansi_quotes else ("`",)
        self._next = 0
        self._spans = self._cut()

    @property
    def text(self) -> str:
        """The next token as written, empty at the end."""
        return self.ahead(0)

    @property
    def word(self) -> str:
        """The next token in upper case."""
        return self.text.upper()

    @property
    def position(self) -> int:
        """Where the next token begins."""
        return self._spans[self._next][0] if self._next < len(self._spans) else len(self._sql)

    @property
    def at_word(self) -> bool:
        """Whether the next token begins as an unquoted name does."""
        return _WORD.match(self.text) is not None

    @property
    def at_string(self) -> bool:
        """Whether the next token is a string."""
        return self.is_string(self.text)

    def is_string(self, text: str) -> bool:
        """Whether this token is one."""
        return text.startswith(("'", '"')) and not text.startswith(self._name_marks)

    def ahead(self, count: int) -> str:
        """The token behind so many others, as written, empty at the end."""
        at = self._next + count
        if at >= len(self._spans):
            return ""
        start, end = self._spans[at]
        return self._sql[start:end]

    def since(self, begin: int) -> str:
        """What is written from there to the end of the last token that was gone over."""
        return self._sql[begin : self._spans[self._next - 1][1]]

    def step(self) -> str:
        """Go over the next token."""
        text = self.text
        self._next += 1
        return text

    def take(self, *words: str) -> str:
        """Go over the next token if it is one of these; which, in upper case, or an empty text."""
        word = self.word
        if not word or word not in words:
            return ""
        self._next += 1
        return word

    def param(self) -> Param | None:
        """Go over a `?`, if one stands here."""
        if not self.take("?"):
            return None
        self.param_count += 1
        return Param(self.param_count - 1)

    def name(self, reserved: frozenset[str]) -> str | None:
        """Go over a name, if one stands here. Unquoted, it is none of the reserved words."""
        text = self.text
        if text.startswith(self._name_marks):
            self._next += 1
            return unquote(text)
        if text.upper() in reserved or text.isdecimal() or not _WORD.fullmatch(text):
            return None
        self._next += 1
        return text

    def numeral(self) -> str:
        """What stands here, to be taken for a number; `step_numeral` goes over it."""
        return "".join(self.ahead(each) for each in range(self._numeral_tokens()))

    def step_numeral(self) -> None:
        """Go over what `numeral` shows."""
        self._next += self._numeral_tokens()

    def _numeral_tokens(self) -> int:
        # The tokenizer takes the point of `.5` for one between names.
        return 2 if self.text == "." else 1

    def fail(self, expected: str) -> NoReturn:
        """Error 1064 at the next token."""
        self.fail_at(self.position, expected)

    def fail_at(self, position: int, expected: str) -> NoReturn:
        """Error 1064 at an earlier one."""
        before, near = self._sql[:position], self._sql[position:]
        raise syntax_error(self._statement, before, near, position, expected)

    def _cut(self) -> list[tuple[int, int]]:
        if len(self._sql) > TEXT_MAX:
            self.fail_at(0, f"the statement has more than {TEXT_MAX} characters")
        marks = {"ansi_quotes": self.mode.ansi_quotes, "no_backslash_escapes": self.mode.no_backslash_escapes}
        try:
            return cut(_opaque(**marks).sub(self._blank, self._sql), **marks)
        except UncuttableError:
            self.fail_at(0, "the statement cannot be cut into words")

    def _blank(self, found: re.Match[str]) -> str:
        if found["bad"] is not None:
            self.fail_at(found.start(), UNREADABLE[found["bad"]])
        return found[0] if found["comment"] is None else " " * len(found[0])
