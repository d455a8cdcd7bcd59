"""A statement cut into tokens and read from left to right.

sqlglot's MySQL tokenizer cuts the text (sqlrewrite.sqlglot_adapter). It gets the statement byte by
byte as Latin-1, so each position is one of the client's bytes, and text can be cut out and put
together anew in the client's character set. Three things are replaced for it, at equal length:

- Comments become blanks, because sqlglot and the server disagree on what is one (`--x`, `/*! … */`).
- Each byte beyond ASCII becomes a letter, as in the server's names.
- Each control character becomes a mark, because Python takes some of them for blanks.

What the server would read in another way is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, NoReturn

from sqlrewrite import literals
from sqlrewrite.errors import syntax_error
from sqlrewrite.lexicon import COMMENT, EXECUTED, UNREADABLE, WORD_BYTE, SqlMode, bytes_pattern, shadow, strings
from sqlrewrite.names import Param, unquote
from sqlrewrite.sqlglot_adapter import UncuttableError, cut

STATEMENT_BYTES_MAX: Final = 1 << 20
"""A longer statement is not cut into tokens, each of which costs some hundred bytes and some
microseconds."""
CHUNK_BYTES: Final = 16 * 1024
"""Text is cut in parts of about this size, because sqlglot's tokens are three times as large as
Token."""

_WORD = bytes_pattern(rf"{WORD_BYTE}++")
_STAND_INS: Final = bytes.maketrans(
    bytes([*range(0x01, 0x09), *range(0x0E, 0x20), 0x7F, *range(0x80, 0x100)]),
    b"~" * 27 + b"\xe9" * 128,
)
_BOUNDARY = bytes_pattern(r"[ ,();]")
"""Characters before which a token always ends."""
_OPENS, _CLOSES = ord("("), ord(")")


class Token(NamedTuple):
    """A span of the statement. `depth` is the count of parentheses around it."""

    kind: str
    """word, name (quoted), string, or mark (anything else: an operator, 1.5, x'41')."""
    start: int
    end: int
    depth: int


@cache
def _hidden(*, ansi_quotes: bool, no_backslash_escapes: bool, passes_through: bool) -> re.Pattern[bytes]:
    """What hides comments, comments, and what the server would read in another way."""
    quoted = strings(no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    executed = rf"|(?P<opened>{EXECUTED}[0-9]*+)|(?P<closed>\*/)" if passes_through else ""
    dashes = r"--(?=[\x80-\xff])" if passes_through else "--"
    return bytes_pattern(rf"(?P<quoted>{quoted})|(?P<comment>{COMMENT}){executed}|(?P<bad>['\"`\x00]|/\*|{dashes})")


class TokenStream:
    """The tokens of one statement, and the position where reading stands.

    A position is an offset in the statement's bytes.
    """

    def __init__(self, sql: bytes, codec: str, mode: SqlMode, statement: str, *, passes_through: bool = False) -> None:
        """`codec` is Python's name of the text's character set; `statement` is its name in errors.

        Where part of the statement `passes_through` to the server unread, a comment that the server
        executes counts as text, and so do two dashes: the server itself prints such comments
        (`/*!50100 PARTITION BY … */`). Raises SqlError (1064).
        """
        self.sql = sql
        self.codec = codec
        self.mode = mode
        self.statement = statement
        self.param_count = 0
        """The `?` that were read so far."""
        self._name_marks = ("`", '"') if mode.ansi_quotes else ("`",)
        self._end = len(sql)
        self._next = 0
        self._seen, self._text = -1, ""  # The text of the next token is used several times.
        if len(sql) > STATEMENT_BYTES_MAX:
            self.fail_at(0, f"the statement has more than {STATEMENT_BYTES_MAX} bytes")
        self.all = list(self._cut(passes_through=passes_through))

    # Any token.

    def text_of(self, token: Token) -> str:
        """The token as written."""
        return self.decode(token.start, token.end)

    def decode(self, start: int, end: int) -> str:
        """A stretch of the statement as text."""
        return self.sql[start:end].decode(self.codec, "replace")

    def word_of(self, token: Token) -> str:
        """A bare word in capitals; empty for anything else."""
        return self.text_of(token).upper() if token.kind == "word" else ""

    def name_of(self, token: Token) -> str:
        """A name without its quotes; empty for what cannot be one."""
        return unquote(self.text_of(token)) if token.kind in {"word", "name"} else ""

    def string_of(self, token: Token) -> str:
        """The value of a string."""
        return literals.unescape(self.text_of(token), no_backslash_escapes=self.mode.no_backslash_escapes)

    def inside(self, tokens: Sequence[Token], opened: int) -> Sequence[Token]:
        """The tokens within the parentheses that open there."""
        depth = tokens[opened].depth
        end = next((at for at in range(opened + 1, len(tokens)) if tokens[at].depth <= depth), len(tokens))
        return tokens[opened + 1 : end]

    def split(self, tokens: Sequence[Token]) -> Iterator[tuple[Sequence[Token], Token | None]]:
        """The parts of a list, each with the comma behind it. Raises SqlError (1064) for an empty
        part."""
        start = 0
        for at, token in enumerate(tokens):
            if token.depth == tokens[0].depth and token.kind == "mark" and self.text_of(token) == ",":
                if start == at:
                    self.fail_at(token.start, "nothing stands before this comma")
                yield tokens[start:at], token
                start = at + 1
        if tokens and start == len(tokens):
            self.fail_at(tokens[-1].end, "nothing stands behind the last comma")
        if tokens:
            yield tokens[start:], None

    def check_parentheses(self) -> None:
        """Raises SqlError (1064) unless each parenthesis has its other half."""
        for token in self.all:
            if token.depth < 0:
                self.fail_at(token.start, "this parenthesis was not opened")
        if self.all and self.all[-1].depth + self._turn(self.all[-1]) > 0:
            self.fail_at(len(self.sql), "a parenthesis is not closed")

    def drop_semicolon(self) -> None:
        """Let the statement end before a semicolon that is its last token."""
        if self.all and self.text_of(self.all[-1]) == ";":
            self._end = self.all.pop().start

    # The next token.

    @property
    def more(self) -> bool:
        """Whether there is a next token."""
        return self._next < len(self.all)

    @property
    def text(self) -> str:
        """The next token as written, empty at the end."""
        if self._seen != self._next:
            self._seen, self._text = self._next, self.ahead(0)
        return self._text

    @property
    def word(self) -> str:
        """The next token in upper case."""
        return self.text.upper()

    @property
    def position(self) -> int:
        """Where the next token begins."""
        return self.all[self._next].start if self.more else self._end

    @property
    def at_word(self) -> bool:
        """Whether the next token begins as an unquoted name does."""
        return self.more and _WORD.match(self.sql, self.position) is not None

    @property
    def at_string(self) -> bool:
        """Whether the next token is a string."""
        return self.more and self.all[self._next].kind == "string"

    def is_string(self, text: str) -> bool:
        """Whether a token that is written like this is a string."""
        return text.startswith(("'", '"')) and not text.startswith(self._name_marks)

    def ahead(self, count: int) -> str:
        """The token that `count` others precede, as written, empty at the end."""
        at = self._next + count
        return self.text_of(self.all[at]) if at < len(self.all) else ""

    def following(self, count: int) -> Sequence[Token]:
        """The next tokens, at most so many."""
        return self.all[self._next : self._next + count]

    def since(self, begin: int) -> str:
        """The text from there to the end of the last token that was read."""
        return self.decode(begin, self.last_end)

    @property
    def last_end(self) -> int:
        """Where the last token that was read ends."""
        return self.all[self._next - 1].end

    # Reading.

    def step(self, count: int = 1) -> str:
        """Read the next token, or so many. Returns the first as written."""
        text = self.text
        self._next += count
        return text

    def parentheses(self) -> tuple[Token, Sequence[Token], Token]:
        """Read from the parenthesis that opens here to the one that closes it: the two and the
        tokens between."""
        opened = self.token()
        inner = self.inside(self.all, self._next - 1)
        self._next += len(inner)
        return opened, inner, self.token()

    def token(self) -> Token:
        """Read the next token, which there must be."""
        self._next += 1
        return self.all[self._next - 1]

    def take(self, *words: str) -> str:
        """Read the next token if it is one of these. Returns which, in upper case, or an empty
        text."""
        word = self.word
        if not word or word not in words:
            return ""
        self._next += 1
        return word

    def take_all(self, *words: str) -> bool:
        """Read the next tokens if they are all of these, in this order."""
        ahead = self.all[self._next : self._next + len(words)]
        taken = [self.text_of(token).upper() for token in ahead] == list(words)
        self._next += len(words) if taken else 0
        return taken

    def expect(self, word: str) -> None:
        """Read this word. Raises SqlError (1064) if something else stands here."""
        if not self.take(word):
            self.fail(f"{word} was expected")

    def param(self) -> Param | None:
        """Read a `?`, if one stands here."""
        if not self.take("?"):
            return None
        self.param_count += 1
        return Param(self.param_count - 1)

    def name(self, reserved: frozenset[str] = frozenset()) -> str | None:
        """Read a name, if one stands here. Unquoted, it is no reserved word and no number."""
        if not self.more:
            return None
        token = self.all[self._next]
        text = self.text_of(token)
        if token.kind == "word" and (text.upper() in reserved or text.isdecimal()):
            return None
        if token.kind not in {"word", "name"}:
            return None
        self._next += 1
        return self.name_of(token)

    def numeral(self, behind: int = 0) -> str:
        """The text to be taken for a number without a sign, behind so many tokens; `step_numeral`
        reads it."""
        # The tokenizer takes the point of `.5` for the one between two names.
        first = self.ahead(behind)
        return first + self.ahead(behind + 1) if first == "." else first

    def step_numeral(self) -> None:
        """Read what `numeral` returns."""
        self.step(2 if self.text == "." else 1)

    # Errors.

    def fail(self, expected: str) -> NoReturn:
        """Error 1064 at the next token."""
        self.fail_at(self.position, expected)

    def fail_at(self, position: int, expected: str) -> NoReturn:
        """Error 1064 at that position."""
        before, near = self.decode(0, position), self.decode(position, len(self.sql))
        raise syntax_error(self.statement, before, near, position, expected)

    # Cutting.

    def _cut(self, *, passes_through: bool) -> Iterator[Token]:
        text = shadow(self.sql, self.codec)
        depth = 0
        for start, end in self._spans(text, passes_through=passes_through):
            token = Token(self._kind(text, start, end), start, end, depth - (text[start] == _CLOSES))
            yield token
            depth = token.depth + self._turn(token)

    def _turn(self, token: Token) -> int:
        """By how much what follows stands deeper than the token."""
        return 1 if self.sql[token.start] == _OPENS else 0

    def _kind(self, text: bytes, start: int, end: int) -> str:
        first = chr(text[start])
        if first in self._name_marks:
            return "name"
        if first in "'\"":
            return "string"
        word = _WORD.match(text, start, end)
        return "word" if word is not None and word.end() == end else "mark"

    def _spans(self, text: bytes, *, passes_through: bool) -> Iterator[tuple[int, int]]:
        """Where each token begins and ends."""
        hidden = _hidden(
            ansi_quotes=self.mode.ansi_quotes,
            no_backslash_escapes=self.mode.no_backslash_escapes,
            passes_through=passes_through,
        )
        visible = bytearray(text.translate(_STAND_INS))
        position = executed = begin = 0
        while (found := hidden.search(text, position)) is not None:
            for end in _boundaries(visible, begin, position, found.start()):
                yield from self._chunk(visible, begin, end)
                begin = end
            position = found.end()
            kind = found.lastgroup
            if kind == "bad":
                self.fail_at(found.start(), UNREADABLE[found[0].decode()])
            if kind == "quoted":
                continue
            if kind == "closed" and not executed:
                position -= 1  # `2*/* two */2`
                continue
            executed += {"opened": 1, "closed": -1}.get(kind or "", 0)
            visible[found.start() : position] = b" " * (position - found.start())
        if executed:
            self.fail_at(len(text), UNREADABLE["/*"])
        for end in (*_boundaries(visible, begin, position, len(text)), len(text)):
            yield from self._chunk(visible, begin, end)
            begin = end

    def _chunk(self, visible: bytearray, begin: int, end: int) -> Iterator[tuple[int, int]]:
        mode = self.mode
        chunk = visible[begin:end].decode("latin-1")
        try:
            spans = cut(chunk, ansi_quotes=mode.ansi_quotes, no_backslash_escapes=mode.no_backslash_escapes)
        except UncuttableError:
            self.fail_at(0, "the statement cannot be cut into words")
        for start, stop in spans:
            yield begin + start, begin + stop


def _boundaries(visible: bytearray, begin: int, position: int, end: int) -> Iterator[int]:
    """Where text that is cut from `begin` can be parted, between `position` and `end`: no quotes
    are open there."""
    while end - begin > CHUNK_BYTES:
        found = _BOUNDARY.search(visible, max(position, begin + CHUNK_BYTES), end)
        if found is None:
            return
        begin = found.start()
        yield begin
