"""The statements that settle messages: ACK, NACK and EXTEND, each made into one guarded UPDATE.

    ACK [FROM] t WHERE condition
    NACK [FROM] t WHERE condition [DELAY seconds] [REASON 'text'], in either order
    EXTEND [FROM] t WHERE condition BY seconds

The condition is not parsed. It keeps the client's bytes and its `?`, runs in the client's session,
and means there what it means in any UPDATE. The parser finds where it ends, and proves that it
cannot leave the parentheses that the UPDATE puts around it. A newline behind it ends a last
comment. Text that the server might read in another way is refused: a comment that the server
executes, a NUL, two dashes before a byte beyond ASCII.

DELAY, REASON and BY are clauses only at the end of the statement, outside quotes and parentheses,
before one number, text or `?`. No expression of SQL ends like that, so a column may have such a
name.

Most conditions are `id = …` or `id IN (…)`. One pattern (`Grammar.keys`) matches these and yields
the keys: 10,000 of them take less than a millisecond. The keys of a longer list are not read
(KEYS_MAX).

A statement can have 16 MB, too much for the tokenizer and for one turn of the event loop. So a
condition is scanned by a pattern of the lexicon's, in steps of at most STEP_PIECES pieces
(`settle_steps`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Final, NoReturn

from sqlrewrite.classify import Verb
from sqlrewrite.errors import syntax_error, wrong_argument
from sqlrewrite.lexicon import (
    BLANK,
    EXECUTED,
    UNREADABLE,
    WORD_BYTE,
    WORD_END,
    bytes_pattern,
    shadow,
)
from sqlrewrite.names import Param, TableName, unquote
from sqlrewrite.settle_grammar import (
    GAP_PIECES,
    STEP_PIECES,
    STRETCH_PIECES,
    TAIL_WORDS,
    grammar,
)
from sqlrewrite.values import number

AS_IT_IS: Final = b"/*M!110602 SET STATEMENT innodb_snapshot_isolation = OFF FOR */ "
"""Before the UPDATE: it is about the message as it is, whatever the transaction has read before. From
this version on, MariaDB would otherwise refuse a message that was delivered or extended since (1020)."""
NOW = b"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
"""The server's time in nanoseconds."""


def acknowledged(mark: int) -> bytes:
    """What an acknowledgement sets: its time, in µs and with `mark` as the last three digits, and no next
    delivery."""
    return b"time_acked = %b%b, time_next = NULL" % (NOW, b" + %d" % mark if mark else b"")


DELAY_MAX_S: Final = 36_525 * 86_400
"""A hundred years: further ahead, the time in nanoseconds nears the end of a BIGINT."""

KEYS_MAX: Final = 10_000
"""Ids that are read in one statement: as many as a queue has in flight by default (vt_cache_size).

Of a longer list no id is read. The engine then looks up what is in flight, which costs less."""
KEYS_BYTES_MAX: Final = 512 * 1024
"""The longest list of ids that is read, in bytes: KEYS_MAX of 50 each, which one pattern matches in
some ms."""
CLAIM_DIGITS_NS: Final = 10**9
"""Below it, the digits of a lease are those of its claim: its time within a second, and the slot of its
proxy. EXTEND keeps them, so a message shows of which claim it is."""

FRACTION_DIGITS_MAX: Final = 9
"""The table counts nanoseconds."""


class KeyLiterals(enum.Enum):
    """How the literals among the keys of a statement are written. It decides how the server
    compares ids with them."""

    NUMBERS = enum.auto()
    STRINGS = enum.auto()
    MIXED = enum.auto()
    """Numbers and strings."""


def _end_with(digits: bytes) -> bytes:
    """The first time with these CLAIM_DIGITS_NS that is not earlier than `ackstream_least`."""
    unit = CLAIM_DIGITS_NS
    return b"(ackstream_least - %b + %d) DIV %d * %d + %b" % (digits, unit - 1, unit, unit, digits)


@dataclass(frozen=True, slots=True)
class ReasonColumns:
    """Where a queue keeps why a message was given back."""

    text: bytes
    """The quoted name of the column with the text."""
    at: bytes | None
    """The quoted name of the column with the time, in UTC; None: it has none."""
    chars_max: int
    """How much of the text is kept."""


