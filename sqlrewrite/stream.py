"""`STREAM columns FROM t [LIMIT n] [PREFETCH n] [WAIT s | NOWAIT]`, read into a value.

The statement looks like a SELECT, so people will write all that a SELECT can hold. What the
grammar lacks is therefore met by name: an error says not only where reading stopped, but which
clause it was and what to do instead.

sqlglot's MySQL tokenizer cuts the text. The grammar is small enough to be walked by hand, and
strict where sqlglot's parser is lenient (it reads `a, FROM t`). Comments are blanked out before,
because sqlglot and the server disagree on what is one (`--x`, `/*! … */`); no offset moves by
that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Final, Generic, NoReturn, TypeVar

from sqlglot import Token
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import TokenError

from sqlrewrite.errors import not_supported_yet, syntax_error, wrong_argument
from sqlrewrite.lexicon import COMMENT, UNREADABLE, strings
from sqlrewrite.names import Param, TableName, unquote

WHOLE_NUMBER_MAX: Final = 2**63 - 1
"""Counts are BIGINT on the server."""

WAIT_MAX_S: Final = 86_400
"""A longer poll is better asked again: few networks keep a silent connection for a day."""


class Star(Enum):
    """`*` among the columns: what the table's own directives make of it."""

    STAR = "*"


STAR: Final = Star.STAR


@dataclass(frozen=True, slots=True)
class StreamStatement:
    """What a STREAM asks for. Options that it does not name are None."""

    table: TableName
    columns: tuple[str | Star, ...]
    """Names without quotes, as written. `*` can only be the first."""
    limit: int | Param | None = None
    """Rows after which it ends, at least 1."""
    prefetch: int | Param | None = None
    """Messages delivered and not yet acknowledged, at least 1."""
    wait: Decimal | Param | None = None
    """Seconds to wait for the first message, from 0 to WAIT_MAX_S."""
    nowait: bool = False
    """Whether it ends as soon as nothing is due. Never together with `wait`."""
    param_count: int = 0

    def bind(self, values: Sequence[object]) -> StreamStatement:
        """The statement with its parameters replaced by values as drivers send them.

        A value is a number, or a numeral as text, since some drivers send all parameters as text or
        as doubles. Raises SqlError (1210) for one that cannot stand in its place.
        """
        if len(values) != self.param_count:
            raise wrong_argument(f"this STREAM has {self.param_count} parameters, and {len(values)} were given")
        return replace(
            self,
            limit=_LIMIT.bound(self.limit, values),
            prefetch=_PREFETCH.bound(self.prefetch, values),
            wait=_WAIT.bound(self.wait, values),
            param_count=0,
        )


def parse_stream(sql: str, *, ansi_quotes: bool = False) -> StreamStatement:
    """Reads a statement that `classify` found to be STREAM.

    `ansi_quotes` is the session's sql_mode: whether "t" is a name. Raises SqlError: 1064 with the
    offset in characters, 1235 for what a later release brings.
    """
    return _Reader(sql, _ANSI if ansi_quotes else _PLAIN).statement()


# Values

T = TypeVar("T", int, Decimal)

_NUMERAL = re.compile(r"(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")


def _number(value: object) -> Decimal | None:
    match value:
        case bool():
            return None
        case int() | Decimal():
            number = Decimal(value)
        case float():
            number = Decimal(repr(value))
        case str() if _NUMERAL.fullmatch(value):
            number = Decimal(value)
        case bytes() if value.isascii():
            return _number(value.decode("ascii"))
        case _:
            return None
    return number if number.is_finite() else None


def _whole_number(value: object) -> int | None:
    number = _number(value)
    if number is None or not 1 <= number <= WHOLE_NUMBER_MAX or number % 1:
        return None
    return int(number)


def _seconds(value: object) -> Decimal | None:
    number = _number(value)
    return number if number is not None and 0 <= number <= WAIT_MAX_S else None


@dataclass(frozen=True, slots=True)
class _Option(Generic[T]):
    """An option that takes a value: `read` makes one of a number or numeral, None of anything else."""

    name: str
    takes: str
    read: Callable[[object], T | None]

    def bound(self, value: T | Param | None, values: Sequence[object]) -> T | None:
        if not isinstance(value, Param):
            return value
        number = self.read(values[value.index])
        if number is None:
            given = repr(values[value.index])[:40]
            raise wrong_argument(f"{self.name} takes {self.takes}, and parameter {value.index + 1} is {given}")
        return number


