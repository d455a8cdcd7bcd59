"""Rules for the values of a column, as conditions that are checked before anything is written.

A value breaks a rule if the server would refuse it or silently store another one: MySQL rounds
`23:59:59.7` to the next day in a `DATETIME`, stores 16777216 for 16777217 in a `FLOAT`, and takes
the text `1` for the first member of an `ENUM`. The server alone checks foreign keys, triggers,
CHECKs with more than comparisons of numbers, the characters of character sets other than Unicode's,
latin1 and ascii, and values of spatial types, vectors and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column as Expression
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..common.ledger import WITHHELD_NS
from ..common.table import Check, Column, Table
from ..endpoint import quoted
from .mapping import Mapped

BY_CHARACTERS: Final = frozenset({"char", "varchar"})

FLOAT_MAX: Final = 3.4028234663852886e38

AS_GOOD_AS_NOW_NS: Final = 10**8
"""A `time_next` up to here means "at once". Above it, up to 1973, it is a time in another unit."""

UNITS: Final = (("seconds", 10**11, 10**9), ("milliseconds", 10**14, 10**6), ("microseconds", 10**17, 10**3))
"""Units of a present time: a number below the first value has this unit and must be multiplied by
the second."""

JSON_OCTETS_MAX: Final = 8 * 1024 * 1024
"""The server alone checks longer texts: Spark's parser takes 16 MiB."""

_UTF8_OF_3_BYTES: Final = frozenset({"utf8mb3", "utf8", "ucs2"})
_CODECS: Final = {"latin1": "cp1252", "ascii": "ascii"}
"""Character sets of one byte for each character, with Python's names."""

