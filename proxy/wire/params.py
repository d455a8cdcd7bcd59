"""Binary values: parameters of COM_STMT_EXECUTE, and the attributes that may precede a query.

The proxy reads parameters only of statements that are its own, such as a prepared `STREAM … LIMIT
?`. Numbers become Python's; strings and decimals stay bytes in the client's charset; dates and
times stay encoded until `python_value` decodes them.

With CLIENT_QUERY_ATTRIBUTES a query's text is preceded by named values in the same encoding, which
must be stepped over to see the text at all.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from engine.packets import WireError
from proxy.wire.fields import Reader
from proxy.wire.mimic_adapter import ColumnType, ComStmtExecuteFlags

UNSIGNED: Final = 0x80
PARAMS_MAX: Final = 0xFFFF
"""A statement cannot have more parameters: the answer to PREPARE counts them in 16 bits."""

_EXECUTE_HEAD: Final = 10
"""Command byte, statement id, flags, iteration count."""
_COUNT_AVAILABLE: Final = int(ComStmtExecuteFlags.PARAMETER_COUNT_AVAILABLE)
CURSOR_FLAGS_AT: Final = 5
"""Of a COM_STMT_EXECUTE's payload, the place of its flags."""
_CURSOR: Final = int(ComStmtExecuteFlags.CURSOR_TYPE_READ_ONLY)
"""The servers know no other kind of cursor."""
_NO_ATTRIBUTES: Final = b"\x00\x01"


class LongData(enum.Enum):
    """The value of a parameter that came before, by COM_STMT_SEND_LONG_DATA."""

    SENT_BEFORE = enum.auto()


class Temporal(NamedTuple):
    """A DATE, DATETIME, TIMESTAMP or TIME as the protocol encodes it, without its length byte."""

    raw: bytes


Value = int | float | bytes | Temporal | LongData | None


class ParamType(NamedTuple):
    """A parameter's `ColumnType`, and whether an integer is unsigned."""

    type: int
    unsigned: bool


class Execute(NamedTuple):
    """A decoded COM_STMT_EXECUTE. `types` are to be given again to the next one that sends none."""

    statement_id: int
    cursor_type: int
    values: tuple[Value, ...]
    types: tuple[ParamType, ...]


def execute_id(payload: bytes) -> int:
    """The statement id of a COM_STMT_EXECUTE, FETCH, CLOSE, RESET or SEND_LONG_DATA (head)."""
    return Reader(payload, 1).uint(4)


def asks_for_cursor(execution: bytes, at: int = 0) -> bool:
    """Whether a COM_STMT_EXECUTE, whose payload begins at `at`, asks for a cursor."""
    flags_at = at + CURSOR_FLAGS_AT
    return len(execution) > flags_at and bool(execution[flags_at] & _CURSOR)


def parse_execute(
    payload: bytes,
    param_count: int,
    *,
    types: Sequence[ParamType] = (),
    long_data: Collection[int] = (),
    attributes: bool = False,
) -> Execute:
    """Decode a whole COM_STMT_EXECUTE, command byte included.

    `types` are those of the statement's last execution, `long_data` the indexes of parameters sent
    by COM_STMT_SEND_LONG_DATA, `attributes` whether CLIENT_QUERY_ATTRIBUTES was agreed. Query
    attributes are checked and left out. Raises `WireError`.
    """
    reader = Reader(payload, 1)
    statement_id, flags, _iterations = reader.uint(4), reader.uint(1), reader.uint(4)
    count = param_count
    if attributes and (param_count or flags & _COUNT_AVAILABLE):
        count = _checked_count(reader.lenenc())
    if count < param_count:
        raise WireError(f"{count} parameters were sent for a statement with {param_count}")
    nulls, bound = _read_bindings(reader, count, named=attributes) if count else (b"", ())
    bound = bound or tuple(types)
    if len(bound) < count:
        raise WireError("parameters came without types, and none were bound before")
    values = tuple(_read_value(reader, bound[i], nulls, i, long_data=i in long_data) for i in range(count))
    cursor_type = flags & ~_COUNT_AVAILABLE
    return Execute(statement_id, cursor_type, values[:param_count], bound)


def python_value(value: Value, kind: ParamType, codec: str | None) -> object:
    """What a value means: bytes of a string type become text by the client's character set (None: it is
    binary, and they stay bytes), decimals and temporal values Python's own. What Python does not have,
    such as a zero date, stays as it is, and so does what is no text in that character set: some drivers
    send bytes as strings.
    """
    match value:
        case Temporal():
            return _moment(value, kind)
        case bytes() if kind.type not in _BINARY:
            try:
                if kind.type in _DECIMALS:
                    return Decimal(value.decode("ascii"))
                return value if codec is None else value.decode(codec)
            except (UnicodeDecodeError, InvalidOperation):
                return value
        case _:
            return value


