"""Every use that tests make of undocumented parts of PyMySQL's connections.

They send a command without waiting, read an answer packet by packet, or close a socket without COM_QUIT.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any


def send(connection: Any, command: int, payload: bytes) -> None:
    """Send a command, whose answer is then owed."""
    connection._execute_command(command, payload)


def answer(connection: Any) -> Any:
    """Read the answer of a command that was a statement: its result. Raises MySQLError."""
    connection._read_query_result()
    return connection._result


def packet(connection: Any) -> bytes:
    """The next packet of an answer. Raises MySQLError when it is an error."""
    return bytes(connection._read_packet().get_all_data())


def affected(connection: Any) -> int:
    """Read an OK packet; returns its affected rows."""
    return int(connection._read_ok_packet().affected_rows)


def socket_of(connection: Any) -> socket.socket:
    """The connection's socket."""
    found = connection._sock
    assert isinstance(found, socket.socket)
    return found


def is_open(connection: Any) -> bool:
    """Whether the connection is usable."""
    return connection._sock is not None and not connection._closed


def expect_answer(connection: Any) -> None:
    """Expect the first packet of an answer to a command that was sent on the socket itself."""
    connection._next_seq_id = 1


def write_by(connection: Any, write: Callable[[bytes], None]) -> None:
    """Write all further packets of the connection with this function."""
    connection._write_bytes = write


def authenticate(connection: Any) -> None:
    """Follow the answer to COM_CHANGE_USER to its end. Raises MySQLError."""
    found = connection._read_packet()
    if found.is_auth_switch_request():
        found.read_uint8()
        name = found.read_string()
        found = connection._process_auth(name, found)
    found.check_error()


def cut(connection: Any) -> None:
    """End the connection under a thread that reads from it. Safe on a closed one."""
    if connection._sock is not None:
        with contextlib.suppress(OSError):
            connection._sock.shutdown(socket.SHUT_RDWR)


def vanish(connection: Any) -> None:
    """Close without COM_QUIT, as a killed process does. No thread may be reading. Safe on a closed connection."""
    cut(connection)
    connection._force_close()


def forget_result(connection: Any) -> None:
    """Keep PyMySQL from reading an unbuffered result to its end, which an endless one does not have."""
    if connection._result is not None:
        connection._result.unbuffered_active = False