_CHECK_WORDS: Final = frozenset({"and", "or", "not", "between", "in", "is", "null", "true", "false"})
_CHECK_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>`(?:[^`]|``)+`)|(?P<number>-?\d+(?:\.\d+)?)|(?P<word>[a-z_]+)|(?P<sign><=|>=|<>|!=|[<>=(),]))",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Rule:
    """A condition that no row may fulfil. `says`: what is wrong with such rows, as a text after
    their number."""

    name: str
    broken: Expression
    says: str
    shown: bool = True
    """Whether examples show the value."""


def rules(mapped: Mapped, table: Table) -> list[Rule]:
    """The rules of the columns and of the table's CHECKs."""
    kinds = {field.name: field.dataType for field in mapped.frame.schema}
    found = [rule for column in mapped.columns for rule in _of_column(column, kinds[column.name])]
    return found + [rule for check in table.checks if (rule := _of_check(check, mapped)) is not None]


def _of_column(column: Column, kind: t.DataType) -> Iterator[Rule]:
    value = f.col(quoted(column.name))
    if not column.nullable:
        yield Rule(column.name, value.isNull(), "have NULL, and the column is NOT NULL", shown=False)
    elif column.name.casefold() == "time_next":
        yield Rule(column.name, value.isNull(), "have NULL, and without a time no message is delivered", shown=False)
    if column.name.casefold() == "time_next":
        yield from _due(column, value)
    elif isinstance(kind, t.NumericType):
        yield from _number(column, value, kind)
    elif isinstance(kind, t.StringType):
        yield from _text(column, value)
    elif isinstance(kind, t.BinaryType) and column.octets is not None:
        says = f"are longer than the {column.octets:,} bytes that {column.column_type.upper()} takes"
        yield Rule(column.name, f.octet_length(value) > column.octets, says, shown=False)


# --- numbers ---


def _number(column: Column, value: Expression, kind: t.DataType) -> Iterator[Rule]:
    name, takes = column.name, f"{column.column_type.upper()} takes"
    if column.data_type == "decimal":
        yield from _decimal(column, value, kind)
    elif (bounds := _bounds(column)) is not None:
        beyond = [_literal(bound) for bound in bounds]
        if isinstance(kind, t.IntegralType) and bounds[1] >= 2**63:
            broken = value < beyond[0]  # a BIGINT has no greater values
        else:
            broken = (value < beyond[0]) | (value > beyond[1])
        between = f"{bounds[0]:,} to {bounds[1]:,}"
        if column.data_type == "year":
            broken, between = broken & (value != 0), "1901 to 2155, and 0"
        yield Rule(name, broken, f"are out of range: {takes} {between}")
    elif column.data_type in {"float", "double"}:
        yield from _floating(column, value, kind)


def _decimal(column: Column, value: Expression, kind: t.DataType) -> Iterator[Rule]:
    digits = (column.precision or 10) - (column.scale or 0)
    limit, takes = 10**digits, f"{column.column_type.upper()} takes"
    if digits < (kind.precision - kind.scale if isinstance(kind, t.DecimalType) else 19):
        broken = f.abs(value.cast("decimal(20,0)") if isinstance(kind, t.IntegralType) else value) >= _literal(limit)
        yield Rule(column.name, broken, f"are out of range: {takes} {digits} digits before the point")
    if column.unsigned:
        yield Rule(column.name, value < 0, f"are negative: {takes} none")


def _floating(column: Column, value: Expression, kind: t.DataType) -> Iterator[Rule]:
    name, takes = column.name, f"{column.column_type.upper()} takes"
    is_floating = isinstance(kind, t.FloatType | t.DoubleType)
    finite = ~f.isnan(value) & (f.abs(value) != f.lit(float("inf"))) if is_floating else value.isNotNull()
    if is_floating:
        yield Rule(name, ~finite, "are NaN or infinite")
    if column.unsigned:
        yield Rule(name, finite & (value < 0), f"are negative: {takes} none")
    if column.data_type == "float":
        large = f.abs(value.cast("double")) > f.lit(FLOAT_MAX)
        yield Rule(name, finite & large, f"are out of range: {takes} up to 3.4e38")
        if not isinstance(kind, t.FloatType):
            broken = finite & ~large & _loses(value, kind, "float")
            yield Rule(name, broken, f"{CHANGED}: cast to FLOAT if that is meant")
    elif not is_floating:
        yield Rule(name, _loses(value, kind, "double"), f"{CHANGED}: cast to DOUBLE if that is meant")


CHANGED: Final = "would be changed without a word, since it holds fewer digits"


def _loses(value: Expression, kind: t.DataType, to: str) -> Expression:
    """Whether a number changes when it is converted to a type and back."""
    if isinstance(kind, t.DoubleType):
        return value.cast(to).cast("string") != value.cast("string")
    exact = kind.simpleString() if isinstance(kind, t.DecimalType) else "decimal(20,0)"
    return ~value.cast(to).try_cast(exact).eqNullSafe(value.cast(exact))


def _bounds(column: Column) -> tuple[int, int] | None:
    if column.integer_range is not None:
        return column.integer_range
    if column.data_type == "year":
        return 1901, 2155
    if column.data_type == "bit" and (column.precision or 1) < 64:
        return 0, 2 ** (column.precision or 1) - 1
    return None


def _literal(number: int) -> Expression:
    """A literal that is compared with a BIGINT without a cast, if it fits one."""
    return f.lit(number) if -(2**63) <= number < 2**63 else f.expr(f"CAST('{number}' AS DECIMAL(38,0))")


# --- when it is due ---


def _due(column: Column, value: Expression) -> Iterator[Rule]:
    name = column.name
    yield Rule(name, value < 0, "are negative: it counts nanoseconds since 1970")
    least = AS_GOOD_AS_NOW_NS
    for unit, below, factor in UNITS:
        broken = (value > _literal(least)) & (value < _literal(below))
        yield Rule(name, broken, f"look like {unit} since 1970: multiply them by {factor:,}, it counts nanoseconds")
        least = below - 1
    yield Rule(name, value >= _literal(WITHHELD_NS), "are in the year 2200 or later, if they are nanoseconds")


# --- texts ---


def _text(column: Column, value: Expression) -> Iterator[Rule]:
    kind, name, takes = column.data_type, column.name, f"{column.column_type.upper()} takes"
    yield Rule(name, ~f.is_valid_utf8(value), "are no UTF-8", shown=False)
    if kind in {"enum", "set"}:
        yield from _members(column, value)
    elif kind in {"date", "datetime", "timestamp"}:
        yield from _time_of_day(column, value)
        if kind == "timestamp":
            broken = (value < "1970-01-01 00:00:01") | (value >= "2038-01-19 03:14:08")
            yield Rule(name, broken, f"are out of range: {takes} 1970-01-01 00:00:01 to 2038-01-19 03:14:07 UTC")
        else:
            yield Rule(name, value.rlike("^[-+]"), f"are out of range: {takes} the years 1 to 9999")
    elif kind == "time":
        yield from _time(column, value)
    elif kind == "json" or column.is_json:
        says = "are no JSON, or have a key twice, of which the server keeps one"
        yield Rule(name, (f.octet_length(value) <= JSON_OCTETS_MAX) & ~_is_json(value), says)
    else:
        yield from _letters(column, value)


def _letters(column: Column, value: Expression) -> Iterator[Rule]:
    room = column.characters if column.data_type in BY_CHARACTERS else column.octets
    if room is not None and column.charset is not None:
        by_characters = column.data_type in BY_CHARACTERS or column.charset in _CODECS
        # Characters are counted only in values with more bytes than that, because counting reads
        # the whole value.
        counted = f.char_length(value) > room if by_characters else f.lit(True)
        unit = "characters" if by_characters else "bytes"
        says = f"are longer than the {room:,} {unit} that {column.column_type.upper()} takes"
        yield Rule(column.name, (f.octet_length(value) > room) & counted, says)
    if (outside := _outside(column.charset)) is not None:
        says = f"have characters that {column.charset} cannot hold"
        yield Rule(column.name, (f.octet_length(value) > f.char_length(value)) & value.rlike(outside), says)


def _outside(charset: str | None) -> str | None:
    """A pattern for a character that a set lacks; None for a set with all characters, and for an
    unknown one."""
    if charset in _UTF8_OF_3_BYTES:
        return "[^\\x{0}-\\x{FFFF}]"
    if charset not in _CODECS:
        return None
    known = {ord(bytes([code]).decode(_CODECS[charset], "ignore") or "\0") for code in range(256)}
    known |= {0x81, 0x8D, 0x8F, 0x90, 0x9D} if charset == "latin1" else set()
    return "[^" + "".join(rf"\x{{{code:X}}}" for code in sorted(known)) + "]"


def _members(column: Column, value: Expression) -> Iterator[Rule]:
    members = f.array(*map(f.lit, column.members)).cast("array<string>")
    if column.data_type == "enum":
        broken = ~f.array_contains(members, value)
    else:
        broken = (value != "") & (f.size(f.array_except(f.split(value, ","), members)) > 0)
    says = f"are none of the members of {column.data_type.upper()}, by the letter: {_shortened(column.members)}"
    yield Rule(column.name, broken, says)


def _shortened(members: tuple[str, ...]) -> str:
    return ", ".join(map(repr, members[:8])) + (", …" if len(members) > 8 else "")


def _time_of_day(column: Column, value: Expression) -> Iterator[Rule]:
    digits = column.time_digits or 0
    if column.data_type == "date" or digits >= 6:
        return
    says = f"have more than {digits} digits of a second, and would be rounded: use date_trunc(), or a column with (6)"
    yield Rule(column.name, value.rlike(rf"\.\d{{{digits + 1},}}"), says)


def _time(column: Column, value: Expression) -> Iterator[Rule]:
    digits = column.time_digits or 0
    fraction = rf"(\.\d{{1,{digits}}})?" if digits else ""
    hours = r"(\d{1,2}|[0-7]\d\d|8[0-2]\d|83[0-8])"
    broken = ~value.rlike(rf"^-?{hours}:[0-5]?\d(:[0-5]?\d{fraction})?$")
    says = f"are no times from -838:59:59 to 838:59:59 as [-]HH:MM:SS with at most {digits} digits of a second"
    yield Rule(column.name, broken, says)


def _is_json(value: Expression) -> Expression:
    """In brackets, because Spark's parser ignores what follows the first value."""
    inside = f.try_parse_json(f.concat(f.lit("["), value, f.lit("]")))
    return f.coalesce(f.size(inside.try_cast("array<variant>")) == 1, f.lit(False))


# --- the table's own ---


def _of_check(check: Check, mapped: Mapped) -> Rule | None:
    """The rule of a CHECK that only compares numbers of columns in the data; None for any other.

    Only such a CHECK has the same meaning in Spark as on the server.
    """
    kinds = {field.name.casefold(): field.dataType for field in mapped.frame.schema}
    at, clause = 0, check.clause.strip()
    while at < len(clause):
        token = _CHECK_TOKEN.match(clause, at)
        if token is None:
            return None
        at = token.end()
        if (name := token["name"]) is not None:
            if not isinstance(kinds.get(name[1:-1].replace("``", "`").casefold()), t.NumericType):
                return None
        elif (word := token["word"]) is not None and word.lower() not in _CHECK_WORDS:
            return None
    broken = ~f.expr(clause)
    try:
        mapped.frame.select(broken)
    except AnalysisException:  # a number as a condition, and the like
        return None
    return Rule(check.name, broken, f"do not meet the CHECK {clause}", shown=False)


def shown(value: Any) -> str:
    """A value in an error's text."""
    text = bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
