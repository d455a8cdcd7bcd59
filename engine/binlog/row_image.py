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
Raw = bytes | None | Absent


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


class RowReader:
    """Reads the values of some columns from rows of one table."""

    def __init__(self, fields: Sequence[Field], wanted: Sequence[int]) -> None:
        """`wanted`: positions of columns, in the order in which `row` returns their values."""
        self._steps = tuple((field.size, field.counted, at in wanted) for at, field in enumerate(fields))
        ascending = sorted(wanted)
        self._order = tuple(ascending.index(at) for at in wanted)

    def row(self, data: bytes, at: int, present: int) -> tuple[list[Raw], int]:
        """The values of the row at `at`, and the position of the next row.

        `present` has a bit for each column. Raises IndexError if the data ends within the row.
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
        return [found[place] for place in self._order], at


def bits(bitmap: bytes) -> int:
    """A bitmap as a number whose lowest bit is the first."""
    return int.from_bytes(bitmap, "little")


def integer_of(raw: bytes, *, signed: bool) -> int:
    """The value of an integer column."""
    return int.from_bytes(raw, "little", signed=signed)


def key_reader(field: Field, column: ColumnType) -> Callable[[bytes], Key] | None:
    """A function from logged ids of this column to the keys that the engine reads by SQL
    (queries.FORMS).

    None for types whose text only the server can produce. The changes of a table with such an id
    are unknown.
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
