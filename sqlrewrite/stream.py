"""Parses STREAM.

    STREAM columns FROM t [PARTITION (p)] [WHERE condition] [LIMIT n] [PREFETCH n] [WAIT s | NOWAIT]
        [FOR UPDATE]

The statement looks like a SELECT, so people write clauses of a SELECT. An error therefore names the
clause that is not supported, and what to do instead.

The parser is written by hand over the tokens of sqlrewrite.tokens. sqlglot's own parser is too
lenient: it accepts `a, FROM t`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from typing import Final, Generic, NoReturn, TypeVar

from sqlrewrite.condition import GRAMMAR, Condition, read_condition
from sqlrewrite.errors import wrong_argument
from sqlrewrite.lexicon import PLAIN, SqlMode
from sqlrewrite.names import Param, TableName
from sqlrewrite.tokens import TokenStream
from sqlrewrite.values import number

WHOLE_NUMBER_MAX: Final = 2**63 - 1
"""The server's counts are BIGINT."""

WAIT_MAX_S: Final = 86_400
"""Few networks keep a silent connection for a day: a client that waits longer should repeat its
STREAM."""


WRITTEN_MAX: Final = 1_000
"""Characters of a condition that are kept for SHOW STREAMS, as long as the stream runs."""


class Star(Enum):
    """`*` among the columns: the table's directives decide which columns it means."""

    STAR = "*"


STAR: Final = Star.STAR


@dataclass(frozen=True, slots=True)
class StreamStatement:
    """A STREAM statement. An option that is not given is None."""

    table: TableName
    columns: tuple[str | Star, ...]
    """Names without quotes, as written. `*` can only be the first."""
    partitions: tuple[str, ...] = ()
    """Names without quotes; none means all."""
    condition: Condition | None = None
    """Which messages it selects; None for all. Its parameters are the first of the statement."""
    limit: int | Param | None = None
    """Rows after which it ends, at least 1."""
    prefetch: int | Param | None = None
    """Messages that may be delivered and not yet acknowledged, at least 1."""
    wait: Decimal | Param | None = None
    """Seconds to wait for the first message, from 0 to WAIT_MAX_S."""
    nowait: bool = False
    """Whether it ends as soon as nothing is due. Excludes `wait`."""
    locks: bool = False
    """FOR UPDATE: the client's transaction locks the messages, and nothing is claimed. Requires
    `limit`, and `wait` or `nowait`."""
    param_count: int = 0
    written: str | None = field(default=None, compare=False)
    """The condition as the client wrote it, for SHOW STREAMS."""

    @property
    def first_wait_s(self) -> Decimal | None:
        """How many seconds it waits for its first message: 0 with NOWAIT; None if it does not end. For a
        statement without parameters."""
        assert not isinstance(self.wait, Param)
        return Decimal(0) if self.nowait else self.wait

    def bind(self, values: Sequence[object]) -> StreamStatement:
        """The statement with its parameters replaced by values as drivers send them.

        An option takes a number, or a numeral as text, because some drivers send all parameters as
        text or as doubles. `Condition.bind` lists what a condition takes. Raises SqlError (1210)
        for any other value, or if the count of values is wrong.
        """
        if len(values) != self.param_count:
            raise wrong_argument(f"this STREAM has {self.param_count} parameters, and {len(values)} were given")
        return replace(
            self,
            condition=self.condition and self.condition.bind(values),
            limit=_LIMIT.bound(self.limit, values),
            prefetch=_PREFETCH.bound(self.prefetch, values),
            wait=_WAIT.bound(self.wait, values),
            param_count=0,
        )


def shortened(condition: str) -> str:
    """The part of a condition that SHOW STREAMS shows."""
    return condition if len(condition) <= WRITTEN_MAX else condition[: WRITTEN_MAX - 1] + "…"


def parse_stream(sql: bytes, codec: str = "utf-8", mode: SqlMode = PLAIN) -> StreamStatement:
    """Parse a statement that `classify` found to be STREAM.

    `codec` is Python's name for the client's character set. Raises SqlError (1064 with the byte
    offset).
    """
    return _StreamParser(TokenStream(sql, codec, mode, "STREAM")).statement()


