"""`STREAM columns FROM t [LIMIT n] [PREFETCH n] [WAIT s | NOWAIT]`, read into a value.

The statement looks like a SELECT, so people will write all that a SELECT can hold. What the grammar
lacks is therefore met by name: an error says not only where reading stopped, but which clause it was
and what to do instead.

sqlglot's MySQL tokenizer cuts the text. The grammar is small enough to be walked by hand, and strict
where sqlglot's parser is lenient (it reads `a, FROM t`). Comments are blanked out before, because
sqlglot and the server disagree on what is one (`--x`, `/*! … */`); no offset moves by that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Final, Generic, NoReturn, TypeVar

from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

from sqlrewrite.errors import not_supported_yet, syntax_error, wrong_argument
from sqlrewrite.lexicon import COMMENT, strings
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
            raise wrong_argument(
                f"this STREAM has {self.param_count} parameters, and {len(values)} were given"
            )
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
            raise wrong_argument(
                f"{self.name} takes {self.takes}, and parameter {value.index + 1} is {given}"
            )
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
    "(": _ONLY_COLUMNS,
    ";": _ALONE,
}  # fmt: skip

_NOT_YET: Final[Mapping[str, str]] = {
    "WHERE": "STREAM … WHERE is not supported yet: stream all messages and skip those of no concern,"
    " or keep them in a table of their own",
    "PARTITION": "STREAM … PARTITION is not supported yet: leave it out to stream all partitions",
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
    name_marks: str


_PLAIN = _Mode(_AckstreamMySQL(), _opaque(ansi_quotes=False), "`")
_ANSI = _Mode(_AckstreamAnsiMySQL(), _opaque(ansi_quotes=True), "`\"")

_WORD = re.compile(r"[\w$]+")


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
            self._refuse("a comma or FROM was expected")
        statement = self._options(StreamStatement(self._table(), columns))
        if self._take(";") and self._text():
            self._fail(_ALONE)
        if self._text():
            self._refuse("LIMIT, PREFETCH, WAIT, NOWAIT or the end was expected")
        return replace(statement, param_count=self._param_count)

    def _columns(self) -> tuple[str | Star, ...]:
        columns: list[str | Star] = [STAR if self._take("*") else self._name("a column or *")]
        while self._take(","):
            if self._text() == "*":
                self._fail("* can only stand first among the columns")
            columns.append(self._name("a column"))
        if self._text() == ".":
            self._fail("columns are named without their table")
        if self._text().upper() in _OTHER_CLAUSES:
            self._refuse("")
        return tuple(columns)

    def _table(self) -> TableName:
        first = self._name("a table")
        return TableName(self._name("a table"), first) if self._take(".") else TableName(first)

    def _options(self, statement: StreamStatement) -> StreamStatement:
        while True:
            ...
