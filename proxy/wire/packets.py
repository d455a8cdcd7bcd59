"""The packets that end an answer: OK, EOF, ERR and the PREPARE answer, read and made.

The proxy seldom makes packets. They must look like the server's own. The end of a result set
depends on the agreed capabilities: with CLIENT_DEPRECATE_EOF it is an OK packet whose first byte is
0xFE, without it an EOF packet (`make_end`). This module has payloads only; framing.py adds the
headers.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from engine.packets import EOF, EOF_MAX, ERR, OK, OkHead, PrepareOk, WireError, error_fields, ok_head_at
from proxy.wire.fields import Reader
from proxy.wire.mimic_adapter import Capabilities, ServerStatus, str_len, uint_len

LOCAL_INFILE: Final = 0xFB

DEPRECATE_EOF: Final = int(Capabilities.CLIENT_DEPRECATE_EOF)
IN_TRANS: Final = int(ServerStatus.SERVER_STATUS_IN_TRANS)
AUTOCOMMIT: Final = int(ServerStatus.SERVER_STATUS_AUTOCOMMIT)
MORE_RESULTS: Final = int(ServerStatus.SERVER_MORE_RESULTS_EXISTS)
CURSOR_EXISTS: Final = int(ServerStatus.SERVER_STATUS_CURSOR_EXISTS)
PS_OUT_PARAMS: Final = int(ServerStatus.SERVER_PS_OUT_PARAMS)
STATE_CHANGED: Final = int(ServerStatus.SERVER_SESSION_STATE_CHANGED)


OK_HEAD_MAX: Final = 1 + 9 + 9 + 2 + 2
"""The fields of an OK packet before its texts are never longer than this."""

UNREACHABLE: Final = 1105
"""The error number for a server that cannot be reached. Client libraries have their own numbers for it
(2003, 2013, 2026), but only for errors that they detect themselves: MariaDB's treat an ERR packet
with 2000 to 2999 as a malformed packet (2027), and its text is lost."""


class Ok(NamedTuple):
    """A whole OK packet; `state` is the undecoded block of session changes."""

    head: OkHead
    info: bytes
    state: bytes


class Eof(NamedTuple):
    """An EOF packet."""

    status: int
    warnings: int


class ServerError(Exception):
    """The content of an ERR packet, as a value and as an exception.

    `message` is decoded as UTF-8 with replacement: it is for people, never for relaying.
    """

    def __init__(self, code: int, sqlstate: str, message: str) -> None:
        super().__init__(code, sqlstate, message)
        self.code = code
        self.sqlstate = sqlstate
        self.message = message

    def __str__(self) -> str:
        return f"{self.code} ({self.sqlstate}): {self.message}"

    def again(self) -> ServerError:
        """Another one that says the same, to be raised: one that is kept would gather the frames of each raise."""
        return ServerError(self.code, self.sqlstate, self.message)


def eof_status_at(data: bytes, at: int, end: int) -> int:
    """The status flags of the EOF packet whose first byte stands at `at`."""
    if end - at < 5:
        raise WireError("an EOF packet ends before its status")
    return data[at + 3] | data[at + 4] << 8


def parse_ok(payload: bytes) -> Ok:
    """A whole OK packet, under either of its first bytes (0x00, and 0xFE at the end of rows)."""
    head = ok_head_at(payload, 0, len(payload))
    reader = Reader(payload, 1)
    reader.lenenc()
    reader.lenenc()
    reader.take(min(4, reader.left))
    info = reader.lenenc_bytes() if reader.left else b""
    has_state = head.status & STATE_CHANGED and reader.left
    return Ok(head, info, reader.lenenc_bytes() if has_state else b"")


def parse_eof(payload: bytes) -> Eof:
    """An EOF packet of protocol 4.1."""
    status = eof_status_at(payload, 0, len(payload))
    return Eof(status, payload[1] | payload[2] << 8)


def parse_err(payload: bytes) -> ServerError:
    """An ERR packet, with or without an SQLSTATE (before the handshake there is none)."""
    return ServerError(*error_fields(payload))


def is_end_of_rows(payload: bytes, capabilities: int) -> bool:
    """Whether a packet where a row may stand is the EOF or OK that ends the rows."""
    if payload[:1] != b"\xfe":
        return False
    return len(payload) < (0xFFFFFF if capabilities & DEPRECATE_EOF else EOF_MAX)


def make_ok(
    *,
    affected_rows: int = 0,
    insert_id: int = 0,
    status: int = AUTOCOMMIT,
    warnings: int = 0,
    info: bytes = b"",
    header: int = OK,
) -> bytes:
    """An OK packet without session changes, so STATE_CHANGED is cleared from `status`."""
    counts: bytes = uint_len(affected_rows) + uint_len(insert_id)
    flags = struct.pack("<HH", status & ~STATE_CHANGED & 0xFFFF, warnings)
    text: bytes = str_len(info) if info else b""
    return bytes([header]) + counts + flags + text


def make_eof(status: int = AUTOCOMMIT, warnings: int = 0) -> bytes:
    """An EOF packet of protocol 4.1."""
    return struct.pack("<BHH", EOF, warnings, status & ~STATE_CHANGED & 0xFFFF)


def make_err(code: int, sqlstate: str, message: str, *, protocol41: bool = True) -> bytes:
    """An ERR packet; `protocol41` is False only where the greeting would stand."""
    state = f"#{sqlstate:.5}".encode("ascii") if protocol41 else b""
    return struct.pack("<BH", ERR, code) + state + message.encode()


def make_end(capabilities: int, status: int = AUTOCOMMIT, warnings: int = 0) -> bytes:
    """What ends a result set's rows under the flags that client and server agreed upon."""
    if capabilities & DEPRECATE_EOF:
        return make_ok(status=status, warnings=warnings, header=EOF)
    return make_eof(status, warnings)


def make_prepare_ok(prepared: PrepareOk, warnings: int = 0) -> bytes:
    """The first packet of the answer to COM_STMT_PREPARE."""
    return struct.pack("<BIHHBH", OK, *prepared, 0, warnings)
