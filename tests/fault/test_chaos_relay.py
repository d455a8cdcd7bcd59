"""The relays of the harness: what each fault does to the bytes of a connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.fault.chaos.harness import Relays

TEXT = b"ackstream" * 1000


class Echo:
    """A server that returns what it gets; `lost` when a connection to it has ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._echo, args=(self._listener.accept()[0],), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)
        self.lost.set()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def relays() -> Iterator[Relays]:
    relays = Relays()
    yield relays
    relays.close()


@pytest.fixture
def client(relays: Relays, echo: Echo) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", relays.order(leg="a", to=echo.port)), 20) as client:
        assert returned(client, b"x") == b"x"
        yield client


def first_byte(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        return client.recv(1)


def returned(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    found = b""
    while len(found) < len(data):
        found += client.recv(1 << 16)
    return found


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "pass"},
        {"fault": "split"},
        {"fault": "delay", "seconds": 0.01},
        {"fault": "throttle", "bytes": 1_000_000},
        {"fault": "refuse"},
    ],
    ids=lambda fault: fault["fault"],
)
def test_bytes_arrive_whole_and_in_order(relays, client, fault) -> None:
    relays.order(leg="a", **fault)
    assert returned(client, TEXT) == TEXT


@pytest.mark.parametrize("directions", [{"up": True, "down": False}, {"up": False, "down": True}, {}])
def test_nothing_passes_a_stall_until_it_is_over(relays, client, directions) -> None:
    relays.order(leg="a", fault="stall", **directions)
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        returned(client, TEXT)
    client.settimeout(20)
    relays.order(leg="a", fault="pass")
    assert returned(client, b"") == b""
    found = b""
    while len(found) < len(TEXT):
        found += client.recv(1 << 16)
    assert found == TEXT


def test_behind_a_stall_the_end_of_a_connection_is_not_noticed(relays, client, echo) -> None:
    relays.order(leg="a", fault="stall")
    client.close()
    assert not echo.lost.wait(0.2)
    relays.order(leg="a", fault="pass")
    assert echo.lost.wait(20)


def test_a_cut_ends_both_connections(relays, client, echo) -> None:
    relays.order(leg="a", fault="cut", part=1.0, seed=1)
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert echo.lost.wait(20)


def test_new_connections_are_refused_and_old_ones_stay(relays, client) -> None:
    port = relays.order(leg="a", fault="refuse")
    with pytest.raises(ConnectionResetError):
        first_byte(port)
    assert returned(client, TEXT) == TEXT


def test_a_client_that_leaves_is_gone_behind_the_relay_as_well(client, echo) -> None:
    client.close()
    assert echo.lost.wait(20)