# Values

T = TypeVar("T", int, Decimal)


def _whole_number(value: object) -> int | None:
    count = number(value)
    if count is None or not 1 <= count <= WHOLE_NUMBER_MAX or count % 1:
        return None
    return int(count)


def _seconds(value: object) -> Decimal | None:
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds <= WAIT_MAX_S else None


@dataclass(frozen=True, slots=True)
class _Option(Generic[T]):
    """An option that takes a value. `read` converts a number or numeral, and returns None for
    anything else."""

    name: str
    takes: str
    read: Callable[[object], T | None]

    def bound(self, value: T | Param | None, values: Sequence[object]) -> T | None:
        if not isinstance(value, Param):
            return value
        bound = self.read(values[value.index])
        if bound is None:
            given = repr(values[value.index])[:40]
            raise wrong_argument(f"{self.name} takes {self.takes}, and parameter {value.index + 1} is {given}")
        return bound


_A_COUNT = f"a whole number from 1 to {WHOLE_NUMBER_MAX}"
_LIMIT = _Option("LIMIT", _A_COUNT, _whole_number)
_PREFETCH = _Option("PREFETCH", _A_COUNT, _whole_number)
_WAIT = _Option("WAIT", f"seconds from 0 to {WAIT_MAX_S}, with a fraction if wanted", _seconds)


# What the grammar does not have, by the first word of the clause.

_ONE_TABLE = "a stream reads one table; join in a SELECT, by the ids that it delivers"
_ONE_BY_ONE = "messages are delivered one by one; aggregate in a SELECT"
_NO_ALIAS = "aliases are not supported; names stay as they are in the table"
_OWN_ORDER = "the order is the queue's: lower priority, then earlier time_next, then id"
_NO_SKIPPING = "a stream begins with the next message and skips none"
_NO_INDEX_HINTS = "the queue chooses its own index"
_ONLY_COLUMNS = "only columns of the table can be streamed, no expressions"
_ALONE = "the statement has to stand alone"
_NO_SHARED_LOCK = "a message has one holder: FOR UPDATE is the only lock"
_LOCKS_LAST = "FOR UPDATE is the last clause, without SKIP LOCKED: locked messages are skipped anyway"
_LOCKS_BOUNDED = "FOR UPDATE locks messages until the transaction ends: it requires LIMIT, and WAIT or NOWAIT"

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
    "LOCK": _NO_SHARED_LOCK,
}  # fmt: skip

_RESERVED: Final = frozenset({"FOR", "FROM", "LIMIT", "PARTITION", "WHERE"} | _REFUSED.keys() - {"OFFSET"})
"""Words that are no names unless quoted. The server reserves these and more."""


_OPTION_WORDS: Final = frozenset({"LIMIT", "PREFETCH", "WAIT", "NOWAIT"})
_OPTIONS_OR_END: Final = "LIMIT, PREFETCH, WAIT, NOWAIT, FOR UPDATE or the end was expected"
_OUT_OF_ORDER: Final = "the order is FROM t PARTITION (…) WHERE …, and then the options"