def rearranged(
    payload: bytes,
    order: Sequence[int],
    *,
    types: Sequence[ParamType],
    long_data: Collection[int] = (),
    attributes: bool = False,
) -> bytes:
    """A COM_STMT_EXECUTE payload with its parameters in this order, all else as it was, that needs no other before it.

    `types` are those of this execution, as `parse_execute` returned them: they are sent along, because the server
    may not have seen the execution that brought them.
    """
    reader = Reader(payload, _EXECUTE_HEAD)
    count = reader.lenenc() if attributes else len(order)
    nulls_at = reader.at
    bitmap = reader.take((count + 7) // 8)
    kinds: list[bytes] = []
    for _ in range(count if reader.uint(1) else 0):
        begin = reader.at
        _read_type(reader, named=attributes)
        kinds.append(payload[begin : reader.at])
    kinds = kinds or [bytes((kind.type, UNSIGNED * kind.unsigned)) + b"\0" * attributes for kind in types[:count]]
    values: list[bytes] = []
    for i in range(count):
        begin = reader.at
        _read_value(reader, types[i], bitmap, i, long_data=i in long_data)
        values.append(payload[begin : reader.at])
    order = (*order, *range(len(order), count))  # Behind them, query attributes.
    nulls = int.from_bytes(bitmap, "little")
    moved = sum((nulls >> old & 1) << new for new, old in enumerate(order))
    parts = (payload[:nulls_at], moved.to_bytes(len(bitmap), "little"), b"\x01")
    return b"".join((*parts, *(kinds[i] for i in order), *(values[i] for i in order)))


def text_at(payload: bytes, *, attributes: bool) -> int:
    """Where the text begins in a COM_QUERY payload, command byte included.

    `payload[:text_at] + other_text` is therefore the same query, attributes and all, with another
    text.
    """
    if not attributes:
        return 1
    if payload[1:3] == _NO_ATTRIBUTES:
        return 3
    reader = Reader(payload, 1)
    count = _checked_count(reader.lenenc())
    reader.lenenc()
    if count:
        nulls, bound = _read_bindings(reader, count, named=True)
        if not bound:
            raise WireError("query attributes came without types")
        for i in range(count):
            _read_value(reader, bound[i], nulls, i)
    return reader.at


def query_attribute(payload: bytes, name: bytes) -> bytes | None:
    """The value of the query attribute of this name in a COM_QUERY payload, if it is a string; else None.
    Raises `WireError`."""
    if payload[1:3] == _NO_ATTRIBUTES:
        return None
    reader = Reader(payload, 1)
    count = _checked_count(reader.lenenc())
    reader.lenenc()
    nulls = reader.take((count + 7) // 8) if count else b""
    if not count or not reader.uint(1):
        return None
    bound: list[tuple[ParamType, bytes]] = []
    for _ in range(count):
        kind, flags = reader.uint(1), reader.uint(1)
        bound.append((ParamType(kind, bool(flags & UNSIGNED)), reader.lenenc_bytes()))
    found: bytes | None = None
    for index, (param, own_name) in enumerate(bound):
        value = _read_value(reader, param, nulls, index)
        if own_name == name and isinstance(value, bytes):
            found = value
    return found


def query_text(payload: bytes, *, attributes: bool) -> bytes:
    """The statement of a COM_QUERY payload (or of as much of it as is there)."""
    return payload[text_at(payload, attributes=attributes) :]


def make_query(text: bytes, *, attributes: bool) -> bytes:
    """A COM_QUERY payload without query attributes."""
    return b"\x03" + (_NO_ATTRIBUTES if attributes else b"") + text


def read_binary(reader: Reader, kind: ParamType) -> Value:
    """The value of type `kind` that stands next: a parameter's or one in a binary row."""
    read = _READERS.get(kind.type)
    if read is None:
        raise WireError(f"type {kind.type} cannot be a parameter's")
    return read(reader, kind)


def _checked_count(count: int) -> int:
    if count > PARAMS_MAX:
        raise WireError(f"{count} parameters were announced, {PARAMS_MAX} are possible")
    return count


def _read_bindings(reader: Reader, count: int, *, named: bool) -> tuple[bytes, tuple[ParamType, ...]]:
    """The bitmap of NULLs and the types, which are empty when those of the last execution go on."""
    nulls = reader.take((count + 7) // 8)
    if not reader.uint(1):
        return nulls, ()
    return nulls, tuple(_read_type(reader, named=named) for _ in range(count))


def _read_type(reader: Reader, *, named: bool) -> ParamType:
    kind, flags = reader.uint(1), reader.uint(1)
    if named:
        reader.lenenc_bytes()
    return ParamType(kind, bool(flags & UNSIGNED))


def _read_value(reader: Reader, bound: ParamType, nulls: bytes, index: int, *, long_data: bool = False) -> Value:
    if long_data:
        return LongData.SENT_BEFORE
    if nulls[index >> 3] >> (index & 7) & 1:
        return None
    return read_binary(reader, bound)


def _integer(width: int) -> Callable[[Reader, ParamType], Value]:
    def read(reader: Reader, kind: ParamType) -> int:
        return int.from_bytes(reader.take(width), "little", signed=not kind.unsigned)

    return read


def _floating(layout: str) -> Callable[[Reader, ParamType], Value]:
    number = struct.Struct(layout)

    def read(reader: Reader, _kind: ParamType) -> float:
        value: float = number.unpack(reader.take(number.size))[0]
        return value

    return read


def _string(reader: Reader, _kind: ParamType) -> bytes:
    return reader.lenenc_bytes()


def _temporal(reader: Reader, _kind: ParamType) -> Temporal:
    return Temporal(reader.take(reader.uint(1)))


def _null(_reader: Reader, _kind: ParamType) -> None:
    return None


_READERS: Final[dict[int, Callable[[Reader, ParamType], Value]]] = {
    int(ColumnType.NULL): _null,
    int(ColumnType.TINY): _integer(1),
    int(ColumnType.BOOL): _integer(1),
    **dict.fromkeys(map(int, (ColumnType.SHORT, ColumnType.YEAR)), _integer(2)),
    **dict.fromkeys(map(int, (ColumnType.LONG, ColumnType.INT24)), _integer(4)),
    int(ColumnType.LONGLONG): _integer(8),
    int(ColumnType.FLOAT): _floating("<f"),
    int(ColumnType.DOUBLE): _floating("<d"),
    **dict.fromkeys(
        map(int, (ColumnType.DATE, ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.TIME)),
        _temporal,
    ),
    **dict.fromkeys(
        map(
            int,
            (
                ColumnType.DECIMAL,
                ColumnType.NEWDECIMAL,
                ColumnType.VARCHAR,
                ColumnType.VAR_STRING,
                ColumnType.STRING,
                ColumnType.TINY_BLOB,
                ColumnType.MEDIUM_BLOB,
                ColumnType.LONG_BLOB,
                ColumnType.BLOB,
                ColumnType.BIT,
                ColumnType.ENUM,
                ColumnType.SET,
                ColumnType.JSON,
                ColumnType.GEOMETRY,
            ),
        ),
        _string,
    ),
}

_DECIMALS: Final = frozenset(map(int, (ColumnType.DECIMAL, ColumnType.NEWDECIMAL)))
_BINARY: Final = frozenset(
    map(
        int,
        (
            ColumnType.TINY_BLOB,
            ColumnType.MEDIUM_BLOB,
            ColumnType.LONG_BLOB,
            ColumnType.BLOB,
            ColumnType.BIT,
            ColumnType.GEOMETRY,
        ),
    )
)
"""Types whose bytes are in no character set."""

_MOMENT_BYTES: Final = 12
"""The longest form of a date or time; shorter ones leave out zeros at the end."""


def _moment(value: Temporal, kind: ParamType) -> date | datetime | timedelta | Temporal:
    reader = Reader(value.raw.ljust(_MOMENT_BYTES, b"\0"))
    try:
        if kind.type == ColumnType.TIME:
            negative = reader.uint(1)
            days, hours, minutes, seconds, micros = (reader.uint(width) for width in (4, 1, 1, 1, 4))
            span = timedelta(days, seconds, micros, minutes=minutes, hours=hours)
            return -span if negative else span
        year, month, day, hours, minutes, seconds, micros = (reader.uint(width) for width in (2, 1, 1, 1, 1, 1, 4))
        if kind.type == ColumnType.DATE:
            return date(year, month, day)
        return datetime(year, month, day, hours, minutes, seconds, micros)  # noqa: DTZ001 - the server's has no zone
    except (ValueError, OverflowError):
        return value
