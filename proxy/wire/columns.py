"""Column definitions, read and made.

The proxy forwards the server's own column packets where it can, because they contain the client's
charset and every flag. It reads them only for a column's name and type. It makes them only for
results that no server makes: parameters of a prepared STREAM, and the proxy's own SHOW statements.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from proxy.wire.fields import Reader
from proxy.wire.mimic_adapter import ColumnType, str_len

UTF8MB4_GENERAL_CI: Final = 45
BINARY_COLLATION: Final = 63

_FIXED: Final = struct.Struct("<BHIBHB2x")
_FIXED_LENGTH: Final = 12


class ColumnDef(NamedTuple):
    """One column of a result: `type` is a `ColumnType`, `flags` are `ColumnDefinition` bits.

    Names stay bytes: their charset is the client's, which is not known here.
    """

    name: bytes
    type: int
    flags: int = 0
    charset: int = BINARY_COLLATION
    length: int = 0
    decimals: int = 0
    db: bytes = b""
    table: bytes = b""
    org_table: bytes = b""
    org_name: bytes = b""


def parse_column(payload: bytes, *, extended: bool = False) -> ColumnDef:
    """Read a column packet. `extended`: MariaDB's EXTENDED_METADATA, which adds a field."""
    reader = Reader(payload)
    _catalog, db, table, org_table, name, org_name = (reader.lenenc_bytes() for _ in range(6))
    if extended:
        reader.lenenc_bytes()
    reader.lenenc()
    charset, length, kind, flags, decimals = _FIXED.unpack(b"\0" + reader.take(_FIXED_LENGTH))[1:]
    return ColumnDef(name, kind, flags, charset, length, decimals, db, table, org_table, org_name)


def make_column(column: ColumnDef, *, extended: bool = False) -> bytes:
    """The column packet for `column`."""
    texts = (b"def", column.db, column.table, column.org_table, column.name, column.org_name)
    numbers = (column.charset, column.length, column.type, column.flags, column.decimals)
    joined: bytes = b"".join(map(str_len, texts))
    return joined + (b"\0" if extended else b"") + _FIXED.pack(_FIXED_LENGTH, *numbers)


def text_column(name: str, *, charset: int = UTF8MB4_GENERAL_CI, length: int = 1024) -> ColumnDef:
    """A VARCHAR column of a result that the proxy makes itself."""
    return ColumnDef(name.encode(), int(ColumnType.VAR_STRING), charset=charset, length=length)
