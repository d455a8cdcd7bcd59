"""`ACK [FROM] t WHERE condition`, `NACK … [DELAY s]`, `EXTEND … BY s`: one guarded UPDATE of the client's own bytes.

The condition is the client's and stays as it came, in its character set, with its `?` in place;
it runs in the client's session and means there what it means in any UPDATE. So it is not parsed,
only measured: where it ends, and that it cannot get out of the parentheses it is put into. The
guard stands before it, and a newline behind it, which ends a last comment. Whatever this lexer
and the server might read differently is refused: comments that the server executes, a NUL, two
dashes before a non-ASCII byte. DELAY and BY are looked for at the end alone, outside quotes and
parentheses, before one number or `?`: no expression of SQL ends like that, so a column may have such
a name.

Most conditions have one shape, `id = …` or `id IN (…)`. One expression recognises it in a single
pass and yields the keys, so that ten thousand of them cost less than a millisecond. Of a longer list
the keys are not read (KEYS_MAX): such a statement is measured like any other condition.

A statement can have 16 MB. So reading comes in steps, between which the caller may do something
else (`settle_steps`): a step looks at STEP_PIECES pieces of the condition at most.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import count
from typing import Final, NoReturn

from sqlrewrite.classify import Verb
from sqlrewrite.errors import syntax_error, wrong_argument
from sqlrewrite.lexicon import (
    BLANK,
    COMMENT,
    GAP,
    LINE_COMMENT,
    UNREADABLE,
    WORD_BYTE,
    WORD_END,
    bytes_pattern,
    shadow,
)
from sqlrewrite.names import Param, TableName, unquote
from sqlrewrite.values import number

NOW = b"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
"""The server's time in nanoseconds."""

ACKNOWLEDGED = b"time_acked = %b, time_next = NULL" % NOW
"""What an acknowledgement sets: its time, and no next delivery."""

DELAY_MAX_S: Final = 36_525 * 86_400
"""A hundred years: further ahead, the time in nanoseconds nears the end of a BIGINT."""

KEYS_MAX: Final = 10_000
"""Ids that are read in one statement: as many as a queue has in flight by default (vt_cache_size). Of more it is not
told which ones they are, and the engine looks up what is in flight, which costs it less than reading them."""
KEYS_BYTES_MAX: Final = 512 * 1024
"""The longest list of ids that is read, in bytes: KEYS_MAX of 50 each, gone over by one expression in some ms."""
STEP_PIECES: Final = 2_048
"""Pieces of a condition that are gone over at once, which takes about a millisecond. A piece is a word, a string, a
comment or a mark."""

FRACTION_DIGITS_MAX: Final = 9
"""Nanoseconds are what the table counts."""


class Spelling(enum.Enum):
    """How the keys of a statement are written. It decides how the server compares them with ids."""

    NUMBERS = enum.auto()
    STRINGS = enum.auto()
    UNLIKE = enum.auto()
    """Some so and some so."""


@dataclass(frozen=True, slots=True)
class SettleStatement:
    """What becomes of delivered messages, as the client wrote it, in the bytes of its own character set."""

    verb: Verb
    """ACK, NACK or EXTEND."""
    table: TableName
    table_sql: bytes
    """The table with its quotes as written."""
    condition: bytes
    """The condition as written."""
    keys: tuple[bytes | Param, ...] | None
    """The ids, when the condition is `id = …` or `id IN (…)`, with or without `AND epoch = …`: digits,
    the contents of a string, or a parameter. A hint for the engine; None for any other condition, and for more than
    KEYS_MAX."""
    param_count: int
    spelling: Spelling = Spelling.NUMBERS
    """How the literals among the keys are written."""
    delay_s: Decimal | Param | None = None
    """NACK and EXTEND: in how many seconds from now the message is due. A parameter is the statement's last."""

    def update(self) -> bytes:
        """The UPDATE to run in its place: one affected row per message.

        Its parameters are the statement's, but that a `delay_s` comes first: SET stands before WHERE.
        """
        if self.verb is Verb.ACK:
            changes, guard = ACKNOWLEDGED, b"time_acked IS NULL"
        else:
            changes = b"time_next = %b + %b" % (NOW, self._delay_ns())
            guard = b"time_acked IS NULL AND epoch > 0"
        return b"UPDATE %b SET %b WHERE %b AND (%b\n)" % (self.table_sql, changes, guard, self.condition)

    def _delay_ns(self) -> bytes:
        if isinstance(self.delay_s, Decimal):
            return b"%d" % int(self.delay_s.scaleb(9))
        return b"CAST(? AS DECIMAL(20, 9)) * 1000000000"

    def check_delay(self, values: Sequence[object]) -> None:
        """Raises SqlError (1210) unless the value that comes for `delay_s`, if one does, can stand there."""
        if isinstance(self.delay_s, Param) and _seconds(values[self.delay_s.index]) is None:
            given = repr(values[self.delay_s.index])[:40]
            raise wrong_argument(
                f"{_TAIL_WORDS[self.verb]} takes {_TAKES}, and parameter {self.param_count} is {given}"
            )