_A_COUNT = f"a whole number from 1 to {WHOLE_NUMBER_MAX}"
_LIMIT = _Option("LIMIT", _A_COUNT, _whole_number)
_PREFETCH = _Option("PREFETCH", _A_COUNT, _whole_number)
_WAIT = _Option("WAIT", f"seconds from 0 to {WAIT_MAX_S}, with a fraction if wanted", _seconds)


# What the grammar lacks: by the first word of the clause.

_ONE_TABLE = "a stream reads one table; join in a SELECT, by the ids that it delivers"
_ONE_BY_ONE = "messages are delivered one by one; aggregate in a SELECT"
_NO_ALIAS = "aliases are not supported; names stay as they are in the table"
_OWN_ORDER = "the order is the queue's: lower priority, then earlier time_next, then id"
_NO_SKIPPING = "a stream begins with the next message and skips none"
_NO_INDEX_HINTS = "the queue chooses its own index"
_ONLY_COLUMNS = "only columns of the table can be streamed, no expressions"
_ALONE = "the statement has to stand alone"

_REFUSED: Final[Mapping[str, str]] = {
    "AS": _NO_ALIAS,
    **dict.fromkeys(
        (",", "JOIN", "INNER", "LEFT", "RIGHT", "CROSS", "NATURAL", "STRAIGHT_JOIN", "UNION",
         "EXCEPT", "INTERSECT", "SELECT"),
        _ONE_TABLE,
    ),
    **dict.fromkeys(("GROUP", "HAVING", "DISTINCT", "WINDOW"), _ONE_BY_ONE),
    **dict.fromkeys(("USE", "FORCE", "IGNORE"), _NO_INDEX_HINTS),
    "ORDER": _OWN_ORDER,
    "OFFSET": _NO_SKIPPING,
    "INTO": "rows go to the client and nowhere else",
    "FOR": "a message that is delivered is claimed by that; there is nothing to lock",
    "LOCK": "a message that is delivered is claimed by that; there is nothing to lock",
}  # fmt: skip

_NOT_YET: Final[Mapping[str, str]] = {
    "WHERE": "WHERE is not supported in STREAM yet: stream all messages and skip those of no concern,"
    " or keep them in a table of their own",
    "PARTITION": "PARTITION is not supported in STREAM yet: leave it out to stream all partitions",
}

_RESERVED: Final = frozenset({"FROM", "LIMIT", "PARTITION", "WHERE"} | _REFUSED.keys() - {"OFFSET"})
"""Words that are no names unless quoted. The server reserves them, and more."""


# Tokens


class _AckstreamMySQL(MySQL):
    IDENTIFIERS_CAN_START_WITH_DIGIT = True

    class Tokenizer(MySQL.Tokenizer):
        VAR_SINGLE_TOKENS = {*MySQL.Tokenizer.VAR_SINGLE_TOKENS, "$"}  # noqa: RUF012


class _AckstreamAnsiMySQL(_AckstreamMySQL):
    class Tokenizer(_AckstreamMySQL.Tokenizer):
        QUOTES = ["'"]  # noqa: RUF012
        IDENTIFIERS = ["`", '"']  # noqa: RUF012


def _opaque(*, ansi_quotes: bool) -> re.Pattern[str]:
    """What is no token, what hides comment marks, and what the server would read in another way."""
    quoted = strings(no_backslash_escapes=False, ansi_quotes=ansi_quotes)
    return re.compile(rf"(?P<quoted>{quoted})|(?P<comment>{COMMENT})|(?P<bad>['\"`]|/\*|--|\x00)")


@dataclass(frozen=True, slots=True)
class _Mode:
    """How the session's sql_mode has text read."""

    dialect: MySQL
    opaque: re.Pattern[str]
    name_marks: tuple[str, ...]


_PLAIN = _Mode(_AckstreamMySQL(), _opaque(ansi_quotes=False), ("`",))
_ANSI = _Mode(_AckstreamAnsiMySQL(), _opaque(ansi_quotes=True), ("`", '"'))

_WORD = re.compile(r"[\w$]+")
_OPTION_WORDS: Final = frozenset({"LIMIT", "PREFETCH", "WAIT", "NOWAIT"})


