"""Row images of the binary log: reads the few values that a queue needs, and steps over the others.

mysql-replication could decode whole rows, but is not used for that. Unless the server logs full
metadata, which no server does by default, it reads every string as UTF-8 (also binary ids) and
every number as signed. It fails at types that it does not know, and would decode payloads for
nothing. Here a row costs a few µs, however large it is.

A row is a bitmap of its NULLs, then its values. The size of a value follows from its column's type
or stands before it. Each event has one bitmap of the columns that its rows contain.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from engine.model import Key

CHAR = 254
_YEAR, _BIT, _DECIMAL = 13, 16, 246

_FIXED: Mapping[int, int] = MappingProxyType(
    {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 7: 4, 8: 8, 9: 3, 10: 3, 11: 3, 12: 8, _YEAR: 1, 14: 3}
)
"""Bytes of TINYINT, SMALLINT, INT, FLOAT, DOUBLE, TIMESTAMP, BIGINT, MEDIUMINT, DATE, TIME,
DATETIME, YEAR, DATE."""
_WITH_FRACTION: Mapping[int, int] = MappingProxyType({17: 4, 18: 5, 19: 3})
"""Bytes of TIMESTAMP, DATETIME and TIME before their fraction of a second."""
_STRINGS = frozenset({15, 253, CHAR})
_BLOBS = frozenset({245, 252, 255})
_SETS = frozenset({247, 248})
_DIGITS_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})

_CODECS: Mapping[str, str] = MappingProxyType(
    {
        "ascii": "ascii",
        "latin1": "cp1252",
        "ucs2": "utf-16-be",
        "utf16": "utf-16-be",
        "utf16le": "utf-16-le",
        "utf32": "utf-32-be",
        "utf8": "utf-8",
        "utf8mb3": "utf-8",
        "utf8mb4": "utf-8",
    }
)
"""Character sets that Python decodes as the server does. Ids in others are not read."""


class Absent(enum.Enum):
    """Stands for a value that the binary log does not contain: binlog_row_image is not FULL."""

    ABSENT = enum.auto()


ABSENT: Final = Absent.ABSENT
Value = int | bytes | None | Absent

_NULL_AT, _ABSENT_AT = 0, 1
_FORMATS: Mapping[int, str] = MappingProxyType({1: "b", 2: "h", 4: "i", 8: "q"})

PLANS_MAX: Final = 1_000
"""Plans that are remembered for a table: a bound for tables whose rows have many sets of NULLs."""


@dataclass(frozen=True, slots=True)
class Field:
    """The form of a column's values in a row: `size` bytes, or, if `counted`, a length of `size`
    bytes before them."""

    code: int
    size: int
    counted: bool = False
    width: int = 0
    """The bytes of a CHAR or BINARY. The binary log leaves out its padding."""
    precision: int = 0
    decimals: int = 0


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column in information_schema, with what the binary log does not contain."""

    name: str
    data_type: str
    declared: str
    charset: str


