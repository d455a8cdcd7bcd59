"""Which messages a stream selects: columns compared with constants, joined by AND, OR, XOR and NOT.

A condition is written in one session. The engine evaluates it in others, with another sql_mode and
character set. So it is kept as canonical SQL: names in backquotes, each operation in parentheses,
and constants in forms that mean the same in every session (sqlrewrite.literals). Conditions that
differ only in how they are written are equal values, so their subscribers share one filter group.
Two things depend on the client's session: times are in its time zone, which the engine sets, and
text beyond ASCII that is compared with a binary column is UTF-8. If the client's character set is
binary, strings are bytes.

The grammar is small because the server compares each message for every subscriber: a condition must
be cheap, and must have the same result each time. A generated column can do everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlrewrite import literals
from sqlrewrite.errors import wrong_argument
from sqlrewrite.names import Param, TableName, quote
from sqlrewrite.tokens import TokenStream

SQL_MAX: Final = 64 * 1024
"""Characters of a condition in canonical form: it is sent with each scan."""
CONSTANTS_MAX: Final = 1_000
"""A longer list belongs in a column of the table."""
NESTING_MAX: Final = 50
"""Nested parentheses and NOT: more than people write, and few enough for the stack."""

GRAMMAR: Final = (
    "a condition compares the table's own columns with constants (=, <=>, <>, <, <=, >, >=, IN, BETWEEN, LIKE, IS"
    " NULL, IS TRUE, IS FALSE), with AND, OR, XOR, NOT and parentheses; for anything else, make a generated column"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter stands. In a LIKE pattern, `escape` is the escape character, empty for
    none."""

    param: Param
    escape: str | None = None

    def literal(self, value: object) -> str | None:
        """The value as SQL; None for one that cannot stand here."""
        if self.escape is None or value is None:
            return literals.constant(value)
        return literals.pattern(value, self.escape) if isinstance(value, str | bytes) else None

    @property
    def template(self) -> str:
        """The place as SQL with one `?`."""
        return "?" if self.escape is None else f"?{literals.ESCAPE_CLAUSE}"


@dataclass(frozen=True, slots=True)
class Condition:
    """Which messages a stream selects, in canonical form."""

    columns: frozenset[str]
    """The columns that it names, as written."""
    parts: tuple[str | Place, ...]
    """Its SQL, and the places of parameters in the order of the client's text."""

    @property
    def param_count(self) -> int:
        """The count of its parameters, which are the first of its statement's."""
        return sum(isinstance(part, Place) for part in self.parts)

    def bind(self, values: Sequence[object]) -> Condition:
        """The condition with its parameters replaced by the statement's values: int, float,
        Decimal, str, bytes, date, datetime, timedelta or None. Raises SqlError (1210)."""
        parts = (part if isinstance(part, str) else _bound(part, values) for part in self.parts)
        bound = replace(self, parts=_joined(parts))
        if _size(bound.parts) > SQL_MAX:
            raise wrong_argument(f"the condition is too long with these values: {_too_long(bound.parts)}")
        return bound

    def sql(self) -> str:
        """The condition as SQL, in parentheses. It must have no parameters left."""
        assert not self.param_count, "bind it first"
        return "".join(part for part in self.parts if isinstance(part, str))

    def template(self) -> str:
        """The condition as SQL with a `?` for each parameter."""
        return "".join(part if isinstance(part, str) else part.template for part in self.parts)


def read_condition(tokens: TokenStream, table: TableName) -> Condition:
    """Read what follows WHERE, as far as it belongs to the condition. Raises SqlError (1064)."""
    return _ConditionParser(tokens, table).condition()


def _bound(place: Place, values: Sequence[object]) -> str:
    value = values[place.param.index]
    literal = place.literal(value)
    if literal is None:
        takes = (
            "a condition takes numbers, strings, bytes, dates and times"
            if place.escape is None
            else "LIKE takes a string"
        )
        raise wrong_argument(f"{takes}, and parameter {place.param.index + 1} is {repr(value)[:40]}")
    return literal


