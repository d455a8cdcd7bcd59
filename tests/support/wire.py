"""A server's and a client's side of the protocol, made by hand for the wire tests.

Each function returns whole packets as they would travel, numbered from the given sequence number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from mysql_mimic.types import ColumnType

from engine.packets import PrepareOk, frame
from proxy.wire.columns import ColumnDef, make_column
from proxy.wire.framing import frame_rows
from proxy.wire.packets import AUTOCOMMIT, DEPRECATE_EOF, make_end, make_eof, make_err, make_ok, make_prepare_ok

QUERY = 0x03
PREPARE = 0x16
EXECUTE = 0x17
PING = 0x0E


def command(byte: int, body: bytes = b"") -> bytes:
    """One command of a client."""
    return frame(bytes([byte]) + body, 0)


def ok(status: int = AUTOCOMMIT, *, affected_rows: int = 0, info: bytes = b"") -> bytes:
    return frame(make_ok(status=status, affected_rows=affected_rows, info=info), 1)


def err(code: int = 1064, message: str = "no", *, seq: int = 1) -> bytes:
    return frame(make_err(code, "42000", message), seq)


def column_packets(count: int, capabilities: int, *, status: int = AUTOCOMMIT, name: bytes = b"c") -> list[bytes]:
    """Column definitions, and the EOF behind them where there is one."""
    packets = [make_column(ColumnDef(name, int(ColumnType.VAR_STRING)))] * count
    return packets if capabilities & DEPRECATE_EOF else [*packets, make_eof(status)]


def result(
    rows: Sequence[bytes],
    capabilities: int = 0,
    *,
    columns: int = 1,
    status: int = AUTOCOMMIT,
    name: bytes = b"c",
) -> bytes:
    """A result set with the given row payloads."""
    packets = [
        bytes([columns]),
        *column_packets(columns, capabilities, name=name),
        *rows,
        make_end(capabilities, status),
    ]
    return frame_rows(packets, 1)[0]


def prepared(params: int, columns: int, capabilities: int = 0) -> bytes:
    """The answer to COM_STMT_PREPARE."""
    packets = [make_prepare_ok(PrepareOk(7, columns, params))]
    for count in (params, columns):
        packets += column_packets(count, capabilities) if count else []
    return frame_rows(packets, 1)[0]


def pieces(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    """`data` cut at the given offsets."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    for start, stop in pairwise(bounds):
        yield data[start:stop]