def field_of(logged: Mapping[str, Any]) -> Field | None:
    """The field of a column in a table map. None for a type that is not known here."""
    code = logged["type"]
    if code in _FIXED:
        return Field(code, _FIXED[code])
    if code in _WITH_FRACTION:
        return Field(code, _WITH_FRACTION[code] + (logged["fsp"] + 1) // 2)
    if code in _STRINGS:
        return Field(code, 1 + (logged["max_length"] > 0xFF), counted=True, width=logged["max_length"])
    if code in _BLOBS:
        return Field(code, logged["length_size"], counted=True)
    if code in _SETS:
        return Field(code, logged["size"])
    if code == _BIT:
        return Field(code, logged["bytes"])
    if code == _DECIMAL:
        precision, decimals = logged["precision"], logged["decimals"]
        return Field(code, sum(_groups(precision, decimals)), precision=precision, decimals=decimals)
    return None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a row with certain columns and NULLs is read."""

    steps: tuple[tuple[Callable[[bytes, int], tuple[Any, ...]], int, int, bool], ...]
    """In order: unpacks the wanted ones of some values of fixed length, the bytes of these values,
    the bytes of the length of the value behind them (0: there is none), whether it is wanted."""
    arrange: Callable[[list[Any]], tuple[Value, ...]]
    """Puts values, after None and ABSENT, into the order that is returned."""


class RowReader:
    """Reads the values of some columns from rows of one table.

    Where a value is depends on the NULLs before it and on the values of variable length. Few sets
    of NULLs occur in a table, and `struct` reads all between two values of variable length at once.
    So a plan is made for each set of columns and NULLs, and most rows take three calls or four.
    """

    def __init__(self, fields: Sequence[Field], wanted: Sequence[int], numbers: Mapping[int, bool]) -> None:
        """`wanted`: positions of two columns or more, in the order in which `row` returns their
        values. `numbers`: those of integers, and whether they are signed."""
        self._fields, self._wanted, self._numbers = fields, wanted, numbers
        self._plans: dict[tuple[int, bytes], _Plan] = {}
        self._medium = {at: numbers[at] for at in wanted if at in numbers and fields[at].size not in _FORMATS}

    def row(self, data: bytes, at: int, present: int) -> tuple[tuple[Value, ...], int]:
        """The values of the row at `at`, and the position of the next row. Integers are numbers,
        other values are bytes.

        `present` has a bit for each column. Raises IndexError if the data ends within the row.
        """
        start = at + (present.bit_count() + 7) // 8
        nulls = data[at:start]
        plan = self._plans.get((present, nulls)) or self._add_plan(present, nulls)
        at = start
        found: list[Any] = [None, ABSENT]
        try:
            for unpack, size, counted, wanted in plan.steps:
                found += unpack(data, at)
                at += size
                if counted:
                    start = at + counted
                    at = start + int.from_bytes(data[at:start], "little")
                    if wanted:
                        found.append(data[start:at])
        except struct.error as error:
            raise IndexError(str(error)) from error
        if at > len(data):
            raise IndexError(f"a row ends at {at} of {len(data)} bytes")
        return plan.arrange(found), at

    def _add_plan(self, present: int, nulls: bytes) -> _Plan:
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        plan = self._plans[present, nulls] = self._plan(present, int.from_bytes(nulls, "little"))
        return plan

    def _plan(self, present: int, nulls: int) -> _Plan:
        steps = []
        places = dict.fromkeys(self._wanted, _ABSENT_AT)
        form, found = "<", _ABSENT_AT
        for at, column in enumerate(self._fields):
            here, present = present & 1, present >> 1
            if not here:
                continue
            null, nulls = nulls & 1, nulls >> 1
            if null:
                places.update({at: _NULL_AT} if at in places else {})
                continue
            if wanted := at in places:
                places[at] = found = found + 1
            if column.counted:
                steps.append(_step(form, column.size, wanted=wanted))
                form = "<"
            else:
                form += self._format(at, wanted=wanted)
        if form != "<":
            steps.append(_step(form, 0, wanted=False))
        chosen = itemgetter(*(places[at] for at in self._wanted))
        return _Plan(tuple(steps), self._with_medium(chosen) if self._medium else chosen)

    def _format(self, at: int, *, wanted: bool) -> str:
        size = self._fields[at].size
        if not wanted:
            return f"{size}x"
        if at not in self._numbers or size not in _FORMATS:
            return f"{size}s"
        return _FORMATS[size] if self._numbers[at] else _FORMATS[size].upper()

    def _with_medium(self, chosen: Callable[[list[Any]], tuple[Any, ...]]) -> Callable[[list[Any]], tuple[Value, ...]]:
        """MEDIUMINTs are decoded afterwards: `struct` has no numbers of three bytes."""

        def arrange(found: list[Any]) -> tuple[Value, ...]:
            return tuple(
                int.from_bytes(value, "little", signed=self._medium[at])
                if at in self._medium and isinstance(value, bytes)
                else value
                for at, value in zip(self._wanted, chosen(found), strict=True)
            )

        return arrange


def _step(form: str, counted: int, *, wanted: bool) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int, int, bool]:
    values = struct.Struct(form)
    return values.unpack_from, values.size, counted, wanted


def bits(bitmap: bytes) -> int:
    """A bitmap as a number whose lowest bit is the first."""
    return int.from_bytes(bitmap, "little")


def is_signed(column: ColumnType) -> bool | None:
    """Whether the integers of this column are signed; None: it has no integers."""
    if column.data_type not in _INTEGERS:
        return None
    return not {"unsigned", "zerofill"} & {*column.declared.split()}


def key_reader(field: Field, column: ColumnType) -> Callable[[bytes], Key] | None:
    """A function from logged ids of this column, which are no integers, to the keys that the engine
    reads by SQL (queries.FORMS).

    None for types whose text only the server can produce. The changes of a table with such an id
    are unknown.
    """
    kind = column.data_type
    if kind == "bit":
        return lambda raw: int.from_bytes(raw, "big")
    if kind == "year":
        return lambda raw: 1900 + raw[0] if raw[0] else 0
    if kind == "decimal" and field.code == _DECIMAL:
        return lambda raw: _decimal(raw, field.precision, field.decimals)
    if kind in {"binary", "varbinary"}:
        return (lambda raw: raw.ljust(field.width, b"\0")) if field.code == CHAR else bytes
    if kind == "uuid":
        return _uuid
    codec = _CODECS.get(column.charset)
    if codec is None or kind not in {"char", "varchar"}:
        return None
    if kind == "char":
        return lambda raw: raw.decode(codec).rstrip(" ")
    return lambda raw: raw.decode(codec)


def _groups(precision: int, decimals: int) -> Iterator[int]:
    """The sizes in bytes of the groups of up to nine digits of a DECIMAL."""
    whole = precision - decimals
    yield _DIGITS_BYTES[whole % 9]
    yield from [4] * (whole // 9 + decimals // 9)
    yield _DIGITS_BYTES[decimals % 9]


def _decimal(raw: bytes, precision: int, decimals: int) -> Decimal:
    """A DECIMAL: groups of digits as big-endian numbers.

    The first bit is the sign. Negative numbers are inverted.
    """
    negative = not raw[0] & 0x80
    turned = bytes(byte ^ 0xFF for byte in raw) if negative else raw
    turned = bytes([turned[0] ^ 0x80]) + turned[1:]
    whole, fraction = precision - decimals, decimals
    digits = [whole % 9, *[9] * (whole // 9 + fraction // 9), fraction % 9]
    text, at = "", 0
    for count, size in zip(digits, _groups(precision, decimals), strict=True):
        if count:
            text += f"{int.from_bytes(turned[at : at + size], 'big'):0{count}d}"
        at += size
    return Decimal((negative, tuple(map(int, text)), -decimals))  # Arithmetic would round to 28 digits.


def _uuid(raw: bytes) -> str:
    """MariaDB's UUID.

    Versions 1 to 5 are stored with their parts in reverse order, to sort by time.
    """
    raw = raw.ljust(16, b"\0")
    if raw[6] & 0x80 and 0 < raw[8] < 0x60:
        raw = raw[12:16] + raw[10:12] + raw[8:10] + raw[6:8] + raw[:6]
    return str(UUID(bytes=raw))