@dataclass(frozen=True, slots=True)
class SettleStatement:
    """An ACK, NACK or EXTEND. Its bytes are in the client's character set."""

    verb: Verb
    """ACK, NACK or EXTEND."""
    table: TableName
    table_sql: bytes
    """The table with its quotes as written."""
    condition: bytes
    """The condition as written."""
    keys: tuple[bytes | Param, ...] | None
    """The ids, if the condition is `id = …` or `id IN (…)`, with or without `AND epoch = …`:
    digits, the contents of a string, or a parameter. None for any other condition, and for more
    than KEYS_MAX."""
    param_count: int
    key_literals: KeyLiterals = KeyLiterals.NUMBERS
    """How the literals among the keys are written."""
    delay_s: Decimal | Param | None = None
    """NACK and EXTEND: seconds from now until the message is due. A parameter stands behind those of the
    condition."""
    epoch: bytes | Param | None = None
    """The digits of `AND epoch = …` behind the keys; None without it, or if there are no keys."""
    reason: bytes | Param | None = None
    """NACK: why, as the literal was written. A parameter stands behind those of the condition."""

    @property
    def first_params(self) -> tuple[int, ...]:
        """Those of its parameters that are the first ones of the UPDATE, in its order: SET stands before WHERE,
        and the delay before the reason. They are the last ones of the statement."""
        return tuple(param.index for param in (self.delay_s, self.reason) if isinstance(param, Param))

    @property
    def params_order(self) -> tuple[int, ...]:
        """All of its parameters in the order of the UPDATE."""
        first = self.first_params
        return (*first, *range(self.param_count - len(first)))

    def update(
        self,
        lease: bytes | None = None,
        reason: ReasonColumns | None = None,
        *,
        by_primary_key: bool = False,
        ack_mark: int = 0,
    ) -> bytes:
        """The UPDATE to run in its place: one affected row per message. `lease`: the quoted name of the table's
        lease column; `reason`: its columns for the reason, required if there is one. `by_primary_key`:
        whether ids are found by the primary key, which the UPDATE then uses if it names ids. The
        server may take it for a small table while its statistics are old, and reads and locks all
        rows or all that are due, so claims would pass over them. A temporary table that hides the
        queue then needs a primary key, too. `ack_mark`: of an ACK, as in `acknowledged`.

        Its parameters are the statement's, in the order of `params_order`. It means the same in
        every sql_mode, and in whichever order the server assigns: no assignment refers to another.
        """
        index = b" FORCE INDEX (PRIMARY)" if by_primary_key and self.keys is not None else b""
        table, guard = self.table_sql + index, b"time_acked IS NULL"
        if self.verb is Verb.ACK:
            changes = acknowledged(ack_mark)
        elif self.verb is Verb.NACK:
            changes = b"time_next = %b + %b" % (NOW, self._delay_ns())
            guard += b" AND epoch > 0"
            if self.reason is not None:
                assert reason is not None
                written = b"?" if isinstance(self.reason, Param) else self.reason
                changes += b", %b = LEFT(%b, %d)" % (reason.text, written, reason.chars_max)
                if reason.at is not None:
                    changes += b", %b = UTC_TIMESTAMP(6)" % reason.at
        elif lease is None:
            changes = b"time_next = %b + %b" % (NOW, self._delay_ns())
            guard += b" AND epoch > 0 AND time_next > %b" % NOW
        else:  # The time stands in a table of one row: two columns get it, and `?` can stand once.
            table += b", (SELECT %b + %b AS ackstream_least) AS ackstream_end" % (NOW, self._delay_ns())
            until = _end_with(b"MOD(%b, %d)" % (lease, CLAIM_DIGITS_NS))
            changes = b"time_next = %b, %b = %b" % (until, lease, until)
            guard += b" AND %b = time_next AND time_next > %b" % (lease, NOW)
        guarded = b"%b AND (%b\n)" % (guard, self.condition)
        return b"%bUPDATE %b SET %b WHERE %b" % (AS_IT_IS, table, changes, guarded)

    def _delay_ns(self) -> bytes:
        if isinstance(self.delay_s, Decimal):
            return b"%d" % int(self.delay_s.scaleb(9))
        return b"CAST(? AS DECIMAL(20, 9)) * 1000000000"

    def check_delay(self, values: Sequence[object]) -> None:
        """Raises SqlError (1210) if `delay_s` is a parameter and its value is no time that it can
        be."""
        if isinstance(self.delay_s, Param) and _seconds(values[self.delay_s.index]) is None:
            given = repr(values[self.delay_s.index])[:40]
            parameter = self.delay_s.index + 1
            raise wrong_argument(f"{TAIL_WORDS[self.verb]} takes {_TAKES}, and parameter {parameter} is {given}")


