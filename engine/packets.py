"""MySQL packets as far as both the engine and the proxy read them: headers, numbers, text rows, the first packets.

A peer's lengths are not trusted. Where a length or a field reaches past the end of its packet, the function raises
WireError, never another exception, and never returns a shortened value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

PAYLOAD_MAX: Final = 0xFFFFFF
"""The payload length of a packet that the next packet continues."""

HEADER: Final = 4
"""The length of a packet's header: three bytes of payload length, one of sequence number."""

NULL_MARK: Final = 0xFB
"""The first byte of a NULL where a length-encoded string may stand (text rows)."""

OK: Final = 0x00
EOF: Final = 0xFE
ERR: Final = 0xFF

EOF_MAX: Final = 9
"""A packet that begins with 0xFE is an EOF only if it is shorter than this. Otherwise it is a row."""

_WIDTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_SQLSTATE_LEN: Final = 5
_PREPARE_COUNTS: Final = struct.Struct("<IHH")
_pack_header = struct.Struct("<I").pack


class WireError(Exception):
    """A peer sent bytes that are not the protocol. The connection cannot be used any further.

    `code` and `sqlstate` belong into the ERR packet that reports it.
    """

    code: int = 1835
    """ER_MALFORMED_PACKET."""
    sqlstate: str = "HY000"


class OkHead(NamedTuple):
    """The numbers of an OK packet. `status` is the bit set of `ServerStatus`."""

    affected_rows: int
    insert_id: int
    status: int
    warnings: int


class PrepareOk(NamedTuple):
    """The first packet of the answer to COM_STMT_PREPARE."""

    statement_id: int
    column_count: int
    param_count: int


class ErrorFields(NamedTuple):
    """The fields of an ERR packet. `message` is decoded as UTF-8 with replacement: for people, not for relaying."""

    code: int
    sqlstate: str
    message: str


def frame(payload: bytes, seq: int) -> bytes:
    """`payload` in as many packets as it needs, numbered from `seq`."""
    length = len(payload)
    if length < PAYLOAD_MAX:
        return _pack_header(length | (seq & 0xFF) << 24) + payload
    return b"".join(large_frame(payload, seq))


def large_frame(payload: bytes, seq: int) -> Iterator[bytes | memoryview]:
    """The packets of a payload of PAYLOAD_MAX bytes or more: headers, and parts of the payload that are not copied."""
    whole = memoryview(payload)
    for start in range(0, len(whole) + 1, PAYLOAD_MAX):
        part = whole[start : start + PAYLOAD_MAX]
        yield _pack_header(len(part) | (seq & 0xFF) << 24)
        yield part
        seq += 1


def lenenc_at(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The length-encoded integer at `at`, and the position after it. Reads no byte from `end` on."""
    if at >= end:
        raise WireError(f"a field was expected at byte {at}, where the packet ends")
    first = data[at]
    if first < NULL_MARK:
        return first, at + 1
    width = _WIDTHS.get(first)
    if width is None:
        raise WireError(f"byte 0x{first:02X} does not begin a length-encoded integer")
    stop = at + 1 + width
    if stop > end:
        raise WireError(f"a length-encoded integer is cut off at byte {end}")
    return int.from_bytes(data[at + 1 : stop], "little"), stop


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one statement: its rows as packets, or the number of rows it changed."""

    rows: list[bytes]
    affected: int = 0
    warnings: int = 0


def text_values(row: bytes) -> list[bytes | None]:
    """The values of a row in the text protocol."""
    values: list[bytes | None] = []
    at, size = 0, len(row)
    while at < size:
        length = row[at]
        if length < NULL_MARK:
            start = at + 1
        elif length == NULL_MARK:
            values.append(None)
            at += 1
            continue
        else:
            length, start = lenenc_at(row, at, size)
        at = start + length
        values.append(row[start:at])
    if at > size:
        raise WireError(f"a value ends {at - size} bytes after the end of its row")
    return values


def ok_numbers_at(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The fields of `OkHead`, of the OK packet from `at` to `end`, as a plain tuple, which takes less time to make."""
    affected_rows, at = lenenc_at(data, at + 1, end)
    insert_id, at = lenenc_at(data, at, end)
    if at + 2 > end:
        raise WireError("an OK packet ends before its status")
    warnings = data[at + 2] | data[at + 3] << 8 if at + 4 <= end else 0
    return affected_rows, insert_id, data[at] | data[at + 1] << 8, warnings


def ok_head_at(data: bytes, at: int, end: int) -> OkHead:
    """The numbers of the OK packet from `at` to `end`."""
    return OkHead(*ok_numbers_at(data, at, end))


def err_code_at(data: bytes, at: int, end: int) -> int:
    """The error number of the ERR packet whose first byte stands at `at`."""
    if end - at < 3:
        raise WireError("an ERR packet ends before its number")
    return data[at + 1] | data[at + 2] << 8


def error_fields(payload: bytes) -> ErrorFields:
    """The fields of an ERR packet, with or without an SQLSTATE (before the handshake there is none)."""
    code = err_code_at(payload, 0, len(payload))
    text = payload[3:]
    sqlstate = "HY000"
    if text[:1] == b"#" and len(text) > _SQLSTATE_LEN:
        sqlstate = text[1 : 1 + _SQLSTATE_LEN].decode("ascii", "replace")
        text = text[1 + _SQLSTATE_LEN :]
    return ErrorFields(code, sqlstate, text.decode("utf-8", "replace"))


def prepare_ok_at(data: bytes, at: int, end: int) -> PrepareOk:
    """The numbers of the PREPARE answer whose first byte stands at `at`."""
    if end - at < 9:
        raise WireError("the answer to PREPARE ends before its counts")
    return PrepareOk(*_PREPARE_COUNTS.unpack_from(data, at + 1))