class _StreamParser:
    """Reads one statement from left to right."""

    def __init__(self, tokens: TokenStream) -> None:
        self._tokens = tokens

    def statement(self) -> StreamStatement:
        tokens = self._tokens
        if not tokens.take("STREAM"):
            tokens.fail("STREAM was expected")
        columns = self._columns()
        if not tokens.take("FROM"):
            self._refuse(f"a comma or FROM was expected; {_NO_ALIAS}")
        table = self._table()
        partitions = self._partitions() if tokens.take("PARTITION") else ()
        condition = written = None
        if tokens.take("WHERE"):
            begin = tokens.position
            condition = read_condition(tokens, table)
            written = shortened(tokens.since(begin))
        statement = self._options(StreamStatement(table, columns, partitions, condition, written=written))
        if tokens.take("FOR"):
            statement = self._locks(statement)
        if tokens.take(";") and tokens.text:
            tokens.fail(_ALONE)
        if tokens.word in {"WHERE", "PARTITION"}:
            tokens.fail(_OUT_OF_ORDER)
        if tokens.text:
            self._refuse(f"{_OPTIONS_OR_END}; {GRAMMAR if condition else _NO_ALIAS}")
        return replace(statement, param_count=tokens.param_count)

    def _columns(self) -> tuple[str | Star, ...]:
        tokens = self._tokens
        expected = f"a column or * was expected; {_ONLY_COLUMNS}"
        columns: list[str | Star] = [STAR if tokens.take("*") else self._name(expected)]
        while tokens.take(","):
            if tokens.text == "*":
                tokens.fail("* can only stand first among the columns")
            columns.append(self._name(expected))
        if tokens.text == ".":
            tokens.fail("columns are named without their table")
        if tokens.text and not tokens.at_word:
            tokens.fail(_ONLY_COLUMNS)
        return tuple(columns)

    def _table(self) -> TableName:
        expected = f"a table was expected; {_ONE_TABLE}"
        first = self._name(expected)
        return TableName(self._name(expected), first) if self._tokens.take(".") else TableName(first)

    def _partitions(self) -> tuple[str, ...]:
        tokens = self._tokens
        if not tokens.take("("):
            tokens.fail("names of partitions in parentheses were expected")
        expected = "the name of a partition was expected"
        names = [self._name(expected)]
        while tokens.take(","):
            names.append(self._name(expected))
        if not tokens.take(")"):
            tokens.fail("a comma or a closing parenthesis was expected")
        return tuple(names)

    def _options(self, statement: StreamStatement) -> StreamStatement:
        tokens = self._tokens
        seen: set[str] = set()
        while (word := tokens.word) in _OPTION_WORDS:
            if word in seen:
                tokens.fail(f"{word} is given twice")
            seen.add(word)
            if seen >= {"WAIT", "NOWAIT"}:
                tokens.fail("WAIT and NOWAIT exclude each other")
            tokens.step()
            statement = self._option(word, statement)
        return statement

    def _locks(self, statement: StreamStatement) -> StreamStatement:
        """The rest of FOR UPDATE."""
        tokens = self._tokens
        if not tokens.take("UPDATE"):
            tokens.fail(_NO_SHARED_LOCK)
        if tokens.word in _OPTION_WORDS | {"OF", "SKIP"}:
            tokens.fail(_LOCKS_LAST)
        if statement.limit is None or not (statement.nowait or statement.wait is not None):
            tokens.fail(_LOCKS_BOUNDED)
        return replace(statement, locks=True)

    def _option(self, word: str, statement: StreamStatement) -> StreamStatement:
        match word:
            case "LIMIT":
                statement = replace(statement, limit=self._value(_LIMIT))
                if self._tokens.text == ",":
                    self._tokens.fail(_NO_SKIPPING)
                return statement
            case "PREFETCH":
                return replace(statement, prefetch=self._value(_PREFETCH))
            case "WAIT":
                return replace(statement, wait=self._value(_WAIT))
            case _:
                return replace(statement, nowait=True)

    def _value(self, option: _Option[T]) -> T | Param:
        tokens = self._tokens
        param = tokens.param()
        if param is not None:
            return param
        value = option.read(tokens.numeral())
        if value is None:
            tokens.fail(f"{option.name} takes {option.takes}")
        tokens.step_numeral()
        return value

    def _name(self, expected: str) -> str:
        if self._tokens.at_string:
            self._tokens.fail("this is a string; names stand in backquotes")
        name = self._tokens.name(_RESERVED)
        if name is None:
            self._refuse(expected)
        return name

    def _refuse(self, expected: str) -> NoReturn:
        """Raise the error for the clause that stands here, if SELECT has such a clause; else
        `expected`."""
        self._tokens.fail(_REFUSED.get(self._tokens.word, expected))
