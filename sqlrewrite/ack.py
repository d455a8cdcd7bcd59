"""`ACK [FROM] t WHERE condition`: one guarded UPDATE, made from the client's own bytes.

The condition is the client's and stays as it came, in its character set, with its `?` in place;
it runs in the client's session and means there what it means in any UPDATE. So it is not parsed,
only measured: where it ends, and that it cannot get out of the parentheses it is put into. The
guard stands before it, and a newline behind it, which ends a last comment. Whatever this lexer
and the server might read differently is refused: comments that the server executes, a NUL, two
dashes before a non-ASCII byte.

Most conditions have one shape, `id = …` or `id IN (…)`. One expression recognises it in a single
pass and yields the keys, so that ten thousand of them cost less than a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Final, NoReturn

from sqlrewrite.errors import not_supported_yet, syntax_error
from sqlrewrite.lexicon import (
    BACKQUOTED,
    BLANK,
    BLOCK_COMMENT,
    DOUBLE_QUOTED,
    GAP,
    LINE_COMMENT,
    UNREADABLE,
    WORD_BYTE,
    WORD_END,
    bytes_pattern,
    shadow,
    strings,
)
from sqlrewrite.names import Param, TableName, unquote

ACKNOWLEDGED = b"time_acked = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000, time_next = NULL"
"""What an acknowledgement sets: the server's time in nanoseconds, and no next delivery."""


@dataclass(frozen=True, slots=True)
class AckStatement:
    """An acknowledgement as the client wrote it, in the bytes of its own character set."""

    table: TableName
    table_sql: bytes
    """The table with its quotes as written."""
    condition: bytes
    """The condition as written."""
    keys: tuple[bytes | Param, ...] | None
    """The ids, when the condition is `id = …` or `id IN (…)`, with or without `AND epoch = …`: digits,
    the contents of a string, or a parameter. A hint for the engine; None for any other condition."""
    param_count: int

    def update(self) -> bytes:
        """The UPDATE to run in its place: same parameters, one affected row per message."""
        return b"UPDATE %b SET %b WHERE time_acked IS NULL AND (%b\n)" % (
            self.table_sql,
            ACKNOWLEDGED,
            self.condition,
        )


def parse_ack(
    sql: bytes,
    codec: str = "utf-8",
    *,
    no_backslash_escapes: bool = False,
    ansi_quotes: bool = False,
) -> AckStatement:
    """Reads a statement that `classify` found to be ACK, NACK or EXTEND.

    `codec` is Python's name for the client's character set; the two flags are its sql_mode. Raises
    SqlError (1064 with the byte offset, 1235 for what this release does not know).
    """
    return _Reader(sql, codec, _grammar(no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)).statement()


# The patterns

_GAP = bytes_pattern(GAP)
_VERB = bytes_pattern(rf"(ACK|NACK|EXTEND){WORD_END}")
_FROM = bytes_pattern(rf"FROM{WORD_END}")
_WHERE = bytes_pattern(rf"WHERE{WORD_END}")
_DOT = bytes_pattern(r"\.")
_END = bytes_pattern(rf"(?>(?:;{GAP})?)\Z")
_BARE_NAME = rf"(?!(?:FROM|WHERE){WORD_END}){WORD_BYTE}++"

_NO_CLAUSES = "the condition is all that follows WHERE; there is no ORDER BY and no LIMIT"
_COMPLAINTS: Final[Mapping[str, str]] = {
    **UNREADABLE,
    ")": "this parenthesis was not opened in the condition",
    ";": "the statement has to stand alone",
}
"""Why a condition cannot go on: by the piece that stands there."""

_ELEMENT = re.compile(rb"""'([^']*)'|"([^"]*)"|([^\s,]+)""")


@dataclass(frozen=True, slots=True)
class _Grammar:
    """The patterns that depend on sql_mode."""

    name: re.Pattern[bytes]
    keys: re.Pattern[bytes]
    """A whole condition of the common shape, up to the end of the statement."""
    pieces: re.Pattern[bytes]
    """A stretch of the condition without interest, or one of the named groups."""


