"""Rows as the binary log holds them: the few values that a queue needs are cut out, the rest is stepped over.

mysql-replication could turn whole rows into Python values. It is not used for that: unless the server logs full
metadata, which no server does by default, it takes every string for UTF-8, binary ids too, and every number for signed;
it stops at types that it does not know; and it would decode payloads for nothing. Here a row costs a few µs, however
large it is.

A row is a bitmap of its NULLs and then the values one behind the other, each of a size that its column's type tells or
of a length that stands before it. Which columns are in it at all is told once an event.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from engine.model import Key

CHAR = 254
_YEAR, _BIT, _DECIMAL = 13, 16, 246

_FIXED: Mapping[int, int] = MappingProxyType(
    {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 7: 4, 8: 8, 9: 3, 10: 3, 11: 3, 12: 8, _YEAR: 1, 14: 3}
)
"""Bytes of TINYINT, SMALLINT, INT, FLOAT, DOUBLE, TIMESTAMP, BIGINT, MEDIUMINT, DATE, TIME, DATETIME, YEAR, DATE."""
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
"""Character sets that Python reads as the server does; ids in others are not read."""


class Absent(enum.Enum):
    """What stands for a value that is not in the log: binlog_row_image is not FULL."""

    ABSENT = enum.auto()


ABSENT: Final = Absent.ABSENT
Raw = bytes | None | Absent


@dataclass(frozen=True, slots=True)
class Field:
    """How a column's values stand in a row: in `size` bytes, or, `counted`, behind a length of `size` bytes."""

    code: int
    size: int
    counted: bool = False
    width: int = 0
    """Of a CHAR or BINARY: its bytes, of which the log leaves out the padding."""
    precision: int = 0
    decimals: int = 0


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column as information_schema has it: what the log does not tell."""

    name: str
    data_type: str
    declared: str
    charset: str


def field_of(told: Mapping[str, Any]) -> Field | None:
    """A field from what the log's table map tells of a column, or None for a type that is not known here."""
    code = told["type"]
    if code in _FIXED:
        return Field(code, _FIXED[code])
    if code in _WITH_FRACTION:
        return Field(code, _WITH_FRACTION[code] + (told["fsp"] + 1) // 2)
    if code in _STRINGS:
        return Field(code, 1 + (told["max_length"] > 0xFF), counted=True, width=told["max_length"])
    if code in _BLOBS:
        return Field(code, told["length_size"], counted=True)
    if code in _SETS:
        return Field(code, told["size"])
    if code == _BIT:
        return Field(code, told["bytes"])
    if code == _DECIMAL:
        precision, decimals = told["precision"], told["decimals"]
        return Field(code, sum(_groups(precision, decimals)), precision=precision, decimals=decimals)
    return None


class RowReader:
    """Takes the values of some columns out of rows of one table."""

    def __init__(self, fields: Sequence[Field], wanted: Sequence[int]) -> None:
        """`wanted`: positions of columns; their values come in this order."""
        self._steps = tuple((field.size, field.counted, at in wanted) for at, field in enumerate(fields))
        ascending = sorted(wanted)
        self._order = tuple(ascending.index(at) for at in wanted)

    def row(self, data: bytes, at: int, present: int) -> tuple[list[Raw], int]:
        """The values of the row at `at`, and where the next one begins. A bit of `present` for each column.

        Raises IndexError when the data ends before the row does.
        """
        bitmap_end = at + (present.bit_count() + 7) // 8
        nulls = int.from_bytes(data[at:bitmap_end], "little")
        at = bitmap_end
        found: list[Raw] = []
        for size, counted, wanted in self._steps:
            here, present = present & 1, present >> 1
            if not here:
                if wanted:
                    found.append(ABSENT)
                continue
            null, nulls = nulls & 1, nulls >> 1
            if null:
                if wanted:
                    found.append(None)
                continue
            start = at
            if counted:
                start += size
                at = start + int.from_bytes(data[at:start], "little")
            else:
                at += size
            if wanted:
                found.append(data[start:at])
        if at > len(data):
            raise IndexError(f"a row ends at {at} of {len(data)} bytes")
        return [found[each] for each in self._order], at


def bits(bitmap: bytes) -> int:
    """A bitmap as a number whose lowest bit is the first."""
    return int.from_bytes(bitmap, "little")


def integer_of(raw: bytes, *, signed: bool) -> int:
    """The value of an integer column."""
    return int.from_bytes(raw, "little", signed=signed)


def key_reader(field: Field, column: ColumnType) -> Callable[[bytes], Key] | None:
    """How ids of this column become the very keys that the engine reads by SQL (engine.store.queries.FORMS).

    None for types whose text only the server can make: a table with such an id is woken, and no key is told.
    """
    kind = column.data_type
    if kind in _INTEGERS:
        signed = "unsigned" not in column.declared and "zerofill" not in column.declared
        return lambda raw: int.from_bytes(raw, "little", signed=signed)
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
    """The bytes of each group of up to nine digits of a DECIMAL."""
    whole = precision - decimals
    yield _DIGITS_BYTES[whole % 9]
    yield from [4] * (whole // 9 + decimals // 9)
    yield _DIGITS_BYTES[decimals % 9]


def _decimal(raw: bytes, precision: int, decimals: int) -> Decimal:
    """Groups of digits as big-endian numbers; the first bit is the sign, and a negative number has all bits turned."""
    negative = not raw[0] & 0x80
    turned = bytes(each ^ 0xFF for each in raw) if negative else raw
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
    """MariaDB's UUID. Those of versions 1 to 5 are kept with their parts in reverse order, so that time sorts them."""
    raw = raw.ljust(16, b"\0")
    if raw[6] & 0x80 and 0 < raw[8] < 0x60:
        raw = raw[12:16] + raw[10:12] + raw[8:10] + raw[6:8] + raw[:6]
    return str(UUID(bytes=raw))
