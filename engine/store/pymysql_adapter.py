"""The adapter of PyMySQL: the login, the errors, the protocol's numbers.

PyMySQL opens connections and logs in, by its documented interface. It gives no access to row
packets, which the engine passes on unread. So engine.store.connection takes the socket after the
login, and reads and writes the protocol itself. That requires two things that PyMySQL does not
document. They are used in this module alone, and `check` reports which of them an installed release
lacks:

- `Connection._sock` is the connection's socket, with TLS once that is agreed on;
- the login agrees on none of `FOREIGN_FLAGS`, so that packets have the form that
  engine.store.connection reads and writes.

No other module of proxy, sqlrewrite or engine imports PyMySQL (an import contract in
pyproject.toml).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

import pymysql
import pymysql.connections
from pymysql.constants import CLIENT, COMMAND, CR, ER
from pymysql.cursors import Cursor

if TYPE_CHECKING:
    Connection = pymysql.connections.Connection[Any]  # Generic in its annotations only.
else:
    Connection = pymysql.connections.Connection

MySQLError = pymysql.MySQLError
OperationalError = pymysql.OperationalError
InterfaceError = pymysql.InterfaceError

FOREIGN_FLAGS: Final = {
    "CLIENT_COMPRESS": 1 << 5,
    "CLIENT_DEPRECATE_EOF": 1 << 24,
    "CLIENT_OPTIONAL_RESULTSET_METADATA": 1 << 25,
    "CLIENT_ZSTD_COMPRESSION_ALGORITHM": 1 << 26,
    "CLIENT_QUERY_ATTRIBUTES": 1 << 27,
}
"""Capabilities that give commands, results or packets another form."""


class IncompatibleVersionError(Exception):
    """An installed release of a library lacks what ackstream uses of it. The text names both."""


def check() -> None:
    """Raise IncompatibleVersionError unless this PyMySQL can be used. Connects to nothing."""
    connection = pymysql.connect(user="ackstream", ssl_disabled=True, defer_connect=True)
    if not hasattr(connection, "_sock"):
        raise _incompatible("its connections have no `_sock`, the socket that rows are read from")
    _check_flags(connection)


def channel(connection: Connection) -> socket.socket:
    """The socket of a connection that has logged in, with no bytes read ahead.

    The caller does all further reading and writing. The connection is only kept for its `close`.
    Raises IncompatibleVersionError.
    """
    found = getattr(connection, "_sock", None)
    if not isinstance(found, socket.socket):
        raise _incompatible("an open connection has no socket as its `_sock`, which rows are read from")
    _check_flags(connection)
    return found


def _check_flags(connection: Connection) -> None:
    flags = getattr(connection, "client_flag", None)
    if not isinstance(flags, int):
        raise _incompatible("its connections have no `client_flag` with the capabilities of the login")
    if foreign := [name for name, flag in FOREIGN_FLAGS.items() if flags & flag]:
        raise _incompatible(f"its login requests {', '.join(foreign)}, which engine.store.connection does not support")


def _incompatible(lack: str) -> IncompatibleVersionError:
    return IncompatibleVersionError(
        f"PyMySQL {pymysql.__version__} does not fit this ackstream: {lack}. Install another release of PyMySQL."
    )


__all__ = [
    "CLIENT",
    "COMMAND",
    "CR",
    "ER",
    "FOREIGN_FLAGS",
    "Connection",
    "Cursor",
    "IncompatibleVersionError",
    "InterfaceError",
    "MySQLError",
    "OperationalError",
    "channel",
    "check",
]