def _joined(parts: Iterable[str | Place]) -> tuple[str | Place, ...]:
    """The parts, with adjacent texts joined."""
    joined: list[str | Place] = []
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        if texts:
            joined.append("".join(texts))
            texts.clear()
        joined.append(part)
    if texts:
        joined.append("".join(texts))
    return tuple(joined)


def _size(parts: Iterable[str | Place]) -> int:
    return sum(len(part) if isinstance(part, str) else len(part.template) for part in parts)


def _too_long(parts: Iterable[str | Place]) -> str:
    return f"{_size(parts)} characters in canonical form, and {SQL_MAX} are possible"


# Reading

_Operator = Literal["AND", "OR", "XOR", ""]
_LEVELS: Final[tuple[tuple[_Operator, frozenset[str]], ...]] = (
    ("OR", frozenset({"OR"})),
    ("XOR", frozenset({"XOR"})),
    ("AND", frozenset({"AND", "&&"})),
)
"""From the loosest to the tightest, with how each can be written."""

_TURNED: Final = {"=": "=", "<=>": "<=>", "<>": "<>", "!=": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The comparisons, each with the one that its sides need when they change places."""
_SPELLED: Final = {"!=": "<>"}

_RESERVED: Final = frozenset(
    {"AND", "BETWEEN", "BINARY", "CASE", "COLLATE", "CONVERT", "DIV", "ELSE", "EXISTS", "FALSE", "FROM", "IN",
     "INTERVAL", "IS", "LIKE", "LIMIT", "MATCH", "MOD", "NOT", "NULL", "OR", "ORDER", "REGEXP", "RLIKE", "SELECT",
     "THEN", "TRUE", "WHEN", "WHERE", "XOR"}
)  # fmt: skip
"""Words that are no columns unless quoted. The server reserves these and more."""

_PIPES: Final = "what || means depends on sql_mode: write OR"
_TIGHT_NOT: Final = (
    "! binds more tightly than a comparison, and so does NOT under HIGH_NOT_PRECEDENCE:"
    " put what it negates into parentheses"
)
_CONSTANT: Final = f"a constant was expected; {GRAMMAR}"


@dataclass(frozen=True, slots=True)
class _Node:
    """Part of a condition: several operands of one operator, or one operand."""

    operator: _Operator
    operands: tuple[tuple[str | Place, ...], ...]

    @property
    def parts(self) -> tuple[str | Place, ...]:
        if not self.operator:
            return self.operands[0]
        parts: list[str | Place] = ["("]
        for operand in self.operands:
            parts += (*operand, f" {self.operator} ")
        return (*parts[:-1], ")")


def _leaf(*parts: str | Place) -> _Node:
    return _Node("", (("(", *parts, ")"),))


class _ConditionParser:
    """Reads one condition by recursive descent, as deep as the condition is nested."""

    def __init__(self, tokens: TokenStream, table: TableName) -> None:
        self._tokens = tokens
        self._table = table
        self._columns: set[str] = set()
        self._constants = 0
        self._depth = 0

    def condition(self) -> Condition:
        parts = _joined(self._chain(0).parts)
        if _size(parts) > SQL_MAX:
            self._tokens.fail(f"the condition is too long: {_too_long(parts)}")
        return Condition(frozenset(self._columns), parts)

    def _chain(self, level: int) -> _Node:
        """Read operands of one operator. Those of the same operator in parentheses are joined with
        them."""
        if level == len(_LEVELS):
            return self._negation()
        operator, spellings = _LEVELS[level]
        nodes = [self._chain(level + 1)]
        while self._tokens.take(*spellings):
            nodes.append(self._chain(level + 1))
        if self._tokens.text == "||":
            self._tokens.fail(_PIPES)
        if len(nodes) == 1:
            return nodes[0]
        operands: list[tuple[str | Place, ...]] = []
        for node in nodes:
            operands += node.operands if node.operator == operator else (node.parts,)
        return _Node(operator, tuple(operands))

    def _negation(self) -> _Node:
        word = self._tokens.take("NOT", "!")
        if not word:
            return self._predicate()
        tight = {"!", "NOT"} if self._tokens.mode.high_not_precedence else {"!"}
        if word in tight and self._tokens.word not in {"(", *tight}:
            self._tokens.fail(_TIGHT_NOT)
        self._deeper()
        node = self._negation()
        self._depth -= 1
        return _leaf("NOT ", *node.parts)

    def _predicate(self) -> _Node:
        tokens = self._tokens
        if tokens.text == "(":
            self._deeper()
            tokens.step()
            node = self._chain(0)
            self._depth -= 1
            if not tokens.take(")"):
                tokens.fail(f"AND, OR, XOR or a closing parenthesis was expected; {GRAMMAR}")
            return node
        constant = self._constant()
        if constant is not None:
            operator = tokens.take(*_TURNED)
            if not operator:
                tokens.fail(f"a comparison was expected; {GRAMMAR}")
            return _leaf(self._column(), f" {_TURNED[operator]} ", constant)
        column = self._column()
        return self._comparison(column)

    def _comparison(self, column: str) -> _Node:
        tokens = self._tokens
        if operator := tokens.take(*_TURNED):
            return _leaf(column, f" {_SPELLED.get(operator, operator)} ", self._expected_constant())
        if tokens.take("IS"):
            negated = "NOT " if tokens.take("NOT") else ""
            what = tokens.take("NULL", "TRUE", "FALSE")
            if not what:
                tokens.fail(f"NULL, TRUE or FALSE was expected; {GRAMMAR}")
            return _leaf(column, f" IS {negated}{what}")
        negated = "NOT " if tokens.take("NOT") else ""
        if tokens.take("IN"):
            return _leaf(column, f" {negated}IN (", *self._list(), ")")
        if tokens.take("LIKE"):
            return _leaf(column, f" {negated}LIKE ", self._pattern())
        if not tokens.take("BETWEEN"):
            tokens.fail(f"a comparison was expected; {GRAMMAR}")
        low = self._expected_constant()
        if not tokens.take("AND"):
            tokens.fail(f"AND and the upper end were expected; {GRAMMAR}")
        return _leaf(column, f" {negated}BETWEEN ", low, " AND ", self._expected_constant())

    def _list(self) -> list[str | Place]:
        if not self._tokens.take("("):
            self._tokens.fail(f"a list in parentheses was expected; {GRAMMAR}")
        parts: list[str | Place] = [self._expected_constant()]
        while self._tokens.take(","):
            parts += (", ", self._expected_constant())
        if not self._tokens.take(")"):
            self._tokens.fail(f"a comma or a closing parenthesis was expected; {GRAMMAR}")
        return parts

    def _pattern(self) -> str | Place:
        tokens = self._tokens
        self._count()
        param = tokens.param()
        pattern = self._string() if param is None else ""
        if pattern is None:
            tokens.fail("LIKE takes a string")
        escape = literals.LIKE_ESCAPE if tokens.mode.like_escapes else ""
        if tokens.take("ESCAPE"):
            given = tokens.position
            written = self._introduced() if tokens.text.startswith("_") else self._quoted()
            if not isinstance(written, str) or len(written) != 1 or written in "%_":
                tokens.fail_at(given, "ESCAPE takes one character in quotes, other than % and _")
            escape = written
        return literals.pattern(pattern, escape) if param is None else Place(param, escape)

    # Columns and constants.

    def _column(self) -> str:
        """Read a column, qualified by its own table or not. Returns its quoted name."""
        tokens = self._tokens
        begin = tokens.position
        path = [self._name()]
        while tokens.take("."):
            path.append(self._name())
        if tokens.text == "(":
            tokens.fail(f"functions are not possible; {GRAMMAR}")
        *qualifier, column = path
        table = self._table
        if qualifier not in ([], [table.name], [table.db, table.name]):
            tokens.fail_at(begin, f"only columns of {table.quoted()} can be compared, by the name it has here")
        self._columns.add(column)
        return quote(column)

    def _name(self) -> str:
        name = self._tokens.name(_RESERVED)
        if name is None:
            self._tokens.fail(f"a column was expected; {GRAMMAR}")
        return name

    def _expected_constant(self) -> str | Place:
        constant = self._constant()
        if constant is None:
            self._tokens.fail(_CONSTANT)
        return constant

    def _constant(self) -> str | Place | None:
        """A constant, if one stands here."""
        tokens = self._tokens
        param = tokens.param()
        constant = Place(param) if param is not None else self._literal()
        if constant is not None:
            self._count()
        return constant

    def _literal(self) -> str | None:
        tokens = self._tokens
        word, following = tokens.word, tokens.ahead(1)
        if (string := self._string()) is not None:
            return literals.constant(string)
        if word in {"DATE", "TIME", "TIMESTAMP"} and tokens.is_string(following):
            return self._temporal()
        if word.startswith("N'"):
            tokens.fail("write the string without N: it may hold any character")
        if word in {"NULL", "TRUE", "FALSE"}:
            return tokens.take(word)
        if literal := literals.bits_or_hex(tokens.text):
            tokens.step()
            return literal
        return self._number()

    def _number(self) -> str | None:
        tokens = self._tokens
        sign = tokens.take("-", "+")
        numeral = tokens.numeral()
        if not literals.NUMBER.fullmatch(numeral):
            if sign:
                tokens.fail(f"a number was expected; {GRAMMAR}")
            return None
        literal = literals.number(numeral)
        if literal is None:
            tokens.fail(f"a number has at most {literals.DIGITS_MAX} digits, or is a double")
        tokens.step_numeral()
        return f"-{literal}" if sign == "-" else literal

    def _string(self) -> str | bytes | None:
        """Read a string: one, several in a row (they are joined), or one in canonical form."""
        if self._tokens.text.startswith("_"):
            return self._introduced()
        text = self._quoted()
        return text.encode() if text is not None and self._tokens.mode.strings_are_bytes else text

    def _quoted(self) -> str | None:
        """Read a string without a character set of its own, as text."""
        tokens = self._tokens
        texts: list[str] = []
        while tokens.at_string:
            quoted = tokens.step()
            texts.append(literals.unescape(quoted, no_backslash_escapes=tokens.mode.no_backslash_escapes))
        return "".join(texts) if texts else None

    def _introduced(self) -> str | bytes | None:
        """Read `_utf8mb4 x'…'` or `_binary x'…'`, if one stands here."""
        tokens = self._tokens
        charset, following = tokens.text.lower(), tokens.ahead(1)
        if not tokens.is_string(following) and following[:2].lower() not in {"x'", "b'", "0x", "0b"}:
            return None  # A name.
        content = literals.hexadecimal(following)
        if content is None or charset not in {"_utf8mb4", "_binary"}:
            tokens.fail("a constant stands without a character set: write the string plainly, or bytes as x'…'")
        try:
            string = content if charset == "_binary" else content.decode()
        except UnicodeDecodeError:
            tokens.fail("these bytes are no text in UTF-8")
        tokens.step()
        tokens.step()
        return string

    def _temporal(self) -> str:
        tokens = self._tokens
        begin = tokens.position
        kind = tokens.step().upper()
        written = self._quoted()
        literal = literals.temporal(kind, written) if written is not None else None
        if literal is None:
            examples = "DATE '2026-12-31', TIME '23:59:59.5' or TIMESTAMP '2026-12-31 23:59:59.5'"
            tokens.fail_at(begin, f"{examples} was expected, with what there is in the calendar")
        return literal

    # Bounds.

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._tokens.fail(f"parentheses and NOT can stand {NESTING_MAX} deep")

    def _count(self) -> None:
        self._constants += 1
        if self._constants > CONSTANTS_MAX:
            self._tokens.fail(f"a condition has at most {CONSTANTS_MAX} constants")
