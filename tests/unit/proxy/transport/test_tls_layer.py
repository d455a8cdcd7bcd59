"""The TLS layer between a leg and its socket, however the network cuts what passes."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path

import pytest

from proxy.settings import BadSetting, Settings
from proxy.transport.tls import EARLY_MAX, TlsLayer, client_context, server_context
from tests.support.certificates import Certificates, make_certificates


class Socket(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = bytearray()
        self.closed = self.aborted = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Leg(asyncio.Protocol):
    """What a session would see."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces = 0
        self.ended = False

    def data_received(self, data: bytes) -> None:
        assert data
        self.received += data
        self.pieces += 1

    def eof_received(self) -> None:
        self.ended = True


class End:
    """One end of a connection with TLS."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        self.leg = Leg()
        self.socket = Socket(self.leg)
        self.failures: list[str] = []
        self.layer = TlsLayer(self.socket, context, server_side=server_side, host=host, failed=self.failures.append)

    def take(self) -> bytes:
        data = bytes(self.socket.written)
        self.socket.written.clear()
        return data

    def give(self, data: bytes, size: int) -> None:
        for at in range(0, len(data), size):
            self.socket.protocol.data_received(data[at : at + size])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def ends(made: Certificates) -> tuple[End, End]:
    """A client and the proxy, the handshake not begun."""
    offered = client_context(Settings(tls_certificate=made.certificate, tls_key=made.key))
    client = End(server_context(Settings(backend_ca=made.ca)), server_side=False, host="127.0.0.1")
    return client, End(offered, server_side=True)


def exchange(one: End, other: End, size: int = 1 << 20) -> None:
    """Carry what each has written to the other until both are silent."""
    while one.socket.written or other.socket.written:
        other.give(one.take(), size)
        one.give(other.take(), size)


@pytest.mark.parametrize("by", ["the socket", "close_notify"])
def test_the_end_of_what_the_peer_sends_is_reported(ends: tuple[End, End], by: str) -> None:
    client, proxy = ends
    client.layer.start()
    proxy.layer.start(client.take())
    exchange(client, proxy)
    if by == "the socket":
        proxy.socket.protocol.eof_received()
    else:
        client.layer.close()
        proxy.give(client.take(), 1 << 20)
    assert proxy.leg.ended


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1 << 20])
def test_both_sides_get_what_the_other_wrote_however_it_is_cut(ends: tuple[End, End], size: int) -> None:
    client, proxy = ends
    client.layer.start()
    proxy.layer.start(client.take())
    exchange(client, proxy, size)
    client.layer.write(b"to the proxy")
    proxy.layer.write(b"to the client" * 10_000)
    exchange(client, proxy, size)
    assert bytes(proxy.leg.received) == b"to the proxy"
    assert bytes(client.leg.received) == b"to the client" * 10_000


def test_the_clients_hello_may_come_with_its_request_in_any_part(made: Certificates) -> None:
    offered = client_context(Settings(tls_certificate=made.certificate, tls_key=made.key))
    for cut in range(0, 400, 13):
        client = End(server_context(Settings(backend_ca=made.ca)), server_side=False, host="127.0.0.1")
        proxy = End(offered, server_side=True)
        client.layer.start()
        hello = client.take()
        proxy.layer.start(hello[:cut])
        proxy.give(hello[cut:], 1 << 20)
        client.layer.write(b"login")
        exchange(client, proxy)
        assert bytes(proxy.leg.received) == b"login"


def test_many_records_in_one_chunk_are_one_piece_for_the_leg(ends: tuple[End, End]) -> None:
    client, proxy = ends
    client.layer.start()
    proxy.layer.start(client.take())
    exchange(client, proxy)
    proxy.layer.write(b"x" * 200_000)
    exchange(client, proxy)
    assert (len(client.leg.received), client.leg.pieces) == (200_000, 1)


def test_what_is_written_before_the_handshake_is_over_goes_out_after_it(ends: tuple[End, End]) -> None:
    client, proxy = ends
    client.layer.start()
    client.layer.write(b"login")
    assert b"login" not in client.socket.written
    proxy.layer.start(client.take())
    exchange(client, proxy)
    assert bytes(proxy.leg.received) == b"login"


def test_a_leg_cannot_pile_up_writes_before_the_handshake_is_over(ends: tuple[End, End]) -> None:
    client, _ = ends
    client.layer.write(b"x" * (EARLY_MAX + 1))
    assert client.socket.aborted


def test_a_farewell_closes_the_other_side(ends: tuple[End, End]) -> None:
    client, proxy = ends
    client.layer.start()
    proxy.layer.start(client.take())
    exchange(client, proxy)
    proxy.layer.write(b"last words")
    proxy.layer.close()
    client.give(proxy.take(), 1 << 20)
    assert bytes(client.leg.received) == b"last words"
    assert client.socket.closed
    proxy.layer.write(b"never sent")
    assert not proxy.socket.written


@pytest.mark.parametrize("received", [b"\x03\x00\x00\x02abc", b"\x16\x03\x01\x00\x05junk!", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_tls_ends_the_connection_and_is_not_passed_on(ends: tuple[End, End], received: bytes) -> None:
    _, proxy = ends
    proxy.layer.start(received)
    assert proxy.socket.closed
    assert len(proxy.failures) == 1
    assert not proxy.leg.received


def test_a_forged_record_ends_the_connection(ends: tuple[End, End]) -> None:
    client, proxy = ends
    client.layer.start()
    proxy.layer.start(client.take())
    exchange(client, proxy)
    client.layer.write(b"genuine")
    forged = bytearray(client.take())
    forged[-1] ^= 1
    proxy.give(bytes(forged), 1 << 20)
    assert proxy.socket.closed
    assert not proxy.leg.received


@pytest.mark.parametrize(
    ("host", "authority", "complaint"),
    [
        ("127.0.0.2", "own", "IP address mismatch"),
        ("127.0.0.1", "other", "unable to get local issuer certificate|certificate signature failure"),
    ],
)
def test_a_server_that_is_not_who_it_should_be_is_refused(
    made: Certificates, tmp_path: Path, host: str, authority: str, complaint: str
) -> None:
    ca = made.ca if authority == "own" else make_certificates(tmp_path / "other").ca
    offered = client_context(Settings(tls_certificate=made.certificate, tls_key=made.key))
    proxy = End(server_context(Settings(backend_ca=ca)), server_side=False, host=host)
    server = End(offered, server_side=True)
    proxy.layer.start()
    server.layer.start(proxy.take())
    proxy.give(server.take(), 1 << 20)
    (failure,) = proxy.failures
    assert re.search(complaint, failure)
    assert proxy.socket.closed


def test_files_that_cannot_be_used_are_bad_settings(made: Certificates, tmp_path: Path) -> None:
    for settings in (
        Settings(tls_certificate=tmp_path / "missing.pem"),
        Settings(tls_certificate=made.certificate),
        Settings(tls_certificate=made.certificate, tls_key=make_certificates(tmp_path / "other").key),
    ):
        with pytest.raises(BadSetting, match=r"tls_certificate: .* cannot be used"):
            client_context(settings)
    with pytest.raises(BadSetting, match=r"backend_ca: .* cannot be used"):
        server_context(Settings(backend_ca=tmp_path / "missing.pem"))
