"""The rows of a SELECT as columns of bytes, which Arrow converts a column at a time.

PyMySQL makes a packet, a tuple and texts of each row. That takes several times as long as all else
that a task does with the row. It gives no other access to rows, so this module reads their packets
itself. It uses the names in `USED`, which PyMySQL does not document and no other module uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import pymysql
from pymysql.connections import Connection, MySQLResult
from pymysql.constants import COMMAND
from pymysql.protocol import MysqlPacket

from ..errors import PipelineError

Values: TypeAlias = Sequence[bytes | None]
"""A column's value in each row, as the server sends it: text, or the bytes of a binary column."""

Columns: TypeAlias = Sequence[Values]

USED: Final = ((Connection, "_execute_command"), (Connection, "_read_bytes"), (MySQLResult, "_read_rowdata_packet"))

PACKET_MAX: Final = 0xFFFFFF
"""Bytes of a packet. One that has so many goes on in the next."""

_NULL: Final = 0xFB
_LENGTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""A value begins with its length, or from 251 bytes on with one of these and a length of so many
bytes."""
_EOF: Final = 0xFE
_EOF_MAX: Final = 8
"""Bytes of the packet that ends a result; a row that begins with the same byte is longer."""
_ERROR: Final = 0xFF


def reading(statement: str) -> partial[Columns]:
    """`read` for one statement; it takes the connection."""
    return partial(read, statement)


def read(statement: str, connection: Any) -> Columns:
    """All rows of a SELECT, by column. Raises pymysql.MySQLError, and PipelineError if this PyMySQL
    lacks a name of `USED`."""
    if lacking := [name for owner, name in USED if not hasattr(owner, name)]:
        raise PipelineError(
            f"PyMySQL {pymysql.VERSION_STRING} lacks {', '.join(lacking)}, by which rows are read: install a release"
            " that ackstream-spark allows"
        )
    connection._execute_command(COMMAND.COM_QUERY, statement)  # noqa: SLF001  # of USED
    result = _Result(connection)
    result.read()
    return result.columns


class _Result(MySQLResult):
    """The answer to a SELECT. Its rows are in `columns`."""

    columns: Columns = ()

    def _read_rowdata_packet(self) -> None:
        """Called by `read`, behind the definitions of the columns."""
        connection: Any = self.connection
        self.columns = _columns(connection._read_bytes, self.field_count)  # noqa: SLF001  # of USED


def _columns(read_bytes: Callable[[int], bytes], count: int) -> Columns:
    columns: list[list[bytes | None]] = [[] for _ in range(count)]
    adders = [column.append for column in columns]
    while not _is_end(row := _packet(read_bytes)):
        at = 0
        for add in adders:
            length = row[at]
            at += 1
            if length == _NULL:
                add(None)
                continue
            if length > _NULL:
                digits = _LENGTHS[length]
                length = int.from_bytes(row[at : at + digits], "little")
                at += digits
            add(row[at : at + length])
            at += length
    return columns


def _packet(read_bytes: Callable[[int], bytes]) -> bytes:
    header = read_bytes(4)
    length = header[0] | header[1] << 8 | header[2] << 16
    packet = read_bytes(length)
    return packet if length < PACKET_MAX else packet + _packet(read_bytes)


def _is_end(packet: bytes) -> bool:
    """Whether a result ends here. Raises pymysql.MySQLError if it ends with an error."""
    if packet[0] == _ERROR:
        MysqlPacket(packet, "utf8").raise_for_error()
    return packet[0] == _EOF and len(packet) <= _EOF_MAX
