"""When all replies to a call that was begun are here, and when a thread had better wait for them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.packets import frame
from engine.store.begun import LARGE_BYTES, ConnectionCall, Replies
from engine.store.connection import Begun, StoreConnection
from engine.store.opening import ConnectionLimits
from engine.store.port import Timed

OK = frame(b"\0\0\0\2\0\0\0", 1)
EOF = b"\xfe\0\0\2\0"
ERROR = frame(b"\xff\xf1\x0d#HY000locked", 1)


def rows(columns: int, *values: bytes) -> bytes:
    """A result with rows. A value that begins with 0xFE and is long is no end."""
    packets = [bytes([columns]), *[b"def"] * columns, EOF, *values, EOF]
    return b"".join(frame(packet, number + 1 & 255) for number, packet in enumerate(packets))


replies = st.one_of(
    st.just(OK),
    st.builds(rows, st.integers(1, 4), st.binary(min_size=1, max_size=20).filter(lambda row: row[0] < 0xFE)),
    st.just(rows(1, b"\xfe" + bytes(8))),
)


def cuts(data: bytes, places: list[int]) -> Iterator[bytes]:
    """What is there after each piece."""
    for place in sorted({place % len(data) for place in places}):
        yield data[:place]


@given(st.lists(replies, min_size=1, max_size=5), st.lists(replies, max_size=3), st.lists(st.integers(0, 10**6)))
def test_replies_are_complete_at_their_last_byte(first: list[bytes], behind: list[bytes], places: list[int]) -> None:
    data, walk = b"".join([*first, *behind]), Replies(len(first), len(behind))
    assert not any(walk.complete(part) for part in cuts(data, places))
    assert walk.complete(data)
    assert not walk.failed


@given(
    st.lists(replies, max_size=3),
    st.integers(1, 3),
    st.sampled_from([ERROR, rows(2, b"\1a")[:-9] + ERROR]),
    st.lists(replies, max_size=3),
    st.lists(st.integers(0, 10**6)),
)
def test_an_error_ends_the_statements_of_its_packet_and_not_what_is_behind(
    done: list[bytes], left: int, error: bytes, behind: list[bytes], places: list[int]
) -> None:
    """It may come in place of a result, and behind rows."""
    data, walk = b"".join([*done, error, *behind]), Replies(len(done) + left, len(behind))
    assert not any(walk.complete(part) for part in cuts(data, places))
    assert walk.complete(data)
    assert walk.failed


class Wire(StoreConnection):
    """A connection whose server is played."""

    def __init__(self) -> None:
        self._socket, self.far_end = socket.socketpair()
        self._buffer, self._at, self._owed = b"old", 3, 0
        self._limits, self.broken = ConnectionLimits(), False


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made._socket.close()
    made.far_end.close()


def call_on(wire: Wire, statements: int = 2, behind: int = 0) -> ConnectionCall[Any]:
    return ConnectionCall(wire, Begun(statements, None, False, behind), lambda: cast(Timed[Any], None))


def test_what_has_come_is_read_until_it_is_all(wire: Wire) -> None:
    call = call_on(wire)
    assert not call.arrived()
    wire.far_end.sendall(OK + OK[:5])
    assert not call.arrived()
    wire.far_end.sendall(OK[5:])
    assert (call.arrived(), call.waits) == (True, False)
    assert [result.affected for result in (wire.result(), wire.result())] == [0, 0]


def test_an_error_is_left_to_a_thread_when_the_replies_behind_it_are_here(wire: Wire) -> None:
    call = call_on(wire, behind=1)
    wire.far_end.sendall(ERROR)
    assert not call.arrived()
    wire.far_end.sendall(OK)
    assert (call.arrived(), call.waits) == (True, True)


def test_so_is_a_connection_that_is_lost(wire: Wire) -> None:
    call = call_on(wire)
    wire.far_end.sendall(OK)
    wire.far_end.shutdown(socket.SHUT_RDWR)
    assert (call.arrived(), call.waits) == (True, True)


def test_so_are_large_replies(wire: Wire) -> None:
    call = call_on(wire, 1)
    sent = frame(b"\1", 1) + frame(b"def", 2) + frame(EOF, 3) + frame(b"\xfd" + bytes(2 * LARGE_BYTES), 4)
    while not call.arrived():
        wire.far_end.send(sent[:10_000])
        sent = sent[10_000:]
    assert call.waits
    assert len(wire.unread) <= LARGE_BYTES + 100_000


def test_one_that_was_not_sent_is_left_to_a_thread_at_once(wire: Wire) -> None:
    call: ConnectionCall[Any] = ConnectionCall(wire, None, lambda: cast(Timed[Any], None))
    assert (call.waits, call.arrived()) == (True, True)


def test_one_that_is_aborted_arrives(wire: Wire) -> None:
    call = call_on(wire)
    call.abort()
    assert (call.arrived(), call.waits) == (True, True)