def _seconds(value: object) -> Decimal | None:
    seconds = number(value)
    if seconds is None or not 0 <= seconds <= DELAY_MAX_S:
        return None
    # A double from a driver can have more digits than the table counts.
    return round(seconds, FRACTION_DIGITS_MAX)


def parse_settle(
    sql: bytes,
    codec: str = "utf-8",
    *,
    no_backslash_escapes: bool = False,
    ansi_quotes: bool = False,
) -> SettleStatement:
    """Parse a statement that `classify` found to be ACK, NACK or EXTEND.

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
    """Parse ACK, NACK or EXTEND in steps: the generator yields after each, and returns the statement."""
    parser = _SettleParser(sql, codec, no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)
    return (yield from parser.statement())


# The patterns

_GAP = bytes_pattern(GAP_PIECES)
_VERB = bytes_pattern(rf"(ACK|NACK|EXTEND){WORD_END}")
_FROM = bytes_pattern(rf"FROM{WORD_END}")
_WHERE = bytes_pattern(rf"WHERE{WORD_END}")
_DOT = bytes_pattern(r"\.")
_TAKES = f"seconds from 0 to {DELAY_MAX_S}, with a fraction if wanted"
_REASON_TAKES = "REASON takes a text in quotes; only DELAY may follow"
_BY_EXPECTED = f"BY was expected: it takes {_TAKES}"
_OPERAND_END = bytes_pattern(rf"(?:[)'\"`?]|(?<!{WORD_BYTE})(?:[0-9]++|TRUE|FALSE|NULL)){BLANK}*+\Z")
"""Text that no column can follow."""

_EXECUTED = bytes_pattern(EXECUTED)
NEAR_BYTES: Final = 1024
"""Bytes of the statement that an error can quote at most, in any character set."""
_NO_CLAUSES = "the condition is all that follows WHERE; there is no ORDER BY and no LIMIT"
_COMPLAINTS: Final[Mapping[str, str]] = {
    **UNREADABLE,
    ")": "this parenthesis was not opened in the condition",
    ";": "the statement has to stand alone",
}
"""Why a condition cannot continue, by the piece that stands there."""

_ELEMENT = re.compile(rb"""'([^']*)'|"([^"]*)"|([^\s,]+)""")