def _seconds(value: object) -> Decimal | None:
    seconds = number(value)
    if seconds is None or not 0 <= seconds <= DELAY_MAX_S:
        return None
    # What a driver sends as a double has as many digits as it happens to have.
    return round(seconds, FRACTION_DIGITS_MAX)


def parse_settle(
    sql: bytes,
    codec: str = "utf-8",
    *,
    no_backslash_escapes: bool = False,
    ansi_quotes: bool = False,
) -> SettleStatement:
    """Reads a statement that `classify` found to be ACK, NACK or EXTEND.

    `codec` is Python's name for the client's character set; the two flags are its sql_mode. Raises
    SqlError (1064 with the byte offset).
    """
    steps = settle_steps(sql, codec, no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            statement: SettleStatement = done.value
            return statement


def settle_steps(
    sql: bytes, codec: str = "utf-8", *, no_backslash_escapes: bool = False, ansi_quotes: bool = False
) -> Generator[None, None, SettleStatement]:
    """The same in steps: it yields after each, and returns the statement."""
    reader = _Reader(sql, codec, no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    return (yield from reader.statement())


# The patterns

GAP_PIECES_MAX: Final = 1_000
"""Blanks and comments in a row that are taken for a gap between two words."""
NAME_QUOTES_MAX: Final = 128
"""Quotes that a name can hold: as many as it can have characters, and more."""
INNER_PIECES: Final = 64
"""Escapes in a string, or asterisks in a comment, that the pattern follows; one that has more is read in steps."""

_GAP_PIECES = rf"(?>(?:{BLANK}++|{COMMENT}){{0,{GAP_PIECES_MAX}}})"
_GAP = bytes_pattern(_GAP_PIECES)
_VERB = bytes_pattern(rf"(ACK|NACK|EXTEND){WORD_END}")
_FROM = bytes_pattern(rf"FROM{WORD_END}")
_WHERE = bytes_pattern(rf"WHERE{WORD_END}")
_DOT = bytes_pattern(r"\.")
_BARE_NAME = rf"(?!(?:FROM|WHERE){WORD_END}){WORD_BYTE}++"

_TAIL_WORDS: Final[Mapping[Verb, str]] = {Verb.NACK: "DELAY", Verb.EXTEND: "BY"}
"""What may follow the condition, by verb, before a number of seconds."""
_TAKES = f"seconds from 0 to {DELAY_MAX_S}, with up to {FRACTION_DIGITS_MAX} digits of a fraction"
_BY_EXPECTED = f"BY was expected: it takes {_TAKES}"
_SECONDS = re.compile(rb"[0-9]{1,10}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")
_OPERAND_END = bytes_pattern(rf"(?:[)'\"`?]|(?<!{WORD_BYTE})(?:[0-9]++|TRUE|FALSE|NULL)){BLANK}*+\Z")
"""Text behind which no column can stand."""

_EXECUTED = bytes_pattern(r"/\*M?!")
_SHORT_NAMES = tuple(rf"(?>(?:{mark}[^{mark}]*+{mark}){{1,{NAME_QUOTES_MAX}}})" for mark in ("`", '"'))


def _string(mark: str, *, escapes: bool) -> str:
    """A string, or a quoted name, if it is short. A doubled quote is an end followed by a start, which is the same."""
    inside = rf"(?>(?:[^{mark}\\]++|\\[\s\S]){{0,{INNER_PIECES}}})" if escapes else f"[^{mark}]*+"
    return mark + inside + mark


def _inside(mark: str, *, escapes: bool) -> re.Pattern[bytes]:
    """The next part of such a string, empty at its end."""
    return bytes_pattern(rf"(?>(?:[^{mark}\\]++|\\[\s\S]){{0,{STEP_PIECES}}})" if escapes else f"[^{mark}]*+")


STRETCH_PIECES: Final = 512
"""Pieces without interest that the pattern goes over before the reader hears of it."""
NEAR_BYTES: Final = 1024
"""As much of the statement as an error can quote, in any character set."""
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
    tail: re.Pattern[bytes]
    """What follows a condition, up to the end of the statement."""
    pieces: re.Pattern[bytes]
    """A stretch of the condition without interest, or one of the named groups."""
    inside: Mapping[bytes, re.Pattern[bytes]]
    """By quote, the next part of what stands in quotes and is long."""


@cache
def _grammar(verb: Verb, *, no_backslash_escapes: bool, ansi_quotes: bool) -> _Grammar:
    escapes = {"'": not no_backslash_escapes, '"': not (no_backslash_escapes or ansi_quotes), "`": False}
    quoted = "|".join(_string(mark, escapes=escaped) for mark, escaped in escapes.items())
    comment = rf"/\*(?!M?!)[^*]*+(?>(?:\*(?!/)[^*]*+){{0,{INNER_PIECES}}})\*/"
    word = _TAIL_WORDS.get(verb)
    clauses = "ORDER|LIMIT" if word is None else f"ORDER|LIMIT|{word}"
    tail = rf"{_tail_pattern(verb)}{_GAP_PIECES}(?>(?:;{_GAP_PIECES})?)\Z"
    return _Grammar(
        name=bytes_pattern("|".join((_BARE_NAME, *_SHORT_NAMES[: 1 + ansi_quotes]))),
        keys=bytes_pattern(_keys_pattern(ansi_quotes=ansi_quotes) + GAP + tail),
        tail=bytes_pattern(tail),
        pieces=bytes_pattern(
            rf"(?>(?:{BLANK}++|{comment}|{LINE_COMMENT}|{quoted}"
            rf"|(?!(?:{clauses}){WORD_END})[0-9A-Z_$.@\x80-\xff]++"
            rf"|-(?!-[\x00-\x20\x7f-\xff]|-\Z)|/(?!\*)|[^\x00'\"`\#();?/\-0-9A-Z_$.@\x80-\xff])"
            rf"{{1,{STRETCH_PIECES}}})"
            rf"|(?P<mark>[();?])|(?P<clause>{clauses})|(?P<bad>/\*|--|[\s\S])"
        ),
        inside={mark.encode(): _inside(mark, escapes=escaped) for mark, escaped in escapes.items()},
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
    )


def _tail_pattern(verb: Verb) -> str:
    word = _TAIL_WORDS.get(verb)
    if word is None:
        return ""
    pattern = rf"(?<!{WORD_BYTE}){word}{WORD_END}{_GAP_PIECES}(?P<seconds>\?|[0-9.][0-9A-Z_$.\x80-\xff]*+)"
    return pattern if verb is Verb.EXTEND else rf"(?>(?:{pattern})?)"


class _Reader:
    """Reads one statement from left to right. It looks at the shadow and cuts from the original."""

    def __init__(self, sql: bytes, codec: str, *, no_backslash_escapes: bool, ansi_quotes: bool) -> None:
        self._sql = sql
        self._text = shadow(sql, codec)
        self._codec = codec
        self._position = 0
        self._verb = Verb.ACK
        self._skip(_GAP)
        verb = _VERB.match(self._text, self._position)
        if verb is None:
            self._fail("ACK was expected")
        self._verb = Verb[verb[1].decode().upper()]
        self._grammar = _grammar(self._verb, no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)

    def statement(self) -> Generator[None, None, SettleStatement]:
        self._skip(_VERB)
        self._skip(_FROM)
        table, table_sql = self._table()
        if not self._skip(_WHERE):
            self._fail(f"WHERE was expected; {self._for_all}")
        start = self._position
        shape = self._grammar.keys.match(self._text, start) if self._keys_can_be_read(start) else None
        if shape is None:
            end, param_count, seconds = yield from self._measure(start)
            keys, spelling = None, Spelling.NUMBERS
        else:
            end = shape.end("condition")
            keys, param_count, spelling = _keys(self._sql[shape.start("list") : shape.end("list")])
            param_count += (shape["fence"] or b"").endswith(b"?")
            seconds = shape.groupdict().get("seconds")
            self._position = end
        condition = self._sql[start:end].rstrip()
        if not condition:
            self._fail(f"a condition was expected; {self._for_all}")
        delay_s = self._delay(seconds, param_count)
        param_count += isinstance(delay_s, Param)
        return SettleStatement(self._verb, table, table_sql, condition, keys, param_count, spelling, delay_s)

    @property
    def _for_all(self) -> str:
        return "for every message, write WHERE TRUE"

    def _delay(self, written: bytes | None, param_count: int) -> Decimal | Param | None:
        match self._verb, written:
            case Verb.ACK, _:
                return None
            case _, None:
                return Decimal(0)
            case _, b"?":
                return Param(param_count)
            case _:
                pass
        seconds = _seconds(written) if _SECONDS.fullmatch(written or b"") else None
        if seconds is None:
            self._fail(f"{_TAIL_WORDS[self._verb]} takes {_TAKES}")
        return seconds

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

    def _keys_can_be_read(self, start: int) -> bool:
        return len(self._text) - start <= KEYS_BYTES_MAX and self._text.count(b",", start) < KEYS_MAX

    def _measure(self, start: int) -> Generator[None, None, tuple[int, int, bytes | None]]:
        """Where the condition ends, how many parameters it has, and the seconds that follow it."""
        depth = param_count = gone_over = 0
        position = start
        while position < len(self._text):
            piece = self._grammar.pieces.match(self._text, position)
            assert piece is not None
            position = piece.end()
            gone_over += STRETCH_PIECES if piece.lastgroup is None else 1
            if gone_over >= STEP_PIECES:
                gone_over = 0
                yield
            if piece.lastgroup is None:
                continue
            self._position = piece.start()
            if piece.lastgroup == "bad" and (end_of_long := (yield from self._end_of_long())):
                position = end_of_long
                continue
            if depth == 0 and (end := self._grammar.tail.match(self._text, self._position)):
                return self._position, param_count, end.groupdict().get("seconds")
            match piece[0]:
                case b"(":
                    depth += 1
                case b")" if depth > 0:
                    depth -= 1
                case b"?":
                    param_count += 1
                case b";" if depth == 0 and self._verb is Verb.EXTEND:
                    self._fail(_BY_EXPECTED)
                case other if piece.lastgroup != "clause":
                    self._fail(_COMPLAINTS.get(other.decode("latin-1"), _NO_CLAUSES))
                case word if depth == 0:
                    self._clause(start, word.decode().upper())
        self._position = len(self._text)
        if depth > 0:
            self._fail("a parenthesis is not closed")
        if self._verb is Verb.EXTEND:
            self._fail(_BY_EXPECTED)
        return self._position, param_count, None

    def _end_of_long(self) -> Generator[None, None, int]:
        """Where a comment, or what stands in quotes, ends that begins here and is long; 0 where there is none such."""
        text, begin = self._text, self._position
        if text.startswith(b"/*", begin):
            closed = -1 if _EXECUTED.match(text, begin) else text.find(b"*/", begin + 2)
            return closed + 2 if closed > 0 else 0
        mark = text[begin : begin + 1]
        inside = self._grammar.inside.get(mark)
        if inside is None:
            return 0
        end = begin + 1
        while (part := inside.match(text, end)) is not None and part.end() > end:
            end = part.end()
            yield
        return end + 1 if text[end : end + 1] == mark else 0

    def _clause(self, start: int, word: str) -> None:
        """A word that may begin a clause stands here, and the statement does not end with it."""
        if word in {"ORDER", "LIMIT"}:
            self._fail(_NO_CLAUSES)
        before = self._text[max(start, self._position - 64) : self._position]
        if word == "BY" or _OPERAND_END.search(before):
            self._fail(f"{word} takes {_TAKES}, and ends the statement")

    def _fail(self, expected: str) -> NoReturn:
        before, near = self._sql[: self._position], self._sql[self._position :][:NEAR_BYTES]
        raise syntax_error(
            self._verb.name,
            before.decode(self._codec, "replace"),
            near.decode(self._codec, "replace"),
            self._position,
            expected,
        )


def _keys(listed: bytes) -> tuple[tuple[bytes | Param, ...], int, Spelling]:
    """The keys of a literal or a list of the common shape, how many of them are parameters, and how the others are
    written."""
    inner = listed[1:-1] if listed.startswith(b"(") else listed
    params = map(Param, count())
    keys: Iterable[bytes | Param]
    spelling = Spelling.NUMBERS
    if b"'" in inner or b'"' in inner:
        elements = _ELEMENT.findall(inner)
        alike = all(bare in (b"", b"?") for _, _, bare in elements)
        spelling = Spelling.STRINGS if alike else Spelling.UNLIKE
        keys = (next(params) if bare == b"?" else single or double or bare for single, double, bare in elements)
    else:
        keys = inner.translate(None, b" \t\n\v\f\r").split(b",")
        if b"?" in inner:
            keys = (next(params) if key == b"?" else key for key in keys)
    return tuple(keys), next(params).index, spelling
