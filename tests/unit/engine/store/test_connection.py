"""Replies are read as the server sends them, however they are cut into pieces."""

from __future__ import annotations

import io
import socket
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.store.connection import StoreConnection
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.port import StoreError
from tests.support.scripted import scripted_server

EOF = b"\xfe\x00\x00\x02\x00"
MORE = b"\xfe\x00\x00\x0a\x00"
OK = b"\x00\x07\x00\x02\x00\x00\x00"
ERROR = b"\xff\x7a\x04#42S02Table 'a.b' doesn't exist"
LARGEST = 0xFFFFFF


class Pieces:
    """A socket that returns at most `size` bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = io.BytesIO(data)
        self._size = size

    def recv(self, size: int) -> bytes:
        return self._data.read(min(size, self._size))


def packets(*payloads: bytes) -> bytes:
    """The payloads framed, large ones in several packets."""
    framed = bytearray()
    for payload in payloads:
        for start in range(0, len(payload) + 1, LARGEST):
            part = payload[start : start + LARGEST]
            framed += len(part).to_bytes(3, "little") + b"\x00" + part
    return bytes(framed)


def reading(data: bytes, size: int = 1 << 20) -> StoreConnection:
    """A connection that reads these bytes, then the end of the stream."""
    connection = StoreConnection.__new__(StoreConnection)
    connection.broken = False
    connection._buffer, connection._at = b"", 0
    connection._socket = cast(socket.socket, Pieces(data, size))
    return connection


def rows_reply(*rows: bytes, end: bytes = EOF) -> list[bytes]:
    return [b"\x01", b"column definition", EOF, *rows, end]


@given(rows=st.lists(st.binary(min_size=1, max_size=300), max_size=20), size=st.integers(1, 50))
def test_rows_come_whole_however_the_stream_is_cut(rows: list[bytes], size: int) -> None:
    rows = [b"\x05" + row for row in rows]
    connection = reading(packets(*rows_reply(*rows, end=MORE), OK), size)
    assert connection.result().rows == rows
    assert connection.result().affected == 7


@pytest.mark.parametrize("size", [LARGEST - 1, LARGEST, LARGEST + 1, 2 * LARGEST])
def test_a_row_larger_than_a_packet_is_joined(size: int) -> None:
    row = b"\xfe" + bytes(size - 1)
    connection = reading(packets(*rows_reply(row, b"\x01x")))
    assert connection.result().rows == [row, b"\x01x"]


def test_rows_can_be_handed_out_without_being_held() -> None:
    seen: list[bytes] = []
    assert reading(packets(*rows_reply(b"\x01a", b"\x01b"))).result(seen.append).rows == []
    assert seen == [b"\x01a", b"\x01b"]


@pytest.mark.parametrize("reply", [[ERROR], rows_reply(b"\x01a", end=ERROR)])
def test_an_error_of_the_server_leaves_the_connection_usable(reply: list[bytes]) -> None:
    connection = reading(packets(*reply))
    with pytest.raises(StoreError, match=r"^Table 'a.b' doesn't exist \(1146\)$") as caught:
        connection.result()
    assert (caught.value.code, caught.value.lasting, connection.broken) == (1146, True, False)


@pytest.mark.parametrize("size", [0, 1, LARGEST - 2, LARGEST - 1, LARGEST, 2 * LARGEST - 1])
def test_a_command_larger_than_a_packet_is_sent_in_several(size: int) -> None:
    text = b"x" * size
    with scripted_server() as server:
        connection = StoreConnection(BackendAddress(server.host, server.port, "root"), ConnectionLimits())
        connection.send(3, text)
        assert connection.result().affected == 0
        assert server.commands[-1] == b"\x03" + text
        connection.close()


def test_a_reply_that_ends_too_early_breaks_the_connection() -> None:
    connection = reading(packets(*rows_reply(b"\x01a"))[:-3])
    with pytest.raises(StoreError, match="closed the connection") as caught:
        connection.result()
    assert (caught.value.code, caught.value.lasting, connection.broken) == (2013, False, True)


@pytest.mark.parametrize(
    ("host", "unix_socket", "local"),
    [
        ("127.0.0.1", None, True),
        ("::1", None, True),
        ("localhost", None, True),
        ("db.example.com", None, False),
        ("10.0.0.7", None, False),
        ("db.example.com", "/run/mysqld.sock", True),
    ],
)
def test_servers_on_this_machine_are_recognised(host: str, unix_socket: str | None, *, local: bool) -> None:
    assert BackendAddress(host, 3306, "root", unix_socket=unix_socket).local is local


def test_the_repr_of_an_address_leaves_out_the_password() -> None:
    address = BackendAddress("db", 3306, "root", "secret")
    assert "secret" not in f"{address} {address!r}"