@cache
def _grammar(*, no_backslash_escapes: bool, ansi_quotes: bool) -> _Grammar:
    quoted = strings(no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    return _Grammar(
        name=bytes_pattern("|".join((_BARE_NAME, BACKQUOTED, *[DOUBLE_QUOTED] * ansi_quotes))),
        keys=bytes_pattern(_keys_pattern(ansi_quotes=ansi_quotes)),
        pieces=bytes_pattern(
            rf"(?>(?:{BLANK}++|{BLOCK_COMMENT}|{LINE_COMMENT}|{quoted}"
            rf"|(?!(?:ORDER|LIMIT){WORD_END})[0-9A-Z_$.@\x80-\xff]++"
            rf"|-(?!-[\x00-\x20\x7f-\xff]|-\Z)|/(?!\*)|[^\x00'\"`\#();?/\-0-9A-Z_$.@\x80-\xff])+)"
            rf"|(?P<mark>[();?])|(?P<clause>ORDER|LIMIT)|(?P<bad>/\*|--|[\s\S])"
        ),
    )


def _keys_pattern(*, ansi_quotes: bool) -> str:
    # No backslash and no doubled quote: what stands between the quotes is the value itself.
    text = r"'[^'\\]*+'" if ansi_quotes else r"""(?:'[^'\\]*+'|"[^"\\]*+")"""
    literal = rf"(?:-?+[0-9]++|\?|{text})"
    gap = rf"{BLANK}*+"
    # The first alternative says nothing new; it halves the time of a long list of plain numbers.
    listed = rf"\((?:(?>(?:[0-9]++,{gap})*)[0-9]++|(?>(?:{gap}{literal}{gap},)*){gap}{literal}{gap})\)"
    return (
        rf"(?P<condition>(?:`id`|id){gap}(?:=|IN{gap}(?=\()){gap}(?P<list>{listed}|{literal})"
        # `5AND` is a name.
        rf"(?>(?P<fence>{gap}(?<![0-9])AND{BLANK}++(?:`epoch`|epoch){gap}={gap}(?:[0-9]++|\?))?))"
        rf"{GAP}(?>(?:;{GAP})?)\Z"
    )


class _Reader:
    """Reads one statement from left to right. It looks at the shadow and cuts from the original."""

    def __init__(self, sql: bytes, codec: str, grammar: _Grammar) -> None:
        self._sql = sql
        self._text = shadow(sql, codec)
        self._codec = codec
        self._grammar = grammar
        self._verb = "ACK"
        self._position = 0
        self._skip(_GAP)

    def statement(self) -> AckStatement:
        self._read_verb()
        table, table_sql = self._table()
        if not self._skip(_WHERE):
            self._fail("WHERE was expected; to acknowledge every message, write WHERE TRUE")
        start = self._position
        shape = self._grammar.keys.match(self._text, start)
        if shape is None:
            end, param_count = self._measure(start)
            keys = None
        else:
            end = shape.end("condition")
            keys, param_count = _keys(self._sql[shape.start("list") : shape.end("list")])
            param_count += (shape["fence"] or b"").endswith(b"?")
        condition = self._sql[start:end].rstrip()
        if not condition:
            self._fail("a condition was expected; to acknowledge every message, write WHERE TRUE")
        return AckStatement(table, table_sql, condition, keys, param_count)

    def _read_verb(self) -> None:
        verb = _VERB.match(self._text, self._position)
        if verb is None:
            self._fail("ACK was expected")
        self._verb = verb[1].decode().upper()
        if self._verb != "ACK":
            raise not_supported_yet(
                f"{self._verb} is not supported yet: UPDATE time_next of the message instead",
                verb.start(),
            )
        self._skip(_VERB)
        self._skip(_FROM)

    def _table(self) -> tuple[TableName, bytes]:
        first = self._name()
        if not self._skip(_DOT):
            return TableName(self._unquote(first)), first
        second = self._name()
        return TableName(self._unquote(second), self._unquote(first)), first + b"." + second

    def _name(self) -> bytes:
        start = self._position
        match = self._grammar.name.match(self._text, start)
        if match is None:
            self._fail("a table name was expected")
        self._skip(self._grammar.name)
        return self._sql[start : match.end()]

    def _unquote(self, written: bytes) -> str:
        return unquote(written.decode(self._codec, "replace"))

    def _skip(self, pattern: re.Pattern[bytes]) -> bool:
        """Steps over the pattern and the gap behind it, if it stands here."""
        match = pattern.match(self._text, self._position)
        if match is not None:
            gap = _GAP.match(self._text, match.end())
            self._position = match.end() if gap is None else gap.end()
        return match is not None

    def _measure(self, start: int) -> tuple[int, int]:
        """Where the condition ends, and how many parameters it has."""
        depth = param_count = 0
        for piece in self._grammar.pieces.finditer(self._text, start):
            if piece.lastgroup is None:
                continue
            self._position = piece.start()
            match piece[0]:
                case b"(":
                    depth += 1
                case b")" if depth > 0:
                    depth -= 1
                case b"?":
                    param_count += 1
                case b";" if depth == 0 and _END.match(self._text, self._position):
                    return self._position, param_count
                case other if piece.lastgroup != "clause" or depth == 0:
                    self._fail(_COMPLAINTS.get(other.decode("latin-1"), _NO_CLAUSES))
        self._position = len(self._text)
        if depth > 0:
            self._fail("a parenthesis is not closed")
        return self._position, param_count

    def _fail(self, expected: str) -> NoReturn:
        before, near = self._sql[: self._position], self._sql[self._position :]
        raise syntax_error(
            self._verb,
            before.decode(self._codec, "replace"),
            near.decode(self._codec, "replace"),
            self._position,
            expected,
        )


def _keys(listed: bytes) -> tuple[tuple[bytes | Param, ...], int]:
    """The keys of a literal or a list of the common shape, and how many of them are parameters."""
    inner = listed[1:-1] if listed.startswith(b"(") else listed
    params = map(Param, count())
    keys: Iterable[bytes | Param]
    if b"'" in inner or b'"' in inner:
        keys = (
            next(params) if bare == b"?" else single or double or bare
            for single, double, bare in _ELEMENT.findall(inner)
        )
    else:
        keys = inner.translate(None, b" \t\n\v\f\r").split(b",")
        if b"?" in inner:
            keys = (next(params) if key == b"?" else key for key in keys)
    return tuple(keys), next(params).index