class _Reader:
    """Reads one statement from left to right."""

    def __init__(self, sql: str, mode: _Mode) -> None:
        self._sql = sql
        self._mode = mode
        self._tokens = self._tokenized()
        self._next = 0
        self._param_count = 0

    def statement(self) -> StreamStatement:
        if not self._take("STREAM"):
            self._fail("STREAM was expected")
        columns = self._columns()
        if not self._take("FROM"):
            self._refuse(f"a comma or FROM was expected; {_NO_ALIAS}")
        statement = self._options(StreamStatement(self._table(), columns))
        if self._take(";") and self._text:
            self._fail(_ALONE)
        if self._text:
            self._refuse(f"LIMIT, PREFETCH, WAIT, NOWAIT or the end was expected; {_NO_ALIAS}")
        return replace(statement, param_count=self._param_count)

    def _columns(self) -> tuple[str | Star, ...]:
        expected = f"a column or * was expected; {_ONLY_COLUMNS}"
        columns: list[str | Star] = [STAR if self._take("*") else self._name(expected)]
        while self._take(","):
            if self._text == "*":
                self._fail("* can only stand first among the columns")
            columns.append(self._name(expected))
        if self._text == ".":
            self._fail("columns are named without their table")
        if self._text and not _WORD.match(self._text):
            self._fail(_ONLY_COLUMNS)
        return tuple(columns)

    def _table(self) -> TableName:
        expected = f"a table was expected; {_ONE_TABLE}"
        first = self._name(expected)
        return TableName(self._name(expected), first) if self._take(".") else TableName(first)

    def _options(self, statement: StreamStatement) -> StreamStatement:
        seen: set[str] = set()
        while (word := self._text.upper()) in _OPTION_WORDS:
            if word in seen:
                self._fail(f"{word} is given twice")
            seen.add(word)
            if seen >= {"WAIT", "NOWAIT"}:
                self._fail("WAIT and NOWAIT exclude each other")
            self._next += 1
            statement = self._option(word, statement)
        return statement

    def _option(self, word: str, statement: StreamStatement) -> StreamStatement:
        match word:
            case "LIMIT":
                statement = replace(statement, limit=self._value(_LIMIT))
                if self._text == ",":
                    self._fail(_NO_SKIPPING)
                return statement
            case "PREFETCH":
                return replace(statement, prefetch=self._value(_PREFETCH))
            case "WAIT":
                return replace(statement, wait=self._value(_WAIT))
            case _:
                return replace(statement, nowait=True)

    def _value(self, option: _Option[T]) -> T | Param:
        if self._take("?"):
            self._param_count += 1
            return Param(self._param_count - 1)
        # The tokenizer takes the point of `.5` for one between names.
        end = self._next + (2 if self._text == "." else 1)
        number = option.read("".join(self._cut(token) for token in self._tokens[self._next : end]))
        if number is None:
            self._fail(f"{option.name} takes {option.takes}")
        self._next = end
        return number

    def _name(self, expected: str) -> str:
        text = self._text
        if text.startswith(self._mode.name_marks):
            self._next += 1
            return unquote(text)
        if text.startswith(("'", '"')):
            self._fail("this is a string; names stand in backquotes")
        if text.upper() in _RESERVED or text.isdecimal() or not _WORD.fullmatch(text):
            self._refuse(expected)
        self._next += 1
        return text

    @property
    def _text(self) -> str:
        """The next token as written, empty at the end."""
        return self._cut(self._tokens[self._next]) if self._next < len(self._tokens) else ""

    def _cut(self, token: Token) -> str:
        return self._sql[token.start : token.end + 1]

    def _take(self, word: str) -> bool:
        """Steps over the next token if it is this one."""
        taken = self._text.upper() == word
        self._next += taken
        return taken

    def _refuse(self, expected: str) -> NoReturn:
        """Fails by the name of the clause that stands here, if it is one that people may try."""
        clause = self._text.upper().partition(" ")[0]
        if clause in _NOT_YET:
            raise not_supported_yet(_NOT_YET[clause], self._position)
        self._fail(_REFUSED.get(clause, expected))

    def _fail(self, expected: str) -> NoReturn:
        self._fail_at(self._position, expected)

    def _fail_at(self, position: int, expected: str) -> NoReturn:
        before, near = self._sql[:position], self._sql[position:]
        raise syntax_error("STREAM", before, near, position, expected)

    @property
    def _position(self) -> int:
        return self._tokens[self._next].start if self._text else len(self._sql)

    def _tokenized(self) -> list[Token]:
        try:
            return self._mode.dialect.tokenize(self._mode.opaque.sub(self._blank, self._sql))
        except TokenError:
            self._fail_at(0, "the statement cannot be cut into words")

    def _blank(self, found: re.Match[str]) -> str:
        if found["bad"] is not None:
            self._fail_at(found.start(), UNREADABLE[found["bad"]])
        return found[0] if found["comment"] is None else " " * len(found[0])
