"""The parts of mysql-mimic that ackstream uses: the protocol's numbers by name, and two functions that
encode parts of packets.

Its readers never parse bytes of a peer, and its server never serves a client. Some of its numbers
follow from their place in a class, so one more name would shift those behind it. `check` compares
the last of each kind with the protocol's own, and names those that differ in the installed release.

No other module of proxy, sqlrewrite or engine imports mysql-mimic (an import contract in
pyproject.toml).
"""

from __future__ import annotations

from importlib.metadata import version

from mysql_mimic.errors import ErrorCode
from mysql_mimic.types import (
    Capabilities,
    ColumnType,
    Commands,
    ComStmtExecuteFlags,
    ServerStatus,
    str_len,
    uint_len,
)


class IncompatibleVersionError(Exception):
    """The installed release of mysql-mimic has other numbers than the protocol. The text names them."""


def check() -> None:
    """Raise IncompatibleVersionError unless this mysql-mimic speaks the protocol."""
    found = {
        "Capabilities.CLIENT_PROTOCOL_41": (int(Capabilities.CLIENT_PROTOCOL_41), 1 << 9),
        "Capabilities.CLIENT_PLUGIN_AUTH": (int(Capabilities.CLIENT_PLUGIN_AUTH), 1 << 19),
        "Capabilities.CLIENT_QUERY_ATTRIBUTES": (int(Capabilities.CLIENT_QUERY_ATTRIBUTES), 1 << 27),
        "ColumnType.TIME": (int(ColumnType.TIME), 0x0B),
        "ColumnType.GEOMETRY": (int(ColumnType.GEOMETRY), 0xFF),
        "Commands.COM_RESET_CONNECTION": (int(Commands.COM_RESET_CONNECTION), 0x1F),
        "ComStmtExecuteFlags.PARAMETER_COUNT_AVAILABLE": (int(ComStmtExecuteFlags.PARAMETER_COUNT_AVAILABLE), 8),
        "ServerStatus.SERVER_SESSION_STATE_CHANGED": (int(ServerStatus.SERVER_SESSION_STATE_CHANGED), 0x4000),
        "ErrorCode.MALFORMED_PACKET": (int(ErrorCode.MALFORMED_PACKET), 1835),
        "uint_len(250)": (uint_len(250), b"\xfa"),
        "uint_len(251)": (uint_len(251), b"\xfc\xfb\x00"),
        "uint_len(1 << 16)": (uint_len(1 << 16), b"\xfd\x00\x00\x01"),
        "uint_len(1 << 24)": (uint_len(1 << 24), b"\xfe\x00\x00\x00\x01\x00\x00\x00\x00"),
        "str_len(b'ab')": (str_len(b"ab"), b"\x02ab"),
    }
    for name, (has, expected) in found.items():
        if has != expected:
            raise IncompatibleVersionError(
                f"mysql-mimic {version('mysql-mimic')} does not fit this ackstream: {name} is {has!r},"
                f" and {expected!r} in the protocol. Install another release of mysql-mimic."
            )


__all__ = [
    "Capabilities",
    "ColumnType",
    "ComStmtExecuteFlags",
    "Commands",
    "ErrorCode",
    "IncompatibleVersionError",
    "ServerStatus",
    "check",
    "str_len",
    "uint_len",
]