class _SettleParser:
    """Reads one statement from left to right. Patterns match the shadow; text is cut from the
    original."""

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
        self._grammar = grammar(self._verb, no_backslash_escapes=no_backslash_escapes, ansi_quotes=ansi_quotes)

    def statement(self) -> Generator[None, None, SettleStatement]:
        table, table_sql = self._head()
        start = self._position
        shape = self._grammar.keys.match(self._text, start) if self._keys_can_be_read(start) else None
        if shape is None:
            end, param_count, tail = yield from self._measure(start)
            keys, key_literals, epoch = None, KeyLiterals.NUMBERS, None
        else:
            end = shape.end("condition")
            keys, param_count, key_literals = _keys(self._sql[shape.start("list") : shape.end("list")])
            if (epoch := shape["epoch"]) == b"?":
                epoch = Param(param_count)
                param_count += 1
            tail = shape
            self._position = end
        condition = self._sql[start:end].rstrip()
        if not condition:
            self._fail(f"a condition was expected; {self._for_all}")
        turned = _group(tail, "reason_first") is not None
        reason = self._reason(tail, "reason_first", param_count) if turned else None
        param_count += isinstance(reason, Param)
        delay_s = self._delay(_group(tail, "seconds_last" if turned else "seconds"), param_count)
        param_count += isinstance(delay_s, Param)
        if not turned:
            reason = self._reason(tail, "reason", param_count)
            param_count += isinstance(reason, Param)
        return SettleStatement(
            self._verb, table, table_sql, condition, keys, param_count, key_literals, delay_s, epoch, reason
        )

    def _head(self) -> tuple[TableName, bytes]:
        """The table, and its name as written. Reads all that precedes the condition."""
        head = self._grammar.head.match(self._text)
        if head is None:
            self._incomplete_head()
        self._position = head.end()
        (first, second), sql = (head.span(name) for name in ("first", "second")), self._sql
        if second[0] < 0:
            return TableName(self._unquote(sql[slice(*first)])), sql[slice(*first)]
        db, name = sql[slice(*first)], sql[slice(*second)]
        return TableName(self._unquote(name), self._unquote(db)), db + b"." + name

    def _incomplete_head(self) -> NoReturn:
        """Read the head word by word, to find what it lacks."""
        self._skip(_VERB)
        self._skip(_FROM)
        self._skip_name()
        if self._skip(_DOT):
            self._skip_name()
        self._fail(f"WHERE was expected; {self._for_all}")

    def _reason(self, tail: re.Match[bytes] | None, group: str, param_count: int) -> bytes | Param | None:
        written = _group(tail, group)
        if tail is None or written is None:
            return None
        return Param(param_count) if written == b"?" else self._sql[slice(*tail.span(group))]

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
        seconds = _seconds(written)
        if seconds is None:
            self._fail(f"{TAIL_WORDS[self._verb]} takes {_TAKES}")
        return seconds

    def _skip_name(self) -> None:
        if not self._skip(self._grammar.name):
            self._fail("a table name was expected")

    def _unquote(self, written: bytes) -> str:
        return unquote(written.decode(self._codec, "replace"))

    def _skip(self, pattern: re.Pattern[bytes]) -> bool:
        """Read the pattern and the gap behind it, if it matches here."""
        match = pattern.match(self._text, self._position)
        if match is not None:
            gap = _GAP.match(self._text, match.end())
            self._position = match.end() if gap is None else gap.end()
        return match is not None

    def _keys_can_be_read(self, start: int) -> bool:
        return len(self._text) - start <= KEYS_BYTES_MAX and self._text.count(b",", start) < KEYS_MAX

    def _measure(self, start: int) -> Generator[None, None, tuple[int, int, re.Match[bytes] | None]]:
        """Find where the condition ends, the count of its parameters, and what follows it."""
        depth = param_count = scanned = 0
        position = start
        while position < len(self._text):
            piece = self._grammar.pieces.match(self._text, position)
            assert piece is not None
            position = piece.end()
            scanned += STRETCH_PIECES if piece.lastgroup is None else 1
            if scanned >= STEP_PIECES:
                scanned = 0
                yield
            if piece.lastgroup is None:
                continue
            self._position = piece.start()
            if piece.lastgroup == "bad" and (end_of_long := (yield from self._end_of_long())):
                position = end_of_long
                continue
            if depth == 0 and (end := self._grammar.tail.match(self._text, self._position)):
                return self._position, param_count, end
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
        """Where a long comment, or a long text in quotes, that begins here ends; 0 if there is
        none."""
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
        """Refuse the word that stands here, if it can only begin a clause: no such clause ends the
        statement."""
        if word in {"ORDER", "LIMIT"}:
            self._fail(_NO_CLAUSES)
        before = self._text[max(start, self._position - 64) : self._position]
        if word == "REASON":
            if _OPERAND_END.search(before):
                self._fail(_REASON_TAKES)
            return
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


def _group(match: re.Match[bytes] | None, name: str) -> bytes | None:
    """What a group has matched; None if the pattern does not have it."""
    return None if match is None else match.groupdict().get(name)


def _keys(listed: bytes) -> tuple[tuple[bytes | Param, ...], int, KeyLiterals]:
    """The keys of a literal or list that `_keys_pattern` matched, the count of parameters among
    them, and how the others are written."""
    inner = listed[1:-1] if listed.startswith(b"(") else listed
    params = map(Param, count())
    keys: Iterable[bytes | Param]
    key_literals = KeyLiterals.NUMBERS
    if b"'" in inner or b'"' in inner:
        elements = _ELEMENT.findall(inner)
        alike = all(bare in (b"", b"?") for _, _, bare in elements)
        key_literals = KeyLiterals.STRINGS if alike else KeyLiterals.MIXED
        keys = (next(params) if bare == b"?" else single or double or bare for single, double, bare in elements)
    else:
        keys = inner.translate(None, b" \t\n\v\f\r").split(b",")
        if b"?" in inner:
            keys = (next(params) if key == b"?" else key for key in keys)
    return tuple(keys), next(params).index, key_literals
